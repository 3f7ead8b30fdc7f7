"""Who wants to know when somebody ends, and who ends with whom.

A *monitor* is one-sided and tells; a *link* is mutual and, unless a partner traps exits, takes that partner along. Both
belong to the lives that made them: an exit delivers everything once, then nothing of them is left. Goes in: ids, and
the facts of an exit. Comes out: what is to be delivered, and to whom. Whether the target is known, lives, and may be
seen or taken along is for the caller to check; delivers nothing and ends nobody.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import count

from msgspec import Struct

from agent_os.abi.errors import EDQUOT, EINVAL
from agent_os.abi.states import ExitClass
from agent_os.kernel.supervisor.exits import is_normal

MOST = 1024  # monitors, and links, of one agent
LINKED = "linked"  # detail of the error that takes a partner along


class Departed(Struct, frozen=True):
    """Who ended, and how."""

    id: str
    pid: int
    exit_class: ExitClass
    detail: str = ""
    code: int = -1


class Down(Struct, frozen=True):
    """To a watcher: DOWN."""

    to: str
    ref: int
    departed: Departed


class LinkExit(Struct, frozen=True):
    """To a partner. `fatal`: it ends, with class error and detail `linked`; else it is told."""

    to: str
    departed: Departed
    fatal: bool


class Monitor(Struct, frozen=True):
    ref: int
    watcher: str
    target: str


class Links:
    def __init__(self) -> None:
        self._refs = count(1)
        self._watching: defaultdict[str, dict[int, Monitor]] = defaultdict(dict)  # by watcher
        self._watched: defaultdict[str, dict[int, Monitor]] = defaultdict(dict)  # by target
        self._links: defaultdict[str, dict[str, None]] = defaultdict(dict)  # both ways; a dict keeps the order
        self._traps: set[str] = set()

    def monitor(
        self, watcher: str, target: str, gone: Departed | None = None, *, ref: int | None = None
    ) -> tuple[int, Down | None]:
        """The reference, and what is to be delivered at once where the target has already ended as `gone` tells. `ref`:
        one of the caller's, which it gives to no other."""
        if watcher == target:
            raise EINVAL("monitor.self", "an agent cannot monitor itself")
        if len(self._watching.get(watcher, ())) >= MOST:
            raise EDQUOT("monitors", f"{watcher} has {MOST} monitors, which is the most", hint="demonitor some first")
        ref = next(self._refs) if ref is None else ref
        if gone:
            return ref, Down(watcher, ref, gone)
        self._watching[watcher][ref] = self._watched[target][ref] = Monitor(ref, watcher, target)
        return ref, None

    def demonitor(self, watcher: str, ref: int) -> bool:
        """Whether there was such a monitor of this watcher. Nobody takes away another's."""
        monitor = self._watching.get(watcher, {}).get(ref)
        if monitor:
            self._drop(monitor)
        return monitor is not None

    def link(self, one: str, other: str) -> None:
        """Both ways; once more changes nothing."""
        if one == other:
            raise EINVAL("link.self", "an agent cannot be linked to itself")
        if other in self._links.get(one, ()):
            return
        for side in (one, other):
            if len(self._links.get(side, ())) >= MOST:
                raise EDQUOT("links", f"{side} has {MOST} links, which is the most", hint="unlink some first")
        self._links[one][other] = self._links[other][one] = None

    def unlink(self, one: str, other: str) -> None:
        for side, partner in ((one, other), (other, one)):
            if side in self._links:
                self._links[side].pop(partner, None)
                if not self._links[side]:
                    del self._links[side]

    def trap_exit(self, agent_id: str, on: bool = True) -> None:
        """From now on, the end of a partner is a message to it."""
        (self._traps.add if on else self._traps.discard)(agent_id)

    def traps(self, agent_id: str) -> bool:
        return agent_id in self._traps

    def monitors(self) -> list[Monitor]:
        return [one for several in self._watching.values() for one in several.values()]

    def partners(self, agent_id: str) -> tuple[str, ...]:
        return tuple(self._links.get(agent_id, ()))

    def exited(self, departed: Departed) -> list[Down | LinkExit]:
        """Everything that an exit sends, each once; afterwards nothing of its links and monitors is left. A partner
        that is taken along exits in its turn, and does not send back: the link is gone by then."""
        sent: list[Down | LinkExit] = [*self._downs(departed), *self._link_exits(departed)]
        self._clear(departed.id)
        return sent

    def _downs(self, departed: Departed) -> Iterator[Down]:
        for monitor in self._watched.get(departed.id, {}).values():
            yield Down(monitor.watcher, monitor.ref, departed)

    def _link_exits(self, departed: Departed) -> Iterator[LinkExit]:
        if not is_normal(departed.exit_class):
            for partner in self.partners(departed.id):
                yield LinkExit(partner, departed, fatal=partner not in self._traps)

    def _clear(self, agent_id: str) -> None:
        for monitor in (*self._watching.get(agent_id, {}).values(), *self._watched.get(agent_id, {}).values()):
            self._drop(monitor)
        for partner in self.partners(agent_id):
            self.unlink(agent_id, partner)
        self._traps.discard(agent_id)

    def _drop(self, monitor: Monitor) -> None:
        for table, side in ((self._watching, monitor.watcher), (self._watched, monitor.target)):
            table[side].pop(monitor.ref, None)
            if not table[side]:
                del table[side]

    def __len__(self) -> int:
        """Monitors and links there are, each once."""
        return sum(map(len, self._watching.values())) + sum(map(len, self._links.values())) // 2
