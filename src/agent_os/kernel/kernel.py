"""The kernel as one object: what its parts share, its doors, and its own end.

`boot.py` puts it together. Every door hands its calls to `enter`; a call of an agent that is being replayed is answered
from the record, any other goes through the gate. What an agent goes through between its first call and its end is in
`lives.py`.
"""

import asyncio
import logging
import os
import select
import socket
import struct
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_os.abi import frames
from agent_os.abi.doors import CLIENT
from agent_os.abi.entries import Entry, Kind, Verdict
from agent_os.abi.errors import EBUSY, EINVAL, EMSGSIZE, EPERM, EPIPE, AgentKernelPanic, AgentOSError
from agent_os.abi.frames import Hello
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.drivers.store import Put, Store
from agent_os.kernel import beneath, opened, recorded, syscalls, viewing
from agent_os.kernel.allowance import ENTRY, Room
from agent_os.kernel.authority.authority import Authority
from agent_os.kernel.authority.policy.layers import Current
from agent_os.kernel.authority.questions import Asker
from agent_os.kernel.authority.redaction import Redactor
from agent_os.kernel.authority.ruling import PolicyStep
from agent_os.kernel.authority.secrets import Safe
from agent_os.kernel.authority.steps import ApprovalStep, BudgetStep, LabelStep
from agent_os.kernel.bus.messaging import Messaging
from agent_os.kernel.calls import Answer, Asked
from agent_os.kernel.checkpoints import Checkpoints
from agent_os.kernel.connection import Connection
from agent_os.kernel.front import Front
from agent_os.kernel.gate import Again, Gate
from agent_os.kernel.goals.scheduler import Scheduler
from agent_os.kernel.governing import Governing
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.lives import Lives
from agent_os.kernel.models.gateway import Gateway
from agent_os.kernel.outside import Outside
from agent_os.kernel.passing import QUARANTINE, RECORD, Passing, Steps, offence
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.recovery import Recovery
from agent_os.kernel.signals import KERNEL, Signals, gone
from agent_os.kernel.supervisor.bonds import Bonds
from agent_os.kernel.supervisor.fleet import Fleet
from agent_os.kernel.supervisor.watching import Watching
from agent_os.kernel.table import Actor, Agent, Caller, Ended, Table, bare
from agent_os.kernel.tokens import Client, Words
from agent_os.kernel.tooling import Tools
from agent_os.kernel.vfs import Vfs

if TYPE_CHECKING:
    from agent_os.kernel.operator import Guests


# Who is at the control socket: the operator, or nobody. Agents can share the operator's uid, so the uid proves
# nothing alone: a peer must also live in our own user namespace, looked at through a descriptor of that very
# process. That is asked of everybody, with a token or without: whoever shows one gets its role, no more.

_SO_PEERPIDFD = 77  # Linux 6.5


def admit(transport_socket: Any, word: str | None, words: Words) -> Actor | Client:
    """Who is behind a connection; EPERM says why it is nobody."""
    with socket.socket(fileno=os.dup(transport_socket.fileno())) as peer:
        pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        if uid != os.geteuid():
            raise EPERM("peer.uid", f"process {pid} of uid {uid} is not the operator of this kernel")
        _require_our_namespace(peer, pid, word)
    return Actor(f"local:{uid}", pid) if word is None else words.admit(word, pid)


def _require_our_namespace(peer: socket.socket, pid: int, word: str | None) -> None:
    """On an older Linux the process can only be looked at by its number, which may be another's by now; there that is
    enough together with a token, and without one nobody is let in."""
    try:
        pidfd = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        if word is None:
            reason = "this Linux cannot show who connected: that needs 6.5"
            raise EPERM("peer.pidfd", reason, hint="AGENT_OS_TOKEN_FILE=FILE shows a token") from None
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as problem:
            raise EPERM("peer.gone", f"process {pid} cannot be looked at: {problem.strerror}") from None
    try:
        with beneath.closing(pidfd):
            theirs, ours = os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            if ended.poll(0):  # then the pid may have been another's while we looked
                raise EPERM("peer.gone", f"process {pid} has ended")
    except OSError as problem:
        raise EPERM("peer.hidden", f"process {pid} cannot be looked at: {problem.strerror}") from None
    if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
        raise EPERM("peer.namespace", f"process {pid} lives in a user namespace of its own, as agents do")


