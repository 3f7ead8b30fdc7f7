"""Whether an agent that ended is started again: a pure function of recorded facts.

Goes in: what is known of the child, of its exit and of its supervisor, and what time it is. Comes out: one `Decision`,
which is written down with what it was made from before anybody acts on it. No clock, no chance, no I/O: no agent can
argue with it, and the same facts give the same answer in every kernel.
"""

from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from agent_os.abi.states import ExitClass
from agent_os.kernel.supervisor import intensity
from agent_os.kernel.supervisor.backoff import nominal
from agent_os.kernel.supervisor.exits import is_normal
from agent_os.kernel.supervisor.order import Sibling, affected, stopping
from agent_os.kernel.supervisor.terms import RestartPolicy, Supervision, Terms

_LEAST_STABLE = 0.5  # seconds, whatever a manifest says: else a crash by the moment would never be too many


class Act(StrEnum):
    IGNORE = "ignore"  # news of a life that is long over
    STOPPED = "stopped"
    COMPLETE = "complete"
    FAIL = "fail"  # for good; what its manifest names in `on_failure` is started
    QUARANTINE = "quarantine"
    BLOCK = "block"  # until somebody else is ready again
    START = "start"  # it goes on as if nothing had been
    RESTART = "restart"
    ESCALATE = "escalate"  # its supervisor ends; the next one up decides about that


class InHand(Struct, frozen=True):
    """The message that was being worked on, and how many lives it has cost, this one included."""

    message: str
    deaths: int


class Child(Struct, frozen=True):
    id: str
    incarnation: int
    terms: Terms = field(default_factory=Terms)
    consecutive: int = 0
    in_hand: InHand | None = None
    replayable: bool = True  # a guest is not


class Exited(Struct, frozen=True):
    incarnation: int
    exit_class: ExitClass
    code: int
    ready_secs: float | None = None  # None: it never became ready
    provider_open_until: float | None = None  # its last failed call was to a model whose circuit is open
    budget_renews_at: float | None = None


class Supervisor(Struct, frozen=True):
    terms: Supervision = field(default_factory=Supervision)
    children: tuple[Sibling, ...] = ()  # by start index, the one that ended among them
    restarts: tuple[float, ...] = ()  # when it restarted one of them


class Decision(Struct, frozen=True):
    act: Act
    consecutive: int  # to be stored
    why: str = ""
    until: float | None = None  # of a block; None: until somebody lifts it
    delay_ms: int = 0  # nominal; jitter is added by whoever waits
    counted: bool = False  # as a restart of the supervisor's period
    dead_letter: str | None = None  # the message that is taken out of the mailbox
    stop: tuple[str, ...] = ()
    start: tuple[str, ...] = ()


def decide(child: Child, exited: Exited, supervisor: Supervisor, now: float) -> Decision:
    if exited.incarnation != child.incarnation:
        return Decision(Act.IGNORE, child.consecutive, f"incarnation {exited.incarnation} is long over")
    if by_class := _by_class(child, exited):
        return by_class
    if not _wanted(child.terms, exited):
        return _given_up(child, exited)
    return _again(replace(child, consecutive=_in_a_row(child, exited)), exited, supervisor, now)


def facts(child: Child, exited: Exited, supervisor: Supervisor, now: float, decision: Decision) -> dict[str, Any]:
    """For the record. Of the siblings only those that are stopped or started: there may be a thousand others."""
    rest = {"terms": supervisor.terms, "restarts": supervisor.restarts}
    told = {"child": child, "exit": exited, "supervisor": rest, "now": now, "decision": decision}
    return msgspec.to_builtins(told, order="deterministic")


def _by_class(child: Child, exited: Exited) -> Decision | None:
    """Exits after which neither policy nor counters are asked."""
    same, kind = child.consecutive, exited.exit_class
    if kind is ExitClass.REQUESTED:
        return Decision(Act.STOPPED, same, "it was asked to stop")
    if kind is ExitClass.POLICY:
        return Decision(Act.QUARANTINE, same, "violation")
    if kind is ExitClass.NONDETERMINISTIC:
        return Decision(Act.FAIL, same, "nondeterministic")
    if kind is ExitClass.BUDGET:
        return Decision(Act.BLOCK, same, "budget", until=exited.budget_renews_at)
    if kind is not ExitClass.LOST:
        return None
    if child.terms.policy is RestartPolicy.NEVER and not child.replayable:
        return Decision(Act.FAIL, same, "lost with the kernel; a guest cannot be replayed")
    return Decision(Act.START, same, "lost with the kernel", start=(child.id,))


def _wanted(terms: Terms, exited: Exited) -> bool:
    if exited.code in terms.no_restart_codes:
        return False
    if terms.policy is RestartPolicy.ALWAYS or exited.code in terms.force_restart_codes:
        return True
    return terms.policy is RestartPolicy.ON_FAILURE and not is_normal(exited.exit_class)


def _given_up(child: Child, exited: Exited) -> Decision:
    if is_normal(exited.exit_class):
        return Decision(Act.COMPLETE, 0, "it is done")  # a job that runs every night begins every night anew
    return Decision(Act.FAIL, child.consecutive, str(exited.exit_class))


def _in_a_row(child: Child, exited: Exited) -> int:
    """An agent that was ready for long enough begins anew; one that never was does not, even where 0 s are enough."""
    stable = exited.ready_secs is not None and exited.ready_secs >= max(_LEAST_STABLE, child.terms.stable_secs)
    return 0 if stable else child.consecutive


def _again(child: Child, exited: Exited, supervisor: Supervisor, now: float) -> Decision:
    terms, count = child.terms, child.consecutive
    lists = affected(supervisor.terms.strategy, supervisor.children, child.id)
    if child.in_hand and child.in_hand.deaths >= terms.max_deaths:
        delay, message = nominal(terms.backoff, max(1, count)), child.in_hand.message
        return Decision(Act.RESTART, count, "message", delay_ms=delay, dead_letter=message, **lists._asdict())
    if exited.provider_open_until is not None and exited.provider_open_until > now:
        return Decision(Act.BLOCK, count, "provider", until=exited.provider_open_until)
    count += 1
    if count > terms.max_restarts:
        return Decision(Act.FAIL, count, "max_restarts")
    if intensity.is_passed(supervisor.terms, supervisor.restarts, now):
        others = stopping(one for one in supervisor.children if one.id != child.id)
        return Decision(Act.ESCALATE, count, "intensity", stop=others)
    delay = nominal(terms.backoff, count)
    return Decision(Act.RESTART, count, str(exited.exit_class), delay_ms=delay, counted=True, **lists._asdict())
