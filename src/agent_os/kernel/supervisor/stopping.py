"""How agents of manifests are stopped: in order, asked first, made to after their grace, and gone when it is said.

In: whom, why, and how long to wait. Out: ends; what becomes of each is decided like of any other. Supervisors go after
those below them, dependencies after those that need them. What is cancelled here goes on: whoever was asked to end has
been asked.
"""

import asyncio
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING

from agent_os.abi.errors import ESRCH, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.kernel.signals import KERNEL
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.order import stopping
from agent_os.kernel.supervisor.terms import OVER
from agent_os.kernel.table import Agent, Ended, bare

if TYPE_CHECKING:
    from agent_os.kernel.supervisor.fleet import Fleet
    from agent_os.kernel.supervisor.life import Life

SHUTDOWN_SECS = 60.0  # for all waves of a system that is shut down


class Stopping:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    async def aside(self, agent_id: str, why: str, *, comes_back: bool, force: bool = False) -> None:
        """Stopped for somebody else's sake. Returns when it is gone."""
        if not comes_back:
            record = self._fleet.kept.records.get(agent_id)
            if record and record.wanted:
                await self._fleet.note(moves.to_stop(record), "stop", reason=why)
        await self.end(agent_id, why, force=force)

    async def children_aside(self, supervisor: str, why: str, *, force: bool = False) -> None:
        """The last started first; those that may come back do so with their supervisor."""
        self._fleet.apart.add(supervisor)
        for one in stopping(self._fleet.siblings(supervisor)):
            await self.aside(one, why, comes_back=self._fleet.returns(one), force=force)

    async def end(self, agent_id: str, why: str, *, grace: float | None = None, force: bool = False) -> None:
        """Its children, then itself: asked, and after its grace made to. Returns when it is gone."""
        await self._fleet.carried_on(self._end(agent_id, why, grace, force))

    async def _end(self, agent_id: str, why: str, grace: float | None, force: bool) -> None:
        if self._fleet.is_supervisor(agent_id):
            await self.children_aside(agent_id, f"its supervisor {bare(agent_id)} stops", force=force)
        life = self._fleet.lives.get(agent_id)
        if life is None:
            self._fleet.pacing.over(agent_id)
            record = self._fleet.record(agent_id)
            if record is None or record.state in OVER:
                await self._fleet.end_family(agent_id)
            return
        await life.begun.wait()
        agent = life.agent
        if agent is None or agent.exit:
            return
        life.doomed(ExitClass.REQUESTED, why)
        self._fleet.ready_secs(agent_id)  # nothing new is sent its way
        if force or agent.running is None or not agent.clock.awake.is_set():
            life.deadline.set()
            await self._end_now(agent, why)
            return
        await self._drain(agent, life)
        if grace is not None and (life.grace is None or grace < life.grace):
            life.grace = grace
        await self._ask(agent, life, why)

    async def _drain(self, agent: Agent, life: "Life") -> None:
        """Requests in hand may be finished, unless somebody is done waiting."""
        spec = self._fleet.spec(agent.id)
        seconds = float(spec.tree["lifecycle"]["drain_secs"]) if spec else 0.0
        await _first(self._fleet.kernel.bus.drain(agent, seconds), life.deadline.wait())

    async def _ask(self, agent: Agent, life: "Life", why: str) -> None:
        seconds = self._fleet.grace(agent.id)
        with suppress(TimeoutError, ESRCH):
            async with asyncio.timeout(seconds):
                await self._fleet.kernel.signals.send(KERNEL, agent, AgentSignal.SIGTERM)
                await _first(agent.gone.wait(), life.deadline.wait())
        if not agent.gone.is_set():
            late = "" if life.deadline.is_set() else f"; it did not end within {seconds:g} s"
            await self._end_now(agent, why + late)

    async def _end_now(self, agent: Agent, why: str) -> None:
        with suppress(ESRCH):
            await self._fleet.kernel.end(agent, Ended(ExitClass.REQUESTED, -1, why))
        await agent.gone.wait()

    async def shut(self, grace_s: float) -> None:
        """The system goes down: in the inverse of the order of dependencies, each with its grace, all within a minute.
        What is wanted stays so: the next kernel starts them again."""
        self._fleet.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECS):
                for wave in self._stop_waves():
                    await asyncio.gather(*(self._shut(one, grace_s) for one in wave if one in self._fleet.lives))

    def _stop_waves(self) -> list[list[str]]:
        """Supervisors after all others, each after those below it."""
        spawned = [one.id for one in reversed(self._fleet.rows()) if self._fleet.spawned.is_one(one.id)]
        waves = [spawned, *self._fleet.graph.stop_waves()]
        waves = [[one for one in wave if not self._fleet.is_supervisor(one)] for wave in waves]
        above = [[one.id] for one in reversed(self._fleet.rows()) if self._fleet.is_supervisor(one.id)]
        return [*waves, *above]

    async def _shut(self, agent_id: str, grace_s: float) -> None:
        life = self._fleet.lives[agent_id]
        agent = life.agent
        if agent is None or agent.running is None or agent.exit or not agent.clock.awake.is_set():
            return
        with suppress(TimeoutError, AgentOSError):
            async with asyncio.timeout(min(grace_s, self._fleet.grace(agent_id))):
                await self._fleet.kernel.signals.send(KERNEL, agent, AgentSignal.SIGTERM)
                await agent.gone.wait()
        if not agent.exit:
            with suppress(AgentOSError):
                await self._fleet.kernel.end(agent, Ended(ExitClass.LOST, -1, "the kernel was stopped"))


async def _first(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(one) for one in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
