"""A run from the operator's side: the order goes to the kernel, the streams go both ways, the outcome comes back.

In: an order, or a command for the sandbox of an agent. Out: an `Outcome`, or the kernel's error. The first Ctrl-C asks
it to end, the second kills it; whatever becomes of us, the kernel ends what it started for a client that has gone.
"""

import asyncio
import contextlib
import fcntl
import os
import queue
import signal
import struct
import termios
import threading
import tty
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from msgspec import Struct, field

from agent_os.abi.errors import ENOENT, EPIPE, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Await, Beside, Logs, Run, Tell, Work
from agent_os.cli.changes import say, say_started
from agent_os.cli.output import plain
from agent_os.client.start import session
from agent_os.client.wire import Client, Stream

if TYPE_CHECKING:
    from agent_os.cli.tamer import Tamer

# Our end of an agent's three streams: the operator's input on its way in, its output on its way out. Threads do the
# reading and writing, because a terminal or a pipe may keep us waiting for ever; they are daemons, so they keep
# nobody from ending. Text that goes to a terminal keeps its colours and loses every other escape sequence.


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

    def __init__(self, target: int, tamer: "Tamer | None", written: Callable[[int], None], lost: Callable[[], None]):
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


# The operator's terminal, lent to an agent that has one of its own: raw keys in, tamed screen out, sizes kept
# equal. The agent's terminal is a pseudo-terminal inside its sandbox; the kernel holds the other end. The
# operator's own never enters. Whatever happens, it is given back as it was found.

