"""Agents that an agent spawned with a manifest: how they become members of the fleet, and cease to be.

In: a child that was admitted, and the function that makes its process; the word that its parent is done. Out: a record
with its parent's id, supervised like any other. It is there as long as its parent's run: with that it ends, and once it
is over itself nothing of it is kept but the journal, so that a parent can have thousands one after the other. One whose
parent no manifest declares has root's terms: no strategy, no intensity.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO, AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.drivers.store import Put
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.specs import ROOT_ID, Spec
from agent_os.kernel.supervisor.terms import OVER, State
from agent_os.kernel.table import Agent, Ended, bare
from agent_os.lazy import lazy

if TYPE_CHECKING:
    from agent_os.kernel.supervisor import admission, orders_of
    from agent_os.kernel.supervisor.fleet import Fleet
    from agent_os.kernel.supervisor.life import Life
else:
    admission = lazy("agent_os.kernel.supervisor.admission")
    orders_of = lazy("agent_os.kernel.supervisor.orders_of")

Make = Callable[[Sequence[Put]], Awaitable[Agent]]
log = logging.getLogger("agent_os.fleet")


class Spawned:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    def of(self, parent: str) -> list[Record]:
        """The oldest first."""
        return [one for one in self._fleet.kept.children(parent) if self.is_one(one.id)]

    def is_one(self, agent_id: str) -> bool:
        spec = self._fleet.kept.specs.get(agent_id)
        return spec is not None and spec.spawned

    def waiting(self, parent: str) -> int:
        """How many of its children will live without being in the table: it has places for those as well."""
        over = self._fleet.kernel.table.over
        return sum(one.to_revive and over(one.id) and one.id not in self._fleet.lives for one in self.of(parent))

    async def begin(self, spec: Spec, parent: str, make: Make) -> Agent:
        """Its first life. What is stored of it is so with its first entry; whatever is wrong with that life is the
        answer to whoever spawned it, and then nothing is left."""
        fleet = self._fleet
        life = fleet.begin_life(spec.id)
        life.asked_for = True
        record = Record(spec.id, parent, fleet.kernel.journal.next_seq)  # later ones have higher places
        record = replace(moves.begun(record), incarnation=life.incarnation)
        try:
            agent = await make([fleet.kept.declare(spec), *fleet.kept.keep(record)])
        except BaseException:
            self._undo(spec.id, life)
            raise
        life.asked_for = False
        fleet.began(agent, life)
        if fleet.spec(spec.id) is spec:
            with suppress(EIO):
                fleet.windows.fill(spec, time.time())
        return agent

    def _undo(self, agent_id: str, life: "Life") -> None:
        self._fleet.forget_life(agent_id, life)
        draft = Draft("kernel", Kind.CHANGE, body=frames.encode_body({"event": "spawn undone", "agent": agent_id}))
        with suppress(EIO):  # a journal that failed has told everybody
            self._fleet.kernel.journal.put(draft, sync=False, puts=self.dropped(agent_id))

    def is_done(self, record: Record) -> bool:
        """Whether nothing of it comes by itself any more, so that it is forgotten."""
        return record.state in OVER and self.is_one(record.id)

    def dropped(self, agent_id: str) -> list[Put]:
        """From here on nobody knows it; for the entry that tells of its end."""
        return [*self._fleet.kept.drop(agent_id), orders_of.disowned(agent_id), *self._fleet.pacing.forget(agent_id)]

    async def disown(self, parent: str, why: str) -> None:
        """Its run is over: all that it spawned end, the youngest first, and for good."""
        for one in reversed(self.of(parent)):
            try:
                await self._end(one.id, why)
            except AgentOSError as error:
                log.error("%s, whose parent has ended, was not ended: %s", one.id, error)

    async def _end(self, agent_id: str, why: str) -> None:
        fleet = self._fleet
        record = fleet.kept.records.get(agent_id)
        if record and record.wanted:
            await fleet.note(moves.to_stop(record), "stop", reason=why)
        await fleet.stopping.end(agent_id, why, force=True)

    async def leave_no_orphans(self) -> None:
        """At boot: whoever ran the parents is gone, and some of them went for good."""
        fleet = self._fleet
        for record in list(fleet.kept.records.values()):
            above = record.parent or ROOT_ID
            if self.is_one(record.id) and above not in fleet.kept.records and fleet.kernel.table.over(above):
                await self._end(record.id, f"its parent {bare(above)} has ended")

    # Fewer.

    async def narrow(self, spec: Spec) -> None:
        """It may have fewer children, from now on and without a restart: those above that number stop, the youngest
        first. Its manifest is stored already."""
        fleet = self._fleet
        row = fleet.kernel.table.living(spec.id)
        if row is None:
            return
        most = await self._told(row, spec)
        alive = [one for one in fleet.kernel.table.children(row.id) if not fleet.kernel.table.over(one.id)]
        oldest_first = sorted(alive, key=self._birth)
        for one in reversed(oldest_first[most:] if most is not None else ()):
            why = f"its parent {row.name} may have {most} children"
            if fleet.kept.specs.get(one.id):
                await fleet.stopping.aside(one.id, why, comes_back=False)
            else:
                await fleet.kernel.end(one, Ended(ExitClass.REQUESTED, -1, why))

    async def _told(self, row: Agent, spec: Spec) -> int | None:
        """Its order speaks of the new number; never of more than it was admitted with."""
        manifest = admission.manifest_of(row)
        assert manifest
        most = admission.least(manifest.agency.max_children, spec.manifest.agency.max_children)
        admitted = admission.with_fewer_children(manifest, most)
        row.order = {**row.order, **admission.declared(admitted)}
        facts = {"event": "agency.narrowed", "max_children": most}
        draft = Draft(row.id, Kind.CHANGE, row.incarnation, body=frames.encode_body(facts))
        puts = [orders_of.endowed(spec, row.order), Put("agents", row.id, frames.encode_body(row.order))]
        await self._fleet.kernel.journal.record(draft, sync=True, puts=puts)
        return most

    def _birth(self, child: Agent) -> int:
        """The entry with which it came, over restarts."""
        if self.is_one(child.id):
            return self._fleet.kept.records[child.id].index
        first = next(iter(self._fleet.kernel.journal.scan(child.id, child.first_aseq)), None)
        return first[0].seq if first else child.pid


def gone(record: Record, row: Agent | None) -> Record:
    """The record of one that is forgotten, as its end left it."""
    if row is None or row.exit is None:
        return replace(record, wanted=False, state=State.STOPPED)
    state = State.COMPLETED if row.exit.exit_class is ExitClass.NORMAL else State.FAILED
    if row.exit.exit_class is ExitClass.REQUESTED:
        state = State.STOPPED
    return replace(record, state=state, why="" if state is not State.FAILED else row.exit.reason)
