"""No act without a valid approval, none twice: as a table of races, and over random interleavings with crashes."""

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test
from msgspec.msgpack import decode

from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EAGAIN, EAPPROVAL, ECONFLICT, EINVAL, EIO, ENOENT, EPERM, AgentOSError
from agent_os.drivers.store import Put
from agent_os.kernel.authority.answers import Approval, State
from agent_os.kernel.authority.approvals import APPROVALS, MOST_PENDING, STANDING, Approvals, Met
from agent_os.kernel.authority.labels import CLEAN, Label, untrusted
from agent_os.kernel.authority.questions import Ask, Asker, Question
from agent_os.kernel.calls import Need
from agent_os.kernel.journal import Draft
from kernel.authority.disk import Disk

MINUTE = 60.0


@dataclass(frozen=True)
class Somebody:
    id: str
    operator: bool = True


ANNA, BOB, AGENT = Somebody("local:1"), Somebody("local:2"), Somebody("default/a", operator=False)


class World:
    """A disk, a clock, and the approvals of one kernel after another."""

    def __init__(self, *, anybody: bool = True) -> None:
        self.disk, self.now, self.anybody = Disk(), 1000.0, anybody
        self.told: list[tuple[str, State]] = []
        self.approvals = self.boot()

    def boot(self) -> Approvals:
        approvals = Approvals(
            self.disk,
            notify=lambda one: self.told.append((one.id, one.state)),
            wall_ns=lambda: int(self.now * 1e9),
            mono=lambda: self.now,
            names=lambda person: frozenset({person, {"local:1": "user:anna"}.get(person, "")}),
            anybody=self.anybody,
        )
        facts = self.disk.facts
        last = facts.get("table", {}).get("approval")
        approvals.load(facts.get(APPROVALS, {}).items(), facts.get(STANDING, {}).items(), last)
        return approvals

    def restart(self) -> None:
        self.disk.crash()
        self.approvals = self.boot()

    def ask(self, *rules: str, agent: str = "default/a", args: Any = None, **more: Any) -> Ask:
        questions = [Question(name, f"{name} asks") for name in rules or ("pay",)]
        asker = Asker(agent, "program-1")
        facts: dict[str, Any] = {"asker": asker, "needs": (Need("tool", "call", "pay"),), "label": CLEAN, **more}
        facts.setdefault("questions", questions)
        return Ask(op=5, args=args or {"amount": 1}, **facts)

    def pending(self, ask: Ask | None = None) -> tuple[Approval, list[AgentOSError | None]]:
        """A question on disk, and what the call that waits for it is told."""
        heard: list[AgentOSError | None] = []
        met = self.approvals.meet(ask or self.ask())
        assert not met.go
        self.approvals.wait(met.approval, heard.append)
        self.disk.commit()
        return self.approvals.find(met.approval), heard

    def decide(self, one: Approval, who: Somebody = ANNA, *, approve: bool = True, **more: Any) -> Approval:
        decided = self.approvals.decide(one.id, who, approve=approve, **{"digest": one.digest, **more})
        self.disk.commit()
        return decided

    def act(self, met: Met) -> None:
        """The intent of a call that may go on, and with it the last change of its approval."""
        assert met.go
        self.disk.put(Draft("default/a", Kind.INTENT), sync=True, puts=self.approvals.rows(met.approval))
        self.disk.commit()

    def state(self, one: Approval) -> State:
        return self.approvals.find(one.id).state

    def stored(self, one: Approval) -> str:
        return decode(self.disk.facts[APPROVALS][one.id])["state"]


# The way it goes.


def test_a_question_is_on_disk_before_anybody_sees_it() -> None:
    world = World()
    met = world.approvals.meet(world.ask())
    assert world.approvals.pending() == []
    assert world.approvals.every() == []
    assert world.told == []
    with pytest.raises(ENOENT):
        world.approvals.decide(met.approval, ANNA, approve=True, digest=world.ask().digest())
    world.disk.commit()
    (one,) = world.approvals.pending()
    assert one.id == "q-1"
    assert one.created_seq == 1
    assert (one.rules, one.reasons, one.wants) == (["pay"], ["pay asks"], "tool.call pay")
    assert one.origins == {"amount": ["trusted"]}
    assert world.told == [("q-1", State.PENDING)]
    assert world.disk.drafts[0].verdict == Verdict.ASK


