"""The order of waiting calls: class, feasible deadline, then the smallest score.

    rem   = what the program probably still needs (sizes.py)
    ahead = max(0, V[tenant] - least V of the waiting tenants - SLACK)      V: tokens served / weight
    score = rem * (1 + ahead / SLACK) * age                                 age: from 1 down to 0.05 in 600 s

The first factor serves short programs first, the second keeps a tenant from living on that, the third keeps anybody
from waiting for ever. Aging is slow on purpose: one that is fast against the backlog turns the order into arrival.

A score changes with time, with what others are served and with what is learned, and ten thousand calls may wait. So
what belongs to a call (rem) is kept in heaps, one for each tenant and half minute of arrival; what belongs to a tenant,
and the age that calls of one half minute share, is computed when asked. Scores are made anew in turn, a few at every
decision and none twice in a second.

In: calls joining and leaving, tokens served. Out: whose turn it is in a class. Knows neither buckets nor slots.
"""

import heapq
from collections import deque
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from agent_os.kernel.models.call import RANKS, Call
from agent_os.kernel.models.sizes import Sizes

SLACK = 60_000.0  # tokens that a tenant may be ahead
AGING_SECS = 600.0
LEAST_AGE = 0.05
COHORT_SECS = 30.0  # calls that came within so long have one age
_OLD = -1  # the cohort of all that have the least age
_RESCORED = 3  # calls at a decision, so that no decision takes long
_AT_ONCE = 1_000  # calls that are scored anew when something is learned; of more, in their turn
_NOTABLE = 0.05  # a score that has changed by less stays
_SHIFT = 1.1  # a mean that moved by this factor makes scores outdated
_TENANTS = 16  # looked at in a decision; of more, the best as of a second ago
_FRESH_SECS = 1.0

Entry = tuple[float, int, int, Call]  # score or deadline, arrival, stamp


def _age(cohort: int, now: float) -> float:
    if cohort == _OLD:
        return LEAST_AGE
    age = 1 - (now - cohort * COHORT_SECS) / AGING_SECS
    return LEAST_AGE if age < LEAST_AGE else age


