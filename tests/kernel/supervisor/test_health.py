"""Who is ready, who is live, and what many make together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.health import (
    HEALTHY,
    UNKNOWN,
    Event,
    Health,
    Overall,
    Probes,
    Settings,
    Streak,
    aggregate,
    next_check,
    worst,
)

BAD = Health("unhealthy", "no answer")
SLOW = Health("degraded", "slow")


def probes(settings: Settings | None = None, *, up: bool = True) -> Probes:
    one = Probes("default/a", settings or Settings(), 0.0, live=True, ready=True)
    if up:
        assert one.came_up() == Event.READY
    return one


@pytest.mark.parametrize(
    ("healths", "overall", "text"),
    [
        ({}, Overall("down"), "down"),  # S-69
        ({"a": HEALTHY}, Overall("healthy"), "healthy"),
        ({"a": HEALTHY, "b": BAD}, Overall("degraded", ("b",)), "degraded (b)"),  # S-68
        ({"c": UNKNOWN, "a": HEALTHY, "b": SLOW}, Overall("degraded", ("b", "c")), "degraded (b, c)"),
        ({"a": SLOW}, Overall("degraded", ("a",)), "degraded (a)"),  # S-70
        ({"a": UNKNOWN, "b": UNKNOWN}, Overall("down", ("a", "b")), "down"),  # S-70
        ({"a": BAD, "b": UNKNOWN}, Overall("down", ("a", "b")), "down"),
        ({"a": BAD, "b": SLOW}, Overall("degraded", ("a", "b")), "degraded (a, b)"),
    ],
)
def test_many_healths_make_one(healths: dict[str, Health], overall: Overall, text: str) -> None:
    assert aggregate(healths) == overall
    assert str(aggregate(healths)) == text


def test_healths_as_text() -> None:
    assert [str(one) for one in (HEALTHY, SLOW, BAD, UNKNOWN)] == [
        "healthy",
        "degraded: slow",
        "unhealthy: no answer",
        "unknown",
    ]


def test_the_worst_of_several_views_counts() -> None:
    assert worst(HEALTHY, SLOW, BAD, UNKNOWN) is BAD
    assert worst(HEALTHY, HEALTHY) is HEALTHY
    assert worst() is UNKNOWN


def test_without_an_interval_it_is_one_of_thirty_seconds() -> None:
    one = probes()
    first = one.due(1000.0)
    assert first is not None
    assert 1000.0 < first <= 1030.0
    assert one.due(first) == pytest.approx(first + 30.0)


def test_before_ready_nothing_is_routed_and_no_probe_counts() -> None:
    one = probes(up=False)
    assert not one.ready
    assert one.health is UNKNOWN
    for _ in range(5):
        assert one.liveness(one.begin(), False) is None
        assert one.readiness(one.begin(), False) is None
    assert one.came_up() == Event.READY
    assert one.ready
    assert one.health is HEALTHY


def test_a_start_that_takes_too_long_is_told_once_and_ready_comes_too_late_then() -> None:
    one = probes(up=False)
    assert one.due(0.0) == 60.0
    assert one.look(59.9) is None
    assert one.look(60.0) == Event.START_TIMEOUT
    assert one.look(61.0) is None
    assert one.came_up() is None
    assert not one.ready
    assert one.due(61.0) is None
    assert one.health.word == "unhealthy"


def test_ready_in_time_ends_the_start() -> None:
    one = probes()
    assert one.came_up() is None
    assert one.look(1e9) is None


def test_two_failures_of_liveness_are_nothing_the_third_is_the_end_and_told_once() -> None:
    one = probes()
    told = [one.liveness(one.begin(), False, "no answer") for _ in range(5)]
    assert told == [None, None, Event.PROBE, None, None]
    assert one.health == BAD
    assert one.due(100.0) is None


def test_a_success_of_liveness_forgets_the_failures_before() -> None:
    one = probes()
    told = [one.liveness(one.begin(), ok) for ok in (False, False, True, False, False, True)]
    assert told == [None] * 6


def test_readiness_goes_out_once_and_comes_back_once() -> None:
    one = probes()
    results = (False, False, False, False, True, True)
    told = [one.readiness(one.begin(), ok, "" if ok else "full") for ok in results]
    assert told == [None, None, Event.OUT, None, Event.BACK, None]
    assert one.ready


def test_out_of_service_is_degraded_and_says_why() -> None:
    one = probes()
    for _ in range(3):
        one.readiness(one.begin(), False, "full")
    assert not one.ready
    assert one.health == Health("degraded", "full")


def test_more_than_one_success_can_be_asked_for() -> None:
    one = probes(Settings(success_threshold=2))
    results = (False, False, False, True, False, True, True)
    told = [one.readiness(one.begin(), ok) for ok in results]
    assert told == [None, None, Event.OUT, None, None, None, Event.BACK]


@given(st.lists(st.tuples(st.booleans(), st.booleans())))
def test_liveness_and_readiness_never_touch_each_other(results: list[tuple[bool, bool]]) -> None:
    both, only_ready, only_live = probes(), probes(), probes()
    for live, ready in results:
        assert both.liveness(both.begin(), live) == only_live.liveness(only_live.begin(), live)
        assert both.readiness(both.begin(), ready) == only_ready.readiness(only_ready.begin(), ready)
        assert both.ready == only_ready.ready


def test_while_it_is_held_nobody_asks_and_no_answer_counts() -> None:
    one = probes()
    before = one.begin()
    one.hold(10.0)
    assert one.due(10.0) is None
    assert all(one.liveness(one.begin(), False) is None for _ in range(5))
    one.release(5000.0)
    assert one.due(5000.0) is not None
    assert all(one.liveness(before, False) is None for _ in range(5)), "a check from before it was held"
    assert one.ready
    assert [one.liveness(one.begin(), False) for _ in range(3)][-1] == Event.PROBE


def test_waiting_for_a_person_during_the_start_costs_no_time() -> None:
    one = probes(up=False)
    one.hold(50.0)
    assert one.look(1e6) is None
    assert one.due(1e6) is None
    one.release(1e6)
    assert one.look(1e6 + 9) is None
    assert one.look(1e6 + 10) == Event.START_TIMEOUT


def test_without_probes_it_is_live_and_ready_after_ready() -> None:
    one = Probes("default/a", Settings(start_timeout_secs=None), 0.0)
    assert one.due(0.0) is None
    assert one.came_up() == Event.READY
    assert one.ready
    assert one.due(1.0) is None


def test_checks_of_many_agents_are_spread_over_the_interval() -> None:
    seconds = [int(next_check(f"default/agent-{number}", 30.0, 0.0)) for number in range(3000)]
    counts = [seconds.count(second) for second in range(30)]
    assert sum(counts) == 3000
    assert max(counts) < 2 * min(counts)


@given(st.text(max_size=8), st.floats(0.01, 1e5), st.floats(0.0, 1e9))
def test_the_next_check_lies_ahead_by_at_most_an_interval(agent: str, interval: float, now: float) -> None:
    due = next_check(agent, interval, now)
    assert now < due <= now + interval * 1.001 + 1e-6


@pytest.mark.parametrize("interval", [0.1, 0.3, 1.1, 30.0])
def test_from_check_to_check_time_goes_on_whatever_rounding_does(interval: float) -> None:
    now = 1e6 * interval
    for _ in range(5000):
        due = next_check("default/a", interval, now)
        assert now < due < now + 1.01 * interval
        now = due


@given(st.integers(1, 4), st.integers(1, 4), st.lists(st.booleans()))
def test_a_streak_turns_exactly_when_enough_results_in_a_row_contradict_it(
    failures: int, successes: int, results: list[bool]
) -> None:
    streak, up, row = Streak(failures, successes), True, 0
    for ok in results:
        row = row + 1 if ok != up else 0
        turns = row >= (failures if up else successes)
        if turns:
            up, row = ok, 0
        assert streak.note(ok) == turns
        assert streak.up == up
