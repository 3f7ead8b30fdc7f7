"""The states an agent can be in, as tables: what people see, what one incarnation goes through, and how one ends.

An *agent* is an id that outlives its processes; an *incarnation* is one process of it.
"""

from enum import StrEnum

from agent_os.abi.errors import EBUSY


class AgentState(StrEnum):
    """The five words everybody sees; `detail` beside it refines."""

    PENDING = "pending"  # queued, spawning, replaying
    RUNNING = "running"  # idle, calling, waiting
    PAUSED = "paused"  # stopped, parked
    COMPLETED = "completed"
    FAILED = "failed"  # error, killed, quarantined, nondeterministic


class Incarnation(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    EXITED = "exited"


_MOVES = {
    Incarnation.STARTING: {Incarnation.RUNNING, Incarnation.STOPPING, Incarnation.EXITED},
    Incarnation.RUNNING: {Incarnation.SUSPENDED, Incarnation.STOPPING, Incarnation.EXITED},
    Incarnation.SUSPENDED: {Incarnation.RUNNING, Incarnation.STOPPING, Incarnation.EXITED},
    Incarnation.STOPPING: {Incarnation.EXITED},
    Incarnation.EXITED: set[Incarnation](),
}


def moved(old: Incarnation, new: Incarnation) -> Incarnation:
    """The new state, or EBUSY where the table has no such move."""
    if new not in _MOVES[old]:
        raise EBUSY("state", f"an incarnation that is {old} cannot become {new}")
    return new


def printed(life: Incarnation, code: int | None = None) -> str:
    """As people read it: `running`, `exited(42)`."""
    return f"{life}({code})" if life is Incarnation.EXITED and code is not None else str(life)


class ExitClass(StrEnum):
    """Why an incarnation ended. The class decides what follows, not the number."""

    NORMAL = "normal"
    REQUESTED = "requested"  # somebody asked for it
    ERROR = "error"
    SIGNAL = "signal"  # a host signal that the kernel did not send
    OOM = "oom"
    START_TIMEOUT = "start_timeout"  # it did not become ready in time
    WATCHDOG = "watchdog"
    PROBE = "probe"
    TIMEOUT = "run_timeout"
    POLICY = "policy"
    NONDETERMINISTIC = "nondeterministic"
    BUDGET = "budget"  # one with on_exhausted = "stop" is used up
    LOST = "lost"  # the kernel or the launcher itself went away
