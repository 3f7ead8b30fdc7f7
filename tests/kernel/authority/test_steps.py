"""The gate's steps 4 to 6, called as the gate calls them: what each takes, gives back, asks and lets through."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAPPROVAL, EBUDGET, ELABEL, AgentOSError
from agent_os.abi.syscalls import BY_NAME, BY_REQUEST, Body, Effect, Exec, Read, Write
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.answers import State
from agent_os.kernel.authority.approvals import APPROVALS, Approvals
from agent_os.kernel.authority.budget import Alarm, Ledger, rebuilt
from agent_os.kernel.authority.flows import RULE_OF_TWO, FlowRules
from agent_os.kernel.authority.handles import Handle, Holdings
from agent_os.kernel.authority.labels import CLEAN, PRIVATE, Labels, of_mount, untrusted
from agent_os.kernel.authority.marks import Marks
from agent_os.kernel.authority.questions import Asker, Question
from agent_os.kernel.authority.steps import ApprovalStep, BudgetStep, LabelStep
from agent_os.kernel.calls import GO, PARK, Act, Asked, Done, Need, Way
from agent_os.kernel.journal import Draft
from agent_os.kernel.table import Actor, Agent, Caller
from kernel.authority.disk import Disk

PAY = (Need("tool", "call", "pay"),)
ANNA = Actor("local:1")


@dataclass(eq=False)
class Passing:
    caller: Caller
    asked: Asked
    act: Act
    handle: Handle | None = None
    intent: int = 0
    marks: Marks = field(default_factory=Marks)

    @property
    def handles(self) -> list[Handle | None]:
        return [self.handle]


class Gate:
    """Steps 4 to 7, in the gate's order and with its duties: park, give back, come again, record."""

    def __init__(self, *, rules: FlowRules | None = None) -> None:
        self.disk, self.now = Disk(), 0.0
        self.agent = Agent("default/a", "native", 1, 1, "S2", None, Holdings("default/a"))
        self.labels, self.ledger, self.alarms = Labels(), Ledger(), list[Alarm]()
        self.labels.begin(self.agent.id, CLEAN)
        self.approvals = Approvals(self.disk, wall_ns=lambda: int(self.now * 1e9), mono=lambda: self.now)
        self.label_step = LabelStep(self.labels, lambda agent: rules or FlowRules(), lambda agent: {"api.example.com"})
        self.budget_step = BudgetStep(self.ledger, self.alarms.append)
        self.approval_step = ApprovalStep(self.approvals, self.again, lambda agent: Asker(agent.id, "program"))
        self.policy: list[Question] = []
        self.done: list[Passing] = []
        self.refused: list[AgentOSError] = []

    def passing(
        self, request: Body | None = None, *, needs: tuple[Need, ...] = PAY, cost: Mapping[str, float] | None = None,
        ask: str = "", caller: Caller | None = None, effect: Effect = Effect.OPAQUE, handle: Handle | None = None,
    ) -> Passing:  # fmt: skip
        request = request or Exec(tool="pay", params={"amount": 5})
        asked = Asked(BY_REQUEST[type(request)].number, b"", request=request)
        act = Act(Done, needs, Way.EFFECT, effect, cost=cost or {}, ask=ask)
        return Passing(caller or self.agent, asked, act, handle)

    def enter(self, passing: Passing) -> object:
        try:
            passing.marks.begin()
            passing.marks.questions += self.policy
            assert self.label_step.check(passing) is GO
            assert self.budget_step.check(passing) is GO
            said = self.approval_step.check(passing)
        except AgentOSError as error:
            self.budget_step.release(passing)
            self.approval_step.refused(passing, error)
            self.refused.append(error)
            raise
        if said is PARK:
            self.budget_step.release(passing, parks=True)
            return said
        draft = Draft("default/a", Kind.INTENT, cost=self.budget_step.intent(passing))
        passing.intent = self.disk.put(
            draft,
            sync=True,
            puts=[*passing.marks.puts, *self.approval_step.rows(passing)],
            done=lambda: self.done.append(passing),
        )
        self.budget_step.began(passing)
        return said

    def again(self, passing: Any, error: AgentOSError | None) -> None:
        if error is not None:
            self.refused.append(error)
            return
        with suppress(AgentOSError):
            self.enter(passing)

    def decide(self, passing: Passing, *, approve: bool = True, scope: str = "once") -> None:
        one = self.approvals.find(passing.marks.approval)
        self.approvals.decide(one.id, ANNA, approve=approve, digest=one.digest, scope=scope)
        self.disk.commit()

    def spent(self) -> int:
        return self.ledger.account("default/a").used("cost")


