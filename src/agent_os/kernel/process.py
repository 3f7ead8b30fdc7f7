"""One guest from plan to outcome: record what it may see, start it, watch it, account for it.

Goes in: an `Order` (what the operator asked for, parsed) and three streams. Comes out: an `Outcome`. Owns the guest's
workspace, proxy, uid and cgroup while it runs; on every way out nothing of them is left but what the operator may keep.
"""

import asyncio
import dataclasses
import errno
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import EACCES, EINVAL, EISOLATION, ENOENT, ESRCH, ETIMEDOUT, AgentOSError
from agent_os.kernel import guest, members, programs
from agent_os.kernel.egress import Connection, Egress
from agent_os.kernel.egress.asking import Asking
from agent_os.kernel.egress.attempt import Leave
from agent_os.kernel.egress.visit import Doors
from agent_os.kernel.guest import disk
from agent_os.kernel.guest.filling import Pace, Place, filling
from agent_os.kernel.guest.scratch import scratch
from agent_os.kernel.members import Member
from agent_os.kernel.plan import Host, Order, Plan, loopback_doors, plan, title
from agent_os.kernel.records import Records
from agent_os.kernel.workspace import Workspace, Workspaces, new_name
from agent_os.kernel.workspace.changes import Change
from agent_os.sandbox import cgroup, limits
from agent_os.sandbox.beside import Command
from agent_os.sandbox.spawner import Launcher, Process, SandboxError, lease_uid
from agent_os.sandbox.spec import Cover, Limits, SpawnSpec

# Holds one agent still and lets it go on, and keeps the clock that runs only while it does. By its cgroup where
# there is one that can freeze, else by signals to every process. `pause` and `resume` return when it is so. Knows
# nothing of who asked or why.


