"""Every agent that has a process: started from an order, followed, and given back to the table when it is gone.

In: an order (`orders.Written` as a map), and perhaps a client's stream. Out: an `Agent` of the table whose `running`
is a `Run` here, and at its end an `Outcome` that was settled: its changes kept, committed or thrown away as ordered.
Owns the launchers. One client can follow an agent over its incarnations.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_os.abi import frames
from agent_os.abi.errors import EINVAL, EPIPE, ESRCH, AgentOSError
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.abi.text import native
from agent_os.drivers.store import Put
from agent_os.kernel import orders, plan, process
from agent_os.kernel.allowance import ENTRY
from agent_os.kernel.authority import capability
from agent_os.kernel.calls import Stream
from agent_os.kernel.outputs import Output
from agent_os.kernel.process import Guest, Outcome
from agent_os.kernel.pumps import Pipes, Pumps
from agent_os.kernel.records import Records
from agent_os.kernel.table import Actor, Agent, AgentKind, Ended, qualified
from agent_os.kernel.workspace import Workspaces, new_name
from agent_os.kernel.workspace.landing import Report
from agent_os.sandbox.spawner import Launcher, SandboxError

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

OWN_WORK = "file:/work/**:read,write,delete"  # what an author's agent may do that an operator starts
log = logging.getLogger("agent_os.guests")
_TO_LEAVE = 2.0  # seconds between an agent's own last word and its end
_RESERVED = "kernel"  # its log would be ours


@dataclass(eq=False)
class Follower:
    """A client at an agent, for as long as the call lasts."""

    stream: Stream
    owner: Actor
    notices: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"])

    def notice(self, text: str) -> None:
        """Told beside the output, and never waited for."""

        async def tell() -> None:
            with suppress(EPIPE):
                await self.stream.send(["notice", text])

        task = asyncio.create_task(tell())
        self.notices.add(task)
        task.add_done_callback(self.notices.discard)


@dataclass(frozen=True)
class Settled:
    """How a run ended, and what became of its changes."""

    outcome: Outcome
    kept: bool  # there is something left to decide about
    report: Report | None = None  # of the commit that was ordered
    note: str = ""  # why something else happened than was ordered


class Run:
    """One incarnation: its process, its streams, its end. What the table knows as `running`."""

    def __init__(self, agent: Agent, guest: Guest, pumps: Pumps) -> None:
        self.agent, self.guest, self._pumps = agent, guest, pumps
        self.task: asyncio.Task[None] | None = None

    async def freeze(self) -> bool:
        return await self.guest.freeze()

    async def thaw(self) -> bool:
        return await self.guest.thaw()

    async def destroy(self) -> int:
        return await self.guest.destroy()

    def host_signal(self, number: int) -> None:
        self.guest.host_signal(number)

    async def finish(self) -> None:
        """It said that it ends; it has a moment to do so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TO_LEAVE):
                await self.guest.process.wait()
        await self.guest.process.kill()

    async def outcome(self) -> Outcome:
        """Everything it wrote is out when this returns. If this is cancelled, it is killed first."""
        try:
            outcome = await self.guest.finish()
            await self._pumps.drained()
            return outcome
        finally:
            await self._pumps.stop()


