"""One guest from order to outcome: decide what it may see, record that, start it, watch it, account for it.

Goes in: an `Order` (what the operator asked for, parsed) and three streams. Comes out: an `Outcome`. Owns the guest's
workspace, proxy, uid and cgroup while it runs; on every way out nothing of them is left but what the operator may keep.
"""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from agent_os.abi.errors import EACCES, EINVAL, EISOLATION, AgentOSError
from agent_os.kernel import guest
from agent_os.kernel.egress import Connection, Egress, Grant
from agent_os.kernel.egress.addresses import Address
from agent_os.kernel.records import Records
from agent_os.kernel.workspace import Workspace, Workspaces, new_name
from agent_os.kernel.workspace.changes import Change
from agent_os.kernel.workspace.sources import check_source, masks
from agent_os.sandbox import limits
from agent_os.sandbox.spawner import Launcher, Process, SandboxError, lease_uid
from agent_os.sandbox.spec import GUEST_LIMITS, PROXY_PORT, Bind, Level, Limits, SpawnSpec
from agent_os.sandbox.spec import Workspace as WorkspaceSpec

Mode = Literal["overlay", "bind", "tmpfs"]
Ending = Literal["exited", "timeout", "interrupted", "disk", "launcher"]
Streams = tuple[int, int, int]
_MB = 1 << 20


@dataclass(frozen=True)
class Order:
    argv: tuple[str, ...]
    cwd: Path
    project: Path | None  # None: an empty workspace in memory
    mode: Mode = "overlay"
    mounts: tuple[guest.Mount, ...] = ()
    net: tuple[Grant, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits = GUEST_LIMITS
    min_level: Level = "S2"


@dataclass(frozen=True)
class Host:
    """What a run needs to know of the machine it is on."""

    state: Path
    home: Path
    env: Mapping[str, str]


@dataclass(frozen=True)
class Refusal:
    what: str
    times: int
    allow: str | None  # the flag that would allow it; None where nothing would


@dataclass(frozen=True)
class Outcome:
    name: str
    code: int
    ending: Ending
    level: str
    seconds: float
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...]  # what the guest may have missed, and how to give it
    workspace: Workspace | None
    changes: tuple[Change, ...]


class Guest:
    """A running guest. `finish` waits for its end and gives everything back."""

    def __init__(self, plan: "Plan", order: Order, records: Records, process: Process, work: Workspace | None) -> None:
        self.name, self.order, self.process, self.workspace = plan.spec.spawn_id, order, process, work
        self._notes = plan.notes
        self._records = records
        self._refused: Counter[tuple[str, str | None]] = Counter()
        self._ending: Ending = "exited"
        self._began = time.monotonic()

    def stop(self) -> None:
        """Ask the guest to end."""
        self._ending = "interrupted"
        self.process.signal(signal.SIGTERM)

    async def kill(self, ending: Ending = "interrupted") -> None:
        """End it now; returns when nothing of it is left."""
        self._ending = ending
        await self.process.kill()

    async def finish(self) -> Outcome:
        """Wait for the end. If this is cancelled, the guest is killed first and nothing is left."""
        egress = Egress(self.name, self.order.net, self._saw)
        doors = (None, *loopback_doors(self.order.net))
        work = [egress.serve(listener, door) for listener, door in zip(self.process.listeners, doors, strict=True)]
        guards = [asyncio.create_task(one) for one in (self._watch_clock(), self._watch_disk(), *work)]
        try:
            ended = await self.process.wait()
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
        self._records.after(self.name, "exit", **facts)
        return Outcome(
            name=self.name,
            code=code,
            ending=self._ending,
            level=self.process.ready.level,
            seconds=seconds,
            refusals=tuple(Refusal(what, times, allow) for (what, allow), times in self._refused.items()),
            notes=self._notes,
            workspace=self.workspace,
            changes=tuple(self.workspace.diff()) if self.workspace else (),
        )

    def _saw(self, connection: Connection) -> None:
        """One connection was decided, or has ended: what is about to be dialled is on disk before it is."""
        write = self._records.after if connection.done else self._records.before
        write(self.name, "connect", **{k: v for k, v in asdict(connection).items() if k not in ("agent", "time")})
        if connection.verdict == "deny" and connection.done:
            target = f"connect {connection.host}:{connection.port}" if connection.host else connection.reason
            self._refused[target, connection.allow_flag] += 1

    async def _watch_clock(self) -> None:
        if self.order.limits.wall_s is not None:
            await asyncio.sleep(self.order.limits.wall_s)
            await self.kill("timeout")

    async def _watch_disk(self) -> None:
        """A file has its own bound; their sum is watched. The pause grows with the tree, so watching stays cheap."""
        while self.workspace:
            began = time.monotonic()
            used = await asyncio.to_thread(disk_used, self.workspace.upper)
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
    records.before(name, "spawn", **about, binds=[bind.dst for bind in spec.binds], masks=spec.masks)
    try:
        try:
            process, workspace = await _spawn(spec, paths, streams, host, launcher)
        except SandboxError as problem:
            if spec.workspace.mode != "overlay" or not (problem.word == "idmap" or problem.step == "C5"):
                raise
            records.after(name, "no overlay", why=problem.why)
            spec = replace(spec, workspace=replace(spec.workspace, mode="bind"))
            process, workspace = await _spawn(spec, paths, streams, host, launcher, copy=True)
    except (SandboxError, AgentOSError) as problem:
        error = explain(problem, order) if isinstance(problem, SandboxError) else problem
        records.after(name, "refused", error=str(error))
        raise error from problem
    facts = asdict(process.ready) | {"limits": asdict(spec.limits), "enforced_by": limits.enforcers(spec.limits)}
    records.after(name, "spawned", **facts)
    return Guest(planned, order, records, process, workspace)


