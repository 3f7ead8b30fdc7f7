"""The gate: one function, one order, every door.

A call goes in with its caller; exactly one answer comes out. In between: identify → capability → policy → labels →
budget → approval → record intent → act → record outcome. A step that raises, or says anything but a clean "go on", is a
refusal; a component that is missing refuses whatever would need it. What is answered has been recorded first, so a
reply leaves only when the journal says that its entry is committed.

Steps 1–5 never wait. A call about which a person is asked waits at step 6, with nothing reserved, and then comes again
from step 2. After any wait the capability and the policy are looked at once more, with nothing awaited between that
look and the deed. Here is the order; the look itself is in `weighing.py`, the deed in `acting.py`, its end in
`answering.py`.
"""

import asyncio
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from agent_os.abi import frames
from agent_os.abi.errors import EAPPROVAL, AgentOSError
from agent_os.drivers.store import Put, Store
from agent_os.kernel.acting import Acting
from agent_os.kernel.answering import Answering, Violated
from agent_os.kernel.authority.ruling import Policies
from agent_os.kernel.calls import GO, PARK, Act, Answer, Asked, Way
from agent_os.kernel.counting import Moments
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.passing import (
    APPROVAL,
    BUDGET,
    CAPABILITY,
    IDENTIFY,
    LABELS,
    NOTHING,
    POLICY,
    Passing,
    Steps,
    fault,
    given_up,
    must_finish,
    quarantined,
    step_of,
    unclear,
)
from agent_os.kernel.table import Agent, Caller
from agent_os.kernel.telling import NOTHING_SAID
from agent_os.kernel.weighing import Weighing

Again = Callable[[Passing, AgentOSError | None], None]


