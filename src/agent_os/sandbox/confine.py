"""What a forked child does to itself before any foreign code runs: steps C1–C16, in the order of `AHEAD` and `STEPS`.

Goes in: an order, which is a SpawnSpec and descriptors. Comes out: a `ready` record on the status socket, then the
agent; or a `failed` record naming the step, and exit 125. Irreversible by design: each step takes away what an earlier
one needed. C1, C2 and C4 (`AHEAD`) are the same for every agent and need no order: a child that the launcher made in a
quiet moment has taken them when its order comes, and knows nothing of any agent until then.
"""

import array
import errno
import fcntl
import gc
import glob
import json
import os
import signal
import socket
import struct
import termios
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from agent_os.sandbox import guest_init, landlock, limits, root, seccomp, syscalls
from agent_os.sandbox.spec import LEVELS, MAX_BYTES, MAX_DESCRIPTORS, PROXY_PORT, SpawnSpec, decode, encode

AGENT_UID = 1000  # what an agent sees as its own
SPARE = "agent-os-spare"  # the name, as `ps` shows it, of a child that waits for its order
_STATUS, _WORKSPACE = 4, 5
_TIOCSPTLCK, _TIOCGPTPEER = 0x40045431, 0x5441  # unlock a terminal; open its agent's end without walking a path
_ISOLATED = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET
_SAMPLE = encode(SpawnSpec("", argv=["-"]))


@dataclass(frozen=True)
class Setup:
    """What the launcher knows and every child shares. The last three exist to simulate weaker hosts and failures."""

    root_mode: bool
    prefixes: tuple[str, ...]
    run_native: Callable[[list[str]], int]
    filters: dict[tuple[str, bool], bytes]
    landlock_abi: int
    without: frozenset[str] = frozenset()
    fail_at: str = ""


@dataclass
class Child:
    setup: Setup
    orders: socket.socket  # where its order comes from
    view: root.Root = field(init=False)  # from C4 on
    spec: SpawnSpec = field(init=False)  # from its order on
    fds: dict[str, int] = field(default_factory=dict[str, int])  # by the names of spec.descriptors
    layers: set[str] = field(default_factory=set[str])
    workspace: int = -1
    mounts: int = -1  # its mount namespace, which another run may be let into
    listeners: list[int] = field(default_factory=list[int])
    terminal: int = -1  # the kernel's end of the agent's own terminal
    beside: int = -1  # where its init is asked to run commands beside it

    def has(self, layer: str) -> bool:
        """Whether to apply a layer; noted, because the level is what was applied, not what was wished."""
        if layer in self.setup.without:
            return False
        self.layers.add(layer)
        return True


def be_agent(setup: Setup, orders: socket.socket, ahead: bool) -> int:
    """Prepare, wait for the order, take every other step, report, run. Returns the exit code of the agent, or 125."""
    syscalls.prctl(syscalls.PR_SET_NAME, SPARE.encode())
    child = Child(setup, orders)
    failed = _take(child, AHEAD)
    if ahead:
        rehearse(child)
    try:
        if not receive_order(child):
            return 0  # the launcher has ended
    except ValueError as problem:
        failed = {"step": "spec", "errno": 0, "why": str(problem)}
    failed = failed or _take(child, STEPS)
    if failed:
        _report(child, {"failed": failed})
        return guest_init.COULD_NOT_START
    status = socket.socket(fileno=_STATUS)
    spec = child.spec
    if spec.warm:
        status.close()
        return child.setup.run_native(spec.argv)
    keep_socket = spec.env.get("AGENT_OS_FD") == "3"
    asked = socket.socket(fileno=child.beside) if spec.beside else None
    own_terminal = spec.tty is not None
    return guest_init.run(
        spec.argv, spec.env, status, keep_agent_socket=keep_socket, terminal=own_terminal, asked=asked
    )


def _take(child: Child, steps: "Steps") -> dict[str, object] | None:
    """None, or which step failed and why: whatever goes wrong before `ready`, the kernel must hear of it."""
    step = "start"
    try:
        for step, take in steps:
            if step == child.setup.fail_at:
                raise OSError(errno.EIO, "failpoint")
            take(child)
    except Exception as problem:
        code = problem.errno if isinstance(problem, OSError) else None
        why = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        return {"step": step, "errno": code or 0, "why": why}
    return None


def rehearse(child: Child) -> None:
    """Touch what the order will need: pages are copied on their first use, and here nobody waits for it yet."""
    json.dumps({"ready": {"level": level(child.layers), "layers": sorted(child.layers)}})
    decode(_SAMPLE)


def receive_order(child: Child) -> bool:
    """The order and its descriptors; the status socket is always the first. False if there will be none."""
    message, ancillary, _, _ = child.orders.recvmsg(MAX_BYTES, socket.CMSG_SPACE(MAX_DESCRIPTORS * 4))
    fds = array.array("i", b"".join(data for _, _, data in ancillary)).tolist()
    child.orders.close()
    if not message:
        return False
    syscalls.prctl(syscalls.PR_SET_NAME, b"agent")
    child.fds = {"status": fds[0]}
    child.spec = decode(message)
    child.fds = dict(zip(child.spec.descriptors, fds, strict=True))
    return True


