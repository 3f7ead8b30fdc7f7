"""The control door of a running agent: one Unix socket, through which other commands of its operator reach its kernel.

Owns `<state>/run/<name>.sock` and both sides of what is said there: one JSON object a line in, one out, then it closes.
Agents may share the operator's uid, so a peer is let in only if it also lives in our own user namespace. A peer that is
slow, loud or talks nonsense costs one of a few places for a moment, and nothing else. When the kernel is gone, its
socket refuses connections and whoever notices removes it.
"""

import asyncio
import json
import os
import select
import socket
import struct
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from agent_os.abi import errors
from agent_os.abi.errors import EEXIST, EINVAL, EIO, EPERM, ESRCH, ETIMEDOUT, AgentOSError
from agent_os.kernel import beneath
from agent_os.kernel.process import Guest

MAX_BYTES = 4096  # of a request
_SUFFIX = ".sock"
_DRAFT = ".new-"
_PLACES = 16  # connections at a time; one more is closed at once
_TO_ASK = 2.0  # seconds a peer has for its request
_TO_LEAVE = 5.0  # seconds for answers that are under way when the agent ends
_AGAIN = 0.05  # seconds until another try at a full door
_SO_PEERPIDFD = 77  # Linux 6.5


@asynccontextmanager
async def opened(state: Path, guest: Guest) -> AsyncGenerator[None]:
    """Serve the door of a guest. On leaving it is shut and its socket removed; an answer under way is given first."""
    door = _Door(guest)
    listener = _listen(state, guest.name)
    server = await asyncio.start_unix_server(door.visit, sock=listener, limit=MAX_BYTES)
    try:
        yield
    finally:
        server.close()
        with suppress(FileNotFoundError):
            os.unlink(state / "run" / f"{guest.name}{_SUFFIX}")
        await door.leave()


def _listen(state: Path, name: str) -> socket.socket:
    """The socket gets its name only once it listens: one that refuses connections is always a dead one."""
    (state / "run").mkdir(mode=0o700, exist_ok=True)
    draft = f"{_DRAFT}{name}-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    with beneath.closing(beneath.open_root(state / "run")) as run:
        os.fchmod(run, 0o700)
        _sweep(run)
        try:
            listener.bind(f"/proc/self/fd/{run}/{draft}")  # a socket's path may have 107 bytes; a state directory more
            os.chmod(draft, 0o600, dir_fd=run)
            listener.listen(_PLACES)
            beneath.rename(run, draft, name + _SUFFIX, replace=False)
        except FileExistsError:
            listener.close()
            os.unlink(draft, dir_fd=run)
            raise EEXIST("agent.exists", f"another agent is called {name} already", hint="run it again") from None
        except BaseException:
            listener.close()
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=run)
            raise
    return listener


def _sweep(run: int) -> None:
    """Remove what killed kernels left: sockets that refuse connections, and drafts of processes that are no more."""
    for left in os.listdir(run):
        dead = left.startswith(_DRAFT) and not os.path.exists(f"/proc/{left.rpartition('-')[2]}")
        if left.endswith(_SUFFIX):
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(False)
                try:
                    probe.connect(f"/proc/self/fd/{run}/{left}")
                except ConnectionRefusedError:
                    dead = True
                except OSError:
                    continue  # busy, or gone by now
        if dead:
            with suppress(FileNotFoundError):
                os.unlink(left, dir_fd=run)


