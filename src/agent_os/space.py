"""The kernel embedded in your program: `KernelSpace`, contexts in process, and the runtime view of it.

The same gate, journal and files as the daemon's, in memory unless a home is given. `create_agent_context` gives *your
own trusted code* a context: same syscalls, no isolation, and the record says so. `spawn` starts an isolated process.
A composition root like `daemon`: it puts kernel, drivers and userland together and decides nothing. A program that
imports these names may never make a kernel, so what only a kernel needs is imported where one is used.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Raw

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EINVAL, EISOLATION, EPERM, ESRCH, AgentKernelPanic, AgentOSError
from agent_os.abi.frames import Welcome
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.abi.syscalls import BY_NUMBER, BY_REQUEST, Body
from agent_os.userland.context import Context
from agent_os.userland.places import Places

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from agent_os.drivers.store import Put
    from agent_os.kernel.goals.goal import PendingGoal
    from agent_os.kernel.journal import Journal
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent, Ended, Row

_HOST = "host"  # who acts, where the program around the kernel does
_decode = msgspec.msgpack.Decoder().decode


class KernelSpace:
    """A kernel of your own. Use it as `async with`, or call `close` at the end; in memory nothing is left anyway."""

    def __init__(self, home: str | os.PathLike[str] | None = None) -> None:
        from agent_os import model_drivers
        from agent_os.drivers.store.memory import MemoryStore
        from agent_os.drivers.store.sqlite import SqliteStore
        from agent_os.kernel.governing import current
        from agent_os.kernel.journal import Draft, Journal
        from agent_os.kernel.kernel import Kernel

        self._home = Path(home).absolute() if home is not None else None
        if self._home:
            self._home.mkdir(mode=0o700, parents=True, exist_ok=True)
        store = SqliteStore(self._home / "journal.db") if self._home else MemoryStore()
        journal, policy = Journal.open(store, home=self._home), current(self._home)
        # There is no door at which a person could answer, so what must be asked about is refused.
        self._kernel = Kernel(store, journal, home=self._home, env=os.environ, policy=policy, anybody=False)
        if sys.platform == "linux":
            from agent_os import builtin_tools  # what they work with needs Linux

            builtin_tools.install(self._kernel)
        self._kernel.models.makes = model_drivers.Drivers(store.blob, self._kernel.authority.labels.written_by)
        about = frames.encode_body({"pid": os.getpid(), "embedded": True})
        self._kernel.journal.put_now(Draft("kernel", Kind.BOOT, body=about), sync=True)
        self._kernel.journal.put_now(self._kernel.governing.at_boot(), sync=True)
        self._contexts: dict[str, AgentContext] = {}
        self._place: TemporaryDirectory[str] | None = None

    def create_agent_context(self, name: str, *, caps: tuple[str, ...] | list[str] = ()) -> "AgentContext":
        """A context for your own code, in this process. It holds what every agent holds, and `caps`."""
        from agent_os.kernel.authority.capability import parse
        from agent_os.kernel.journal import Draft

        kernel = self._kernel
        wanted = [parse(text) for text in caps]
        agent = kernel.table.admit(name, "context", isolation="none")
        kernel.check_admission(agent.id)
        told = frames.encode_body({"kind": "context", "caps": list(caps)})
        draft = Draft(agent.id, Kind.SPAWN, agent.incarnation, isolation="none", body=told)
        stale = kernel.authority.anew(agent.id)  # of a program that ended without a word
        agent.holdings = kernel.authority.holdings(agent.id)
        for one in wanted:
            agent.holdings.grant(one, "operator")
        puts = [*kernel.table.puts(agent), *stale, *kernel.authority.begin(agent.id, None)]
        kernel.journal.put_now(draft, sync=True, puts=puts)
        kernel.furnish(agent)
        agent.become(Incarnation.RUNNING)
        context = self._contexts[agent.id] = AgentContext(kernel, agent)
        return context

    async def spawn(
        self, program: str | list[str] | Mapping[str, Any], *, name: str | None = None, **order: Any
    ) -> str:
        """Start an isolated agent: `FILE.py:NAME` of an `@agent`, or a command. Its name."""
        agent = await (await self._guests()).start(_order(program, order), name=name)
        return agent.name

    async def _guests(self) -> Any:
        if sys.platform != "linux":
            reason = f"{sys.platform} cannot isolate an agent"
            raise EISOLATION("platform", reason, hint="create_agent_context works everywhere; or use a Linux VM")
        if not hasattr(self._kernel, "guests"):
            from tempfile import TemporaryDirectory

            from agent_os.kernel.guests import Guests

            if self._kernel.home is None:  # the record stays in memory; workspaces need a place
                self._place = TemporaryDirectory(prefix="agent-os-", ignore_cleanup_errors=True)
                self._kernel.home = Path(self._place.name).resolve()
            self._kernel.guests = Guests(self._kernel)
        return self._kernel.guests

    async def signal(self, name: str, signal: AgentSignal, value: Any = None) -> bool:
        """As the operator; returns when it is true."""
        from agent_os.kernel.signals import KERNEL

        return await self._kernel.signals.send(KERNEL, self._kernel.table.find_alive(name), signal, value)

    async def wait(self, name: str) -> dict[str, Any]:
        return await self._kernel.wait_for(self._kernel.table.find(name))

    def agents(self) -> "list[Row]":
        from agent_os.kernel.table import shown

        return [shown(agent) for agent in self._kernel.table]

    def panic(self, reason: str, agent: str | None = None) -> None:
        """Quarantines that agent; without one, holds all, signs a head and halts. Raises AgentKernelPanic, which is no
        Exception: nothing catches it by accident."""
        if agent is None:
            for context in self._contexts.values():
                context.shut(AgentKernelPanic(reason))
        else:
            name = self._kernel.table.find(agent).id
            if name in self._contexts:
                self._contexts[name].shut(AgentKernelPanic(reason, name))
        self._kernel.panic(reason, agent)

    @property
    def journal(self) -> "Journal":
        return self._kernel.journal

    async def close(self) -> None:
        if hasattr(self._kernel, "guests"):
            await self._kernel.guests.close()
        await self._kernel.close()
        if self._place:
            self._place.cleanup()

    async def __aenter__(self) -> "KernelSpace":
        await self._kernel.recovery.at_boot()
        self._kernel.scheduler.stir()
        self._kernel.bus.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _order(program: str | list[str] | Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(program, Mapping):
        return {**program, **extra}
    if isinstance(program, str):
        file, _, function = program.partition(":")
        return {"file": file, "function": function or None, "cwd": os.getcwd(), **extra}
    return {"argv": list(program), "cwd": os.getcwd(), **extra}


class AgentContext(Context):
    """A context in this process: the same syscalls as an isolated agent's, through the same gate."""

    def __init__(self, kernel: "Kernel", agent: "Agent") -> None:
        self._line = _InProcess(kernel, agent)
        welcome = Welcome(frames.ABI_MAX, agent.id, agent.incarnation, {})
        super().__init__(self._line, welcome, Places())  # pyright: ignore[reportArgumentType]
        self.signals = ContextSignals(kernel, agent, self._line)

    def shut(self, panic: AgentKernelPanic) -> None:
        self._line.panic = panic


