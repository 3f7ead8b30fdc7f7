"""The restart decision, as a table. S-54, S-57, S-58, S-60, S-62, S-63 and the pure half of N-01 and N-15."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent_os.abi.states import ExitClass
from agent_os.kernel.supervisor.decide import Act, Child, Decision, Exited, InHand, Supervisor, decide, facts
from agent_os.kernel.supervisor.exits import classify
from agent_os.kernel.supervisor.order import Sibling
from agent_os.kernel.supervisor.terms import ROOT, RestartPolicy, State, Strategy, Supervision, Terms

NOW = 1000.0
NEVER, ON_FAILURE, ALWAYS = RestartPolicy
GROUP = tuple(Sibling(one, ON_FAILURE, State.ACTIVE) for one in "abc")
FULL = tuple(NOW - second for second in range(10))
Facts = dict[str, Any]


def decided(
    exited: Facts, terms: Facts | None = None, child: Facts | None = None, sup: Facts | None = None
) -> Decision:
    known: Facts = {"incarnation": 1, "exit_class": ExitClass.ERROR, "code": 1}
    one = Child("b", **{"incarnation": 1, "terms": Terms(**terms or {}), **(child or {})})
    return decide(one, Exited(**{**known, **exited}), Supervisor(**{"children": GROUP, **(sup or {})}), NOW)


def ended(exit_class: ExitClass, code: int = -1, **more: Any) -> Facts:
    return {"exit_class": exit_class, "code": code, **more}


NORMAL, ERROR = ended(ExitClass.NORMAL, 0), ended(ExitClass.ERROR, 1)
POISON: Facts = {"in_hand": InHand("m1", 3)}

TABLE: list[tuple[str, Facts, Facts, Facts, Facts, Act, str, int]] = [
    # claim, exit, terms, child, supervisor → act, why, consecutive
    ("late news", {"incarnation": 7}, {}, {"consecutive": 2}, {}, Act.IGNORE, "incarnation 7 is long over", 2),
    ("late news of a violation", {"incarnation": 0, **ended(ExitClass.POLICY)}, {}, {}, {}, Act.IGNORE,
     "incarnation 0 is long over", 0),
    ("asked to stop", ended(ExitClass.REQUESTED, 42), {"policy": ALWAYS}, {"consecutive": 2}, {}, Act.STOPPED,
     "it was asked to stop", 2),
    ("asked to stop, with a code that forces", ended(ExitClass.REQUESTED, 9), {"force_restart_codes": {9}}, {}, {},
     Act.STOPPED, "it was asked to stop", 0),
    ("violation", ended(ExitClass.POLICY), {"policy": ALWAYS}, {}, {}, Act.QUARANTINE, "violation", 0),
    ("violation, with a code that forces", ended(ExitClass.POLICY), {"force_restart_codes": {-1}}, {}, {},
     Act.QUARANTINE, "violation", 0),
    ("violation with poison in hand", ended(ExitClass.POLICY), {}, POISON, {}, Act.QUARANTINE, "violation", 0),
    ("another record", ended(ExitClass.NONDETERMINISTIC), {"policy": ALWAYS}, {}, {}, Act.FAIL, "nondeterministic", 0),
    ("budget", ended(ExitClass.BUDGET, budget_renews_at=2000.0), {}, {"consecutive": 5}, {}, Act.BLOCK, "budget", 5),
    ("budget, never", ended(ExitClass.BUDGET), {"policy": NEVER}, {}, {}, Act.BLOCK, "budget", 0),
    ("lost", ended(ExitClass.LOST), {}, {"consecutive": 5}, {"restarts": FULL}, Act.START, "lost with the kernel", 5),
    ("lost, never, native", ended(ExitClass.LOST), {"policy": NEVER}, {}, {}, Act.START, "lost with the kernel", 0),
    ("lost guest, never", ended(ExitClass.LOST), {"policy": NEVER}, {"replayable": False}, {}, Act.FAIL,
     "lost with the kernel; a guest cannot be replayed", 0),
    ("lost guest", ended(ExitClass.LOST), {}, {"replayable": False}, {}, Act.START, "lost with the kernel", 0),
    ("on_failure, normal", NORMAL, {}, {"consecutive": 3}, {}, Act.COMPLETE, "it is done", 0),
    ("on_failure, error", ERROR, {}, {}, {}, Act.RESTART, "error", 1),
    ("on_failure, signal", ended(ExitClass.SIGNAL, -11), {}, {}, {}, Act.RESTART, "signal", 1),
    ("on_failure, oom", ended(ExitClass.OOM), {}, {}, {}, Act.RESTART, "oom", 1),
    ("on_failure, not ready", ended(ExitClass.START_TIMEOUT), {}, {}, {}, Act.RESTART, "start_timeout", 1),
    ("on_failure, watchdog", ended(ExitClass.WATCHDOG), {}, {}, {}, Act.RESTART, "watchdog", 1),
    ("on_failure, probe", ended(ExitClass.PROBE), {}, {}, {}, Act.RESTART, "probe", 1),
    ("on_failure, too long", ended(ExitClass.TIMEOUT), {}, {}, {}, Act.RESTART, "run_timeout", 1),
    ("always, normal", NORMAL, {"policy": ALWAYS}, {}, {}, Act.RESTART, "normal", 1),
    ("never, normal", NORMAL, {"policy": NEVER}, {}, {}, Act.COMPLETE, "it is done", 0),
    ("never, error", ERROR, {"policy": NEVER}, {}, {}, Act.FAIL, "error", 0),
    ("forced code, never", ended(ExitClass.ERROR, 9), {"policy": NEVER, "force_restart_codes": {9}}, {}, {},
     Act.RESTART, "error", 1),
    ("forced code, normal", NORMAL, {"force_restart_codes": {0}}, {}, {}, Act.RESTART, "normal", 1),
    ("barred code, always", ended(ExitClass.ERROR, 9), {"policy": ALWAYS, "no_restart_codes": {9}}, {}, {},
     Act.FAIL, "error", 0),
    ("barred code, normal", NORMAL, {"policy": ALWAYS, "no_restart_codes": {0}}, {}, {}, Act.COMPLETE, "it is done", 0),
    ("barred and forced", ERROR, {"no_restart_codes": {1}, "force_restart_codes": {1}}, {}, {}, Act.FAIL, "error", 0),
    ("the last restart", ERROR, {}, {"consecutive": 4}, {}, Act.RESTART, "error", 5),
    ("one too many", ERROR, {}, {"consecutive": 5}, {}, Act.FAIL, "max_restarts", 6),
    ("none allowed", ERROR, {"max_restarts": 0}, {}, {}, Act.FAIL, "max_restarts", 1),
    ("stable before", {**ERROR, "ready_secs": 60.0}, {}, {"consecutive": 5}, {}, Act.RESTART, "error", 1),
    ("not quite stable", {**ERROR, "ready_secs": 59.9}, {}, {"consecutive": 5}, {}, Act.FAIL, "max_restarts", 6),
    ("never ready is not stable", ERROR, {"stable_secs": 0}, {"consecutive": 5}, {}, Act.FAIL, "max_restarts", 6),
    ("ready for a moment is not stable", {**ERROR, "ready_secs": 0.4}, {"stable_secs": 0}, {"consecutive": 5}, {},
     Act.FAIL, "max_restarts", 6),
    ("poison", ERROR, {}, {**POISON, "consecutive": 5}, {"restarts": FULL}, Act.RESTART, "message", 5),
    ("not yet poison", ERROR, {}, {"in_hand": InHand("m1", 2), "consecutive": 1}, {}, Act.RESTART, "error", 2),
    ("poison, never", ERROR, {"policy": NEVER}, POISON, {}, Act.FAIL, "error", 0),
    ("provider down", {**ERROR, "provider_open_until": 1030.0}, {}, {"consecutive": 5}, {}, Act.BLOCK, "provider", 5),
    ("provider back", {**ERROR, "provider_open_until": NOW}, {}, {}, {}, Act.RESTART, "error", 1),
    ("provider down, never", {**ERROR, "provider_open_until": 1030.0}, {"policy": NEVER}, {}, {}, Act.FAIL, "error", 0),
    ("intensity passed", ERROR, {}, {}, {"restarts": FULL}, Act.ESCALATE, "intensity", 1),
    ("given up before that", ERROR, {}, {"consecutive": 5}, {"restarts": FULL}, Act.FAIL, "max_restarts", 6),
    ("intensity not passed", ERROR, {}, {}, {"restarts": FULL[:9]}, Act.RESTART, "error", 1),
    ("long ago", ERROR, {}, {}, {"restarts": (NOW - 60.0,) * 10}, Act.RESTART, "error", 1),
    ("under root", ERROR, {}, {}, {"restarts": FULL * 9, "terms": ROOT}, Act.RESTART, "error", 1),
]  # fmt: skip


@pytest.mark.parametrize(("claim", "exited", "terms", "child", "sup", "act", "why", "consecutive"), TABLE)
def test_the_table(
    claim: str, exited: Facts, terms: Facts, child: Facts, sup: Facts, act: Act, why: str, consecutive: int
) -> None:
    decision = decided(exited, terms, child, sup)
    assert (decision.act, decision.why, decision.consecutive) == (act, why, consecutive), claim
    assert decision.counted == (act is Act.RESTART and why != "message")


@pytest.mark.parametrize(("code", "again"), [(0, False), (1, True), (42, True), (-1, True)])
def test_on_failure_restarts_what_failed(code: int, again: bool) -> None:
    exit_class, code = classify(code)
    assert (decided(ended(exit_class, code)).act is Act.RESTART) == again


@pytest.mark.parametrize("strategy", Strategy)
def test_no_strategy_overrides_the_policy(strategy: Strategy) -> None:
    sup = {"terms": Supervision(strategy)}
    decision = decided(NORMAL, sup=sup)
    assert (decision.act, decision.stop, decision.start) == (Act.COMPLETE, (), ())
    assert decided(ERROR, sup=sup).act is Act.RESTART


@pytest.mark.parametrize(
    ("strategy", "stop", "start"),
    [
        (Strategy.ONE_FOR_ONE, (), ("b",)),
        (Strategy.ONE_FOR_ALL, ("c", "a"), ("a", "b", "c")),
        (Strategy.REST_FOR_ONE, ("c",), ("b", "c")),
    ],
)
def test_a_restart_names_whom_to_stop_and_whom_to_start(
    strategy: Strategy, stop: tuple[str, ...], start: tuple[str, ...]
) -> None:
    sup = {"terms": Supervision(strategy)}
    decision = decided(ERROR, sup=sup)
    assert (decision.stop, decision.start) == (stop, start)
    poisoned = decided(ERROR, child=POISON, sup=sup)
    assert (poisoned.stop, poisoned.start, poisoned.dead_letter) == (stop, start, "m1")


def test_passing_the_intensity_stops_all_other_children_in_reverse_and_starts_none() -> None:
    decision = decided(ERROR, sup={"restarts": FULL})
    assert (decision.act, decision.stop, decision.start) == (Act.ESCALATE, ("c", "a"), ())


def test_a_supervisor_that_passed_its_intensity_is_decided_about_like_any_other_child() -> None:
    supervisor = Child("s", 1, Terms(policy=ON_FAILURE), consecutive=0)
    gone = Exited(1, ExitClass.ERROR, -1, ready_secs=5.0)
    assert decide(supervisor, gone, Supervisor(ROOT), NOW).act is Act.RESTART
    assert decide(replace(supervisor, terms=Terms(NEVER)), gone, Supervisor(ROOT), NOW).act is Act.FAIL


def test_blocks_say_until_when() -> None:
    assert decided(ended(ExitClass.BUDGET, budget_renews_at=2000.0)).until == 2000.0
    assert decided(ended(ExitClass.BUDGET)).until is None
    assert decided({**ERROR, "provider_open_until": 1030.0}).until == 1030.0


def test_delays_are_nominal_and_a_poison_message_waits_like_the_crash_before_it() -> None:
    assert [decided(ERROR, child={"consecutive": n}).delay_ms for n in range(5)] == [100, 200, 400, 800, 1600]
    assert [decided(ERROR, child={**POISON, "consecutive": n}).delay_ms for n in range(3)] == [100, 100, 200]


def crash_for_ever(terms: Terms, times: int, ready_secs: float | None = None) -> list[Act]:
    """Each crash under a new pid and a new incarnation, the counters stored and read in between."""
    child, acts = Child("b", 1, terms), list[Act]()
    for incarnation in range(1, times + 1):
        child = replace(child, incarnation=incarnation)
        decision = decide(child, Exited(incarnation, ExitClass.SIGNAL, -9, ready_secs), Supervisor(ROOT), NOW)
        stored = msgspec.msgpack.decode(msgspec.msgpack.encode(decision), type=Decision)
        assert stored == decision
        acts.append(stored.act)
        child = replace(child, consecutive=stored.consecutive)
    return acts


def test_an_endless_crasher_gets_five_restarts_and_not_one_more() -> None:
    assert crash_for_ever(Terms(), 50) == [Act.RESTART] * 5 + [Act.FAIL] * 45


def test_one_restart_allowed_is_one_restart_over_all_pids() -> None:
    assert crash_for_ever(Terms(max_restarts=1), 2) == [Act.RESTART, Act.FAIL]


def test_a_slow_crash_loop_ends_too() -> None:
    assert crash_for_ever(Terms(), 6, ready_secs=20.0) == [Act.RESTART] * 5 + [Act.FAIL]
    assert crash_for_ever(Terms(), 50, ready_secs=61.0) == [Act.RESTART] * 50


codes = st.frozensets(st.integers(-3, 3), max_size=2)
any_terms = st.builds(
    Terms,
    policy=st.sampled_from(RestartPolicy),
    max_restarts=st.integers(0, 3),
    stable_secs=st.sampled_from([0.0, 60.0]),
    no_restart_codes=codes,
    force_restart_codes=codes,
    max_deaths=st.integers(1, 3),
)
any_child = st.builds(
    Child,
    st.just("b"),
    st.integers(1, 2),
    any_terms,
    st.integers(0, 4),
    st.none() | st.builds(InHand, st.just("m"), st.integers(1, 4)),
    st.booleans(),
)
moments = st.none() | st.floats(900.0, 1100.0)
any_exit = st.builds(
    Exited,
    st.integers(1, 2),
    st.sampled_from(ExitClass),
    st.integers(-3, 3),
    st.none() | st.floats(0, 120),
    moments,
    moments,
)
siblings = st.tuples(
    *(st.builds(Sibling, st.just(one), st.sampled_from(RestartPolicy), st.sampled_from(State)) for one in "abc")
)
any_supervisor = st.builds(
    Supervisor,
    st.builds(Supervision, st.sampled_from(Strategy), st.none() | st.integers(0, 3)),
    siblings,
    st.lists(st.floats(900.0, 1000.0), max_size=4).map(tuple),
)


@given(any_child, any_exit, any_supervisor)
def test_whatever_the_facts_the_limits_hold(child: Child, exited: Exited, supervisor: Supervisor) -> None:
    decision = decide(child, exited, supervisor, NOW)
    assert decision == decide(child, exited, supervisor, NOW)
    if decision.counted:
        assert 1 <= decision.consecutive <= child.terms.max_restarts
        assert 0 < decision.delay_ms <= child.terms.backoff.cap_ms
    if exited.incarnation == child.incarnation and exited.exit_class is ExitClass.POLICY:
        assert decision.act is Act.QUARANTINE
    if exited.exit_class is ExitClass.REQUESTED:
        assert decision.act in (Act.STOPPED, Act.IGNORE)
    if decision.act not in (Act.RESTART, Act.START):
        assert not decision.start
    if decision.act not in (Act.RESTART, Act.ESCALATE):
        assert not decision.stop
    over = {one.id for one in supervisor.children if one.state not in (State.ACTIVE, State.PENDING, State.BACKOFF)}
    assert not (over - {"b"}) & {*decision.stop, *decision.start}


@given(any_child, any_exit, any_supervisor)
def test_facts_and_decision_can_be_written_down_and_decided_again(
    child: Child, exited: Exited, supervisor: Supervisor
) -> None:
    decision = decide(child, exited, supervisor, NOW)
    written = msgspec.msgpack.encode(facts(child, exited, supervisor, NOW, decision))
    read = msgspec.msgpack.decode(written)
    assert msgspec.convert(read["child"], Child) == child
    assert msgspec.convert(read["exit"], Exited) == exited
    assert msgspec.convert(read["decision"], Decision) == decision
    assert msgspec.convert(read["supervisor"]["terms"], Supervision) == supervisor.terms