# Sleeping agents: the time stands still while the agent is held, and what is left of a sleep survives a restart.
# Live, only the monotonic clock counts, so a clock that is set back or forth moves nobody. Across a restart there
# is no other clock than the wall's.

_WORTH_REMEMBERING = 0.5  # seconds; a shorter sleep is simply slept again
_LOOK_AGAIN = 30.0


class Sleeps:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._until: dict[tuple[str, str], int] = {}  # from before the restart: (agent, place) → wall time

    def remember(self, entry: Entry, body: bytes | None) -> None:
        """What the record says of a sleep, entry by entry: it began, or it is over."""
        place = (entry.agent, entry.pos or "")
        if entry.kind == Kind.ACCEPT and body is not None:
            self._until[place] = decode_any(body)["until_ns"]
        else:
            self._until.pop(place, None)

    async def sleep(self, agent: Agent, asked: Asked, seconds: float) -> None:
        until = self._until.pop((agent.id, asked.pos or ""), None)
        if until is not None:
            seconds = (until - time.time_ns()) / 1e9
        elif asked.pos is not None and seconds > _WORTH_REMEMBERING:
            self._note(agent, asked, time.time_ns() + int(seconds * 1e9))
        await agent.clock.sleep(seconds)

    async def until(self, agent: Agent, wall_ns: int) -> None:
        """A moment by the wall clock, wherever that clock goes meanwhile."""
        while (left := (wall_ns - time.time_ns()) / 1e9) > 0:
            await asyncio.sleep(min(left, _LOOK_AGAIN))
            await agent.clock.awake.wait()

    def _note(self, agent: Agent, asked: Asked, until_ns: int) -> None:
        draft = Draft(agent.id, Kind.ACCEPT, agent.incarnation, asked.op, pos=asked.pos, seen=asked.seen)
        draft.body = frames.encode_body({"until_ns": until_ns})
        self._journal.put(draft, sync=False)