# Labels.


def test_a_project_file_and_then_a_post_is_asked_about_with_an_empty_policy() -> None:
    gate = Gate()
    post = (Need("http", "post", "evil.com/x"),)
    assert gate.enter(gate.passing(needs=post)) is GO
    read = gate.passing(Read(path="/work/readme"), needs=(Need("file", "read", "/work/readme"),), effect=Effect.PURE)
    assert gate.enter(read) is GO
    puts = gate.label_step.take_in(read)
    assert [put.bucket for put in puts] == ["labels"]
    assert read.marks.label == untrusted("file:/work", PRIVATE)
    passing = gate.passing(needs=post)
    assert gate.enter(passing) is PARK
    gate.disk.commit()
    one = gate.approvals.find(passing.marks.approval)
    assert one.rules == [RULE_OF_TWO]
    assert one.origins["tool"] == ["untrusted", "from:file:/work", "class:private"]
    assert gate.enter(gate.passing(needs=(Need("http", "post", "api.example.com/x"),))) is GO  # named for this run


def test_a_born_reader_is_tainted_and_its_read_of_clean_memory_changes_nothing() -> None:
    gate = Gate()
    gate.labels.begin("default/a", CLEAN, [of_mount("/work")])
    read = gate.passing(Read(path="/mem/working/x"), needs=(Need("mem", "read", "/mem/working/x"),))
    gate.enter(read)
    assert gate.label_step.take_in(read, CLEAN) == []
    assert read.marks.label == of_mount("/work")


def test_a_write_tools_answer_taints() -> None:
    gate = Gate()
    passing = gate.passing()
    gate.enter(passing)
    gate.label_step.take_in(passing)
    assert gate.labels.of("default/a") == untrusted("tool:pay")


def test_what_may_go_nowhere_is_refused_before_anything_is_reserved_or_asked() -> None:
    gate = Gate()
    gate.labels.take_in("default/a", untrusted("x", "customer"))
    gate.policy = [Question("pay", "x")]
    with pytest.raises(ELABEL):
        gate.enter(gate.passing(cost={"cost": 5}))
    assert (gate.spent(), gate.disk.waiting) == (0, 0)


def test_a_person_carries_no_label_spends_nothing_and_is_not_asked() -> None:
    gate = Gate(rules=FlowRules())
    gate.policy = [Question("pay", "x")]
    passing = gate.passing(caller=Actor("local:0"), cost={"cost": 5})
    assert gate.enter(passing) is GO
    assert gate.label_step.take_in(passing) == []
    assert gate.spent() == 0


# Budget.


def test_the_upper_bound_is_reserved_and_settled_to_what_it_was() -> None:
    gate = Gate()
    passing = gate.passing(cost={"cost": 50})
    assert gate.enter(passing) is GO
    assert gate.budget_step.needs_intent(passing)
    gate.disk.commit()
    intent = gate.disk.drafts[0]
    assert intent.cost == {"on": ["default/a", "operator"], "held": {"calls": 1, "cost": 50}}
    assert gate.spent() == 50
    assert gate.budget_step.settle(passing, {"cost": 20, "calls": 1}) == {"spent": {"cost": 20, "calls": 1}}
    assert gate.spent() == 20
    assert gate.budget_step.settle(passing) == {}


def test_a_call_that_costs_nothing_leaves_nothing_on_the_record() -> None:
    gate = Gate()
    passing = gate.passing(Read(path="/mem/working/x"), needs=(Need("mem", "read", "/mem/working/x"),))
    assert gate.enter(passing) is GO
    assert not gate.budget_step.needs_intent(passing)
    assert gate.budget_step.intent(passing) == {}
    assert gate.budget_step.settle(passing) == {}
    assert rebuilt([]).state() == gate.ledger.state()


