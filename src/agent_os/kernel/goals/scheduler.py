"""The goal scheduler on a running kernel: goals come in, agents are started for them or handed them, and are done.

A goal is stored before it joins the queue, before its agent is started, and with the very entry by which its agent
takes it or is done with it; so the next kernel finds it waiting or in the same hands. An agent that lives takes goals
by asking for them; one without a process is started. In: goals, agents' calls, the ends of agents. Out: rows of the
store, starts, answers. The order is the queue's, the room `room.py`'s, and who could work `workers.py`'s to say.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EDQUOT, EINVAL, EMSGSIZE, ESRCH, AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.drivers.store import Put
from agent_os.kernel.authority.budget import RESOURCES
from agent_os.kernel.goals import goal as goals
from agent_os.kernel.goals.goal import Goal, PendingGoal, Waiting
from agent_os.kernel.goals.kept import MOST_ENDED, Kept, State, gone, put, stored
from agent_os.kernel.goals.matching import pick
from agent_os.kernel.goals.queue import Queue
from agent_os.kernel.goals.room import Facts
from agent_os.kernel.goals.workers import Workers, whole
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor.decide import InHand
from agent_os.kernel.table import NAMESPACE, Agent, Ended

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel


# All goals that the kernel knows, by where they stand. In: goals, and the word that one has moved. Out: those that
# wait, those at work, by their agents, and those that ended last, each found without going through the others: ten
# thousand may wait. Decides nothing and stores nothing.


class Book:
    def __init__(self, goals: Iterable[Kept] = ()) -> None:
        self._goals: dict[str, Kept] = {}
        self._places: dict[str, dict[str, Kept]] = {"waiting": {}, "working": {}, "ended": {}}
        self._where: dict[str, str] = {}
        self._agents: dict[str, dict[str, Kept]] = {}  # goals at work, by agent
        for one in goals:
            self.move(one)

    def move(self, one: Kept) -> None:
        """It is new, or its state is another one."""
        self.drop(one)
        place = "ended" if one.over else one.state
        self._goals[one.id] = self._places[place][one.id] = one
        self._where[one.id] = place
        if place == "working":
            self._agents.setdefault(one.agent, {})[one.id] = one

    def drop(self, one: Kept) -> None:
        self._goals.pop(one.id, None)
        place = self._where.pop(one.id, None)
        if place is not None:
            del self._places[place][one.id]
        if place == "working":
            del self._agents[one.agent][one.id]
            if not self._agents[one.agent]:
                del self._agents[one.agent]

    def find(self, goal_id: str) -> Kept:
        try:
            return self._goals[goal_id]
        except KeyError:
            hint = "agentctl queue --all lists them"
            raise ESRCH("goal.unknown", f"there is no goal {goal_id[:128]!r}", hint=hint) from None

    def get(self, goal_id: str) -> Kept | None:
        return self._goals.get(goal_id)

    def waiting(self) -> Iterator[Kept]:
        return iter(list(self._places["waiting"].values()))

    def working(self) -> list[Kept]:
        return list(self._places["working"].values())

    def ended(self) -> list[Kept]:
        """The newest last."""
        return list(self._places["ended"].values())

    def of(self, agent_id: str) -> list[Kept]:
        """At which an agent is."""
        return list(self._agents.get(agent_id, {}).values())

    def oldest(self) -> list[Kept]:
        """Of those that ended, more than are kept."""
        excess = len(self._places["ended"]) - MOST_ENDED
        ended = iter(self._places["ended"].values())
        return [next(ended) for _ in range(excess)]


LARGEST = 64 << 10  # bytes of what is given with a goal, or comes of it
_LOOK_AGAIN = 1.0  # seconds, while goals wait: deadlines pass and room comes without a word to us
_Settled = tuple[list[Put], Callable[[], None]]  # what the store must hold, and what is to be done when it does
_NO_FAULT = (ExitClass.NORMAL, ExitClass.REQUESTED, ExitClass.LOST)
log = logging.getLogger("agent_os.goals")


class Scheduler:
    """What the first design calls so, as the kernel has it; `space.Scheduler` is the view."""

    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._workers = Workers(kernel)
        self._goals = Book(stored(kernel.store))
        self._queue = Queue(whole())
        self._asking: Counter[str] = Counter()  # agents that wait for a goal, and how often at once
        self._serving: set[str] = set()  # those that ever did, in this life
        self._wanted: dict[str, asyncio.Event] = {}  # by agent or goal: what somebody waits for
        self._news = asyncio.Event()
        self._watch: asyncio.Task[Any] | None = None
        now = time.time()
        for one in self._goals.waiting():
            self._queue.join(one.waiting(), now)
        for one in self._goals.working():
            self._queue.resume(one.waiting(), now)

    # For operators.

    async def submit(self, asked: str | Mapping[str, Any], by: str) -> Kept:
        """A goal that waits from now on: the record holds it when this returns."""
        wanted, now = goals.read(asked), time.time()
        _require_small(wanted)
        choice = pick(wanted, self._workers.candidates(self._queue.load, self._serving))
        self._require_payable(choice.candidate.id, wanted)
        seq = self._kernel.journal.next_seq  # of the entry that tells of it: never the same twice, over all kernels
        waiting = self._queue.admissible(f"g-{seq}", seq, wanted, choice, now, operator=True)
        one = _kept(waiting, by)
        await self._record(by, one, goal=wanted.text, picked_by=one.picked_by)
        self._goals.move(one)
        self._queue.join(waiting, now)
        self.stir()
        return one

    def _require_payable(self, agent_id: str, wanted: Goal) -> None:
        """EDQUOT: it could never start."""
        for resource, amount in wanted.budget.items():
            if resource not in RESOURCES:
                raise EINVAL("goal.budget", f"no budget counts {resource!r}", hint=f"there is {', '.join(RESOURCES)}")
            limit = self._workers.limit(agent_id, resource)
            if limit is not None and amount > limit:
                reason = f"this goal wants {amount:g} of {resource}, and {agent_id} may spend {limit} in all"
                raise EDQUOT("goal.budget", reason, hint="agentctl budget raise", limit=limit)

    async def prioritize(self, known_as: str, priority: str, by: str) -> list[Kept]:
        """Of one goal by its id, or of all goals of an agent."""
        known = self._queue.prioritize(self._meant(known_as), priority, operator=True)
        found = [self._goals.find(one.id) for one in known]
        for one in found:
            one.priority = goals.require_priority(priority, operator=True)
            await self._record(by, one, priority=one.priority)
            if one.state == "working":
                self._workers.share(one.agent, one.priority)
                self._kernel.models.prioritize(one.agent, one.priority)
        self.stir()
        return found

    def _meant(self, known_as: str) -> str:
        """A goal's id is one; else an agent's name, in full."""
        return known_as if self._goals.get(known_as) or "/" in known_as else f"{NAMESPACE}/{known_as}"

    async def withdraw(self, goal_id: str, by: str, reason: str) -> Kept:
        one = self.find(goal_id)
        self._queue.cancel(goal_id)
        await self._end(one, "withdrawn", reason or f"withdrawn by {by}", by)
        return one

    def queue(self, most: int | None = None) -> list[PendingGoal]:
        """First in order first."""
        return self._queue.pending(self._facts(), time.time(), most)

    def working(self) -> list[Kept]:
        return self._goals.working()

    def of(self, agent_id: str) -> list[Kept]:
        """At which an agent is."""
        return self._goals.of(agent_id)

    def ended(self) -> list[Kept]:
        return self._goals.ended()

    def find(self, goal_id: str) -> Kept:
        return self._goals.find(goal_id)

    async def until_over(self, goal_id: str) -> Kept:
        while not (one := self.find(goal_id)).over:
            await self._event(goal_id).wait()
        return one

    def _event(self, of: str) -> asyncio.Event:
        return self._wanted.setdefault(of, asyncio.Event())

    def _wake(self, *those: str) -> None:
        """Whoever waits for these looks again."""
        for one in those:
            if event := self._wanted.pop(one, None):
                event.set()

    # For agents.

    async def take(self, agent: Agent, seconds: float | None) -> tuple[Kept, Put] | None:
        """The next goal for an agent that asks, and what the store must hold with the entry that tells it. None: there
        was none in time. Cancelled: nobody has taken anything."""
        end = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self._serving.add(agent.id)
        self._asking[agent.id] += 1
        self.stir()
        try:
            async with asyncio.timeout_at(end):
                while (one := self._untaken(agent)) is None:
                    await self._event(agent.id).wait()
        except TimeoutError:
            return None
        finally:
            self._asking[agent.id] -= 1
            if not self._asking[agent.id]:
                del self._asking[agent.id]
        one.taken = agent.first_aseq
        return one, put(one)

    def _untaken(self, agent: Agent) -> Kept | None:
        """A goal of its that this life has not in hand. One that an earlier life had, whose record is not gone through
        again, is there once more."""
        return next((one for one in self._goals.of(agent.id) if one.taken != agent.first_aseq), None)

    def finish(self, agent: Agent, goal_id: str, result: Any, failure: str | None) -> _Settled:
        """It says that it is done with a goal."""
        one = self._goals.get(goal_id)
        if one is None or one.agent != agent.id or one.state != "working" or one.taken != agent.first_aseq:
            raise ESRCH("goal.unknown", f"you are not at a goal {goal_id[:128]!r}", hint="ctx.goal() gives you one")
        return self._over(one, "failed" if failure else "done", failure or "", result)

    # When an agent ends.

    def in_hand(self, agent: Agent) -> InHand | None:
        """The goal at which an agent was, and how many lives it has cost, the one that just ended included. What an
        earlier run took did not kill this one."""
        held = [one for one in self._goals.of(agent.id) if one.taken and one.taken == agent.first_aseq]
        return InHand(held[0].id, held[0].deaths + 1) if held else None

    def left(self, agent: Agent, ended: Ended, *, again: bool) -> _Settled:
        """An agent is gone; `again`: it lives again."""
        self._serving.discard(agent.id)
        self._wanted.pop(agent.id, None)
        puts: list[Put] = []
        later: list[Callable[[], None]] = []
        for one in self._goals.of(agent.id):
            more, then = self._after(one, agent, ended, again)
            puts += more
            later.append(then)

        def committed() -> None:
            for then in later:
                then()
            self.stir()

        return puts, committed

    def _after(self, one: Kept, agent: Agent, ended: Ended, again: bool) -> _Settled:
        held = one.taken == agent.first_aseq or one.alone
        if held and ended.exit_class is ExitClass.NORMAL:
            return self._over(one, "done", "", ended.result)
        if held and ended.exit_class not in _NO_FAULT:
            one.deaths += 1
            if one.taken and one.deaths >= self._workers.max_deaths(one.agent):
                return self._dead_letter(one, ended)
        if again:
            return [put(one)], lambda: None
        if not held or ended.exit_class is ExitClass.LOST:  # by no fault of its own: it begins anew
            return self._give_back(one)
        if ended.exit_class is ExitClass.REQUESTED:
            return self._over(one, "withdrawn", f"its agent was stopped: {ended.reason}")
        return self._over(one, "failed", ended.reason or str(ended.exit_class))

    def _dead_letter(self, one: Kept, ended: Ended) -> _Settled:
        """It kills whoever takes it. The next life begins a run of its own: the record would lead it there again."""
        puts, committed = self._over(one, "failed", f"{one.deaths} lives of {one.agent} ended with it: {ended.reason}")
        anew = Put("lives", one.agent, str(self._kernel.journal.aseq(one.agent) + 2).encode())
        return [*puts, anew], committed

    def _give_back(self, one: Kept) -> _Settled:
        """It waits again, at its old place."""
        one.state, one.taken, one.alone, one.started_at = "waiting", 0, False, None
        self._goals.move(one)
        return [put(one)], lambda: self._queue.give_back(one.id, time.time())

    # When one is started.

    def dressed(self, agent_id: str, order: Mapping[str, Any]) -> dict[str, Any]:
        """The order of an agent. A program that cannot ask for the goal that it is started for has it in its
        environment."""
        mine = [one for one in self._goals.of(agent_id) if one.alone]
        if not mine or order.get("file") is not None:
            return dict(order)
        wanted = mine[0].goal
        inputs = json.dumps(dict(wanted.inputs), default=str)
        words = {"AGENT_OS_GOAL": wanted.text, "AGENT_OS_GOAL_ID": mine[0].id, "AGENT_OS_GOAL_INPUTS": inputs}
        env = [f"{name}={value.replace(chr(0), '')}" for name, value in words.items()]
        return {**order, "env": [*order.get("env", ()), *env]}

    @property
    def busy(self) -> bool:
        """Somebody is at a goal, or will be without anybody's doing."""
        return bool(self._goals.working()) or any(map(self._workers.is_able, self._queue.agents()))

    # Turns.

    def stir(self) -> None:
        """Something has changed that somebody may wait for."""
        news, self._news = self._news, asyncio.Event()
        news.set()
        self._watched()

    def _watched(self) -> None:
        """Turns are taken while goals wait, or are at work without anybody who works."""
        if (self._watch is None or self._watch.done()) and not self._kernel.halting and self._busy():
            self._watch = self._kernel.start(self._turns())

    def _busy(self) -> bool:
        return len(self._queue) > 0 or any(not one.taken for one in self.working())

    async def _turns(self) -> None:
        while self._busy() and not self._kernel.halting:
            news = self._news
            try:
                await self._turn()
            except AgentOSError as error:
                if self._kernel.journal.failed:
                    return
                log.error("goals could not be given out: %s", error)
            try:
                async with asyncio.timeout(_LOOK_AGAIN):
                    await news.wait()
            except TimeoutError:
                continue

    async def _turn(self) -> None:
        now = time.time()
        starting, late = self._queue.admit(self._facts(), now)
        for one in late:
            await self._end(self._goals.find(one.id), "late", "its deadline passed while it waited", "kernel")
        for one in starting:
            await self._begin(self._goals.find(one.id), now)
        for one in self.working():
            if not one.taken and not self._workers.is_live(one.agent) and not self._workers.summon(one.agent):
                await self._return(one)

    async def _begin(self, one: Kept, now: float) -> None:
        one.state, one.started_at = "working", now
        one.alone = not self._workers.is_live(one.agent)
        await self._record("kernel", one)
        self._goals.move(one)
        self._wake(one.agent)

    async def _return(self, one: Kept) -> None:
        """Its agent is not started any more."""
        puts, committed = self._give_back(one)
        await self._kernel.journal.record(_draft("kernel", one), sync=True, puts=puts)
        committed()

    def _facts(self) -> Facts:
        """An agent that lives takes as many goals as it asks for, beyond those that it is at."""
        live, waited_for = self._workers.live(), self._queue.agents()
        at_once: dict[str, int] = {}
        for agent_id in waited_for & live:
            mine = list(self._goals.of(agent_id))
            at_once[agent_id] = len(mine) + max(0, self._asking[agent_id] - sum(not one.taken for one in mine))
        unready = {one for one in waited_for - live if not self._workers.may_start(one)}
        broke = {one for one in waited_for if not self._workers.has_room(one, {})}
        dear = (one for one in self._goals.waiting() if one.goal.budget and one.agent not in broke)
        broke |= {one.id for one in dear if not self._workers.has_room(one.agent, one.goal.budget)}
        held = self._workers.held(self._queue.holders())
        return Facts(held, live, frozenset(unready), at_once, frozenset(broke))

    # The record.

    async def _end(self, one: Kept, state: State, reason: str, by: str) -> None:
        """Of one that waited."""
        puts, committed = self._over(one, state, reason)
        await self._kernel.journal.record(_draft(by, one), sync=True, puts=puts)
        committed()

    def _over(self, one: Kept, state: State, reason: str, result: Any = None) -> _Settled:
        if len(frames.encode_body(result)) > LARGEST:
            result, reason = None, reason or "its result is too large to be kept here; the record has it"
        one.state, one.reason, one.result, one.ended_at = state, reason, result, time.time()
        self._goals.move(one)
        forgotten = self._goals.oldest()
        for old in forgotten:
            self._goals.drop(old)

        def committed() -> None:
            self._queue.finished(one.id, time.time())
            if not self._goals.of(one.agent):
                self._workers.share(one.agent)
            self._wake(one.id)
            self.stir()

        return [put(one), *map(gone, forgotten)], committed

    async def _record(self, by: str, one: Kept, **more: Any) -> None:
        await self._kernel.journal.record(_draft(by, one, **more), sync=True, puts=[put(one)])


def _require_small(wanted: Goal) -> None:
    """Thousands may wait."""
    try:
        size = len(frames.encode_body(dict(wanted.inputs)))
    except (TypeError, ValueError, OverflowError) as problem:
        raise EINVAL("goal.inputs", f"the inputs of this goal cannot be kept: {problem}") from None
    if size > LARGEST:
        reason = f"the inputs of this goal have {size} bytes of at most {LARGEST}"
        raise EMSGSIZE("goal.inputs", reason, hint="put them into a file that the agent sees")


def _kept(waiting: Waiting, by: str) -> Kept:
    return Kept(
        id=waiting.id,
        seq=waiting.seq,
        goal=waiting.goal,
        agent=waiting.agent,
        picked_by=waiting.picked_by,
        priority=waiting.priority,
        submitted_at=waiting.submitted_at,
        memory_mb=waiting.memory_mb,
        by=by,
    )


def _draft(by: str, one: Kept, **more: Any) -> Draft:
    told = {"event": f"goal {one.id} {one.state}", "goal_id": one.id, "agent": one.agent, "reason": one.reason, **more}
    return Draft(by, Kind.STATE, body=frames.encode_body(told))