class Guests:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._starting: asyncio.Task[Launcher] | None = None
        self._followers: dict[str, Follower] = {}  # by id, over incarnations
        self._ends: dict[str, asyncio.Future[Settled]] = {}  # of those that are followed
        self._last: dict[str, tuple[Outcome, orders.Written]] = {}  # of those that may live again
        self._under_way = 0  # starts and ends
        self.on_end: Callable[[], None] = lambda: None

    @property
    def home(self) -> Path:
        if self._kernel.home is None:
            raise EINVAL("home.none", "a kernel without a home starts no processes", hint="KernelSpace(home=…)")
        return self._kernel.home

    @property
    def busy(self) -> bool:
        return self._under_way > 0 or any(agent.kind != "context" for agent in self._kernel.table.alive())

    def of(self, agent: Agent) -> Run:
        if not isinstance(agent.running, Run) or agent.exit:
            raise ESRCH("agent.ended", f"{agent.name} has no process", hint="agentctl ps lists who is running")
        return agent.running

    def owner(self, agent: Agent) -> Actor | None:
        follower = self._followers.get(agent.id)
        return follower.owner if follower else None

    def notice(self, agent: Agent, text: str) -> None:
        """Tell whoever follows an agent what somebody else did to it."""
        if follower := self._followers.get(agent.id):
            follower.notice(text)

    # Start.

    async def start(
        self,
        order: dict[str, Any],
        *,
        name: str | None = None,
        parent: str | None = None,
        caps: Sequence[str] = (),
        input: Any = None,
        follower: Follower | None = None,
    ) -> Agent:
        """A running agent, or an error and nothing left of it. Cancelled: the same. An order that has been carried out
        before continues: the same workspace, and whoever followed follows on."""
        written = orders.read(order)
        here = orders.host_of(written, self.home)
        wanted = _native(orders.parse(written, here), written)
        name = name or written.name or new_name(native(written.file) if written.file else plan.title(wanted.argv))
        again = written.kind != ""
        agent = self._admit(name, "native" if written.file else "guest", parent or written.parent, again)
        given = {"caps": [*caps] or written.caps, "input": written.input if input is None else input}
        agent.order = {**order, **given, "kind": agent.kind, "parent": agent.parent}
        self._endow(agent, given["caps"])
        if follower:
            self._followers[agent.id] = follower
            self._ends[agent.id] = asyncio.get_running_loop().create_future()
        self._under_way += 1
        try:
            await self._spawn(agent, replace(wanted, again=again), here, written)
        except BaseException as problem:
            reason = problem.reason if isinstance(problem, AgentOSError) else "it was given up"
            await self._kernel.left(agent, Ended(ExitClass.ERROR, -1, f"not started: {reason}"))
            if not again:
                self._kernel.table.forget(agent)
            await self.give_up(agent)
            raise
        finally:
            self._under_way -= 1
            if agent.exit:
                self.on_end()
        return agent

    def _admit(self, name: str, kind: AgentKind, parent: str | None, again: bool) -> Agent:
        if name == _RESERVED:
            raise EINVAL("agent.name", f"{name!r} is ours", hint="choose another name")
        if not again:
            Workspaces(self.home).require_free(name)
        self._kernel.check_admission(qualified(name))
        return self._kernel.table.admit(name, kind, parent=parent)

    def _endow(self, agent: Agent, caps: Sequence[str]) -> None:
        for text in caps:
            agent.holdings.grant(capability.parse(text), "spawn")
        if agent.kind == "native" and agent.parent is None:
            agent.holdings.grant(capability.parse(OWN_WORK), "operator")

    async def give_up(self, agent: Agent) -> None:
        """It will not start any more. If an earlier life of it did, that is how it ended."""
        if last := self._last.pop(agent.id, None):
            await self._settle(agent, *last)
        self._followers.pop(agent.id, None)
        self._ends.pop(agent.id, None)

    async def _spawn(self, agent: Agent, wanted: plan.Order, here: plan.Host, written: orders.Written) -> None:
        kernel, follower = self._kernel, self._followers.get(agent.id)
        stored = Put("agents", agent.id, frames.encode_body(agent.order))
        records = Records(kernel.journal, agent.incarnation, (*kernel.table.puts(agent), stored))
        pipes = Pipes(plain=wanted.tty is None, fed=follower is not None)
        ours, theirs = socket.socketpair() if agent.kind == "native" else (None, None)
        try:
            launcher = await self._launcher(wanted, records, agent.name)
            fd = theirs.fileno() if theirs else None
            guest = await process.start(wanted, pipes.theirs, here, launcher, records, agent.name, fd)
        except BaseException:
            pipes.give_up()
            if ours:
                ours.close()
            raise
        finally:
            if theirs:
                theirs.close()
        pipes.started()
        if guest.process.terminal is not None:
            pipes.attach(guest.process.terminal)
        self._run(agent, guest, pipes, written)
        if ours:
            ours.setblocking(False)
            kernel.start(kernel.adopt(agent, ours, guest.process.workspace))

    def _run(self, agent: Agent, guest: Guest, pipes: Pipes, written: orders.Written) -> None:
        follower = self._followers.get(agent.id)
        guest.notice = lambda text: self.notice(agent, text)
        guest.before_connecting = lambda: self._allow_connection(agent)
        output = Output(self.home, agent.name)
        kill = guest.strike if guest.order.tty else None  # the second Ctrl-C at its terminal, without any reaction
        pumps = Pumps(pipes, output, follower.stream if follower else None, kill)
        agent.isolation = guest.process.ready.level
        agent.running = run = Run(agent, guest, pumps)
        agent.become(Incarnation.RUNNING)
        pumps.start()
        run.task = self._kernel.start(self._live(run, output, written))

    async def _allow_connection(self, agent: Agent) -> None:
        """A connection takes two entries of the journal. Whoever has written its share waits; without room, none."""
        await asyncio.sleep(agent.allowance.spend(2 * ENTRY))
        if self._kernel.room.low():
            raise self._kernel.room.refusal()

    async def _launcher(self, wanted: plan.Order, records: Records, name: str) -> Launcher:
        """One for all: started when it is first needed, and by itself again when it has died."""
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.create_task(Launcher.start())
        try:
            return await asyncio.shield(self._starting)
        except SandboxError as problem:
            error = process.explain(problem, wanted)
            records.after(name, "refused", error=str(error))
            raise error from problem

    async def rehearse(self, order: dict[str, Any], agent_id: str) -> tuple[Guest, socket.socket]:
        """The program of an order once more, for a replay that must change nothing: no row in the table, no network, no
        output, and a workspace whose changes go nowhere. Whoever asked finishes it. Its socket is given as well."""
        plain = [native(mount).removeprefix("rw:") for mount in order.get("mounts", ())]
        work = order.get("workspace")
        apart = {"mounts": plain, "net": [], "name": None, "after": "keep", "snapshot": None, "allow_protected": False}
        apart["workspace"] = native(work).removeprefix("bind:") if work is not None else None
        written = orders.read({**order, **apart})
        here = orders.host_of(written, self.home)
        wanted = _native(orders.parse(written, here), written)
        name = new_name(f"replay-{agent_id.rpartition('/')[2]}")
        records = Records(self._kernel.journal)
        launcher = await self._launcher(wanted, records, name)
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        ours, theirs = socket.socketpair()
        try:
            streams = (nothing, nothing, nothing)
            guest = await process.start(wanted, streams, here, launcher, records, name, theirs.fileno())
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            os.close(nothing)
        return guest, ours

    # The end.

    async def _live(self, run: Run, output: Output, written: orders.Written) -> None:
        agent = run.agent
        self._under_way += 1
        try:
            outcome = await run.outcome()
            self._last[agent.id] = (outcome, written)
            try:
                await self._kernel.left(agent, _ending(outcome))
            except AgentOSError as error:  # the journal has failed; whoever follows must hear of the end all the same
                log.error("the end of %s is not recorded: %s", agent.name, error)
            await asyncio.sleep(0)  # if it is to live again, it does now
            if self._newest(agent) is agent:
                self._last.pop(agent.id, None)
                await self._settle(agent, outcome, written)
        finally:
            output.close()
            self._under_way -= 1
            self.on_end()

    def _newest(self, agent: Agent) -> Agent | None:
        """The row of its id, which may be of a later life by now."""
        return next((one for one in self._kernel.table if one.id == agent.id), None)

    async def _settle(self, agent: Agent, outcome: Outcome, written: orders.Written) -> None:
        settled = await asyncio.to_thread(settle, outcome, written)
        if (end := self._ends.get(agent.id)) and not end.done():
            end.set_result(settled)

    async def end_of(self, agent: Agent) -> Settled:
        """How an agent ended that the caller follows."""
        end = self._ends[agent.id]
        try:
            return await asyncio.shield(end)
        finally:
            if end.done():
                self._followers.pop(agent.id, None)
                self._ends.pop(agent.id, None)

    async def abandon(self, agent: Agent) -> None:
        """Whoever ran it in the foreground is gone: so is it, when this returns."""
        self._followers.pop(agent.id, None)
        end = self._ends.pop(agent.id, None)
        newest = self._newest(agent)
        if newest and not newest.exit:
            run = newest.running if isinstance(newest.running, Run) else None  # None: between two lives
            if run:
                run.guest.interrupted()
            with suppress(AgentOSError):
                await self._kernel.end(newest, Ended(ExitClass.REQUESTED, -1, "its client left"))
            if run:
                await run.destroy()
            if run and run.task:
                await asyncio.wait([run.task])
        if end:
            end.cancel()

    async def close(self) -> None:
        """Everything that runs is ended, and does not live again; the launcher goes."""
        self._kernel.halting = True
        runs = [one.running for one in self._kernel.table if isinstance(one.running, Run)]
        for run in runs:
            if not run.agent.exit:
                await run.destroy()
        await asyncio.gather(*(run.task for run in runs if run.task), return_exceptions=True)
        if self._starting:
            with suppress(SandboxError):
                await (await self._starting).close()


