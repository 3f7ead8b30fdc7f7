"""An agent's standard streams inside the kernel: pipes or a terminal on one side, a client's stream and a log beside.

Always our pipes, never the operator's descriptors: a file would show a host path, a terminal could be steered. Nothing
here blocks the loop, and an agent that writes faster than its client reads waits.
"""

import asyncio
import contextlib
import fcntl
import os
import struct
import sys
import termios
from collections.abc import Awaitable, Callable
from typing import Any

from agent_os.abi.errors import AgentOSError
from agent_os.kernel.calls import Stream
from agent_os.kernel.outputs import Output

_CHUNK = 64 << 10
_MOST_KEYS = 1 << 20  # more than anybody types or pastes
_OUT, _ERR = 1, 2
_END_OF_INPUT = ["close", 0]
Ear = Callable[[int, bytes], Awaitable[None]]  # stream, what came


class Pipes:
    """`theirs` goes to the agent; call `started` once it has it, and `attach` its terminal, if it got one."""

    def __init__(self, *, plain: bool, fed: bool) -> None:
        """`plain`: pipes; else it has a terminal, and nothing else. `fed`: somebody may send it input."""
        self._null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.theirs = (self._null, self._null, self._null)
        self._reading: dict[int, int] = {}
        self._writing = -1
        if plain:
            stdout, stderr = os.pipe(), os.pipe()
            self._reading = {_OUT: stdout[0], _ERR: stderr[0]}
            stdin = self._null
            if fed:
                stdin, self._writing = os.pipe()
            self.theirs = (stdin, stdout[1], stderr[1])
        for fd in (*self._reading.values(), self._writing):
            if fd >= 0:
                os.set_blocking(fd, False)

    def started(self) -> None:
        """Our copies of the agent's ends must go, or its end would never be the end of the stream."""
        for fd in {self._null, *self.theirs}:
            os.close(fd)
        self._null, self.theirs = -1, (-1, -1, -1)

    def attach(self, terminal: int) -> None:
        """The agent has a terminal; this is the kernel's end of it, which its owner may close at any time."""
        self._reading = {_OUT: os.dup(terminal)}
        self._writing = os.dup(terminal)
        for fd in (self._reading[_OUT], self._writing):
            os.set_blocking(fd, False)

    def give_up(self) -> None:
        """It never started."""
        if self._null >= 0:
            self.started()
        self.close()

    def close(self) -> None:
        for fd in (*self._reading.values(), self._writing):
            if fd >= 0:
                os.close(fd)
        self._reading, self._writing = {}, -1

    def take_reading(self, number: int) -> int:
        return self._reading.pop(number, -1)

    def take_writing(self) -> int:
        fd, self._writing = self._writing, -1
        return fd


