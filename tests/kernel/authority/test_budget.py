"""Nothing is overspent, at any account; what the journal holds is enough to count again."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import EBUDGET, EINVAL
from agent_os.kernel.authority.budget import (
    MICRO,
    OPERATOR,
    Held,
    Ledger,
    Spending,
    needs_intent,
    rebuilt,
    shown,
    warned,
)

PARENT, CHILD = "default/parent", "default/child"


class Record:
    """The journal, as far as budgets see it."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def put(self, kind: Kind, cost: dict[str, Any], ref: int = 0, agent: str = CHILD, wall_ns: int = 0) -> int:
        seq = len(self.entries) + 1
        if kind == Kind.BUDGET and not cost:
            return 0
        self.entries.append(Entry(seq, agent, seq, 1, 0, wall_ns, int(kind), ref=ref, cost=cost))
        return seq


def family(limit: int, resource: str = "tokens") -> Ledger:
    ledger = Ledger()
    ledger.open(PARENT, None, {resource: limit})
    ledger.open(CHILD, PARENT)
    return ledger


def test_a_reservation_counts_at_everybody_above() -> None:
    ledger = family(100)
    held = ledger.reserve(CHILD, {"tokens": 60})
    assert held.accounts == (CHILD, PARENT, OPERATOR)
    assert [ledger.account(name).used("tokens") for name in held.accounts] == [60, 60, 60]
    ledger.settle(held, {"tokens": 10})
    assert [ledger.account(name).used("tokens") for name in held.accounts] == [10, 10, 10]


def test_the_exhausted_ancestor_is_named_and_nothing_is_charged() -> None:
    ledger = family(100)
    before = ledger.state()
    with pytest.raises(EBUDGET) as caught:
        ledger.reserve(CHILD, {"tokens": 101, "calls": 1})
    assert caught.value.detail["account"] == PARENT
    assert caught.value.detail["resource"] == "tokens"
    assert "parent has 100 tokens left of 100 tokens" in caught.value.reason
    assert ledger.state() == before


def test_a_limit_is_inclusive_and_zero_means_zero() -> None:
    ledger = family(100)
    ledger.reserve(CHILD, {"tokens": 100})
    ledger.reserve(CHILD, {"tokens": 0})
    with pytest.raises(EBUDGET):
        ledger.reserve(CHILD, {"tokens": 1})
    nothing = family(0)
    with pytest.raises(EBUDGET):
        nothing.reserve(CHILD, {"tokens": 1})


def test_ten_children_together_stop_at_their_parents_limit() -> None:
    ledger = Ledger()
    ledger.open(PARENT, None, {"cost": 1000})
    for number in range(10):
        ledger.open(f"default/child-{number}", PARENT, {"cost": 1000})
    for turn in range(100):
        child = f"default/child-{turn % 10}"
        if turn < 33:
            ledger.settle(ledger.reserve(child, {"cost": 30}), {"cost": 30})
        else:
            with pytest.raises(EBUDGET) as refused:
                ledger.reserve(child, {"cost": 30})
            assert refused.value.detail["account"] == PARENT
    assert ledger.account(PARENT).spent["cost"] == 990


def test_a_parked_call_holds_nothing() -> None:
    ledger = family(100)
    held = ledger.reserve(CHILD, {"tokens": 100})
    ledger.release(held)
    again = ledger.reserve(CHILD, {"tokens": 100})
    with pytest.raises(ValueError, match="once"):
        ledger.release(held)
    ledger.began(again, 7)
    with pytest.raises(ValueError, match="record"):
        ledger.release(again)


def test_a_reservation_ends_once() -> None:
    ledger = family(100)
    held = ledger.reserve(CHILD, {"tokens": 10})
    ledger.settle(held, {"tokens": 10})
    with pytest.raises(ValueError, match="once"):
        ledger.settle(held, {"tokens": 10})


