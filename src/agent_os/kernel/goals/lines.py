"""Whose turn it is: goals that wait, in the order in which they are to be looked at.

Class comes first, then deadlines that can still be kept, then fair shares between tenants, then arrival. A *line* is
one tenant's goals of one class. A line whose oldest goal was not served for ten minutes has that one goal lifted a
class, up to high, and before all others there: so nobody starves, and a flood of old goals does not become urgent all
at once. False deadlines gain little: they are heeded only while their tenant is not ahead of the others. In: goals, the
standing of each tenant, the moment. Out: goals in order. Knows nothing of room.
"""

import heapq
from bisect import insort
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from agent_os.kernel.goals.goal import PRIORITIES, Waiting
from agent_os.kernel.goals.shares import Standing
from agent_os.kernel.supervisor.terms import Priority

AGING_SECS = 600.0
SLACK_SECS = 60.0  # of use by which a tenant may be ahead of others and still have its deadlines heeded
_HIGH = PRIORITIES.index("high")
_LIFTED, _URGENT, _PLAIN = range(3)
_Placed = tuple[int, int, tuple[float, float], int, Waiting]  # class, kind, what the kind is ordered by, arrival


class Line(Struct):
    goals: list[Waiting] = field(default_factory=list[Waiting])  # by arrival
    served_at: float = float("-inf")  # when its oldest last started

    def lifts(self, now: float) -> int:
        """By how many classes its oldest is lifted."""
        return max(0, int((now - max(self.goals[0].submitted_at, self.served_at)) // AGING_SECS))


class Lines:
    """All goals that wait."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, Priority], Line] = {}

    def add(self, one: Waiting) -> None:
        line = self._lines.setdefault((one.tenant, one.priority), Line())
        insort(line.goals, one, key=lambda other: other.seq)

    def remove(self, one: Waiting) -> None:
        line = self._lines[one.tenant, one.priority]
        line.goals.remove(one)
        if not line.goals:
            del self._lines[one.tenant, one.priority]

    def serve(self, one: Waiting, now: float) -> None:
        """It starts."""
        line = self._lines[one.tenant, one.priority]
        if line.goals[0] is one:
            line.served_at = now
        self.remove(one)

    def count(self, tenant: str) -> int:
        return sum(len(line.goals) for (whose, _), line in self._lines.items() if whose == tenant)

    def tenants(self) -> set[str]:
        return {tenant for tenant, _ in self._lines}

    def in_order(self, standings: Mapping[str, Standing], now: float) -> Iterator[Waiting]:
        heeded = min((standings[tenant].use for tenant in self.tenants()), default=0.0) + SLACK_SECS
        placed = [
            _placed(line, PRIORITIES.index(priority), standings[tenant], heeded, now)
            for (tenant, priority), line in self._lines.items()
        ]
        for *_, one in heapq.merge(*placed):
            yield one


def _placed(line: Line, rank: int, standing: Standing, heeded: float, now: float) -> Iterator[_Placed]:
    """One line in its own order, which is ascending. Each goal is placed as if those before it had started."""
    goals = line.goals
    if lifts := line.lifts(now):
        oldest, goals = goals[0], goals[1:]
        yield max(min(rank, _HIGH), rank - lifts), _LIFTED, (oldest.seq, 0.0), oldest.seq, oldest
        standing = standing.with_one_more()
    dated = sorted((one.deadline, one.seq, one) for one in goals if one.deadline is not None and one.deadline > now)
    for deadline, seq, one in dated:
        kind, by = (_URGENT, (deadline, 0.0)) if standing.use <= heeded else (_PLAIN, standing)
        yield rank, kind, by, seq, one
        standing = standing.with_one_more()
    for one in goals:
        if one.deadline is None or one.deadline <= now:
            yield rank, _PLAIN, standing, one.seq, one
            standing = standing.with_one_more()
