"""Messages that the kernel pushes, sorted by subscription, kept until they are asked for.

In: what came over the wire, at most as many as there is credit for. Out: each in turn to whoever follows that
subscription. Says nothing to the kernel.
"""

import asyncio
from collections import deque
from typing import Any

from agent_os.abi.errors import AgentOSError


class Arrivals:
    """A message may come before its subscription is known here: both come in one read."""

    def __init__(self) -> None:
        self._come: dict[str, deque[Any]] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._lost: AgentOSError | None = None

    def saw(self, sub: str, facts: Any) -> None:
        self._come.setdefault(sub, deque()).append(facts)
        self._stir(sub)

    async def next(self, sub: str) -> Any:
        """One follower at a time. The end of the connection is raised. Cancelled, nothing is taken."""
        while not self._come.get(sub):
            if self._lost:
                raise self._lost
            waiting = self._waiting[sub] = asyncio.get_running_loop().create_future()
            await waiting
        return self._come[sub].popleft()

    def forget(self, sub: str) -> None:
        self._come.pop(sub, None)

    def lost(self, error: AgentOSError) -> None:
        self._lost = error
        for sub in list(self._waiting):
            self._stir(sub)

    def _stir(self, sub: str) -> None:
        waiting = self._waiting.pop(sub, None)
        if waiting and not waiting.done():
            waiting.set_result(None)
