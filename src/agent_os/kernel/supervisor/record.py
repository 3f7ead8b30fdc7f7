"""What lasts of an agent over all its lives: the state people see, what is wanted of it, and its counters.

A record is a value: each move returns the next one, or raises EBUSY and changes nothing. It is stored before anybody
acts on it, so that a kernel that died goes on with it. Goes in: what happened, as decided. Starts and stops nothing.
"""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import EBUSY
from agent_os.abi.states import AgentState
from agent_os.kernel.supervisor import intensity
from agent_os.kernel.supervisor.decide import Act, Decision
from agent_os.kernel.supervisor.terms import State, Supervision

MANUAL = "manual"  # why somebody is stopped whom nobody has started yet
UNKNOWN = "unknown"  # blocked by an effect nobody knows the outcome of; an operator resolves it
_SEEN = {
    State.PENDING: AgentState.PENDING,
    State.BLOCKED: AgentState.PENDING,
    State.ACTIVE: AgentState.RUNNING,
    State.BACKOFF: AgentState.PENDING,
    State.STOPPED: AgentState.COMPLETED,
    State.COMPLETED: AgentState.COMPLETED,
    State.FAILED: AgentState.FAILED,
    State.QUARANTINED: AgentState.FAILED,
}
_STARTABLE = {State.PENDING, State.BLOCKED, State.BACKOFF}


class Record(Struct, frozen=True):
    id: str
    parent: str | None = None  # its supervisor, over all restarts
    index: int = 0  # its place among the children of that one
    wanted: bool = True  # desired: running
    state: State = State.PENDING
    why: str = ""
    until: float | None = None  # of a block or a back-off
    incarnation: int = 0  # of the newest life; 0 before the first
    consecutive: int = 0
    last_restart: float | None = None
    restarts: tuple[float, ...] = ()  # of its children, as a supervisor

    @property
    def seen(self) -> AgentState:
        """The one of five words. Of an active one, that of its incarnation is more exact."""
        return AgentState.PAUSED if (self.state, self.why) == (State.BLOCKED, UNKNOWN) else _SEEN[self.state]

    @property
    def to_revive(self) -> bool:
        """Whether a reconciler that finds no process of it starts one, provided that its supervisor lives. What was
        given up stays so."""
        return self.wanted and self.state in (_STARTABLE | {State.ACTIVE})

    @property
    def is_manual(self) -> bool:
        """Whether it waits for somebody to start it for the first time."""
        return (self.state, self.why) == (State.STOPPED, MANUAL)

    def is_due(self, now: float) -> bool:
        """Whether nothing on record keeps it from being started now. A back-off that began in the future is over: the
        clock was set back, and nobody waits a year for that; its counters still bound how often."""
        if not self.wanted or self.state not in _STARTABLE:
            return False
        if self.state is State.BACKOFF and self.last_restart is not None and now < self.last_restart:
            return True
        return self.state is State.PENDING or (self.until is not None and self.until <= now)

    def __str__(self) -> str:
        return f"{self.state}({self.why})" if self.state in (State.BLOCKED, State.FAILED) and self.why else self.state


def begun(record: Record) -> Record:
    """A new life begins. Stored before the process is made, so that no two lives have the same number."""
    if record.state not in _STARTABLE or not record.wanted:
        raise _no_such_move(record, "started")
    return _now(replace(record, incarnation=record.incarnation + 1), State.ACTIVE)


def blocked(record: Record, why: str, until: float | None = None) -> Record:
    """It cannot be started yet."""
    if record.state not in _STARTABLE:
        raise _no_such_move(record, "blocked")
    return _now(record, State.BLOCKED, why, until)


def failed(record: Record, why: str) -> Record:
    """It could not even be started: a dependency, a refusal."""
    if record.state not in _STARTABLE:
        raise _no_such_move(record, "given up")
    return _now(record, State.FAILED, why)


def to_stop(record: Record) -> Record:
    """It is to stop and to stay so. One that lives is `stopped` once it is gone; one that has ended stays as it is."""
    unwanted = replace(record, wanted=False)
    return _now(unwanted, State.STOPPED) if record.state in _STARTABLE else unwanted


def by_hand(record: Record) -> Record:
    """An operator starts it: the only move that clears the counters."""
    if record.state is State.QUARANTINED:
        name = record.id.rpartition("/")[2]
        raise EBUSY("quarantined", f"{record.id} is quarantined: {record.why}", hint=f"agentctl release {name}")
    cleared = replace(record, wanted=True, consecutive=0, last_restart=None, restarts=())
    return cleared if record.state is State.ACTIVE else _now(cleared, State.PENDING)


def called(record: Record) -> Record:
    """A message, a schedule or another agent's failure wants it. That starts whoever is done, and costs nothing; it
    neither revives what was stopped or given up nor shortens a wait."""
    if not record.wanted or record.state not in (_STARTABLE | {State.ACTIVE, State.COMPLETED}):
        raise _no_such_move(record, "started without an operator")
    return _now(record, State.PENDING) if record.state is State.COMPLETED else record


def summoned(record: Record) -> Record:
    """A goal wants it, or the failure of one of its namespace: as `called`, and also whoever nobody has started yet."""
    return by_hand(record) if record.is_manual else called(record)


def condemned(record: Record, why: str) -> Record:
    """It violated a rule in a life that is over already."""
    if record.state not in _STARTABLE:
        raise _no_such_move(record, "quarantined")
    return _now(record, State.QUARANTINED, why)


def released(record: Record) -> Record:
    """The only way out of quarantine. It does not start by that."""
    if record.state is not State.QUARANTINED:
        raise _no_such_move(record, "released")
    return _now(replace(record, wanted=False), State.STOPPED)


def after(record: Record, decision: Decision, now: float, waits_ms: float = 0.0) -> Record:
    """What becomes of it once its end has been decided. `waits_ms`: the decision's delay, with jitter."""
    kept = replace(record, consecutive=decision.consecutive)
    match decision.act:
        case Act.IGNORE:
            return record
        case Act.STOPPED:  # for a strategy or a restart by hand it was only asked to step aside
            return _now(kept, State.PENDING if record.wanted else State.STOPPED)
        case Act.COMPLETE:
            return _now(kept, State.COMPLETED)
        case Act.QUARANTINE:
            return _now(kept, State.QUARANTINED, decision.why)
        case Act.FAIL:
            return _now(kept, State.FAILED, decision.why)
        case Act.BLOCK:
            return _now(kept, State.BLOCKED, decision.why, decision.until)
        case Act.RESTART:
            waiting = replace(kept, last_restart=now)
            return _now(waiting, State.BACKOFF, decision.why, now + waits_ms / 1000)
        case Act.START | Act.ESCALATE:  # the latter with its supervisor
            return _now(kept, State.PENDING)


def restarted_child(record: Record, terms: Supervision, now: float) -> Record:
    """The supervisor's own record, after a decision that counts."""
    return replace(record, restarts=intensity.noted(terms, record.restarts, now))


def escalated(record: Record) -> Record:
    """The supervisor's own record, when it gives up: from here on its own policy counts, and its next life begins a new
    period."""
    return replace(record, restarts=())


def in_order(records: Iterable[Record]) -> list[Record]:
    """Children of one supervisor as they were started first: not by pid, which a restart changes."""
    return sorted(records, key=lambda record: record.index)


def _now(record: Record, state: State, why: str = "", until: float | None = None) -> Record:
    return replace(record, state=state, why=why, until=until)


def _no_such_move(record: Record, what: str) -> EBUSY:
    return EBUSY("state", f"{record.id} is {record} and cannot be {what}")
