"""Makes the attempts: inside the sandbox of every kind, without it, and under one layer alone.

In: a `Stage`, a kind, the attempts. Out: a `Result` per attempt. Uses the product's own launcher, proxy and layers; the
only stand-ins are the far side of the network and a resolver, because nothing here may dial out.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import agent_os
from agent_os.kernel import egress
from agent_os.sandbox import spawner
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spec import GUEST_LIMITS, Bind, Limits, SpawnSpec, Workspace
from hostile import attempts, hoststate
from hostile.attempts_socks import ROUTED
from hostile.battery import ATTEMPTS
from hostile.stage import HERE, OTHER_UID, FarSide, OpenProxy, Stage, ordinary_uid, root_mode

SOURCES = str(Path(agent_os.__file__).resolve().parent.parent)
PYTHON = os.path.realpath(sys.executable)
KINDS = ("guest", "tool", "native-warm", "native-exec")
LAYERS = ("namespaces", "capabilities", "no_new_privs", "limits", "landlock", "seccomp", "egress")
ALL_BUT_NAMESPACES = ("capabilities", "limits", "landlock", "seccomp")
MARK = f"battery-{secrets.token_hex(4)}"

EGRESS = [one.id for one in ATTEMPTS.values() if "egress" in one.layers]


@dataclass(frozen=True)
class Result:
    id: str
    outcome: str  # succeeded, refused, n/a, broken; recorded: not judged
    detail: str


Results = dict[str, Result]


@dataclass
class Run:
    """What one spawn gave: results, and whatever went around them."""

    results: Results
    level: str
    landlock_abi: int
    host_uid: int
    output: str = field(repr=False)


def mode() -> str:
    return "root mode" if root_mode() else "user mode"


# -------------------------------------------------------------------------------------------------- inside the sandbox


def new_stage() -> tuple[Stage, spawner.Lease]:
    """Targets with the very host uid that the agents will have: only walls are between them."""
    lease = spawner.lease_uid(root_mode())
    return Stage(lease.host_uid, owned=False), lease


def again(lease: spawner.Lease) -> spawner.Lease:
    """The same uid for one more spawn, which gives back its own handle of the lock."""
    return spawner.Lease(lease.uid, os.dup(lease.lock)) if lease.lock >= 0 else spawner.Lease(lease.uid)


def spec_of(kind: str, stage: Stage, command: Sequence[str]) -> tuple[SpawnSpec, dict[str, Path]]:
    """A spawn as the product would order it, and the host directories it shows. The command is Python's."""
    name = f"{MARK}-{secrets.token_hex(4)}"
    project = stage.project(f"project-{name}")
    shown = {"payload": stage.base / "payload"}
    binds = [Bind("payload", "/battery")]
    base = os.path.realpath(sys.base_prefix)
    if kind in ("guest", "tool") and not f"{base}/".startswith("/usr/"):
        shown["python"] = Path(base)
        binds.append(Bind("python", base))
    at = str(project) if kind == "guest" else _place_of_work()
    spec = SpawnSpec(
        name,
        "native" if kind.startswith("native") else kind,  # type: ignore[arg-type]
        "exec" if kind == "native-exec" else "warm",
        argv=[*command] if kind == "native-warm" else [PYTHON, "-I", "-B", *command],
        env={"PATH": "/usr/bin:/bin", "HOME": "/home/agent"},
        cwd=at,
        net="proxy" if kind in ("guest", "native-exec") else "none",
        workspace=Workspace("bind" if kind == "tool" else "overlay", at),
        binds=binds,
        masks=stage.masks(at),
        limits=GUEST_LIMITS._replace(memory_mb=1024, pids=64, tmp_mb=64) if kind == "guest" else Limits(),
    )
    shown["lower"] = project
    if kind != "tool":
        shown["upper"] = _layer(stage, name)
    return spec, shown


def _place_of_work() -> str:
    """Not over the interpreter, should that lie below /work on this machine."""
    return "/agent" if any(path.startswith("/work/") for path in spawner.interpreter_prefixes()) else "/work"


def _layer(stage: Stage, name: str) -> Path:
    top = stage.base / f"layer-{name}"
    for folder in (top, top / "upper", top / "work"):
        folder.mkdir()
    stage.give(top)
    return top


