"""One life of an agent that has a process, and the client that follows it.

In: a guest that was started, and its streams. Out: what the table knows as `running`, and the guest's outcome when all
that it wrote is out. What became of its changes is for `settling.py`; who may end it, for others.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct, field

from agent_os.abi.errors import EPIPE
from agent_os.kernel.authority.answers import Approval, State, news
from agent_os.kernel.authority.ruling import Tried
from agent_os.kernel.calls import Stream
from agent_os.kernel.opened import Mounted
from agent_os.kernel.outputs import Output
from agent_os.kernel.process import Guest, Outcome
from agent_os.kernel.pumps import Ear, Pumps
from agent_os.kernel.table import Actor, Agent

_TO_LEAVE = 2.0  # seconds between an agent's own last word and its end
_MOST_TOLD = 20  # of what nobody answered, told apart at the end
_MOST_TRIED = 200  # of what rules in shadow mode would have said


class Follower(Struct, eq=False):
    """A client at an agent, for as long as the call lasts."""

    stream: Stream
    owner: Actor
    notices: "set[asyncio.Task[None]]" = field(default_factory=set["asyncio.Task[None]"])
    expired: Counter[str] = field(default_factory=Counter[str])  # what it wanted, and nobody answered in time
    tried: Counter[Tried] = field(default_factory=Counter[Tried])

    def notice(self, text: str) -> None:
        """Told beside the output, and never waited for."""

        async def tell() -> None:
            with suppress(EPIPE):
                await self.stream.send(["notice", text])

        task = asyncio.create_task(tell())
        self.notices.add(task)
        task.add_done_callback(self.notices.discard)

    def hear(self, approval: Approval) -> None:
        """A question of the agent's was asked, or decided."""
        if text := news(approval):
            self.notice(text)
        known = approval.wants in self.expired or len(self.expired) < _MOST_TOLD
        if approval.state is State.EXPIRED and known:
            self.expired[approval.wants] += 1

    def would(self, tried: Tried) -> None:
        """A rule in shadow mode would have refused something, or asked about it."""
        if tried in self.tried or len(self.tried) < _MOST_TRIED:
            self.tried[tried] += 1


class Run:
    """One incarnation: its process, its streams, its end. What the table knows as `running`."""

    def __init__(self, agent: Agent, guest: Guest, pumps: Pumps, output: Output) -> None:
        self.agent, self.guest, self._pumps, self.output = agent, guest, pumps, output
        self.mounted: Sequence[Mounted] = ()
        self.task: asyncio.Task[None] | None = None

    async def freeze(self) -> bool:
        return await self.guest.freeze()

    async def thaw(self) -> bool:
        return await self.guest.thaw()

    async def destroy(self) -> int:
        return await self.guest.destroy()

    def host_signal(self, number: int) -> None:
        self.guest.host_signal(number)

    def hear(self, ear: Ear) -> None:
        """Who is told what it writes, beside its log."""
        self._pumps.ear = ear

    async def finish(self) -> None:
        """It said that it ends; it has a moment to do so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_TO_LEAVE):
                await self.guest.process.wait()
        await self.guest.process.kill()

    async def outcome(self) -> Outcome:
        """Everything it wrote is out when this returns. If this is cancelled, it is killed first."""
        try:
            outcome = await self.guest.finish()
            await self._pumps.drained()
            return outcome
        finally:
            await self._pumps.stop()
