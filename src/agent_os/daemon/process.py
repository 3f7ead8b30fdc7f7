"""The composition root: the one place where kernel, sandbox and drivers are put together; and the kernel's process.

    python -m agent_os.daemon --home DIR --socket PATH [--idle-exit SECONDS] [--ready-fd N] [--warm]

One kernel has a home: a lock decides, and whoever comes second says who was first. With `--idle-exit` it ends by
itself, so long after its last agent and client. With `--warm` it starts a launcher before it loads itself. What it has
to say goes to `--ready-fd` once, as JSON (`ready`, `held` or `error`), and afterwards to stderr.
"""

import asyncio
import fcntl
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from agent_os import builtin_tools, first_token, model_drivers
from agent_os.abi.errors import EACCES, EIO, AgentOSError
from agent_os.client import place
from agent_os.client.start import ELSEWHERE, LOG, build, prepared
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.front_door import Doctor, FrontDoor
from agent_os.kernel import control
from agent_os.kernel.boot import boot
from agent_os.kernel.kernel import Kernel
from agent_os.lazy import waiting

if TYPE_CHECKING:
    from agent_os.sandbox.spawner import Launcher

LOCK = "lock"
_OPTIONS = frozenset(("--home", "--idle-exit", "--ready-fd", "--socket"))
_MISUSED = 2
HELD = 75  # the exit code of a kernel that found another one: try again
_TO_BE_FREE = 10.0  # seconds for a kernel that is just ending
_AGAIN = 0.01
_TO_COME = 5.0
_LOOK_AGAIN = 60.0
_BEFORE_THE_REST, _BETWEEN_MODULES = 1.0, 0.005  # seconds
_ROOMS = ("abi", "drivers", "kernel", "manifest")
log = logging.getLogger("agent_os.daemon")


def main(argv: Sequence[str] | None = None, launcher: "Launcher | None" = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    options = dict(zip(given[::2], given[1::2], strict=False))
    if len(given) % 2 or not _OPTIONS.issuperset(options):
        print(f"usage: python -m agent_os.daemon {' '.join(f'[{name} …]' for name in sorted(_OPTIONS))} [--warm]")
        return 0 if "--help" in given else _MISUSED
    home = Path(options["--home"]) if "--home" in options else place.home()
    where = Path(options["--socket"]) if "--socket" in options else place.control_socket()
    idle_exit = float(options["--idle-exit"]) if "--idle-exit" in options else None
    logging.basicConfig(stream=sys.stderr, level=_level(), format="%(asctime)s %(name)s %(levelname)s %(message)s")
    say = _Say(int(options.get("--ready-fd", -1)))
    try:
        home = prepared(home)
        lock = _lock(home, where)
        if lock is None:
            say.once(held=_holder(home))
            return HELD
        with asyncio.Runner(loop_factory=_loop) as runner:
            return runner.run(_serve(home, where, idle_exit, say, launcher))
    except AgentOSError as error:
        log.error("%s", error)
        say.once(error={"name": error.name, "code": error.code, "reason": error.reason, "hint": error.hint})
        return 1
    except OSError as problem:
        reason = f"the state directory {home} cannot be used: {problem.strerror}"
        log.exception("%s", reason)
        say.once(error={"name": "EACCES", "code": "state.unwritable", "reason": reason, "hint": ELSEWHERE})
        return 1
    except Exception as bug:  # whoever waits for us must hear of it
        log.exception("the kernel could not start")
        reason, hint = f"the kernel failed at its start, {type(bug).__name__}: {bug}", f"{home / LOG} says where"
        say.once(error={"name": "EIO", "code": "internal", "reason": reason, "hint": hint})
        return 1


def calm_collector() -> None:
    """What booting made stays, and a call leaves no circles behind: looking for them after every 700 new objects took
    a tenth of a call's time. After 20,000, one look held up everybody for 15 to 50 ms."""
    gc.freeze()
    gc.set_threshold(2_000, 20, 20)


def _level() -> int:
    return logging.DEBUG if os.environ.get("AGENT_OS_LOG") == "debug" else logging.INFO


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


class _Say:
    """The one thing that whoever started us waits to hear."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def once(self, **what: object) -> None:
        if self._fd >= 0:
            with suppress(OSError):  # nobody waits any more
                os.write(self._fd, json.dumps(what).encode())
            os.close(self._fd)
            self._fd = -1


async def load_the_rest(kernel: Kernel) -> None:
    """What the start left out, one module at a time: a kernel whose files are replaced goes on with its own version."""
    import pkgutil

    await asyncio.sleep(_BEFORE_THE_REST)
    for room in _ROOMS:
        package = import_module(f"agent_os.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if kernel.halting:
                return
            with suppress(ModuleNotFoundError):  # a driver whose extra is not installed
                import_module(found.name)
            await asyncio.sleep(_BETWEEN_MODULES)
    while waiting:
        import_module(waiting.pop())
        await asyncio.sleep(_BETWEEN_MODULES)
    kernel.tools.classes()  # and what is made of them


async def _serve(home: Path, where: Path, idle_exit: float | None, say: _Say, launcher: "Launcher | None") -> int:
    """The kernel's life: boot, serve, end."""
    began = time.monotonic()
    _set_limits()
    code = build()
    loop = asyncio.get_running_loop()
    first_token.found(home)  # one that others could have read: nothing is started
    store = _store(home)
    kernel = await boot(
        store=store,
        home=home,
        idle_exit=idle_exit,
        env=dict(os.environ),
        manifests=place.agents(),
        install=_install,
        launcher=launcher,
    )
    await first_token.ensure(kernel, home)
    kernel.build = code
    calm_collector()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: kernel.start(kernel.stop()))
    kernel.front = front = FrontDoor(home, where, os.environ)
    kernel.examine = Doctor(home, where).examine
    kernel.guests.on_end = kernel.client_left = consider = _Idle(kernel, front).consider
    loop.call_later(_TO_COME, consider)  # whoever started us may have died since
    listener = control.listen(where)
    server = await loop.create_unix_server(kernel.control_protocol, sock=listener)
    say.once(ready=os.getpid())
    log.info("ready after %.0f ms, process %d, home %s", (time.monotonic() - began) * 1000, os.getpid(), home)
    kernel.start(load_the_rest(kernel))
    await kernel.ended.wait()
    _unlink(where)
    server.close()
    await front.stop()
    await kernel.guests.close()
    await kernel.close()
    store.close()
    log.info("ended")
    return 0


