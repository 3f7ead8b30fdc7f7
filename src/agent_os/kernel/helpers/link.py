"""The kernel's end of the wire to a Ring 3 helper: a question out, a checked answer in.

In: a socket whose other end is descriptor 3 of a sandboxed process. Out: a struct and the bytes that came with it, or
one of our errors. Whatever the helper says is a stranger's word: an answer of another shape, more bytes than were asked
for, or silence past the deadline end the link, and `why` says what it was. Whoever made the process ends it then.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi.errors import (
    EACCES,
    EAGAIN,
    EBUSY,
    EHOSTUNREACH,
    EINVAL,
    EIO,
    EMSGSIZE,
    ENOENT,
    ENOSYS,
    EPIPE,
    EPROTO,
    ETIMEDOUT,
    ETYPE,
    AgentOSError,
)
from agent_os.abi.frames import UNREADABLE, Call, Cancel, Chunk, Error, Push, Reply
from agent_os.abi.helpers import Part

GRACE = 5.0  # seconds that a helper has beyond a deadline to say that it passed
_LONGEST_NOTICE = 200
_LONGEST_REASON = 4000
# What a helper may say of what it did. All else is the kernel's word: what is forbidden, spent, cancelled or unknown.
_TOLD = (EACCES, EAGAIN, EBUSY, EHOSTUNREACH, EINVAL, EIO, EMSGSIZE, ENOENT, ENOSYS, EPIPE, ETIMEDOUT, ETYPE)

T = TypeVar("T", bound=Struct)


@dataclass(frozen=True)
class Answered(Generic[T]):
    value: T
    data: bytes = b""

    def cut(self, parts: Sequence[Part]) -> list[bytes]:
        """The bytes of each part. EPROTO if they are not exactly what came."""
        if sum(part.size for part in parts) != len(self.data) or any(part.size < 0 for part in parts):
            raise EPROTO("helper.parts", "the parts of an answer are not what was streamed")
        ends = list(itertools.accumulate(part.size for part in parts))
        return [self.data[end - part.size : end] for part, end in zip(parts, ends, strict=True)]


class _Asked(Struct):
    answer: "asyncio.Future[Reply]"
    limit: int
    data: bytearray = msgspec.field(default_factory=bytearray)
    chunks: int = 0


class Link(asyncio.Protocol):
    """`ended` is done with the reason when nothing more can be asked."""

    def __init__(self, notice: Callable[[str], None] | None = None) -> None:
        self._notice = notice
        self._splitter = frames.Splitter()
        self._numbers = itertools.count(1)
        self._open: dict[int, _Asked] = {}
        self._left: set[int] = set()  # given up by us, and not yet answered
        self._transport: asyncio.Transport | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @classmethod
    async def over(cls, sock: socket.socket, notice: Callable[[str], None] | None = None) -> "Link":
        _, self = await asyncio.get_running_loop().create_unix_connection(lambda: cls(notice), sock=sock)
        return self

    async def ask(self, op: int, request: Struct, answer: type[T], *, seconds: float, limit: int = 0) -> Answered[T]:
        """Cancelled: the helper is told, and its answer is thrown away."""
        if self.ended.done() or self._transport is None:
            raise EPIPE("helper.gone", f"the helper is gone: {self.why}")
        number = next(self._numbers)
        asked = _Asked(asyncio.get_running_loop().create_future(), limit)
        self._open[number] = asked
        call = Call(number, op, frames.body(request), deadline_ms=max(1, round(seconds * 1000)))
        self._transport.write(frames.encode(call))
        try:
            async with asyncio.timeout(seconds + GRACE):
                reply = await asked.answer
        except TimeoutError:
            self.end(f"it said nothing for {seconds + GRACE:g} s")
            raise ETIMEDOUT("helper.silent", f"the helper did not answer within {seconds:g} s") from None
        except asyncio.CancelledError:
            if not self.ended.done():
                self._left.add(number)
                self._transport.write(frames.encode(Cancel(number)))
            raise
        finally:
            self._open.pop(number, None)
        try:
            frames.nesting(msgspec.msgpack.decode(reply.body))  # schemas are of any shape, and are walked later
            return Answered(msgspec.msgpack.decode(reply.body, type=answer), bytes(asked.data))
        except (*UNREADABLE, EPROTO) as problem:
            self.end(f"its answer has another shape: {problem}")
            raise EPROTO("helper.answer", f"the helper's answer cannot be read: {problem}") from problem

    @property
    def why(self) -> str:
        return self.ended.result() if self.ended.done() else ""

    def end(self, why: str) -> None:
        """The first reason stands."""
        if self.ended.done():
            return
        self.ended.set_result(why)
        waiting, self._open = self._open, {}
        for asked in waiting.values():
            if not asked.answer.done():
                asked.answer.set_exception(EPIPE("helper.gone", f"the helper is gone: {why}"))
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        self.end("it ended")

    def data_received(self, data: bytes) -> None:
        try:
            for one in self._splitter.feed(data):
                self._take(frames.decode_from_kernel(one))
        except AgentOSError as problem:
            self.end(problem.reason)

    def _take(self, frame: Any) -> None:
        match frame:
            case Chunk():
                self._keep(frame)
            case Reply() | Error():
                asked = self._open.get(frame.id)
                if asked is None:
                    if frame.id not in self._left:
                        raise EPROTO("helper.id", "it answered what nobody asked")
                    self._left.discard(frame.id)
                elif isinstance(frame, Error):
                    _fail(asked.answer, _told(frame))
                elif not asked.answer.done():
                    asked.answer.set_result(frame)
            case Push() if frame.what == "notice" and self._notice is not None:
                with contextlib.suppress(*UNREADABLE):
                    self._notice(msgspec.msgpack.decode(frame.body, type=str)[:_LONGEST_NOTICE])
            case _:
                pass

    def _keep(self, frame: Chunk) -> None:
        asked = self._open.get(frame.id)
        if asked is None:
            if frame.id not in self._left:
                raise EPROTO("helper.id", "it answered what nobody asked")
            return
        try:
            data = msgspec.msgpack.decode(frame.data, type=bytes)
        except UNREADABLE as problem:
            raise EPROTO("helper.chunk", f"a chunk of it is no bytes: {problem}") from problem
        if frame.n != asked.chunks or len(asked.data) + len(data) > asked.limit:
            raise EPROTO("helper.chunk", f"it streamed more than the {asked.limit} bytes that were asked for")
        asked.chunks += 1
        asked.data += data


def _told(frame: Error) -> AgentOSError:
    try:
        said = frames.to_error(frame)
    except (TypeError, ValueError) as problem:
        raise EPROTO("helper.error", f"an error of it cannot be read: {problem}") from problem
    kind = type(said) if isinstance(said, _TOLD) else EIO
    again, after = said.retryable and kind in (EAGAIN, EHOSTUNREACH), said.retry_after_ms
    code, reason, hint = said.code[:64], said.reason[:_LONGEST_REASON], said.hint[:_LONGEST_NOTICE]
    return kind(code, reason, hint=hint, retryable=again, retry_after_ms=after if again else None)


def _fail(answer: "asyncio.Future[Reply]", error: AgentOSError) -> None:
    if not answer.done():
        answer.set_exception(error)
