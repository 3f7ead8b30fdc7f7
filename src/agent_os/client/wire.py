"""A connection to a kernel's control socket: calls, and streams beside them.

In: request structs of `abi.syscalls`. Out: what the kernel answered, or the error it meant. One connection carries any
number of calls at a time. Nothing is sent again by itself: whoever gets EPIPE decides.
"""

import asyncio
import os
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from agent_os.abi import errors, frames
from agent_os.abi.errors import ECANCELED, EHOSTUNREACH, EPERM, EPIPE, ETIMEDOUT, AgentOSError
from agent_os.abi.syscalls import BY_REQUEST, Body
from agent_os.client import credentials, place

Hear = Callable[[str, Any], None]  # what was pushed (a signal, a message, a notice), and its body
CREDIT = 256 << 10  # bytes of chunks under way, in each direction of a stream
_RESERVE = 4 << 10  # of our credit, for what must get through while data waits
_GIVE_BACK = 64 << 10
_TO_GREET = 30.0  # seconds


class Client:
    """An open connection. `pid` is the kernel's."""

    def __init__(self, line: "_Line", welcome: frames.Welcome, pid: int) -> None:
        self._line, self.welcome, self.pid = line, welcome, pid

    async def call(self, request: Body, *, deadline: float | None = None, key: str | None = None) -> Any:
        """The answer, or the kernel's error raised here. `deadline` (seconds) holds for the kernel, and for us if it
        does not answer at all. Cancelled, the kernel is told; what it had begun may have happened."""
        stream = self.stream(request, deadline=deadline, key=key)
        try:
            async with asyncio.timeout(deadline):
                return await stream.result()
        except TimeoutError:
            stream.cancel()
            raise self._silent() from None
        except asyncio.CancelledError:
            stream.cancel()
            raise

    def stream(self, request: Body, *, deadline: float | None = None, key: str | None = None) -> "Stream":
        """A call with chunks beside it. It has been sent when this returns."""
        number = BY_REQUEST[type(request)].number
        return self._line.open(number, frames.body(request), deadline, key)

    def hear(self, hear: Hear) -> Callable[[], None]:
        """`hear` is called with whatever the kernel pushes, until what this gives is called. Only who comes in as an
        agent is pushed anything; operators follow streams."""
        heard_by = self._line.heard_by
        heard_by.append(hear)
        return lambda: heard_by.remove(hear) if hear in heard_by else None

    async def ended(self) -> None:
        """Returns when the kernel's process is gone."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        gone = loop.create_future()
        loop.add_reader(pidfd, lambda: gone.done() or gone.set_result(None))
        try:
            await gone
        finally:
            loop.remove_reader(pidfd)
            os.close(pidfd)

    @property
    def lost(self) -> bool:
        """The connection is closed, by whichever side."""
        return self._line.lost.is_set()

    async def closed(self) -> None:
        """Returns when it is."""
        await self._line.lost.wait()

    def _silent(self) -> ETIMEDOUT:
        return _silent(self.pid)


class Stream:
    """One call under way. Iterate over its chunks, `send` some, then ask for the `result`."""

    def __init__(self, line: "_Line", number: int) -> None:
        self._line, self.id = line, number
        self._chunks: deque[bytes] = deque()
        self._arrived = asyncio.Event()
        self._outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._outcome.add_done_callback(_looked_at)
        self._credit, self._owed, self._sent = CREDIT, 0, 0
        self._room = asyncio.Event()

    def __aiter__(self) -> "Stream":
        return self

    async def __anext__(self) -> Any:
        value, size = await self.receive()
        self.give(size)
        return value

    async def receive(self) -> tuple[Any, int]:
        """The next chunk and its size, to be given back by `give` once it is dealt with. Ends the iteration at the end
        of the call, whatever its outcome."""
        while not self._chunks:
            if self._outcome.done():
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        data = self._chunks.popleft()
        return msgspec.msgpack.decode(data), len(data)

    def give(self, size: int) -> None:
        """Let the kernel send so much more."""
        self._owed += size
        if self._owed >= _GIVE_BACK and not self._outcome.done():
            self._line.write(frames.Credit(self.id, self._owed))
            self._owed = 0

    async def send(self, value: Any, *, urgent: bool = False) -> None:
        """Returns when it is on its way. After the end of the call it goes nowhere, in silence. What is urgent is small
        and may use credit that data may not."""
        data = frames.body(value)
        size = len(bytes(data))
        while not self._outcome.done() and self._credit - size < (0 if urgent else _RESERVE):
            self._room.clear()
            await self._room.wait()
        if not self._outcome.done():
            self._credit -= size
            self._line.write(frames.Chunk(self.id, self._sent, data))
            self._sent += 1

    def end(self) -> None:
        """No more chunks from us."""
        if not self._outcome.done():
            self._line.write(frames.End(self.id, self._sent))

    def cancel(self) -> None:
        if not self._outcome.done():
            self._line.write(frames.Cancel(self.id))

    async def result(self) -> Any:
        return await asyncio.shield(self._outcome)

    # Called by the line.

    def heard(self, data: bytes) -> None:
        self._chunks.append(data)
        self._arrived.set()

    def credited(self, size: int) -> None:
        self._credit += size
        self._room.set()

    def settle(self, outcome: Any) -> None:
        if not self._outcome.done():
            if isinstance(outcome, AgentOSError):
                self._outcome.set_exception(outcome)
            else:
                self._outcome.set_result(outcome)
        self._arrived.set()
        self._room.set()


def _looked_at(outcome: "asyncio.Future[Any]") -> None:
    """An outcome that nobody waits for any more is no mistake."""
    if not outcome.cancelled():
        outcome.exception()


class _Line(asyncio.Protocol):
    """The socket: frames in and out, and who waits for which."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._splitter = frames.Splitter()
        self._open: dict[int, Stream] = {}
        self._last = 0
        self.heard_by: list[Hear] = []
        self._transport: asyncio.Transport | None = None
        self._bye: AgentOSError | None = None
        self.greeting: asyncio.Future[frames.Welcome] = asyncio.get_running_loop().create_future()
        self.greeting.add_done_callback(_looked_at)
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        for frame in self._splitter.feed(data):
            if (understood := frames.decode_from_kernel(frame)) is not None:
                self._hear(understood)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()
        gone = self._bye or _gone()
        if not self.greeting.done():
            self.greeting.set_exception(gone)
        for stream in self._open.values():
            stream.settle(gone)
        self._open.clear()

    def _hear(self, frame: frames.FromKernel) -> None:
        match frame:
            case frames.Welcome():
                self.greeting.set_result(frame)
            case frames.Bye():
                self._bye = _refused(frame)
            case frames.Push():
                for hear in list(self.heard_by):
                    hear(frame.what, msgspec.msgpack.decode(frame.body))
            case _:
                if stream := self._open.get(frame.id):
                    self._concern(stream, frame)

    def _concern(self, stream: Stream, frame: Any) -> None:
        match frame:
            case frames.Chunk():
                stream.heard(bytes(frame.data))
            case frames.Credit():
                stream.credited(frame.bytes)
            case frames.Reply():
                self._close(stream, msgspec.msgpack.decode(frame.body))
            case frames.Error():
                self._close(stream, frames.to_error(frame))
            case _:
                self._close(stream, frames.to_error(frame.error) if frame.error else None)

    def _close(self, stream: Stream, outcome: Any) -> None:
        self._open.pop(stream.id, None)
        stream.settle(outcome)

    def open(self, operation: int, body: msgspec.Raw, deadline: float | None, key: str | None) -> Stream:
        self._last += 1
        stream = Stream(self, self._last)
        if self.lost.is_set():
            stream.settle(self._bye or _gone())
            return stream
        self._open[self._last] = stream
        allowed = None if deadline is None else max(1, int(deadline * 1000))
        self.write(frames.Call(self._last, operation, body, None, allowed, key))
        return stream

    def write(self, frame: frames.Frame) -> None:
        if self._transport and not self.lost.is_set():
            self._transport.write(frames.encode(frame))

    async def close(self) -> None:
        if self._transport:
            self._transport.close()
            await self.lost.wait()