def test_an_answer_is_on_disk_before_anybody_acts_on_it() -> None:
    world = World()
    one, heard = world.pending()
    world.approvals.decide(one.id, ANNA, approve=True, digest=one.digest)
    assert heard == []
    assert world.approvals.meet(world.ask()) == Met(False, "q-1")  # another call of the same kind waits as well
    world.disk.commit()
    assert heard == [None]
    world.act(world.approvals.meet(world.ask()))
    assert world.stored(one) == "used"
    entry = world.disk.of(Kind.APPROVAL)[-1]
    assert (entry.agent, entry.verdict) == ("local:1", Verdict.ALLOW)


def test_the_approval_is_for_one_act() -> None:
    world = World()
    one, _ = world.pending()
    world.decide(one)
    world.act(world.approvals.meet(world.ask()))
    again = world.approvals.meet(world.ask())
    assert (again.go, again.approval) == (False, "q-2")


def test_a_refusal_and_an_expiry_are_told_apart() -> None:
    world = World()
    one, heard = world.pending()
    world.decide(one, approve=False, note="too dear")
    assert isinstance(heard[0], EAPPROVAL)
    assert heard[0].detail == {"outcome": "refused", "approval": "q-1", "by": "local:1"}
    assert "too dear" in heard[0].reason
    two, heard = world.pending(world.ask(args={"amount": 2}))
    assert world.approvals.next_due() == 1000 + 15 * MINUTE
    world.now += 15 * MINUTE
    world.approvals.tick()
    world.disk.commit()
    assert isinstance(heard[0], EAPPROVAL)
    assert heard[0].detail["outcome"] == "expired"
    assert heard[0].detail["by"] == ""
    assert world.state(two) is State.EXPIRED
    assert world.approvals.next_due() is None


def test_equal_calls_are_one_question_and_one_answer_is_one_act() -> None:
    world = World()
    one, heard = world.pending()
    same, also_heard = world.pending()
    assert same.id == one.id
    assert len(world.approvals.pending()) == 1
    world.decide(one)
    assert heard == also_heard == [None]
    assert world.approvals.meet(world.ask()).go
    assert world.approvals.meet(world.ask()) == Met(False, "q-2")


def test_a_refusal_stands_for_as_long_as_the_question_would_have() -> None:
    world = World()
    one, _ = world.pending()
    world.decide(one, approve=False)
    with pytest.raises(EAPPROVAL, match="refused"):
        world.approvals.meet(world.ask())
    assert world.approvals.meet(world.ask(args={"amount": 2})).approval == "q-2"
    world.now += 15 * MINUTE
    assert world.approvals.meet(world.ask()).approval == "q-3"


def test_nobody_to_ask_means_no_at_once() -> None:
    world = World(anybody=False)
    with pytest.raises(EAPPROVAL, match="nobody can be asked"):
        world.approvals.meet(world.ask())
    assert not world.disk.waiting


def test_an_agent_can_leave_only_so_many_questions_open() -> None:
    world = World()
    for number in range(MOST_PENDING):
        world.approvals.meet(world.ask(args={"amount": number + 1}))
    with pytest.raises(EAGAIN):
        world.approvals.meet(world.ask(args={"amount": 0.5}))
    world.approvals.meet(world.ask(agent="default/b"))


def test_a_full_disk_leaves_no_question_and_no_answer() -> None:
    world = World()
    world.disk.full = True
    with pytest.raises(EIO):
        world.approvals.meet(world.ask())
    world.disk.full = False
    one, heard = world.pending()
    world.disk.full = True
    with pytest.raises(EIO):
        world.approvals.decide(one.id, ANNA, approve=True, digest=one.digest)
    assert world.state(one) is State.PENDING
    world.disk.full = False
    world.decide(one)
    assert heard == [None]


# Races, as the specification lists them. Each says who is refused and that no act follows.


def after_expiry(world: World, one: Approval) -> None:
    world.now += 15 * MINUTE
    with pytest.raises(EAPPROVAL, match="expired"):
        world.decide(one)
    world.disk.commit()


def after_a_refusal(world: World, one: Approval) -> None:
    world.decide(one, BOB, approve=False)
    with pytest.raises(ECONFLICT, match="denied by local:2 already"):
        world.decide(one)


def with_changed_arguments(world: World, one: Approval) -> None:
    other = world.ask(args={"amount": 1_000_000})
    with pytest.raises(ECONFLICT, match="something else"):
        world.decide(one, digest=other.digest())


def after_the_capability_was_revoked(world: World, one: Approval) -> None:
    world.approvals.revoked([one.handle])
    with pytest.raises(ECONFLICT, match="cancelled"):
        world.decide(one)