class Pumps:
    """Carries until both sides have ended. `drained` returns when everything the agent wrote is out, or nobody wants it
    any more."""

    def __init__(
        self,
        pipes: Pipes,
        output: Output | None,
        stream: Stream | None,
        kill: Callable[[], object] | None = None,
        signal: Callable[[int], object] | None = None,
    ) -> None:
        self._pipes, self._output, self._stream = pipes, output, stream
        self._kill = kill  # given where the agent has a terminal: there Ctrl-C is a key
        self._signal = signal  # given where the client may send signals by its stream
        self._keys = b""
        self._asked = False  # Ctrl-C was pressed, and the program has shown nothing since
        self.ear: Ear | None = None  # hears all that it writes; waited for, so that it stays cheap for others
        self._carrying: dict[int, asyncio.Task[None]] = {}
        self._open: set[int] = set()  # descriptors that are ours to close
        self._reading: dict[int, int] = {}  # those that we read, by stream
        self._news: dict[int, asyncio.Future[None]] = {}  # which somebody waits for, by stream
        self._left: dict[int, int] = {}  # bytes that are still taken, once the writer has ended
        self._feeding: asyncio.Task[None] | None = None

    def start(self) -> None:
        for number in (_OUT, _ERR):
            if (fd := self._pipes.take_reading(number)) >= 0:
                self._open.add(fd)
                self._reading[number] = fd
                self._carrying[number] = asyncio.create_task(self._carry(number, fd))
        if (fd := self._pipes.take_writing()) >= 0:
            self._open.add(fd)
            if self._stream:
                feed = self._type(self._stream, fd) if self._kill else self._feed(self._stream, fd)
                self._feeding = asyncio.create_task(feed)
            else:
                self._close(fd)

    def let_go(self) -> None:
        """The writer has ended, though somebody it left behind may have its streams: what is in them by now is carried,
        and nothing that comes later."""
        for number, fd in self._reading.items():
            self._left[number] = _filled(fd)
            if (news := self._news.get(number)) and not news.done():
                news.set_result(None)

    async def drained(self) -> None:
        if self._carrying:
            await asyncio.wait(self._carrying.values())
        await self.stop()

    async def stop(self) -> None:
        tasks = [*self._carrying.values(), *([self._feeding] if self._feeding else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for fd in list(self._open):  # of a task that was given up before it began
            self._close(fd)

    def _close(self, fd: int) -> None:
        self._open.discard(fd)
        os.close(fd)

    # From the agent.

    async def _carry(self, number: int, fd: int) -> None:
        try:
            while data := await self._next(number, fd):
                if self._output:
                    self._output.write(data)
                if self.ear:
                    await self.ear(number, data)
                if data.strip(b"^C\r\n"):  # more than the echo of the key
                    self._asked = False
                if self._stream:
                    await self._stream.send([number, data])
        except AgentOSError:
            pass  # the client is gone; so is the agent in a moment
        finally:
            del self._reading[number]
            self._close(fd)

    async def _next(self, number: int, fd: int) -> bytes:
        """What it wrote next; nothing at the end."""
        while True:
            left = self._left.get(number, _CHUNK)
            try:
                data = os.read(fd, min(left, _CHUNK))
            except BlockingIOError:
                if number in self._left:
                    return b""
                news = self._news[number] = asyncio.get_running_loop().create_future()
                await _ready(fd, news=news)
                continue
            except OSError:  # EIO: nobody has the agent's terminal open any more
                return b""
            if number in self._left:
                self._left[number] -= len(data)
            return data

    # To the agent.

    async def _feed(self, stream: Stream, fd: int) -> None:
        """Input by pipe. The credit for its bytes is given back when the agent took them; what is said beside the data
        is heard at once."""
        waiting: asyncio.Queue[tuple[bytes, int] | None] = asyncio.Queue()
        writer = asyncio.create_task(self._write_all(stream, fd, waiting))
        try:
            while (value := await stream.receive(credit=False)) is not None:
                if isinstance(value, bytes):
                    waiting.put_nowait((value, stream.last_size))
                    continue
                stream.give(stream.last_size)
                if value == _END_OF_INPUT:
                    waiting.put_nowait(None)
                else:
                    self._hear(value)
            waiting.put_nowait(None)
            await writer
        except AgentOSError:
            pass
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)

    async def _write_all(self, stream: Stream, fd: int, waiting: "asyncio.Queue[tuple[bytes, int] | None]") -> None:
        """Until the end of input. An agent that no longer reads loses the rest of it."""
        broken = False
        try:
            while (item := await waiting.get()) is not None:
                data, size = item
                view = memoryview(data)
                while view and not broken:
                    try:
                        view = view[os.write(fd, view) :]
                    except BlockingIOError:
                        await _ready(fd, writing=True)
                    except OSError:
                        broken = True
                stream.give(size)
        finally:
            self._close(fd)

    async def _type(self, stream: Stream, fd: int) -> None:
        """Input by terminal. Never waits for the agent: keys that it does not read are kept up to a bound, so that
        Ctrl-C is seen."""
        writer: asyncio.Task[None] | None = None
        try:
            while (value := await stream.receive()) is not None:
                if not isinstance(value, bytes):
                    self._hear(value, fd)
                    continue
                self._press(value, fd)
                if not writer or writer.done():
                    writer = asyncio.create_task(self._pass_keys(fd))
        except AgentOSError:
            pass
        finally:
            if writer:
                writer.cancel()
                await asyncio.gather(writer, return_exceptions=True)
            self._close(fd)

    def _press(self, keys: bytes, fd: int) -> None:
        if b"\x03" in keys and _interrupts(fd):
            if self._asked and self._kill:
                self._kill()
            self._asked = True
        self._keys = (self._keys + keys)[:_MOST_KEYS]

    async def _pass_keys(self, fd: int) -> None:
        while self._keys:
            try:
                self._keys = self._keys[os.write(fd, self._keys) :]
            except BlockingIOError:
                await _ready(fd, writing=True)
            except OSError:  # the agent has just ended
                self._keys = b""

    def _hear(self, value: Any, terminal: int = -1) -> None:
        match value:
            case ["close", int(number)]:
                if task := self._carrying.get(number):
                    task.cancel()
            case ["signal", int(number)] if self._signal:
                self._signal(number)
            case [int(rows), int(columns)] if terminal >= 0 and 0 < rows < 65536 and 0 < columns < 65536:
                with contextlib.suppress(OSError):  # the agent has just ended
                    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
            case _:
                pass  # a client newer than we are


def _filled(pipe: int) -> int:
    """Bytes that are in it."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


async def _ready(fd: int, *, writing: bool = False, news: "asyncio.Future[None] | None" = None) -> None:
    """Also when somebody else brings the news."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = news or loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(fd)


def _interrupts(terminal: int) -> bool:
    """Whether Ctrl-C means interrupt there. An editor reads it as a key like any other."""
    try:
        return bool(termios.tcgetattr(terminal)[3] & termios.ISIG)
    except termios.error:
        return False
