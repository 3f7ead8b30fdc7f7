"""Room to start: process slots, memory that agents declare, money for one call.

In: goals in order, what those at work hold, facts about everybody else. Out: a turn per goal: it starts, or what it
waits for. A goal too big for what is left is passed by smaller ones for a minute; then what becomes free is kept for
it, if it can become enough. Measures nothing.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

from agent_os.kernel.goals.goal import Waiting

SLOTS = 64
RESERVE_SECS = 60.0
Lack = Literal["", "turn", "slots", "memory", "budget", "agent"]


class Room(Struct, frozen=True):
    slots: int
    memory_mb: int

    def less(self, other: "Room") -> "Room":
        return Room(self.slots - other.slots, self.memory_mb - other.memory_mb)

    def lacks(self, one: Waiting) -> Lack:
        if self.slots < 1:
            return "slots"
        return "memory" if self.memory_mb < one.memory_mb else ""


NONE = Room(0, 0)


class Facts(Struct, frozen=True):
    """How things stand outside the queue."""

    held: Room = NONE  # by agents whose room no goal at work holds already
    live: frozenset[str] = frozenset()  # agents with a process: a goal of theirs needs no room
    unready: frozenset[str] = frozenset()  # agents that take no goal now
    at_once: Mapping[str, int] = field(default_factory=dict[str, int])  # goals an agent takes together; else one
    broke: frozenset[str] = frozenset()  # tenants, agents and goals that no account has room for


class Work(NamedTuple):
    """A goal at work, and the room that is held for its agent."""

    goal: Waiting
    room: Room


class Turn(Struct, frozen=True):
    goal: Waiting
    waiting_for: Lack  # nothing: it starts
    room: Room = NONE  # that it then takes


class Wanted(Struct, frozen=True):
    """What all goals that wait have in common."""

    agents: Iterable[str]  # that they wait for
    least_mb: int  # of memory that any of them needs


class Allotment:
    """One round: every goal in its turn, with the room that those before it left."""

    def __init__(self, whole: Room, work: Iterable[Work], facts: Facts, wanted: Wanted, now: float) -> None:
        self._facts, self._least_mb, self._now = facts, wanted.least_mb, now
        self._ours = self._left = whole.less(facts.held)
        self._reserved = False
        self._busy: Counter[str] = Counter()
        for goal, room in work:
            self._left = self._left.less(room)
            self._busy[goal.agent] += 1
        running = facts.live.union(self._busy)
        able = {agent for agent in wanted.agents if not self._takes_no_more(agent)}
        self._free, self._idle = able & running, able - running

    @property
    def over(self) -> bool:
        """Nobody else can start: no agent that runs takes more, and none without a process could have one."""
        full = self._left.slots < 1 or self._left.memory_mb < self._least_mb
        return not self._free and (self._reserved or full or not self._idle)

    def turn(self, one: Waiting) -> Turn:
        needs_room = one.agent not in self._facts.live and not self._busy[one.agent]
        lack = self._lack(one, needs_room)
        if lack:
            return Turn(one, lack)
        room = Room(1, one.memory_mb) if needs_room else NONE
        self._left = self._left.less(room)
        self._busy[one.agent] += 1
        self._idle.discard(one.agent)
        (self._free.discard if self._takes_no_more(one.agent) else self._free.add)(one.agent)
        return Turn(one, "", room)

    def _lack(self, one: Waiting, needs_room: bool) -> Lack:
        if self._takes_no_more(one.agent):
            return "agent"
        if not self._facts.broke.isdisjoint((one.tenant, one.agent, one.id)):
            return "budget"
        if not needs_room:
            return ""
        lack = "turn" if self._reserved else self._left.lacks(one)
        self._reserved = self._reserved or (lack != "" and self._reserves(one))
        return lack

    def _takes_no_more(self, agent: str) -> bool:
        return agent in self._facts.unready or self._busy[agent] >= self._facts.at_once.get(agent, 1)

    def _reserves(self, one: Waiting) -> bool:
        """Never for what would not fit if all goals at work were done: everybody would wait for nothing."""
        long_enough = one.passed_since is not None and self._now - one.passed_since >= RESERVE_SECS
        return long_enough and not self._ours.lacks(one)


def note_passed(round: Iterable[Turn], now: float) -> None:
    """Whoever found too little room, although one behind it had enough, remembers since when."""
    short: list[Waiting] = []
    for turn in round:
        if turn.waiting_for in ("slots", "memory"):
            short.append(turn.goal)
        elif turn.room != NONE:
            for one in short:
                one.passed_since = now if one.passed_since is None else one.passed_since
            short.clear()