class Freezer:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._init = members.pid_of(process.pidfd)
        self._turning = asyncio.Lock()
        self._awake = asyncio.Event()
        self._awake.set()
        self._since = time.monotonic()  # of the present state
        self._active = 0.0
        self._stopped: list[members.Member] | None = None  # by signals; None: the cgroup did it

    @property
    def paused(self) -> bool:
        return not self._awake.is_set()

    @property
    def active(self) -> float:
        """Seconds the agent has run, without those in which it was held."""
        return self._active + (0 if self.paused else time.monotonic() - self._since)

    async def pause(self) -> bool:
        """Nothing of the agent moves when this returns; whether anything did before. ESRCH: it has ended. ETIMEDOUT: it
        could not be held, and runs on. Cancelled, it may stay held: whoever cancels this is about to end the agent."""
        async with self._turning:
            if self.paused:
                return False
            await self._hold()
            return True

    async def resume(self) -> bool:
        """Whether it had been held."""
        async with self._turning:
            if not self.paused:
                return False
            await self._let_go()
            return True

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Still for the length of a block, whatever others ask for meanwhile; afterwards as it was."""
        async with self._turning:
            was_paused = self.paused
            if not was_paused:
                await self._hold()
            try:
                yield
            finally:
                if not was_paused:
                    await self._let_go()

    async def _hold(self) -> None:
        self._stopped = None
        frozen = await self._process.freeze(True)
        if self._process.exited.done():  # its number may be somebody else's by now
            raise ESRCH("agent.ended", "it has ended")
        if not frozen:
            await self._process.freeze(False)
            self._stopped = await asyncio.to_thread(members.stop, self._init or 0)
            if self._stopped is None:
                hint = "agentctl kill ends it all the same"
                raise ETIMEDOUT("pause.escaped", "it makes processes faster than they can be stopped", hint=hint)
        self._active, self._since = self.active, time.monotonic()
        self._awake.clear()

    async def _let_go(self) -> None:
        if self._stopped is None:
            await self._process.freeze(False)
        else:
            await asyncio.to_thread(members.resume, self._stopped)
        self._since = time.monotonic()
        self._awake.set()

    async def until_active(self, seconds: float) -> None:
        """Sleep until the agent has run so long."""
        while (left := seconds - self.active) > 0:
            await asyncio.sleep(left)
            await self._awake.wait()


Ending = Literal["exited", "timeout", "interrupted", "killed", "disk", "tmp", "memory", "launcher"]
State = Literal["running", "paused", "ended"]
Streams = tuple[int, int, int]
_T = TypeVar("_T")
_MB = 1 << 20
_KILLED = 128 + 9  # as shells tell it
_NOT_MADE = ("net.resolve", "net.dial")  # codes of connections that were allowed, and came to nothing
_MOST_FAILURES = 100  # told apart at the end
_MOST_REFUSALS, _MOST_TARGETS = 10_000, 1_000  # of connections: written one by one, and told apart at the end


class Refusal(Struct, frozen=True):
    what: str
    times: int
    allow: str | None  # the flag that would allow it; None where nothing would


class Status(Struct, frozen=True):
    """A guest at this moment."""

    name: str
    state: State
    level: str
    limits: str  # what enforces them: the column of docs/sandbox.md
    pid: int | None  # of its pid 1, on this host
    kernel: int  # pid of the process that holds it
    processes: int
    memory: int  # bytes of its own where a cgroup counts; else resident, with shared pages once for each process
    age: float  # seconds
    command: tuple[str, ...]
    project: str | None


class Outcome(Struct, frozen=True):
    name: str
    code: int
    ending: Ending
    level: str
    limits: Limits
    seconds: float
    refusals: tuple[Refusal, ...]
    failures: tuple[tuple[str, int], ...]  # connections that were allowed and not made: what, and how often
    notes: tuple[str, ...]  # what the guest may have missed, and how to give it
    workspace: Workspace | None
    changes: tuple[Change, ...]
    unread: str = ""  # why nobody knows its changes


def status_of(ending: Ending, code: int) -> int:
    """Whoever was ended did not succeed, also if it came to its own end in that moment."""
    return {"exited": code, "timeout": 124, "interrupted": 130}.get(ending, code or _KILLED)


class Guest:
    """A running guest. `finish` waits for its end and gives everything back."""

    def __init__(self, plan: Plan, order: Order, records: Records, process: Process, places: "_Places") -> None:
        self.name, self.order, self.process, self.workspace = plan.spec.spawn_id, order, process, places.workspace
        self._places = places
        self.notes = plan.notes
        self.watched = plan.watched
        self._records = records
        self._refused: Counter[tuple[str, str | None]] = Counter()
        self._failed: Counter[str] = Counter()
        self._refusals = 0
        self._ending: Ending = "exited"
        self._began = time.monotonic()
        self._freezer = Freezer(process)
        self.notice: Callable[[str], None] = lambda line: None  # told what somebody else did to the guest
        self.asking: Asking | None = None  # who decides about its connections; given before it is finished
        self.doors: Doors | None = None  # what stands behind its proxy's own targets; given before it is finished
        self.before_connecting: Callable[[], Awaitable[None]] | None = None  # waits, or refuses
        self.runs: set[Process] = set()  # one-shot runs of tools in its workspace: they end with it
        self.beside: set[Command] = set()  # an operator's, in its sandbox
        self.measured: Callable[[str, int], None] = lambda resource, value: None  # told what it uses, in bytes

    def interrupted(self) -> None:
        """Whatever ends it from now on is the doing of whoever started it."""
        self._ending = "interrupted"

    def strike(self) -> None:
        """Kill it for whoever started it, without waiting for that to be true."""
        self.interrupted()
        self.process.strike()

    async def kill(self, ending: Ending = "interrupted") -> None:
        """End it now; returns when nothing of it is left."""
        self._ending = ending
        await self.process.kill()

    def status(self) -> Status:
        found, group = self.members(), self.process.group
        own = group.memory_used() if group else None
        state: State = "paused" if self._freezer.paused else "running"
        return Status(
            name=self.name,
            state="ended" if self.process.exited.done() else state,
            level=self.process.ready.level,
            limits=group.column if group else "rlimits",
            pid=found[0].pid if found else None,
            kernel=os.getpid(),
            processes=len(found),
            memory=sum(one.memory for one in found) if own is None else own,
            age=time.monotonic() - self._began,
            command=programs.told(self.order.argv, self.order.cwd),
            project=str(self.order.project) if self.order.project else None,
        )

    # What the process table asks of whatever runs an agent: done when it returns, and recorded by whoever asked.

    async def freeze(self) -> bool:
        return await self._freezer.pause()

    async def thaw(self) -> bool:
        return await self._freezer.resume()

    async def destroy(self) -> int:
        found = self.members()
        await self.kill("killed" if self._ending == "exited" else self._ending)
        return len(found)

    def host_signal(self, number: int) -> None:
        self.process.signal(number)

    async def snapshot(self, name: str, by: str) -> Workspace:
        """Keep its writes of this moment under a name. It is held still for the copy, and then goes on as it was."""
        self.require_alive()
        work = self.workspace
        if work is None:
            reason = f"{self.name} has no layer of its own to keep: its workspace is not an overlay"
            raise EINVAL("snapshot.nothing", reason, hint="agentctl run without --workspace bind: or tmpfs")
        kept = Workspaces(work.path.parent.parent)
        kept.require_free(name)
        await self._records.before(self.name, "snapshot", by=by, name=name)
        async with self._freezer.held():
            copy = await asyncio.to_thread(kept.copy, work, name=name, agent_uid=work.meta.agent_uid, keep=True)
        self.notice(f"snapshot {name} was taken by {by}")
        return copy

    @property
    def paused(self) -> bool:
        return self._freezer.paused

    async def told(self, event: str, **facts: object) -> int:
        """What is about to be done in it: on its record, and on disk when this returns. The number of that entry."""
        return await self._records.before(self.name, event, **facts)

    def tell(self, event: str, **facts: object) -> None:
        """What came of that."""
        self._records.after(self.name, event, **facts)

    async def run_on(self, seconds: float) -> None:
        """Returns when it has run so long from now; while it is held, no time passes."""
        await self._freezer.until_active(self._freezer.active + seconds)

    def require_alive(self) -> None:
        if self.process.exited.done():
            raise ESRCH("agent.ended", f"{self.name} has just ended", hint=f"agentctl diff {self.name}")

    def members(self) -> list[Member]:
        init = self._init()
        return members.members(init) if init else []

    def survivors(self, found: Sequence[Member]) -> int:
        """How many of them still live."""
        return len(members.alive(found))

    def _init(self) -> int | None:
        """Its pid 1. None once it ended: its pidfd may be closed by then."""
        return None if self.process.exited.done() else members.pid_of(self.process.pidfd)

    async def finish(self) -> Outcome:
        """Wait for the end. If this is cancelled, the guest is killed first and nothing is left."""
        routed, doors = self.order.routed, self.doors
        egress = Egress(self.name, self.order.net, self._saw, routed=routed, doors=doors, asking=self.asking)
        doors = (None, *loopback_doors(self.order.net))
        work = [egress.serve(listener, door) for listener, door in zip(self.process.listeners, doors, strict=True)]
        guards = [asyncio.create_task(one) for one in (self._watch_clock(), self._watch_disk(), *work)]
        try:
            ended = await self.process.wait()
            if self._ending == "exited" and self.process.ran_out_of_memory():
                self._ending = "memory"
        finally:
            await self.process.kill()
            await asyncio.gather(*(one.kill() for one in self.runs))
            for guard in guards:
                guard.cancel()
            await asyncio.gather(*guards, return_exceptions=True)
            self.process.close()
            await _in_thread(self._places.give_back)
        if ended.lost:
            self._ending = "launcher"
        code = status_of(self._ending, ended.code)
        seconds = time.monotonic() - self._began
        facts = {"code": code, "ending": self._ending, "seconds": round(seconds, 3), "rusage": ended.rusage}
        self._records.after(self.name, "exit", **facts, refused_connections=self._refusals)
        changes, unread = await self._changes()
        return Outcome(
            name=self.name,
            code=code,
            ending=self._ending,
            level=self.process.ready.level,
            limits=self.order.limits,
            seconds=seconds,
            refusals=tuple(Refusal(what, times, allow) for (what, allow), times in self._refused.items()),
            failures=tuple(self._failed.items()),
            notes=self.notes,
            workspace=self.workspace,
            changes=changes,
            unread=unread,
        )

    async def _changes(self) -> tuple[tuple[Change, ...], str]:
        """It has ended, and everybody hears of that also if its project is not there any more."""
        try:
            return tuple(await asyncio.to_thread(self.workspace.diff)) if self.workspace else (), ""
        except AgentOSError as problem:
            return (), problem.reason

    def _saw(self, connection: Connection) -> Awaitable[None] | None:
        """One connection was decided, or has ended: what is about to be dialled is on disk before it is. Refusals cost
        an agent nothing, so after many they are only counted: it must not fill the disk with them."""
        unsaid = ("agent", "time", "leave")
        facts = {name: getattr(connection, name) for name in connection.__struct_fields__ if name not in unsaid}
        if not connection.done:
            return self._before_connection(facts, connection.leave)
        refused = connection.verdict == "deny"
        if refused:
            target = f"connect {connection.host}:{connection.port}" if connection.host else connection.reason
            if connection.host and not connection.allow_flag:  # no flag would help, so the reason must
                target = f"{target}: {connection.reason}"
            if (target, connection.allow_flag) in self._refused or len(self._refused) < _MOST_TARGETS:
                self._refused[target, connection.allow_flag] += 1
            self._refusals += 1
        elif connection.code in _NOT_MADE:
            what = f"connect {connection.host}:{connection.port}: {connection.reason}"
            if what in self._failed or len(self._failed) < _MOST_FAILURES:
                self._failed[what] += 1
        told = not refused or self._refusals <= _MOST_REFUSALS
        self._records.connected(self.name, facts, connection.leave, told=told)
        return None

    async def _before_connection(self, facts: Mapping[str, object], leave: Leave | None) -> None:
        if self.before_connecting:
            await self.before_connecting()
        await self._records.connecting(self.name, facts, leave)

    async def _watch_clock(self) -> None:
        if self.order.limits.wall_s is not None:
            await self._freezer.until_active(self.order.limits.wall_s)
            await self.kill("timeout")

    async def _watch_disk(self) -> None:
        """A file has its own bound; their sum is watched, and the more seldom the less happens."""
        tmp, init = self._places.tmp, self._init()
        watched: dict[Ending, Place] = {"tmp": Place(tmp, tmp.stat().st_dev, self.order.limits.tmp_mb * _MB)}
        if self.workspace:
            device = os.fstat(self.process.workspace).st_dev
            watched["disk"] = Place(self.workspace.upper, device, self.order.limits.disk_mb * _MB)
        places, pace = list(watched.values()), Pace()
        while init is not None and not self.process.exited.done():
            began = time.monotonic()
            found = await asyncio.to_thread(_written, init, places)
            for (ending, place), used in zip(watched.items(), found, strict=True):
                self.measured(ending, used)
                if used > place.limit:
                    facts = {"used_mb": used // _MB, "limit_mb": place.limit // _MB}
                    self._records.after(self.name, ending, **facts)
                    return await self.kill(ending)
            await filling().pause(pace.next(found, time.monotonic() - began), places)


async def start(
    order: Order,
    streams: Streams,
    host: Host,
    launcher: Launcher,
    records: Records,
    name: str | None = None,
    socket: int | None = None,
    confirm: Callable[[], None] = lambda: None,
) -> Guest:
    """Start a guest, or raise with nothing left over. Overlay where this host can, else a copy of the project. Whether
    it may start is asked once more, by `confirm`, when all is ready."""
    name = name or new_name(title(order.argv))
    planned = await asyncio.to_thread(plan, order, name, host)
    spec, paths = planned.spec, planned.paths
    argv = programs.told(spec.argv, order.cwd)
    about = {
        "argv": argv,
        "program": spec.argv[0],
        "workspace": spec.workspace._asdict(),
        "net": [str(grant) for grant in order.net],
    }
    about |= {"restored": order.origin.name if order.origin else None, "snapshot": order.snapshot}
    await records.before(name, "spawn", **about, binds=[bind.dst for bind in spec.binds], **_covers(spec))
    try:
        try:
            before = order.origin or _earlier(order, name, host)
            if before and before.meta.mode == "copy":  # a state made without an overlay goes on without one
                spec = dataclasses.replace(spec, workspace=spec.workspace._replace(mode="bind"))
            process, places = await _spawn(spec, paths, streams, host, launcher, socket, confirm, before)
        except SandboxError as problem:
            no_overlay = spec.workspace.mode == "overlay" and (problem.word == "idmap" or problem.step == "C5")
            if order.origin or order.again or not no_overlay or problem.errno == errno.ESTALE:
                raise
            records.after(name, "no overlay", why=problem.why)
            spec = dataclasses.replace(spec, workspace=spec.workspace._replace(mode="bind"), covers=_of_a_copy(spec))
            process, places = await _spawn(spec, paths, streams, host, launcher, socket, confirm, copy=True)
    except (SandboxError, AgentOSError) as problem:
        error = explain(problem, order) if isinstance(problem, SandboxError) else problem
        records.after(name, "refused", error=str(error))
        raise error from problem
    enforced_by = limits.enforcers(spec.limits, process.group) | {"tmp_mb": "a watcher; in HOME the size of a tmpfs"}
    records.after(name, "spawned", **process.ready._asdict(), limits=spec.limits._asdict(), enforced_by=enforced_by)
    planned = replace(planned, notes=planned.notes + guest.unenforced(enforced_by))
    return Guest(planned, order, records, process, places)


def _covers(spec: SpawnSpec) -> dict[str, list[str]]:
    """As its record tells them: what it cannot read, write, remove."""
    ways = {how: [one.path for one in spec.covers if one.how == how] for how in ("hide", "freeze", "keep")}
    told = {"masks": sorted([*spec.masks, *ways["hide"]]), "frozen": ways["freeze"], "held": ways["keep"]}
    return {name: paths for name, paths in told.items() if paths or name == "masks"}


def _of_a_copy(spec: SpawnSpec) -> list[Cover]:
    """The same paths, but other files."""
    top = f"{spec.workspace.at}/"
    return [one._replace(device=0, inode=0) if one.path.startswith(top) else one for one in spec.covers]


class _Places(Struct, frozen=True):
    """Where on disk its writes go, and the end of that."""

    tmp: Path
    workspace: Workspace | None
    give_back: Callable[[], None]


def _earlier(order: Order, name: str, host: Host) -> Workspace | None:
    """The workspace that an agent had in an earlier life."""
    if not order.again or order.mode != "overlay":
        return None
    with suppress(ENOENT):
        return Workspaces(host.state).open(name)
    return None


async def _spawn(
    spec: SpawnSpec,
    paths: Mapping[str, Path],
    streams: Streams,
    host: Host,
    launcher: Launcher,
    socket: int | None,
    confirm: Callable[[], None],
    origin: Workspace | None = None,
    copy: bool = False,
) -> tuple[Process, _Places]:
    own = origin is not None and origin.name == spec.spawn_id  # it goes on with what an earlier life of it left
    lease = lease_uid(launcher.root_mode, origin.meta.agent_uid if origin and own else None)
    agent_uid = lease.host_uid if launcher.root_mode else None
    running, undo = ExitStack(), ExitStack()
    try:
        place = partial(_places, running, undo, spec, paths, host, agent_uid, origin, copy)
        tmp, workspace = await _in_thread(place)
        sources = {**paths, "tmp": tmp}
        if workspace:
            sources |= {"lower": workspace.upper} if workspace.meta.mode == "copy" else {"upper": workspace.path}
        with ExitStack() as opened:
            fds = {name: _pin(path, opened) for name, path in sources.items()}
            confirm()
            group = cgroup.Group.create(spec.spawn_id)
            process = await launcher.spawn(spec, streams=streams, agent=socket, sources=fds, group=group, lease=lease)
    except BaseException:
        await _in_thread(running.close)
        await _in_thread(undo.close)
        lease.release()
        raise
    return process, _Places(tmp, workspace, running.close)


async def _in_thread(work: Callable[[], _T]) -> _T:
    """Cancelled, it is awaited all the same: a thread cannot be stopped, and what it makes must be given back."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _places(
    running: ExitStack,
    undo: ExitStack,
    spec: SpawnSpec,
    paths: Mapping[str, Path],
    host: Host,
    agent_uid: int | None,
    origin: Workspace | None,
    copy: bool,
) -> tuple[Path, Workspace | None]:
    """Its `/tmp` and its layer, held until `running` is closed; `undo` removes the layer. In a thread: a project may
    have to be copied."""
    tmp = running.enter_context(scratch(host.state, spec.spawn_id, agent_uid, _mounts(spec, paths)))
    if not (copy or origin or spec.workspace.mode == "overlay"):
        return tmp, None
    if origin and origin.name == spec.spawn_id:
        workspace = origin
        if origin.meta.agent_uid != agent_uid:
            with origin.hold():
                workspace = Workspaces(host.state).hand_over(origin, agent_uid)
    else:
        workspace = _workspace(spec, paths, Workspaces(host.state), agent_uid, origin, copy)
        undo.callback(workspace.discard)
    running.enter_context(workspace.hold())
    return tmp, workspace


