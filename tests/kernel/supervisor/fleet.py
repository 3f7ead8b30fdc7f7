"""A kernel in miniature that does what the supervisor decides: processes are a dictionary and the clock is a number.

Everything it knows of an agent over its lives is a `Record`; what it keeps beside that is lost when it dies.
"""

from collections.abc import Iterator

import msgspec

from agent_os.abi.states import ExitClass
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.backoff import waited
from agent_os.kernel.supervisor.decide import Act, Child, Exited, InHand, Supervisor, decide
from agent_os.kernel.supervisor.order import Sibling, stopping
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.terms import ROOT, RestartPolicy, State, Supervision, Terms

ABOVE = "root"
_OVER = {State.STOPPED, State.COMPLETED, State.FAILED, State.QUARANTINED}


class Fleet:
    def __init__(self) -> None:
        self.now = 0.0
        self.terms = {ABOVE: Terms()}
        self.groups = {ABOVE: ROOT}  # of supervisors
        self.records = {ABOVE: moves.begun(Record(ABOVE))}
        self.processes = {ABOVE: 0.0}  # id → since when
        self.apart: set[str] = set()  # supervisors whose children wait for them
        self.dead_letters: list[str] = []

    def spawn(self, agent: str, parent: str, terms: Terms, group: Supervision | None = None) -> None:
        self.terms[agent] = terms
        self.records[agent] = Record(agent, parent, index=len(self.records))
        if group:
            self.groups[agent] = group
            self.apart.add(agent)

    def children(self, parent: str) -> list[Record]:
        return moves.in_order(one for one in self.records.values() if one.parent == parent)

    def siblings(self, parent: str) -> tuple[Sibling, ...]:
        return tuple(Sibling(one.id, self.terms[one.id].policy, one.state) for one in self.children(parent))

    def end(self, agent: str, exit_class: ExitClass, code: int = -1, **more: float | InHand | None) -> None:
        """Its process is gone."""
        since = self.processes.pop(agent)
        self.decide(agent, exit_class, code, self.now - since, **more)

    def decide(
        self,
        agent: str,
        exit_class: ExitClass,
        code: int,
        ready_secs: float,
        in_hand: InHand | None = None,
        provider: float | None = None,
        budget: float | None = None,
    ) -> None:
        record, terms = self.records[agent], self.terms[agent]
        parent = record.parent or ""
        child = Child(agent, record.incarnation, terms, record.consecutive, in_hand)
        exited = Exited(record.incarnation, exit_class, code, ready_secs, provider, budget)
        above = Supervisor(self.groups[parent], self.siblings(parent), self.records[parent].restarts)
        decision = decide(child, exited, above, self.now)
        delay = waited(terms.backoff, decision.delay_ms, 1.0)
        self.records[agent] = moves.after(record, decision, self.now, delay)
        if decision.dead_letter:
            self.dead_letters.append(decision.dead_letter)
        if decision.counted:
            self.records[parent] = moves.restarted_child(self.records[parent], self.groups[parent], self.now)
        escalates = decision.act is Act.ESCALATE
        for one in decision.stop:
            self.step_aside(one, self._with_its_supervisor(one) if escalates else one in decision.start)
        if escalates:
            self.escalate(parent)
        for one in decision.start:
            assert self.records[one].to_revive, f"{one} is on the list and cannot be started"
            assert one not in self.processes, f"{one} is on the list and lives"
        assert agent in decision.start or decision.act not in (Act.RESTART, Act.START)
        if agent in self.groups and self.records[agent].state in _OVER:
            self.children_step_aside(agent)

    def escalate(self, supervisor: str) -> None:
        self.apart.add(supervisor)
        self.records[supervisor] = moves.escalated(self.records[supervisor])
        since = self.processes.pop(supervisor, self.now)
        self.decide(supervisor, ExitClass.ERROR, -1, self.now - since)

    def step_aside(self, agent: str, comes_back: bool) -> None:
        """Stopped for somebody else's sake."""
        if not comes_back:
            self.records[agent] = moves.to_stop(self.records[agent])
        self.make_end(agent)

    def _with_its_supervisor(self, agent: str) -> bool:
        """Whether it starts again when its supervisor does. Whoever is never restarted does not."""
        return self.terms[agent].policy is not RestartPolicy.NEVER

    def make_end(self, agent: str) -> None:
        if agent in self.groups:
            self.children_step_aside(agent)
        if agent in self.processes:
            self.end(agent, ExitClass.REQUESTED, 0)

    def children_step_aside(self, supervisor: str) -> None:
        self.apart.add(supervisor)
        for one in stopping(self.siblings(supervisor)):
            self.step_aside(one, self._with_its_supervisor(one))

    def stop(self, agent: str) -> None:
        self.records[agent] = moves.to_stop(self.records[agent])
        self.make_end(agent)

    def start(self, agent: str) -> None:
        self.records[agent] = moves.by_hand(self.records[agent])

    def release(self, agent: str) -> None:
        self.records[agent] = moves.released(self.records[agent])

    def restart(self, agent: str) -> None:
        self.make_end(agent)

    def crash_and_boot(self) -> None:
        """kill -9 of the kernel: what is stored is all that is left."""
        stored = msgspec.msgpack.encode(self.records)
        self.records = msgspec.msgpack.decode(stored, type=dict[str, Record])
        self.apart = set(self.groups) - {ABOVE}
        for agent in [one for one in self.processes if one != ABOVE]:
            del self.processes[agent]
            self.decide(agent, ExitClass.LOST, -1, 0.0)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        while due := next(self._due(), None):
            self.records[due] = moves.begun(self.records[due])
            self.processes[due] = self.now
            self.apart.discard(due)

    def _due(self) -> Iterator[str]:
        for record in moves.in_order(self.records.values()):
            above = record.parent
            if record.is_due(self.now) and above not in self.apart:
                yield record.id