def test_more_than_was_reserved_is_charged_as_far_as_there_is_room_and_the_rest_is_told() -> None:
    ledger = family(100)
    settled = ledger.settle(ledger.reserve(CHILD, {"tokens": 50}), {"tokens": 130})
    assert settled.cost["spent"] == {"tokens": 100}
    assert settled.cost["cut"] == {"tokens": 30}
    assert ledger.account(PARENT).spent["tokens"] == 100


def test_the_record_says_what_the_tightest_limit_leaves_of_what_was_spent() -> None:
    ledger = family(100)
    ledger.limit(CHILD, {"tokens": 80, "cost": 500})
    ledger.limit(OPERATOR, {"cost": 300})
    meanwhile = ledger.reserve(CHILD, {"tokens": 10})  # reserved counts as gone
    settled = ledger.settle(ledger.reserve(CHILD, {"tokens": 50, "cost": 100, "calls": 1}))
    assert settled.cost["left"] == {"tokens": 20, "cost": 200}  # of calls there is no limit
    ledger.release(meanwhile)
    assert "left" not in ledger.settle(ledger.reserve("somebody", {"tokens": 5})).cost


def test_what_was_reserved_is_paid_even_if_the_limit_was_lowered_meanwhile() -> None:
    ledger = family(100)
    held = ledger.reserve(CHILD, {"tokens": 50})
    ledger.limit(PARENT, {"tokens": 10})
    cost = ledger.settle(held, {"tokens": 50}).cost
    assert cost == {"on": [CHILD, PARENT, OPERATOR], "spent": {"tokens": 50}, "left": {"tokens": 0}}
    with pytest.raises(EBUDGET):
        ledger.reserve(CHILD, {"tokens": 1})


def test_an_unknown_cost_is_all_that_was_reserved() -> None:
    ledger = family(100)
    assert ledger.settle(ledger.reserve(CHILD, {"tokens": 70})).cost["spent"] == {"tokens": 70}


def test_four_fifths_are_told_once_until_there_is_room_again() -> None:
    ledger = family(100)

    def spend(amount: int) -> list[tuple[str, str]]:
        settled = ledger.settle(ledger.reserve(CHILD, {"tokens": amount}), {"tokens": amount})
        return [(one.account, one.resource) for one in settled.alarms]

    assert spend(79) == []
    assert spend(1) == [(PARENT, "tokens")]
    assert spend(5) == []
    ledger.limit(PARENT, {"tokens": 100}, more=True)
    assert spend(5) == []
    assert spend(70) == [(PARENT, "tokens")]


def test_the_alarm_is_not_told_again_after_a_restart() -> None:
    ledger, record = Ledger(), Record()
    record.put(Kind.BUDGET, ledger.open(CHILD, None, {"calls": 10}))
    settled = ledger.settle(ledger.reserve(CHILD, {"calls": 8}))
    record.put(Kind.RESULT, settled.cost)
    for alarm in settled.alarms:
        record.put(Kind.BUDGET, warned(alarm))
    again = rebuilt(record.entries)
    assert again.settle(again.reserve(CHILD, {"calls": 1})).alarms == []
    assert again.state() != ledger.state()
    assert rebuilt(record.entries).state() == ledger.state()


def test_limits_are_set_raised_and_taken_away() -> None:
    ledger = family(100)
    ledger.limit(CHILD, {"cost": 5, "calls": 2})
    assert ledger.limit(CHILD, {"cost": 5}, more=True)["limits"] == {"cost": 10, "calls": 2}
    assert ledger.limit(CHILD, {"calls": None})["limits"] == {"cost": 10}
    with pytest.raises(EINVAL, match="no limit of calls"):
        ledger.limit(CHILD, {"calls": 5}, more=True)
    assert ledger.open(CHILD, PARENT) == {}
    assert ledger.open(CHILD, PARENT, {"cost": 10}) == {}
    assert ledger.account(CHILD).limits == {"cost": 10}


@pytest.mark.parametrize(
    "amounts", [{"usd": 1}, {"cost": -1}, {"cost": 0.5}, {"tokens": 1 << 63}, {"": 1}], ids=lambda one: str(one)
)
def test_what_is_no_amount_is_refused(amounts: Mapping[str, float]) -> None:
    for change in (lambda: Ledger().reserve(CHILD, amounts), lambda: Ledger().open(CHILD, None, amounts)):
        with pytest.raises(EINVAL):
            change()


