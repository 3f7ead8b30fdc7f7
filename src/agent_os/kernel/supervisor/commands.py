"""An operator's word about agents of manifests: start, stop, restart, wait. Each returns only when it is true.

In: the name of a declared agent. Out: its record as it then is, or why it cannot be so. What is wanted is stored before
anything is done about it; the doing is the fleet's. Cancelled, what was asked for goes on.
"""

from typing import TYPE_CHECKING

from agent_os.abi.errors import EBUSY
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.spawned import gone
from agent_os.kernel.supervisor.specs import ROOT_ID
from agent_os.kernel.supervisor.terms import OVER, State
from agent_os.kernel.table import bare

if TYPE_CHECKING:
    from agent_os.kernel.supervisor.fleet import Fleet


class Commands:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    async def start(self, agent_id: str, by: str) -> Record:
        """By hand: clears the counters. Whoever it needs is started too. Returns when it is ready, or done already;
        EBUSY: it cannot be."""
        record = self._fleet.require(agent_id)
        for one in (record.id, *self._fleet.graph.needed(record.id)):
            self._require_startable(self._fleet.kept.records[one])
        declared = [] if self._fleet.spawned.is_one(record.id) else [record.id]
        needed = self._fleet.graph.pulled_in(declared) - {record.id}
        for one in needed:
            other = self._fleet.kept.records[one]
            needs_it = other.state in (State.STOPPED, State.FAILED) and one in self._fleet.graph.needed(record.id)
            if needs_it or other.is_manual:
                await self._fleet.note(moves.by_hand(other), "start", by=by, for_=record.id)
        await self._fleet.note(moves.by_hand(record), "start", by=by)
        self._fleet.stir()
        return await self._until_ready(record.id)

    def _require_startable(self, record: Record) -> None:
        """EBUSY: whatever is done, it would not start."""
        above = self._fleet.kept.records.get(record.parent or ROOT_ID)
        if above and above.id != ROOT_ID and not above.to_revive:
            name = bare(above.id)
            reason = f"{bare(record.id)} starts with its supervisor {name}, which is {above}"
            raise EBUSY("supervisor", reason, hint=f"agentctl start {name}")
        if why := self._fleet.graph.left_out.get(record.id):
            hint = "mend the manifest, then agentctl apply -f FILE"
            raise EBUSY("dependency", f"{bare(record.id)} cannot start: {why}", hint=hint)

    async def stop(
        self, agent_id: str, by: str, grace: float | None = None, force: bool = False, reason: str = ""
    ) -> Record:
        """It is to stop, and to stay so. Returns when nothing of it is left; one that has ended stays as it is. A
        second stop may only shorten the first."""
        record = self._fleet.require(agent_id)
        if record.state in OVER:
            return record
        await self._fleet.carried_on(self._stop(record, by, grace, force, reason))
        return self._as_it_is(record)

    async def _stop(self, record: Record, by: str, grace: float | None, force: bool, reason: str) -> None:
        why = reason or f"stopped by {by}"
        for one in self._fleet.graph.bound_to(record.id):
            await self._fleet.stopping.aside(one, f"{bare(record.id)}, to which it is bound, stops", comes_back=False)
        await self._fleet.note(moves.to_stop(self._fleet.kept.records[record.id]), "stop", by=by, reason=reason)
        await self._fleet.stopping.end(record.id, why, grace=grace, force=force)

    def _as_it_is(self, record: Record) -> Record:
        """Now; of one that was spawned, and is over, as its end left it."""
        return self._fleet.record(record.id) or gone(record, self._fleet.kernel.table.row(record.id))

    async def restart(self, agent_id: str, by: str, grace: float | None = None, reason: str = "") -> Record:
        """A new life of the same agent. Clears its counters. Returns when it is ready."""
        record = self._fleet.require(agent_id)
        self._require_startable(record)
        await self._fleet.carried_on(self._restart(record, by, grace, reason))
        return await self._until_ready(record.id)

    async def _restart(self, record: Record, by: str, grace: float | None, reason: str) -> None:
        await self._fleet.note(moves.by_hand(record), "restart", by=by, reason=reason)
        await self._fleet.stopping.end(record.id, reason or f"restarted by {by}", grace=grace)
        self._fleet.stir()

    async def reach(self, agent_id: str, state: str) -> Record:
        """Wait until it is ready, running, or over. EBUSY: it is over, and will not be what is waited for."""
        record = self._fleet.require(agent_id)
        if state == "ready":
            return await self._until_ready(record.id)

        def reached() -> bool:
            now = self._fleet.record(record.id)
            return now is None or now.state in OVER or (state == "running" and self._runs(record.id))

        await self._fleet.until(reached)
        now = self._as_it_is(record)
        if state == "running" and not self._runs(record.id):
            raise EBUSY("state", f"{bare(record.id)} is {now}", hint=f"agentctl start {bare(record.id)}")
        return now

    def _runs(self, agent_id: str) -> bool:
        life = self._fleet.lives.get(agent_id)
        return bool(life and life.begun.is_set() and life.agent and not life.agent.exit)

    async def _until_ready(self, agent_id: str) -> Record:
        def settled() -> bool:
            record = self._fleet.kept.records.get(agent_id)
            return record is None or record.state in OVER or self._fleet.is_ready(agent_id)

        await self._fleet.until(settled)
        record = self._fleet.require(agent_id)
        if not self._fleet.is_ready(agent_id) and record.state is not State.COMPLETED:
            hint = f"agentctl history {bare(agent_id)} says why"
            raise EBUSY("state", f"{bare(agent_id)} is {record}", hint=hint)
        return record