_CHUNK = 65536
# What a full-screen program may have left behind: modes of mouse, paste and keys, alternate screen, cursor, colours.
_RESTORE = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[>4m\x1b[?1049l\x1b[?25h\x1b[!p\x1b[0m"


def is_interactive() -> bool:
    return os.isatty(0) and os.isatty(1)


def size() -> tuple[int, int]:
    """Rows and columns of the operator's terminal."""
    rows, columns, _, _ = struct.unpack("4H", fcntl.ioctl(1, termios.TIOCGWINSZ, bytes(8)))
    return rows or 24, columns or 80


@contextlib.contextmanager
def lent(stream: Stream) -> Iterator[None]:
    """Keys and sizes go to the agent, and Ctrl-C is a key. Afterwards the terminal is as it was, and no key is left
    over."""
    before = termios.tcgetattr(0)
    tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead belongs to the agent
    loop = asyncio.get_running_loop()
    under_way: set[asyncio.Task[None]] = set()

    def send(value: object, *, urgent: bool = False) -> None:
        task = loop.create_task(stream.send(value, urgent=urgent))
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    def typed() -> None:
        try:
            keys = os.read(0, _CHUNK)
        except OSError:  # the terminal itself is gone
            keys = b""
        if keys:
            send(keys)
        else:
            loop.remove_reader(0)

    def resized() -> None:
        send(list(size()), urgent=True)

    loop.add_reader(0, typed)
    loop.add_signal_handler(signal.SIGWINCH, resized)
    resized()
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        loop.remove_reader(0)
        with contextlib.suppress(OSError):  # the terminal itself may be gone
            os.write(1, _RESTORE)
            # also drops answers to questions that the agent asked the terminal just before its end
            termios.tcsetattr(0, termios.TCSAFLUSH, before)


T = TypeVar("T")
Entry = dict[str, Any]
_MOST_SAID = 1 << 20  # bytes that are kept to be compared


class Lost(Exception):
    """The kernel went away under an agent; by then it had `said` so much, or begun so."""

    def __init__(self, name: str, said: bytes) -> None:
        super().__init__(name)
        self.name, self.said = name, said


class Outcome(Struct):
    """How it ended, and the lists that came before: changes, and what a commit did with them."""

    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    lists: dict[str, list[Entry]] = field(default_factory=dict[str, list[Entry]])


def carry_out(work: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run, without its handler for Ctrl-C: `_Interrupts` would replace that one, and Python would load
    `inspect` to describe what was replaced."""

    def stop(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    return asyncio.run(work)


async def detached(order: dict[str, Any]) -> dict[str, Any]:
    """Start it and leave; its name and level."""
    async with session(same=True) as (client, _):
        return await client.call(Run(order=order, detach=True))


async def run(order: dict[str, Any], *, quiet: bool) -> Outcome:
    interrupts = _Interrupts(_signal_agent)
    async with session(same=True) as (client, new):
        following = _Following(client, Run(order=order), interrupts, on_terminal=order["tty"] is not None)
        name = await following.started()
        if new and not quiet:
            say_started(client.pid)
        interrupts.started(name)
        try:
            return await following.to_the_end(name)
        except EPIPE as error:
            raise Lost(name, bytes(following.said)) from error


async def beside(request: Beside) -> dict[str, Any]:
    """How a command in the sandbox of a running agent ended. EHOSTUNREACH: there is no kernel, so nobody runs."""
    interrupts = _Interrupts(_signal_command)
    async with session(start=False) as (client, _):
        following = _Following(client, request, interrupts, on_terminal=False)
        name = await following.started()
        interrupts.started(name)
        return (await following.to_the_end(name)).facts


async def _signal_agent(client: Client, stream: Stream, name: str, *, kill: bool) -> None:
    await client.call(Tell(agent=name, signal=AgentSignal.SIGKILL if kill else AgentSignal.SIGTERM))


async def _signal_command(client: Client, stream: Stream, name: str, *, kill: bool) -> None:
    await stream.send(["signal", signal.SIGKILL if kill else signal.SIGTERM], urgent=True)


async def go_on(name: str, said: bytes) -> tuple[dict[str, Any], list[Entry]]:
    """Start the kernel again and follow an agent that lives on from its record; how it ended, and what it changed if
    that was kept."""
    from agent_os.cli.work import answered

    async with session() as (client, _):
        stream = client.stream(Logs(agent=name, follow=True, newest=True))
        tamer, unsaid = _tamer() if os.isatty(2) else None, Unsaid(said)
        try:
            while True:
                data, size = await stream.receive()
                data = unsaid(data)
                os.write(2, tamer.feed(data) if tamer else data)
                stream.give(size)
        except StopAsyncIteration:
            pass
        ended = await client.call(Await(agent=name))
        with contextlib.suppress(ENOENT):
            return ended, (await answered(client, Work(do="diff", name=name))).lists.get("changes", [])
        return ended, []


def _tamer(*, full_screen: bool = False) -> "Tamer":
    from agent_os.cli.tamer import Tamer  # only a terminal needs one

    return Tamer(full_screen=full_screen)


class Unsaid:
    """Leaves out what an output repeats of an earlier one: a replay says again what was said. From the first line on
    that is another, all of it is shown."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self._line = b""  # what was left out of the line under way

    def __call__(self, data: bytes) -> bytes:
        pairs = enumerate(zip(self._said, data, strict=False))
        same = next((at for at, (one, two) in pairs if one != two), min(len(self._said), len(data)))
        self._line = (self._line + data[:same]).rpartition(b"\n")[2]
        self._said = self._said[same:]
        if same == len(data) or not self._said:
            return data[same:]
        self._said = b""
        return self._line + data[same:]


class _Following:
    def __init__(self, client: Client, request: Run | Beside, interrupts: "_Interrupts", *, on_terminal: bool) -> None:
        self._stream, self._interrupts, self._on_terminal = client.stream(request), interrupts, on_terminal
        interrupts.concern(client, self._stream)
        self._outcome = Outcome()
        self._name = ""
        self.said = bytearray()  # the beginning of its output

    async def started(self) -> str:
        """The agent's name, once it runs. Raises what kept it from that."""
        try:
            value, size = await self._stream.receive()
        except StopAsyncIteration:
            await self._stream.result()
            raise EPIPE("daemon.answer", "the kernel did not say what it started") from None
        except asyncio.CancelledError:  # interrupted twice: gone when the kernel says so
            self._stream.cancel()
            with contextlib.suppress(AgentOSError):
                await self._stream.result()
            raise
        self._stream.give(size)
        return value[1]["name"]

    async def to_the_end(self, name: str) -> Outcome:
        self._name = name
        with lent(self._stream) if self._on_terminal else contextlib.nullcontext():
            drains = self._open()
            try:
                await self._carry(drains)
                self._outcome.facts = await self._stream.result()
                return self._outcome
            finally:
                await _first(_all_out(drains.values()), self._interrupts.hurry.wait())

    def _open(self) -> dict[int, Drain]:
        if self._on_terminal:
            return {1: Drain(1, _tamer(full_screen=True), self._stream.give, self._lost(1))}
        Feed(self._stream)
        tamers = {fd: _tamer() if os.isatty(fd) else None for fd in (1, 2)}
        return {fd: Drain(fd, tamer, self._stream.give, self._lost(fd)) for fd, tamer in tamers.items()}

    def _lost(self, number: int) -> Callable[[], None]:
        """Nobody reads that output any more: the agent shall know."""
        return lambda: self._interrupts.start(self._stream.send(["close", number], urgent=True))

    async def _carry(self, drains: dict[int, Drain]) -> None:
        while True:
            try:
                value, size = await self._stream.receive()
            except StopAsyncIteration:
                return
            match value:
                case [int(number), bytes(data)] if number in drains:
                    drains[number].put(data, size)
                    self.said += data[: _MOST_SAID - len(self.said)]
                    continue
                case ["notice", str(text)]:
                    edge = "\r" if self._on_terminal else ""  # raw, it does not go back to the first column by itself
                    say(f"{edge}{self._name}  {plain(text)}{edge}")
                case [str(what), list(entries)]:
                    self._outcome.lists.setdefault(what, []).extend(entries)  # pyright: ignore[reportUnknownArgumentType]
                case _:
                    pass
            self._stream.give(size)


class _Send(Protocol):
    """How what was started is asked to end, or killed."""

    def __call__(self, client: Client, stream: Stream, name: str, *, kill: bool) -> Awaitable[None]: ...


class _Interrupts:
    """The first Ctrl-C asks the agent to end, the second kills it. One that comes while it is being started is kept for
    it, because it may be running already; a second one then gives the start up, which leaves nothing."""

    def __init__(self, send: "_Send") -> None:
        self._send = send
        self._asked = 0
        self.hurry = asyncio.Event()  # asked twice
        self._client: Client | None = None
        self._stream: Stream | None = None
        self._name = ""
        self._starting = asyncio.current_task()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # not the loop's: they outlast it
            signal.signal(number, self._heard)

    def concern(self, client: Client, stream: Stream) -> None:
        self._client, self._stream = client, stream

    def started(self, name: str) -> None:
        self._name = name
        if self._asked:
            self._tell()

    def start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _heard(self, *_: object) -> None:
        with contextlib.suppress(RuntimeError):  # it is all over, and the summary is on its way
            self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        self._asked += 1
        if self._asked > 1:
            self.hurry.set()
        if self._name:
            self._tell()
        elif self._asked > 1 and self._starting:
            self._starting.cancel()
            if self._stream:
                self._stream.cancel()

    def _tell(self) -> None:
        kill = self._asked > 1

        async def tell() -> None:
            assert self._client
            assert self._stream
            if self.hurry.is_set():  # what it wrote may never be read: nobody waits for that
                for output in (1, 2):
                    await self._stream.send(["close", output], urgent=True)
            with contextlib.suppress(AgentOSError):  # it has just ended
                await self._send(self._client, self._stream, self._name, kill=kill)

        self.start(tell())


async def _all_out(drains: Iterable[Drain]) -> None:
    for drain in drains:
        await drain.finish()


async def _first(*waiting: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(one) for one in waiting]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
