"""What a caller has not taken yet of an answer that comes piece by piece.

A provider is read at its own pace: a caller that is slow, stopped, or does not read at all keeps no slot of a key that
others wait for. So much is held for it; beyond that it has so long, all in all, to take some. In: pieces, and a
function that hands one on and waits until it is taken. Out: the same, in order.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from agent_os.abi.errors import EPIPE

T = TypeVar("T")

MOST_BYTES = 1 << 20  # held
PATIENCE_S = 60.0  # of waiting for the caller while so much is held


class Backlog(Generic[T]):
    def __init__(self, give: Callable[[T], Awaitable[None]]) -> None:
        self._give = give
        self._held: deque[tuple[T, int]] = deque()
        self._size = 0
        self._whole = False
        self._changed = asyncio.Event()  # something came
        self._taken = asyncio.Event()  # something went
        self._patience = PATIENCE_S
        self._giving: asyncio.Future[None] | None = None

    async def put(self, piece: T, size: int) -> None:
        """Raises what handing on raised; EPIPE: nobody takes anything."""
        self._held.append((piece, size))
        self._size += size
        self._changed.set()
        if self._giving is None:
            self._giving = asyncio.ensure_future(self._hand_on())
        if self._giving.done():
            self._giving.result()
        if self._size > MOST_BYTES:
            await self._room(self._giving)

    async def end(self) -> None:
        """Nothing follows. Returns when all of it is taken."""
        self._whole = True
        self._changed.set()
        if self._giving is not None:
            await self._giving

    async def close(self) -> None:
        """What is held is dropped."""
        if self._giving is not None:
            self._giving.cancel()
            await asyncio.gather(self._giving, return_exceptions=True)

    async def _room(self, giving: "asyncio.Future[None]") -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._patience):
                while self._size > MOST_BYTES and not giving.done():
                    self._taken.clear()
                    await self._taken.wait()
        except TimeoutError:
            reason = f"the answer was not taken: {self._size} bytes of it waited for {PATIENCE_S:.0f} s"
            raise EPIPE("client", reason) from None
        self._patience -= loop.time() - began
        if giving.done():
            giving.result()

    async def _hand_on(self) -> None:
        try:
            while True:
                while self._held:
                    piece, size = self._held[0]
                    await self._give(piece)
                    self._held.popleft()
                    self._size -= size
                    self._taken.set()
                if self._whole:
                    return
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._taken.set()  # whoever waits for room looks what became of this