class ContextSignals:
    """Signals to code that cannot be stopped by force: they open and shut its gate. Synchronous, as promised."""

    def __init__(self, kernel: "Kernel", agent: "Agent", line: "_InProcess") -> None:
        self._kernel, self._agent, self._line = kernel, agent, line

    def signal(self, signal: AgentSignal, value: Any = None) -> None:
        from agent_os.drivers.store import Put
        from agent_os.kernel.journal import Draft
        from agent_os.kernel.passing import QUARANTINE
        from agent_os.kernel.table import Ended

        agent, said = self._agent, {"signal": int(signal), "value": value, "sender": "host"}
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")
        draft = Draft(agent.id, Kind.SIGNAL, agent.incarnation, isolation="none", body=frames.encode_body(said))
        self._kernel.journal.put_now(draft, sync=True)
        match signal:
            case AgentSignal.SIGSTOP if agent.life is Incarnation.RUNNING:
                agent.become(Incarnation.SUSPENDED)
                agent.clock.stop()
                self._kernel.bus.freeze(agent.id)
                self._kernel.models.stop(agent.id)
            case AgentSignal.SIGCONT if agent.life is Incarnation.SUSPENDED:
                agent.become(Incarnation.RUNNING)
                agent.clock.go_on()
                self._kernel.bus.thaw(agent.id)
                self._kernel.models.go_on(agent.id)
            case AgentSignal.SIGKILL:
                self._end(Ended(ExitClass.REQUESTED, -1, "killed"))
            case AgentSignal.SIGPOLICY | AgentSignal.SIGTRUST:
                agent.quarantined = True
                agent.holdings.revoke_all()
                why = f"{signal.name}: {value or 'violation'}"
                self._line.panic = AgentKernelPanic(why, agent.id)
                self._end(Ended(ExitClass.POLICY, -1, signal.name), Put(QUARANTINE, agent.id, why.encode()))
            case AgentSignal.SIGSTOP | AgentSignal.SIGCONT:
                pass
            case _:
                if self._line.pushed:
                    self._line.pushed("signal", said)

    def _end(self, ended: "Ended", *puts: "Put") -> None:
        from agent_os.kernel.journal import Draft

        agent = self._agent
        farewell = self._kernel.bonds.farewell(agent, ended)
        self._kernel.models.kill(agent.id)
        goals, goals_left = self._kernel.scheduler.left(agent, ended, again=False)
        agent.exit, agent.life = ended, Incarnation.EXITED
        agent.clock.go_on()
        told = {"class": ended.exit_class, "code": ended.code, "reason": ended.reason, "result": None}
        draft = Draft(agent.id, Kind.EXIT, agent.incarnation, body=frames.encode_body(told))
        mail = self._kernel.bus.buried(agent.id)
        self._kernel.journal.put_now(draft, puts=[*puts, *goals, *mail, *self._kernel.authority.end(agent.id)])
        farewell()
        goals_left()


