"""Our end of an agent's three streams: the operator's input on its way in, its output on its way out.

Threads do the reading and writing, because a terminal or a pipe may keep us waiting for ever; they are daemons, so they
keep nobody from ending. Text that goes to a terminal keeps its colours and loses every other escape sequence.
"""

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable

from agent_os.cli.tamer import Tamer
from agent_os.client.wire import Stream

_CHUNK = 65536


class Feed:
    """The operator's input, until either side ends."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._loop = stream, asyncio.get_running_loop()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(RuntimeError, asyncio.CancelledError):  # the loop is closed: nobody wants more
            try:
                while data := os.read(0, _CHUNK):
                    asyncio.run_coroutine_threadsafe(self._stream.send(data), self._loop).result()
            except OSError:
                pass  # no stdin at all: the same as an empty one
            asyncio.run_coroutine_threadsafe(self._stream.send(["close", 0], urgent=True), self._loop).result()


class Drain:
    """One output. Bytes go in as they come; `written` tells how many are out, so that more may come."""

    def __init__(self, target: int, tamer: Tamer | None, written: Callable[[int], None], lost: Callable[[], None]):
        """`lost`: nobody reads it any more. Both are called on the loop."""
        self._target, self._tamer = target, tamer
        self._written, self._lost = written, lost
        self._loop = asyncio.get_running_loop()
        self._waiting: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._out = asyncio.Event()
        threading.Thread(target=self._write, daemon=True).start()

    def put(self, data: bytes, size: int) -> None:
        self._waiting.put((data, size))

    async def finish(self) -> None:
        """Everything is out when this returns, or can be no more."""
        self._waiting.put(None)
        await self._out.wait()

    def _write(self) -> None:
        broken = False
        while item := self._waiting.get():
            broken = broken or not self._try(self._tamer.feed(item[0]) if self._tamer else item[0])
            self._tell(self._written, item[1])
        if self._tamer and not broken:
            self._try(self._tamer.end())
        self._tell(self._out.set)

    def _try(self, data: bytes) -> bool:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._target, view) :]
            return True
        except BrokenPipeError:
            pass  # whoever read our output is gone; the agent is told
        except OSError as problem:  # a full disk, a terminal that hung up: the same for the agent, but no silent loss
            with contextlib.suppress(OSError):
                os.write(2, f"agentctl: its output could not be written: {problem.strerror}\n".encode())
        self._tell(self._lost)
        return False

    def _tell(self, what: Callable[..., object], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(what, *arguments)