def _install(kernel: Kernel) -> None:
    """The drivers that the kernel knows the interfaces of."""
    builtin_tools.install(kernel)
    kernel.models.makes = model_drivers.Drivers(kernel.store.blob, kernel.authority.labels.written_by)


class _Idle:
    """The end of a kernel that nobody asked to stay: `idle_exit` after its last agent and client have gone. Until then
    it holds what makes the next start fast, and no secret, gateway or port."""

    def __init__(self, kernel: Kernel, front: FrontDoor) -> None:
        self._kernel, self._front = kernel, front
        self._timer: asyncio.TimerHandle | None = None

    def consider(self) -> None:
        """An agent or a client has gone."""
        if self._timer:
            self._timer.cancel()
        kernel, seconds = self._kernel, self._kernel.idle_exit
        if seconds is None or kernel.halting:
            return
        loop = asyncio.get_running_loop()
        if self._is_used():  # looked at again, since not everything that ends says so
            self._timer = loop.call_later(_LOOK_AGAIN, self.consider)
            return
        if seconds:
            kernel.start(self._rest())
        self._timer = loop.call_later(seconds, self._end)

    async def _rest(self) -> None:
        self._kernel.lock_safe()
        await self._front.stop()

    def _end(self) -> None:
        if self._is_used():
            self.consider()
        elif self._kernel.idle_exit is not None and not self._kernel.halting:
            self._kernel.start(self._kernel.stop(0))

    def _is_used(self) -> bool:
        return self._kernel.guests.busy or self._kernel.clients > 0


def _lock(home: Path, where: Path) -> int | None:
    """Ours until we end; None if another kernel has the home and answers. One that is just ending is waited for."""
    try:
        fd = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as problem:
        reason = f"the state directory {home} cannot be written: {problem.strerror}"
        raise EACCES("state.unwritable", reason, hint=ELSEWHERE) from None
    deadline = time.monotonic() + _TO_BE_FREE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if _answers(where):
                os.close(fd)
                return None
            if time.monotonic() > deadline:
                reason = f"the state directory {home} is held by the kernel with process id {_holder(home)}"
                hint = "agentctl down, or, if it does not answer, kill it"
                raise EIO("home.held", f"{reason}, which does not answer at {where}", hint=hint) from None
            time.sleep(_AGAIN)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


def _holder(home: Path) -> int:
    with suppress(OSError, ValueError):
        return int((home / LOCK).read_text())
    return 0


def _answers(where: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe_socket:
        try:
            directory = os.open(where.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            probe_socket.connect(f"/proc/self/fd/{directory}/{where.name}")
        except OSError:
            return False
        finally:
            os.close(directory)
        return True


def _store(home: Path) -> SqliteStore:
    try:
        return SqliteStore(home / "journal.db")
    except OSError as problem:
        reason = f"the record in {home} cannot be written: {problem.strerror}; nothing runs unrecorded"
        raise EACCES("record.unwritable", reason, hint=ELSEWHERE) from None


def _unlink(where: Path) -> None:
    """Nobody new is let in, and nobody finds a socket that nobody serves."""
    with suppress(OSError):
        where.unlink()


def _set_limits() -> None:
    """As many descriptors as we may have. Linux holds what other agents of this user have in flight between sockets
    against it, and the usual soft limit is hardly more than one agent's. And no picture of our memory on any disk: it
    holds the operator's secrets."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
