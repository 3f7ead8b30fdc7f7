"""Whether a call may be, as things stand now: what it rests on, the policy, the labels.

In: a call on its way. Out: what was found, on the call itself, or the refusal, raised. The gate asks this first, and
again after every wait; who has something under way asks whether it would still be allowed. Reserves nothing, records
nothing, never waits.
"""

from collections.abc import Collection, Sequence

from agent_os.abi.errors import EAPPROVAL, EPOLICY, AgentOSError
from agent_os.kernel.authority.handles import Handle
from agent_os.kernel.authority.ruling import Policies
from agent_os.kernel.calls import GO, Act, Asked, Need
from agent_os.kernel.passing import POLICY, Passing, Steps, fault, overtaken, quarantined, unclear
from agent_os.kernel.table import Agent
from agent_os.kernel.telling import NOTHING_SAID


class Weighing:
    def __init__(self, policies: Policies, steps: Steps) -> None:
        self._policies, self._steps = policies, steps

    def hold(self, passing: Passing) -> object:
        """Step 2: the handles that its needs rest on."""
        caller, act = passing.caller, passing.act
        if not act.needs or not isinstance(caller, Agent):
            return GO
        if act.door:
            passing.handles = act.door.find(caller.holdings)
            return GO
        passing.shared = False
        if len(act.needs) == 1:
            passing.handles = (_rests(passing, caller, act.needs),)
        else:
            passing.handles = [_rests(passing, caller, (need,)) for need in act.needs]
        return GO

    def confirm(self, passing: Passing) -> None:
        """After a wait, with nothing awaited between this and the deed. Raises what forbids it by now."""
        if self.has_changed(passing):
            self.look_again(passing)

    def has_changed(self, passing: Passing) -> bool:
        """Whether anything is different from what the call was weighed by. What is shared is not ours to watch, so it
        is always looked at."""
        caller = passing.caller
        if passing.version != self._policies.version or caller.quarantined:
            return True
        if not isinstance(caller, Agent):
            return False
        if passing.shared:
            return True
        clock = caller.holdings.clock
        return any(one is None or one.revoked or one.expired(clock) for one in passing.handles)

    def look_again(self, passing: Passing) -> None:
        """What was approved stays approved, but a new rule that asks is not answered by it."""
        before = {one.rule for one in passing.marks.questions}
        self.weigh(passing)
        _require_approved(passing, before)

    def weigh(self, passing: Passing) -> None:
        """Steps 2 to 4 once more."""
        if passing.caller.quarantined:
            raise quarantined()
        passing.marks.begin()
        passing.version = self._policies.version
        self.hold(passing)
        if self._steps.policy.check(passing) is not GO or self._steps.labels.check(passing) is not GO:
            raise unclear()

    def require_allowed(self, caller: Agent, op: int, act: Act, approved: Collection[str]) -> None:
        """Whether something may be done now that was allowed before an end of the kernel. `approved`: the rules to
        which a person said yes for it. Raises the refusal; changes nothing."""
        passing = Passing(caller, Asked(op, NOTHING_SAID), lambda body, error: None, act)
        passing.marks.dry = True
        self.weigh(passing)
        _require_approved(passing, approved)

    def forbids(self, passing: Passing) -> AgentOSError | None:
        """What the policy has against something under way, which stays as it is."""
        look = Passing(passing.caller, passing.asked, passing.answer, passing.act)
        look.marks.dry = True  # it counts for no rate, and what was answered of it stays so
        try:
            self._steps.policy.check(look)
        except EPOLICY as error:
            return overtaken(error)
        except Exception as bug:  # a step that breaks must not let anything go on
            return fault(POLICY, bug)
        return None


def _rests(passing: Passing, caller: Agent, need: Sequence[Need]) -> Handle | None:
    """What somebody shares is authority enough, and is charged to whoever does."""
    root, facts = caller.root, passing.act.facts
    if root and (lent := root.lent(need[0], facts)) is not None:
        passing.shared = True
        return lent[0] if lent else None
    return caller.holdings.find(need, passing.asked.cap, facts)


def _require_approved(passing: Passing, approved: Collection[str]) -> None:
    if new := [one for one in passing.marks.questions if one.rule not in approved]:
        raise EAPPROVAL("approval.changed", f"a person must be asked now: {new[0].reason}", rule=new[0].rule)