def loopback_doors(grants: Sequence[Grant]) -> list[tuple[Address, int]]:
    """Granted endpoints of this machine's loopback. Each appears on the guest's own loopback under the same port, since
    programs rightly do not ask a proxy for 127.0.0.1."""
    doors = {grant.port: grant.network.network_address for grant in grants if grant.network and grant.is_loopback}
    return [(address, port) for port, address in doors.items() if port and port != PROXY_PORT]


def title(argv: Sequence[str]) -> str:
    """What to call a run: the program, or the script that an interpreter was asked to run."""
    words = [word for word in argv if not word.startswith("-")]
    if len(words) > 1 and guest.INTERPRETERS.match(Path(words[0]).name) and "-c" not in argv and "-m" not in argv:
        return words[1]
    return words[0] if words else ""


@dataclass(frozen=True)
class Plan:
    """What a guest will see, decided before anything is made."""

    spec: SpawnSpec
    paths: dict[str, Path]  # the host paths behind its descriptors
    notes: tuple[str, ...]


def plan(order: Order, name: str, host: Host) -> Plan:
    at = str(order.project) if order.project else "/work"
    own_place = [Path(mount.at) for mount in order.mounts if str(mount.source) == mount.at]
    program = guest.resolve(
        order.argv,
        cwd=order.cwd,
        path=host.env.get("PATH", os.defpath),
        home=host.home,
        visible=[Path("/usr"), *([order.project] if order.project else []), *own_place],
        private=[host.state],
    )
    shown = [guest.Mount(prefix, str(prefix), rw=False) for prefix in program.prefixes] + list(order.mounts)
    paths = {f"bind{i}": mount.source for i, mount in enumerate(shown)}
    places = [(mount.source, mount.at) for mount in shown]
    if order.project:
        paths["lower"] = order.project
        places.append((order.project, at))
    inside = str(order.cwd) if order.project and order.cwd.is_relative_to(order.project) else at
    env = guest.environment(
        host_env=host.env, extra=order.env, path=program.path, proxy=True, workspace=inside, program=program
    )
    spec = SpawnSpec(
        spawn_id=name,
        kind="guest",
        isolation="exec",
        argv=list(program.argv),
        env=env,
        cwd=inside,
        net="proxy",
        forward=[port for _, port in loopback_doors(order.net)],
        workspace=WorkspaceSpec(order.mode, at, size_mb=order.limits.tmp_mb, inodes=65536),
        binds=[Bind(f"bind{i}", mount.at, rw=mount.rw) for i, mount in enumerate(shown)],
        masks=sorted({mask for source, dst in places for mask in masks(source, dst, state=host.state, home=host.home)}),
        limits=order.limits,
        exec_memfd=True,  # JIT compilers of real programs need it
        min_level=order.min_level,
    )
    return Plan(spec, paths, program.notes)


async def _spawn(
    spec: SpawnSpec, paths: Mapping[str, Path], streams: Streams, host: Host, launcher: Launcher, copy: bool = False
) -> tuple[Process, Workspace | None]:
    lease = lease_uid(launcher.root_mode)
    workspace: Workspace | None = None
    with ExitStack() as opened:
        running = ExitStack()
        try:
            sources = dict(paths)
            if copy or spec.workspace.mode == "overlay":
                agent_uid = lease.host_uid if launcher.root_mode else None
                mode = "copy" if copy else "overlay"
                kept = Workspaces(host.state)
                workspace = kept.create(paths["lower"], name=spec.spawn_id, mode=mode, agent_uid=agent_uid)
                running.enter_context(workspace.hold())
                sources |= {"lower": workspace.upper} if copy else {"upper": workspace.path}
            fds = {name: _pin(path, opened) for name, path in sources.items()}
            group = limits.Group.create(spec.spawn_id)
            process = await launcher.spawn(spec, streams=streams, sources=fds, group=group, lease=lease)
        except BaseException:
            running.close()
            if workspace:
                workspace.discard()
            lease.release()
            raise
    process.on_close(running.close)
    return process, workspace


def _pin(path: Path, opened: ExitStack) -> int:
    """A descriptor of what the operator named; from here on the path is not walked again."""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    opened.callback(os.close, fd)
    return fd


def check_mount(mount: guest.Mount, host: Host) -> guest.Mount:
    """The same rule as for workspaces, but a single file may be mounted, too."""
    try:
        check_source(mount.source, state=host.state, home=host.home)
    except EINVAL as error:
        if error.code != "workspace.not_a_directory":
            raise
    return mount


def disk_used(top: Path) -> int:
    """Bytes on disk below a directory that its agent may be changing meanwhile; links are not followed."""
    total = 0
    for _, _, files, here in os.fwalk(top, follow_symlinks=False, onerror=None):
        for name in files:
            try:
                total += os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


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