def level(layers: set[str]) -> str:
    """The ladder: which promise a set of applied layers carries."""
    if not {"identity", "namespaces", "capabilities", "seccomp", "limits"} <= layers:
        return "S0"
    if "landlock" not in layers:
        return "S1"
    return "S3" if "controllers" in layers else "S2"


def reset_signals(child: Child) -> None:
    """C1. The dispositions are the launcher's, which reset them all at its start. Its descriptors (a pidfd for every
    other agent, its sockets) are not for us."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    syscalls.close_all_but({0, 1, 2, child.orders.fileno()})


def start_session(child: Child) -> None:
    """C2. No controlling terminal, and no life without the launcher."""
    syscalls.die_with_parent()
    os.setsid()


def enter_namespaces(child: Child) -> None:
    """C4. The pid namespace came with the fork. In the new mount namespace, the part of the root that all agents share
    is laid at once."""
    syscalls.unshare(_ISOLATED)
    child.layers.add("namespaces")
    child.view = root.Root()


def join_cgroup(child: Child) -> None:
    """C3. Before any foreign code, and before the cgroup namespace, so that its root is the agent's own group."""
    limits.rank_for_memory(child.spec.limits)
    groups = [fd for name, fd in child.fds.items() if name.startswith("cgroup")]
    for fd in groups:
        os.write(fd, b"0")
    syscalls.unshare(syscalls.CLONE_NEWCGROUP)
    if groups and child.spec.controllers:
        child.has("controllers")


def mount_view(child: Child) -> None:
    """C5. Workspace, binds, masks, /tmp, proc. Needs the launcher's rights."""
    if child.spec.workspace.mode == "overlay" and "overlay" in child.setup.without:
        raise OSError(errno.ENODEV, "no overlay file system")
    uid = child.spec.uid if child.setup.root_mode else 0
    taken = root.join(child.fds["joined"], child.spec) if "joined" in child.fds else {}
    fds = {**child.fds, **taken}
    sources = root.Sources(fds, child.setup.root_mode, child.setup.prefixes, uid, frozenset(taken))
    child.workspace = root.assemble(child.view, child.spec, sources)
    child.mounts = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def leave_host_view(child: Child) -> None:
    """C6."""
    root.enter()


def open_network(child: Child) -> None:
    """C7. An empty network namespace; for `proxy` the listener is made here, as later layers forbid it."""
    syscalls.set_hostname(b"agent")
    if child.spec.net == "proxy":
        syscalls.loopback_up()
        ports = (PROXY_PORT, *child.spec.forward)
        child.listeners = [socket.create_server(("127.0.0.1", port), backlog=64).detach() for port in ports]


def change_uid(child: Child) -> None:
    """C8. Root mode: a host uid of its own. Clears capabilities, parent-death signal and dumpable."""
    if child.setup.root_mode:
        os.setresgid(child.spec.uid, child.spec.uid, child.spec.uid)
        os.setresuid(child.spec.uid, child.spec.uid, child.spec.uid)
    child.layers.add("identity")
    if child.spec.tty:
        _open_terminal(child, *child.spec.tty)


def enter_user_namespace(child: Child) -> None:
    """C9. Makes the process limit the agent's own, and all other namespaces somebody else's property."""
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # or our own uid_map could not be written
    uid, gid = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{AGENT_UID} {uid} 1"), ("gid_map", f"{AGENT_UID} {gid} 1")):
        file = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        os.write(file, text.encode())
        os.close(file)


def enter_folder(child: Child) -> None:
    """What is asked for may not be there, which is no failure of ours: a step with a name of its own."""
    os.chdir(child.spec.cwd)


def drop_rights(child: Child) -> None:
    """C10. No capability, no way to gain one, no look into our memory."""
    # a guest's files are meant to be committed with the usual modes; its workspace is closed to others anyway
    os.umask(0o022 if child.spec.kind == "guest" else 0o077)
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    if child.has("capabilities"):
        syscalls.drop_capabilities()
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    syscalls.die_with_parent()


def bound_resources(child: Child) -> None:
    """C11."""
    if child.has("limits"):
        limits.apply_rlimits(child.spec.limits)


def lock_files(child: Child) -> None:
    """C12. After the mounts it describes."""
    if child.setup.landlock_abi and child.has("landlock"):
        deny_tcp = child.spec.net == "none"
        landlock.restrict(_file_rules(child), deny_tcp=deny_tcp, use_abi=child.setup.landlock_abi)


def forget_shared_state(child: Child) -> None:
    """C13. The `random` module reseeds itself in a forked copy. The hash seed stays: one launcher per tenant. The
    environment is empty: the launcher threw its own away."""
    gc.enable()
    os.environ.update(child.spec.env)


