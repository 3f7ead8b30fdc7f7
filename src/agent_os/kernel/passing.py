"""One call on its way through the gate, what is known of it there, and the refusals that the gate itself gives.

Data and small pure questions about it. `gate.py` moves it from step to step; nothing here decides, records or acts.
"""

import asyncio
import logging
from collections.abc import Sequence

from msgspec import Struct, field

from agent_os.abi.errors import EACCES, EAPPROVAL, ECANCELED, EIO, ELABEL, EPERM, EPOLICY, AgentOSError
from agent_os.drivers.store import Put
from agent_os.kernel.authority.handles import Handle, Opened
from agent_os.kernel.authority.marks import Marks
from agent_os.kernel.authority.ruling import PolicyStep
from agent_os.kernel.authority.steps import ApprovalStep, BudgetStep, LabelStep
from agent_os.kernel.calls import Act, Answer, Asked, Done, Way
from agent_os.kernel.table import Agent, Caller

IDENTIFY, CAPABILITY, POLICY, LABELS, BUDGET, APPROVAL, RECORD = range(1, 8)  # steps, as refusals name them
_STEPS: dict[type[AgentOSError], int] = {EPOLICY: POLICY, ELABEL: LABELS, EAPPROVAL: APPROVAL}
QUARANTINE = "quarantine"  # the bucket: who may not run, and why
log = logging.getLogger("agent_os.gate")


class Steps(Struct):
    """Steps 3 to 6, each a part of its own."""

    policy: PolicyStep
    labels: LabelStep
    budget: BudgetStep
    approval: ApprovalStep


def _nothing() -> Done:
    return Done()


NOTHING = Act(_nothing)


class Passing(Struct, eq=False):
    """One call on its way through."""

    caller: Caller
    asked: Asked
    answer: Answer
    act: Act
    handles: Sequence[Handle | None] = ()  # what each need rests on; None: shared by one that ended, or nothing needed
    shared: bool = False  # some of those are of whoever shares it
    marks: Marks = field(default_factory=Marks)
    version: int = 0  # of the policy that it was weighed by
    intent: int = 0
    given_up: bool = False
    abandoned: bool = False
    keyed: bool = False
    task: asyncio.Task[None] | None = None
    limit: asyncio.Timeout | None = None  # of a deed with a deadline
    parked: bool = False
    timer: asyncio.TimerHandle | None = None  # of a parked call with a deadline
    under_way: Opened | None = None  # it waits or acts, under the handles that it rests on
    cut: AgentOSError | None = None  # why it was cut off: what it rested on was taken back, or a rule forbids it now

    @property
    def handle(self) -> Handle | None:
        """What the record names."""
        return next((one for one in reversed(self.handles) if one), None)

    def opens(self, under_way: Opened) -> None:
        """From here on it ends with the handles that it rests on."""
        self.under_way = under_way
        for handle in filter(None, self.handles):
            handle.opened.add(under_way)

    def closes(self) -> None:
        under_way, self.under_way = self.under_way, None
        if under_way:
            for handle in filter(None, self.handles):
                handle.opened.discard(under_way)


def step_of(error: AgentOSError, otherwise: int) -> int:
    """Which of several steps has refused."""
    return _STEPS.get(type(error), otherwise)


def deadline(passing: Passing, now: float) -> float | None:
    """Its caller's, or that of a capability or a rule which says how long one call may take."""
    times = [one.capability.constraints.get("timeout") for one in passing.handles if one]
    if decision := passing.marks.decision:
        times.append(decision.limits.get("timeout"))
    ends = [now + most / 1000 for most in times if most is not None]
    return min([*ends, *([passing.asked.deadline] if passing.asked.deadline is not None else [])], default=None)


def is_violation(error: AgentOSError) -> bool:
    """Forbidden by a rule, in strict mode."""
    return isinstance(error, EPOLICY) and error.detail.get("violation") == "kill"


def offence(error: AgentOSError) -> str:
    """A violation in a line, for whoever decides about a release."""
    return f"{error.detail.get('rule') or error.code}: {error.reason}"


def held_for(passing: Passing, error: AgentOSError | None) -> list[Put]:
    """The quarantine of whoever violated a rule is as certain as the refusal: no crash comes in between."""
    if error is None or not is_violation(error) or not isinstance(passing.caller, Agent):
        return []
    return [Put(QUARANTINE, passing.caller.id, offence(error).encode())]


def must_finish(passing: Passing) -> bool:
    """Whether a call has no end but its own, also if its caller dies: a tool that acts outside must not be cut off in
    the middle. A write whose data is still coming has not begun to act."""
    act = passing.act
    return act.way is Way.EFFECT and act.can_stop and not getattr(passing.asked.request, "stream", False)


def overtaken(error: AgentOSError) -> AgentOSError:
    """A rule came while it was under way. Refused, but no violation: it was allowed when its caller began."""
    if is_violation(error):
        error.detail["violation"] = "refuse"
    return error


def revoked() -> EACCES:
    return EACCES("cap.revoked", "what this call rested on was revoked while it was under way")


def quarantined() -> EPERM:
    return EPERM("quarantined", "this agent is quarantined for a violation", hint="an operator can release it")


def fault(step: int, bug: Exception) -> EIO:
    log.error("gate step %d broke", step, exc_info=bug)
    return EIO("gate.fault", f"step {step} of the gate failed: {type(bug).__name__}")


def untold(bug: Exception) -> EIO:
    """It was done, or failed; only what there is to say of it cannot be written down."""
    log.error("the outcome of a call cannot be recorded", exc_info=bug)
    return EIO("internal.outcome", f"it came to its end, but that cannot be told: {type(bug).__name__}")


def unclear() -> EIO:
    return EIO("gate.fault", "a step of the gate gave no clear answer")


def given_up() -> ECANCELED:
    return ECANCELED("cancelled", "the caller gave this call up")


def internal(bug: Exception) -> EIO:
    log.error("a call broke", exc_info=bug)
    return EIO("internal", f"the kernel failed at this call: {type(bug).__name__}: {bug}")