class _InProcess:
    """Stands where an isolated agent has its wire."""

    def __init__(self, kernel: "Kernel", agent: "Agent") -> None:
        self._kernel, self._agent = kernel, agent
        self.pushed: Callable[[str, Any], Any] | None = None
        self.lost: Callable[..., None] | None = None
        self.panic: AgentKernelPanic | None = None
        agent.line = self

    async def ask(
        self,
        request: Body,
        *,
        cap: int | None = None,
        deadline_ms: int | None = None,
        key: str | None = None,
        pos: str | None = None,
        send: AsyncIterable[Any] | None = None,
        began: Callable[[Any], None] | None = None,
    ) -> Any:
        """One call. Cancelled, a deed that has begun is still recorded."""
        from agent_os.kernel.calls import Asked

        agent, loop = self._agent, asyncio.get_running_loop()
        if not agent.clock.awake.is_set():
            await agent.clock.awake.wait()
        if agent.quarantined and not self.panic:
            from agent_os.kernel.passing import QUARANTINE

            said = self._kernel.store.get(QUARANTINE, agent.id) or b"a violation"
            self.panic = AgentKernelPanic(said.decode(), agent.id)
        if self.panic:
            raise self.panic
        if agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has ended")
        if send is not None:
            request = await _whole(request, send)
        asked = Asked(BY_REQUEST[type(request)].number, frames.encode_body(request), cap=cap, key=key)
        asked.seen = agent.delivered
        if deadline_ms is not None:
            asked.deadline = loop.time() + deadline_ms / 1000
        answered: asyncio.Future[Any] = loop.create_future()

        def answer(body: Raw, error: AgentOSError | None) -> None:
            agent.delivered += 1
            if answered.done():
                return
            if error:
                answered.set_exception(error)
            else:
                answered.set_result(_decode(body))

        passing = self._kernel.enter(agent, asked, answer)
        try:
            return await answered
        except asyncio.CancelledError:
            if passing:
                self._kernel.gate.cancel(passing)
            raise

    def tell(self, request: Body, *, pos: str | None = None) -> None:
        raise EINVAL("context", "a context in your own process ends with it; use its signals to close it")

    async def close(self) -> None: ...

    def listen(self, pushed: Callable[[str, Any], Any], lost: Callable[..., None]) -> None:
        self.pushed, self.lost = pushed, lost

    def push(self, what: str, body: Any) -> None:
        if self.pushed:
            self.pushed(what, body)

    def bye(self, error: AgentOSError) -> None:
        self.panic = AgentKernelPanic(error.reason, self._agent.id)


async def _whole(request: Any, send: AsyncIterable[Any]) -> Any:
    """In one process there is nothing to stream over: the pieces become one value."""
    pieces = [piece async for piece in send]
    empty = "" if pieces and isinstance(pieces[0], str) else b""
    return msgspec.structs.replace(request, data=empty.join(pieces), stream=False)


class AgentRuntime:
    """The runtime of the first design, as a view of a kernel: spawn, pause, resume, terminate, look."""

    def __init__(self, kernel: KernelSpace | None = None) -> None:
        self.kernel = kernel or KernelSpace()

    async def spawn(self, agent_config: str | list[str] | Mapping[str, Any]) -> str:
        """Start an isolated agent; its id. A mapping has `file` or `argv`, and what else an order can have."""
        return await self.kernel.spawn(agent_config)

    async def pause(self, agent_id: str) -> None:
        """Nothing of it moves when this returns."""
        await self.kernel.signal(agent_id, AgentSignal.SIGSTOP)

    async def resume(self, agent_id: str) -> None:
        await self.kernel.signal(agent_id, AgentSignal.SIGCONT)

    async def terminate(self, agent_id: str) -> None:
        """Nothing of it is left when this returns."""
        await self.kernel.signal(agent_id, AgentSignal.SIGKILL)

    def get_status(self, agent_id: str) -> str:
        """pending, running, paused, completed or failed."""
        return self._row(agent_id).state

    def list_agents(self) -> "list[Row]":
        return self.kernel.agents()

    async def wait(self, agent_id: str) -> dict[str, Any]:
        return await self.kernel.wait(agent_id)

    def _row(self, agent_id: str) -> "Row":
        for row in self.kernel.agents():
            if agent_id in (row.name, row.id):
                return row
        raise ESRCH("agent.unknown", f"there is no agent {agent_id!r}")