class Gate:
    def __init__(
        self,
        journal: Journal,
        store: Store,
        prepare: Callable[[Caller, Asked], Act],
        policies: Policies,
        steps: Callable[[Again], Steps],
        violated: Violated,
    ) -> None:
        """`steps` makes steps 3 to 6, given how a call that waited comes again."""
        self._prepare, self._policies = prepare, policies
        self.steps = steps(self.again)
        self.weighing = Weighing(policies, self.steps)
        self.policy_checks = Moments()
        self._answering = Answering(journal, store, policies, self.steps, self.weighing, violated)
        self._acting = Acting(journal, self.steps, self.weighing, self._answering)
        self.cut_off_forbidden = self._acting.cut_off_forbidden
        self.sign = self._answering.sign

    def enter(self, caller: Caller, asked: Asked, answer: Answer) -> Passing:
        """Take one call through. `answer` is called once, later, from the loop: a value, or an error."""
        passing = Passing(caller, asked, answer, NOTHING)
        try:
            passing.act = self._identify(caller, asked)
        except AgentOSError as error:
            self._answering.refuse(passing, IDENTIFY, error)
        except Exception as bug:  # a step that breaks must not let anything through
            self._answering.refuse(passing, IDENTIFY, fault(IDENTIFY, bug))
        else:
            self._pass(passing)
        return passing

    def admit(
        self, caller: Caller, act: Act, op: int, answer: Answer, raw: bytes = NOTHING_SAID, request: Any = None
    ) -> Passing:
        """As `enter`, for what a door of the kernel understood by itself: a connection, not a syscall."""
        passing = Passing(caller, Asked(op, raw, request=request), answer, act)
        if isinstance(caller, Agent) and caller.watch:
            caller.watch.stir()
        if caller.quarantined:
            self._answering.refuse(passing, IDENTIFY, quarantined())
        else:
            self._pass(passing)
        return passing

    def _identify(self, caller: Caller, asked: Asked) -> Act:
        if caller.quarantined:
            raise quarantined()
        return self._prepare(caller, asked)

    def _pass(self, passing: Passing) -> None:
        """Steps 2 to 6: for the first time, or again after a wait."""
        steps, asked = self.steps, passing.asked
        passing.version = self._policies.version
        step = CAPABILITY
        try:
            self.weighing.hold(passing)
            step = POLICY
            began = perf_counter_ns()
            try:
                verdict = steps.policy.check(passing)
            finally:
                self.policy_checks.add(perf_counter_ns() - began)
            if verdict is not GO:
                raise unclear()
            step = LABELS
            if steps.labels.check(passing) is not GO:
                raise unclear()
            if asked.key is not None and not passing.keyed and self._answering.known(passing, asked.key):
                return
            step = BUDGET
            if steps.budget.check(passing) is not GO:
                raise unclear()
            step = APPROVAL
            verdict = steps.approval.check(passing)
            if verdict is PARK:
                self._park(passing)
                return
            if verdict is not GO:
                raise unclear()
        except AgentOSError as error:
            self._answering.refuse(passing, step, error)
        except Exception as bug:
            self._answering.refuse(passing, step, fault(step, bug))
        else:
            self._acting.begin(passing)

    def dry(self, caller: Caller, asked: Asked) -> dict[str, Any]:
        """Steps 1–6 without consequence: what the call would meet."""
        passing = Passing(caller, asked, lambda body, error: None, NOTHING)
        passing.marks.dry = True
        step = IDENTIFY
        try:
            passing.act = self._identify(caller, asked)
            steps = self.steps
            after = (steps.policy, steps.labels, steps.budget, steps.approval)
            for check in (self.weighing.hold, *(one.check for one in after)):
                step += 1
                if check(passing) is not GO:
                    raise unclear()
        except AgentOSError as error:
            missing, rule = error.detail.get("missing", ""), error.detail.get("rule", "")
            asks = step == APPROVAL
            verdict = "ask" if asks else "refuse"
            said = {"verdict": verdict, "step": step, "code": error.name, "would_ask": asks, "missing": missing}
            return {**said, "rule": rule, "reason": error.reason, "where": error.detail.get("where", "")}
        said = {"verdict": "allow", "step": 0, "code": "", "would_ask": False, "missing": ""}
        return {**said, "rule": "", "reason": "", "where": ""}

    # Who waits for a person.

    def _park(self, passing: Passing) -> None:
        """Without a task and without holding anything. Its own deadline still counts."""
        self.steps.budget.release(passing, parks=True)
        passing.parked = True
        _stands_still(passing.caller, True)
        passing.opens(Parked(self, passing))
        loop, asked = asyncio.get_running_loop(), passing.asked
        ends = [] if asked.deadline is None else [asked.deadline]
        if asked.patience is not None:
            ends.append(loop.time() + asked.patience)
        if ends:
            passing.timer = loop.call_at(min(ends), self._out_of_time, passing)

    def _unpark(self, passing: Passing) -> None:
        passing.parked = False
        _stands_still(passing.caller, False)
        passing.closes()
        if passing.timer:
            passing.timer.cancel()
            passing.timer = None

    def _out_of_time(self, passing: Passing) -> None:
        try:
            error = self.steps.approval.out_of_time(passing)
        except Exception as bug:  # also one that cannot say how it stands does not keep a call for ever
            error = bug if isinstance(bug, AgentOSError) else fault(APPROVAL, bug)
        self.again(passing, error)

    def again(self, passing: Passing, error: AgentOSError | None) -> None:
        """A parked call has its answer: an error, or leave to pass the gate once more. It has one answer: whoever left
        the line, in the very moment that it was called, is not heard again."""
        if not passing.parked:
            return
        self._unpark(passing)
        if error is None and passing.caller.quarantined:
            error = quarantined()
        if error is None:
            passing.marks.begin()
            self._pass(passing)
        else:
            self._answering.refuse(passing, APPROVAL, error)

    def revoke(self, passing: Passing) -> None:
        """What a parked call rests on was taken back."""
        if passing.parked:
            self.steps.approval.cut_off(passing)
            reason = "what this call rested on was revoked while it waited"
            self.again(passing, EAPPROVAL("approval.cancelled", reason, retryable=False, outcome="cancelled"))

    # Callers that do not wait for their answer.

    def cancel(self, passing: Passing) -> None:
        """The caller wants no more of it. An effect that has begun is awaited, and recorded as it really ended."""
        if passing.parked:
            passing.given_up = True
            self.steps.approval.gave_up(passing)
            self.again(passing, given_up())
        elif not must_finish(passing):
            passing.given_up = True
            if passing.task and passing.act.can_stop:
                passing.task.cancel()

    def abandon(self, passing: Passing) -> None:
        """The caller is gone. An effect goes on to its end, which its next life is told; anything else never happened,
        and is asked for again."""
        if passing.parked:
            self.steps.approval.abandoned(passing)
            self._unpark(passing)
            self._answering.finish(passing, frames.NIL, given_up())
        elif not must_finish(passing):
            passing.abandoned = True
            if passing.task and passing.act.way is not Way.EFFECT:
                passing.task.cancel()

    # What is no syscall: see `calls.Door`.

    def once_more(self, passing: Passing) -> None:
        """A door has learnt where it leads: all that was not known before is looked at, and taken from every handle.
        What was approved stays approved, unless there is more to ask about now. `answer` is called again."""
        before = {one.rule for one in passing.marks.questions}
        self.steps.budget.release(passing, parks=True)
        step, more = CAPABILITY, True
        try:
            self.weighing.weigh(passing)
            more = not before.issuperset(one.rule for one in passing.marks.questions)
            step = BUDGET
            if not more and self.steps.budget.check(passing) is not GO:
                raise unclear()
        except AgentOSError as error:
            self._answering.refuse(passing, step_of(error, step), error)
        except Exception as bug:
            self._answering.refuse(passing, step, fault(step, bug))
        else:
            if more:
                passing.marks.begin()
                self._pass(passing)
            else:
                self._acting.begin(passing)

    def confirm(self, passing: Passing) -> None:
        """After every wait, with nothing awaited between this and the deed. An error: not any more, and that is on the
        record as any refusal."""
        try:
            self.weighing.confirm(passing)
        except AgentOSError as error:
            self._answering.refuse(passing, step_of(error, CAPABILITY), error)
            raise

    def tell(self, passing: Passing, draft: Draft) -> list[Put]:
        """What it rests on, for its first entry, and what the store must hold with that. What it brings its caller is
        part of it from here on."""
        puts = [*passing.marks.puts, *self.steps.approval.rows(passing), *self.steps.labels.take_in(passing)]
        passing.marks.puts.clear()
        draft.cost = self.steps.budget.intent(passing)
        self.sign(passing, draft)
        return puts

    def told(self, passing: Passing, draft: Draft, spent: Mapping[str, float] | None) -> list[Put]:
        """The same for its last entry. None: it came to nothing."""
        if spent is None:
            self.steps.budget.release(passing)
            return []
        draft.ref, draft.cost = passing.intent, self.steps.budget.settle(passing, spent)
        self.sign(passing, draft)
        return passing.marks.puts


class Parked:
    """A call that waits for a person: to its handles something that they have opened."""

    lasting = False

    def __init__(self, gate: Gate, passing: Passing) -> None:
        self._gate, self._passing = gate, passing

    async def close(self) -> None:
        self._gate.revoke(self._passing)


def _stands_still(caller: Caller, waits: bool) -> None:
    """While a person is asked, no time passes for whoever asked."""
    if isinstance(caller, Agent) and (watch := caller.watch):
        (watch.wait if waits else watch.go_on)()
