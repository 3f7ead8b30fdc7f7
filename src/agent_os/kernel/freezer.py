"""Holds one agent still and lets it go on, and keeps the clock that runs only while it does.

By its cgroup where there is one that can freeze, else by signals to every process. `pause` and `resume` return when it
is so. Knows nothing of who asked or why.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from agent_os.abi.errors import ESRCH, ETIMEDOUT
from agent_os.kernel import members
from agent_os.sandbox.spawner import Process


class Freezer:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._init = members.pid_of(process.pidfd)
        self._turning = asyncio.Lock()
        self._awake = asyncio.Event()
        self._awake.set()
        self._since = time.monotonic()  # of the present state
        self._active = 0.0
        self._stopped: list[members.Member] | None = None  # by signals; None: the cgroup did it

    @property
    def paused(self) -> bool:
        return not self._awake.is_set()

    @property
    def active(self) -> float:
        """Seconds the agent has run, without those in which it was held."""
        return self._active + (0 if self.paused else time.monotonic() - self._since)

    async def pause(self) -> bool:
        """Nothing of the agent moves when this returns; whether anything did before. ESRCH: it has ended. ETIMEDOUT: it
        could not be held, and runs on. Cancelled, it may stay held: whoever cancels this is about to end the agent."""
        async with self._turning:
            if self.paused:
                return False
            await self._hold()
            return True

    async def resume(self) -> bool:
        """Whether it had been held."""
        async with self._turning:
            if not self.paused:
                return False
            await self._let_go()
            return True

    @asynccontextmanager
    async def held(self) -> AsyncGenerator[None]:
        """Still for the length of a block, whatever others ask for meanwhile; afterwards as it was."""
        async with self._turning:
            was_paused = self.paused
            if not was_paused:
                await self._hold()
            try:
                yield
            finally:
                if not was_paused:
                    await self._let_go()

    async def _hold(self) -> None:
        self._stopped = None
        frozen = await self._process.freeze(True)
        if self._process.exited.done():  # its number may be somebody else's by now
            raise ESRCH("agent.ended", "it has ended")
        if not frozen:
            await self._process.freeze(False)
            self._stopped = await asyncio.to_thread(members.stop, self._init or 0)
            if self._stopped is None:
                hint = "agentctl kill ends it all the same"
                raise ETIMEDOUT("pause.escaped", "it makes processes faster than they can be stopped", hint=hint)
        self._active, self._since = self.active, time.monotonic()
        self._awake.clear()

    async def _let_go(self) -> None:
        if self._stopped is None:
            await self._process.freeze(False)
        else:
            await asyncio.to_thread(members.resume, self._stopped)
        self._since = time.monotonic()
        self._awake.set()

    async def until_active(self, seconds: float) -> None:
        """Sleep until the agent has run so long."""
        while (left := seconds - self.active) > 0:
            await asyncio.sleep(left)
            await self._awake.wait()