@asynccontextmanager
async def connect(path: Path | None = None, *, token: str | None = None, build: str = "") -> AsyncGenerator[Client]:
    """A connection that the kernel has welcomed, as whoever shows `token`; without one, as the environment says.
    EHOSTUNREACH `daemon.down`: there is no kernel; or it was idle and ends, because it is of another `build`."""
    token = credentials.shown() if token is None else token
    path = path or place.control_socket()
    opened = _dial(path)
    pid = _pid_behind(opened)
    loop = asyncio.get_running_loop()
    _, line = await loop.create_connection(lambda: _Line(pid), sock=opened)
    try:
        line.write(frames.Hello(frames.ABI_MIN, frames.ABI_MAX, [], token, build))
        try:
            async with asyncio.timeout(_TO_GREET):
                welcome = await asyncio.shield(line.greeting)
        except TimeoutError:
            raise _silent(pid) from None
        except EPIPE:
            raise down() from None
        yield Client(line, welcome, pid)
    finally:
        await line.close()


def _dial(path: Path) -> socket.socket:
    """A socket's address may have 107 bytes, a path many more: it is named from its open directory."""
    opened = socket.socket(socket.AF_UNIX)
    try:
        directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        opened.close()
        raise down() from None
    except OSError as problem:
        opened.close()
        raise EPERM("daemon.closed", f"{path.parent} cannot be looked into: {problem.strerror}") from None
    try:
        opened.connect(f"/proc/self/fd/{directory}/{path.name}")
    except (FileNotFoundError, ConnectionRefusedError):
        opened.close()
        raise down() from None
    except OSError as problem:
        opened.close()
        raise EPERM("daemon.closed", f"{path} cannot be opened: {problem.strerror}") from None
    finally:
        os.close(directory)
    opened.setblocking(False)
    return opened


def _pid_behind(connected: socket.socket) -> int:
    """Of our own user: anybody else who answers there is no kernel that we should tell anything."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    if uid != os.geteuid():
        connected.close()
        raise EPERM("daemon.foreign", f"process {pid} of uid {uid} answers at the control socket, and is not yours")
    return pid


def down() -> EHOSTUNREACH:
    reason = "no kernel is running for this state directory"
    return EHOSTUNREACH("daemon.down", reason, hint="agentctl up, or agentctl run -- CMD, starts one")


def _gone() -> EPIPE:
    return EPIPE("daemon.gone", "the kernel has ended, and every agent with it", hint="agentctl up starts one again")


def _silent(pid: int) -> ETIMEDOUT:
    hint = f"kill -9 {pid} ends it, and with it every agent"
    return ETIMEDOUT("daemon.silent", f"the kernel, process {pid}, does not answer", hint=hint, kernel=pid)


def _refused(frame: frames.Bye) -> AgentOSError:
    """Why the kernel shows us out."""
    return errors.BY_NUMBER.get(frame.code, ECANCELED)("daemon.refused", frame.reason)
