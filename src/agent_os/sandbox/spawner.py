"""The kernel's side of the wall: starts a launcher, asks it for agents, and holds what came back.

Goes in: a SpawnSpec, three streams and descriptors of host directories. Comes out: a `Process` with a pidfd, the level
that was really reached, the workspace's descriptor and the network listener. Uses asyncio; never forks the kernel.
"""

import asyncio
import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from agent_os.sandbox.beside import Commands
from agent_os.sandbox.cgroup import Group
from agent_os.sandbox.spec import FIRST_HOST_UID, HOST_UIDS, Config, SpawnSpec, SpecError, encode

READY_SECONDS = 30.0
# Spawns under way. Linux counts descriptors in flight per user and against the sender's own limit, which an agent's is.
_AT_ONCE = 16
_MAX_RECEIVED = 32
JOINED = "joined"  # among sources
_TRIES = 4  # launchers that may die under one spawn
_LEASES = "/run/agent-os.uids"
# Without -B: its modules are compiled once. Agents write no bytecode, `userland.native` sees to that.
_BOOT = "import sys; sys.path.insert(0, sys.argv[4]); from agent_os.sandbox.launcher import main; main()"
_PACKAGE_PATH = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

Answer = tuple[dict[str, Any], list[int]]  # a record and the descriptors that came with it


class SandboxError(Exception):
    """`word` is level, setup, spec, launcher or idmap; `step` and `errno` say where and what."""

    def __init__(self, word: str, why: str, step: str = "", errno: int = 0) -> None:
        super().__init__(why)
        self.word, self.why, self.step, self.errno = word, why, step, errno


@dataclass(eq=False, repr=False)
class Lease:
    """A uid of the reserved range that no other agent on this machine has now. Root mode only; else uid 1, unused."""

    uid: int
    lock: int = -1
    host_uid: int = field(init=False)

    def __post_init__(self) -> None:
        self.host_uid = FIRST_HOST_UID + self.uid if self.lock >= 0 else os.geteuid()

    def release(self) -> None:
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1

    def shared(self) -> "Lease":
        """The same uid for somebody beside it; it is free when both have given it back."""
        return Lease(self.uid, os.dup(self.lock) if self.lock >= 0 else -1)


def lease_uid(root_mode: bool, again: int | None = None) -> Lease:
    """Taken by a lock on one byte of one file, so a killed kernel gives its leases back. `again` is a host uid that an
    agent had before and whose files it goes on with: that one, if it is free."""
    if not root_mode:
        return Lease(1)
    lock = os.open(_LEASES, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    first = int.from_bytes(os.urandom(2), "little") if again is None else again - FIRST_HOST_UID - 1
    for offset in range(HOST_UIDS - 1):
        uid = 1 + (first + offset) % (HOST_UIDS - 1)
        try:
            _lock_byte(lock, uid)
        except OSError:
            continue
        return Lease(uid, lock)
    os.close(lock)
    raise SandboxError("setup", "all 4,095 agent uids are in use", "uid")


def _lock_byte(fd: int, position: int) -> None:
    """An open-file-description lock: unlike a POSIX one it also excludes other descriptors of this process."""
    fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, position, 1, 0))  # F_OFD_SETLK


class Ready(NamedTuple):
    level: str
    layers: tuple[str, ...]
    landlock_abi: int
    uid: int


class Exit(NamedTuple):
    status: int  # as from wait()
    rusage: dict[str, float]
    lost: bool = False  # the launcher died, and the agent with it

    @property
    def code(self) -> int:
        """Exit code, or 128+n for signal n."""
        code = os.waitstatus_to_exitcode(self.status)
        return code if code >= 0 else 128 - code