def after_the_agent_ended(world: World, one: Approval) -> None:
    world.approvals.agent_ended(one.agent)
    with pytest.raises(ECONFLICT, match="cancelled"):
        world.decide(one)


def by_an_agent(world: World, one: Approval) -> None:
    with pytest.raises(EPERM):
        world.decide(one, AGENT)
    with pytest.raises(EPERM):
        world.decide(one, Somebody("local:1", operator=False))


def for_a_scope_that_is_not_offered(world: World, one: Approval) -> None:
    with pytest.raises(EINVAL):
        world.decide(one, scope="for ever")


def of_a_question_that_never_was(world: World, one: Approval) -> None:
    for name in ("q-2", "q-0", "", "q-1\0", "../q-1"):
        with pytest.raises(ENOENT):
            world.approvals.decide(name, ANNA, approve=True, digest=one.digest)


def after_its_caller_gave_up(world: World, one: Approval) -> None:
    heard: list[AgentOSError | None] = []
    for wake in list(world.approvals._waiting[one.id]):  # pyright: ignore[reportPrivateUsage]
        world.approvals.leave(one.id, wake, "given up")
    assert heard == []
    with pytest.raises(ECONFLICT, match="cancelled"):
        world.decide(one)


RACES = [
    after_expiry,
    after_a_refusal,
    with_changed_arguments,
    after_the_capability_was_revoked,
    after_the_agent_ended,
    by_an_agent,
    for_a_scope_that_is_not_offered,
    of_a_question_that_never_was,
    after_its_caller_gave_up,
]


