"""The global start limiter: how many agents may be starting at the same moment, and who is next.

Goes in: who wants to start, with what priority, and when a start was over. Comes out: who may start now. A slot is for
the burst of work a start is, not for the wait until READY: whoever takes longer than a moment passes it on, so that a
few agents that never become ready hold up nobody. Reads no clock and starts nothing.
"""

from heapq import heappop, heappush
from itertools import count

from agent_os.kernel.supervisor.terms import Priority

PER_CORE = 2
HOLD_SECS = 2.0
_HEAD_START = {"low": 0.0, "normal": 10.0, "high": 20.0, "critical": 30.0}  # seconds


class Starts:
    """In a burst the higher priority goes first. A priority is a head start and no more: whoever has waited long enough
    comes before anybody who comes later."""

    def __init__(self, slots: int, hold_secs: float = HOLD_SECS) -> None:
        self._slots, self._hold = slots, hold_secs
        self._line: list[tuple[float, int, str]] = []
        self._waiting: dict[str, int] = {}  # id → its number in the line; an older one is void
        self._until: dict[str, float] = {}  # id → when its slot is passed on
        self._number = count()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def ask(self, agent_id: str, priority: Priority, now: float) -> None:
        """Stand in line. Who does already keeps the place."""
        if agent_id not in self._waiting:
            number = self._waiting[agent_id] = next(self._number)
            heappush(self._line, (now - _HEAD_START[priority], number, agent_id))

    def leave(self, agent_id: str) -> None:
        """Stopped before its turn, or started, or gone while it was starting: it needs neither place nor slot."""
        self._waiting.pop(agent_id, None)
        self._until.pop(agent_id, None)

    def admit(self, now: float) -> list[str]:
        """Who may start now. Each has a slot until it leaves, at most for a moment."""
        self._until = {one: until for one, until in self._until.items() if until > now}
        admitted: list[str] = []
        while self._line and len(self._until) < self._slots:
            _, number, agent_id = heappop(self._line)
            if self._waiting.get(agent_id) == number:
                del self._waiting[agent_id]
                self._until[agent_id] = now + self._hold
                admitted.append(agent_id)
        return admitted

    def again_at(self) -> float | None:
        """When to ask for admission again if nobody leaves before. None: nobody waits."""
        return min(self._until.values(), default=None) if self._waiting else None