@dataclass(eq=False, repr=False)
class Process:
    """One running agent. Its pid 1 dies with everything it ever started."""

    spec: SpawnSpec
    pidfd: int
    ready: Ready
    workspace: int  # O_PATH descriptor of its root
    mounts: int  # its mount namespace
    listeners: list[socket.socket]  # of its network namespace: the proxy's, then one for each of spec.forward
    terminal: int | None  # our end of its terminal, if it has one
    group: Group | None
    exited: "asyncio.Future[Exit]"
    lease: Lease
    commands: Commands | None = None  # beside its own, where its init runs any

    def __post_init__(self) -> None:
        if self.group and self.group.alarm >= 0:
            self.exited.get_loop().add_reader(self.group.alarm, self._end_out_of_memory)

    def signal(self, number: int) -> None:
        if self.pidfd >= 0:
            _signal(self.pidfd, number)

    async def kill(self) -> Exit:
        """Returns only when nothing of the agent is left."""
        self.strike()
        return await self.wait()

    def strike(self) -> None:
        """Kill it, and do not wait for that to be true."""
        self.signal(signal.SIGKILL)
        if self.group and self.pidfd >= 0:
            self.group.kill()

    async def freeze(self, frozen: bool = True) -> bool:
        if self.group is None:
            return False
        return await asyncio.to_thread(self.group.freeze, frozen)

    async def wait(self) -> Exit:
        """The end of pid 1 is the end of its pid namespace: Linux reports it after everything in it is gone."""
        return await asyncio.shield(self.exited)

    def close(self) -> None:
        """Give back descriptors, cgroup and uid. Call once, after `wait`."""
        for fd in (self.pidfd, self.workspace, self.mounts, self.terminal):
            if fd is not None:
                os.close(fd)
        for ours in (*self.listeners, *([self.commands] if self.commands else ())):
            ours.close()
        if self.group:
            self._forget_alarm()
            self.group.remove()
        self.lease.release()
        self.pidfd = -1

    def ran_out_of_memory(self) -> bool:
        """Whether its memory limit ended it, or something in it. To be asked before `close`."""
        return self.group is not None and self.group.ran_out_of_memory()

    def _end_out_of_memory(self) -> None:
        """Linux is killing one process of the agent for its memory limit; what is left of it is of no use."""
        if self.group and self.group.answer_alarm():
            self._forget_alarm()
            self.strike()

    def _forget_alarm(self) -> None:
        if self.group and self.group.alarm >= 0:
            self.exited.get_loop().remove_reader(self.group.alarm)


