"""Fair shares between tenants: whoever has fewest goals at work comes first, among equals whoever has used least.

So a tenant whose goals take hours cannot fill the machine against one whose goals take seconds, and where only one goal
fits at a time tenants take turns by time. Use is the time that goals have held an agent, plus a little for each start.
In: goals coming, starting and ending, with their moments. Out: a standing per tenant, to compare only. Nobody saves up
turns by staying away, and nobody pays for long for what was idle. Kept in memory only: a kernel that starts again owes
nobody a turn.
"""

from typing import NamedTuple

from msgspec import Struct

START_SECS = 10.0  # that every start counts as
MOST_AHEAD_SECS = 600.0  # what a tenant used of an idle machine is held against it no further


class Standing(NamedTuple):
    """The lower comes first."""

    running: int
    use: float

    def with_one_more(self) -> "Standing":
        return Standing(self.running + 1, self.use + START_SECS)


class _Use(Struct):
    total: float = 0.0
    running: int = 0
    active: int = 0  # goals that wait or are at work


class Shares:
    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}
        self._floor = 0.0  # the least use of whoever was active; only ever rises
        self._now = float("-inf")  # until when use is counted

    def came(self, tenant: str, now: float) -> None:
        """One more goal waits."""
        self._count(now)
        use = self._uses.setdefault(tenant, _Use())
        if use.active == 0:
            # One start above the floor: else a stream of new tenants would always stand before the older ones.
            use.total = max(use.total, self._floor + START_SECS)
        use.active += 1

    def started(self, tenant: str, now: float) -> None:
        self._count(now)
        self._uses[tenant].total += START_SECS
        self._uses[tenant].running += 1

    def ended(self, tenant: str, now: float) -> None:
        """One at work is done."""
        self._count(now)
        self._uses[tenant].running -= 1
        self._uses[tenant].active -= 1

    def left(self, tenant: str) -> None:
        """One that waited is gone."""
        self._uses[tenant].active -= 1

    def given_back(self, tenant: str, now: float) -> None:
        """A start came to nothing, and the goal waits again."""
        self._count(now)
        self._uses[tenant].running -= 1
        self._uses[tenant].total -= START_SECS

    def standings(self, now: float) -> dict[str, Standing]:
        self._count(now)
        return {tenant: Standing(use.running, use.total) for tenant, use in self._uses.items()}

    def _count(self, now: float) -> None:
        """Up to now. A clock that was set back goes on from where it is."""
        passed = max(0.0, now - self._now) if self._uses else 0.0
        self._now = now
        for use in self._uses.values():
            use.total += use.running * passed
        active = [use.total for use in self._uses.values() if use.active]
        self._floor = max(self._floor, min(active, default=0.0))
        for tenant, use in list(self._uses.items()):
            use.total = min(use.total, self._floor + MOST_AHEAD_SECS)
            if not use.active and use.total <= self._floor:
                del self._uses[tenant]