def _mounts(spec: SpawnSpec, paths: Mapping[str, Path]) -> list[tuple[str, Path]]:
    """Every place inside at which something of the host's is mounted, and what."""
    work = [(spec.workspace.at, paths["lower"])] if "lower" in paths else []
    return work + [(bind.dst, paths[bind.fd]) for bind in spec.binds]


def _workspace(
    spec: SpawnSpec,
    paths: Mapping[str, Path],
    kept: Workspaces,
    agent_uid: int | None,
    origin: Workspace | None,
    copy: bool,
) -> Workspace:
    if origin is None:
        mode = "copy" if copy else "overlay"
        return kept.create(paths["lower"], name=spec.spawn_id, mode=mode, agent_uid=agent_uid)
    with origin.hold(shared=True):
        return kept.copy(origin, name=spec.spawn_id, agent_uid=agent_uid)


def _pin(path: Path, opened: ExitStack) -> int:
    """A descriptor of what the operator named; from here on the path is not walked again."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    opened.callback(os.close, fd)
    return fd


def _written(init: int, places: Sequence[Place]) -> list[int]:
    """What it takes in each, with what it deleted and still has open."""
    deleted, found = disk.nameless(one.pid for one in members.members(init)), list[int]()
    for place in places:
        try:
            found.append(disk.used(place.top) + deleted.pop(place.device, 0))
        except RecursionError:  # nobody nests directories that deep but to hide something from us
            found.append(place.limit + 1)
    return found


_NAMESPACE_STEPS = ("L3", "L4")


def explain(problem: SandboxError, order: Order) -> AgentOSError:
    """A failure of the machinery, in the operator's words: never shown to an agent as output of its command."""
    if problem.step == "exec":
        reason = f"{order.argv[0]} was found but could not be executed inside: {problem.why}"
        return EACCES("command.exec", reason, hint="--mount what it needs, or check its shebang and format")
    if problem.word == "idmap":
        reason = f"{order.project} is on a file system that cannot lend its files to an agent ({problem.why})"
        return EACCES("workspace.unreadable", reason, hint="without bind: the workspace is copied instead")
    if problem.step in _NAMESPACE_STEPS:
        reason = f"this host gives us no user namespace ({problem.why}), so nothing would isolate the agent"
        return EISOLATION("level", reason, hint="agentctl doctor says why and what to change")
    if problem.word == "level":
        hint = "agentctl doctor says what is missing; --min-isolation accepts less"
        return EISOLATION("level", problem.why, hint=hint)
    if problem.errno == errno.ESTALE:
        hint = "start it when nobody renames files there"
        return EISOLATION("moved", problem.why, hint=hint, retryable=True, step=problem.step, errno=problem.errno)
    reason = f"the sandbox could not be built: {problem.why}" + (f" (step {problem.step})" if problem.step else "")
    again = problem.word == "launcher"  # which starts anew by itself
    hint = "agentctl doctor"
    return EISOLATION(problem.word, reason, hint=hint, retryable=again, step=problem.step, errno=problem.errno)