class Launcher:
    """A running launcher. `start` returns when it can spawn; its death ends every agent it made. `begin` returns at
    once and needs no loop: its interpreter loads while ours does, until `ready`."""

    def __init__(self, config: Config, python: str) -> None:
        self._config, self._python = config, python
        self._sending, self._mapping = asyncio.Lock(), asyncio.Lock()
        self._starting = asyncio.Semaphore(_AT_ONCE)
        self._replies: deque[asyncio.Future[Answer]] = deque()  # the launcher answers in the order it was asked
        self._exits: dict[str, asyncio.Future[Exit]] = {}
        self._pidfds: dict[str, int] = {}  # of those that run; whoever awaits an exit closes it afterwards
        self._gone, self._closed = True, False

    @classmethod
    def begin(
        cls,
        *,
        entry: str = "agent_os.userland.native:run",
        prefixes: Sequence[str] | None = None,
        python: str = sys.executable,
        root_mode: bool | None = None,
        **simulate: Any,
    ) -> "Launcher":
        """`simulate` (landlock_abi, without, fail_at) stands for weaker hosts and failing steps in tests and probes."""
        shown = interpreter_prefixes() if prefixes is None else prefixes
        root = is_host_root() if root_mode is None else root_mode
        self = cls(Config(entry, _library_paths(), list(shown), root, **simulate), python)
        self._begin()
        return self

    @classmethod
    async def start(cls, **given: Any) -> "Launcher":
        """As `begin`, and ready."""
        return await cls.begin(**given).ready()

    @property
    def root_mode(self) -> bool:
        return self._config.root_mode

    def _begin(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._services, their_services = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fds = (theirs.fileno(), their_services.fileno())
        config = json.dumps(self._config._asdict())
        # Like -I, but for the one variable that we set: a program run again must walk its sets in the same order.
        command = [self._python, "-Ps", "-S", "-c", _BOOT, config, *map(str, fds), _PACKAGE_PATH]
        env = {"PYTHONHASHSEED": "0"}
        quiet = subprocess.DEVNULL
        with theirs, their_services:
            self._starter = subprocess.Popen(
                command, env=env, cwd="/", pass_fds=fds, start_new_session=True, stdin=quiet, stdout=quiet, stderr=quiet
            )

    async def ready(self) -> "Launcher":
        """Returns when it can spawn. SandboxError: it cannot, and it has ended."""
        loop = asyncio.get_running_loop()
        self._requests.setblocking(False)
        self._gone = False
        first: asyncio.Future[Answer] = loop.create_future()
        self._replies.append(first)
        loop.add_reader(self._requests, self._receive)
        try:
            record, _ = await asyncio.wait_for(first, READY_SECONDS)
        except TimeoutError:
            record = _failure(f"no answer within {READY_SECONDS:.0f} s")
        except BaseException:
            await self._end()
            raise
        if failed := record.get("failed"):
            word = "launcher" if self._gone and failed["step"] == "launcher" else "setup"  # else it said what failed
            await self._end()
            raise SandboxError(word, failed["why"], failed["step"], failed["errno"])
        return self

    def _receive(self) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(self._requests, 65536, 1)
        except BlockingIOError:
            return
        except OSError:
            message, fds = b"", list[int]()
        record: dict[str, Any] = json.loads(message) if message else {}
        if not record:
            self._lost()
        elif ended := record.get("exit"):
            self._pidfds.pop(ended["spawn_id"], None)
            _settle(self._exits.pop(ended["spawn_id"]), Exit(ended["status"], ended["rusage"]))
        else:
            if spawned := record.get("spawned"):
                self._pidfds[spawned["spawn_id"]] = fds[0]
            _settle(self._replies.popleft(), (record, fds))

    def _lost(self) -> None:
        """The launcher is gone, and every agent ends with its pid namespace. Linux closes the socket first and ends the
        agents then: each is lost when its own pidfd says so, not before."""
        if self._gone:
            return
        self._gone = True
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._requests)
        while self._replies:
            answer: Answer = (_failure("the launcher ended; every agent it had made ended with it"), [])
            _settle(self._replies.popleft(), answer)
        for spawn_id in list(self._exits):
            if (pidfd := self._pidfds.get(spawn_id)) is not None:
                loop.add_reader(pidfd, self._bury, spawn_id)

    def _bury(self, spawn_id: str) -> None:
        if (pidfd := self._pidfds.pop(spawn_id, None)) is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
        if waiting := self._exits.pop(spawn_id, None):
            _settle(waiting, Exit(signal.SIGKILL, {}, lost=True))

    async def spawn(
        self,
        spec: SpawnSpec,
        *,
        streams: tuple[int, int, int],
        agent: int | None = None,
        sources: Mapping[str, int] | None = None,
        group: Group | None = None,
        lease: Lease | None = None,
    ) -> Process:
        """`sources` are O_PATH descriptors of host files, named as the spec refers to them; the caller keeps them and
        the streams. `joined` among them is the mount namespace of an agent whose workspace and binds are to be seen.
        Group and lease are taken over. On failure or cancellation nothing is left of the agent.
        A launcher found dead is started again, and so is one that dies meanwhile, a few times: nothing of the agent's
        own has run by then."""
        fds = {"stdin": streams[0], "stdout": streams[1], "stderr": streams[2]}
        if agent is not None:
            fds["agent"] = agent
        asked = asyncio.create_task(self._in_turn(self._spawn(spec, fds, sources or {}, group, lease)))
        try:
            return await asyncio.shield(asked)
        except asyncio.CancelledError:
            with contextlib.suppress(SandboxError):
                process = await asked
                await process.kill()
                process.close()
            raise

    async def _in_turn(self, spawning: Coroutine[Any, Any, Process]) -> Process:
        async with self._starting:
            return await spawning

    async def _spawn(
        self, spec: SpawnSpec, fds: dict[str, int], sources: Mapping[str, int], group: Group | None, lease: Lease | None
    ) -> Process:
        try:
            lease = lease or lease_uid(self.root_mode)
            if group and not {"limits", "controllers"} & set(self._config.without):
                group.apply(spec.limits)
                spec = replace(spec, controllers=group.enforces(spec.limits))
            for _ in range(_TRIES - 1):
                try:
                    return await self._attempt(spec, fds, sources, group, lease)
                except SandboxError as problem:
                    if problem.word != "launcher":
                        raise
            return await self._attempt(spec, fds, sources, group, lease)
        except BaseException:
            if group:
                group.kill()
                group.remove()
            if lease:
                lease.release()
            raise

    async def _attempt(
        self, spec: SpawnSpec, fds: dict[str, int], sources: Mapping[str, int], group: Group | None, lease: Lease
    ) -> Process:
        await self._revive()  # before anything is asked of the starter, which went with its launcher
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        status.setblocking(False)
        with status, theirs, contextlib.ExitStack() as opened:
            fds = {"status": theirs.fileno(), **fds}  # first: the child must find it before it can read the spec
            for index, fd in enumerate(group.open_procs() if group else ()):
                fds[f"cgroup{index}"] = fd
                opened.callback(os.close, fd)
            for name, fd in sources.items():
                is_tree = self.root_mode and name != JOINED
                fds[name] = await self._tree(name, fd, lease, opened) if is_tree else fd
            line = _line(fds, opened) if spec.beside else None
            exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
            pidfd = await self._request(replace(spec, uid=lease.uid, descriptors=list(fds)), fds, exited)
            theirs.close()
            try:
                async with asyncio.timeout(READY_SECONDS):
                    ready, received = await _read_status(status, until_exec=not spec.warm)
            except (SandboxError, TimeoutError) as problem:
                _signal(pidfd, signal.SIGKILL)
                ended = await exited
                os.close(pidfd)
                raise _why_not_ready(problem, ended, group) from problem
            commands = Commands(line.dup()) if line else None
        terminal = received.pop() if spec.tty else None
        workspace, mounts, *ports = received
        listeners = [socket.socket(fileno=fd) for fd in ports]
        return Process(spec, pidfd, ready, workspace, mounts, listeners, terminal, group, exited, lease, commands)

    async def _revive(self) -> None:
        if self._gone:
            async with self._sending:
                if self._closed:
                    raise SandboxError("launcher", "the launcher was closed")
                if self._gone:
                    await self._end()
                    self._begin()
                    await self.ready()

    async def _request(self, spec: SpawnSpec, fds: Mapping[str, int], exited: "asyncio.Future[Exit]") -> int:
        """Ask the launcher for a child; its pidfd."""
        reply: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        message = _encoded(spec)
        async with self._sending:
            if self._gone:
                raise SandboxError("launcher", "the launcher ended before it could be asked")
            try:
                await _send(self._requests, message, list(fds.values()))
            except SandboxError:
                self._lost()
                raise
            self._replies.append(reply)
            self._exits[spec.spawn_id] = exited
        record, passed = await reply
        if "spawned" in record:
            return passed[0]
        self._exits.pop(spec.spawn_id, None)
        if refused := record.get("refused"):
            raise SandboxError("setup", refused["why"], "fork", refused["errno"])
        raise SandboxError("launcher", record["failed"]["why"], record["failed"]["step"])

    async def _tree(self, name: str, fd: int, lease: Lease, opened: contextlib.ExitStack) -> int:
        """Root mode: the starter turns a descriptor into a private mount in which the owner's files are the agent's.
        The overlay's upper directory belongs to the agent already. Where a file system cannot map ids, binds are shown
        as they are; a workspace must not be, because the agent could not write its own files."""
        facts = os.fstat(fd)
        is_agents = name == "upper" or facts.st_uid == lease.host_uid
        owners: list[list[int] | None] = [None] if is_agents else [[facts.st_uid, facts.st_gid]]
        if name != "lower":
            owners.append(None)
        why, code = "", 0
        for owner in owners:
            request = json.dumps({"owner": owner, "uid": lease.uid}).encode()
            async with self._mapping:
                asked = self._services
                answer, received = await asyncio.to_thread(_ask, asked, request, fd)
            if received:
                opened.callback(os.close, received[0])
                return received[0]
            if not answer:
                if asked is self._services:
                    self._lost()
                raise SandboxError("launcher", "the launcher's starter ended before it could show a directory")
            why, code = answer["why"], answer["errno"]
        raise SandboxError("idmap", why, "trees", code)

    async def close(self) -> None:
        """End the launcher for good and with it every agent; returns when the processes are gone."""
        self._closed = True
        await self._end()

    async def _end(self) -> None:
        self._lost()
        self._requests.close()  # the launcher exits, Linux ends its pid namespace, then holder and starter follow
        try:
            await asyncio.to_thread(self._starter.wait, READY_SECONDS)
        except subprocess.TimeoutExpired:
            self._starter.kill()
            await asyncio.to_thread(self._starter.wait)
        self._services.close()
        for spawn_id in list(self._exits):
            self._bury(spawn_id)


