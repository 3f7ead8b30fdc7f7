"""The queue of goals: they join, are started in their turn when there is room, and are done.

In: goals with the agent picked for them, wall-clock moments, the machine's room and facts about agents and accounts.
Out: which goals start now, which came too late, and what each other waits for. The order is said in `lines.py`, the
room in `room.py`. Starts no agent and stores nothing: the journal holds a goal before it joins, and after a restart it
joins again as it was.
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from msgspec import Struct, field

from agent_os.abi.errors import EAGAIN, EBUSY, EDQUOT, EEXIST, EINVAL, ESRCH
from agent_os.kernel.goals.goal import PRIORITIES, Goal, PendingGoal, Waiting, require_priority
from agent_os.kernel.goals.matching import Choice
from agent_os.kernel.goals.room import NONE, Allotment, Facts, Room, Turn, Wanted, Work, note_passed
from agent_os.kernel.goals.shares import Shares, Standing
from agent_os.kernel.supervisor.terms import Priority

# Whose turn it is: goals that wait, in the order in which they are to be looked at. Class comes first, then
# deadlines that can still be kept, then fair shares between tenants, then arrival. A *line* is one tenant's goals
# of one class. A line whose oldest goal was not served for ten minutes has that one goal lifted a class, up to
# high, and before all others there: so nobody starves, and a flood of old goals does not become urgent all at once.
# False deadlines gain little: they are heeded only while their tenant is not ahead of the others. In: goals, the
# standing of each tenant, the moment. Out: goals in order. Knows nothing of room.

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


MOST_WAITING = 10_000
MOST_OF_TENANT = 2_000  # one tenant must not close the queue for the others
_RETRY_MS = 5_000


class Round(NamedTuple):
    start: list[Waiting]
    late: list[Waiting]  # their deadline passed while they waited; they are never started


class Queue:
    """`room`: what all agents together may take; it may change."""

    def __init__(self, room: Room) -> None:
        self.room = room
        self._waiting: dict[str, Waiting] = {}
        self._agents: Counter[str] = Counter()  # goals that wait for each
        self._work: dict[str, Work] = {}
        self._lines = Lines()
        self._shares = Shares()

    # Coming and going.

    def submit(
        self, goal_id: str, seq: int, goal: Goal, choice: Choice, now: float, *, operator: bool = False
    ) -> Waiting:
        """A new goal. `seq` ascends with every goal of the store."""
        waiting = self.admissible(goal_id, seq, goal, choice, now, operator=operator)
        self.join(waiting, now)
        return waiting

    def admissible(
        self, goal_id: str, seq: int, goal: Goal, choice: Choice, now: float, *, operator: bool = False
    ) -> Waiting:
        """The goal as it would wait, for the journal. EDQUOT: it could never start. EAGAIN: too many wait."""
        priority = require_priority(goal.priority, operator=operator)
        if goal.deadline is not None and goal.deadline <= now:
            raise EINVAL("goal.deadline", "the deadline of this goal has passed", hint="give a later one, or none")
        agent = choice.candidate
        memory_mb = agent.memory_mb if goal.memory_mb is None else goal.memory_mb
        waiting = Waiting(goal_id, seq, goal, agent.id, choice.picked_by, priority, now, memory_mb)
        self._require_room_ever(waiting)
        for count, most, whose in (
            (self._lines.count(goal.tenant), MOST_OF_TENANT, f"{goal.tenant}'s"),
            (len(self._waiting), MOST_WAITING, "all"),
        ):
            if count >= most:
                reason = f"{count} goals wait, which is as many of {whose} as may"
                raise EAGAIN("goal.queue", reason, retry_after_ms=_RETRY_MS)
        return waiting

    def _require_room_ever(self, waiting: Waiting) -> None:
        match self.room.lacks(waiting):
            case "slots":
                raise EDQUOT("goal.slots", f"agents may have {self.room.slots} processes, and this goal needs one")
            case "memory":
                reason = f"this goal needs {waiting.memory_mb} MiB, and all agents may have {self.room.memory_mb}"
                raise EDQUOT("goal.memory", reason, hint="give a smaller memory_mb", limit=self.room.memory_mb)
            case _:
                pass

    def join(self, waiting: Waiting, now: float) -> None:
        """A goal that the journal holds; whether it may is not asked again. After a restart, in the order of `seq`."""
        self._require_new(waiting)
        self._add(waiting)
        self._shares.came(waiting.tenant, now)

    def resume(self, waiting: Waiting, now: float) -> None:
        """After a restart: a goal at which its agent was, and goes on. Its room is held, whoever came first."""
        self._require_new(waiting)
        alone = all(work.goal.agent != waiting.agent for work in self._work.values())
        self._work[waiting.id] = Work(waiting, Room(1, waiting.memory_mb) if alone else NONE)
        self._shares.came(waiting.tenant, now)
        self._shares.started(waiting.tenant, now)

    def _require_new(self, waiting: Waiting) -> None:
        if waiting.id in self._waiting or waiting.id in self._work:
            raise EEXIST("goal.exists", f"the goal {waiting.id} is here already")

    def cancel(self, goal_id: str) -> Waiting:
        """A goal that waits is taken away; one at work is ended with its agent."""
        if work := self._work.get(goal_id):
            reason = f"{work.goal.agent} is at the goal {goal_id} already"
            raise EBUSY("goal.working", reason, hint="stop the agent")
        waiting = self._waiting.get(goal_id)
        if waiting is None:
            raise _unknown(goal_id)
        self._remove(waiting)
        self._shares.left(waiting.tenant)
        return waiting

    def finished(self, goal_id: str, now: float) -> bool:
        """Its room is free, unless its agent is at another goal. False for one that is not at work: a late event
        changes nothing."""
        work = self._work.pop(goal_id, None)
        if work is None:
            return False
        self._pass_on(work)
        self._shares.ended(work.goal.tenant, now)
        return True

    def give_back(self, goal_id: str, now: float) -> None:
        """Its start came to nothing: it waits again, at its old place."""
        work = self._work.pop(goal_id, None)
        if work is None:
            raise ESRCH("goal.unknown", f"no goal {goal_id[:128]!r} is at work")
        self._pass_on(work)
        self._shares.given_back(work.goal.tenant, now)
        self._add(work.goal)

    def _pass_on(self, done: Work) -> None:
        """The process that was started for one goal may be at others too, and holds its room until they are done."""
        heir = next((one for one in self._work.values() if one.goal.agent == done.goal.agent), None)
        if heir and done.room != NONE:
            self._work[heir.goal.id] = Work(heir.goal, done.room)

    def prioritize(self, known_as: str, priority: str, *, operator: bool = False) -> list[Waiting]:
        """Of one goal by its id, or of all goals of an agent, waiting or at work; those. How long they waited stays
        theirs. ESRCH: neither."""
        word = require_priority(priority, operator=operator)
        everybody = [*self._waiting.values(), *(work.goal for work in self._work.values())]
        found = [one for one in everybody if one.id == known_as] or [one for one in everybody if one.agent == known_as]
        if not found:
            raise _unknown(known_as)
        for one in found:
            waits = one.id in self._waiting
            if waits:
                self._remove(one)
            one.priority = word
            if waits:
                self._add(one)
        return found

    def _add(self, waiting: Waiting) -> None:
        self._waiting[waiting.id] = waiting
        self._agents[waiting.agent] += 1
        self._lines.add(waiting)

    def _remove(self, waiting: Waiting) -> None:
        self._lines.remove(waiting)
        self._forget(waiting)

    def _forget(self, waiting: Waiting) -> None:
        del self._waiting[waiting.id]
        self._agents[waiting.agent] -= 1
        if not self._agents[waiting.agent]:
            del self._agents[waiting.agent]

    # What others must know to give the facts.

    def load(self, agent: str) -> int:
        """Goals that wait for it or that it is at."""
        return self._agents[agent] + sum(work.goal.agent == agent for work in self._work.values())

    def agents(self) -> set[str]:
        """Whom goals wait for."""
        return set(self._agents)

    def holders(self) -> set[str]:
        """Agents whose room is counted here, and so not in the facts."""
        return {work.goal.agent for work in self._work.values() if work.room != NONE}

    def __len__(self) -> int:
        return len(self._waiting)

    # Turns.

    def admit(self, facts: Facts, now: float) -> Round:
        """What starts now. It is at work from here on, until `finished` or `give_back`."""
        late = [one for one in self._waiting.values() if one.deadline is not None and one.deadline <= now]
        for one in late:
            self.cancel(one.id)
        round = list(self._turns(facts, now, to_the_end=False))
        note_passed(round, now)
        starting = [turn for turn in round if not turn.waiting_for]
        for turn in starting:
            self._begin(turn, now)
        return Round([turn.goal for turn in starting], late)

    def pending(self, facts: Facts, now: float, most: int | None = None) -> list[PendingGoal]:
        """The queue as it stands, first in order first. Changes nothing."""
        first = islice(self._turns(facts, now, to_the_end=True), most)
        return [_shown(turn, place) for place, turn in enumerate(first, 1)]

    def _turns(self, facts: Facts, now: float, *, to_the_end: bool) -> Iterator[Turn]:
        """Ten thousand may wait: what starts is known long before the last of them has been looked at."""
        wanted = Wanted(self._agents, min((one.memory_mb for one in self._waiting.values()), default=0))
        allotment = Allotment(self.room, self._work.values(), facts, wanted, now)
        for one in self._lines.in_order(self._shares.standings(now), now):
            if allotment.over and not to_the_end:
                return
            yield allotment.turn(one)

    def _begin(self, turn: Turn, now: float) -> None:
        goal = turn.goal
        self._lines.serve(goal, now)
        self._forget(goal)
        self._work[goal.id] = Work(goal, turn.room)
        self._shares.started(goal.tenant, now)
        goal.passed_since = None


def _unknown(known_as: str) -> ESRCH:
    return ESRCH("goal.unknown", f"no goal {known_as[:128]!r} waits", hint="agentctl queue lists those that do")


def _shown(turn: Turn, place: int) -> PendingGoal:
    one = turn.goal
    facts = (one.tenant, one.priority, one.submitted_at, one.deadline)
    return PendingGoal(one.id, one.goal.text, one.agent, one.picked_by, *facts, place, turn.waiting_for)
