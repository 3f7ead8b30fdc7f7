"""The kernel as one object: what its parts share, and the life of an agent from adoption to its end.

`boot.py` puts it together. Every door hands its calls to `enter`; a call of an agent that is being replayed is answered
from the record, any other goes through the gate. Nothing is reported dead before the operating system says it is gone.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, EPERM, EPIPE, ESRCH, AgentKernelPanic, AgentOSError
from agent_os.abi.frames import Hello, Welcome
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.abi.syscalls import Effect, Spawn
from agent_os.drivers.store import Put, Store
from agent_os.kernel import peers, syscalls
from agent_os.kernel.authority import capability
from agent_os.kernel.calls import Act, Asked, Done, Need, Way
from agent_os.kernel.checkpoints import Checkpoints
from agent_os.kernel.connection import Connection
from agent_os.kernel.gate import Gate, Passing
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.recovery import Recovery, unhurried
from agent_os.kernel.replay import Delivery, Replay, deliveries
from agent_os.kernel.signals import KERNEL, Signals, gone
from agent_os.kernel.sleeps import Sleeps
from agent_os.kernel.spawning import child_order
from agent_os.kernel.table import Actor, Agent, Caller, Ended, Table
from agent_os.kernel.tooling import Tools
from agent_os.kernel.vfs import Vfs
from agent_os.kernel.views import mount_views

if TYPE_CHECKING:
    from agent_os.kernel.operator import Guests

Answer = Callable[[Raw, AgentOSError | None], None]
_TO_START, _TO_BE_HEARD = 5.0, 1.0  # seconds
log = logging.getLogger("agent_os.kernel")


class Kernel:
    guests: "Guests"  # set by boot where agents can be started
    operations: Mapping[int, syscalls.Prepare] = {}  # what operators may ask, set by boot

    def __init__(
        self,
        store: Store,
        journal: Journal,
        *,
        home: Path | None = None,
        env: Mapping[str, str] | None = None,
        auto: bool = False,
    ) -> None:
        self.store, self.journal, self.home, self.env = store, journal, home, dict(env or {})
        self.auto = auto  # somebody's run started us: we end with it, unless `up` adopts us
        self.started_ns = time.time_ns()
        self.table = Table(store)
        self.vfs = Vfs(store)
        self.tools = Tools()
        self.gate = Gate(journal, store, partial(syscalls.prepare, self))
        self.signals = Signals(self)
        self.sleeps = Sleeps(journal)
        self.checkpoints = Checkpoints(self)
        self.recovery = Recovery(self)
        self.connections: set[Connection] = set()
        self.ended = asyncio.Event()
        self.halting = False
        self.client_left: Callable[[], None] = lambda: None  # whoever serves the control socket may want to know
        self._dirty: set[Connection] = set()
        self._replays: dict[str, Replay] = {}
        self._reading: dict[str, asyncio.Event] = {}  # whose record is being read
        self._hoping: set[asyncio.Future[None]] = set()  # for a commit
        self._tasks: set[asyncio.Task[Any]] = set()
        journal.after_group += [self._flush, self.checkpoints.ask]
        journal.on_failure = self._journal_failed

    # Calls.

    def enter(self, caller: Caller, asked: Asked, answer: Answer) -> Passing | None:
        replay = self._replays.get(caller.id)
        if replay is not None:
            replay.call(asked, answer)
            return None
        passing = self.gate.enter(caller, asked, answer)
        return None if _must_finish(passing) else passing

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Something that goes on beside the calls. A failure of it is told in the log, never lost."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()):
            log.error("something beside the calls failed", exc_info=problem)

    def flush_soon(self, connection: Connection) -> None:
        if not self._dirty:
            asyncio.get_running_loop().call_soon(self._flush)
        self._dirty.add(connection)

    def _flush(self) -> None:
        while self._dirty:
            self._dirty.pop().flush()

    # Doors.

    def control_protocol(self) -> Connection:
        """A peer on the control socket. Only the kernel's own operator is let in."""
        return Connection(self, self._admit_operator, self._operator_left)

    def _admit_operator(self, connection: Connection, hello: Hello) -> Caller:
        if self.halting:
            raise EPIPE("halting", "the kernel is stopping")
        return peers.admit(connection.transport.get_extra_info("socket"), hello.token)

    def _operator_left(self, connection: Connection, fault: AgentOSError | None) -> None:
        self.client_left()

    @property
    def clients(self) -> int:
        return sum(isinstance(one.caller, Actor) for one in self.connections)

    # The life of an agent.

    async def adopt(self, agent: Agent, sock: socket.socket, workspace: int | None = None) -> None:
        """Give a started agent its files and, on its socket, our attention. What an earlier life of it left open is
        settled first; then its program is taken through its record. Until then its calls wait in the socket."""
        self.furnish(agent)
        if workspace is not None:
            agent.files.mount_directory("/work", workspace)
        try:
            await self._settled(agent)
        except BaseException:
            sock.close()
            raise
        line = await self._lived_through(agent)
        if agent.exit:
            sock.close()
            return

        def admit(connection: Connection, hello: Hello) -> Caller:
            agent.line = connection
            if "checkpoint" in hello.features:
                self.checkpoints.keep(agent)
            if replay.total:
                asyncio.get_running_loop().call_soon(replay.start)  # after its WELCOME
            return agent

        def lost(connection: Connection, fault: AgentOSError | None) -> None:
            agent.line = None
            agent.silent.set()
            if fault and not agent.exit:
                self.start(self.end(agent, Ended(ExitClass.ERROR, -1, f"it broke the rules of the wire: {fault}")))

        replay = self._replay(agent, line)
        agent.detail = "replaying" if replay.total else ""
        if replay.total:
            self._replays[agent.id] = replay
        await asyncio.get_running_loop().create_unix_connection(lambda: Connection(self, admit, lost), sock=sock)

    async def _lived_through(self, agent: Agent) -> list[Delivery]:
        """Its record up to now."""
        line: list[Delivery] = []
        with self._being_read(agent):
            async for found in unhurried(self.recovery.history(agent)):
                line += deliveries([found])
        return line

    @contextmanager
    def _being_read(self, agent: Agent) -> Generator[None]:
        """What comes for an agent meanwhile waits until it is known whether there is a replay."""
        read = self._reading[agent.id] = asyncio.Event()
        try:
            yield
        finally:
            del self._reading[agent.id]
            read.set()

    async def _settled(self, agent: Agent) -> None:
        """Returns when nothing is open of an earlier life. If what the agent did has an unknown outcome, a person is
        waited for."""
        if agent.incarnation == 1:
            return
        agent.detail = "replaying"
        with self._being_read(agent):
            await self.recovery.settle_before(agent)
        while self.recovery.parked(agent.id) and not agent.exit:
            agent.detail = "parked"
            await self.recovery.resolved.wait()
        agent.detail = ""

    def furnish(self, agent: Agent) -> None:
        """Its file tree, with the views on the kernel that belong to it."""
        root = agent.root = self.vfs.root(agent.id)
        for mount in root.mounts():
            if mount["path"] == "/work" or mount["backend"] == "view":  # of the life before
                root.unmount(mount["path"])
        mount_views(self, agent, root)
        root.notify = lambda body: self.notice(agent, {"type": "watch", **body})

    def greet(self, caller: Caller, welcome: Welcome) -> None:
        """What an agent is told first: what it was started with, and where it goes on."""
        welcome.replaying = caller.id in self._replays
        if isinstance(caller, Agent):
            welcome.input = frames.body(caller.order.get("input"))
            if start := self.checkpoints.newest_with_state(caller):
                welcome.checkpoint, welcome.state = start["name"], frames.body(start["state"])

    def _replay(self, agent: Agent, line: list[Delivery]) -> Replay:
        def live(held: list[tuple[Asked, Answer]]) -> None:
            agent.delivered = replay.total
            agent.detail = ""
            self._replays.pop(agent.id, None)
            if agent.line:
                agent.line.push("notice", {"type": "live"})
            for asked, answer in held:
                self.gate.enter(agent, asked, answer)
            for body in replay.later:
                self.notice(agent, body)

        def differs(error: AgentOSError) -> None:
            self._replays.pop(agent.id, None)
            self.start(self.end(agent, _nondeterministic(error)))

        def push(what: str, body: Any) -> None:
            if agent.line:
                agent.line.push(what, body)

        replay = Replay(line, live=live, push=push, differs=differs)
        return replay

    def notice(self, agent: Agent, body: dict[str, Any]) -> None:
        """Something happened that an agent should know. A native agent sees it again in a replay, so it is recorded."""
        if replay := self._replays.get(agent.id):
            replay.later.append(body)
            return
        if agent.exit or not agent.line:
            return

        def tell() -> None:
            agent.delivered += 1
            if agent.line:
                agent.line.push("notice", body)

        draft = Draft(agent.id, Kind.DELIVER, agent.incarnation, body=frames.encode_body(body))
        self.journal.put(draft, sync=False, done=tell)

    async def until_live(self, agent: Agent) -> None:
        """What is new for an agent comes after its record."""
        while reading := self._reading.get(agent.id):
            await reading.wait()
        if replay := self._replays.get(agent.id):
            await replay.finished.wait()
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")

    async def record_then(self, draft: Draft, then: Callable[[], None], puts: Sequence[Put] = ()) -> None:
        """Record, and do something at the very moment that it is committed: before the answer to anything that was
        recorded later. Raises if it could not be recorded; then `then` is not called."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done() -> None:
            then()
            if not committed.done():
                committed.set_result(None)

        self.journal.put(draft, sync=True, puts=puts, done=done)
        self._hoping.add(committed)
        try:
            await committed
        finally:
            self._hoping.discard(committed)

    def left_by_itself(self, agent: Agent) -> None:
        """It said that it ends. Its process has a moment to do so; then it is made to."""
        self.start(self._see_off(agent))

    async def _see_off(self, agent: Agent) -> None:
        if agent.kind == "context":
            await self.left(agent, _own_ending(agent, 0))
        elif agent.running:
            await asyncio.sleep(0)
            await agent.running.finish()

    async def end(self, agent: Agent, ended: Ended) -> int:
        """Make an agent end; how many processes that were. Returns when it is true."""
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")
        await self.until_started(agent)
        agent.fate = agent.fate or ended
        if agent.life is not Incarnation.STOPPING:
            agent.become(Incarnation.STOPPING)
        if agent.running is None:
            await self.left(agent, ended)
            return 0
        count = await gone(agent.running)
        await agent.gone.wait()
        return count

    async def until_started(self, agent: Agent) -> None:
        """A process that is still being made can be neither killed nor found to be gone."""
        try:
            async with asyncio.timeout(_TO_START):
                while agent.life is Incarnation.STARTING and agent.kind != "context" and not agent.exit:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise EBUSY("agent.starting", f"{agent.name} is still being started", hint="try again") from None
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")

    async def left(self, agent: Agent, ended: Ended) -> None:
        """The operating system says that an agent is gone: record it, tell who waits, perhaps start it again."""
        await self._hear_out(agent)
        if agent.exit:
            return
        ended = agent.fate or (_own_ending(agent, ended.code, ended.result) if agent.last_words else ended)
        if replay := self._replays.pop(agent.id, None):
            if ended.exit_class in (ExitClass.NORMAL, ExitClass.ERROR) and (short := replay.short()):
                ended = _nondeterministic(short)
            replay.stop()
        asked_to_end = self.signals.forget(agent)
        self.checkpoints.forget(agent)
        lasting = self._starts_again(agent, ended) and not asked_to_end  # a crash is no way out of a SIGTERM
        puts = [] if lasting else self._buried(agent.id)
        told = {"class": ended.exit_class, "code": ended.code, "reason": ended.reason, "result": ended.result}
        if ended.difference:
            told["difference"] = ended.difference
        draft = Draft(agent.id, Kind.EXIT, agent.incarnation, isolation=agent.isolation, body=frames.encode_body(told))
        agent.exit = ended
        agent.life = Incarnation.EXITED
        try:
            await self.journal.record(draft, sync=True, puts=puts)
        except AgentOSError:
            agent.gone.set()  # it is, whether that can be written or not
            raise
        self._tell_parent(agent, ended)
        if lasting:
            agent.next_life = self.start(self.recovery.begin(agent.id, agent.order))
        self.recovery.stir()
        agent.gone.set()

    async def _hear_out(self, agent: Agent) -> None:
        """What it said before it was gone may still be in its socket."""
        if isinstance(line := agent.line, Connection):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TO_BE_HEARD):
                    await agent.silent.wait()
            line.transport.abort()

    def _buried(self, agent_id: str) -> list[Put]:
        """What the store forgets with an agent that ended for good; the next of that name begins a life of its own."""
        life = Put("lives", agent_id, str(self.journal.aseq(agent_id) + 2).encode())
        return [Put("agents", agent_id, None), life, *self.signals.buried(agent_id), *self.vfs.end(agent_id)]

    def _starts_again(self, agent: Agent, ended: Ended) -> bool:
        """A native agent that was struck down from outside goes on where it was. More is the supervisor's business."""
        struck = ended.exit_class in (ExitClass.SIGNAL, ExitClass.LOST)
        lasting = agent.kind == "native" and agent.order.get("durable", True)
        return lasting and struck and not self.halting and self.recovery.may_try_again(agent)

    def _tell_parent(self, agent: Agent, ended: Ended) -> None:
        parent = next((one for one in self.table if one.id == agent.parent and not one.exit), None)
        if parent:
            body = {"type": "child", "agent": agent.name, "state": agent.state, "reason": ended.reason}
            self.notice(parent, body)

    async def wait_for(self, agent: Agent) -> dict[str, Any]:
        """How an agent ended, once it has; over restarts."""
        while True:
            await agent.gone.wait()
            if agent.next_life:
                await asyncio.wait([agent.next_life])
            latest = next((one for one in self.table if one.id == agent.id), agent)
            if latest is agent and agent.exit:
                ended = agent.exit
                facts = {"status": ended.code, "result": ended.result, "reason": ended.reason}
                return {"agent": agent.name, "state": agent.state, **facts}
            agent = latest

    async def wait_for_child(self, parent: Agent, name: str | None) -> dict[str, Any]:
        children = self.table.children(parent.id)
        if name is not None:
            children = [one for one in children if one is self.table.find(name, hint=False)]
        if not children:
            raise ESRCH("agent.child", f"you have no child {name!r}" if name else "you have no child")
        waiting = [asyncio.create_task(self.wait_for(one)) for one in children]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for task in waiting:
                task.cancel()

    def spawning(self, parent: Agent, request: Spawn) -> Act:
        """A child: it sees what its parent sees, and what it may do is part of what its parent holds."""
        order, name = child_order(parent, request.manifest)
        if name:
            self.table.require_own_name(name, parent.id)
        wanted = [capability.parse(text) for text in request.caps]
        needs = [Need("agent", "spawn", name or "*")]
        needs += [Need(one.kind, action, one.target) for one in wanted for action in sorted(one.actions)]

        async def do() -> Done:
            child = await self.guests.start(order, name=name, parent=parent.id, caps=request.caps, input=request.input)
            return Done({"agent": child.name, "level": child.isolation})

        return Act(do, needs, Way.EFFECT, Effect.VERIFIABLE, can_stop=False)

    async def quarantine(self, agent: Agent, reason: str) -> None:
        """A violation: the agent is dead, holds nothing, and stays so until an operator releases it."""
        agent.quarantined = True
        agent.holdings.revoke_all()
        body = frames.encode_body({"quarantined": True, "reason": reason})
        puts = [Put("quarantine", agent.id, reason.encode())]
        await self.journal.record(Draft(agent.id, Kind.STATE, agent.incarnation, body=body), sync=True, puts=puts)
        if not agent.exit:
            await self.end(agent, Ended(ExitClass.POLICY, -1, reason))

    async def release(self, agent_id: str, reason: str) -> None:
        body = frames.encode_body({"quarantined": False, "reason": reason})
        await self.journal.record(Draft(agent_id, Kind.STATE, body=body), puts=[Put("quarantine", agent_id, None)])
        for agent in self.table:
            if agent.id == agent_id:
                agent.quarantined = False

    def check_admission(self, agent_id: str) -> None:
        if reason := self.store.get("quarantine", agent_id):
            hint = f"agentctl release {agent_id.rpartition('/')[2]}"
            raise EPERM("quarantined", f"{agent_id} is quarantined: {reason.decode()}", hint=hint)

    def panic(self, reason: str, agent: str | None = None) -> None:
        """Trusted code found a violation. Of one agent: it is quarantined. Of none: everything is held, and we halt."""
        if agent is not None:
            target = self.table.find(agent)
            self.start(self.quarantine(target, reason))
            if target.kind == "context":
                raise AgentKernelPanic(reason, target.id)
            return
        self.journal.put_now(Draft("kernel", Kind.HALT, body=frames.encode_body({"panic": reason})), sync=True)
        self.start(self.hold_all())
        self.halting = True
        raise AgentKernelPanic(reason)

    async def hold_all(self) -> None:
        held = (one.running.freeze() for one in self.table.alive() if one.running)
        await asyncio.gather(*held, return_exceptions=True)

    # The end.

    def _journal_failed(self, error: AgentOSError) -> None:
        """Nothing can be recorded, so nothing may happen."""
        log.critical("the journal failed: %s", error)
        for committed in self._hoping:
            if not committed.done():
                committed.set_exception(error)
        for connection in self.connections:
            connection.fail(error)
        self.start(self.hold_all())

    async def stop(self, grace_s: float = 10.0) -> None:
        """Ask all agents to end, end those that have not after the grace, then be done."""
        if self.halting:
            raise EBUSY("halting", "the kernel is stopping already")
        self.halting = True
        ended = Ended(ExitClass.LOST, -1, "the kernel was stopped")
        for agent in self.table.alive():
            agent.fate = agent.fate or ended  # however it answers to being asked
        await self._ask_to_end(grace_s)
        await asyncio.gather(*(self.end(one, ended) for one in self.table.alive()), return_exceptions=True)
        self.ended.set()

    async def _ask_to_end(self, grace_s: float) -> None:
        """SIGTERM, and a while for it. Who stands still cannot hear it, and without a journal nothing can be sent."""
        hearing = [one for one in self.table.alive() if one.running and one.clock.awake.is_set()]
        if not hearing or grace_s <= 0 or self.journal.failed:
            return
        asked = (self.signals.send(KERNEL, one, AgentSignal.SIGTERM) for one in hearing)
        await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.wait([asyncio.create_task(one.gone.wait()) for one in hearing], timeout=grace_s)

    async def close(self) -> None:
        self.halting = True
        for agent in self.table.alive():
            if agent.running:
                await gone(agent.running)
        for connection in list(self.connections):
            connection.transport.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.vfs.shutdown()
        if self.journal.failed is None:
            await self.journal.record(Draft("kernel", Kind.HALT, body=frames.encode_body({"pid": os.getpid()})))
        await self.journal.close()


def _must_finish(passing: Passing) -> bool:
    """Whether a call has no end but its own, also if its caller dies: a tool that acts outside must not be cut off in
    the middle. A write whose data is still coming has not begun to act."""
    act = passing.act
    return act.way is Way.EFFECT and act.can_stop and not getattr(passing.asked.request, "stream", False)


def _nondeterministic(error: AgentOSError) -> Ended:
    return Ended(ExitClass.NONDETERMINISTIC, -1, error.reason, difference=error.detail)


def _own_ending(agent: Agent, code: int, result: Any = None) -> Ended:
    """How an agent ended that said so itself."""
    words = agent.last_words
    if words is None:
        return Ended(ExitClass.NORMAL if code == 0 else ExitClass.ERROR, code, result=result)
    kind = ExitClass.NORMAL if words.status == 0 else ExitClass.ERROR
    return Ended(kind, words.status, words.failure or "", words.result)
