"""What waits to be sent to one client: so many events or bytes, and no more."""

import asyncio
from collections import deque

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
