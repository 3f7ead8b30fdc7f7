"""Finds out what this host can isolate, by doing it: a real agent is spawned and tries to get out.

Comes out: checks, each `ok`, `warn` or `fail` with a cause and the narrow fix; never an advice to switch a protection
off. Reads settings only to explain a failure, never to predict one.
"""

import asyncio
import grp
import json
import os
import platform
import secrets
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agent_os.sandbox import canary, cgroup, hierarchies, landlock
from agent_os.sandbox.spawner import Launcher, Process, Ready, SandboxError, interpreter_prefixes
from agent_os.sandbox.spec import Limits, SpawnSpec

_SPAWNS = 20
_IDLE_AGENT_MB = 2.5
_RUN_SECONDS = 10.0
_CONTROLLERS = "/sys/fs/cgroup/cgroup.controllers"  # where v2 is mounted, if it is alone
_USUAL = Limits()
# What agents are held to, and what they want instead.
_CAP_MB, _TASKS, _SHARE = 64, 16, 20
_HUNGRY = f"kept = bytearray(b'x') * ({2 * _CAP_MB} << 20)"
_FORKING = f"""import os, signal
made = 0
try:
    while made < {2 * _TASKS}:
        if not os.fork():
            signal.pause()
        made += 1
except OSError:
    pass
print(made)"""
_SPINNING = """import time
end = time.monotonic() + 0.5
while time.monotonic() < end:
    pass
print(time.process_time() / 0.5)"""


@dataclass(frozen=True)
class Check:
    name: str
    status: Literal["ok", "warn", "fail"]
    cause: str
    fix: str = ""


async def isolation() -> Check:
    """What one agent gets here, found out by spawning one."""
    try:
        launcher = await Launcher.start()
    except SandboxError as problem:
        return _none(problem)
    try:
        return (await _canary(launcher))[1][0]
    except SandboxError as problem:
        return Check("isolation", "fail", f"step {problem.step}: {problem.why}", "agentctl doctor")
    finally:
        await launcher.close()


def _none(problem: SandboxError) -> Check:
    why, fix = diagnose(problem.step, problem.errno, settings())
    return Check("isolation", "fail", f"none: step {problem.step}: {problem.why}. {why}", fix)


async def examine() -> tuple[str, list[Check]]:
    """The level reached on this host, and all checks of the sandbox."""
    checks = [_platform()]
    try:
        launcher = await Launcher.start()
    except SandboxError as problem:
        return "S0", [*checks, _none(problem), *host_checks()]
    try:
        level, more = await _canary(launcher)
        checks += more
        checks.append(await _limits(launcher))
        checks.append(await _freeze_and_kill(launcher))
        checks.append(await _spawn_times(launcher))
    except SandboxError as problem:
        level = "S0"
        checks.append(Check("isolation", "fail", f"step {problem.step}: {problem.why}", "agentctl doctor -o json"))
    finally:
        await launcher.close()
    return level, checks + host_checks()


async def _canary(launcher: Launcher) -> tuple[str, list[Check]]:
    variable = f"AGENT_OS_CANARY_{secrets.token_hex(4).upper()}"
    with tempfile.NamedTemporaryFile(prefix="agent-os-canary-") as secret:
        facts = {"secret_file": secret.name, "in_home": _something_private()}
        facts |= {"pid": str(os.getpid()), "variable": variable}
        os.environ[variable] = "1"
        try:
            output, ran = await _run(launcher, [canary.__file__, json.dumps(facts)])
        finally:
            del os.environ[variable]
    results: dict[str, bool] = json.loads(output or "{}")
    escaped = [name for name, held in results.items() if not held]
    ready = ran.ready
    checks = [_isolation(ready, launcher.root_mode)]
    if not results:
        checks.append(Check("canary", "fail", "the spawned canary did not answer"))
    elif escaped:
        checks.append(Check("canary", "fail", f"got through: {', '.join(escaped)}", "report this: it is a hole"))
    else:
        checks.append(Check("canary", "ok", f"{len(results)} attempts to get out, none succeeded"))
    checks.append(Check("landlock", "ok" if ready.landlock_abi >= 4 else "warn", f"ABI {ready.landlock_abi}"))
    return ready.level, checks


def _isolation(ready: Ready, root_mode: bool) -> Check:
    level = ready.level
    layers = ", ".join(ready.layers)
    missing = {
        "S0": "a layer is missing",
        "S1": "no Landlock: needs Linux 5.13 with landlock among the security modules",
        "S2": "no cgroup caps the agent as a whole, see limits",
    }.get(level, "")
    mode = "root mode: a host uid per agent" if root_mode else "user mode: agents carry your uid"
    why_not = f". Not higher: {missing}" if missing else ""
    return Check("isolation", "ok" if level >= "S2" else "warn", f"{level} of S4: {layers}; {mode}{why_not}")


