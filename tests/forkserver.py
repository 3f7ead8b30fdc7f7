"""Forks a real `agentctl` or a real kernel for tests that do not care how it was started: an exec pays for all imports.

A template, one per test process, has imported what these programs import and has done nothing else. A request (argv,
environment, descriptors …) comes over a socket; the template clones itself, and the copy becomes what an exec would
have made: descriptors, environment, directory, signals, limits, session, command line. It then runs its module as
`python -m` does, and exits as that does.

`Popen` stands in for `subprocess.Popen` while a test runs. What it does not know, or cannot do exactly as an exec does,
is exec'd as ever. A forked `agentctl` has its kernel forked too, by the same template. Nothing in `src/` knows of this,
and nothing is said in the environment.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import importlib.util
import io
import json
import mmap
import os
import pkgutil
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = {"agent_os.cli.main": "agent_os.cli.main", "agent_os.daemon": "agent_os.daemon.__main__"}
# Not loaded ahead: what is a program of its own and exec'd, and one verb's library for whole screens.
LEFT_OUT = ("agent_os.gateway", "agent_os.cli.board", "agent_os.cli.panes", "agent_os.daemon.__main__")
# The interpreter and the libraries read these when they are loaded, so they must be as the template has them, or the
# program is exec'd. `test_forkserver.py` finds out which ones are read.
START_UP = ("LANG", "LC_", "LD_", "GLIBC_", "MALLOC_", "OPENSSL_", "PYTHON")
AFTERWARDS = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")  # have their effect after the start: see `_become`
MOST_TEMPLATES = 2  # with other values of those
_TO_START = 120.0  # seconds; a safety limit
_MOST_DESCRIPTORS = 250  # a message holds 253


# --- the side of who starts a program


class Template:
    """The process that is copied. It ends with the one that made it, by the end of its standard input."""

    def __init__(self, start_up: Mapping[str, str]) -> None:
        self.folder = tempfile.mkdtemp(prefix="aos-fork-")  # 0700: only this user may have programs started
        self.address = os.path.join(self.folder, "s")
        command = [sys.executable, "-P", __file__, self.address]
        env = {**start_up, "PATH": os.defpath}
        self._process = _REAL(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd="/")
        assert self._process.stdout
        answer = self._process.stdout.read()
        if not answer:
            raise RuntimeError("the template of the fork server did not start; stderr says why")
        self.usable = answer == b"ready"
        self.pid = self._process.pid

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)
        assert self._process.stdout
        self._process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Server:
    """The templates of this process, made when they are first needed."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._templates: dict[tuple[tuple[str, str], ...], Template] = {}
        self._turn = threading.Lock()

    def address(self, env: Mapping[str, str], module: str, own_session: bool) -> str | None:
        """Whom to ask; None if an exec must do it."""
        if os.getpid() != self._owner:  # a fork of ours: it would not be the parent of what it starts
            return None
        start_up = start_up_of(env)
        with self._turn:
            key = tuple(sorted(start_up.items()))
            if key not in self._templates and len(self._templates) < MOST_TEMPLATES:
                self._templates[key] = Template(start_up)
            template = self._templates.get(key)
        return template.address if template and template.usable else None

    def processes(self) -> set[int]:
        return {template.pid for template in self._templates.values()} if os.getpid() == self._owner else set()

    def close(self) -> None:
        while os.getpid() == self._owner and self._templates:
            self._templates.popitem()[1].close()


class _Within:
    """Inside of a forked `agentctl`: only a kernel is started, and it does not become a child of this process."""

    def __init__(self, address: str, start_up: Mapping[str, str]) -> None:
        self._address, self._start_up = address, start_up

    def address(self, env: Mapping[str, str], module: str, own_session: bool) -> str | None:
        fits = module == "agent_os.daemon" and own_session and start_up_of(env) == self._start_up
        return self._address if fits else None


def start_up_of(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(START_UP) and name not in AFTERWARDS}


_REAL = subprocess.Popen
server: Server | _Within = Server()


