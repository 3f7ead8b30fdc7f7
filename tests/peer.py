"""A kernel without launchers and the other end of an agent's socket, in one event loop: for tests of the wire."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.frames import Call, Hello, Splitter
from agent_os.abi.states import Incarnation
from agent_os.abi.syscalls import BY_REQUEST, Body
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority import capability
from agent_os.kernel.boot import boot
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Agent, Ended

SECONDS = 60.0  # a generous safety limit, never a measure


_peers: list["Peer"] = []  # to be closed with the kernel
_sockets: list[socket.socket] = []
_newest: dict[str, socket.socket] = {}  # of each agent


class Peer:
    """Whoever is at the other end of a socket: says anything, hears frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._splitter = Splitter()
        self._heard: list[frames.FromKernel] = []
        self._next = 0

    @classmethod
    async def on(cls, sock: socket.socket) -> "Peer":
        peer = cls(*await asyncio.open_unix_connection(sock=sock))
        _peers.append(peer)
        return peer

    async def leave(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()

    def say(self, *said: frames.Frame | bytes) -> None:
        for one in said:
            self.writer.write(one if isinstance(one, bytes) else frames.encode(one))

    async def hear(self) -> frames.FromKernel | None:
        """The next frame; None when the kernel closed the connection."""
        async with asyncio.timeout(SECONDS):
            while not self._heard:
                data = await self._reader.read(1 << 16)
                if not data:
                    return None
                found = (frames.decode_from_kernel(frame) for frame in self._splitter.feed(data))
                self._heard += [one for one in found if one is not None]
        return self._heard.pop(0)

    async def hear_bye(self) -> frames.Bye:
        while not isinstance(heard := await self.hear(), frames.Bye):
            assert heard is not None, "the connection ended without a goodbye"
        return heard

    async def greet(self) -> frames.Welcome:
        self.say(Hello(1, 1))
        welcome = await self.hear()
        assert isinstance(welcome, frames.Welcome), welcome
        return welcome

    async def ask(self, request: Body, **options: Any) -> Any:
        """One call and its answer; raises the kernel's error."""
        self._next += 1
        self.say(Call(self._next, BY_REQUEST[type(request)].number, frames.body(request), **options))
        while True:
            heard = await self.hear()
            if isinstance(heard, frames.Reply) and heard.id == self._next:
                return msgspec.msgpack.decode(heard.body)
            if isinstance(heard, frames.Error) and heard.id == self._next:
                raise frames.to_error(heard)
            assert heard is not None, "the kernel closed the connection"


@asynccontextmanager
async def running(home: Path | None = None) -> AsyncIterator[Kernel]:
    """A kernel without launchers: agents are whatever the test puts at the other end."""
    kernel = await boot(store=SqliteStore(home / "journal.db" if home else None), home=home, agents=False)
    left = kernel.lives.left

    async def gone(agent: Agent, ended: Ended) -> None:
        if sock := _newest.get(agent.id):  # the end of a process is the end of what it says
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
        await left(agent, ended)

    kernel.lives.left = gone
    try:
        yield kernel
    finally:
        await asyncio.gather(*(peer.leave() for peer in _peers))
        for sock in _sockets:
            sock.close()
        _peers.clear()
        _sockets.clear()
        _newest.clear()
        await kernel.close()


async def agent(
    kernel: Kernel, name: str = "a", caps: tuple[str, ...] = (), **facts: Any
) -> tuple[Agent, socket.socket]:
    """An adopted agent and the end of the socket that its process would have."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    row = kernel.table.admit(name, "native", **facts)
    _sockets.append(theirs)
    _newest[row.id] = theirs
    for text in caps:
        row.holdings.grant(capability.parse(text), "test")
    if row.id not in dict(kernel.authority.labels):  # a later life goes on with what the first began with
        began = Draft("kernel", Kind.STATE)
        await kernel.journal.record(began, puts=kernel.authority.begin(row.id, row.parent))
    row.become(Incarnation.RUNNING)
    await kernel.adopt(row, ours)
    return row, theirs


async def greeted(kernel: Kernel, name: str = "a", caps: tuple[str, ...] = (), **facts: Any) -> tuple[Agent, Peer]:
    row, theirs = await agent(kernel, name, caps, **facts)
    peer = await Peer.on(theirs)
    await peer.greet()
    return row, peer


def with_kernel(test: Callable[[Kernel], Awaitable[None]], home: Path | None = None) -> None:
    async def main() -> None:
        async with running(home) as kernel:
            await test(kernel)

    asyncio.run(main())


async def until(condition: Callable[[], bool], what: str = "it") -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.005)