def test_nobody_is_above_itself() -> None:
    ledger = family(1)
    with pytest.raises(EINVAL, match="below"):
        ledger.open(PARENT, CHILD)
    with pytest.raises(EINVAL):
        ledger.open(CHILD, CHILD)


def test_further_accounts_are_charged_and_can_refuse() -> None:
    ledger = family(100)
    ledger.open("handle:7", None, {"tokens": 5})
    with pytest.raises(EBUDGET) as caught:
        ledger.reserve(CHILD, {"tokens": 6}, "handle:7")
    assert caught.value.detail["account"] == "handle:7"
    assert ledger.reserve(CHILD, {"tokens": 5}, "handle:7").accounts == (CHILD, PARENT, OPERATOR, "handle:7")


def test_an_intent_without_an_outcome_stays_spent_until_it_is_resolved() -> None:
    ledger, record = family(100), Record()
    record.put(Kind.BUDGET, {"account": PARENT, "parent": OPERATOR, "limits": {"tokens": 100}})
    record.put(Kind.BUDGET, {"account": CHILD, "parent": PARENT, "limits": {}})
    held = ledger.reserve(CHILD, {"tokens": 60})
    intent = record.put(Kind.INTENT, held.cost)
    after_crash = rebuilt(record.entries)
    with pytest.raises(EBUDGET):
        after_crash.reserve(CHILD, {"tokens": 41})
    record.put(Kind.PARK, {}, ref=intent)
    assert rebuilt(record.entries).account(PARENT).used("tokens") == 60
    found = after_crash.of_intent(intent)
    assert found
    record.put(Kind.OUTCOME, after_crash.settle(found, {"tokens": 5}).cost, ref=intent)
    assert rebuilt(record.entries).state() == after_crash.state()
    assert after_crash.account(PARENT).used("tokens") == 5


def test_an_outcome_that_says_nothing_of_its_cost_has_spent_all() -> None:
    record = Record()
    intent = record.put(Kind.INTENT, Held((CHILD, OPERATOR), {"cost": 9}).cost)
    record.put(Kind.OUTCOME, {}, ref=intent)
    assert rebuilt(record.entries).account(CHILD).spent == {"cost": 9}
    record.put(Kind.OUTCOME, {}, ref=intent)  # never twice
    assert rebuilt(record.entries).account(CHILD).spent == {"cost": 9}


def test_a_ledger_goes_on_from_a_copy() -> None:
    record, ledger = Record(), Ledger()
    record.put(Kind.BUDGET, ledger.open(CHILD, None, {"tokens": 10}))
    record.put(Kind.INTENT, Held((CHILD, OPERATOR), {"tokens": 4}).cost)
    copy = Ledger.unpacked(rebuilt(record.entries).packed())
    assert copy.seq == 2
    record.put(Kind.OUTCOME, {"spent": {"tokens": 3}}, ref=2)
    assert rebuilt(record.entries[copy.seq :], copy).state() == rebuilt(record.entries).state()


def test_what_only_counts_calls_needs_no_intent() -> None:
    assert not needs_intent({"calls": 1, "count": 1})
    assert needs_intent({"calls": 1, "cost": 5})
    assert not needs_intent({"cost": 0})


@pytest.mark.parametrize(
    ("resource", "amount", "text"),
    [
        ("cost", 500_000, "$0.50"),
        ("cost", 6_400, "$0.0064"),
        ("cost", 1_234 * MICRO, "$1,234.00"),
        ("tokens", 1_204, "1,204 tokens"),
    ],
)
def test_amounts_are_shown_as_people_write_them(resource: str, amount: int, text: str) -> None:
    assert shown(resource, amount) == text