class _Lane(Struct):
    """Calls of one tenant in one class."""

    tenant: str
    live: int = 0
    cohorts: dict[int, list[Entry]] = field(default_factory=dict[int, list[Entry]])
    due: list[Entry] = field(default_factory=list[Entry])

    def enter(self, call: Call, now: float) -> None:
        cohort = int(call.arrived // COHORT_SECS)
        if _age(cohort, now) <= LEAST_AGE:
            cohort = _OLD
        heap = self.cohorts.get(cohort)
        if heap is None:
            heap = self.cohorts[cohort] = []
        elif len(heap) > 2 * self.live + 64:
            heap[:] = [entry for entry in heap if entry[2] == entry[3].stamp]
            heapq.heapify(heap)
        heapq.heappush(heap, (call.rem, call.seq, call.stamp, call))
        if call.due is not None:
            if len(self.due) > 2 * self.live + 64:
                self.due = [entry for entry in self.due if entry[2] == entry[3].stamp]
                heapq.heapify(self.due)
            heapq.heappush(self.due, (call.due, call.seq, call.stamp, call))

    def first(self, now: float) -> tuple[float, int, Call] | None:
        """The smallest score, without the tenant's part."""
        best: tuple[float, int, Call] | None = None
        spent: list[int] = []
        for cohort, heap in self.cohorts.items():
            entry = heap[0] if heap and heap[0][2] == heap[0][3].stamp else _top(heap)
            age = _age(cohort, now)
            if entry is None or (age <= LEAST_AGE and cohort != _OLD):
                spent.append(cohort)
            if entry is not None and (best is None or entry[0] * age < best[0]):
                best = (entry[0] * age, entry[1], entry[3])
        for cohort in spent:
            self._grow_old(self.cohorts.pop(cohort))
        return best

    def _grow_old(self, heap: list[Entry]) -> None:
        if heap:
            old = self.cohorts.setdefault(_OLD, [])
            old += heap
            heapq.heapify(old)

    def first_due(self, now: float, takes: float) -> Entry | None:
        """With the earliest deadline that can still be met. One that cannot is not tried again."""
        while entry := _top(self.due):
            if entry[0] >= now + takes:
                return entry
            heapq.heappop(self.due)
        return None


def _top(heap: list[Entry]) -> Entry | None:
    while heap and heap[0][2] != heap[0][3].stamp:
        heapq.heappop(heap)
    return heap[0] if heap else None


class Shares:
    """What tenants were served, by their weights. One that was away comes back as the least served of those waiting."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = weights
        self._served: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._least = 0.0  # that a waiting tenant had when it was last looked
        self._looked = float("-inf")

    def came(self, tenant: str, now: float) -> None:
        if tenant not in self._waiting:
            self._served[tenant] = max(self._served.get(tenant, 0.0), self.least(now))
            self._waiting[tenant] = 0
        self._waiting[tenant] += 1

    def went(self, tenant: str) -> None:
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._forget_idle()

    def _forget_idle(self) -> None:
        """Who is not ahead of anybody needs no memory; tenants come and go."""
        if len(self._served) > 2 * len(self._waiting) + 1_000:
            kept = {one: v for one, v in self._served.items() if one in self._waiting or v > self._least}
            self._served = kept

    def served(self, tenant: str, tokens: int) -> None:
        self._served[tenant] = self._served.get(tenant, self._least) + tokens / self.weights.get(tenant, 1.0)

    def least(self, now: float) -> float:
        """Of those waiting; while nobody does, as it was."""
        if self._waiting and (len(self._waiting) <= _TENANTS or now - self._looked >= _FRESH_SECS):
            self._least, self._looked = min(self._served[one] for one in self._waiting), now
        return self._least

    def ahead(self, tenant: str, least: float) -> float:
        return max(0.0, self._served.get(tenant, 0.0) - least - SLACK)


class Lines:
    def __init__(self, sizes: Sizes, weights: Mapping[str, float]) -> None:
        self.shares = Shares(weights)
        self._sizes = sizes
        self._classes: list[dict[str, _Lane]] = [{} for _ in RANKS]
        self._programs: dict[str, dict[str, Call]] = {}
        self._count = 0
        self._turns: deque[tuple[float, Call]] = deque()  # every call that waits, and when it was scored
        self._means: dict[str, float] = {}  # that scores were made with
        self._best: dict[int, tuple[float, dict[str, _Lane]]] = {}  # of a class with many tenants: when found, which

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Call]:
        return (call for calls in self._programs.values() for call in calls.values())

    # Coming and going.

    def add(self, call: Call, now: float) -> None:
        self._count += 1
        self.shares.came(call.tenant, now)
        self._programs.setdefault(call.program, {})[call.id] = call
        self._turns.append((now, call))
        self._enter(call, now)

    def remove(self, call: Call) -> None:
        self._count -= 1
        self._leave(call)
        calls = self._programs[call.program]
        del calls[call.id]
        if not calls:
            del self._programs[call.program]
        self.shares.went(call.tenant)

    def move(self, call: Call, rank: int, due: float | None, now: float) -> None:
        """To another class or deadline; how long it waited stays its own."""
        self._leave(call)
        call.rank, call.due = rank, due
        self._enter(call, now)

    def _enter(self, call: Call, now: float) -> None:
        lanes = self._classes[call.rank]
        lane = lanes.get(call.tenant)
        if lane is None:
            lane = lanes[call.tenant] = _Lane(call.tenant)
        if call.rank in self._best:
            self._best[call.rank][1][call.tenant] = lane
        lane.live += 1
        call.rem = self._rem(call)
        lane.enter(call, now)

    def _leave(self, call: Call) -> None:
        lanes = self._classes[call.rank]
        lane = lanes[call.tenant]
        call.stamp += 1
        lane.live -= 1
        if lane.live:
            return
        del lanes[call.tenant]
        if call.rank in self._best:
            self._best[call.rank][1].pop(call.tenant, None)

    def _rem(self, call: Call) -> float:
        return self._sizes.remaining(call.program, call.type, call.prompt)

    # What changes scores.

    def progressed(self, program: str, now: float) -> None:
        """A call of it left or came back, and less or more is to come. Its other calls are alike, so that it is enough
        if one of them stands where the program belongs."""
        for call in self._programs.get(program, {}).values():
            self._score_anew(call, now)
            return

    def learned(self, type: str, now: float) -> None:
        """A program of the type has finished."""
        mean = self._sizes.calls(type)
        used = self._means.get(type)
        if mean is None or (used is not None and used / _SHIFT < mean < used * _SHIFT):
            return
        self._means[type] = mean
        if self._count <= _AT_ONCE:
            for call in [one for one in self if one.type == type]:
                self._score_anew(call, now)

    def _refresh(self, now: float) -> None:
        for _ in range(_RESCORED):
            if not self._turns or now - self._turns[0][0] < _FRESH_SECS:
                return
            _, call = self._turns.popleft()
            if self._programs.get(call.program, {}).get(call.id) is call:
                self._score_anew(call, now)
                self._turns.append((now, call))

    def _score_anew(self, call: Call, now: float) -> None:
        rem = self._rem(call)
        if abs(rem - call.rem) > _NOTABLE * call.rem:
            call.rem = rem
            call.stamp += 1
            self._classes[call.rank][call.tenant].enter(call, now)

    # Whose turn it is.

    def waiting(self) -> list[int]:
        """Classes in which somebody waits, the most urgent first."""
        return [rank for rank, lanes in enumerate(self._classes) if lanes]

    def first(self, rank: int, now: float, takes: float = 0.0) -> Call:
        """Of a class in which somebody waits. `takes`: seconds that a call needs, to tell if a deadline can be met."""
        self._refresh(now)
        least = self.shares.least(now)
        best: tuple[float, int, Call] | None = None
        earliest: Entry | None = None
        for tenant, lane in self._considered(rank, least, now).items():
            ahead = self.shares.ahead(tenant, least)
            if lane.due and not ahead and (due := lane.first_due(now, takes)) and (earliest is None or due < earliest):
                earliest = due
            if earliest is None and (own := lane.first(now)):
                score = own[0] * (1 + ahead / SLACK)
                if best is None or (score, own[1]) < best[:2]:
                    best = (score, own[1], own[2])
        if earliest is not None:
            return earliest[3]
        if best is None:
            raise LookupError(f"nobody waits in class {rank}")
        return best[2]

    def _considered(self, rank: int, least: float, now: float) -> dict[str, _Lane]:
        lanes = self._classes[rank]
        if len(lanes) <= _TENANTS:
            self._best.pop(rank, None)
            return lanes
        found, best = self._best.get(rank, (float("-inf"), {}))
        if now - found >= _FRESH_SECS or not best:
            scores = {tenant: self._standing(lane, least, now) for tenant, lane in lanes.items()}
            best = {tenant: lanes[tenant] for tenant in heapq.nsmallest(_TENANTS, scores, key=scores.__getitem__)}
            self._best[rank] = (now, best)
        return best

    def _standing(self, lane: _Lane, least: float, now: float) -> float:
        own = lane.first(now)
        return own[0] * (1 + self.shares.ahead(lane.tenant, least) / SLACK) if own else float("inf")

    def in_order(self, now: float, takes: float = 0.0) -> list[Call]:
        """All, as they stand. For people: it looks at every call."""
        least = self.shares.least(now)

        def key(call: Call) -> tuple[int, bool, float, int]:
            ahead = self.shares.ahead(call.tenant, least)
            if call.due is not None and not ahead and call.due >= now + takes:
                return call.rank, False, call.due, call.seq
            age = _age(int(call.arrived // COHORT_SECS), now)
            return call.rank, True, self._rem(call) * (1 + ahead / SLACK) * age, call.seq

        return sorted(self, key=key)
