"""What follows from the end of an incarnation: the facts gathered, `decide` asked, its word stored and carried out.

In: an agent that the operating system says is gone. Out: a `Verdict` that `lives` writes together with the exit, so
that a kernel which dies here has either both or neither, and then the acts: siblings stopped, supervisors ended, those
bound to it stopped, `on_failure` called. Starts nobody: that is for `pacing`, once the record says that they are due.
"""

import random
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.entries import Kind
from agent_os.abi.errors import ESRCH
from agent_os.abi.states import ExitClass
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.backoff import waited
from agent_os.kernel.supervisor.decide import Act, Child, Decision, Exited, InHand, Supervisor, decide, facts
from agent_os.kernel.supervisor.exits import graver
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.specs import ROOT_ID, Spec
from agent_os.kernel.supervisor.terms import OVER, ROOT
from agent_os.kernel.table import Agent, Ended, bare
from agent_os.manifest.names import resolved

if TYPE_CHECKING:
    from agent_os.kernel.supervisor.fleet import Fleet
    from agent_os.kernel.supervisor.life import Life

Decided = tuple[Decision, Record, list[Put], dict[str, Any]]
INTENSITY = "intensity"


class Verdict(Struct, frozen=True):
    """What becomes of an agent whose incarnation is gone."""

    ended: Ended  # with its class as the manifest and the fleet see it
    again: bool  # it lives again, now or later
    told: dict[str, Any]  # for the entry of the exit
    puts: Sequence[Put]  # what the store must hold with that entry
    decision: Decision
    finished: bool = False  # its run is over, so whom it spawned in that ends with it
    forgotten: tuple[Record, Spec] | None = None  # of one that was spawned, and is over: what it was