def _line(fds: dict[str, int], opened: contextlib.ExitStack) -> socket.socket:
    """Our end of the socket to its init."""
    ours, theirs = map(opened.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    fds["beside"] = theirs.fileno()
    return ours


def _signal(pidfd: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        signal.pidfd_send_signal(pidfd, number)


def _failure(why: str) -> dict[str, Any]:
    return {"failed": {"step": "launcher", "errno": 0, "why": why}}


def _why_not_ready(problem: Exception, ended: Exit, group: Group | None) -> SandboxError:
    if group and group.ran_out_of_memory():
        return SandboxError("setup", "its memory limit is too small to start with", "C3")
    if ended.lost:
        return SandboxError("launcher", "the launcher ended while it made this agent")
    if isinstance(problem, SandboxError):
        return problem
    return SandboxError("setup", f"not ready within {READY_SECONDS:.0f} s")


def _settle(future: "asyncio.Future[Any]", value: object) -> None:
    if not future.done():
        future.set_result(value)


def _encoded(spec: SpawnSpec) -> bytes:
    try:
        return encode(spec)
    except SpecError as problem:
        raise SandboxError("spec", str(problem)) from problem


def _ask(services: socket.socket, request: bytes, fd: int) -> Answer:
    try:
        socket.send_fds(services, [request], [fd])
        message, fds, _, _ = socket.recv_fds(services, 4096, 1)
    except OSError as problem:
        if problem.errno in (errno.EPIPE, errno.ECONNRESET, errno.EBADF):  # the starter is gone
            return {}, []
        return {"why": f"the starter could not be asked: {problem}", "errno": problem.errno or 0}, []
    return json.loads(message or b"{}"), fds


async def _send(requests: socket.socket, message: bytes, fds: list[int]) -> None:
    while True:
        try:
            socket.send_fds(requests, [message], fds)
            return
        except BlockingIOError:
            await _turn(requests, asyncio.get_running_loop().add_writer, asyncio.get_running_loop().remove_writer)
        except OSError as problem:
            raise SandboxError("launcher", f"the launcher is gone: {problem}", errno=problem.errno or 0) from problem


async def _receive(status: socket.socket) -> tuple[bytes, list[int]]:
    while True:
        try:
            message, fds, _, _ = socket.recv_fds(status, 65536, _MAX_RECEIVED)
            return message, fds
        except BlockingIOError:
            await _turn(status, asyncio.get_running_loop().add_reader, asyncio.get_running_loop().remove_reader)


async def _turn(sock: socket.socket, add: Callable[..., None], remove: Callable[[socket.socket], object]) -> None:
    """Wait until a socket can be read or written."""
    possible: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    add(sock, _settle, possible, None)
    try:
        await possible
    finally:
        remove(sock)


async def _read_status(status: socket.socket, until_exec: bool) -> tuple[Ready, list[int]]:
    """`ready` with its descriptors, then end of file: for a guest only that means the exec succeeded."""
    ready: Ready | None = None
    received: list[int] = []
    while ready is None or until_exec:
        message, fds = await _receive(status)
        if not message:
            break
        record: dict[str, Any] = json.loads(message)
        if failed := record.get("failed"):
            for fd in received:
                os.close(fd)
            below = failed["step"] == "C16" and failed["errno"] == errno.EPERM
            word = "spec" if failed["step"] == "spec" else "level" if below else "setup"
            raise SandboxError(word, failed["why"], failed["step"], failed["errno"])
        facts: dict[str, Any] = record["ready"]
        ready, received = Ready(facts["level"], tuple(facts["layers"]), facts["landlock_abi"], facts["uid"]), fds
    if ready is None:
        raise SandboxError("setup", "the child ended before it was ready")
    return ready, received


def is_host_root() -> bool:
    """Root of the host, not of a user namespace: only that one has a range of uids to give away."""
    with open("/proc/self/uid_map") as file:
        return os.geteuid() == 0 and file.read().split() == ["0", "0", "4294967295"]


def _library_paths() -> list[str]:
    """Where our package and what its preload imports are found: -S leaves site-packages out."""
    found = importlib.util.find_spec("msgspec")
    packages = os.path.dirname(os.path.dirname(found.origin)) if found and found.origin else _PACKAGE_PATH
    return list(dict.fromkeys((_PACKAGE_PATH, packages)))


def interpreter_prefixes() -> list[str]:
    """What a native agent's Python needs to see that `/usr` does not show: its own trees, never a home around them."""
    wanted = {os.path.realpath(path) for path in (sys.base_prefix, sys.prefix, os.path.join(_PACKAGE_PATH, "agent_os"))}
    return sorted(path for path in wanted if path not in ("/", "/usr") and not path.startswith("/usr/"))