class Popen(_REAL):  # type: ignore[type-arg]
    """`subprocess.Popen`, which forks what it can. All but the start itself is inherited: pipes, `wait`, `communicate`;
    the program is a true child of this process."""

    _ended: int | None = None  # a pidfd, where it is not

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: bool,
        pass_fds: Sequence[int],
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: bool,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        restore_signals: bool,
        gid: Any,
        gids: Any,
        uid: Any,
        umask: int,
        start_new_session: bool,
        process_group: int,
    ) -> None:
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        exotic = executable or preexec_fn or shell or not close_fds or not restore_signals
        plain = not exotic and gid is None and gids is None and uid is None
        words = [] if isinstance(args, (str, bytes, os.PathLike)) else [os.fsdecode(word) for word in args]
        module = _module(words) if plain else None
        full = {os.fsdecode(name): os.fsdecode(value) for name, value in (os.environ if env is None else env).items()}
        address = server.address(full, module, start_new_session) if module else None
        if address:
            descriptors = {0: p2cread, 1: c2pwrite, 2: errwrite}
            given = {number: number if fd == -1 else fd for number, fd in descriptors.items()}
            given |= {int(fd): int(fd) for fd in pass_fds}
            request = {
                "argv": words,
                "env": full,
                "umask": umask if umask >= 0 else _umask(),
                "session": start_new_session,
                "group": process_group,
                "limits": [resource.getrlimit(limit) for limit in _LIMITS],
                "ignored": [n for n in signal.valid_signals() if signal.getsignal(n) == signal.SIG_IGN],
                "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
                "numbers": list(given),
            }
            pid = _ask(address, request, [*given.values()], cwd)
            if pid is not None:
                sys.audit("subprocess.Popen", executable, args, cwd, env)  # as an exec does: `conftest` counts starts
                self.pid = pid
                self._child_created = True
                if isinstance(server, _Within):
                    self._ended = _pidfd(pid)
                self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
                return
        super()._execute_child(  # type: ignore[misc]
            *(args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell),
            *pipes,
            *(restore_signals, gid, gids, uid, umask, start_new_session, process_group),
        )

    def _internal_poll(self, *args: Any, **more: Any) -> int | None:
        if self._ended is None:
            return super()._internal_poll(*args, **more)  # type: ignore[misc]
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            self.returncode = 0  # how it ended only its parent knows; nobody here asks
        return self.returncode


@contextmanager
def used() -> Iterator[None]:
    """Whoever starts a program by `subprocess`, itself or by asyncio, has it forked."""
    subprocess.Popen = Popen
    try:
        yield
    finally:
        subprocess.Popen = _REAL


_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


def _module(words: Sequence[str]) -> str | None:
    """Which of our programs a command line starts."""
    if not words or words[0] != sys.executable:
        return None
    rest = words[2:] if words[1:2] == ["-P"] else words[1:]
    return rest[1] if len(rest) > 1 and rest[0] == "-m" and rest[1] in PROGRAMS else None