async def _limits(launcher: Launcher) -> Check:
    """Agents that go beyond their bounds: who stops them is what the column is worth."""
    found = hierarchies.detect()
    missing = [name for name in hierarchies.CONTROLLERS if name not in found.controllers]
    if missing:
        cause = f"S2, not S3: column {found.column}, no controller we may use for {', '.join(missing)}; "
        return Check(
            "limits", "warn", cause + "each process is bounded by rlimits, the agent as a whole is not", _way()
        )
    broken = [name for name, held in (await _overdo(launcher)).items() if not held]
    if broken:
        return Check("limits", "fail", f"column {found.column}, but these did not hold: {', '.join(broken)}", _way())
    at = ", ".join(f"{' '.join(each.controllers)} at {each.parent}" for each in found.hierarchies if each.controllers)
    held = f"{_CAP_MB} MB of memory, {_TASKS} tasks and {_SHARE} % of a core were the end for agents that wanted more"
    return Check("limits", "ok", f"S3, column {found.column}: {at}; {held}")


async def _overdo(launcher: Launcher) -> dict[str, bool]:
    bounds = Limits(memory_mb=_CAP_MB, as_mb=None, pids=_TASKS, cpu_pct=_SHARE)
    _, hungry = await _run(launcher, ["-c", _HUNGRY], bounds)
    forked, _ = await _run(launcher, ["-c", _FORKING], bounds)
    share, _ = await _run(launcher, ["-c", _SPINNING], bounds)
    return {
        "memory": hungry.ended_by_memory,
        "tasks": 0 < int(forked or 0) < _TASKS,
        "CPU": 0 < float(share or 0) < 2.5 * _SHARE / 100,
    }


def _way() -> str:
    """How to get controllers: a group that is ours to divide."""
    user = "" if os.geteuid() == 0 else " --user"
    if any(hierarchy.v2 for hierarchy in hierarchies.detect().hierarchies) or Path(_CONTROLLERS).exists():
        return f"systemd-run{user} --scope -p Delegate=yes agentctl …"
    return "run as root (sudo agentctl …)" if user else "run where the cgroup file systems are mounted writable"


async def _freeze_and_kill(launcher: Launcher) -> Check:
    group = cgroup.Group.create("doctor-freeze")
    if group.path is None:
        reason = "no cgroup of our own: agents are killed by their pid namespace and paused by signals"
        return Check("cgroup", "warn", reason, _way())
    sleeper = await _spawn(launcher, ["-c", "import signal; signal.pause()"], group=group)
    frozen = await sleeper.freeze()
    began = time.perf_counter()
    await sleeper.kill()
    took = (time.perf_counter() - began) * 1000
    sleeper.close()
    if not frozen:
        return Check("cgroup", "warn", f"cannot freeze at {group.path.parent}; killed in {took:.0f} ms")
    return Check("cgroup", "ok", f"freeze and kill at {group.path.parent}; a frozen agent was gone after {took:.1f} ms")


async def _spawn_times(launcher: Launcher) -> Check:
    times: list[float] = []
    for _ in range(_SPAWNS):
        began = time.perf_counter()
        process = await _spawn(launcher, ["-c", "pass"])
        times.append((time.perf_counter() - began) * 1000)
        await process.wait()
        process.close()
    p50, p95 = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    available = _meminfo("MemAvailable") / 1024
    fits = int(available / _IDLE_AGENT_MB)
    return Check("spawn", "ok", f"p50 {p50:.1f} ms, p95 {p95:.1f} ms; about {fits:,} idle agents fit into memory")


@dataclass(frozen=True)
class _Ran:
    ready: Ready
    ended_by_memory: bool


async def _run(launcher: Launcher, argv: list[str], bounds: Limits = _USUAL) -> tuple[bytes, _Ran]:
    read, write = os.pipe()
    try:
        process = await _spawn(launcher, argv, stdout=write, bounds=bounds)
    finally:
        os.close(write)
    overdue = asyncio.get_running_loop().call_later(_RUN_SECONDS, process.signal, signal.SIGKILL)
    with os.fdopen(read, "rb") as output:
        text = await asyncio.to_thread(output.read, 1 << 20)
    await process.wait()
    overdue.cancel()
    ran = _Ran(process.ready, process.ran_out_of_memory())
    process.close()
    return text, ran


async def _spawn(
    launcher: Launcher,
    argv: list[str],
    stdout: int | None = None,
    group: cgroup.Group | None = None,
    bounds: Limits = _USUAL,
) -> Process:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        spec = SpawnSpec(spawn_id=f"doctor-{secrets.token_hex(4)}", argv=argv, limits=bounds, min_level="S0")
        group = group or cgroup.Group.create(spec.spawn_id)
        return await launcher.spawn(spec, streams=(null, null if stdout is None else stdout, null), group=group)
    finally:
        os.close(null)


def _something_private() -> str:
    """Something in the home directory that no agent needs: not on the way to the interpreter."""
    home = str(Path.home())
    for name in sorted(os.listdir(home)):
        if not any(f"{prefix}/".startswith(f"{home}/{name}/") for prefix in interpreter_prefixes()):
            return f"{home}/{name}"
    return f"{home}/nothing"


