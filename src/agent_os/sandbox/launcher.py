"""The launcher (zygote): a warm interpreter inside its own namespaces that forks confined agents in milliseconds.

Three processes, each the child of the one before; the death of any kills all after it:
  starter   in the host's namespaces; writes id maps, and in root mode makes id-mapped mounts on request
  holder    entered the new namespaces; waits
  launcher  pid 1 of a pid namespace; every agent is its child in a pid namespace of its own
Started by `spawner` as a fresh interpreter with an empty environment and two sockets. Imports the preload named in its
configuration and nothing else: author code is never imported before confinement.
"""

import array
import contextlib
import errno
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from agent_os.sandbox import confine, landlock, root, seccomp, spec, syscalls
from agent_os.sandbox.spec import FIRST_HOST_UID, HOST_UIDS, Config

_QUIET_SECONDS = 0.005  # without a request or an end: then a spare is made, not while it would delay somebody
_NEW = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWCGROUP
    | syscalls.CLONE_NEWPID
)


class StepFailed(Exception):
    def __init__(self, step: str, cause: Exception) -> None:
        super().__init__(f"{step}: {cause}")
        code = cause.errno if isinstance(cause, OSError) else None
        why = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
        self.record = {"failed": {"step": step, "errno": code or 0, "why": why}}


def main() -> NoReturn:
    """argv: configuration as JSON, descriptor of the launcher socket, descriptor of the starter socket."""
    given = json.loads(sys.argv[1])
    config = Config(**given)
    requests, services = (socket.socket(fileno=int(text)) for text in sys.argv[2:4])
    try:
        _start(config, requests, services)
    except StepFailed as failure:
        requests.send(json.dumps(failure.record).encode())
    except Exception as problem:  # whatever it was, the kernel must hear of it
        requests.send(json.dumps(StepFailed("launcher", problem).record).encode())
    os._exit(1)


def _start(config: Config, requests: socket.socket, services: socket.socket) -> NoReturn:
    """Steps L1–L10: in the starter until the first fork, in the holder until the second, then in the launcher."""
    step = _Steps(config.fail_at)
    run_native = step("L1", lambda: _preload(config))
    # In root mode sources may lie below directories that only root can enter: pin them while we still are root.
    trees: dict[str, int] = step("L6", lambda: root.pin(config.prefixes)) if config.root_mode else {}
    outside, inside = socket.socketpair()
    holder: int = step("L2", os.fork)
    if holder:
        requests.close()
        inside.close()
        _write_maps_when_asked(outside, holder, config.root_mode)
        _serve_host_side(services, holder)
    services.close()
    outside.close()
    syscalls.die_with_parent()
    if config.root_mode:
        os.setgroups([])
    step("L3", lambda: syscalls.unshare(_NEW))
    step("L4", lambda: _take_ids(inside))
    syscalls.die_with_parent()
    if step("L5", os.fork):
        requests.close()
        _wait_for_child()
    syscalls.die_with_parent()
    inside.close()
    if not config.root_mode:
        trees = step("L6", lambda: root.pin(config.prefixes))
    step("L7", lambda: _build_view(config, trees))
    known_abi = landlock.abi()
    setup = confine.Setup(
        root_mode=config.root_mode,
        prefixes=tuple(config.prefixes),
        run_native=run_native,
        filters=step("L8", _filters),
        landlock_abi=known_abi if config.landlock_abi is None else min(config.landlock_abi, known_abi),
        without=frozenset(config.without),
        fail_at=config.fail_at,
    )
    spec.reader()
    step("L9", _freeze_heap)
    requests.send(b'{"up": true}')
    _Nursery(setup, requests).run()


class _Steps:
    """Names the step that an error belongs to, and fails on purpose at the one a test asks for."""

    def __init__(self, fail_at: str) -> None:
        self._fail_at = fail_at

    def __call__(self, name: str, take: Callable[[], Any]) -> Any:
        try:
            if name == self._fail_at:
                raise OSError(errno.EIO, "failpoint")
            return take()
        except (OSError, ImportError, AttributeError) as problem:
            raise StepFailed(name, problem) from problem


