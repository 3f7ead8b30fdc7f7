"""The event stream: a WebSocket that tells what the record says, from where the client stands, for as long as it reads.

In: a ticket or a token, and one message with a cursor and a choice. Out: events in the order of the journal, none twice
and none left out, however often the client is cut off and comes back with its last cursor. Each client has a connection
to the kernel of its own, under its own right, so that the kernel says what this one may see. Nothing here grows with a
client that does not read: it has a queue, and when that is full it is told so and goes (4008).
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, cast

import msgspec
from fastapi import WebSocket, WebSocketDisconnect

from agent_os.abi.doors import Metrics, Whoami
from agent_os.abi.errors import EAGAIN, EHOSTUNREACH, EPERM, EPIPE, ESRCH, AgentOSError
from agent_os.abi.syscalls import Events, Logs, Status
from agent_os.client.values import jsonable
from agent_os.client.wire import Client
from agent_os.gateway import cursors, events
from agent_os.gateway.cursors import Cursor
from agent_os.gateway.events import Choice, Entry, message

# What waits to be sent to one client: so many events or bytes, and no more.

EVENTS = 1000
BYTES = 1 << 20


class Queue:
    def __init__(self, events: int = EVENTS, size: int = BYTES) -> None:
        self._most, self._most_bytes = events, size
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()

    @property
    def full(self) -> bool:
        return len(self._waiting) >= self._most or self._bytes >= self._most_bytes

    @property
    def low(self) -> bool:
        return len(self._waiting) <= self._most // 2 and self._bytes <= self._most_bytes // 2

    def put(self, text: bytes) -> None:
        """Whoever puts looks first whether it is `full`; one message may go beyond."""
        self._waiting.append(text)
        self._bytes += len(text)
        self._news.set()

    async def room(self, seconds: float) -> bool:
        """Wait until half of it is free. False: it took too long."""
        try:
            async with asyncio.timeout(seconds):
                while not self.low:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            return False
        return True

    async def take(self) -> bytes:
        """Cancelled, nothing is taken."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        text = self._waiting.popleft()
        self._bytes -= len(text)
        if self.low:
            self._room.set()
        return text


PROTOCOL = "agent-os.v1"
TICKET = "ticket."
UNKNOWN, ROLE, SLOW, REVOKED, RESTARTING = 4001, 4003, 4008, 4009, 1012
_UNFIT, _CROWDED, _OVER = 1008, 1013, 1000

_TO_ASK = 10.0  # seconds until the first message
_TO_CATCH_UP = 1.0  # for a full queue, once the client is live
_TO_READ = 30.0  # and while it is told of the past, which waits for it
_NEARLY = 256  # entries behind the newest that still count as live
_MOST_NAMES = 500
_MOST_LOGS = 16
_TO_LEAVE = 2.0
_A_TICK = 0.25  # what passes is told four times a second
_MOST_LOG = 64 << 10  # bytes of output told at once
_METRICS_S = 1.0

Opener = Callable[[str], AbstractAsyncContextManager[Client]]


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """The first message of a client."""

    cursor: str | None = None
    types: list[str] = []
    agents: list[str] = []