def _umask() -> int:
    """Without changing it: other threads make files meanwhile."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:  # it has ended already: the inherited way says so too
        return None


def _ask(address: str, request: dict[str, Any], fds: list[int], cwd: Any) -> int | None:
    """The process id of the copy, once it has become what was asked for; None for an exec, which also tells errors."""
    if len(fds) > _MOST_DESCRIPTORS:
        return None
    try:
        place = os.open("." if cwd is None else cwd, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        body = json.dumps(request).encode()
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(address)
            try:
                socket.send_fds(asking, [struct.pack("!I", len(body))], [place, *fds])
            except OSError:  # one of them is closed
                return None
            asking.sendall(body)
            answer = asking.recv(4, socket.MSG_WAITALL)
    finally:
        os.close(place)
    if len(answer) != 4:
        raise RuntimeError("the copy of the template failed before it ran; stderr says why")
    return struct.unpack("!I", answer)[0] or None


# --- the template


def everything() -> list[str]:
    """All modules of ours that an `agentctl` or a kernel may load, however late."""
    import agent_os

    found = [module.name for module in pkgutil.walk_packages(agent_os.__path__, "agent_os.")]
    return [name for name in found if not any(name == one or name.startswith(f"{one}.") for one in LEFT_OUT)]


def load() -> None:
    for name in everything():
        importlib.import_module(name)
    for name in importlib.import_module("agent_os.lazy").waiting:
        importlib.import_module(name)


def surplus() -> list[str]:
    """What this process has beside imports: threads, children, descriptors. A copy would have it too."""
    found = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    found += [f"task {one}" for one in os.listdir("/proc/self/task") if int(one) != os.getpid()]
    found += [f"child {one}" for one in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    listing = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY)
    numbers = {int(name) for name in os.listdir(listing)} - {0, 1, 2, listing}
    for fd in sorted(numbers):
        try:
            found.append(f"descriptor {fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:  # the one that listed them
            continue
    os.close(listing)
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    usual = (None, signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
    return found + [f"handler of {number}" for number, handler in handlers.items() if handler not in usual]


def main(address: str) -> None:
    """Returns never: a copy ends with its program, the template with its input."""
    load()
    codes = {name: _code(module) for name, module in PROGRAMS.items()}
    if found := surplus():
        sys.exit(f"the template of the fork server has more than imports: {', '.join(found)}")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is in the test's process group: Ctrl-C is not meant for it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no kernel stays as a zombie
    gc.collect()
    gc.freeze()  # a copy would have to copy every page that the collector marks
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(128)
    try:
        _command_line(sys.orig_argv, os.environ)
        os.write(1, b"ready")
    except OSError:  # not for this system: everything is exec'd
        os.write(1, b"cannot")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)
    request, fds, asking = _next(listener)
    _become(request, fds, asking, address)
    _run(codes, request["argv"])


def _next(listener: socket.socket) -> tuple[dict[str, Any], list[int], int]:
    """Serves requests; returns in each copy, with what it is to become."""
    while True:
        ready = select.select([0, listener], [], [])[0]
        if 0 in ready:
            sys.exit()
        asking = listener.accept()[0]
        asking.settimeout(_TO_START)
        head, fds, _, _ = socket.recv_fds(asking, 4, _MOST_DESCRIPTORS + 1)
        body = asking.recv(struct.unpack("!I", head)[0], socket.MSG_WAITALL)
        asker = struct.unpack("iII", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        # Who made the template gets children of its own. Another asker (an `agentctl`, which will soon be gone) does
        # not: what it starts is the template's.
        try:
            pid = _clone() if asker == os.getppid() else os.fork()
        except OSError:
            pid = -1
            asking.sendall(struct.pack("!I", 0))
        if pid:
            asking.close()
            for fd in fds:
                os.close(fd)
            continue
        listener.detach()
        return json.loads(body), fds, asking.detach()


def _clone() -> int:
    """fork(), but the child is one of our parent's. As in the C library, the thread's own idea of its id is renewed."""
    libc = ctypes.CDLL(None, use_errno=True)
    own_id = ctypes.c_void_p()
    libc.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(own_id), 0, 0, 0)
    flags = _CLONE_PARENT | (_CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID if own_id.value else 0)
    arguments = (ctypes.c_uint64 * 8)(flags, 0, own_id.value or 0)
    python = ctypes.pythonapi
    python.PyOS_BeforeFork()
    # A PyDLL: between the two nobody may give up the interpreter's lock.
    pid = ctypes.PyDLL(None).syscall(_SYS_CLONE3, ctypes.byref(arguments), ctypes.sizeof(arguments))
    if pid:
        python.PyOS_AfterFork_Parent()
    else:
        python.PyOS_AfterFork_Child()
    if pid < 0:
        raise OSError("clone3 failed")
    return pid


_SYS_CLONE3 = 435  # on every machine
_CLONE_PARENT, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x8000, 0x200000, 0x1000000
_PR_SET_MM, _PR_SET_MM_MAP, _PR_GET_TID_ADDRESS = 35, 14, 40


def _become(request: dict[str, Any], fds: list[int], asking: int, address: str) -> None:
    """What the system does for an exec, and the interpreter when it starts."""
    argv, env = request["argv"], request["env"]
    os.fchdir(fds[0])
    asking = _descriptors(dict(zip(request["numbers"], fds[1:], strict=True)), asking)
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.umask(request["umask"])
    for limit, (soft, hard) in zip(_LIMITS, request["limits"], strict=True):
        if resource.getrlimit(limit) != (soft, hard):
            resource.setrlimit(limit, (soft, hard))
    own = start_up_of(os.environ)
    coerced = {name: own[name] for name in own.keys() - start_up_of(env)}  # LC_CTYPE, where the interpreter sets it
    os.environ.clear()
    os.environ.update(env | coerced)
    time.tzset()
    _signals(set(request["ignored"]), request["blocked"])
    _command_line(argv, env)
    _streams(unbuffered=bool(env.get("PYTHONUNBUFFERED")))
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    safe = argv[1] == "-P"
    sys.orig_argv[:] = argv
    sys.argv[:] = argv[4 if safe else 3 :]  # what stands before them is known when the program is
    if not safe:
        sys.path.insert(0, os.getcwd())
    if _module(argv) == "agent_os.cli.main":
        globals()["server"] = _Within(address, own)
        subprocess.Popen = Popen
    os.write(asking, struct.pack("!I", os.getpid()))
    os.close(asking)


def _descriptors(given: dict[int, int], asking: int) -> int:
    """Exactly the given ones at their numbers, and the connection, which moves out of the way."""
    above = max(given) + 1
    asking = fcntl.fcntl(asking, fcntl.F_DUPFD_CLOEXEC, above)
    apart = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for number, fd in given.items()}
    for number, fd in apart.items():
        os.dup2(fd, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (*given, asking):
            try:
                os.close(int(name))
            except OSError:  # the one that listed them
                continue
    return asking


def _signals(ignored: set[int], blocked: list[int]) -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if signal.SIGINT not in ignored:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _command_line(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """As /proc shows them to others."""
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    room = mmap.mmap(-1, len(words) + len(variables), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.write(words + variables)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(room))
    _kept.append(room)
    facts = [int(word) for word in Path("/proc/self/stat").read_text().rpartition(")")[2].split()[1:]]
    code, end_code, stack = facts[22:25]
    data, end_data, brk = facts[41:44]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    middle, end = begin + len(words), begin + len(words) + len(variables)
    places = (code, end_code, data, end_data, brk, libc.sbrk(0), stack, begin, middle, middle, end)
    layout = struct.pack("=12Q2I", *places, 0, 0, 0xFFFFFFFF)
    if libc.prctl(_PR_SET_MM, _PR_SET_MM_MAP, layout, ctypes.c_ulong(len(layout)), 0):
        raise OSError(ctypes.get_errno(), "PR_SET_MM_MAP")


_kept: list[mmap.mmap] = []


def _streams(*, unbuffered: bool) -> None:
    """On the descriptors as they are now; encodings are the template's, whose locale is the same."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        raw = io.FileIO(fd, "w" if fd else "r", closefd=False)
        raw.name = f"<{name}>"
        stream = io.TextIOWrapper(
            raw if unbuffered and fd else io.BufferedWriter(raw) if fd else io.BufferedReader(raw),  # type: ignore[arg-type]
            encoding=old.encoding,
            errors=old.errors,
            newline="\n" if fd else None,
            line_buffering=fd > 0 and not unbuffered and (fd == 2 or raw.isatty()),
            write_through=fd > 0 and unbuffered,
        )
        stream.mode = "w" if fd else "r"  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _code(module: str) -> tuple[Any, Any]:
    spec = importlib.util.find_spec(module)
    assert spec
    assert spec.loader
    return spec, spec.loader.get_code(module)  # type: ignore[attr-defined]


def _run(codes: dict[str, tuple[Any, Any]], argv: Sequence[str]) -> None:
    """As `python -m` does. The program's SystemExit passes through us to the interpreter."""
    spec, code = codes[str(_module(argv))]
    sys.argv.insert(0, spec.origin)
    program = types.ModuleType("__main__")
    about = {"__file__": spec.origin, "__cached__": spec.cached, "__loader__": spec.loader}
    vars(program).update(about, __package__=spec.parent, __spec__=spec, __builtins__=__builtins__)
    sys.modules["__main__"] = program
    try:
        exec(code, vars(program))
        status = 0
    except SystemExit as end:
        status = _status(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    # What a program's end does that others can see. Taking the interpreter apart, module by module, would copy every
    # page of the template first: 40 ms.
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    main(sys.argv[1])