def test_spending_is_added_up_by_agent_model_and_day() -> None:
    record, day = Record(), 86_400 * 10**9
    intent = record.put(Kind.INTENT, Held((CHILD,), {"cost": 9}).cost)
    record.put(Kind.OUTCOME, {"spent": {"cost": 4}, "model": "m1"}, ref=intent)
    record.put(Kind.RESULT, {"on": [PARENT], "spent": {"cost": 1, "calls": 1}}, agent=PARENT, wall_ns=day)
    lost = record.put(Kind.INTENT, Held((CHILD,), {"cost": 7}).cost)
    record.put(Kind.OUTCOME, {}, ref=lost, wall_ns=day)
    open_one = record.put(Kind.INTENT, Held((CHILD,), {"cost": 100}).cost)
    assert open_one

    def rows(*by: str, since: int = 0) -> dict[tuple[str, ...], dict[str, int]]:
        spending = Spending(by, since)
        for entry in record.entries:
            spending.add(entry)
        return spending.rows

    assert rows() == {(CHILD,): {"cost": 11}, (PARENT,): {"cost": 1, "calls": 1}}
    assert rows("model") == {("m1",): {"cost": 4}, ("",): {"cost": 8, "calls": 1}}
    assert rows("day", "agent")[("1970-01-02", CHILD)] == {"cost": 7}
    assert rows("hour", "agent")[("1970-01-02T00", CHILD)] == {"cost": 7}
    assert rows("minute", "agent")[("1970-01-02T00:00", CHILD)] == {"cost": 7}
    assert rows("agent", since=day) == {(PARENT,): {"cost": 1, "calls": 1}, (CHILD,): {"cost": 7}}


def test_what_a_connection_held_when_its_kernel_died_is_spent() -> None:
    record = Record()
    for _ in range(2):
        begun = record.put(Kind.CONNECT, Held((CHILD, OPERATOR), {"bytes": 10}).cost)
        record.put(Kind.BUDGET, {"held": {"bytes": 5}}, ref=begun)
    record.put(Kind.CONNECT, {"spent": {"bytes": 3}}, ref=begun)
    assert rebuilt(record.entries).account(CHILD).held == {"bytes": 15}
    record.put(Kind.BOOT, {}, agent="kernel")
    ledger, spending = rebuilt(record.entries), Spending(())
    for entry in record.entries:
        spending.add(entry)
    assert (ledger.account(CHILD).spent, ledger.account(CHILD).used("bytes")) == ({"bytes": 18}, 18)
    assert spending.rows == {(CHILD,): {"bytes": 18}}


NAMES = [f"default/{name}" for name in "abcd"]
resources = st.sampled_from(["cost", "tokens", "calls"])
amounts = st.dictionaries(resources, st.integers(0, 60), min_size=1)