class _Door:
    """One guest's door: lets peers in, hears one request each, answers."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._visits: dict[asyncio.Task[None], bool] = {}  # whether it has been heard, and waits for its answer

    async def visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        if len(self._visits) >= _PLACES:
            writer.close()
            return
        self._visits[task] = False
        try:
            answer = await self._answer(task, reader, writer)
            writer.write(json.dumps(answer).encode() + b"\n")
        except OSError:
            pass  # the peer has left; nobody is there to be told
        finally:
            await _close(writer)
            del self._visits[task]

    async def leave(self) -> None:
        """Whoever has asked gets an answer; whoever is still thinking about it does not keep us."""
        for task, heard in self._visits.items():
            if not heard:
                task.cancel()
        visits = set(self._visits)
        if visits:
            _, late = await asyncio.wait(visits, timeout=_TO_LEAVE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _answer(
        self, task: "asyncio.Task[None]", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> dict[str, Any]:
        """Who is there is looked at before anything is read, and told after: a peer that is still talking would not
        hear a refusal."""
        peer = _admit(writer.get_extra_info("socket"))
        try:
            request = await _request(reader)
            self._visits[task] = True
            if isinstance(peer, EPERM):
                self._guest.refused_at_door(peer.reason)
                raise peer
            return {"done": await _do(self._guest, request, peer)}
        except AgentOSError as error:
            facts = {"code": error.code, "reason": error.reason, "hint": error.hint}
            return {"error": {"name": error.name, **facts}}


def _admit(peer: socket.socket) -> int | EPERM:
    """The pid of a peer that is the operator: same uid, and, since agents can share that, the same user namespace.
    Else why not."""
    pid, uid, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if uid != os.geteuid():
        return EPERM("door.peer", f"process {pid} of uid {uid} is not the operator of this agent")
    try:
        with beneath.closing(_peer_pidfd(peer, pid)) as pidfd:
            theirs, ours = os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")
            ended = select.poll()
            ended.register(pidfd, select.POLLIN)
            if ended.poll(0):  # then the pid may have been another's while we looked
                return EPERM("door.peer", f"process {pid} has ended")
    except OSError as problem:
        return EPERM("door.peer", f"process {pid} cannot be looked at: {problem.strerror}")
    if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
        return EPERM("door.peer", f"process {pid} lives in a user namespace of its own, as agents do")
    return pid


def _peer_pidfd(peer: socket.socket, pid: int) -> int:
    """Of the process that connected. Older kernels cannot tell it from one that took over its pid since; the moment for
    that is short there, and pids do not come back at once."""
    try:
        return peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)


async def _request(reader: asyncio.StreamReader) -> Mapping[str, Any]:
    try:
        line = await asyncio.wait_for(reader.readline(), _TO_ASK)
        value: object = json.loads(line)
    except TimeoutError:
        raise ETIMEDOUT("door.slow", f"no request came within {_TO_ASK:.0f} s") from None
    except (ValueError, RecursionError):  # also a line that is too long
        raise EINVAL("door.request", f"a request is one JSON object on one line of at most {MAX_BYTES} bytes") from None
    if not isinstance(value, dict):
        raise EINVAL("door.request", "a request is a JSON object")
    return cast("dict[str, Any]", value)


async def _do(guest: Guest, request: Mapping[str, Any], pid: int) -> dict[str, Any]:
    by = f"process {pid}"
    match request:
        case {"do": "status"}:
            return asdict(guest.status())
        case {"do": "kill"}:
            return asdict(await guest.end(by))
        case {"do": "pause"}:
            return {"was": await guest.pause(by)}
        case {"do": "resume"}:
            return {"was": await guest.resume(by)}
        case {"do": "snapshot", "as": str(name)}:
            return {"snapshot": (await guest.snapshot(name, by)).name}
        case _:
            raise EINVAL("door.request", "there is status, kill, pause, resume and snapshot")


def names(state: Path) -> list[str]:
    """Agents with a door. Some of them may be dead."""
    try:
        found = os.listdir(state / "run")
    except FileNotFoundError:
        return []
    return sorted(name.removesuffix(_SUFFIX) for name in found if name.endswith(_SUFFIX) and name[0] != ".")


async def ask(state: Path, name: str, request: Mapping[str, Any], seconds: float | None) -> dict[str, Any]:
    """Say something to one agent's kernel and return its answer; raises what it raised. ESRCH: there is no such agent,
    or its kernel died, and then its socket is gone now too. A door with too many visitors is tried again."""
    if name not in names(state):
        near = get_close_matches(name, names(state), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else "agentctl ps lists who is running"
        raise ESRCH("agent.unknown", f"there is no running agent {name!r}", hint=hint)
    kernel = 0
    line = b""
    try:
        async with asyncio.timeout(seconds):
            while not line:
                reader, writer = await _connect(state, name)
                kernel = _pid_behind(writer.get_extra_info("socket"))
                try:
                    writer.write(json.dumps(request).encode() + b"\n")
                    line = await reader.readline()
                except ConnectionError:
                    pass  # shown out before it was heard
                finally:
                    await _close(writer)
                if not line:
                    await asyncio.sleep(_AGAIN)
    except TimeoutError:
        hint = f"kill -9 {kernel} ends its kernel, and with it the agent" if kernel else ""
        raise ETIMEDOUT("agent.silent", f"the kernel of {name} does not answer", hint=hint, kernel=kernel) from None
    answer = cast("dict[str, Any]", json.loads(line))
    if "error" in answer:
        raise _rebuilt(answer["error"])
    return answer["done"]


async def _connect(state: Path, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    with beneath.closing(beneath.open_root(state / "run")) as run:
        try:
            return await asyncio.open_unix_connection(f"/proc/self/fd/{run}/{name}{_SUFFIX}", limit=1 << 20)
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                os.unlink(name + _SUFFIX, dir_fd=run)
            hint = f"agentctl diff {name} shows what it changed"
            raise ESRCH("agent.gone", f"{name} ended at this moment", hint=hint) from None
        except PermissionError as problem:
            raise EPERM("door.closed", f"the door of {name} is not yours to open: {problem.strerror}") from problem


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _pid_behind(connected: socket.socket) -> int:
    return struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[0]


def _rebuilt(error: Mapping[str, str]) -> AgentOSError:
    kind = getattr(errors, error["name"], EIO)
    return kind(error["code"], error["reason"], hint=error["hint"])
