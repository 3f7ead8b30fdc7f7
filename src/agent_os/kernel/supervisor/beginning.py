"""How a life of a declared agent begins: stored under its number, then given its process, or its place without one.

In: a spec that is due. Out: an agent that runs, or stands still because it was told to; whatever goes wrong is decided
about like any other end. What was granted in an earlier life stays as it is today, unless the manifest has changed. Who
is due, and when, is for `pacing` to say.
"""

import asyncio
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO, AgentOSError
from agent_os.abi.states import Incarnation
from agent_os.drivers.store import Put
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.journal import Draft
from agent_os.kernel.signals import STOPS
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.life import Life, is_permanent
from agent_os.kernel.supervisor.specs import ROOT_ID, Spec
from agent_os.kernel.table import Agent, bare
from agent_os.lazy import lazy

if TYPE_CHECKING:
    from agent_os.kernel.supervisor import orders_of
    from agent_os.kernel.supervisor.fleet import Fleet
else:
    orders_of = lazy("agent_os.kernel.supervisor.orders_of")

log = logging.getLogger("agent_os.fleet")


class Beginning:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet
        self._previous: dict[str, Agent] = {}  # id → its last life

    async def begin(self, spec: Spec) -> None:
        """One life."""
        fleet, agent_id = self._fleet, spec.id
        life = fleet.begin_life(agent_id)
        try:
            await self._after_the_last(agent_id)
            if not fleet.kept.records[agent_id].to_revive:  # stopped before its turn
                fleet.forget_life(agent_id, life)
                return
            begun = moves.begun(fleet.kept.records[agent_id])
            await fleet.note(replace(begun, incarnation=life.incarnation), "begins", self._anew(spec))
        except (AgentOSError, OSError) as error:
            log.error("%s cannot begin: %s", agent_id, error)
            fleet.forget_life(agent_id, life)
            return
        if fleet.kernel.store.get(STOPS, agent_id) is None:
            await self.carry_on(agent_id, life)
            return
        try:
            life.agent = self._asleep(spec)
            life.begun.set()
        except Exception as problem:
            self._not_begun(agent_id, life, problem)

    def _anew(self, spec: Spec) -> list[Put]:
        """A model's manifest is its program: with another one, what it did before is another run's."""
        kernel = self._fleet.kernel
        if spec.runtime != "model" or not orders_of.is_changed(kernel.store, spec):
            return []
        return [Put("lives", spec.id, str(kernel.journal.aseq(spec.id) + 2).encode())]

    async def carry_on(self, agent_id: str, life: Life) -> None:
        """It has its number; now it gets its process."""
        fleet, spec = self._fleet, self._fleet.kept.specs[agent_id]
        before = fleet.kernel.table.row(agent_id)
        try:
            self._fleet.windows.fill(spec, time.time())
            agent = await (self._start(spec) if spec.runtime else self._seat(spec))
        except Exception as problem:
            self._not_begun(agent_id, life, problem)
            return
        if fleet.lives.get(agent_id) is not life:  # it was quick to end
            return
        fleet.began(agent, life)
        if not spec.runtime:  # whoever has a program is watched by those who know about health
            fleet.ready(agent)
        if before and before.exit and before is not agent:
            self._tell(agent, before.pid, str(before.exit.exit_class))

    def _not_begun(self, agent_id: str, life: Life, problem: Exception) -> None:
        """Of the host, or ours: whatever it was, nobody waits for a life that will not be."""
        error = problem if isinstance(problem, AgentOSError) else EIO("start.failed", f"{problem!r}")
        log.error("%s was not started: %s", agent_id, error, exc_info=None if error is problem else problem)
        self._fleet.pacing.leave(agent_id)
        if self._fleet.lives.get(agent_id) is life:
            self._fleet.ending.refused(agent_id, error.reason, retryable=not is_permanent(error))

    def began(self, agent: Agent) -> None:
        self._previous[agent.id] = agent

    def forget(self, agent_id: str) -> None:
        """It is declared no more."""
        self._previous.pop(agent_id, None)

    def _tell(self, agent: Agent, old_pid: int, ended_as: str) -> None:
        """Whoever spawned it, or looks on, hears that it is another process now."""
        kernel, record = self._fleet.kernel, self._fleet.kept.records[agent.id]
        facts = {"old_pid": old_pid, "pid": agent.pid, "class": ended_as, "attempt": record.consecutive}
        if parent := kernel.table.living(agent.parent):
            kernel.notice(parent, {"type": "restarted", "agent": agent.name, **facts}, CLEAN)
        kernel.guests.notice(agent, f"restarted after {ended_as}: life {agent.incarnation}, pid {agent.pid}")

    async def _after_the_last(self, agent_id: str) -> None:
        """Two lives of one agent never overlap, nor does the first's putting away with the second's beginning."""
        before = self._previous.pop(agent_id, None)
        task: asyncio.Task[Any] | None = getattr(before.running, "task", None) if before else None
        if task and not task.done():
            await asyncio.wait([task])

    def _asleep(self, spec: Spec) -> Agent:
        """It was told to stand still in an earlier life: nothing of it runs until somebody lets it go on."""
        kernel, parent = self._fleet.kernel, self._above(spec)
        written = orders_of.as_given(kernel.store, spec, kernel.env, parent) or orders_of.order(
            spec, kernel.env, parent
        )
        kind = "guest" if spec.runtime == "exec" else "native"
        return kernel.recovery.asleep(spec.id, {**written, "parent": parent and parent.id}, kind=kind)

    async def _start(self, spec: Spec) -> Agent:
        """Its process."""
        kernel, parent = self._fleet.kernel, self._above(spec)
        written, again = self._order(spec, parent)
        lived = kernel.store.get("incarnations", spec.id) is not None
        return await kernel.guests.start(
            kernel.scheduler.dressed(spec.id, written),
            name=bare(spec.id),
            parent=parent and parent.id,
            lived=lived,
            anew=not again,
            puts=[orders_of.endowed(spec, written)],
        )

    def _order(self, spec: Spec, parent: Agent | None) -> tuple[dict[str, Any], bool]:
        """What it is started by, and whether that is what it was given in an earlier life."""
        kernel = self._fleet.kernel
        if known := orders_of.as_given(kernel.store, spec, kernel.env, parent):
            return known, True
        return {**orders_of.order(spec, kernel.env, parent), "budget": self._fleet.windows.limits(spec)}, False

    def _above(self, spec: Spec) -> Agent | None:
        """Its supervisor's row. None: root's, which is the operator."""
        parent = self._fleet.kept.records[spec.id].parent
        return None if parent in (None, ROOT_ID) else self._fleet.kernel.table.find(parent)

    async def _seat(self, spec: Spec) -> Agent:
        """A supervisor without a program: a row, and the authority of which its children's is a part."""
        from agent_os.kernel import endowment, plan

        kernel, parent = self._fleet.kernel, self._above(spec)
        kernel.check_admission(spec.id)
        written, again = self._order(spec, parent)
        agent = kernel.table.admit(spec.id, "context", parent=parent and parent.id, isolation="none")
        agent.order = written
        puts = [orders_of.endowed(spec, written)]
        try:
            if not again:
                granted = [capability.parse(text) for text in written["caps"]]
                nothing = plan.Order((), Path(spec.base), None, "tmpfs")  # it has no place of its own
                puts += endowment.endow(kernel.authority, agent, granted, nothing, written["budget"])
            await kernel.governing.begin(agent, None, again=again)  # what it is denied, its children are
            body = frames.encode_body({"event": "spawn", "kind": "context", "manifest": True})
            draft = Draft(agent.id, Kind.SPAWN, agent.incarnation, isolation="none", body=body)
            await kernel.journal.record(draft, sync=True, puts=[*kernel.table.puts(agent), *puts])
        except BaseException:
            kernel.table.forget(agent)  # nobody sits there
            raise
        agent.become(Incarnation.RUNNING)
        return agent