class Ending:
    def __init__(self, fleet: "Fleet") -> None:
        self._fleet = fleet

    def of(self, agent: Agent, ended: Ended, *, asked: bool) -> Verdict:
        """`asked`: by a SIGTERM. Nothing waits between this and the entry of the exit."""
        fleet = self._fleet
        life = fleet.lives.pop(agent.id, None)
        record = fleet.kept.records[agent.id]
        spec = fleet.kept.specs[agent.id]
        ended = self._classed(agent, ended, life, asked=asked)
        if ended.exit_class is ExitClass.REQUESTED and (life is None or life.fate is None):
            record = moves.to_stop(record)  # killed by somebody, who wants it to stay so
        refused = record.wanted and life is not None and life.refused
        if refused:
            decision, record, puts, told = self._refused(record, ended)
        else:
            in_hand = fleet.kernel.scheduler.in_hand(agent) or fleet.kernel.bus.in_hand(agent.id)
            decision, record, puts, told = self._decided(record, ended, in_hand)
        if not record.to_revive:
            puts.append(Put("agents", agent.id, None))
        finished = _is_finished(agent)
        if finished:  # the next life begins a run of its own
            puts.append(Put("lives", agent.id, str(fleet.kernel.journal.aseq(agent.id) + 2).encode()))
        if asked or ended.exit_class is ExitClass.REQUESTED:
            puts += fleet.kernel.signals.buried(agent.id)
        puts.append(fleet.kernel.signals.unasked(agent.id))  # who is to end is on the fleet's own record
        if life:
            life.begun.set()
        forgotten = (record, spec) if fleet.spawned.is_done(record) else None
        if forgotten:
            puts += fleet.spawned.dropped(agent.id)
        finished = finished or record.state in OVER or (life is not None and life.anew)
        return Verdict(ended, record.to_revive, told, puts, decision, finished, forgotten)

    async def lost(self, record: Record) -> None:
        """It lived, or was about to, when the last kernel died, and there is no row of it."""
        kind, spec = ExitClass.LOST if record.wanted else ExitClass.REQUESTED, self._fleet.kept.specs[record.id]
        ended = Ended(kind, -1, "the kernel restarted")
        decision, record, puts, told = self._decided(record, ended)
        if self._fleet.was_made(record):  # a supervisor without a program has a life to end as well
            told |= {"class": str(kind), "code": ended.code, "reason": ended.reason}
            await self._fleet.note(record, "lost", puts, kind=Kind.EXIT, **told)
        else:
            await self._fleet.note(record, "lost", puts, **told)
        await self.carry_out(record.id, decision, self._forgotten(record, spec))

    def refused(self, agent_id: str, reason: str, *, retryable: bool) -> None:
        """It could not be started, and there was never a row of it."""
        fleet = self._fleet
        life, record = fleet.lives.pop(agent_id, None), fleet.kept.records[agent_id]
        if life:
            life.begun.set()
        fleet.ready_secs(agent_id)
        kind = ExitClass.ERROR if record.wanted else ExitClass.REQUESTED
        ended = Ended(kind, -1, f"not started: {reason}")
        refused = record.wanted and not retryable
        decision, record, puts, told = (self._refused if refused else self._decided)(record, ended)
        fleet.kernel.start(self._note_refusal(record, reason, decision, puts, told))

    async def _note_refusal(
        self, record: Record, reason: str, decision: Decision, puts: Sequence[Put], told: dict[str, Any]
    ) -> None:
        spec = self._fleet.kept.specs[record.id]
        await self._fleet.note(record, "refused", puts, reason=reason, **told)
        await self.carry_out(record.id, decision, self._forgotten(record, spec))

    def _forgotten(self, record: Record, spec: Spec) -> tuple[Record, Spec] | None:
        return (record, spec) if self._fleet.spec(record.id) is None else None

    def _classed(self, agent: Agent, ended: Ended, life: "Life | None", *, asked: bool) -> Ended:
        """The class under which the kernel was ending it counts more than the number it left with."""
        terms = self._fleet.kept.specs[agent.id].terms
        violated = ExitClass.POLICY if agent.quarantined else None  # by whatever it was being ended already
        fates = [one for one in (violated, life.fate if life else None, agent.fate and agent.fate.exit_class) if one]
        if asked and not fates:
            fates = [ExitClass.REQUESTED]
        if (life is None or life.fate is None) and self._went_down(agent, ended):
            return replace(ended, exit_class=ExitClass.LOST)
        if fates:
            fate = fates[0]
            for other in fates[1:]:
                fate = graver(fate, other)
            reason = life.reason if life and life.reason and life.fate is fate else ended.reason
            return replace(ended, exit_class=fate, reason=reason or ended.reason)
        if ended.exit_class in (ExitClass.ERROR, ExitClass.SIGNAL) and ended.code in terms.success_codes:
            return replace(ended, exit_class=ExitClass.NORMAL)
        return ended

    def _went_down(self, agent: Agent, ended: Ended) -> bool:
        """Nobody asked for its end but a kernel that starts nobody any more."""
        wanted = self._fleet.kept.records[agent.id].wanted
        return wanted and ended.exit_class is ExitClass.REQUESTED and not self._fleet.pacing.opened

    def _refused(self, record: Record, ended: Ended) -> Decided:
        """As it is declared it will never start, so nobody tries again."""
        decision = Decision(Act.FAIL, record.consecutive, ended.reason)
        after = moves.after(record, decision, time.time())
        return decision, after, self._fleet.kept.keep(after), {"decision": _plain(decision)}

    def _decided(self, record: Record, ended: Ended, in_hand: InHand | None = None) -> Decided:
        fleet, now = self._fleet, time.time()
        spec, parent = fleet.kept.specs[record.id], record.parent or ROOT_ID
        replayable = spec.runtime != "exec"
        child = Child(record.id, record.incarnation, spec.terms, record.consecutive, in_hand, replayable)
        exited = Exited(record.incarnation, ended.exit_class, ended.code, fleet.ready_secs(record.id))
        group = fleet.kept.specs[parent].supervision if parent in fleet.kept.specs else ROOT
        above = Supervisor(group, fleet.siblings(parent), self._restarts_by(parent))
        decision = decide(child, exited, above, now)
        waits = waited(spec.terms.backoff, decision.delay_ms, random.random())
        changed = [moves.after(record, decision, now, waits)]
        if decision.counted and group.intensity is not None:
            changed.append(moves.restarted_child(fleet.kept.records[parent], group, now))
        puts = fleet.kept.keep(*changed)
        rested_on = facts(child, exited, above, now, decision)
        return decision, changed[0], puts, {"decision": rested_on.pop("decision"), "decided_on": rested_on}

    def _restarts_by(self, parent: str) -> tuple[float, ...]:
        """A parent that no manifest declares has no record, and nothing is counted there."""
        record = self._fleet.kept.records.get(parent)
        return record.restarts if record else ()

    async def carry_out(self, agent_id: str, decision: Decision, forgotten: tuple[Record, Spec] | None = None) -> None:
        """What was decided about somebody, after it was written down. `forgotten`: nothing is kept of it any more."""
        fleet = self._fleet
        record, spec = forgotten or (fleet.kept.records.get(agent_id), fleet.kept.specs.get(agent_id))
        if record is None or spec is None or decision.act is Act.IGNORE:
            return
        escalates = decision.act is Act.ESCALATE
        with fleet.pacing.walking(record.parent or ROOT_ID, bool(decision.stop)):
            for one in decision.stop:
                back = fleet.returns(one) if escalates else one in decision.start
                await fleet.stopping.aside(one, f"its sibling {bare(agent_id)} failed", comes_back=back)
        fleet.pacing.in_line(pairwise(decision.start))
        if escalates:
            await self._escalate(record.parent or ROOT_ID)
        if record.state in OVER and fleet.is_supervisor(agent_id):
            await fleet.stopping.children_aside(agent_id, f"its supervisor {bare(agent_id)} has ended")
        if record.state in OVER:
            await fleet.end_family(agent_id)
        await self._tell_others(record, spec, decision)
        fleet.stir()

    async def _escalate(self, supervisor: str) -> None:
        """Its children failed too often: it ends, and whoever is above it decides about that."""
        fleet = self._fleet
        fleet.apart.add(supervisor)
        await fleet.note(moves.escalated(fleet.kept.records[supervisor]), "escalates")
        life = fleet.lives.get(supervisor)
        if life is None:  # it is on its way back already
            return
        await life.begun.wait()
        if life.agent and not life.agent.exit:
            life.doomed(ExitClass.ERROR, INTENSITY)
            try:
                await fleet.kernel.end(life.agent, Ended(ExitClass.ERROR, -1, INTENSITY))
            except ESRCH:
                return

    async def _tell_others(self, record: Record, spec: Spec, decision: Decision) -> None:
        fleet, agent_id = self._fleet, record.id
        why = f"{bare(agent_id)}, to which it is bound, has ended"
        for one in fleet.graph.bound_to(agent_id):
            if one in fleet.lives:
                await fleet.stopping.aside(one, why, comes_back=record.to_revive and fleet.returns(one))
        for one in fleet.graph.dependants(agent_id):
            if (life := fleet.lives.get(one)) and life.agent:
                body = {"type": "dependency", "agent": bare(agent_id), "state": str(record), "why": decision.why}
                fleet.kernel.notice(life.agent, body, CLEAN)
        if decision.act is Act.FAIL:
            for name in spec.on_failure:
                other = resolved(name, agent_id.partition("/")[0], fleet.kept.specs)
                if other and other in fleet.kept.records:
                    own = other.partition("/")[0] == agent_id.partition("/")[0]
                    fleet.move(other, moves.summoned if own else moves.called, "called")


def _plain(decision: Decision) -> Any:
    return msgspec.to_builtins(decision, order="deterministic")


def _is_finished(agent: Agent) -> bool:
    """Whether that run is over: it said so itself and well, or it has no record that another life could go on with. A
    model's is also over when it was stopped."""
    from agent_os.manifest.settling import STOPPED

    well = (0, STOPPED) if agent.order.get("model") else (0,)
    return agent.kind != "native" or (agent.last_words is not None and agent.last_words.status in well)