class Budgets(RuleBasedStateMachine):
    """Agents that reserve, act, fail and spend too much; a kernel that dies at any moment."""

    def __init__(self) -> None:
        super().__init__()
        self.record = Record()
        self.live = Ledger()
        self.held: list[Held] = []  # not on the record
        self.begun: list[int] = []  # intents
        self.connected: list[int] = []
        self.excused: dict[tuple[str, str], int] = {}  # what was used when somebody lowered a limit

    @initialize(limits=st.lists(amounts, min_size=4, max_size=4), parents=st.lists(st.integers(0, 3), min_size=4))
    def accounts(self, limits: list[dict[str, int]], parents: list[int]) -> None:
        for number, name in enumerate(NAMES):
            above = NAMES[parents[number]] if parents[number] < number else None
            self.record.put(Kind.BUDGET, self.live.open(name, above, limits[number]))

    @rule(name=st.sampled_from(NAMES), asked=amounts)
    def reserve(self, name: str, asked: dict[str, int]) -> None:
        before = self.live.state()
        try:
            self.held.append(self.live.reserve(name, asked))
        except EBUDGET:
            assert self.live.state() == before

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def park_or_refuse(self, data: st.DataObject) -> None:
        self.live.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.live.began(held, self.record.put(Kind.INTENT, held.cost))
        self.begun.append(held.intent)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.live.began(held, self.record.put(Kind.CONNECT, held.cost), passes=True)
        self.connected.append(held.intent)

    @precondition(lambda self: self.connected)
    @rule(data=st.data(), more=amounts)
    def send_more(self, data: st.DataObject, more: dict[str, int]) -> None:
        held = self.live.of_intent(data.draw(st.sampled_from(self.connected)))
        assert held
        before = self.live.state()
        try:
            self.live.grow(held, more)
        except EBUDGET:
            assert self.live.state() == before
        else:
            self.record.put(Kind.BUDGET, {"held": more}, ref=held.intent)

    @precondition(lambda self: self.connected)
    @rule(data=st.data(), actual=amounts)
    def disconnect(self, data: st.DataObject, actual: dict[str, int]) -> None:
        held = self.live.of_intent(self.connected.pop(data.draw(st.integers(0, len(self.connected) - 1))))
        assert held
        self._settled(held, actual, held.intent, Kind.CONNECT)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), actual=amounts)
    def act_at_once(self, data: st.DataObject, actual: dict[str, int]) -> None:
        held = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self._settled(held, actual, 0)

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), actual=st.none() | amounts)
    def end(self, data: st.DataObject, actual: dict[str, int] | None) -> None:
        intent = self.begun.pop(data.draw(st.integers(0, len(self.begun) - 1)))
        held = self.live.of_intent(intent)
        assert held
        self._settled(held, actual, intent)

    def _settled(self, held: Held, actual: dict[str, int] | None, ref: int, kind: Kind = Kind.OUTCOME) -> None:
        settled = self.live.settle(held, actual)
        self.record.put(kind, settled.cost, ref=ref)
        for alarm in settled.alarms:
            self.record.put(Kind.BUDGET, warned(alarm))

    @rule(name=st.sampled_from([*NAMES, OPERATOR]), limits=amounts)
    def tighten_or_widen(self, name: str, limits: dict[str, int]) -> None:
        self.record.put(Kind.BUDGET, self.live.limit(name, limits))
        for resource in limits:
            self.excused[name, resource] = self.live.account(name).used(resource)

    @rule()
    def crash(self) -> None:
        """Reservations without an intent never were; of connections all is spent; all others are there again."""
        self.held.clear()
        self.live = rebuilt(self.record.entries)
        used = {(one.id, name): one.used(name) for one in self.live for name in one.limits}
        self.live.cut_off()
        self.record.put(Kind.BOOT, {})
        assert all(self.live.account(account).used(name) == amount for (account, name), amount in used.items())
        assert not any(self.live.of_intent(intent) for intent in self.connected)
        assert all(self.live.of_intent(intent) for intent in self.begun)
        self.connected.clear()

    @invariant()
    def nobody_is_over_its_limit(self) -> None:
        for account in self.live:
            for resource, limit in account.limits.items():
                most = max(limit, self.excused.get((account.id, resource), 0))
                assert account.used(resource) <= most, (account, resource)
                assert account.held.get(resource, 0) >= 0

    @invariant()
    def the_record_tells_the_same(self) -> None:
        live = Ledger.unpacked(self.live.packed())
        assert rebuilt(self.record.entries).state() == live.state()


TestBudgets = pytest.mark.long(Budgets.TestCase)
TestBudgets.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_reservation_grows_on_the_whole_chain_or_not_at_all() -> None:
    ledger = Ledger()
    ledger.open(PARENT, None, {"bytes": 100})
    ledger.open(CHILD, PARENT)
    held = ledger.reserve(CHILD, {"bytes": 40})
    ledger.grow(held, {"bytes": 50})
    assert ledger.room(CHILD, "bytes") == 10
    with pytest.raises(EBUDGET):
        ledger.grow(held, {"bytes": 11})
    ledger.shrink(held, {"bytes": 20})
    assert (held.amounts, ledger.account(PARENT).held["bytes"]) == ({"bytes": 70}, 70)
    ledger.settle(held, {"bytes": 60})
    assert (ledger.room(CHILD, "bytes"), ledger.account(CHILD).held["bytes"]) == (40, 0)