def settings() -> dict[str, str]:
    """Host settings that can explain why a step failed."""
    found = {
        name: _read(f"/proc/sys/{name}")
        for name in (
            "user/max_user_namespaces",
            "kernel/unprivileged_userns_clone",
            "kernel/apparmor_restrict_unprivileged_userns",
        )
    }
    status = dict(line.split(":\t", 1) for line in _read("/proc/self/status").splitlines() if ":\t" in line)
    return found | {"seccomp": status.get("Seccomp", "0").strip(), "uid": str(os.geteuid())}


def diagnose(step: str, errno_: int, found: Mapping[str, str]) -> tuple[str, str]:
    """Why a launcher step failed, and the narrow fix: sysctl, AppArmor and a container's seccomp told apart."""
    if step == "L6" and found["uid"] == "0":
        return (
            "We are root without the right to mount (CAP_SYS_ADMIN), as inside a container",
            "run on the host, as root or as an ordinary user",
        )
    if step not in ("L3", "L4", "L7"):
        return "This is not a known restriction", "agentctl doctor -o json, and report it"
    if found["user/max_user_namespaces"] == "0":
        return (
            "user.max_user_namespaces is 0: nobody may create user namespaces here",
            "ask the administrator for a number above 0, e.g. sysctl user.max_user_namespaces=1024",
        )
    if found["seccomp"] == "2":
        return (
            "We run under a seccomp filter, as inside a container, that forbids namespaces",
            "run on the host, or give this one container a seccomp profile that allows unshare, mount and pivot_root",
        )
    if found["kernel/apparmor_restrict_unprivileged_userns"] == "1" and found["uid"] != "0":
        return (
            "AppArmor restricts unprivileged user namespaces (the default of Ubuntu 24.04)",
            "either run as root (sudo agentctl …: root mode needs no such grant), "
            "or give the interpreter of Agent OS an AppArmor profile with 'userns,'",
        )
    if found["kernel/unprivileged_userns_clone"] == "0" and found["uid"] != "0":
        return (
            "kernel.unprivileged_userns_clone is 0: only root may create user namespaces",
            "run as root (root mode needs no such grant)",
        )
    if step == "L7":
        return (
            "A user namespace could be created but bears no rights, or /proc is partly covered, as inside a container",
            "run on the host, or start the container with an unmasked /proc",
        )
    return "The system refused a user namespace", "run as root, or ask the administrator"


def host_checks() -> list[Check]:
    """Settings of the host that widen what a kernel bug could do, or what a granted mount shows."""
    return [check() for check in _HOST_CHECKS]


def _platform() -> Check:
    machine = platform.machine()
    known = machine == "x86_64"
    cause = f"Linux {platform.release()}, {machine}, Landlock ABI {landlock.abi()}"
    return Check("platform", "ok" if known else "warn", cause + ("" if known else "; tested on x86_64 only"))


def _core_pattern() -> Check:
    pattern = _read("/proc/sys/kernel/core_pattern")
    piped = pattern.startswith("|")
    cause = f"core dumps go to a program ({pattern.split()[0]})" if piped else "core dumps go to no program"
    return Check("core dumps", "ok", cause + "; agents are not dumpable before exec and limited to one byte after")


def _groups() -> Check:
    if os.geteuid() == 0:
        return Check("groups", "ok", "agents have no supplementary groups")
    risky = {"docker", "lxd", "disk", "shadow", "sudo", "wheel", "adm", "root"}
    names = {entry.gr_name for entry in grp.getgrall() if entry.gr_gid in os.getgroups()}
    if found := sorted(names & risky):
        cause = f"your groups {', '.join(found)} stay with agents: a granted mount is readable by their rights"
        return Check("groups", "warn", cause, "run from an account without them")
    return Check("groups", "ok", "no supplementary group that opens the host")


def _kernel_surface() -> Check:
    open_doors = [
        name
        for name, path, closed in (
            ("io_uring", "kernel/io_uring_disabled", "2"),
            ("unprivileged bpf", "kernel/unprivileged_bpf_disabled", "1 2"),
            ("userfaultfd", "vm/unprivileged_userfaultfd", "0"),
            ("legacy TIOCSTI", "dev/tty/legacy_tiocsti", "0"),
        )
        if (value := _read(f"/proc/sys/{path}")) and value not in closed.split()
    ]
    if open_doors:
        return Check(
            "kernel surface", "ok", f"open on this host: {', '.join(open_doors)}; closed for agents by seccomp"
        )
    return Check("kernel surface", "ok", "closed on this host, and for agents by seccomp")


_HOST_CHECKS: tuple[Callable[[], Check], ...] = (_groups, _core_pattern, _kernel_surface)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _meminfo(field: str) -> int:
    line = next(
        (line for line in _read("/proc/meminfo").splitlines() if line.startswith(f"{field}:")), f"{field}: 0 kB"
    )
    return int(line.split()[1])