def targets_inside(stage: Stage, spec: SpawnSpec) -> attempts.Targets:
    at = spec.workspace.at
    payload = {
        "payload": "/battery",
        "exe": "/battery/sleep",
        "ro_file": "/battery/read-only",
        "bound_socket": "/battery/service",
        "bound_datagram": "/battery/datagrams",
        "victim_file": "/battery/victim",
    }
    limits = {name: getattr(spec.limits, name) for name in ("pids", "nofile", "as_mb", "fsize_mb")}
    full = {"tmp": ("/tmp", spec.limits.tmp_mb, 65536), "shm": ("/dev/shm", 16, 4096)}
    outside = [f"{stage.base}/beyond", "/battery", "/usr/local/share", "/etc"]
    found = stage.targets(
        work=at, masked_in=sorted({at, "/work"}), full=full, outside=outside, inside=True, **limits, **payload
    )
    programs: list[str] = found["setuid_programs"]
    found["setuid_programs"] = ["/battery/setuid", *programs]
    return found


async def run_inside(
    launcher: spawner.Launcher,
    lease: spawner.Lease,
    stage: Stage,
    kind: str,
    ids: Iterable[str],
    *,
    min_level: str = "S2",
) -> Run:
    """One spawn that makes these attempts, one after the other."""
    spec, shown = spec_of(kind, stage, ["/battery/hostile/battery.py", "/battery/config.json"])
    spec = replace(spec, min_level=min_level)  # type: ignore[arg-type]
    ids = [id for id in ids if kind in (ATTEMPTS[id].kinds or KINDS)]
    config = {"ids": ids, "targets": targets_inside(stage, spec)}
    (stage.base / "payload/config.json").write_text(json.dumps(config))
    process, stdin, stdout, stderr = await spawn(launcher, lease, spec, shown)
    far = FarSide(stage.secret)
    host_uid = _host_uid(process.pidfd)
    assert host_uid != 0
    assert host_uid == stage.uid
    seen: list[egress.Connection] = []
    async with proxy(process.listeners, far, seen):
        os.write(stdin, b"go\n")
        os.close(stdin)
        output, errors = await asyncio.gather(asyncio.to_thread(drain, stdout), asyncio.to_thread(drain, stderr))
        await process.kill()
    process.close()
    far.close()
    text = output + errors
    run = Run(parse(output, ids), process.ready.level, process.ready.landlock_abi, host_uid, text)
    run.results = _from_outside(run.results, stage, far, [repr(seen), "\n".join(far.resolved)], text)
    return run


async def spawn(
    launcher: spawner.Launcher, lease: spawner.Lease, spec: SpawnSpec, shown: Mapping[str, Path]
) -> tuple[spawner.Process, int, int, int]:
    """The process, and our ends of its stdin, stdout and stderr."""
    streams = [os.pipe() for _ in range(3)]
    theirs = (streams[0][0], streams[1][1], streams[2][1])
    ours = (streams[0][1], streams[1][0], streams[2][0])
    sources = {name: os.open(path, os.O_PATH | os.O_DIRECTORY) for name, path in shown.items()}
    try:
        group = Group.create(spec.spawn_id)
        process = await launcher.spawn(spec, streams=theirs, sources=sources, group=group, lease=again(lease))
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in (*sources.values(), *theirs):
            os.close(fd)
    return process, *ours


async def act(
    launcher: spawner.Launcher, lease: spawner.Lease, stage: Stage, kind: str, *words: str, pids: int = 64
) -> tuple[spawner.Process, int, int]:
    """Start one of the actors; returns when it says that it is at work. With our ends of its stdin and stdout."""
    spec, shown = spec_of(kind, stage, ["/battery/hostile/actors.py", *words])
    spec = replace(spec, limits=spec.limits._replace(pids=pids))
    process, stdin, stdout, stderr = await spawn(launcher, lease, spec, shown)
    os.close(stderr)
    said = await asyncio.to_thread(os.read, stdout, 5)
    assert said == b"ready", said
    return process, stdin, stdout


@asynccontextmanager
async def proxy(listeners: Sequence[socket.socket], far: FarSide, seen: list[egress.Connection]) -> AsyncIterator[None]:
    """The product's proxy on the listener, if there is one, with the far side in place of the internet."""
    grants = [egress.parse_grant(text) for text in ("granted.test", "*.granted.test")]
    served = egress.Egress("battery", grants, seen.append, resolve=far.resolve, routed=[ROUTED])
    # The one seam: where the proxy would open a connection. A KeyError here means that it dials in another way now.
    room = egress.Egress._dial.__globals__
    real, room["_connect"] = room["_connect"], far.dial
    tasks = [asyncio.create_task(served.serve(listener)) for listener in listeners]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        room["_connect"] = real