_EXIT = 8  # a syscall
LONGEST_LOOK = 16 << 10  # bytes
_TURNED_AWAY_S = 1.0  # how long an agent is not heard after each call for which there is no room
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
        idle_exit: float | None = None,
        policy: Current | None = None,
        anybody: bool = True,
    ) -> None:
        self.store, self.journal, self.home, self.env = store, journal, home, dict(env or {})
        self.idle_exit = idle_exit  # seconds after the last agent and client; None: `up` was used, we stay
        self.build = ""  # which code we are of, set by the composition root
        self.started_ns = time.time_ns()
        self.room = Room(home)
        self.authority = Authority(journal, store, policy, anybody=anybody)
        self.approvals, self.budgets = self.authority.approvals, self.authority.budgets
        self.approvals.redact = self._redacted
        self._safe: Safe | None = None
        self.table = Table(store, self.authority.holdings)
        self.vfs = Vfs(store, label=self.authority.labels.of)
        self.vfs.lend_only(partial(opened.rests, self))
        self.authority.shut = partial(opened.shut, self)
        self.tools = Tools(self)
        self.governing = Governing(self)
        self.gate = self._gate()
        self.signals = Signals(self)
        self.bonds = Bonds(self)
        self.sleeps = Sleeps(journal)
        self.checkpoints = Checkpoints(self)
        self.recovery = Recovery(self)
        self.fleet = Fleet(self)
        self.watching = Watching(self)
        self.scheduler = Scheduler(self)
        self.bus = Messaging(self)
        self.models = Gateway(self)
        self.outside = Outside(self)
        self.lives = lives = Lives(self)
        # What everybody asks of a life is asked of the kernel.
        self.adopt, self.furnish, self.greet, self.notice = lives.adopt, lives.furnish, lives.greet, lives.notice
        self.until_live, self.until_started = lives.until_live, lives.until_started
        self.end, self.left, self.left_by_itself = lives.end, lives.left, lives.left_by_itself
        self.wait_for, self.wait_for_child = lives.wait_for, lives.wait_for_child
        self.connections: set[Connection] = set()
        self.tokens = Words(self)
        self.ended = asyncio.Event()
        self.halting = False
        self.front: Front | None = None  # the composition root may give us one
        self.examine: Callable[[], Awaitable[dict[str, Any]]] | None = None  # and a doctor
        self.client_left: Callable[[], None] = lambda: None  # whoever serves the control socket may want to know
        self._dirty: set[Connection] = set()
        self._hoping: set[asyncio.Future[None]] = set()  # for a commit
        self._tasks: set[asyncio.Task[Any]] = set()
        journal.after_group += [self._flush, self.checkpoints.ask]
        journal.on_failure = self._journal_failed

    def _gate(self) -> Gate:
        authority = self.authority
        policies, prepare = authority.policies, partial(syscalls.prepare, self)

        def steps(again: Again) -> Steps:
            return Steps(
                PolicyStep(policies),
                LabelStep(authority.labels, policies.flow, lambda agent: agent.named_hosts),
                BudgetStep(authority.budgets, authority.alarm, authority.nearly),
                ApprovalStep(authority.approvals, again, _asker),
            )

        return Gate(self.journal, self.store, prepare, policies, steps, self._violated)

    def _violated(self, agent: Agent, error: AgentOSError) -> None:
        """A rule forbids what it tried, and the refusal is on disk."""
        if not agent.exit and not agent.quarantined:
            agent.quarantined = True
            self.start(self.signals.send(KERNEL, agent, AgentSignal.SIGPOLICY, offence(error)))

    def _redacted(self, text: str) -> str:
        """What people are shown, without the operator's secrets; where these cannot be opened, not at all."""
        if self.home is None:
            return text
        try:
            masked = Redactor(self.safe.needles())
        except AgentOSError:
            return "(withheld: the secrets cannot be opened)"
        return (masked.feed(text.encode(errors="surrogatepass")) + masked.end()).decode(errors="replace")

    @property
    def safe(self) -> Safe:
        """The operator's secrets, opened when they are first needed."""
        if self.home is None:
            raise EINVAL("home.none", "a kernel without a home keeps no secrets", hint="KernelSpace(home=…)")
        self._safe = self._safe or Safe.of_home(self.home)
        return self._safe

    def lock_safe(self) -> None:
        if self._safe:
            self._safe.lock()

    # Calls.

    def enter(self, caller: Caller, asked: Asked, answer: Answer) -> Passing | None:
        if isinstance(caller, Actor):
            return self._enter_operator(caller, asked, answer)
        replay = self.lives.replays.get(caller.id)
        if caller.watch:
            answer = caller.watch.call(asked, answer, replayed=replay is not None)
        if replay is not None:
            replay.call(asked, answer)
            return None
        caller.allowance.spend(ENTRY)
        if self.room.low() and asked.op != _EXIT:
            self._turn_away(caller, asked, answer)
            return None
        return self.gate.enter(caller, asked, answer)

    def _enter_operator(self, caller: Actor, asked: Asked, answer: Answer) -> Passing | None:
        if caller.role != "operator" and len(asked.raw) > LONGEST_LOOK:  # every question is on the record
            answer(frames.NIL, EMSGSIZE("look.long", f"a question of one who looks has at most {LONGEST_LOOK} bytes"))
            return None
        return self.gate.enter(caller, asked, viewing.veiled(asked, answer) if caller.role == "viewer" else answer)

    def _turn_away(self, agent: Agent, asked: Asked, answer: Answer) -> None:
        """There is no room on the disk, so the call is not begun. That it was refused is on the record, because a
        program that lives again must hear the same again; what it asked is not, because that may be large."""
        error = self.room.refusal()
        agent.allowance.exhaust(_TURNED_AWAY_S)
        body = recorded.body(asked.raw, frames.NIL, error, {})
        draft = Draft(agent.id, Kind.DECISION, agent.incarnation, asked.op, pos=asked.pos, seen=asked.seen, body=body)
        draft.verdict, draft.step, draft.code, draft.isolation = Verdict.REFUSE, RECORD, error.number, agent.isolation
        try:
            self.journal.put(draft, sync=True, done=lambda: answer(frames.NIL, error))
        except AgentOSError as broken:
            answer(frames.NIL, broken)

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
        peer = connection.transport.get_extra_info("socket")
        if hello.token and hello.token.startswith(CLIENT):
            admit(peer, None, self.tokens)  # a pass is for a process of our operator's
            return self.outside.by_pass(hello.token, connection)
        found = admit(peer, hello.token, self.tokens)
        if not isinstance(found, Actor):
            return self.outside.enter(found.name, connection, found.token)
        other = hello.build not in ("", self.build) and found.role == "operator"
        if other and self.idle_exit is not None and self.is_unused:
            self.start(self.stop(0))
            raise EPIPE("halting", "the kernel is idle and of another version than its client")
        return found

    def _operator_left(self, connection: Connection, fault: AgentOSError | None) -> None:
        self.outside.left(connection)
        if isinstance(connection.caller, Actor):
            self.tokens.left(connection.caller)
        if connection.caller:  # else it only looked whether somebody is here
            self.client_left()

    @property
    def is_unused(self) -> bool:
        """No agent lives or will, and no operator is here but those who have said that they are done."""
        callers = (one.caller for one in self.connections)
        return not self.guests.busy and not any(isinstance(one, Actor) and not one.leaving for one in callers)

    @property
    def clients(self) -> int:
        """Operators at our door, and whoever has not said yet who they are."""
        return sum(not isinstance(one.caller, Agent) or one.caller.outside for one in self.connections)

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

    # Who may not run.

    async def quarantine(self, agent: Agent, reason: str) -> None:
        """A violation: the agent is dead, holds nothing, and stays so until an operator releases it."""
        agent.quarantined = True
        stripped, gone = self.authority.strip(agent.id)
        body = frames.encode_body({"quarantined": True, "reason": reason})
        puts = [Put(QUARANTINE, agent.id, reason.encode()), *gone]
        await self.journal.record(Draft(agent.id, Kind.STATE, agent.incarnation, body=body), sync=True, puts=puts)
        try:
            if not agent.exit:
                await self.end(agent, Ended(ExitClass.POLICY, -1, reason))
            else:
                await self.fleet.condemn(agent.id, reason)
        finally:
            await self.authority.closed(stripped, lasting=False)  # mounts went with the process

    async def release(self, agent_id: str, reason: str) -> None:
        body = frames.encode_body({"quarantined": False, "reason": reason})
        await self.journal.record(Draft(agent_id, Kind.STATE, body=body), puts=[Put(QUARANTINE, agent_id, None)])
        for agent in self.table:
            if agent.id == agent_id:
                agent.quarantined = False
        await self.fleet.release(agent_id)

    def check_admission(self, agent_id: str) -> None:
        if reason := self.store.get(QUARANTINE, agent_id):
            hint = f"agentctl release {bare(agent_id)}"
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
        for agent in self._ending():
            agent.fate = agent.fate or ended  # however it answers to being asked
        await self.fleet.shut(grace_s)
        await self._ask_to_end(grace_s)
        await asyncio.gather(*(self.end(one, ended) for one in self._ending()), return_exceptions=True)
        self.ended.set()

    def _ending(self) -> list[Agent]:
        """Who ends with the kernel. A program outside is not ours to end: it comes again."""
        return [one for one in self.table.alive() if not self.outside.keeps(one)]

    async def _ask_to_end(self, grace_s: float) -> None:
        """SIGTERM, and a while for it. Who stands still cannot hear it, and without a journal nothing can be sent."""
        hearing = [one for one in self._ending() if one.running and one.clock.awake.is_set()]
        if not hearing or grace_s <= 0 or self.journal.failed:
            return
        asked = (self.signals.send(KERNEL, one, AgentSignal.SIGTERM) for one in hearing)
        await asyncio.gather(*asked, return_exceptions=True)
        await asyncio.wait([asyncio.create_task(one.gone.wait()) for one in hearing], timeout=grace_s)

    async def close(self) -> None:
        self.halting = True
        for agent in self._ending():
            if agent.running:
                await gone(agent.running)
        for connection in list(self.connections):
            connection.transport.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.vfs.shutdown()
        self.bus.close()
        await self.models.close()
        if self.journal.failed is None:
            draft = Draft("kernel", Kind.HALT, body=frames.encode_body({"pid": os.getpid()}))
            await self.journal.record(
                draft, puts=[*self.authority.close(), *self.models.learned(), *self.tokens.close()]
            )
        await self.journal.close()


def _asker(agent: Agent) -> Asker:
    return Asker(agent.id, agent.program, guest=agent.kind == "guest")