def settle(outcome: Outcome, written: orders.Written) -> Settled:
    """Do with the changes what was ordered. Never raises for a workspace's sake: what cannot be done is kept."""
    workspace = outcome.workspace
    if workspace is None:
        return Settled(outcome, kept=False)
    try:
        if written.snapshot:
            return Settled(replace(outcome, workspace=workspace.keep_as(written.snapshot)), kept=True)
        if not outcome.changes or written.after == "discard":
            workspace.discard()
            return Settled(outcome, kept=False)
        if written.after == "commit" and not outcome.code:
            report = workspace.commit(allow_protected=written.allow_protected)
            if report.complete:
                workspace.discard()
            return Settled(outcome, kept=False, report=report)
    except AgentOSError as error:
        return Settled(outcome, kept=True, note=f"the state is kept as {outcome.name}, because {error.reason}")
    ended = f"nothing was committed, because it ended {outcome.code}" if written.after == "commit" else ""
    return Settled(outcome, kept=True, note=ended)


def _ending(outcome: Outcome) -> Ended:
    match outcome.ending:
        case "exited" if outcome.code == 0:
            return Ended(ExitClass.NORMAL, 0)
        case "exited" if outcome.code > 128:
            return Ended(ExitClass.SIGNAL, 128 - outcome.code, f"ended by signal {outcome.code - 128} of the host")
        case "exited":
            return Ended(ExitClass.ERROR, outcome.code, f"ended {outcome.code}")
        case "interrupted" | "killed":
            return Ended(ExitClass.REQUESTED, -1, outcome.ending)
        case "timeout":
            return Ended(ExitClass.TIMEOUT, -1, "its time was over")
        case "memory":
            return Ended(ExitClass.OOM, -1, "it used more memory than its limit")
        case "launcher":
            return Ended(ExitClass.LOST, -1, "the launcher ended")
        case "disk" | "tmp":
            return Ended(ExitClass.ERROR, -1, f"it outgrew its limit of {outcome.ending}")