def _from_outside(results: Results, stage: Stage, far: FarSide, logs: list[str], output: str) -> Results:
    """What the attempts cannot know of their own effect: names asked for, places dialled, secrets in any log."""
    found = dict(results)
    found |= {id: result for id, result in _carried(stage, far).items() if id in found}
    if far.forbidden and "73" in found:
        found["73"] = Result("73", "succeeded", f"dialled {far.forbidden}")
    said = " ".join(result.detail for result in results.values() if result.outcome == "succeeded")
    if stage.secret in output and stage.secret not in said:
        found["output"] = Result("output", "succeeded", "the secret is in the output, unseen by the attempts")
    if any(stage.secret in log for log in logs):
        found["log"] = Result("log", "succeeded", "the secret is in a log of the proxy or the resolver")
    return found


def _carried(stage: Stage, far: FarSide) -> Results:
    """Data that went out in a name."""
    marks = {"72": f"{stage.label}.denied", "72b": f"{stage.label}-by-socks"}
    seen = "\n".join(far.resolved)
    return {id: Result(id, "succeeded", "the resolver saw the data") for id, mark in marks.items() if mark in seen}


def _host_uid(pidfd: int) -> int:
    pid = next(
        line.split()[1] for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines() if line[:4] == "Pid:"
    )
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nUid:")[1].split()[1])


def drain(fd: int) -> str:
    with open(fd, "rb") as pipe:
        return pipe.read().decode(errors="replace")


def parse(output: str, ids: Iterable[str]) -> Results:
    """Every attempt asked for has a result; one that gave none is broken."""
    results: Results = {}
    for line in output.splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line)
            if "id" in record:
                id, outcome, detail = record["id"], record["outcome"], record["detail"]
                if ATTEMPTS[id].control.startswith("recorded"):
                    outcome, detail = "recorded", f"{outcome}: {detail}"
                results[id] = Result(id, outcome, detail)
    last = output.strip().splitlines()[-1:] or ["no output"]
    return results | {id: Result(id, "broken", f"no result; last: {last[0][:200]}") for id in ids if id not in results}


# ------------------------------------------------------------------------------------------------- without the sandbox


def run_outside(stage: Stage, ids: Sequence[str], *, layer: str = "", abi: int = 99, **more: object) -> Results:
    """As an unprivileged user of the host; those that need privilege as root of a throw-away user namespace."""
    results: Results = {}
    for where in ("plain", "box"):
        chosen = [id for id in ids if ATTEMPTS[id].control == where]
        if chosen:
            results |= _run_outside(stage, chosen, where == "box", layer, abi, more)
            with contextlib.suppress(FileNotFoundError):
                (stage.base / "marks/signal").unlink()
    return results


def _run_outside(stage: Stage, ids: list[str], box: bool, layer: str, abi: int, more: Mapping[str, object]) -> Results:
    assert stage.uid == ordinary_uid()
    config = {
        "path": [SOURCES, str(HERE.parent)],
        "uid": stage.uid,
        "other_uid": OTHER_UID,
        "box": box,
        "layer": layer,
        "abi": abi,
        "ids": ids,
        "targets": stage.targets(**more),
    }
    path = stage.base / "control.json"
    path.write_text(json.dumps(config))
    # An inherited descriptor and a variable, as a careless parent would leave them.
    held = os.open(stage.base / "hidden/file", os.O_RDONLY)
    try:
        done = subprocess.run(
            [PYTHON, "-B", "-I", str(HERE / "controls.py"), str(path), stage.marker],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=280,
            pass_fds=(held,),
            env={"KERNEL_SECRET": stage.secret},
        )
    finally:
        os.close(held)
    results = parse(done.stdout, ids)
    if any(result.outcome == "broken" for result in results.values()) and done.stderr:
        print(done.stderr[-2000:], file=sys.stderr)
    return results