class Scheduler:
    """The scheduler of the first design, as a view of a kernel: goals are submitted, put in order and looked at."""

    def __init__(self, kernel: KernelSpace) -> None:
        self._goals = kernel._kernel.scheduler  # pyright: ignore[reportPrivateUsage]

    async def submit(self, goal: str | Mapping[str, Any]) -> str:
        """Text, or a mapping with `text`, `agent`, `tenant`, `priority`, `deadline`, `budget`, `memory_mb`, `inputs`.
        The id of the agent that it is for, once the record holds the goal."""
        return (await self._goals.submit(goal, _HOST)).agent

    async def prioritize(self, agent_id: str, priority: str) -> None:
        """Of all goals of an agent, or of one goal by its id: critical, high, normal or low."""
        await self._goals.prioritize(agent_id, priority, _HOST)

    def get_queue(self) -> "list[PendingGoal]":
        """First in order first, each with its agent, why that one, and what it waits for."""
        return self._goals.queue()


class AccessLog(NamedTuple):
    """One line of an agent's record: what it did, was refused or was given."""

    seq: int
    wall_ns: int
    kind: str  # result, intent, outcome, decision, connect, grant, revoke
    call: str  # the syscall; empty where it was none
    handle: int  # of the capability that it rested on; 0: none
    allowed: bool


class CapabilityManager:
    """The capability manager of the first design, as a view of a kernel: grant, revoke, check, audit. It decides about
    capabilities only; whether a rule forbids what somebody holds is the policy's to say."""

    _AUDITED = (Kind.RESULT, Kind.INTENT, Kind.OUTCOME, Kind.DECISION, Kind.CONNECT, Kind.GRANT, Kind.REVOKE)

    def __init__(self, kernel: KernelSpace) -> None:
        self._kernel = kernel._kernel  # pyright: ignore[reportPrivateUsage]

    def grant(self, agent_id: str, capability: str) -> int:
        """As the operator. The token is a number that means something only to this agent."""
        from agent_os.kernel.authority.capability import parse

        agent = self._kernel.table.find_alive(agent_id)
        return self._kernel.authority.grant_now(agent.id, parse(capability), _HOST).id

    async def revoke(self, agent_id: str, capability: str | int) -> None:
        """By its token or its text. When this returns nothing derived from it can be used; what it opened is closed."""
        from agent_os.kernel.authority.capability import parse

        agent = self._kernel.table.find(agent_id)
        wanted = capability if isinstance(capability, int) else parse(capability)
        found = [one for one in agent.holdings if wanted in (one.id, one.capability)]
        if not found:
            raise EPERM("cap.missing", f"{agent.name} holds no capability {capability}")
        await self._kernel.authority.revoke(found, _HOST)

    def check(self, agent_id: str, action: str) -> bool:
        """Whether it may do one thing, written as the capability for exactly that: `file:/data/x:read`."""
        from agent_os.kernel.authority.capability import parse
        from agent_os.kernel.calls import Need

        asked = parse(action)
        target = asked.target.exact or ("*" if asked.kind in ("agent", "shell") else None)
        if target is None:
            raise EINVAL("cap.pattern", f"{action!r} is more than one thing", hint="name one target, without a star")
        agent = self._kernel.table.find(agent_id)
        try:
            agent.holdings.find([Need(asked.kind, one, target) for one in sorted(asked.actions)])
        except (EPERM, EACCES):
            return False
        return True

    def audit(self, agent_id: str) -> list[AccessLog]:
        agent = self._kernel.table.find(agent_id)
        return [
            AccessLog(
                entry.seq,
                entry.wall_ns,
                Kind(entry.kind).name.lower(),
                BY_NUMBER[entry.op].name if entry.op in BY_NUMBER else "",
                entry.handle,
                entry.kind != Kind.DECISION,
            )
            for entry, _ in self._kernel.journal.scan(agent.id)
            if entry.kind in self._AUDITED
        ]