# Our package is loaded by its place: an agent may not list the folder around it, so Python would not find it there.
BOOT = """
import sys, importlib.util as util
place = sys.argv.pop(1)
if util.find_spec("agent_os") is None:
    spec = util.spec_from_file_location("agent_os", f"{place}/__init__.py", submodule_search_locations=[place])
    sys.modules["agent_os"] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["agent_os"])
from agent_os.userland import native
sys.exit(native.run(sys.argv[1:]))
"""
_PACKAGE = Path(__file__).resolve().parent.parent


def _native(wanted: plan.Order, written: orders.Written) -> plan.Order:
    """An author's agent runs under their own interpreter, with our package beside what that has."""
    if written.file is None:
        return wanted
    if written.tty:
        raise EINVAL("tty.native", "an @agent has no terminal: its output is plain", hint="agentctl run -T FILE.py")
    file = Path(native(written.file))
    places = [*([wanted.project] if wanted.project else []), *(mount.source for mount in wanted.mounts)]
    if not file.is_file() or not any(file.resolve().is_relative_to(place) for place in places):
        hint = f"--mount {file.parent}, or change to its directory"
        raise EINVAL("file.outside", f"{file} is not there, or outside of what the agent will see", hint=hint)
    argv = (native(written.python), "-c", BOOT, str(_PACKAGE), f"{native(written.file)}:{written.function}")
    return replace(wanted, argv=(*argv, *wanted.argv), socket=True, shown=(_PACKAGE,))
