"""After a crash: what the journal says was under way, and what becomes of it.

An intent without an outcome is settled by its class: pure and idempotent deeds run again with the same key, verifiable
ones are looked at first, anything else is parked as unknown until a person says what happened. Every step of this is
itself recorded, so a crash during recovery is recovered from like any other. Native agents are then started again and
replayed; guests are not, their end is recorded.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import suppress
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

import msgspec

from agent_os.abi import frames
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import EACCES, EINTR, EIO, ENOENT, ESRCH, EUNKNOWN, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.abi.syscalls import BY_NUMBER, Effect, Exec, Exit
from agent_os.abi.tools import ToolResult
from agent_os.drivers.store import Put
from agent_os.kernel.authority.answers import State
from agent_os.kernel.authority.labels import CLEAN, of_source
from agent_os.kernel.calls import Act, Done, Need
from agent_os.kernel.journal import Draft
from agent_os.kernel.passing import QUARANTINE, overtaken, quarantined
from agent_os.kernel.recorded import Recorded, decode_any, settled
from agent_os.kernel.resuming import resumable
from agent_os.kernel.signals import HELD, STOPPED, STOPS
from agent_os.kernel.table import Agent, AgentKind, Ended, bare
from agent_os.kernel.tools import native
from agent_os.kernel.tools.registry import Verified
from agent_os.kernel.vfs.sources import encode

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

_AT_ONCE = 64  # entries
MOST_TRIES = 3  # incarnations in a row that brought nothing new
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0  # seconds between a crash and the next life, doubled with each crash in a row
_UNWEIGHED = "this was not run again, since nothing could say whether it may: {!r}"
STABLE = 60.0  # seconds; after a life of that length the counting begins anew
_WRITE, _EXEC, _SIGNAL, _EXIT, _SPAWN, _REMOVE, _CHECKPOINT, _SLEEP, _SIGMASK = 2, 5, 6, 8, 9, 24, 26, 27, 31
_THINK = 19
Found = tuple[Entry, bytes | None]
log = logging.getLogger("agent_os.recovery")


async def unhurried(found: Iterable[Found]) -> AsyncIterator[Found]:
    """A record of any length: everybody else has a turn after every few entries."""
    for number, one in enumerate(found, 1):
        yield one
        if number % _AT_ONCE == 0:
            await asyncio.sleep(0)


def pause(crashes: int, chance: float) -> float:
    """Seconds before the next life after so many crashes in a row. `chance`, from 0 to 1, keeps those who crashed
    together from starting together."""
    nominal = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(crashes - 1, 32))
    return nominal / 2 + chance * nominal / 2


class Recovery:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self.resolved = asyncio.Event()  # set, and made anew, whenever somebody resolved something
        self._last_before = kernel.journal.size  # entries of earlier kernels; what is newer is under way in this one
        self._resolving: set[int] = set()
        self._progress: dict[str, tuple[int, int]] = {}  # agent → entries it had at the last restart, tries since
        self._crashes: dict[str, int] = {}  # agent → in a row

    async def at_boot(self, others: Callable[[], Awaitable[None]] | None = None) -> None:
        """Intents of agents that will not run again, then the agents that will. `others`: who is there again without
        us, and may have children among these."""
        kernel = self._kernel
        kernel.authority.arm()
        lasting = {key: decode_any(value) for key, value in kernel.store.items("agents")}
        await self._fleet_at_boot({key: lasting.pop(key) for key in list(lasting) if kernel.fleet.spec(key)})
        for entry, kept in kernel.journal.open_intents():
            over = entry.agent not in lasting and not kernel.fleet.will_live(entry.agent)
            if over or entry.op in (_SPAWN, _SIGNAL) or (entry.op == _EXEC and not self._needs_life(kept)):
                await self._settle(entry, kept)
        if others:
            await others()
        for agent_id in _parents_first(lasting):
            await self._again(agent_id, lasting[agent_id])

    def _needs_life(self, kept: bytes | None) -> bool:
        return self._kernel.tools.needs_life(decode_any(Recorded.of(kept).request))

    async def _fleet_at_boot(self, orders: dict[str, dict[str, Any]]) -> None:
        """Who lived of the agents of manifests has ended; whether each lives again, the fleet decides."""
        fleet = self._kernel.fleet
        for agent_id, order in orders.items():
            if record := fleet.lived(agent_id):
                words = self._last_words(agent_id, record.incarnation) if record.wanted else None
                kind = ExitClass.LOST if record.wanted else ExitClass.REQUESTED
                await self._is_over(agent_id, order, Ended(kind, -1, "the kernel restarted"), words)
        await fleet.at_boot()

    async def _again(self, agent_id: str, order: dict[str, Any]) -> None:
        words = self._last_words(agent_id)
        if words is None and order.get("kind") == "native" and order.get("durable", True):
            await self.begin(agent_id, order)
            return
        await self._is_over(agent_id, order, Ended(ExitClass.LOST, -1, "the kernel restarted"), words)

    async def begin(self, agent_id: str, order: dict[str, Any], *, after: float = 0.0) -> None:
        """Start an agent again, after a pause. One that stands still is not: nothing of it runs until somebody lets it
        go on. Nor is one whose parent has ended for good."""
        kernel = self._kernel
        name, parent = bare(agent_id), order.get("parent")
        try:
            if parent and kernel.table.over(parent):
                raise ESRCH("agent.parent", "its parent has ended")
            stands = kernel.store.get(STOPS, agent_id) is not None
            if after and not stands:
                if not await self._paused(self.asleep(name, order, "backoff"), after):
                    return
                stands = kernel.store.get(STOPS, agent_id) is not None
            if kernel.halting:  # the next kernel starts it
                return
            if stands:
                self.asleep(name, order)
            else:
                await self._start(agent_id, order)
        except AgentOSError as error:
            log.error("%s could not be started again: %s", agent_id, error)
            if kernel.store.get("agents", agent_id) is not None:
                await self._is_over(agent_id, order, Ended(ExitClass.ERROR, -1, f"not started: {error.reason}"))

    async def _start(self, agent_id: str, order: dict[str, Any]) -> None:
        guests = self._kernel.guests
        try:
            await guests.start(order, name=bare(agent_id), parent=order.get("parent"))
        except AgentOSError:
            await guests.give_up(agent_id)  # whoever follows it hears how its last life ended
            raise

    def asleep(self, name: str, order: dict[str, Any], detail: str = "", kind: AgentKind = "native") -> Agent:
        """A row without a process, which can be seen, held and killed like any other."""
        agent = self._kernel.table.admit(name, kind, parent=order.get("parent"))
        stands = self._kernel.store.get(STOPS, agent.id) or b""
        agent.order, agent.life, agent.detail = order, Incarnation.SUSPENDED, detail
        agent.held, agent.stopped, agent.asleep = HELD in stands, STOPPED in stands, True
        agent.clock.stop()
        return agent

    async def _paused(self, agent: Agent, seconds: float) -> bool:
        """Whether it is to be started now: it was neither ended meanwhile nor let go on by somebody."""
        kernel = self._kernel
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await agent.gone.wait()
        if agent.exit:
            await agent.gone.wait()
            await kernel.guests.give_up(agent.id)
        if agent.gone.is_set():
            return False
        kernel.table.forget(agent)
        return True

    async def go_on(self, agent: Agent) -> None:
        """It has no process, and may have one now. Returns when it does."""
        kernel = self._kernel

        async def wake() -> None:
            if kernel.fleet.spec(agent.id):
                await kernel.fleet.wake(agent)
                return
            kernel.table.forget(agent)
            await self.begin(agent.id, agent.order)

        agent.next_life = kernel.start(wake())
        agent.gone.set()
        await asyncio.wait([agent.next_life])

    def forget(self, agent_id: str) -> None:
        """It has ended for good."""
        self._progress.pop(agent_id, None)
        self._crashes.pop(agent_id, None)

    def delay(self, agent: Agent) -> float:
        """How long to wait before the next life of an agent that has just crashed."""
        crashes = 1 if agent.clock.seconds >= STABLE else self._crashes.get(agent.id, 0) + 1
        self._crashes[agent.id] = crashes
        return pause(crashes, random.random())

    def _last_words(self, agent_id: str, incarnation: int | None = None) -> Exit | None:
        """What an agent said that had ended by itself, when nobody was there any more to see it go."""
        first = int(self._kernel.store.get("lives", agent_id) or 1)
        for entry, kept in self._kernel.journal.scan(agent_id, first):
            own = incarnation in (None, entry.inc)
            if own and entry.op == _EXIT and entry.kind == Kind.OUTCOME and not entry.code:
                return msgspec.msgpack.decode(Recorded.of(kept).request, type=Exit)
        return None

    async def _is_over(self, agent_id: str, order: dict[str, Any], ended: Ended, words: Exit | None = None) -> None:
        """An agent of an earlier kernel that does not live again: its row says so, and whoever waits for it hears."""
        kernel = self._kernel
        kind: AgentKind = "native" if order.get("kind") == "native" else "guest"
        agent = kernel.table.admit(agent_id, kind, parent=order.get("parent"))
        agent.incarnation -= 1  # the one that is over
        agent.pid = agent.restarted_from or agent.pid
        agent.order, agent.last_words, agent.life = {**order, "durable": False}, words, Incarnation.STOPPING
        await kernel.left(agent, ended)
        for entry, kept in kernel.journal.open_intents():
            if entry.agent == agent_id and not agent.lasting:
                await self._settle(entry, kept)

    def history(self, agent: Agent) -> Iterator[Found]:
        """What an agent lived through that its program must be taken through again."""
        start = self._kernel.checkpoints.newest_with_state(agent)
        lives = self._kernel.journal.scan(agent.id, max(agent.first_aseq, start["aseq"] + 1 if start else 1))
        if start:
            lives = dropwhile(lambda one: not _is_checkpoint(one, start["name"]), lives)
            next(lives, None)
        return resumable(lives, unasked=self._kernel.fleet.spec(agent.id) is not None)

    async def settle_before(self, agent: Agent) -> None:
        """What the agent itself left open; its workspace is mounted now. Then what only the record knows of it."""
        await self._until_done(agent)
        for entry, kept in self._kernel.journal.open_intents():
            if entry.agent == agent.id:
                await self._settle(entry, kept, agent)
        async for entry, kept in unhurried(self._kernel.journal.scan(agent.id, agent.first_aseq)):
            if entry.op == _SLEEP:
                self._kernel.sleeps.remember(entry, kept)
            elif entry.op == _SIGMASK and entry.kind == Kind.OUTCOME and not entry.code:
                agent.mask = {AgentSignal(number) for number in decode_any(Recorded.of(kept).value)["mask"]}
            self._kernel.bonds.remember(agent, entry, kept)
        self._kernel.signals.restore(agent)

    async def _until_done(self, agent: Agent) -> None:
        """An agent that died alone may have effects under way in this kernel: they end, and are recorded, first."""
        news = asyncio.Event()
        groups = self._kernel.journal.after_group
        groups.append(news.set)
        try:
            while any(
                entry.agent == agent.id and entry.seq > self._last_before and not self._is_parked(entry.seq)
                for entry, _ in self._kernel.journal.open_intents()
            ):
                await news.wait()
                news.clear()
        finally:
            groups.remove(news.set)

    async def _settle(self, entry: Entry, kept: bytes | None, agent: Agent | None = None) -> None:
        if self._is_parked(entry.seq):
            return
        recorded = Recorded.of(kept)
        request = decode_any(recorded.request)
        if entry.op == _THINK:
            await self._paid(entry, recorded, request)
            return
        seen = await self._look(entry, request, agent)
        if seen.state == "done":
            done = seen.value if isinstance(seen.value, Done) else Done(seen.value)
            await self._outcome(entry, recorded, done, None)
        elif seen.state == "not_done":
            await self._do_again(entry, recorded, agent)
        else:
            await self.park(entry)

    async def _paid(self, intent: Entry, recorded: Recorded, request: Any) -> None:
        """A model call that nobody heard the end of: all that was reserved is spent, for nobody can say that less was.
        It has no place in the program, which makes the call anew."""
        error = EINTR("lost", "the kernel ended while the model was answering; the call is made again")
        draft = Draft(intent.agent, Kind.OUTCOME, intent.inc, intent.op, intent.effect, intent.seq, seen=intent.seen)
        draft.body, draft.code, draft.rule = settled(recorded, frames.NIL, error), error.number, "recovery"
        draft.cost = {**self._charged(intent, undone=False), "model": request["model"], "estimated": True}
        await self._kernel.journal.record(draft, sync=True)

    async def _do_again(self, entry: Entry, recorded: Recorded, agent: Agent | None) -> None:
        """What did not happen does now, if it could begin now: the world may be another one since it was allowed."""
        try:
            act = await self._weighed(entry, decode_any(recorded.request), agent)
        except AgentOSError as refusal:
            await self._outcome(entry, recorded, None, overtaken(refusal), undone=True)
        except Exception as bug:  # what cannot be weighed is not done
            log.error("entry %d of %s cannot be weighed again", entry.seq, entry.agent, exc_info=bug)
            await self._outcome(entry, recorded, None, EIO("gate.fault", _UNWEIGHED.format(bug)), undone=True)
        else:
            await self._outcome(entry, recorded, *await self._run(entry, act))

    async def _weighed(self, entry: Entry, request: Any, agent: Agent | None) -> Act:
        """The deed once more, with the same key. Raises what forbids it by now: its authority is gone or has expired,
        a rule forbids it or asks for what nobody was asked, its agent is quarantined."""
        kernel = self._kernel
        await kernel.governing.remember(entry.agent)
        caller = agent or self._absent(entry)
        if kernel.store.get(QUARANTINE, entry.agent) is not None:
            raise quarantined()
        if entry.handle:
            self._require_held(entry)
        act = self._act(entry, request, caller)
        kernel.gate.weighing.require_allowed(caller, entry.op, act, self._approved(entry))
        return act

    def _absent(self, entry: Entry) -> Agent:
        """Whoever began it, as far as the gate must know: nothing of it runs, and it may never do so again."""
        kernel = self._kernel
        holdings = kernel.authority.holdings(entry.agent)
        own = bare(entry.agent)
        above = tuple(one for one in kernel.table.parties(entry.agent) if one[0] != own)
        return Agent(entry.agent, "native", 0, entry.inc, entry.isolation, None, holdings, above=above)

    def _require_held(self, entry: Entry) -> None:
        """What it rested on is still there: nothing is done by itself for which an agent has no authority any more."""
        try:
            handle = self._kernel.authority.find(entry.handle)
        except ENOENT:
            reason = "its capability was revoked before this was done"
            raise EACCES("cap.revoked", reason, handle=entry.handle) from None
        handle.require_live(self._kernel.authority.holdings(handle.holder).clock)

    def _act(self, entry: Entry, request: Any, agent: Agent) -> Act:
        if entry.op == _EXEC and not _is_spawn(request):
            asked = Exec(tool=request["tool"], params=request["params"])
            act = self._kernel.tools.again(agent, request)
            act.facts = {**act.facts, "args": asked.params, "size": len(frames.encode_body(asked))}
            return act
        files = agent.root and entry.op not in (_SPAWN, _EXEC)
        act = self._kernel.vfs.again(agent.files, entry.op, request) if files else None
        if act is None:
            raise _lost()
        if "data" in request:
            act.facts = {**act.facts, "size": len(encode(request["data"]))}
        return act

    def _approved(self, entry: Entry) -> Collection[str]:
        """The rules to which a person said yes for it, and has not taken that back."""
        _, said, name = entry.rule.rpartition("approval:")
        approvals = self._kernel.approvals
        used = [one for one in approvals.every() if one.state is State.USED and one.scope == "once"]
        answers = (one for one in (*used, *approvals.standing()) if (one.id, one.agent) == (name, entry.agent))
        return {rule for one in answers for rule in one.rules} if said else ()

    async def _look(self, entry: Entry, request: Any, agent: Agent | None) -> Verified:
        """`done` with the value to answer; `not_done`: it may run (again); `unsure`: only a person can tell. That is so
        whenever looking itself fails."""
        try:
            if entry.op == _SIGNAL:
                return Verified("done", {"delivered": True})  # every process of that time is gone
            if entry.op == _SPAWN:
                return self._child(entry, request)
            if entry.op in (_WRITE, _REMOVE) and agent is not None:
                seen = self._kernel.vfs.verify(agent.files, entry.op, request)
                return Verified(seen.state, seen.value)
            if entry.op == _EXEC:
                if _is_spawn(request):
                    return self._spawned(entry, request)
                return await self._kernel.tools.verify(agent or self._absent(entry), request, Effect(entry.effect))
        except Exception as problem:  # a tool of somebody's; whatever it was, nothing is known
            log.error("entry %d of %s cannot be verified: %s", entry.seq, entry.agent, problem)
        return Verified("unsure")

    def _spawned(self, entry: Entry, request: Any) -> Verified:
        """The same, asked for by the name of a tool."""
        seen = self._child(entry, {"manifest": native.manifest(request["params"])})
        if seen.state != "done" or not request.get("whole"):
            return seen
        return Verified("done", Done(ToolResult(value=seen.value, tool=request["tool"])))

    def _child(self, entry: Entry, request: Any) -> Verified:
        """A child that was being started is on the record, and its parent in the store, from its first entry on. It
        may have ended since."""
        asked = request["manifest"].get("name")
        for agent_id, parent in self._kernel.store.items("parents"):
            name = bare(agent_id)
            if parent.decode() != entry.agent or asked not in (None, agent_id.rpartition("/")[2]):
                continue
            born = self._born_after(entry.seq, agent_id, named=asked is not None)
            if born and not self._answered(entry, name):
                return Verified("done", {"agent": name, "level": born.isolation})
        return Verified("not_done")

    def _born_after(self, seq: int, agent_id: str, *, named: bool) -> Entry | None:
        """The first entry of an agent, if it is one of that time. A name that somebody chose may have been used before;
        who lived then, and was only started again, is another one."""
        before: Entry | None = None
        for entry, _ in self._kernel.journal.scan(agent_id):
            if entry.kind == Kind.POLICY_LOAD or (before and before.kind == Kind.EXIT and entry.kind == Kind.STATE):
                continue  # its rules are there before it is, and whoever was to live again may have been stopped
            if entry.seq > seq:
                fresh = before is None or (named and before.kind == Kind.EXIT)
                return entry if fresh and entry.kind == Kind.SPAWN else None
            before = entry
        return None

    def _answered(self, intent: Entry, name: str) -> bool:
        """Whether the parent was told of this child by another spawn."""
        since = ((entry, kept) for entry, kept in self._kernel.journal.scan(intent.agent) if entry.seq > intent.seq)
        return any(_spawned_by(entry, kept) == name for entry, kept in since)

    def how_it_ended(self, agent_id: str) -> dict[str, Any] | None:
        """Of an agent that an earlier kernel ran, and that has no row any more."""
        ends = (kept for entry, kept in self._kernel.journal.scan(agent_id) if entry.kind == Kind.EXIT and kept)
        last = deque(ends, maxlen=1)
        if not last:
            return None
        told = decode_any(last.pop())
        state = "completed" if told["class"] in (ExitClass.NORMAL, ExitClass.REQUESTED) else "failed"
        facts = {"status": told["code"], "result": told["result"], "reason": told["reason"]}
        return {"agent": bare(agent_id), "state": state, **facts}

    async def _run(self, entry: Entry, act: Act) -> tuple[Done | None, AgentOSError | None]:
        """What it gave, or how it failed."""
        try:
            done = act.do()
            return done if isinstance(done, Done) else await done, None
        except AgentOSError as error:
            return None, error
        except Exception as bug:
            log.error("entry %d of %s failed again", entry.seq, entry.agent, exc_info=bug)
            return None, EIO("internal", f"this failed when it was run again: {type(bug).__name__}: {bug}")

    def _is_parked(self, seq: int) -> bool:
        return self._kernel.store.get("parked", f"{seq:020}") is not None

    async def _outcome(
        self, intent: Entry, recorded: Recorded, done: Done | None, error: AgentOSError | None, *, undone: bool = False
    ) -> None:
        """`undone`: certainly nothing happened."""
        said = frames.body(done.value) if done and done.value is not None else frames.NIL
        draft = Draft(intent.agent, Kind.OUTCOME, intent.inc, intent.op, intent.effect, intent.seq)
        draft.pos, draft.seen, draft.key = intent.pos, intent.seen, intent.key
        draft.body = settled(recorded, said, error)
        draft.code = error.number if error else 0
        draft.rule = ",".join(filter(None, ("recovery", str(error.detail.get("rule", "")) if error else "")))
        draft.cost = self._charged(intent, undone=undone)
        puts = [Put("parked", f"{intent.seq:020}", None), *self._taken_in(intent, recorded, done)]
        if (label := self._kernel.authority.labels.of(intent.agent)) != CLEAN:
            draft.label = label.words()
        if done and intent.op == _EXEC:
            puts += done.puts
        blobs = done.blobs if done and intent.op == _EXEC else ()
        await self._kernel.journal.record(draft, sync=True, puts=puts, blobs=blobs)

    def _charged(self, intent: Entry, *, undone: bool) -> dict[str, Any]:
        """What was reserved for it is spent, as far as anybody can tell. What certainly did not happen is free."""
        budgets = self._kernel.budgets
        held = budgets.of_intent(intent.seq)
        if held is None:
            return {}
        over = budgets.settle(held, {} if undone else None)
        for alarm in over.alarms:
            self._kernel.authority.alarm(alarm)
        return over.cost

    def _taken_in(self, intent: Entry, recorded: Recorded, done: Done | None) -> list[Put]:
        """What a tool said reaches the agent with this outcome."""
        if intent.op != _EXEC:
            return []
        authority, name = self._kernel.authority, str(decode_any(recorded.request)["tool"]).partition("@")[0]
        label = done.label if done else None
        if label is None:
            label = of_source(Need("tool", "call", name), authority.policies.of(intent.agent).sources)
        return authority.labels.take_in(intent.agent, label)

    async def park(self, intent: Entry) -> None:
        """Unknown, and said so: the agent waits until a person has looked."""
        told = frames.encode_body({"intent": intent.seq, "op": BY_NUMBER[intent.op].name})
        draft = Draft(intent.agent, Kind.PARK, intent.inc, intent.op, ref=intent.seq, body=told)
        draft.code = EUNKNOWN.number
        puts = [Put("parked", f"{intent.seq:020}", intent.agent.encode())]
        await self._kernel.journal.record(draft, sync=True, puts=puts)
        log.warning("the outcome of entry %d of %s is unknown: agentctl resolve", intent.seq, intent.agent)

    def parked(self, agent_id: str | None = None) -> list[tuple[int, str]]:
        found = [(int(key), value.decode()) for key, value in self._kernel.store.items("parked")]
        return [one for one in found if agent_id in (None, one[1])]

    async def resolve(self, seq: int, verdict: str, result: Any, by: str) -> None:
        """An operator says what became of it; the agent goes on with that. It stays parked until its outcome is on the
        record: a crash in between asks again, and somebody who says the same at the same time is refused."""
        kernel = self._kernel
        if not self._is_parked(seq) or seq in self._resolving:
            raise ENOENT("resolve.none", f"entry {seq} does not wait to be resolved", hint="agentctl inspect NAME")
        self._resolving.add(seq)
        try:
            entry, kept = kernel.journal.read(seq)
            recorded = Recorded.of(kept)
            said = {"verdict": verdict, "by": by, "result": result, "intent": seq}
            note = Draft(entry.agent, Kind.RESOLVE, entry.inc, entry.op, body=frames.encode_body(said))
            await kernel.journal.record(note, sync=True)
            if verdict == "done":
                await self._outcome(entry, recorded, Done(result), None)
            elif verdict == "fail":
                failed = EIO("resolved", f"{by} says that it failed")
                await self._outcome(entry, recorded, None, failed, undone=True)
            else:
                await self._do_again(entry, recorded, kernel.table.living(entry.agent))
        finally:
            self._resolving.discard(seq)
        self.stir()

    def stir(self) -> None:
        """Whoever waits for somebody to decide looks again."""
        self.resolved.set()
        self.resolved = asyncio.Event()

    def may_try_again(self, agent: Agent) -> bool:
        """Whether starting it once more promises anything: not after three lives that brought nothing new."""
        now = self._kernel.journal.aseq(agent.id)
        before, tries = self._progress.get(agent.id, (0, 0))
        tries = tries + 1 if now - before <= MOST_TRIES else 1  # a life always leaves a spawn and an exit
        self._progress[agent.id] = (now, tries)
        return tries <= MOST_TRIES


def _is_spawn(record: Any) -> bool:
    return str(record["tool"]).partition("@")[0] == "agent.spawn"


def _spawned_by(entry: Entry, kept: bytes | None) -> str | None:
    """The child that a call was answered with, by its own name or by that of a tool."""
    if entry.op not in (_SPAWN, _EXEC) or entry.kind != Kind.OUTCOME:
        return None
    recorded = Recorded.of(kept)
    request, answer = decode_any(recorded.request), decode_any(recorded.value)
    if not answer or (entry.op == _EXEC and not _is_spawn(request)):
        return None
    return (answer["value"] if entry.op == _EXEC and request.get("whole") else answer)["agent"]


def _lost() -> EINTR:
    return EINTR("lost", "the kernel ended before this had begun; nothing of it happened")


def _parents_first(orders: dict[str, dict[str, Any]]) -> list[str]:
    def above(agent_id: str) -> int:
        count, parent = 0, orders[agent_id].get("parent")
        while parent in orders and count < len(orders):
            count, parent = count + 1, orders[parent].get("parent")
        return count

    return sorted(orders, key=above)


def _is_checkpoint(found: Found, name: str) -> bool:
    entry, kept = found
    if entry.op != _CHECKPOINT or entry.kind != Kind.OUTCOME or entry.code:
        return False
    return decode_any(Recorded.of(kept).request)["name"] == name