def test_an_exhausted_budget_refuses_and_asks_nobody() -> None:
    gate = Gate()
    gate.ledger.open("default/a", None, {"cost": 10})
    gate.policy = [Question("pay", "x")]
    with pytest.raises(EBUDGET):
        gate.enter(gate.passing(cost={"cost": 11}))
    assert gate.disk.waiting == 0


def test_four_fifths_raise_an_alarm() -> None:
    gate = Gate()
    gate.ledger.open("default/a", None, {"cost": 10})
    passing = gate.passing(cost={"cost": 8})
    gate.enter(passing)
    gate.budget_step.settle(passing)
    assert [(one.account, one.resource) for one in gate.alarms] == [("default/a", "cost")]


def test_a_limited_capability_is_charged_with_the_account_or_not_at_all() -> None:
    gate = Gate()
    gate.ledger.open("default/a", None, {"cost": 1_000_000})
    handle = gate.agent.holdings.grant(capability.parse("tool:pay:call{cost:3}"), "test")
    first = gate.passing(cost={"cost": 900_000}, handle=handle)
    gate.enter(first)
    assert handle.used["cost"] == 900_000
    with pytest.raises(EBUDGET) as caught:
        gate.enter(gate.passing(cost={"cost": 900_000}, handle=handle))
    assert caught.value.detail["account"] == "default/a"
    assert handle.used["cost"] == 900_000  # what the account refused was given back to the capability
    gate.budget_step.settle(first, {"cost": 100_000})
    assert handle.used["cost"] == 100_000
    gate.ledger.limit("default/a", {"cost": None})
    with pytest.raises(EBUDGET):
        gate.enter(gate.passing(cost={"cost": 2_950_000}, handle=handle))
    assert gate.spent() == 100_000


# Approval.


def test_a_parked_call_holds_no_money_and_takes_it_again_when_it_goes_on() -> None:
    gate = Gate()
    gate.ledger.open("default/a", None, {"cost": 50})
    passing = gate.passing(cost={"cost": 50}, ask="it is dear")
    assert gate.enter(passing) is PARK
    assert gate.spent() == 0
    gate.disk.commit()
    gate.decide(passing)
    assert gate.spent() == 50
    assert gate.done == [passing]
    assert gate.disk.facts[APPROVALS]
    assert gate.approvals.find(passing.marks.approval).state is State.USED


def test_money_that_another_call_spent_meanwhile_is_not_there_and_the_approval_is_void() -> None:
    gate = Gate()
    gate.ledger.open("default/a", None, {"cost": 50})
    passing = gate.passing(cost={"cost": 50}, ask="it is dear")
    gate.enter(passing)
    gate.disk.commit()
    gate.enter(gate.passing(Exec(tool="pay", params={"amount": 1}), cost={"cost": 10}))
    gate.decide(passing)
    gate.disk.commit()
    assert isinstance(gate.refused[0], EBUDGET)
    assert gate.approvals.find("q-1").state is State.VOID
    assert passing not in gate.done


def test_a_refusal_reaches_the_call_and_nothing_is_held() -> None:
    gate = Gate()
    passing = gate.passing(cost={"cost": 5}, ask="it is dear")
    gate.enter(passing)
    gate.disk.commit()
    gate.decide(passing, approve=False)
    assert isinstance(gate.refused[0], EAPPROVAL)
    assert gate.done == []
    assert gate.spent() == 0


def test_a_rule_that_came_after_the_question_is_asked_anew() -> None:
    gate = Gate()
    gate.policy = [Question("pay", "x")]
    passing = gate.passing()
    gate.enter(passing)
    gate.disk.commit()
    gate.policy = [Question("pay", "x"), Question("at-night", "y")]
    gate.decide(passing)
    assert gate.done == []
    assert passing.marks.approval == "q-2"
    gate.decide(passing)
    assert gate.done == [passing]


def test_a_call_that_nobody_asks_about_any_more_goes_on_and_its_question_ends() -> None:
    gate = Gate()
    gate.policy = [Question("pay", "x")]
    passing = gate.passing()
    gate.enter(passing)
    gate.disk.commit()
    gate.policy = []
    gate.approvals.look_again()
    gate.disk.commit()
    assert gate.done == [passing]
    assert gate.approvals.find("q-1").state is State.CANCELLED


