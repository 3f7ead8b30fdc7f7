"""The helpers' end of the wire: the kernel asks on descriptor 3, and each question is a task that answers it.

In: what each operation takes and the coroutine that does it. Out: frames. A question ends by its answer, its deadline
or its cancelling, whichever is first; with the connection everything ends. Knows nothing of what is being asked.
"""

import asyncio
import contextlib
import os
import socket
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw, Struct

from agent_os.abi import frames
from agent_os.abi.errors import EAGAIN, ECANCELED, EINVAL, EIO, EMSGSIZE, ENOSYS, ETIMEDOUT, AgentOSError
from agent_os.abi.frames import MAX_FRAME, UNREADABLE, Call, Cancel, Chunk, Push, Reply
from agent_os.abi.helpers import CHUNK
from agent_os.userland.wire import DESCRIPTOR

SECONDS = 60.0  # for a question that says nothing of it
_MOST_AT_ONCE = 32
_ROOM = 4 << 20  # bytes that may wait for the kernel before we wait for it


@dataclass(frozen=True)
class Answer:
    value: Struct
    data: bytes = b""  # what its parts are cut from


Answering = Callable[[Any], Awaitable[Answer]]


@dataclass(frozen=True)
class Operation:
    takes: type[Struct]
    answer: Answering


class Kernel:
    """The connection. `serve` returns when the kernel is gone."""

    def __init__(self, sock: socket.socket, operations: Mapping[int, Operation]) -> None:
        self._sock = sock
        self._operations = operations
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pushed = 0

    async def serve(self) -> None:
        reader, self._writer = await asyncio.open_connection(sock=self._sock)
        self._writer.transport.set_write_buffer_limits(_ROOM)
        splitter = frames.Splitter()
        try:
            while data := await reader.read(1 << 16):
                for one in splitter.feed(data):
                    self._take(one)
        except ConnectionError:
            pass  # it is gone, as at the end of the stream
        finally:
            for task in list(self._tasks.values()):
                task.cancel()
            await asyncio.gather(*self._tasks.values(), return_exceptions=True)
            self._writer.close()

    def notice(self, what: str) -> None:
        """Something the kernel did not ask for."""
        self._pushed += 1
        self._write(Push(self._pushed, "notice", frames.body(what)))

    def _take(self, data: bytes) -> None:
        frame = frames.decode_from_agent(data)
        if isinstance(frame, Cancel) and frame.id in self._tasks:
            self._tasks[frame.id].cancel()
        elif isinstance(frame, Call):
            if len(self._tasks) >= _MOST_AT_ONCE:
                error = EAGAIN("helper.busy", f"{_MOST_AT_ONCE} calls are under way", retry_after_ms=100)
                self._write(frames.from_error(frame.id, error))
                return
            task = asyncio.create_task(self._answer(frame))
            self._tasks[frame.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(frame.id, None))

    async def _answer(self, call: Call) -> None:
        seconds = call.deadline_ms / 1000 if call.deadline_ms else SECONDS
        try:
            async with asyncio.timeout(seconds):
                answer = await self._found(call)
            await self._send(call.id, answer)
        except asyncio.CancelledError:
            self._write(frames.from_error(call.id, ECANCELED("cancelled", "the kernel cancelled it")))
            raise
        except TimeoutError:
            self._write(frames.from_error(call.id, ETIMEDOUT("helper.timeout", f"no answer within {seconds:g} s")))
        except AgentOSError as error:
            self._write(frames.from_error(call.id, error))
        except Exception as problem:  # a fault of ours, or of a library that read something hostile: one call fails
            traceback.print_exc()
            told = f"{type(problem).__name__}: {problem}"[:500]
            self._write(frames.from_error(call.id, EIO("helper.failed", told)))

    async def _found(self, call: Call) -> Answer:
        operation = self._operations.get(call.op)
        if operation is None:
            raise ENOSYS("helper.op", f"this helper has no operation {call.op}")
        try:
            request = msgspec.msgpack.decode(call.body, type=operation.takes)
        except UNREADABLE as problem:
            raise EINVAL("helper.request", f"operation {call.op} cannot read its request: {problem}") from problem
        return await operation.answer(request)

    async def _send(self, call: int, answer: Answer) -> None:
        value = frames.body(answer.value)
        if len(bytes(value)) > MAX_FRAME - 1024:
            raise EMSGSIZE("helper.reply", f"the answer is larger than a frame of {MAX_FRAME} bytes")
        for n, at in enumerate(range(0, len(answer.data), CHUNK)):
            self._write(Chunk(call, n, Raw(frames.encode_body(answer.data[at : at + CHUNK]))))
            await self._writer.drain()
        self._write(Reply(call, value))

    def _write(self, frame: frames.Frame) -> None:
        if not self._writer.is_closing():
            self._writer.write(frames.encode(frame))


def run(main: Callable[[socket.socket], Awaitable[None]]) -> int:
    """A helper's life: from the socket it was given to the end of its kernel."""
    sock = socket.socket(fileno=int(os.environ.get("AGENT_OS_FD", DESCRIPTOR)))
    sock.set_inheritable(False)  # what it starts speaks for itself

    async def live() -> None:
        await main(sock)

    with contextlib.suppress(KeyboardInterrupt), asyncio.Runner() as runner:
        runner.run(live())
    return 0