@pytest.mark.parametrize("race", RACES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("restarted", [False, True], ids=["", "after a crash"])
def test_an_approval_that_is_not_valid_lets_nothing_through(race: Any, restarted: bool) -> None:
    world = World()
    one, heard = world.pending(world.ask(handle=7))
    if restarted and race is not after_its_caller_gave_up:
        world.restart()
    race(world, one)
    world.disk.commit()
    assert None not in heard
    assert world.state(one) is not State.APPROVED
    try:
        met = world.approvals.meet(world.ask(handle=7))
    except EAPPROVAL:
        return
    assert not met.go


def test_two_doors_at_once_are_one_answer() -> None:
    world = World()
    one, heard = world.pending()
    world.approvals.decide(one.id, ANNA, approve=True, digest=one.digest, via="control")
    for approve in (True, False):
        with pytest.raises(ECONFLICT, match="approved by local:1 already"):
            world.approvals.decide(one.id, BOB, approve=approve, digest=one.digest, via="gateway")
    world.disk.commit()
    assert heard == [None]
    assert (world.approvals.find(one.id).decided_by, world.approvals.find(one.id).via) == ("local:1", "control")


def test_only_whom_the_rule_names_may_answer() -> None:
    world = World()
    one, heard = world.pending(world.ask(questions=[Question("pay", "x", approvers=["user:anna"])]))
    with pytest.raises(EPERM, match="user:anna to decide"):
        world.decide(one, BOB)
    world.decide(one, ANNA)
    assert heard == [None]


def test_an_approval_for_one_rule_does_not_answer_another() -> None:
    world = World()
    one, _ = world.pending(world.ask("pay"))
    world.decide(one)
    met = world.approvals.meet(world.ask("pay", "at-night"))
    assert (met.go, met.approval) == (False, "q-2")
    world.disk.commit()
    assert world.state(one) is State.VOID
    assert world.approvals.find("q-2").rules == ["at-night", "pay"]


def test_a_pending_question_of_too_few_rules_is_put_anew() -> None:
    world = World()
    one, heard = world.pending(world.ask("pay"))
    assert world.approvals.meet(world.ask("pay", "at-night")).approval == "q-2"
    world.disk.commit()
    assert world.state(one) is State.CANCELLED
    assert isinstance(heard[0], EAPPROVAL)


def test_an_approved_call_that_the_gate_now_refuses_makes_its_approval_void() -> None:
    world = World()
    one, heard = world.pending()
    world.decide(one)
    world.approvals.leave(one.id, heard.append, "the policy forbids it")
    world.disk.commit()
    assert world.stored(one) == "void"
    assert not world.approvals.meet(world.ask()).go


def test_an_approval_that_nobody_takes_up_in_time_is_void() -> None:
    world = World()
    one, _ = world.pending()
    world.now += 10 * MINUTE
    world.decide(one)
    world.now += 14 * MINUTE  # beyond the question's deadline, within that of its answer
    world.approvals.tick()
    assert world.state(one) is State.APPROVED
    world.now += MINUTE
    assert not world.approvals.meet(world.ask()).go
    assert world.state(one) is State.VOID


# Policy reload.


def test_after_a_reload_every_waiting_call_passes_the_gate_again() -> None:
    world = World()
    one, _ = world.pending()
    met = world.approvals.meet(world.ask())
    regated: list[str] = []

    def stays(error: AgentOSError | None) -> None:
        regated.append("stays")
        world.approvals.wait(world.approvals.meet(world.ask()).approval, stays)

    world.approvals.wait(met.approval, stays)
    world.approvals.look_again()
    world.disk.commit()
    assert regated == ["stays"]
    assert world.state(one) is State.PENDING
    world.decide(one)
    assert regated == ["stays", "stays"]


def test_a_question_that_the_new_policy_forbids_is_cancelled() -> None:
    world = World()
    one, heard = world.pending()
    world.approvals.look_again()  # the call is refused, and waits no more
    world.disk.commit()
    assert heard == [None]
    assert world.state(one) is State.CANCELLED
    with pytest.raises(ECONFLICT):
        world.decide(one)


# Scopes.


def test_a_session_lasts_until_the_agent_ends() -> None:
    world = World()
    one, _ = world.pending()
    world.decide(one, scope="session")
    world.act(world.approvals.meet(world.ask()))
    world.act(world.approvals.meet(world.ask(args={"amount": 99})))
    world.restart()
    world.act(world.approvals.meet(world.ask(args={"amount": 98})))
    (stands,) = world.approvals.standing()
    assert (stands.scope, stands.by, stands.uses, stands.capability) == ("session", "local:1", 3, one.capability)
    world.approvals.agent_ended("default/a")
    world.disk.commit()
    assert not world.approvals.meet(world.ask(args={"amount": 97})).go
    world.restart()
    assert world.approvals.standing() == []


@pytest.mark.parametrize(
    ("change", "go"),
    [
        ({}, True),
        ({"args": {"amount": 5}}, True),
        ({"asker": Asker("default/a", "program-2")}, False),  # a changed agent is asked about again
        ({"asker": Asker("default/b", "program-1")}, False),
        ({"needs": (Need("tool", "call", "pay"), Need("tool", "call", "mail"))}, False),
        ({"needs": (Need("tool", "call", "payments"),)}, False),
        ({"needs": ()}, False),
        ({"label": untrusted("x", "customer")}, False),  # it carries more than when it was approved
        ({"label": Label("untrusted", frozenset({"x"}))}, True),
        ({"questions": [Question("pay", "x"), Question("another", "y")]}, False),
    ],
)
def test_always_is_for_this_program_this_capability_these_rules_and_classes(change: dict[str, Any], go: bool) -> None:
    world = World()
    one, _ = world.pending()
    world.decide(one, scope="always")
    world.act(world.approvals.meet(world.ask()))
    world.approvals.agent_ended("default/a")
    world.disk.commit()
    world.restart()
    assert world.approvals.meet(world.ask(**change)).go is go


def test_a_standing_answer_counts_from_the_moment_it_is_on_disk_until_it_is_taken_back() -> None:
    world = World()
    one, _ = world.pending()
    world.approvals.decide(one.id, ANNA, approve=True, digest=one.digest, scope="always")
    assert world.approvals.standing() == []
    assert not world.approvals.meet(world.ask(args={"amount": 9})).go
    world.disk.commit()
    assert world.approvals.meet(world.ask(args={"amount": 8})).go
    world.approvals.take_back(one.id, "local:2")
    assert not world.approvals.meet(world.ask(args={"amount": 7})).go
    world.disk.commit()
    assert world.disk.of(Kind.REVOKE)[0].agent == "local:2"
    with pytest.raises(ENOENT):
        world.approvals.take_back(one.id, "local:2")
    world.restart()
    assert world.approvals.standing() == []


def test_a_session_that_was_over_before_its_answer_was_on_disk_never_stands() -> None:
    world = World()
    one, _ = world.pending()
    world.approvals.decide(one.id, ANNA, approve=True, digest=one.digest, scope="session")
    world.approvals.agent_ended("default/a")
    world.disk.commit()
    assert world.approvals.standing() == []
    world.restart()
    assert world.approvals.standing() == []


# Restarts.


def test_a_question_survives_a_crash_and_is_answered_once() -> None:
    world = World()
    one, lost = world.pending()
    world.restart()
    assert [known.id for known in world.approvals.pending()] == [one.id]
    again, heard = world.pending()
    assert again.id == one.id
    world.decide(one)
    assert (lost, heard) == ([], [None])
    world.act(world.approvals.meet(world.ask()))
    world.restart()
    assert not world.approvals.meet(world.ask()).go


def test_an_answer_survives_a_crash_and_an_unwritten_one_was_never_given() -> None:
    world = World()
    one, _ = world.pending()
    world.approvals.decide(one.id, ANNA, approve=True, digest=one.digest)
    world.restart()
    assert world.state(one) is State.PENDING
    world.decide(one)
    world.restart()
    met = world.approvals.meet(world.ask())
    assert met.go
    world.restart()  # before the intent was on disk: nothing happened
    world.act(world.approvals.meet(world.ask()))
    assert world.stored(one) == "used"


def test_a_number_never_comes_back() -> None:
    world = World()
    one, _ = world.pending()
    world.decide(one, approve=False)
    world.now += 25 * 3600
    world.approvals.tick()
    world.disk.commit()
    assert world.approvals.every() == []
    world.restart()
    assert world.disk.facts[APPROVALS] == {}
    assert world.approvals.meet(world.ask()).approval == "q-2"


def test_only_the_wall_clock_counts_over_a_restart() -> None:
    world = World()
    one, _ = world.pending()
    world.now += 14 * MINUTE
    world.restart()
    assert world.approvals.next_due() == 1000 + 15 * MINUTE
    world.now += MINUTE
    assert world.approvals.pending() == []
    with pytest.raises(EAPPROVAL, match="expired"):
        world.decide(one)


def test_whoever_watches_hears_of_the_answer_and_keeps_no_question_open() -> None:
    world = World()
    one, heard = world.pending()
    told: list[int] = []
    world.approvals.watch(one.id, lambda: told.append(1))
    leave = world.approvals.watch(one.id, lambda: told.append(2))
    leave()
    leave()
    world.approvals.leave(one.id, heard.append, "given up")
    world.disk.commit()
    assert told == [1]
    assert world.state(one) is State.CANCELLED


# Everything at once.

AGENTS = ["default/a", "default/b"]
RULES = [["pay"], ["pay"], ["pay", "night"], ["night"], []]


@dataclass(eq=False)
class Call:
    agent: str
    amount: int
    state: str = "waits"
    approval: str = ""
    wake: Any = None


class Interleavings(RuleBasedStateMachine):
    """Agents, people at two doors, a policy that changes, a disk that is slow, and a kernel that dies. The outside
    world counts the acts; what the disk holds of approvals is the only truth to judge them by."""

    acted: ClassVar[list[int]] = []  # how often each of them did

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.calls: list[Call] = []
        self.rules: list[str] = ["pay"]
        self.forbidden = False
        self.acts: list[tuple[str, str, frozenset[str]]] = []  # digest, approval, rules in force at the gate

    def asks(self, call: Call) -> Ask:
        return self.world.ask(*self.rules or ("unused",), agent=call.agent, args={"amount": call.amount}, handle=1)

    def gate(self, call: Call, error: AgentOSError | None = None) -> None:
        """Steps 2 to 7 of a call, for the first time or again."""
        approvals = self.world.approvals
        if error is not None or self.forbidden:
            call.state = "over"
            if call.approval:
                approvals.leave(call.approval, call.wake, "refused")
            return
        if not self.rules:
            call.state = "over"  # nobody asks, so it is none of our business
            if call.approval:
                approvals.leave(call.approval, call.wake, "nobody asks")
            return
        try:
            met = approvals.meet(self.asks(call))
        except (EAPPROVAL, EAGAIN):
            call.state = "over"
            return
        call.approval = met.approval
        if not met.go:
            call.wake = lambda error: self.gate(call, error)
            approvals.wait(met.approval, call.wake)
            return
        call.state = "acting"
        digest, rules = self.asks(call).digest(), frozenset(self.rules)

        def act() -> None:  # only when the intent is on disk
            call.state = "over"
            self.acts.append((digest, met.approval, rules))

        intent = Draft(call.agent, Kind.INTENT, rule=met.approval)
        self.world.disk.put(
            intent, sync=True, puts=[*self.world.approvals.rows(met.approval), Put("acts", met.approval, b"")], done=act
        )

    @rule(agent=st.sampled_from(AGENTS), amount=st.integers(1, 2))
    def call(self, agent: str, amount: int) -> None:
        call = Call(agent, amount)
        self.calls.append(call)
        self.gate(call)

    @precondition(lambda self: self.world.approvals.pending())
    @rule(who=st.sampled_from([ANNA, BOB]), approve=st.sampled_from([True, True, True, False]))
    def answer(self, who: Somebody, approve: bool) -> None:
        one = self.world.approvals.pending()[0]
        self.world.approvals.decide(one.id, who, approve=approve, digest=one.digest)

    @precondition(lambda self: self.world.approvals.every())
    @rule(number=st.integers(0, 5), who=st.sampled_from([ANNA, BOB, AGENT]), wrong=st.booleans(), approve=st.booleans())
    def answer_anything(self, number: int, who: Somebody, wrong: bool, approve: bool) -> None:
        every = self.world.approvals.every()[-6:]
        one = every[number % len(every)]
        digest = "wrong" if wrong else one.digest
        try:
            self.world.approvals.decide(one.id, who, approve=approve, digest=digest)
        except (EAPPROVAL, ECONFLICT, EPERM):
            return
        assert who.operator
        assert not wrong

    @precondition(lambda self: self.world.disk.waiting)
    @rule(count=st.integers(1, 3))
    def commit(self, count: int) -> None:
        self.world.disk.commit(count)

    @precondition(lambda self: self.world.disk.waiting)
    @rule()
    def commit_all(self) -> None:
        self.world.disk.commit()

    @rule(again=st.booleans())
    def crash(self, again: bool) -> None:
        """What was not on disk is gone. The agents come again: with what they waited for, perhaps with all they did."""
        self.world.restart()
        lost, self.calls = self.calls, []
        for call in lost[-4:]:
            if again or call.state != "over":
                self.call(call.agent, call.amount)

    @rule(what=st.sampled_from(["tick", "revoke", "end", "a minute", "seven minutes", "a quarter", "reload"]))
    def disturb(self, what: str) -> None:
        approvals = self.world.approvals
        if what == "tick":
            approvals.tick()
        elif what == "revoke":
            approvals.revoked([1])
        elif what == "end":
            approvals.agent_ended(AGENTS[0])
            self.calls = [call for call in self.calls if call.agent != AGENTS[0]]
        elif what == "reload":
            approvals.look_again()
        else:
            self.world.now += {"a minute": 1, "seven minutes": 7, "a quarter": 15}[what] * MINUTE

    @rule(rules=st.sampled_from(RULES), forbidden=st.sampled_from([False, False, False, True]))
    def reload(self, rules: list[str], forbidden: bool) -> None:
        self.rules, self.forbidden = rules, forbidden
        self.world.approvals.look_again()

    @precondition(lambda self: any(call.state == "waits" for call in self.calls))
    @rule(data=st.data(), for_good=st.booleans())
    def give_up(self, data: st.DataObject, for_good: bool) -> None:
        waiting = [call for call in self.calls if call.state == "waits"]
        call = data.draw(st.sampled_from(waiting))
        call.state = "over"
        self.world.approvals.leave(call.approval, call.wake, "given up" if for_good else "")

    @invariant()
    def no_act_without_a_valid_approval_and_none_twice(self) -> None:
        answered = {
            said["id"]: (draft, said)
            for draft in self.world.disk.of(Kind.APPROVAL)
            if (said := decode(draft.body or b"\x80")).get("state") == "approved"
        }
        for digest, approval, rules in self.acts:
            draft, said = answered[approval]
            assert said["digest"] == digest
            assert draft.agent in (ANNA.id, BOB.id)
            assert rules <= set(draft.rule.split(","))
        used = [approval for _, approval, _ in self.acts]
        assert len(used) == len(set(used))

    @invariant()
    def nobody_waits_for_an_answer_that_is_there(self) -> None:
        for call in self.calls:
            if call.state == "waits" and not self.world.disk.waiting:
                assert self.world.approvals.find(call.approval).state is State.PENDING

    def teardown(self) -> None:
        self.acted.append(len(self.acts))


@pytest.mark.long
def test_no_interleaving_acts_without_a_valid_approval_or_twice() -> None:
    class Counted(Interleavings):
        acted: ClassVar[list[int]] = []

    few = settings(
        max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    run_state_machine_as_test(Counted, settings=few)  # pyright: ignore[reportUnknownMemberType]
    assert sum(Counted.acted) > 5, "a world in which hardly anything is ever approved proves nothing"
