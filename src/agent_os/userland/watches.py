"""Watches: changes of entries, sorted to whoever watches them, kept until they are asked for."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from agent_os.abi.errors import AgentOSError
from agent_os.userland.results import Change

Key = int | str  # what the kernel calls a watch
MOST_KEPT = 1024  # as many as the kernel keeps; beyond that, one `gap` with their number


class Watch:
    """`async for change in watch`. Ended by `close`; an end of the connection is raised."""

    def __init__(self, end: Callable[[], Awaitable[None]], closed: Callable[[], None]) -> None:
        self._end, self._closed = end, closed
        self._seen: deque[Change] = deque()
        self._missed = 0
        self._over: AgentOSError | StopAsyncIteration | None = None
        self._waiting: asyncio.Future[None] | None = None

    def put(self, change: Change) -> None:
        if len(self._seen) < MOST_KEPT:
            self._seen.append(change)
        else:
            self._missed += max(1, change.count)
        self._stir()

    def finish(self, why: AgentOSError | StopAsyncIteration) -> None:
        self._over = self._over or why
        self._stir()

    def _stir(self) -> None:
        if self._waiting and not self._waiting.done():
            self._waiting.set_result(None)

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> Change:
        while not self._seen and not self._missed:
            if self._over:
                raise self._over
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self._seen:
            return self._seen.popleft()
        missed, self._missed = self._missed, 0
        return Change("gap", count=missed)

    async def close(self) -> None:
        """No more changes; those that came before can still be taken."""
        if self._over is None:
            self.finish(StopAsyncIteration())
            self._closed()
            await self._end()

    async def __aenter__(self) -> "Watch":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Watches:
    """All watches of one agent. A change may arrive before its watch is known here: both come in one read."""

    def __init__(self) -> None:
        self._open: dict[Key, Watch] = {}
        self._early: deque[tuple[Key, Change]] = deque(maxlen=MOST_KEPT)

    def open(self, key: Key, end: Callable[[], Awaitable[None]]) -> Watch:
        watch = self._open[key] = Watch(end, lambda: self._forget(key))
        for early, change in list(self._early):
            if early == key:
                watch.put(change)
        self._early = deque((one for one in self._early if one[0] != key), maxlen=MOST_KEPT)
        return watch

    def saw(self, key: Key, change: Change) -> None:
        if watch := self._open.get(key):
            watch.put(change)
        else:
            self._early.append((key, change))

    def gap(self, change: Change) -> None:
        for watch in self._open.values():
            watch.put(change)

    def lost(self, error: AgentOSError) -> None:
        for watch in self._open.values():
            watch.finish(error)

    def _forget(self, key: Key) -> None:
        self._open.pop(key, None)