def run_controls(stage: Stage) -> Results:
    """Every attempt where nothing stops it. `n/a` with the reason where this host cannot show it."""
    far = FarSide(stage.secret)
    open_proxy = OpenProxy(far)
    ids = [one.id for one in ATTEMPTS.values() if one.control in ("plain", "box") and one.id != "84"]
    results = run_outside(stage, ids, proxy=open_proxy.address)
    open_proxy.close()
    far.close()
    results |= _carried(stage, far)
    results["84"] = equal_streams_after_a_bare_fork()
    for one in ATTEMPTS.values():
        if one.control not in ("plain", "box"):
            why, _, reason = one.control.partition(": ")
            results[one.id] = Result(one.id, why, reason)
        elif reason := impossible_here(one.id, results[one.id]):
            results[one.id] = Result(one.id, "n/a", reason)
    return results


def impossible_here(id: str, result: Result) -> str:
    """Why a control that failed could not succeed on this machine; empty if it should have."""
    settings = {
        "46": ("kernel/io_uring_disabled", lambda value: value != 0, "io_uring is switched off"),
        "47": ("kernel/unprivileged_bpf_disabled", lambda value: value != 0, "bpf is for root only"),
        "48": ("kernel/perf_event_paranoid", lambda value: value > 2, "perf is for root only"),
        "54": ("kernel/dmesg_restrict", lambda value: value != 0, "the kernel's log is for root only"),
        "62": ("dev/tty/legacy_tiocsti", lambda value: value == 0, "TIOCSTI is switched off"),
    }
    if result.outcome == "succeeded":
        return ""
    if result.outcome == "n/a":
        return result.detail
    if id in settings:
        name, holds, reason = settings[id]
        with contextlib.suppress(OSError):
            if holds(int(Path(f"/proc/sys/{name}").read_text())):
                return f"{reason} ({name.replace('/', '.')})"
    if id in ("46b", "55", "57", "58", "59", "60", "60b", "61", "71") and result.detail in ("ENOSYS", "EAFNOSUPPORT"):
        return f"this kernel was built without it ({result.detail})"
    if id == "38" and result.detail == "EPERM":
        return "this kernel opens by handle for real root only"
    if id == "36" and "NoNewPrivs:\t1" in Path("/proc/self/status").read_text():
        return "we run without new privileges ourselves"
    return ""


def equal_streams_after_a_bare_fork() -> Result:
    """Two children made by the bare system call, past Python's own reseeding: they draw the same."""
    code = (
        "import ctypes, os, random\n"
        "libc = ctypes.CDLL(None); libc.syscall.restype = ctypes.c_long\n"
        "for _ in range(2):\n"
        "    if libc.syscall(ctypes.c_long(56 if os.uname().machine == 'x86_64' else 220), ctypes.c_long(17),"
        " *[ctypes.c_long(0)] * 4) == 0:\n"
        "        os.write(1, b'%032x\\n' % random.getrandbits(128)); os._exit(0)\n"
        "    os.wait()\n"
    )
    lines = subprocess.run([PYTHON, "-I", "-c", code], capture_output=True, text=True).stdout.split()
    same = len(lines) == 2 and lines[0] == lines[1]
    return Result("84", "succeeded" if same else "broken", f"{lines}")


async def run_egress_alone(stage: Stage) -> Results:
    """The proxy's rules with nothing else around the program."""
    far, seen = FarSide(stage.secret), list[egress.Connection]()
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    address = listener.getsockname()
    async with proxy([listener], far, seen):
        results = await asyncio.to_thread(run_outside, stage, EGRESS, proxy=address)
    far.close()
    return _from_outside(results, stage, far, [repr(seen), "\n".join(far.resolved)], "")


def attributed(layer: str, abi: int = 99) -> list[str]:
    """Attempts that this layer must stop alone."""
    return [
        one.id for one in ATTEMPTS.values() if layer in one.layers and (layer != "landlock" or one.layers[layer] <= abi)
    ]


async def run_namespaces_alone(stage: Stage, lease: spawner.Lease) -> Results:
    """All but 36, which no_new_privs stops as well: that one the launcher never leaves out."""
    ids = [id for id in attributed("namespaces") if id != "36"]
    launcher = await spawner.Launcher.start(without=ALL_BUT_NAMESPACES)
    try:
        return (await run_inside(launcher, lease, stage, "guest", ids, min_level="S0")).results
    finally:
        await launcher.close()


# ------------------------------------------------------------------------------------------------------ around it all


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Orphans of ours become our children instead of init's, so that none can hide."""
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(36, 0, 0, 0, 0)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # orphans that ended as our children
                pass


def survivors(known: Iterable[int] = ()) -> dict[int, str]:
    return {pid: words for pid, words in hoststate.descendants(os.getpid()).items() if pid not in set(known)}
