"""Has a kernel started where none runs: in the background, one for a home, however many ask at once.

In: the wish to be connected. Out: a `Client`, and whether the kernel is new. Which kernel has the home is decided by
the kernels themselves (a lock); whoever comes second is told so and connects to the first. If it cannot start, the
error is the one it had.
"""

import os
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import agent_os
from agent_os.abi import errors, frames
from agent_os.abi.errors import EACCES, EBUSY, EHOSTUNREACH, EIO, AgentOSError
from agent_os.abi.syscalls import Leave
from agent_os.client import place
from agent_os.client.config import for_kernel, setting
from agent_os.client.wire import Client, connect, readable

if TYPE_CHECKING:
    import subprocess

LOG = "logs/kernel.log"
ELSEWHERE = "AGENT_OS_HOME=/some/directory agentctl … keeps its state elsewhere"
_IDLE_EXIT = 600  # seconds
_TRIES = 20
_TO_START = 30.0  # seconds
_TO_END = 30.0
_BETWEEN = 0.02
_started: "list[subprocess.Popen[bytes]]" = []  # kept, so that nobody minds that they outlive us


@asynccontextmanager
async def session(*, start: bool = True, same: bool = False) -> AsyncGenerator[tuple[Client, bool]]:
    """A connection, for the length of a command, and whether a kernel was started for it. With `idle_exit` 0 a kernel
    ends with its last agent and client: then it is gone when this returns."""
    async with connected(start=start, same=same) as (client, started):
        try:
            yield client, started
        finally:
            if frames.STAYS not in client.welcome.features:
                await leave(client)


@asynccontextmanager
async def connected(
    *, start: bool = True, stay: bool = False, same: bool = False
) -> AsyncGenerator[tuple[Client, bool]]:
    """A connection and whether the kernel is new. `stay` starts one that does not end by itself. An idle kernel of
    other code is replaced; a busy one is taken as it is, or refused if it must be of the `same` code."""
    started, code = False, build() if start else ""
    for _ in range(_TRIES):
        # One that we started is ours, even if a file has changed since we looked.
        opening = connect(build="" if started else code)
        try:
            client = await opening.__aenter__()
        except EHOSTUNREACH:  # none, or one that is just ending
            if not start:
                raise
            started = await launch(stay=stay, warm=same and not stay)
            continue
        try:
            if same and not started and client.welcome.build not in ("", code):
                reason = f"the kernel, process {client.pid}, is in use and of another version of Agent OS"
                raise EBUSY("daemon.version", reason, hint="agentctl down stops it and its agents; then try again")
            yield client, started
        finally:
            await opening.__aexit__(None, None, None)
        return
    raise EIO(
        "daemon.failed", "a kernel was started again and again, and none stayed", hint=f"see {place.home() / LOG}"
    )


async def leave(client: Client) -> None:
    """Say that we are done, and wait for the end of a kernel that ends for it."""
    try:
        answer = await client.call(Leave(), deadline=5.0)
    except AgentOSError:  # it has gone already, or has other worries
        return
    if answer["ending"]:
        try:
            await client.ended(_TO_END)
        except TimeoutError:
            reason = f"the kernel, process {client.pid}, was to end and did not within {_TO_END:.0f} s"
            raise EIO("daemon.stuck", reason, hint=f"kill -9 {client.pid}") from None


async def launch(*, stay: bool = False, warm: bool = False) -> bool:
    """Start a kernel and wait until it can be talked to; False if another one had the home first. `warm`: an agent
    will follow at once."""
    import subprocess

    home = prepared(place.home())
    reading, writing = os.pipe()
    command = [sys.executable, "-P", "-m", "agent_os.daemon", "--home", str(home)]
    command += ["--socket", str(place.control_socket())]
    command += ["--ready-fd", str(writing)]
    if not stay:
        command += ["--idle-exit", str(idle_exit())]
    if warm:
        command.append("--warm")
    try:
        log = _log(home)
        try:
            _started[:] = [one for one in _started if one.poll() is None]
            quiet = subprocess.DEVNULL
            _started.append(
                subprocess.Popen(
                    command,
                    stdin=quiet,
                    stdout=log,
                    stderr=log,
                    pass_fds=(writing,),
                    cwd="/",
                    start_new_session=True,
                    env=for_kernel(os.environ),
                )
            )
        finally:
            os.close(log)
            os.close(writing)
        answer = await _answer(reading)
    finally:
        os.close(reading)
    if error := answer.get("error"):
        raise getattr(errors, error["name"], EIO)(error["code"], error["reason"], hint=error["hint"])
    if "held" in answer:
        time.sleep(_BETWEEN)
        return False
    return True


def idle_exit() -> int:
    """Seconds that a kernel which we start stays after its last agent and client."""
    return _IDLE_EXIT if (found := setting("idle_exit").value) is None else found


def build() -> str:
    """Which code this is: the version, and a sum by which changed files are told from those before."""
    from zlib import crc32

    facts, folders = list[str](), [os.path.dirname(agent_os.__file__)]
    for folder in folders:
        for file in os.scandir(folder):
            if file.name.endswith(".py"):
                info = file.stat()
                facts.append(f"{file.name} {info.st_size} {info.st_mtime_ns}")
            elif file.name != "__pycache__" and file.is_dir():
                folders.append(file.path)
    return f"{agent_os.__version__}-{crc32(str(sorted(facts)).encode()):08x}"


def prepared(home: Path) -> Path:
    """The home, made on first use, 0700."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as problem:
        reason = f"the state directory {home} cannot be made: {problem.strerror}"
        raise EACCES("state.unwritable", reason, hint=ELSEWHERE) from None
    home = home.resolve()
    require_own(home)
    return home


def require_own(home: Path) -> None:
    """Whoever else could write there would decide what the kernel believes, and where it writes."""
    info = home.stat()
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        owner = f"it belongs to uid {info.st_uid}" if info.st_uid != os.geteuid() else "others can write there"
        reason = f"the state directory {home} cannot be trusted: {owner}"
        raise EACCES("state.foreign", reason, hint=f"chmod go-w {home}, or: {ELSEWHERE}")


def _log(home: Path) -> int:
    try:
        (home / LOG).parent.mkdir(mode=0o700, exist_ok=True)
        return os.open(home / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as problem:
        reason = f"the state directory {home} cannot be written: {problem.strerror}"
        raise EACCES("state.unwritable", reason, hint=ELSEWHERE) from None


async def _answer(reading: int) -> dict[str, Any]:
    """What the kernel said when it was ready, or had to give up."""
    import json

    said, until = b"", time.monotonic() + _TO_START
    try:
        await readable(reading, until)
        while piece := os.read(reading, 65536):
            said += piece
            await readable(reading, until)
    except TimeoutError:
        raise EIO("daemon.failed", f"the kernel was not ready within {_TO_START:.0f} s", hint=_see_log()) from None
    if not said:
        raise EIO("daemon.failed", "the kernel ended before it was ready", hint=_see_log())
    return json.loads(said)


def _see_log() -> str:
    return f"{place.home() / LOG} says why"