def _preload(config: Config) -> Callable[[list[str]], int]:
    """L1. Forking and entering a user namespace both need exactly one thread. Signals are reset here for all agents: an
    inherited ignored SIGCHLD would make every `subprocess` report success."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor for every agent
    # An order may hold secrets, and we may have been started before the kernel set its own limits.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    sys.path[:0] = config.path
    module, _, function = config.entry.partition(":")
    run_native = getattr(importlib.import_module(module), function)
    if len(os.listdir("/proc/self/task")) != 1:
        raise OSError(errno.EBUSY, "the preload started a thread")
    return run_native


def _write_maps_when_asked(outside: socket.socket, holder: int, root_mode: bool) -> None:
    """L4, from outside. Host uid 0 is not in the map, so from here on it cannot be reached."""
    if not outside.recv(1):
        return
    if root_mode:
        lines = {"uid_map": f"0 {FIRST_HOST_UID} {HOST_UIDS}", "gid_map": f"0 {FIRST_HOST_UID} {HOST_UIDS}"}
    else:
        lines = {"setgroups": "deny", "uid_map": f"0 {os.geteuid()} 1", "gid_map": f"0 {os.getegid()} 1"}
    try:
        for name, text in lines.items():
            with open(f"/proc/{holder}/{name}", "w") as file:
                file.write(text)
        outside.send(b"mapped")
    except OSError as problem:
        outside.send(str(problem).encode())
    outside.close()


def _take_ids(inside: socket.socket) -> None:
    inside.send(b"?")
    answer = inside.recv(1024).decode()
    if answer != "mapped":
        raise OSError(errno.EPERM, f"the id maps could not be written: {answer}")
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _build_view(config: Config, trees: dict[str, int]) -> None:
    """L7. A full proc of our own: agents may mount theirs only where a fully visible one exists."""
    syscalls.mount(None, "/", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    _share_inotify()
    root.build_template(trees, config.prefixes)


def _share_inotify() -> None:
    """In user mode what agents watch is counted as the operator's own: leave half of that to the operator."""
    for name in ("instances", "watches"):
        with contextlib.suppress(FileNotFoundError):
            with open(f"/proc/sys/fs/inotify/max_user_{name}") as file:
                half = int(file.read()) // 2
            with open(f"/proc/sys/user/max_inotify_{name}", "w") as file:
                file.write(str(half))


def _filters() -> dict[tuple[str, bool], bytes]:
    """L8."""
    if syscalls.MACHINE not in syscalls.ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no seccomp table for {syscalls.MACHINE}")
    nets = ("none", "proxy", "unix")
    return {(net, memfd): seccomp.program(net, memfd) for net in nets for memfd in (False, True)}


def _freeze_heap() -> None:
    """L9. Untouched pages stay shared with every agent; nothing of our environment is."""
    os.environ.clear()
    gc.collect()
    gc.freeze()
    gc.disable()


class _Born(NamedTuple):
    """A child of ours. Until it has its order it is any agent's, and knows nothing of one."""

    pid: int
    pidfd: int
    orders: socket.socket


class _Nursery:
    """L10. Spawn on request, report every end. The kernel closing its socket ends us, and with us every agent.

    In a quiet moment one child is made ahead, the spare: it has taken the steps that are the same for all when its
    order comes. Whoever comes while there is none waits for a child of its own, by the same way."""

    def __init__(self, setup: confine.Setup, requests: socket.socket) -> None:
        self._setup, self._requests = setup, requests
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._order = bytearray(spec.MAX_BYTES)
        self._watch = select.epoll()
        self._watch.register(requests, select.EPOLLIN)
        self._running: dict[int, tuple[int, str]] = {}  # pidfd → pid, spawn_id once it has one
        self._spare: _Born | None = None
        self._spare_due = True  # once after each request: a host on which spares die is not asked again and again

    def run(self) -> NoReturn:
        while True:
            events = self._watch.poll(_QUIET_SECONDS if self._spare_due else None)
            if not events:
                self._make_spare()
            for fd, _ in events:
                if fd == self._requests.fileno():
                    self._handle()
                else:
                    self._bury(fd)

    def _handle(self) -> None:
        """Every later agent is a copy of us, so an order (its environment may hold secrets) is read by its own child
        only, and wiped here."""
        room = socket.CMSG_SPACE(spec.MAX_DESCRIPTORS * 4)
        size, ancillary, _, _ = self._requests.recvmsg_into([self._order], room)
        if not size:
            os._exit(0)
        fds = array.array("i", b"".join(data for _, _, data in ancillary)).tolist()
        spawn_id = self._order[: self._order.index(b"\n")].decode()
        self._spare_due = True
        try:
            child = self._give_order(memoryview(self._order)[:size], fds)
            self._running[child.pidfd] = (child.pid, spawn_id)
            _tell(self._requests, {"spawned": {"spawn_id": spawn_id}}, child.pidfd)
        except OSError as problem:
            _tell(self._requests, {"refused": {"errno": problem.errno or 0, "why": str(problem)}})
        finally:
            self._order[:size] = bytes(size)
            for fd in fds:
                os.close(fd)

    def _give_order(self, order: memoryview, fds: list[int]) -> _Born:
        child, self._spare = self._spare, None
        if child:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died, and will be buried
                return _send_order(child, order, fds)
        return _send_order(self._bear(), order, fds)

    def _bear(self, ahead: bool = False) -> _Born:
        """A child that is pid 1 of a new pid namespace; ourselves we stay where we were."""
        orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        syscalls.unshare(syscalls.CLONE_NEWPID)
        try:
            pid = os.fork()
            if pid == 0:
                os._exit(_be_agent(self._setup, theirs, ahead))
        finally:
            syscalls.setns(self._own_pids, syscalls.CLONE_NEWPID)
            theirs.close()
        pidfd = os.pidfd_open(pid)
        self._watch.register(pidfd, select.EPOLLIN)
        self._running[pidfd] = (pid, "")
        return _Born(pid, pidfd, orders)

    def _make_spare(self) -> None:
        self._spare_due = False
        with contextlib.suppress(OSError):  # who is asked for next will hear of it
            self._spare = self._bear(ahead=True)

    def _bury(self, pidfd: int) -> None:
        pid, spawn_id = self._running.pop(pidfd)
        _, status, usage = os.wait4(pid, 0)
        self._watch.unregister(pidfd)
        os.close(pidfd)
        if spawn_id:
            used = {"user_s": usage.ru_utime, "system_s": usage.ru_stime, "max_rss_kb": usage.ru_maxrss}
            _tell(self._requests, {"exit": {"spawn_id": spawn_id, "status": status, "rusage": used}})


