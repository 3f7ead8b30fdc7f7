"""The agent's end of the wire: one connection to the kernel, calls with numbers, streams with credit, pushes.

Goes in: requests of `abi.syscalls`. Comes out: decoded answers, or an error of the family. Knows nothing of what a call
means. Frames of one turn of the event loop leave in one write. The kernel is trusted, but not to be without faults:
whatever is no frame of ours, or answers something that was not asked, ends the connection with EPROTO, because after
that no answer could be believed. Once a connection has ended, for whatever reason, every call raises that reason.
"""

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw

from agent_os.abi import errors, frames
from agent_os.abi.errors import EPIPE, EPROTO, ETIMEDOUT, AgentOSError
from agent_os.abi.frames import Bye, Chunk, Credit, End, Error, Push, Reply, Welcome
from agent_os.abi.syscalls import BY_REQUEST, Body

DESCRIPTOR = 3
CREDIT = 256 * 1024  # bytes of encoded chunk data that may be under way, unless WELCOME says otherwise
HELLO_SECONDS = 30.0
_MOST_IDS = 1 << 32
_decode: Callable[[Any], Any] = msgspec.msgpack.Decoder().decode


class Chunks(list[Any]):
    """An answer that came as a stream, and what the kernel said at its end."""

    def __init__(self, parts: Iterable[Any] = (), last: Any = None) -> None:
        super().__init__(parts)
        self.last = last


class Asked:
    """A call that has not been answered yet. `chunks` is what streamed in and was not taken."""

    __slots__ = ("abandoned", "answer", "chunks", "credit", "expected", "held", "id", "kept", "moved", "sent", "taken")

    def __init__(self, number: int, credit: int, kept: bool, answer: "asyncio.Future[Any]") -> None:
        self.id, self.answer, self.kept = number, answer, kept
        self.chunks: deque[tuple[Any, int]] = deque()
        self.abandoned = False
        self.credit = credit  # what we may still send
        self.sent = self.expected = 0  # chunks
        self.held = self.taken = 0  # bytes that came in: not taken yet, taken and not given back as credit yet
        self.moved: asyncio.Future[None] | None = None  # somebody waits for a chunk, for credit or for the answer

    def stir(self, _: object = None) -> None:
        if self.moved and not self.moved.done():
            self.moved.set_result(None)

    async def stirred(self) -> None:
        self.moved = asyncio.get_running_loop().create_future()
        try:
            await self.moved
        finally:
            self.moved = None


