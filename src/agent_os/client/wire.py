"""A connection to a kernel's control socket: calls, and streams beside them.

In: request structs of `abi.syscalls`. Out: what the kernel answered, or the error it meant. One connection carries any
number of calls at a time. Nothing is sent again by itself: whoever gets EPIPE decides.

Under a loop of asyncio each wait is one of the loop's. Without one it blocks, and `at_once` runs what waits for one
thing at a time: importing asyncio takes longer than most questions.
"""

import os
import sys
from _socket import AF_UNIX, SO_PEERCRED, SOCK_CLOEXEC, SOCK_STREAM, SOL_SOCKET, socket  # `socket` names all there is
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from select import POLLIN, poll
from struct import calcsize, unpack
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from agent_os.abi import errors, frames
from agent_os.abi.errors import ECANCELED, EHOSTUNREACH, EPERM, EPIPE, ETIMEDOUT, AgentOSError
from agent_os.abi.syscalls import BY_REQUEST, Body
from agent_os.client import credentials, place

if TYPE_CHECKING:
    import asyncio
    from socket import socket as Socket

T = TypeVar("T")
Hear = Callable[[str, Any], None]  # what was pushed (a signal, a message, a notice), and its body
CREDIT = 256 << 10  # bytes of chunks under way, in each direction of a stream
_RESERVE = 4 << 10  # of our credit, for what must get through while data waits
_GIVE_BACK = 64 << 10
_TO_GREET = 30.0  # seconds
_PIECE = 256 << 10


class Client:
    """An open connection. `pid` is the kernel's."""

    def __init__(self, line: "_Line", welcome: frames.Welcome, pid: int) -> None:
        self._line, self.welcome, self.pid = line, welcome, pid

    async def call(self, request: Body, *, deadline: float | None = None, key: str | None = None) -> Any:
        """The answer, or the kernel's error raised here. `deadline` (seconds) holds for the kernel, and for us if it
        does not answer at all. Cancelled, the kernel is told; what it had begun may have happened."""
        stream = self.stream(request, deadline=deadline, key=key)
        try:
            return await stream.result(deadline)
        except TimeoutError:
            stream.cancel()
            raise _silent(self.pid) from None
        except BaseException:
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

    async def ended(self, within: float | None = None) -> None:
        """Returns when the kernel's process is gone. TimeoutError: it was not within so many seconds."""
        try:
            pidfd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            await readable(pidfd, _until(within))
        finally:
            os.close(pidfd)

    @property
    def lost(self) -> bool:
        """The connection is closed, by whichever side."""
        return self._line.lost

    async def closed(self) -> None:
        """Returns when it is."""
        await self._line.closed()


class Stream:
    """One call under way. Iterate over its chunks, `send` some, then ask for the `result`."""

    def __init__(self, line: "_Line", number: int) -> None:
        self._line, self.id = line, number
        self._chunks: deque[bytes] = deque()
        self._over, self._outcome = False, None
        self._credit, self._owed, self._sent = CREDIT, 0, 0
        self.waiters: list[asyncio.Future[None]] = []  # the line's: who is woken by news of it

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
            if self._over:
                raise StopAsyncIteration
            await self._line.news(self)
        data = self._chunks.popleft()
        return msgspec.msgpack.decode(data), len(data)

    def give(self, size: int) -> None:
        """Let the kernel send so much more."""
        self._owed += size
        if self._owed >= _GIVE_BACK and not self._over:
            self._line.write(frames.Credit(self.id, self._owed))
            self._owed = 0

    async def send(self, value: Any, *, urgent: bool = False) -> None:
        """Returns when it is on its way. After the end of the call it goes nowhere, in silence. What is urgent is small
        and may use credit that data may not."""
        data = frames.body(value)
        size = len(bytes(data))
        while not self._over and self._credit - size < (0 if urgent else _RESERVE):
            await self._line.news(self)
        if not self._over:
            self._credit -= size
            self._line.write(frames.Chunk(self.id, self._sent, data))
            self._sent += 1

    def end(self) -> None:
        """No more chunks from us."""
        if not self._over:
            self._line.write(frames.End(self.id, self._sent))

    def cancel(self) -> None:
        if not self._over:
            self._line.write(frames.Cancel(self.id))

    async def result(self, within: float | None = None) -> Any:
        """TimeoutError: there was none within so many seconds."""
        until = _until(within)
        while not self._over:
            await self._line.news(self, until)
        if isinstance(self._outcome, AgentOSError):
            raise self._outcome
        return self._outcome

    # Called by the line.

    def heard(self, data: bytes) -> None:
        self._chunks.append(data)
        self._wake()

    def credited(self, size: int) -> None:
        self._credit += size
        self._wake()

    def settle(self, outcome: Any) -> None:
        if not self._over:
            self._over, self._outcome = True, outcome
        self._wake()

    def _wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class _Line:
    """The socket: frames in and out, and who waits for which. This one blocks while it waits for news."""

    def __init__(self, opened: socket, pid: int) -> None:
        self._socket, self.pid = opened, pid
        self._splitter = frames.Splitter()
        self._last = 0
        self._bye: AgentOSError | None = None
        self.heard_by: list[Hear] = []
        self.lost = False
        self.greeting = Stream(self, 0)
        self._open = {0: self.greeting}

    async def news(self, stream: Stream, until: float | None = None) -> None:
        """Returns when something may have become of `stream`; TimeoutError: nothing has until then."""
        await readable(self._socket.fileno(), until)
        try:
            data = self._socket.recv(_PIECE)
        except OSError:
            data = b""
        self.feed(data) if data else self.end()

    def write(self, frame: frames.Frame) -> None:
        if self.lost:
            return
        try:
            self._socket.sendall(frames.encode(frame))
        except (BrokenPipeError, ConnectionResetError):  # what it said before it went is still to be read
            return
        except TimeoutError:
            raise _silent(self.pid) from None

    async def close(self) -> None:
        self._socket.close()
        self.lost = True

    async def closed(self) -> None:
        while not self.lost:
            await self.news(self.greeting)

    def feed(self, data: bytes) -> None:
        try:
            for frame in self._splitter.feed(data):
                if (understood := frames.decode_from_kernel(frame)) is not None:
                    self._hear(understood)
        except AgentOSError as problem:  # this is no kernel of ours
            self._bye = problem
            self.end()

    def end(self) -> None:
        self.lost = True
        gone = self._bye or _gone()
        self.greeting.settle(gone)
        for stream in self._open.values():
            stream.settle(gone)
        self._open.clear()

    def _hear(self, frame: frames.FromKernel) -> None:
        match frame:
            case frames.Welcome():
                self._close(self.greeting, frame)
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
        if self.lost:
            stream.settle(self._bye or _gone())
            return stream
        self._open[self._last] = stream
        allowed = None if deadline is None else max(1, int(deadline * 1000))
        self.write(frames.Call(self._last, operation, body, None, allowed, key))
        return stream