class _Close(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Bounds(NamedTuple):
    sockets: int = 64  # of one token
    events: int = EVENTS
    bytes: int = BYTES


class Streams:
    """All clients of the stream. `connect` opens a connection to the kernel with what the client showed."""

    def __init__(self, connect: Opener, bounds: Bounds | None = None) -> None:
        self._connect, self._bounds = connect, bounds or Bounds()
        self._open: dict[tuple[str, str], int] = {}  # sockets by the name of their token, and the role

    async def serve(self, socket: WebSocket) -> None:
        """One client, until it goes or is shown out."""
        offered = [str(word) for word in socket.scope.get("subprotocols", ())]
        await socket.accept(subprotocol=PROTOCOL if PROTOCOL in offered else None)
        try:
            if PROTOCOL not in offered:
                raise _Close(_UNFIT, f"offer the subprotocol {PROTOCOL}")
            await self._admitted(socket, _shown(socket.headers.get("authorization", ""), offered))
        except _Close as end:
            await _close(socket, end.code, end.reason)
        except (WebSocketDisconnect, RuntimeError):  # it went first; Starlette says so by either
            pass

    async def _admitted(self, socket: WebSocket, credential: str) -> None:
        opening = self._connect(credential)
        try:
            client = await opening.__aenter__()
        except EHOSTUNREACH as error:
            raise _Close(RESTARTING, error.reason) from None
        except EAGAIN as error:
            raise _Close(_CROWDED, error.reason) from None
        except AgentOSError as error:
            raise _Close(UNKNOWN, error.reason) from None
        try:
            who = await client.call(Whoami())
            with self._place(str(who["name"]), str(who["role"])):
                await self._follow(socket, client)
        except AgentOSError as error:
            raise _ended(error) from None
        finally:
            await opening.__aexit__(None, None, None)

    @contextmanager
    def _place(self, name: str, role: str) -> Iterator[None]:
        """A session that somebody gave to others, to look, has its owner's name and takes none of its places."""
        count = self._open.get((name, role), 0)
        if count >= self._bounds.sockets:
            raise _Close(_CROWDED, f"{name} has {count} streams open already")
        self._open[name, role] = count + 1
        try:
            yield
        finally:
            self._open[name, role] -= 1
            if not self._open[name, role]:
                del self._open[name, role]

    async def _follow(self, socket: WebSocket, client: Client) -> None:
        wish = await _asked(socket)
        status = await client.call(Status())
        log, size = str(status["log"]), int(status["entries"])
        start = Cursor(log, size) if wish.cursor is None else cursors.read(wish.cursor)
        if start is None or start.log != log or start.seq > size:
            why = "this cursor is of another journal, or of none" if wish.cursor else "this is no cursor"
            await socket.send_text(_told("stream.reset", Cursor(log, size), reason=why).decode())
            raise _Close(_OVER, "load the snapshot, and come back with its cursor")
        choice = Choice(frozenset(wish.types), events.ids(wish.agents))
        queue = Queue(self._bounds.events, self._bounds.bytes)
        work = [_pump(client, start, size, choice, queue), _write(socket, queue), _hear(socket)]
        if "metric" in choice.types:
            work.append(_measure(client, queue))
        if "log" in choice.types:
            work += [_listen(client, agent, queue) for agent in sorted(choice.agents)]
        await _first_of(work)


async def _first_of(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Whatever ends first ends all, as it ended."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def _shown(authorization: str, offered: list[str]) -> str:
    """What the client identifies itself by: browsers cannot set headers, programs can."""
    tickets = [word.removeprefix(TICKET) for word in offered if word.startswith(TICKET)]
    if len(tickets) == 1 and tickets[0]:
        return f"ticket:{tickets[0]}"
    kind, _, token = authorization.partition(" ")
    if not tickets and kind.lower() == "bearer" and token.strip():
        return token.strip()
    raise _Close(UNKNOWN, f"offer one subprotocol {TICKET}… beside {PROTOCOL}, with a ticket of POST /session/tickets")


async def _asked(socket: WebSocket) -> Wish:
    try:
        async with asyncio.timeout(_TO_ASK):
            said = await socket.receive_text()
    except TimeoutError:
        raise _Close(_UNFIT, 'say first what you want: {"cursor": null, "types": [], "agents": []}') from None
    except KeyError:
        raise _Close(_UNFIT, "the first message is text, not bytes") from None
    try:
        wish = msgspec.json.decode(said, type=Wish)
    except (msgspec.MsgspecError, UnicodeError) as problem:
        raise _Close(_UNFIT, f"the first message: {problem}") from None
    if strange := next((word for word in wish.types if word not in events.TYPES), None):
        raise _Close(_UNFIT, f"types: {strange[:30]!r} is none of {', '.join(events.TYPES)}")
    if len(wish.types) > _MOST_NAMES or len(wish.agents) > _MOST_NAMES:
        raise _Close(_UNFIT, f"agents: at most {_MOST_NAMES} names")
    if "log" in wish.types and not 1 <= len(set(wish.agents)) <= _MOST_LOGS:
        raise _Close(_UNFIT, f"agents: the log is told of 1 to {_MOST_LOGS} agents by name")
    return wish


def _ended(error: AgentOSError) -> _Close:
    """Why the kernel's side of it is over."""
    if isinstance(error, EPERM) and error.code == "role.low":
        return _Close(ROLE, error.reason)
    if isinstance(error, EPIPE | EHOSTUNREACH):
        return _Close(RESTARTING, error.reason)
    return _Close(REVOKED, error.reason)


async def _pump(client: Client, start: Cursor, size: int, choice: Choice, queue: Queue) -> None:
    """From the kernel into the queue. The past waits for the client; once it is live, it must keep up."""
    log, reached, live = start.log, start.seq, start.seq >= size and not start.part
    if live:
        queue.put(_told("stream.live", start))
    async with aclosing(_pages(client, start)) as pages:
        async for page in pages:
            for entry in page:
                if entry["seq"] > reached + 1:
                    raise _Close(_UNFIT, f"the record has a gap after entry {reached}")
                reached = int(entry["seq"])
                for event in events.after(start, entry, log):
                    if choice.takes(event):
                        if queue.full and not await queue.room(_TO_CATCH_UP if live else _TO_READ):
                            raise _Close(SLOW, "you read too slowly: come back with your last cursor")
                        queue.put(event.text)
            if not live and reached >= size:
                size = int((await client.call(Status()))["entries"])
                if live := size - reached <= _NEARLY:
                    queue.put(_told("stream.live", Cursor(log, reached)))
            await asyncio.sleep(0)  # whoever sends is not overtaken by whoever reads


async def _pages(client: Client, start: Cursor) -> AsyncGenerator[list[Entry]]:
    """Of entries, from there on for ever. The next comes once this one is dealt with."""
    stream = client.stream(Events(start=start.seq + (not start.part), follow=True, bodies=True))
    try:
        while True:
            try:
                page, size = await stream.receive()
            except StopAsyncIteration:
                await stream.result()
                raise EPIPE("events.over", "the kernel tells no more") from None
            yield cast("list[Entry]", page)
            stream.give(size)
    finally:
        stream.cancel()


async def _write(socket: WebSocket, queue: Queue) -> None:
    while True:
        await socket.send_text((await queue.take()).decode())


async def _hear(socket: WebSocket) -> None:
    """Returns when the client has gone. It has said what it wants; more of it is a mistake."""
    if (await socket.receive())["type"] == "websocket.receive":
        raise _Close(_UNFIT, "a client says one thing, at the beginning; for another choice open another stream")


async def _measure(client: Client, queue: Queue) -> None:
    while True:
        data = jsonable(await client.call(Metrics()))
        if queue.low:  # what is not in the record may be left out
            queue.put(message("metric", _now(), data))
        await asyncio.sleep(_METRICS_S)


async def _listen(client: Client, agent: str, queue: Queue) -> None:
    """An agent's output from now on, also that of its next lives; of much output the end."""
    kept = bytearray()

    async def read() -> None:
        while True:
            stream = client.stream(Logs(agent=agent, follow=True, last=0))
            try:
                async for chunk in stream:
                    kept.extend(chunk)
                    del kept[:-_MOST_LOG]
                with suppress(ESRCH):
                    await stream.result()
            finally:
                stream.cancel()
            await asyncio.sleep(_METRICS_S)

    async def tell() -> None:
        while True:
            await asyncio.sleep(_A_TICK)
            if kept and queue.low:
                queue.put(message("log", _now(), {"text": jsonable(bytes(kept))}, agent))
                kept.clear()

    await _first_of([read(), tell()])


def _told(word: str, cursor: Cursor, **data: Any) -> bytes:
    return message(word, _now(), data, None, cursor)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    """A close frame holds 123 bytes of reason."""
    short = reason.encode()[:120].decode(errors="ignore")
    with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
        async with asyncio.timeout(_TO_LEAVE):
            await socket.close(code, short)
