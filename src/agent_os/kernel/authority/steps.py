"""The gate's steps 4, 5 and 6: labels, budget, approval, each as the gate calls it.

In: a call on its way, with the marks that earlier steps left on it. Out: `GO`, `PARK` (only from the approval), or the
refusal, raised. What a step takes is on the marks, so that the gate can give it back: a reservation when the call
parks or is refused, a place in the waiting line when its caller leaves. A dry call takes nothing.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from agent_os.abi.errors import EAPPROVAL, EBUDGET, AgentOSError
from agent_os.abi.syscalls import Effect
from agent_os.drivers.store import Put
from agent_os.kernel.authority import budget, charges
from agent_os.kernel.authority.answers import outcome, still_waiting
from agent_os.kernel.authority.approvals import Approvals
from agent_os.kernel.authority.budget import Alarm, Ledger
from agent_os.kernel.authority.charges import Crossing
from agent_os.kernel.authority.flows import NO_RULES, STAYS, FlowRules, brought, decide
from agent_os.kernel.authority.handles import Handle, gone, kept
from agent_os.kernel.authority.labels import LABELS, Label, Labels, packed
from agent_os.kernel.authority.marks import Marks
from agent_os.kernel.authority.questions import Ask, Asker, Question
from agent_os.kernel.calls import GO, PARK, Act, Asked
from agent_os.kernel.table import Agent, Caller

_EXEC = 5
_COUNTED = ("count", "bytes", "tokens", "cost")  # what a capability can be limited in


class Marked(Protocol):
    """A call on its way: `passing.Passing`, with its marks."""

    @property
    def caller(self) -> Caller: ...

    @property
    def asked(self) -> Asked: ...

    @property
    def act(self) -> Act: ...

    @property
    def handles(self) -> Sequence[Handle | None]: ...

    @property
    def handle(self) -> Handle | None: ...

    @property
    def intent(self) -> int: ...

    @property
    def marks(self) -> Marks: ...


class LabelStep:
    """Step 4. `rules` are those of the policy in force; `answered` are the hosts that a person named for that run."""

    def __init__(
        self,
        labels: Labels,
        rules: Callable[[Agent], FlowRules] = lambda agent: NO_RULES,
        answered: Callable[[Agent], Collection[str]] = lambda agent: (),
    ) -> None:
        self._labels, self._rules, self._answered = labels, rules, answered

    def check(self, passing: Marked) -> object:
        caller, act, marks = passing.caller, passing.act, passing.marks
        if not isinstance(caller, Agent):  # a person carries no label
            return GO
        label = marks.label = self._labels.of(caller.id)
        op, rules = passing.asked.op, self._rules(caller)
        if op in STAYS and not rules.sinks:  # most calls
            return GO
        leads, effect = act.door.leads if act.door else (), act.effect
        if act.door and act.door.sends:
            effect = Effect.OPAQUE
        needs = act.needs
        if act.sinks is not None:  # the others are names of the same
            needs, leads, effect = act.sinks, (*leads, *act.needs), Effect.PURE
        stays = act.facts.get("local") is True
        doubts = decide(label, op, needs, effect, rules, self._answered(caller), leads, stays)
        marks.questions += [Question(one.rule, one.reason) for one in doubts]
        return GO

    def take_in(self, passing: Marked, carried: Label | None = None) -> list[Put]:
        """Step 9: what the call brought is part of its caller from now on. An error brings something, too."""
        caller = passing.caller
        if not isinstance(caller, Agent):
            return []
        if carried is None and passing.act.label:
            carried = passing.act.label()
        got = brought(passing.asked.op, passing.act.needs, self._rules(caller), carried)
        puts = self._labels.take_in(caller.id, got)
        passing.marks.label = self._labels.of(caller.id)
        return puts

    def row(self, passing: Marked) -> list[Put]:
        """What its caller carries, whatever the store has of that."""
        caller = passing.caller
        return [Put(LABELS, caller.id, packed(self._labels.of(caller.id)))] if isinstance(caller, Agent) else []


class BudgetStep:
    """Step 5. Every tool call counts; whatever else it may cost is in the act."""

    def __init__(
        self,
        ledger: Ledger,
        alarm: Callable[[Alarm], None] = lambda alarm: None,
        nearly: Callable[[Crossing], None] = lambda crossing: None,
    ) -> None:
        """`alarm` and `nearly` hear of four fifths that are used: of an account, of a capability."""
        self._ledger, self._alarm, self._nearly = ledger, alarm, nearly

    def check(self, passing: Marked) -> object:
        caller, marks = passing.caller, passing.marks
        if not isinstance(caller, Agent):
            return GO
        if not passing.act.cost and passing.asked.op != _EXEC:
            for one in passing.handles:
                if one is not None and one.limited:
                    break
            else:  # most calls
                return GO
        amounts = _amounts(passing)
        limited = [one for one in passing.handles if one is not None and one.limited]
        if marks.dry:
            self._ledger.require_room(self._ledger.chain(caller.id), {one: int(much) for one, much in amounts.items()})
            for handle in limited:
                _require_room(handle, {"count": 1, **_bytes(passing.act), **_of_handle(amounts)})
            return GO
        if limited:
            marks.charge = charges.reserve(limited, {**_bytes(passing.act), **_of_handle(amounts)})
            marks.puts += map(_row, marks.charge.chain)
        try:
            marks.held = self._ledger.reserve(caller.id, amounts) if amounts else None
        except BaseException:
            self.release(passing)
            raise
        return GO

    def grow(self, passing: Marked, more: Mapping[str, int]) -> None:
        """What has begun needs more than was reserved for it: all of that, or EBUDGET and nothing."""
        marks = passing.marks
        if marks.held:
            self._ledger.grow(marks.held, more)
        if marks.charge:
            try:
                marks.charge.grow(more)
            except EBUDGET:
                if marks.held:
                    self._ledger.shrink(marks.held, more)
                raise

    def rows(self, passing: Marked) -> list[Put]:
        """What the store must hold of capabilities that are charged for more by now."""
        charge = passing.marks.charge
        return list(map(_row, charge.chain)) if charge else []

    def is_limited(self, passing: Marked, resource: str) -> bool:
        """Whether anything that it is charged to has only so much of it."""
        held = passing.marks.held
        accounts = map(self._ledger.account, held.accounts) if held else ()
        return passing.marks.charge is not None or any(resource in one.limits for one in accounts)

    def release(self, passing: Marked, *, parks: bool = False) -> None:
        """The call parks, or is refused. What its intent has told of stays until the outcome."""
        marks = passing.marks
        if marks.charge:
            marks.charge.release(parks=parks)
            marks.charge = None
        if marks.held and not marks.held.intent:
            self._ledger.release(marks.held)
            marks.held = None

    def intent(self, passing: Marked) -> dict[str, Any]:
        """The `cost` of the intent, before it is put. Call `began` with its number."""
        held = passing.marks.held
        return held.cost if held else {}

    def began(self, passing: Marked) -> None:
        if passing.marks.held:
            self._ledger.began(passing.marks.held, passing.intent, passes=passing.act.door is not None)

    def needs_intent(self, passing: Marked) -> bool:
        """Whether even a pure call must be on disk before it happens, since it costs something."""
        held = passing.marks.held
        return held is not None and budget.needs_intent(held.amounts)

    def settle(self, passing: Marked, actual: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The `cost` of the outcome. None: it cost all that was reserved."""
        marks = passing.marks
        held, charge = marks.held, marks.charge
        marks.held = marks.charge = None
        if charge:
            charge.settle(_of_handle(actual) if actual is not None else {})
            marks.puts += map(_row, charge.chain)
            for crossing in charge.crossings:
                self._nearly(crossing)
        if held is None:
            return {}
        model = passing.act.facts.get("model")
        settled = self._ledger.settle(held, actual, **({"model": model} if model else {}))
        for alarm in settled.alarms:
            self._alarm(alarm)
        return settled.cost

    def forgo(self, passing: Marked) -> dict[str, Any]:
        """The `cost` of an outcome that says that nothing was done after all: nothing is charged."""
        marks = passing.marks
        held, charge = marks.held, marks.charge
        marks.held = marks.charge = None
        if charge:
            charge.release()
            marks.puts += map(_row, charge.chain)
        return self._ledger.settle(held, {}).cost if held else {}