class _Looped(_Line):  # by its methods a protocol: to inherit from asyncio's would import it
    """The same under a loop, which calls what is told here."""

    _transport: "asyncio.Transport"

    def connection_made(self, transport: "asyncio.Transport") -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.feed(data)
        if self.lost:
            self._transport.abort()

    def eof_received(self) -> None:
        return None

    pause_writing = resume_writing = eof_received

    def connection_lost(self, exc: Exception | None) -> None:
        with suppress(OSError):  # nothing is left, or it is closed already
            while exc and (data := self._socket.recv(_PIECE)):  # what it said before it hung up on what we wrote
                self.feed(data)
        self.end()

    async def news(self, stream: Stream, until: float | None = None) -> None:
        import asyncio

        waiter = asyncio.get_running_loop().create_future()
        stream.waiters.append(waiter)
        try:
            async with asyncio.timeout(until and until - monotonic()):
                await waiter
        finally:
            stream.waiters.remove(waiter)

    def write(self, frame: frames.Frame) -> None:
        if not self.lost:
            self._transport.write(frames.encode(frame))

    async def close(self) -> None:
        self._transport.close()
        await self.closed()


def at_once(asked: Coroutine[Any, Any, T], *, looped: bool = False) -> T:
    """Runs it without a loop, as far as it waits for one thing at a time; else `looped`."""
    if looped:
        import asyncio

        return asyncio.run(asked)
    try:
        asked.send(None)
    except StopIteration as end:
        return end.value
    asked.close()
    raise RuntimeError("it waits for something that only a loop knows")


async def readable(fd: int, until: float | None = None) -> None:
    """Returns when there is something to be read; TimeoutError: there is nothing until then."""
    left = until and until - monotonic()
    if (loop := _loop()) is None:
        waiting = poll()
        waiting.register(fd, POLLIN)
        if not waiting.poll(left and max(left, 0) * 1000):
            raise TimeoutError
        return
    import asyncio

    there = loop.create_future()
    loop.add_reader(fd, lambda: there.done() or there.set_result(None))
    try:
        async with asyncio.timeout(left):
            await there
    finally:
        loop.remove_reader(fd)


def _until(within: float | None) -> float | None:
    return None if within is None else monotonic() + within


def _loop() -> "asyncio.AbstractEventLoop | None":
    """The one that runs. Where nobody has imported asyncio, none does."""
    with suppress(KeyError, RuntimeError):
        return sys.modules["asyncio"].get_running_loop()
    return None


@asynccontextmanager
async def connect(path: Path | None = None, *, token: str | None = None, build: str = "") -> AsyncGenerator[Client]:
    """A connection that the kernel has welcomed, as whoever shows `token`; without one, as the environment says.
    EHOSTUNREACH `daemon.down`: there is no kernel; or it was idle and ends, because it is of another `build`."""
    token = credentials.shown() if token is None else token
    opened = _dial(path or place.control_socket())
    pid = _pid_behind(opened)
    if (loop := _loop()) is None:
        line = _Line(opened, pid)
    else:
        whole = _whole(opened)
        line = _Looped(whole, pid)
        await loop.create_connection(cast("Callable[[], asyncio.Protocol]", lambda: line), sock=whole)
    try:
        line.write(frames.Hello(frames.ABI_MIN, frames.ABI_MAX, [], token, build))
        try:
            welcome = await line.greeting.result(_TO_GREET)
        except TimeoutError:
            raise _silent(pid) from None
        except EPIPE:
            raise down() from None
        yield Client(line, welcome, pid)
    finally:
        await line.close()


def _dial(path: Path) -> socket:
    """A socket's address may have 107 bytes, a path many more: it is named from its open directory."""
    opened = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
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
    opened.settimeout(_TO_GREET)
    return opened


def _whole(opened: socket) -> "Socket":
    """As a loop wants it: of the module `socket`, whose import takes as long as a question."""
    from socket import socket as Socket

    whole = Socket(fileno=opened.detach())
    whole.setblocking(False)
    return whole


def _pid_behind(connected: socket) -> int:
    """Of our own user: anybody else who answers there is no kernel that we should tell anything."""
    pid, uid, _ = unpack("3i", connected.getsockopt(SOL_SOCKET, SO_PEERCRED, calcsize("3i")))
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