def test_two_like_calls_are_one_question_and_one_act_each() -> None:
    gate = Gate()
    gate.policy = [Question("pay", "x")]
    one, two = gate.passing(), gate.passing()
    assert gate.enter(one) is gate.enter(two) is PARK
    gate.disk.commit()
    gate.decide(one)
    assert gate.done == [one]
    assert two.marks.approval == "q-2"


def test_who_gives_up_takes_the_question_along_and_who_merely_died_does_not() -> None:
    gate = Gate()
    gate.policy = [Question("pay", "x")]
    one = gate.passing()
    gate.enter(one)
    gate.disk.commit()
    gate.approval_step.abandoned(one)
    gate.disk.commit()
    assert gate.approvals.find("q-1").state is State.PENDING
    again = gate.passing()
    gate.enter(again)
    assert again.marks.approval == "q-1"
    gate.approval_step.gave_up(again)
    gate.disk.commit()
    assert gate.approvals.find("q-1").state is State.CANCELLED
    assert gate.done == []


def test_a_call_out_of_time_is_told_the_question_and_takes_the_answer_up_later() -> None:
    gate = Gate()
    gate.policy = [Question("pay", "x")]
    one = gate.passing()
    gate.enter(one)
    gate.disk.commit()
    error = gate.approval_step.out_of_time(one)
    assert (error.code, error.detail["approval"]) == ("approval.waiting", "q-1")
    gate.approval_step.refused(one, error)  # which is how the gate tells the call; the question stays
    gate.decide(one)
    assert gate.done == []
    later = gate.passing()
    assert gate.enter(later) is GO
    gate.disk.commit()
    assert gate.done == [later]


def test_a_dry_call_takes_nothing_and_says_that_it_would_be_asked() -> None:
    gate = Gate()
    gate.ledger.open("default/a", None, {"cost": 10})
    passing = gate.passing(cost={"cost": 5}, ask="it is dear")
    passing.marks.dry = True
    with pytest.raises(EAPPROVAL, match="would be asked"):
        gate.enter(passing)
    dear = gate.passing(cost={"cost": 11})
    dear.marks.dry = True
    with pytest.raises(EBUDGET):
        gate.enter(dear)
    handle = gate.agent.holdings.grant(capability.parse("tool:pay:call{count:0}"), "test")
    limited = gate.passing(handle=handle)
    limited.marks.dry = True
    with pytest.raises(EBUDGET):
        gate.enter(limited)
    assert (gate.spent(), gate.disk.waiting, handle.used) == (0, 0, {})


def test_data_that_is_yet_to_come_cannot_be_approved() -> None:
    gate = Gate()
    write = gate.passing(Write(path="/work/x", stream=True), needs=(Need("file", "write", "/work/x"),), ask="why not")
    with pytest.raises(EAPPROVAL, match="yet to come"):
        gate.enter(write)
    whole = gate.passing(Write(path="/work/x", data=b"y"), needs=(Need("file", "write", "/work/x"),), ask="why not")
    assert gate.enter(whole) is PARK


def test_the_number_of_tool_calls_is_the_tables() -> None:
    """Calls are counted by this number."""
    assert BY_NAME["SYS_EXEC"].number == 5


def test_what_grows_grows_at_the_accounts_and_at_the_capability_or_at_neither() -> None:
    gate = Gate()
    handle = gate.agent.holdings.grant(capability.parse("http:a.test:request{bytes:100}"), "operator")
    gate.ledger.open(gate.agent.id, None, {"bytes": 1000})
    passing = gate.passing(needs=(), cost={"bytes": 10}, handle=handle)
    assert gate.budget_step.check(passing) is GO
    gate.budget_step.grow(passing, {"bytes": 90})
    with pytest.raises(EBUDGET):
        gate.budget_step.grow(passing, {"bytes": 1})
    assert (handle.used["bytes"], gate.ledger.account(gate.agent.id).held["bytes"]) == (100, 100)
    gate.budget_step.release(passing)
    assert (handle.used["bytes"], gate.ledger.account(gate.agent.id).held["bytes"]) == (0, 0)
