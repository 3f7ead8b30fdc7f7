"""Priority inheritance: while A waits for B, B's calls are as urgent as A.

In: who waits for whom (a request, a child, a pipe) and how urgent each is by itself. Out: how urgent somebody is with
all that wait for him, directly or through others, and whose urgency a change touches. Only inside one tenant: nobody
makes a stranger hurry. Circles are harmless. Pure.
"""

from collections import Counter
from typing import NamedTuple


class Urgency(NamedTuple):
    rank: int  # of the class; the lower goes first
    due: float | None = None

    def joined(self, other: "Urgency") -> "Urgency":
        dues = [due for due in (self.due, other.due) if due is not None]
        return Urgency(min(self.rank, other.rank), min(dues, default=None))


class Waits:
    def __init__(self) -> None:
        self._waiters: dict[str, Counter[str]] = {}  # of an agent: who waits for it, and how often
        self._waited: dict[str, Counter[str]] = {}  # by an agent: whom it waits for
        self._own: dict[str, Urgency] = {}  # of those who wait

    def begin(self, waiter: str, on: str, own: Urgency) -> None:
        """`own` is what the waiter is by itself; what it inherits is found on the way. The caller has seen to it that
        both are of one tenant."""
        self._waiters.setdefault(on, Counter())[waiter] += 1
        self._waited.setdefault(waiter, Counter())[on] += 1
        self._own[waiter] = own

    def end(self, waiter: str, on: str) -> None:
        """One wait is over. One that is not known was over before."""
        waiters = self._waiters.get(on)
        if not waiters or waiter not in waiters:
            return
        for counts, key, table, owner in (
            (waiters, waiter, self._waiters, on),
            (self._waited[waiter], on, self._waited, waiter),
        ):
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
            if not counts:
                del table[owner]
        if waiter not in self._waited:
            self._own.pop(waiter, None)

    def changed(self, waiter: str, own: Urgency) -> None:
        """Somebody prioritised the waiter."""
        if waiter in self._own:
            self._own[waiter] = own

    def urgency(self, agent: str, own: Urgency) -> Urgency:
        if agent not in self._waiters:
            return own
        for waiter in self._reached(agent, self._waiters):
            if waiter != agent:
                own = own.joined(self._own[waiter])
        return own

    def touched(self, agent: str) -> set[str]:
        """Whose urgency depends on this agent's: itself, and all that it waits for."""
        return self._reached(agent, self._waited)

    def _reached(self, start: str, edges: dict[str, Counter[str]]) -> set[str]:
        seen, todo = {start}, [start]
        while todo:
            for following in edges.get(todo.pop(), ()):
                if following not in seen:
                    seen.add(following)
                    todo.append(following)
        return seen