def place_descriptors(child: Child) -> None:
    """C14. 0–2 streams, 3 the kernel, 4 status; those from 5 on leave with `ready`, but for that of its init's
    questions, which is last. Nothing else stays open."""
    wanted = {0: "stdin", 1: "stdout", 2: "stderr", 3: "agent", _STATUS: "status"}
    sources = {target: child.fds[name] for target, name in wanted.items() if name in child.fds}
    leaving = _leaving(child)
    sources |= dict(enumerate(leaving, _WORKSPACE))
    first_free = _WORKSPACE + len(leaving)
    if "beside" in child.fds:
        child.beside = first_free
        sources[child.beside] = child.fds["beside"]
        first_free += 1
    # first out of the way of each other, then into place
    parked = {target: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, first_free) for target, fd in sources.items()}
    for target in range(first_free):
        if target in parked:
            os.dup2(parked[target], target, inheritable=target < _STATUS)
        else:
            os.closerange(target, target + 1)
    syscalls.close_from(first_free)
    child.fds = {"status": _STATUS}


def filter_syscalls(child: Child) -> None:
    """C15. Last, because it forbids all of the above."""
    if child.has("seccomp"):
        seccomp.install(child.setup.filters[child.spec.net, child.spec.exec_memfd])


def report_ready(child: Child) -> None:
    """C16. Refuse here if the applied layers are worth less than was asked: no foreign code has run yet."""
    reached = level(child.layers)
    if LEVELS.index(reached) < LEVELS.index(child.spec.min_level):
        missing = sorted({"identity", "namespaces", "capabilities", "limits", "landlock", "seccomp"} - child.layers)
        lacks = ", ".join(missing) or {"S3": "cgroup controllers"}.get(child.spec.min_level, "a virtual machine")
        why = f"this host reaches isolation {reached}, but {child.spec.min_level} was asked for; it lacks: {lacks}"
        raise OSError(errno.EPERM, why)
    passed = list(range(_WORKSPACE, _WORKSPACE + len(_leaving(child))))
    abi = child.setup.landlock_abi if "landlock" in child.layers else 0
    ready = {"level": reached, "layers": sorted(child.layers), "landlock_abi": abi, "uid": child.spec.uid}
    _report(child, {"ready": ready}, passed)
    os.closerange(passed[0], passed[-1] + 1)
    if "limits" in child.layers:
        limits.bound_descriptors(child.spec.limits)


Steps = tuple[tuple[str, Callable[[Child], None]], ...]
AHEAD: Steps = (
    ("C1", reset_signals),
    ("C2", start_session),
    ("C4", enter_namespaces),
)
STEPS: Steps = (
    ("C3", join_cgroup),
    ("C5", mount_view),
    ("C6", leave_host_view),
    ("C7", open_network),
    ("C8", change_uid),
    ("C9", enter_user_namespace),
    ("cwd", enter_folder),
    ("C10", drop_rights),
    ("C11", bound_resources),
    ("C12", lock_files),
    ("C13", forget_shared_state),
    ("C14", place_descriptors),
    ("C15", filter_syscalls),
    ("C16", report_ready),
)


def _leaving(child: Child) -> list[int]:
    """Descriptors that go to the kernel with `ready`, in this order."""
    return [child.workspace, child.mounts, *child.listeners, *([child.terminal] if child.spec.tty else [])]


def _open_terminal(child: Child, rows: int, columns: int) -> None:
    """A terminal from the agent's own devpts, opened with the agent's uid so that it is its owner."""
    child.terminal = os.open("/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    fcntl.ioctl(child.terminal, _TIOCSPTLCK, struct.pack("i", 0))
    fcntl.ioctl(child.terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
    inner = fcntl.ioctl(child.terminal, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    child.fds |= dict.fromkeys(("stdin", "stdout", "stderr"), inner)


def _file_rules(child: Child) -> Iterator[landlock.Rule]:
    spec = child.spec
    execute = 0 if spec.exec_allow is not None else landlock.EXECUTE
    read, write = landlock.READ & ~landlock.EXECUTE | execute, landlock.WRITE & ~landlock.EXECUTE | execute
    for path in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc"):
        yield landlock.Rule(path, read)
    if spec.kind == "native":
        for prefix in child.setup.prefixes:
            yield landlock.Rule(prefix, read)
    for path in ("/tmp", "/home/agent", "/work", spec.workspace.at):
        yield landlock.Rule(path, write)
    for bind in spec.binds:
        yield landlock.Rule(bind.dst, (write if bind.rw else read) & ~(0 if bind.exec else landlock.EXECUTE))
    yield landlock.Rule("/dev/shm", landlock.WRITE & ~landlock.EXECUTE)
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        yield landlock.Rule(f"/dev/{name}", landlock.DEVICE)
    yield landlock.Rule("/dev/pts", landlock.DEVICE | landlock.READ_DIR)
    if spec.exec_allow is not None:
        for path in (*spec.exec_allow, *glob.glob("/lib*/ld-*.so*"), *glob.glob("/lib/*/ld-*.so*")):
            yield landlock.Rule(path, landlock.EXECUTE | landlock.READ_FILE)


def _report(child: Child, record: dict[str, object], passed: list[int] | None = None) -> None:
    status = socket.socket(fileno=child.fds["status"])
    socket.send_fds(status, [json.dumps(record).encode()], passed or [])
    status.detach()
