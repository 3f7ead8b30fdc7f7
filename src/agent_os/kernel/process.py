"""One guest from plan to outcome: record what it may see, start it, watch it, account for it.

Goes in: an `Order` (what the operator asked for, parsed) and three streams. Comes out: an `Outcome`. Owns the guest's
workspace, proxy, uid and cgroup while it runs; on every way out nothing of them is left but what the operator may keep.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from agent_os.abi.errors import EACCES, EINVAL, EISOLATION, ESRCH, AgentOSError
from agent_os.kernel import beneath, guest, members
from agent_os.kernel.egress import Connection, Egress
from agent_os.kernel.freezer import Freezer
from agent_os.kernel.plan import Host, Order, Plan, loopback_doors, plan, title
from agent_os.kernel.records import Records
from agent_os.kernel.workspace import Workspace, Workspaces, new_name
from agent_os.kernel.workspace.changes import Change
from agent_os.sandbox import cgroup, limits
from agent_os.sandbox.spawner import Launcher, Process, SandboxError, lease_uid
from agent_os.sandbox.spec import Limits, SpawnSpec

Ending = Literal["exited", "timeout", "interrupted", "killed", "disk", "memory", "launcher"]
State = Literal["running", "paused", "ended"]
Streams = tuple[int, int, int]
_MB = 1 << 20
_MOST_REFUSALS, _MOST_TARGETS = 10_000, 1_000  # of connections: written one by one, and told apart at the end
_ENTRY_BYTES = 1024  # what a name and an inode cost, however empty


@dataclass(frozen=True)
class Refusal:
    what: str
    times: int
    allow: str | None  # the flag that would allow it; None where nothing would


@dataclass(frozen=True)
class Status:
    """A guest at this moment."""

    name: str
    state: State
    level: str
    limits: str  # what enforces them: the column of docs/sandbox.md
    pid: int | None  # of its pid 1, on this host
    kernel: int  # pid of the process that holds it
    processes: int
    memory: int  # bytes, resident, of all its processes; pages they share count for each
    age: float  # seconds
    command: tuple[str, ...]
    project: str | None


@dataclass(frozen=True)
class Killed:
    processes: int
    survivors: int
    seconds: float


@dataclass(frozen=True)
class Outcome:
    name: str
    code: int
    ending: Ending
    level: str
    limits: Limits
    seconds: float
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]  # what the guest may have missed, and how to give it
    workspace: Workspace | None
    changes: tuple[Change, ...]


class Guest:
    """A running guest. `finish` waits for its end and gives everything back."""

    def __init__(self, plan: Plan, order: Order, records: Records, process: Process, work: Workspace | None) -> None:
        self.name, self.order, self.process, self.workspace = plan.spec.spawn_id, order, process, work
        self._notes = plan.notes
        self._records = records
        self._refused: Counter[tuple[str, str | None]] = Counter()
        self._refusals = 0
        self._ending: Ending = "exited"
        self._began = time.monotonic()
        self._freezer = Freezer(process)
        self.notice: Callable[[str], None] = lambda line: None  # told what somebody else did to the guest

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the guest to end, or, with SIGKILL, make it."""
        self._ending = "interrupted"
        if number == signal.SIGKILL:
            self.process.strike()
        else:
            self.process.signal(number)

    async def kill(self, ending: Ending = "interrupted") -> None:
        """End it now; returns when nothing of it is left."""
        self._ending = ending
        await self.process.kill()

    def status(self) -> Status:
        found = self._members()
        state: State = "paused" if self._freezer.paused else "running"
        return Status(
            name=self.name,
            state="ended" if self.process.exited.done() else state,
            level=self.process.ready.level,
            limits=self.process.group.column if self.process.group else "rlimits",
            pid=found[0].pid if found else None,
            kernel=os.getpid(),
            processes=len(found),
            memory=sum(one.memory for one in found),
            age=time.monotonic() - self._began,
            command=self.order.argv,
            project=str(self.order.project) if self.order.project else None,
        )

    async def end(self, by: str) -> Killed:
        """Kill on somebody's word; returns when it is true, and says how many processes that were."""
        began = time.monotonic()
        self._alive()
        found = self._members()
        with suppress(AgentOSError):  # a disk too full for the record must not save it
            self._records.before(self.name, "kill", by=by, processes=len(found))
        await self.kill("killed")
        self.notice(f"killed by {by}")
        return Killed(len(found), len(members.alive(found)), time.monotonic() - began)

    async def pause(self, by: str) -> bool:
        """Hold every process of it still; returns when that is true, and whether it was news. Its wall clock stops."""
        self._alive()
        with suppress(AgentOSError):  # as for a kill: it takes nothing but time from the guest
            self._records.before(self.name, "pause", by=by)
        if changed := await self._freezer.pause():
            self.notice(f"paused by {by}   go on: agentctl resume {self.name}")
        return changed

    async def resume(self, by: str) -> bool:
        self._alive()
        self._records.before(self.name, "resume", by=by)
        if changed := await self._freezer.resume():
            self.notice(f"resumed by {by}")
        return changed

    async def snapshot(self, name: str, by: str) -> Workspace:
        """Keep its writes of this moment under a name. It is held still for the copy, and then goes on as it was."""
        self._alive()
        work = self.workspace
        if work is None:
            reason = f"{self.name} has no layer of its own to keep: its workspace is not an overlay"
            raise EINVAL("snapshot.nothing", reason, hint="agentctl run without --workspace bind: or tmpfs")
        kept = Workspaces(work.path.parent.parent)
        kept.require_free(name)
        self._records.before(self.name, "snapshot", by=by, name=name)
        async with self._freezer.held():
            copy = await asyncio.to_thread(kept.copy, work, name=name, agent_uid=work.meta.agent_uid, keep=True)
        self.notice(f"snapshot {name} was taken by {by}")
        return copy

    def refused_at_door(self, why: str) -> None:
        """Somebody who is not the operator tried to reach it."""
        self._records.after(self.name, "door refused", why=why)

    def _alive(self) -> None:
        if self.process.exited.done():
            raise ESRCH("agent.ended", f"{self.name} has just ended", hint=f"agentctl diff {self.name}")

    def _members(self) -> list[members.Member]:
        """None once it ended: its pidfd may be closed by then."""
        init = None if self.process.exited.done() else members.pid_of(self.process.pidfd)
        return members.members(init) if init else []

    async def finish(self) -> Outcome:
        """Wait for the end. If this is cancelled, the guest is killed first and nothing is left."""
        egress = Egress(self.name, self.order.net, self._saw, routed=self.order.routed)
        doors = (None, *loopback_doors(self.order.net))
        work = [egress.serve(listener, door) for listener, door in zip(self.process.listeners, doors, strict=True)]
        guards = [asyncio.create_task(one) for one in (self._watch_clock(), self._watch_disk(), *work)]
        try:
            ended = await self.process.wait()
            if self._ending == "exited" and self.process.ran_out_of_memory():
                self._ending = "memory"
        finally:
            await self.process.kill()
            for guard in guards:
                guard.cancel()
            await asyncio.gather(*guards, return_exceptions=True)
            self.process.close()
        if ended.lost:
            self._ending = "launcher"
        code = {"timeout": 124, "interrupted": 130}.get(self._ending, ended.code)
        seconds = time.monotonic() - self._began
        facts = {"code": code, "ending": self._ending, "seconds": round(seconds, 3), "rusage": ended.rusage}
        self._records.after(self.name, "exit", **facts, refused_connections=self._refusals)
        return Outcome(
            name=self.name,
            code=code,
            ending=self._ending,
            level=self.process.ready.level,
            limits=self.order.limits,
            seconds=seconds,
            refusals=tuple(Refusal(what, times, allow) for (what, allow), times in self._refused.items()),
            notes=self._notes,
            workspace=self.workspace,
            changes=tuple(self.workspace.diff()) if self.workspace else (),
        )

    def _saw(self, connection: Connection) -> None:
        """One connection was decided, or has ended: what is about to be dialled is on disk before it is. Refusals cost
        an agent nothing, so after many they are only counted: it must not fill the disk with them."""
        refused = connection.verdict == "deny" and connection.done
        if refused:
            target = f"connect {connection.host}:{connection.port}" if connection.host else connection.reason
            if (target, connection.allow_flag) in self._refused or len(self._refused) < _MOST_TARGETS:
                self._refused[target, connection.allow_flag] += 1
            self._refusals += 1
        if not refused or self._refusals <= _MOST_REFUSALS:
            write = self._records.after if connection.done else self._records.before
            write(self.name, "connect", **{k: v for k, v in asdict(connection).items() if k not in ("agent", "time")})

    async def _watch_clock(self) -> None:
        if self.order.limits.wall_s is not None:
            await self._freezer.until_active(self.order.limits.wall_s)
            await self.kill("timeout")

    async def _watch_disk(self) -> None:
        """A file has its own bound; their sum is watched. The pause grows with the tree, so watching stays cheap."""
        while self.workspace:
            began = time.monotonic()
            try:
                used = await asyncio.to_thread(disk_used, self.workspace.upper)
            except RecursionError:  # nobody nests directories that deep but to hide something from us
                used = self.order.limits.disk_mb * _MB + 1
            if used > self.order.limits.disk_mb * _MB:
                self._records.after(self.name, "disk", used_mb=used // _MB, limit_mb=self.order.limits.disk_mb)
                await self.kill("disk")
                return
            await asyncio.sleep(max(1.0, 10 * (time.monotonic() - began)))


async def start(order: Order, streams: Streams, host: Host, launcher: Launcher, records: Records) -> Guest:
    """Start a guest, or raise with nothing left over. Overlay where this host can, else a copy of the project."""
    name = new_name(title(order.argv))
    planned = plan(order, name, host)
    spec, paths = planned.spec, planned.paths
    about = {"argv": spec.argv, "workspace": asdict(spec.workspace), "net": [str(grant) for grant in order.net]}
    about |= {"restored": order.origin.name if order.origin else None, "snapshot": order.snapshot}
    records.before(name, "spawn", **about, binds=[bind.dst for bind in spec.binds], masks=spec.masks)
    try:
        try:
            if order.origin and order.origin.meta.mode == "copy":  # a state made without an overlay goes on without one
                spec = replace(spec, workspace=replace(spec.workspace, mode="bind"))
            process, workspace = await _spawn(spec, paths, streams, host, launcher, order.origin)
        except SandboxError as problem:
            no_overlay = spec.workspace.mode == "overlay" and (problem.word == "idmap" or problem.step == "C5")
            if order.origin or not no_overlay:
                raise
            records.after(name, "no overlay", why=problem.why)
            spec = replace(spec, workspace=replace(spec.workspace, mode="bind"))
            process, workspace = await _spawn(spec, paths, streams, host, launcher, copy=True)
    except (SandboxError, AgentOSError) as problem:
        error = explain(problem, order) if isinstance(problem, SandboxError) else problem
        records.after(name, "refused", error=str(error))
        raise error from problem
    enforced_by = limits.enforcers(spec.limits, process.group)
    records.after(name, "spawned", **asdict(process.ready), limits=asdict(spec.limits), enforced_by=enforced_by)
    planned = replace(planned, notes=planned.notes + guest.unenforced(enforced_by))
    return Guest(planned, order, records, process, workspace)


async def _spawn(
    spec: SpawnSpec,
    paths: Mapping[str, Path],
    streams: Streams,
    host: Host,
    launcher: Launcher,
    origin: Workspace | None = None,
    copy: bool = False,
) -> tuple[Process, Workspace | None]:
    lease = lease_uid(launcher.root_mode)
    workspace: Workspace | None = None
    with ExitStack() as opened:
        running = ExitStack()
        try:
            sources = dict(paths)
            if copy or origin or spec.workspace.mode == "overlay":
                agent_uid = lease.host_uid if launcher.root_mode else None
                workspace = _workspace(spec, paths, Workspaces(host.state), agent_uid, origin, copy)
                running.enter_context(workspace.hold())
                copied = workspace.meta.mode == "copy"
                sources |= {"lower": workspace.upper} if copied else {"upper": workspace.path}
            fds = {name: _pin(path, opened) for name, path in sources.items()}
            group = cgroup.Group.create(spec.spawn_id)
            process = await launcher.spawn(spec, streams=streams, sources=fds, group=group, lease=lease)
        except BaseException:
            running.close()
            if workspace:
                workspace.discard()
            lease.release()
            raise
    process.on_close(running.close)
    return process, workspace


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


def disk_used(top: Path) -> int:
    """Bytes on disk below a directory that its agent may be changing meanwhile; links are not followed."""
    total = 0
    for _, directories, files, here in os.fwalk(top, follow_symlinks=False, onerror=None):
        if os.geteuid() != 0:
            _let_us_look(directories, here)
        for name in (*directories, *files):
            try:
                total += os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512 + _ENTRY_BYTES
            except FileNotFoundError:
                continue
    return total


def _let_us_look(directories: list[str], parent: int) -> None:
    """User mode: the files are ours, so a directory that its agent closed can be opened again. Root sees it anyway."""
    for name in directories:
        with suppress(OSError), beneath.closing(os.open(name, _PLACE, dir_fd=parent)) as place:
            mode = os.fstat(place).st_mode
            if mode & 0o500 != 0o500:
                os.chmod(f"/proc/self/fd/{place}", (mode & 0o7777) | 0o500)


_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
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
    reason = f"the sandbox could not be built: {problem.why}" + (f" (step {problem.step})" if problem.step else "")
    return EISOLATION(problem.word, reason, hint="agentctl doctor", step=problem.step, errno=problem.errno)
