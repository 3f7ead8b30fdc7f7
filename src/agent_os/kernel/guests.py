"""Every agent that has a process: started from an order, followed, and given back to the table when it is gone.

In: an order (`orders.Written` as a map), and perhaps a client's stream. Out: an `Agent` of the table whose `running`
is a `Run`, and at its end an `Outcome` that was settled: its changes kept, committed or thrown away as ordered.
Owns the launchers. One client can follow an agent over its incarnations.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.errors import EBUSY, EINVAL, EISOLATION, ESRCH, AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.abi.text import native
from agent_os.drivers.store import Put
from agent_os.kernel import endowment, orders, plan, process, programs, safe
from agent_os.kernel.allowance import ENTRY
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.answers import Approval
from agent_os.kernel.authority.ruling import Tried
from agent_os.kernel.egress.naming import granted as net_granted
from agent_os.kernel.egress.naming import named, require_endpoint
from agent_os.kernel.models import doors as model_doors
from agent_os.kernel.opened import Mounted
from agent_os.kernel.outputs import Output
from agent_os.kernel.outward import Outward
from agent_os.kernel.process import Guest, Outcome
from agent_os.kernel.pumps import Pipes, Pumps
from agent_os.kernel.records import Records
from agent_os.kernel.running import Follower, Run
from agent_os.kernel.settling import Settled, ending, settle
from agent_os.kernel.table import OURS, Actor, Agent, AgentKind, Ended, as_file, bare, qualified
from agent_os.kernel.workspace import Workspaces, new_name, new_names
from agent_os.sandbox.spawner import Launcher, SandboxError

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

log = logging.getLogger("agent_os.guests")
_OVERTAKEN = "policy.changed"
_MOST_MISSED = 3
Joined = Callable[[int, int], None]  # takes the other ends of its standard output and input


class Guests:
    def __init__(self, kernel: "Kernel", launcher: Launcher | None = None) -> None:
        self._kernel = kernel
        self._starting = asyncio.create_task(launcher.ready()) if launcher else None
        self._followers: dict[str, Follower] = {}  # by id, over incarnations
        self._ends: dict[str, asyncio.Future[Settled]] = {}  # of those that are followed
        self._last: dict[str, tuple[Outcome, orders.Written]] = {}  # of those that may live again
        self._joined: dict[str, Joined] = {}  # whose streams are somebody else's, as long as they live
        self._under_way = 0  # starts and ends
        self.on_end: Callable[[], None] = lambda: None
        kernel.authority.told = self._asked
        kernel.authority.policies.told = self._tried

    @property
    def home(self) -> Path:
        if self._kernel.home is None:
            raise EINVAL("home.none", "a kernel without a home starts no processes", hint="KernelSpace(home=…)")
        return self._kernel.home

    @property
    def busy(self) -> bool:
        alive = any(one.kind != "context" and one.id not in self._joined for one in self._kernel.table.alive())
        return self._under_way > 0 or alive or self._kernel.fleet.busy or self._kernel.scheduler.busy

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

    def _asked(self, approval: Approval) -> None:
        if follower := self._followers.get(approval.agent):
            follower.hear(approval)

    def _tried(self, agent: Agent, tried: Tried) -> None:
        """A rule in shadow mode would have refused: whoever follows the agent, or one above it, hears of that at the
        end. What it starts is bound by the same rules."""
        row: Agent | None = agent
        while row and row.id not in self._followers:
            row = self._kernel.table.row(row.parent) if row.parent else None
        if row:
            self._followers[row.id].would(tried)

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
        joined: Joined | None = None,
        lived: bool | None = None,
        anew: bool = False,
        puts: Sequence[Put] = (),
        place: Callable[[], None] = lambda: None,
        confirm: Callable[[], None] = lambda: None,
    ) -> Agent:
        """A running agent, or an error and nothing left of it. Cancelled: the same. An order that has been carried out
        before continues: the same workspace, and whoever followed follows on. `joined`: it serves somebody, who gets
        its output and input; it keeps no kernel up. `lived`: whether it was carried out, if the order does not tell;
        `anew`: it is given something else than before; `puts`: what the store must hold with it. Whoever wants it may
        raise an error, with nothing awaited between that and what it is asked about: that it gets a row, that its
        process is made."""
        kernel, written = self._kernel, orders.read(order)
        if written.shadow and (joined or parent or written.parent or written.manifest):
            raise EINVAL("order.shadow", "rules are tried out in a run of a person's own", hint="agentctl run --shadow")
        here = orders.host_of(written, self.home)
        parsed = orders.parse(written, here)
        wanted = programs.order(parsed, written)
        kernel.fleet.folder.require_elsewhere(wanted.written)
        title = native(written.file) if written.file else plan.title(wanted.argv)
        name = name or written.name or kernel.table.unused(new_names(title))
        again = written.kind != "" if lived is None else lived
        held = again and not anew
        pinned = orders.pinned(order, parsed)
        if held or lived is not None or parent:  # else it is an operator's, and says where for the first time
            orders.require_unmoved(order, pinned)
        given = {"caps": [*caps] or written.caps, "input": written.input if input is None else input}
        granted = [] if held else [require_endpoint(capability.parse(text)) for text in given["caps"]]
        doors = await asyncio.to_thread(safe.routes, kernel.safe, written.secrets, name) if written.secrets else ()
        models = model_doors.granted(kernel.models.catalogue, written.models)
        program = await asyncio.to_thread(programs.digest, parsed, written, given["caps"]) if written.file else ""
        if joined is None and kernel.tools.servers:
            kernel.tools.servers.require_no_server(name)
        place()
        agent = self._admit(name, "native" if written.file else "guest", parent or written.parent, again)
        agent.order = {**pinned, **given, "kind": agent.kind, "parent": agent.parent}
        agent.program = program
        agent.named_hosts = named(wanted.net, doors)
        if not held and agent.parent is None:
            granted += [*net_granted(wanted.net, doors), *models]
        if follower:
            self._followers[agent.id] = follower
            self._ends[agent.id] = asyncio.get_running_loop().create_future()
        if joined:
            self._joined[agent.id] = joined
        self._under_way += 1
        mounted: Sequence[Mounted] = ()
        try:
            if not held:
                puts = [*puts, *endowment.endow(kernel.authority, agent, granted, wanted, written.budget)]
            kernel.authority.live(agent.id, written.spawned)
            life = endowment.begin(agent, parsed, kernel.end)
            mounted = life.mounted
            wanted = replace(programs.order_in_what_is_left(life.order, parsed, written), again=again, routes=doors)
            wanted = replace(wanted, models=model_doors.told(kernel, agent.id))
            wanted = await asyncio.to_thread(plan.complete, wanted, here)
            puts = [*puts, *endowment.surround(kernel.authority, agent, wanted)]
            await kernel.governing.begin(agent, wanted.project, again=held)
            for tried in await asyncio.to_thread(kernel.governing.would_cover, agent, wanted):
                self._tried(agent, tried)
            wanted = kernel.watching.shaped(agent, wanted)
            run = await self._spawn_covered(agent, wanted, here, written, puts, confirm)
            run.mounted = mounted
        except BaseException as problem:
            for one in mounted:
                one.ended()
            await self._not_started(agent, problem, again)
            raise
        finally:
            self._under_way -= 1
            if agent.exit:
                self.on_end()
        return agent

    async def _not_started(self, agent: Agent, problem: BaseException, again: bool) -> None:
        reason = problem.reason if isinstance(problem, AgentOSError) else "it was given up"
        told = f"not started{' again' if again else ''}: {reason}"
        if again:
            self.notice(agent, told)
        self._kernel.fleet.not_started(agent, problem)
        await self._kernel.left(agent, Ended(ExitClass.ERROR, -1, told))
        if not again:
            self._kernel.table.forget(agent)
        self._joined.pop(agent.id, None)
        await self.give_up(agent.id)

    def _admit(self, name: str, kind: AgentKind, parent: str | None, again: bool) -> Agent:
        if bare(qualified(name)) in OURS:
            raise EINVAL("agent.name", f"{name!r} is ours", hint="choose another name")
        self._kernel.check_admission(qualified(name))
        self._kernel.fleet.require_own(qualified(name))
        if not again:
            Workspaces(self.home).require_free(as_file(name))
        return self._kernel.table.admit(name, kind, parent=parent)

    async def _spawn_covered(
        self,
        agent: Agent,
        wanted: plan.Order,
        here: plan.Host,
        written: orders.Written,
        puts: Sequence[Put],
        confirm: Callable[[], None],
    ) -> Run:
        """Under the rules that are in force when its process is made. Those that come just then find it in the table,
        perhaps without a process, so they are looked at after that."""
        kernel, policies = self._kernel, self._kernel.authority.policies

        def still(version: int) -> None:
            confirm()
            if version != policies.version:
                raise EBUSY(_OVERTAKEN, "the rules changed while it was being started")

        missed = 0  # what it is to see changed between our look and its mounts
        while True:
            version = policies.version
            covered = await self._covered(agent.id, wanted)
            try:
                run = await self._spawn(agent, covered, here, written, puts, partial(still, version))
            except EISOLATION as problem:
                missed += 1
                if problem.detail.get("errno") != errno.ESTALE or missed == _MOST_MISSED:
                    raise
                continue
            except EBUSY as problem:
                if problem.code != _OVERTAKEN:
                    raise
                puts = [*puts, *endowment.surround(kernel.authority, agent, wanted)]
                continue
            if version != policies.version:
                kernel.start(kernel.governing.look_again(agent, covered))
            return run

    async def _covered(self, agent_id: str, wanted: plan.Order) -> plan.Order:
        """The order, with all that rules forbid it to see covered. EINVAL: that is too much."""
        covers = await asyncio.to_thread(self._kernel.governing.covers, agent_id, wanted)
        return replace(wanted, covers=covers)

    async def give_up(self, agent_id: str) -> None:
        """It will not start any more. If an earlier life of it did, that is how it ended."""
        if last := self._last.pop(agent_id, None):
            await self._settle(agent_id, *last)
        self._followers.pop(agent_id, None)
        self._ends.pop(agent_id, None)

    async def _spawn(
        self,
        agent: Agent,
        wanted: plan.Order,
        here: plan.Host,
        written: orders.Written,
        puts: Sequence[Put],
        confirm: Callable[[], None],
    ) -> Run:
        kernel, fed = self._kernel, agent.id in self._followers or agent.id in self._joined
        stored = Put("agents", agent.id, frames.encode_body(agent.order))
        records = Records(kernel.journal, agent.incarnation, (*kernel.table.puts(agent), *puts, stored))
        pipes = Pipes(plain=wanted.tty is None, fed=fed)
        ours, theirs = socket.socketpair() if agent.kind == "native" else (None, None)
        try:
            name = as_file(agent.id)
            launcher = await self._launcher(wanted, records, name)
            fd = theirs.fileno() if theirs else None
            guest = await process.start(wanted, pipes.theirs, here, launcher, records, name, fd, confirm)
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
        run = self._run(agent, guest, pipes, written)
        if ours:
            ours.setblocking(False)
            kernel.vfs.root(agent.id).call_work(str(wanted.project or ""))
            kernel.start(kernel.adopt(agent, ours, guest.process.workspace))
        return run

    def _run(self, agent: Agent, guest: Guest, pipes: Pipes, written: orders.Written) -> Run:
        follower = self._followers.get(agent.id)
        guest.notice = lambda text: self.notice(agent, text)
        guest.asking = asking = Outward(self._kernel, agent)
        secrets = safe.doors(self._kernel, agent, guest.order.routes, asking)
        guest.doors = model_doors.door(self._kernel, agent, secrets)
        guest.before_connecting = lambda: self._allow_connection(agent)
        output = Output(self.home, as_file(agent.id))
        kill = guest.strike if guest.order.tty else None  # the second Ctrl-C at its terminal, without any reaction
        pumps = Pumps(pipes, output, follower.stream if follower else None, kill)
        agent.isolation = guest.process.ready.level
        agent.running = run = Run(agent, guest, pumps, output)
        if joined := self._joined.get(agent.id):
            joined(pipes.take_reading(1), pipes.take_writing())
        self._kernel.watching.begin(agent, run)  # it runs, or once it is ready
        pumps.start()
        run.task = self._kernel.start(self._live(run, written))
        return run

    async def _allow_connection(self, agent: Agent) -> None:
        """A connection takes two entries of the journal. Whoever has written its share waits; without room, none."""
        await asyncio.sleep(agent.allowance.spend(2 * ENTRY))
        if self._kernel.room.low():
            raise self._kernel.room.refusal()

    async def launcher(self) -> Launcher:
        """One for all: started when it is first needed, and by itself again when it has died."""
        if self._starting is None or (self._starting.done() and self._starting.exception()):
            self._starting = asyncio.create_task(Launcher.start())
        return await asyncio.shield(self._starting)

    async def _launcher(self, wanted: plan.Order, records: Records, name: str) -> Launcher:
        try:
            return await self.launcher()
        except SandboxError as problem:
            error = process.explain(problem, wanted)
            records.after(name, "refused", error=str(error))
            raise error from problem

    async def rehearse(self, order: dict[str, Any], agent_id: str) -> tuple[Guest, socket.socket]:
        """The program of an order once more, for a replay that must change nothing: no row in the table, no network, no
        output, and a workspace whose changes go nowhere. Whoever asked finishes it. Its socket is given as well."""
        plain = [native(mount).removeprefix("rw:") for mount in order.get("mounts", ())]
        work = order.get("workspace")
        apart = {
            "mounts": plain,
            "net": [],
            "secrets": [],
            "models": [],
            "name": None,
            "after": "keep",
            "snapshot": None,
            "allow_protected": False,
        }
        apart["workspace"] = native(work).removeprefix("bind:") if work is not None else None
        written = orders.read({**order, **apart})
        here = orders.host_of(written, self.home)
        wanted = plan.complete(programs.order(orders.parse(written, here), written), here)
        wanted = await self._covered(agent_id, wanted)
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

    async def _live(self, run: Run, written: orders.Written) -> None:
        agent = run.agent
        counts = agent.id not in self._joined
        self._under_way += counts
        try:
            outcome = await run.outcome()
            self._kernel.watching.end(agent)
            for one in run.mounted:
                one.ended()
            self._last[agent.id] = (outcome, written)
            try:
                await self._kernel.left(agent, ending(outcome))
            except AgentOSError as error:  # the journal has failed; whoever follows must hear of the end all the same
                log.error("the end of %s is not recorded: %s", agent.name, error)
            await asyncio.sleep(0)  # if it is to live again, it does now
            if self._kernel.table.row(agent.id) is agent and not agent.lasting:
                self._last.pop(agent.id, None)
                await self._settle(agent.id, outcome, written)
        finally:
            self._kernel.watching.end(agent)
            run.output.close()
            self._joined.pop(agent.id, None)
            self._under_way -= counts
            self.on_end()

    async def _settle(self, agent_id: str, outcome: Outcome, written: orders.Written) -> None:
        try:
            if outcome.workspace and written.after == "commit":
                await endowment.commit(self._kernel.authority, outcome.workspace)
            settled = await asyncio.to_thread(settle, outcome, written, self._kernel.governing.judge)
        except AgentOSError as error:  # the journal has failed
            settled = Settled(outcome, kept=True, note=f"the state is kept as {outcome.name}, because {error.reason}")
        if (end := self._ends.get(agent_id)) and not end.done():
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
        newest = self._kernel.table.row(agent.id)
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
        await self._kernel.fleet.closed()
        runs = [one.running for one in self._kernel.table if isinstance(one.running, Run)]
        for run in runs:
            if not run.agent.exit:
                await run.destroy()
        await asyncio.gather(*(run.task for run in runs if run.task), return_exceptions=True)
        await self._kernel.tools.close()
        if self._starting:
            with suppress(SandboxError):
                await (await self._starting).close()