def _send_order(child: _Born, order: memoryview, fds: list[int]) -> _Born:
    with child.orders:
        socket.send_fds(child.orders, [order], fds)
    return child


def _be_agent(setup: confine.Setup, orders: socket.socket, ahead: bool) -> int:
    """Nothing may escape upwards into the launcher's loop, whatever the agent's code raises."""
    try:
        return confine.be_agent(setup, orders, ahead)
    except BaseException:
        traceback.print_exc()
        return 1


def _tell(requests: socket.socket, record: dict[str, Any], *fds: int) -> None:
    try:
        socket.send_fds(requests, [json.dumps(record).encode()], fds)
    except OSError:
        os._exit(0)  # the kernel is gone; so are we and every agent


def _wait_for_child() -> NoReturn:
    syscalls.close_from(3)
    os.wait()
    os._exit(0)


def _serve_host_side(services: socket.socket, holder: int) -> NoReturn:
    """The starter's remaining life: id-mapped mounts on request, until the kernel or the holder ends."""
    watch = select.epoll()
    holder_fd = os.pidfd_open(holder)
    watch.register(holder_fd, select.EPOLLIN)
    watch.register(services, select.EPOLLIN)
    while True:
        for fd, _ in watch.poll():
            if fd == holder_fd:
                os._exit(0)
            message, fds, _, _ = socket.recv_fds(services, 4096, 1)
            if not message:
                os._exit(0)
            try:
                tree = _owned_tree(fds[0], **json.loads(message))
                socket.send_fds(services, [b'{"tree": true}'], [tree])
                os.close(tree)
            except OSError as problem:
                services.send(json.dumps({"errno": problem.errno, "why": str(problem)}).encode())
            for received in fds:
                os.close(received)


def _owned_tree(source: int, owner: list[int] | None, uid: int) -> int:
    """A private mount of a host directory in which the owner's files belong to the agent, on disk unchanged."""
    tree = syscalls.clone_tree(at=source)
    if owner is None:
        return tree
    ids = _id_namespace(owner, FIRST_HOST_UID + uid)
    try:
        syscalls.set_tree(tree, syscalls.ATTR_IDMAP, userns=ids)
    except OSError:
        os.close(tree)
        raise
    finally:
        os.close(ids)
    return tree


def _id_namespace(owner: list[int], agent: int) -> int:
    """A user namespace that exists only as a pair of maps: owner on disk ↔ agent."""
    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        syscalls.die_with_parent()
        os.close(done[1])
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        os.write(ready[1], b"r")
        os.read(done[0], 1)
        os._exit(0)
    os.close(ready[1])
    try:
        if not os.read(ready[0], 1):
            raise OSError(errno.EPERM, "no user namespace for the id map")
        for name, host in (("uid_map", owner[0]), ("gid_map", owner[1])):
            with open(f"/proc/{pid}/{name}", "w") as file:
                file.write(f"{host} {agent} 1")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (ready[0], *done):
            os.close(fd)
        os.waitpid(pid, 0)