def _row(handle: Handle) -> Put:
    """With what it has used. One that was revoked meanwhile is not brought back."""
    return gone(handle) if handle.revoked else kept(handle)


def _amounts(passing: Marked) -> dict[str, float]:
    cost = passing.act.cost
    return {"calls": 1, **cost} if passing.asked.op == _EXEC else dict(cost)


def _bytes(act: Act) -> dict[str, float]:
    """What a call moves, as far as it is known before."""
    size = act.facts.get("size")
    return {"bytes": size} if size is not None else {}


def _of_handle(amounts: Mapping[str, float]) -> dict[str, float]:
    """A capability's money is in dollars there."""
    scaled = {name: amount / budget.MICRO if name == "cost" else amount for name, amount in amounts.items()}
    return {name: amount for name, amount in scaled.items() if name in _COUNTED}


def _require_room(handle: Handle, amounts: Mapping[str, float]) -> None:
    for row, amount in amounts.items():
        left = charges.room([handle], row)
        if left is not None and amount * (budget.MICRO if row == "cost" else 1) > left:
            raise EBUDGET(f"budget.{row}", f"the capability that this needs has {left} left of {row}", row=row)


class ApprovalStep:
    """Step 6. `again` takes a call that waited: with an error that is its answer, without one through the gate from
    step 2 on. `asker` tells what an agent was started from."""

    def __init__(
        self,
        approvals: Approvals,
        again: Callable[[Any, AgentOSError | None], None],
        asker: Callable[[Agent], Asker] = lambda agent: Asker(agent.id, guest=agent.kind == "guest"),
    ) -> None:
        self._approvals, self._again, self._asker = approvals, again, asker

    def check(self, passing: Marked) -> object:
        caller, marks = passing.caller, passing.marks
        if not marks.questions and not passing.act.ask and not marks.approval:  # most calls
            return GO
        questions = _questions(passing)
        before, marks.approval = marks.approval, ""
        if not questions or not isinstance(caller, Agent):
            self._leave(before, passing, "nobody asks any more")
            return GO
        _require_whole(passing)
        handle = passing.handle.id if passing.handle else 0
        request = passing.asked.request
        asker, act = self._asker(caller), passing.act
        ask = Ask(asker, passing.asked.op, act.needs, request, marks.label, questions, handle, act.facts)
        if marks.dry:
            if self._approvals.stands(ask):
                return GO
            raise EAPPROVAL("approval.asks", f"a person would be asked: {questions[0].reason}", rule=questions[0].rule)
        met = self._approvals.meet(ask)
        if before and before != met.approval:
            self._leave(before, passing, "it asks something else now")
        marks.approval = met.approval
        if met.go:
            act.approval = met.approval
            return GO
        marks.wake = partial(self._again, passing)
        self._approvals.wait(met.approval, marks.wake)
        return PARK

    def rows(self, passing: Marked) -> list[Put]:
        """That the answer is used, for the entry that makes the act certain."""
        return self._approvals.rows(passing.marks.approval) if passing.marks.approval else []

    def refused(self, passing: Marked, error: AgentOSError) -> None:
        """The gate refused it on its way again, and whatever it waited for is moot."""
        self._leave(passing.marks.approval, passing, error.reason)

    def gave_up(self, passing: Marked) -> None:
        """Its caller wants no more of it."""
        self._leave(passing.marks.approval, passing, "its caller gave it up")

    def cut_off(self, passing: Marked) -> None:
        """What it rests on was revoked."""
        self._leave(passing.marks.approval, passing, "the capability was revoked")

    def abandoned(self, passing: Marked) -> None:
        """Its caller is gone, perhaps for a moment: the question stays, for the same call of the next life."""
        self._leave(passing.marks.approval, passing)

    def out_of_time(self, passing: Marked) -> AgentOSError:
        """The call's own deadline passed before anybody answered."""
        self.abandoned(passing)
        found = self._approvals.find(passing.marks.approval, waits=True)
        if found.state != "pending":
            return outcome(found)
        error = still_waiting(found)
        if passing.act.waits:
            error.detail |= passing.act.waits(found.id)
        return error

    def _leave(self, approval: str, passing: Marked, why: str = "") -> None:
        """Once: whoever has left a question open cannot end it afterwards."""
        wake, passing.marks.wake = passing.marks.wake, None
        if approval and wake:
            self._approvals.leave(approval, wake, why)


def _questions(passing: Marked) -> list[Question]:
    act = passing.act
    once = () if act.needs else ("once",)  # an answer can only stand for what has a name
    own = [Question("call", act.ask, scopes=once, deadline_s=act.ask_s)] if act.ask else []
    return [one for one in (*passing.marks.questions, *own) if one.rule not in act.approved]


def _require_whole(passing: Marked) -> None:
    """What is approved is what is done, so all of it must be there when the question is put."""
    door = passing.act.door
    if (door and door.stream) or getattr(passing.asked.request, "stream", False) is True:
        hint = "send it in one piece, or in several calls"
        raise EAPPROVAL("approval.stream", "a person must agree, and cannot to data that is yet to come", hint=hint)