class Wire(asyncio.Protocol):
    """A connection. `delivered` counts answers and pushes handled so far; each call tells it, so that a replay can give
    everything again at the same point of the program."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._welcome: asyncio.Future[Welcome] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._transport: asyncio.Transport | None = None
        self._splitter = frames.Splitter()
        self._gathered = frames.Gathered()
        self._open: dict[int, Asked] = {}
        self._last_id = 0
        self._out: list[bytes] = []
        self._failed: Callable[[], AgentOSError] | None = None
        self._credit = CREDIT
        self.delivered = 0
        self._early: list[tuple[str, Any]] = []  # pushes that came before anybody listened
        self._pushed: Callable[[str, Any], bool] | None = None
        self._lost: Callable[[AgentOSError], None] = lambda error: None

    @classmethod
    async def connect(cls, sock: socket.socket, features: Iterable[str] = ()) -> tuple["Wire", Welcome]:
        """Say HELLO on a connected stream socket; returns with the kernel's WELCOME, or raises what it said instead."""
        self = cls()
        sock.setblocking(False)
        await self._loop.create_unix_connection(lambda: self, sock=sock)
        self._send(frames.Hello(frames.ABI_MIN, frames.ABI_MAX, list(features)))
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                welcome = await self._welcome
        except TimeoutError:
            self._end(lambda: ETIMEDOUT("hello", f"the kernel did not answer HELLO within {HELLO_SECONDS:.0f} s"))
            raise ETIMEDOUT("hello", f"the kernel did not answer HELLO within {HELLO_SECONDS:.0f} s") from None
        self._credit = welcome.limits.get("stream_credit", CREDIT)
        return self, welcome

    def listen(self, pushed: Callable[[str, Any], bool], lost: Callable[[AgentOSError], None]) -> None:
        """Who hears of pushes, those that came already first, and says whether each counts as delivered; and who hears
        of the end of the connection."""
        self._pushed, self._lost = pushed, lost
        early, self._early = self._early, []
        for what, body in early:
            self._push(what, body)

    async def ask(
        self,
        request: Body,
        *,
        cap: int | None = None,
        deadline_ms: int | None = None,
        key: str | None = None,
        pos: str | None = None,
        send: AsyncIterable[Any] | None = None,
        began: Callable[[Asked], None] | None = None,
    ) -> Any:
        """One call, answered. A streamed answer comes as its `Chunks`. Cancelled: the kernel is told, and what
        it still answers is dropped; an effect that had begun is finished and recorded all the same."""
        asked = self._begin(request, cap, deadline_ms, key, pos, kept=True)
        if began:
            began(asked)
        try:
            if send is not None:
                await self._feed(asked, send)
            return await asked.answer
        except BaseException:
            self.abandon(asked)
            raise

    async def stream(
        self,
        request: Body,
        *,
        cap: int | None = None,
        deadline_ms: int | None = None,
        key: str | None = None,
        pos: str | None = None,
        began: Callable[[Asked], None] | None = None,
        last: bool = False,
    ) -> AsyncIterator[Any]:
        """The chunks of an answer as they come; a plain answer is its only chunk. `last`: what it answers besides comes
        after them. Left early: the call is cancelled."""
        asked = self._begin(request, cap, deadline_ms, key, pos, kept=False)
        if began:
            began(asked)
        try:
            while True:
                while asked.chunks:
                    data, size = asked.chunks.popleft()
                    self._took(asked, size)
                    yield data
                if asked.answer.done():
                    break
                await asked.stirred()
            whole = await asked.answer
            if not isinstance(whole, Chunks):
                yield whole
            elif last and whole.last is not None:
                yield whole.last
        finally:
            self.abandon(asked)

    def tell(self, request: Body, *, pos: str | None = None) -> None:
        """A call that has no answer."""
        self._begin(request, None, None, None, pos, kept=True).abandoned = True

    def abandon(self, asked: Asked) -> None:
        """Wait no longer for a call. Its number stays taken until the kernel has answered."""
        if asked.id in self._open and not asked.abandoned:
            asked.abandoned = True
            self._send(frames.Cancel(asked.id))
        if asked.answer.done() and not asked.answer.cancelled():
            asked.answer.exception()  # looked at, so that nobody complains about it later
        asked.answer.cancel()

    async def close(self) -> None:
        """Everything said so far is sent before the connection ends."""
        self._flush()
        if self._transport:
            self._transport.close()
            await self._closed

    def _begin(
        self, request: Body, cap: int | None, deadline_ms: int | None, key: str | None, pos: str | None, kept: bool
    ) -> Asked:
        if self._failed:
            raise self._failed()
        while (number := (self._last_id + 1) % _MOST_IDS) in self._open:
            self._last_id = number
        self._last_id = number
        syscall, body = BY_REQUEST[type(request)], _encoded(request)
        call = frames.Call(number, syscall.number, body, cap, deadline_ms, key, pos, self.delivered)
        if syscall.large and len(bytes(body)) > frames.PART:
            self._send_parts(number, body)
            call.body = frames.NIL
        self._send(call)  # raises before anything is remembered, if the frame would be too large
        asked = self._open[number] = Asked(number, self._credit, kept, self._loop.create_future())
        asked.answer.add_done_callback(asked.stir)
        return asked

    async def _feed(self, asked: Asked, source: AsyncIterable[Any]) -> None:
        """Send chunks as far as credit goes. An answer before the end (a refusal) ends the sending."""
        async for piece in source:
            data = _encoded(piece)
            size = len(bytes(data))
            while asked.credit < size and not asked.answer.done():
                await asked.stirred()
            if asked.answer.done():
                return
            asked.credit -= size
            self._send(Chunk(asked.id, asked.sent, data))
            asked.sent += 1
        if not asked.answer.done():
            self._send(End(asked.id, asked.sent))

    def _took(self, asked: Asked, size: int) -> None:
        asked.held -= size
        asked.taken += size
        if asked.taken * 2 >= self._credit and asked.id in self._open and not asked.abandoned:
            self._send(Credit(asked.id, asked.taken))
            asked.taken = 0

    def _send(self, frame: frames.Frame) -> None:
        data = frames.encode(frame)
        if len(data) - frames.LENGTH > frames.MAX_FRAME:
            reason = f"this call is {len(data)} bytes, more than a frame of {frames.MAX_FRAME} may have"
            raise errors.EMSGSIZE("frame", reason, hint="write large data to a path and pass the path", size=len(data))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _send_parts(self, call: int, body: Raw) -> None:
        if (size := len(bytes(body))) > frames.MAX_BODY:
            reason = f"this call has {size} bytes, of at most {frames.MAX_BODY}: more than any model reads"
            raise errors.EMSGSIZE("body", reason, hint="leave out what it need not see, such as old results", size=size)
        for part in frames.parts(call, body):
            self._send(part)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and self._transport and not self._transport.is_closing():
            self._transport.write(b"".join(out))

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._failed:
            return
        try:
            for one in self._splitter.feed(data):
                frame = frames.decode_from_kernel(one)
                if frame is not None:
                    self._take(frame)
                if self._failed:
                    return
        except AgentOSError as problem:
            code, reason = problem.code, problem.reason
            self._end(lambda: EPROTO(code, f"the kernel sent something that is not the wire: {reason}"))
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as problem:
            why = str(problem)
            self._end(lambda: EPROTO("frame", f"the kernel sent something that is not the wire: {why}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(lambda: EPIPE("kernel.gone", "the kernel closed the connection; nothing more can be asked"))
        if not self._closed.done():
            self._closed.set_result(None)

    def _take(self, frame: frames.FromKernel) -> None:
        if isinstance(frame, Welcome):
            if self._welcome.done():
                raise EPROTO("welcome", "a second WELCOME")
            self._welcome.set_result(frame)
        elif isinstance(frame, Bye):
            kind, reason = errors.BY_NUMBER.get(frame.code, EPIPE), frame.reason
            self._end(lambda: kind("bye", f"the kernel ended the connection: {reason}"))
        elif not self._welcome.done():
            raise EPROTO("welcome", "something else before WELCOME")
        elif isinstance(frame, Push):
            self._push(frame.what, _decode(frame.body))
        elif isinstance(frame, frames.Part):
            self._gathered.take(frame)
        elif isinstance(frame, Credit):
            if asked := self._open.get(frame.id):  # credit for a call answered meanwhile means nothing
                asked.credit += frame.bytes
                asked.stir()
        else:
            self._answered(frame)

    def _push(self, what: str, body: Any) -> None:
        if self._pushed is None:
            self._early.append((what, body))
        elif self._pushed(what, body):
            self.delivered += 1

    def _answered(self, frame: Reply | Error | Chunk | End) -> None:
        asked = self._open.get(frame.id)
        if asked is None:
            raise EPROTO("id", f"an answer to {frame.id}, which was not asked")
        if isinstance(frame, Chunk):
            self._streamed(asked, frame)
            return
        if isinstance(frame, Reply):
            frame.body = self._gathered.whole(frame.id, frame.body)
        value, error = _outcome(asked, frame)
        del self._open[frame.id]
        self.delivered += 1
        if asked.answer.done():
            return
        if error is None:
            asked.answer.set_result(value)
        else:
            asked.answer.set_exception(error)

    def _streamed(self, asked: Asked, frame: Chunk) -> None:
        if frame.n != asked.expected:
            raise EPROTO("chunk", f"chunk {frame.n} where {asked.expected} was expected")
        asked.expected += 1
        if asked.abandoned:
            return
        size = len(bytes(frame.data))
        if asked.held + asked.taken >= self._credit:  # the last chunk before the end of the credit may overrun it
            raise EPROTO("credit", "more was streamed than there was credit for")
        asked.chunks.append((_decode(frame.data), size))
        asked.held += size
        if asked.kept:
            self._took(asked, size)
        asked.stir()

    def _end(self, reason: Callable[[], AgentOSError]) -> None:
        """The connection is over, and this is why. The first reason stands."""
        if self._failed:
            return
        self._failed = reason
        waiting, self._open = self._open, {}
        for asked in waiting.values():
            if not asked.answer.done() and not asked.abandoned:
                asked.answer.set_exception(reason())
        if not self._welcome.done():
            self._welcome.set_exception(reason())
        self._lost(reason())
        if self._transport:
            self._transport.close()


def _outcome(asked: Asked, frame: Reply | Error | End) -> tuple[Any, AgentOSError | None]:
    """What a last frame means. For a stream: the chunks that nobody took yet."""
    if isinstance(frame, Reply):
        value = _decode(frame.body)
        return (_chunks(asked, value) if asked.expected else value), None
    if isinstance(frame, Error):
        return None, frames.to_error(frame)
    if frame.n != asked.expected:
        raise EPROTO("end", f"a stream of {frame.n} chunks, of which {asked.expected} came")
    if frame.error is not None:
        return None, frames.to_error(frame.error)
    return _chunks(asked, None), None


def _chunks(asked: Asked, last: Any) -> Chunks:
    return Chunks((data for data, _ in asked.chunks) if asked.kept else (), last)


def _encoded(value: object) -> Raw:
    try:
        return frames.body(value)
    except (TypeError, OverflowError, msgspec.MsgspecError, RecursionError) as problem:
        hint = "text, bytes, numbers, lists, maps, dataclasses and msgspec structs can"
        raise errors.EINVAL("body", f"this cannot travel to the kernel: {problem}", hint=hint) from problem
