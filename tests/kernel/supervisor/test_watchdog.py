"""The watchdog bites who hangs, and nobody who is held, waits or is served slowly."""

from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.watchdog import ABORT_SECS, Countdown, Watchdog


def armed(seconds: float | None = 10.0, at: float = 0.0) -> Watchdog:
    watchdog = Watchdog(seconds)
    watchdog.arm(at)
    return watchdog


def test_silence_ends_in_abort_then_kill_each_told_once() -> None:
    watchdog = armed()
    assert watchdog.due == 10.0
    assert watchdog.look(9.9) is None
    assert watchdog.look(10.0) == "abort"
    assert watchdog.due == 10.0 + ABORT_SECS == 15.0
    assert watchdog.look(14.9) is None
    assert watchdog.look(15.0) == "kill"
    assert watchdog.look(99.0) is None
    assert watchdog.due is None


def test_it_is_armed_at_ready_and_not_before() -> None:
    watchdog = Watchdog(10.0)
    assert watchdog.due is None
    watchdog.ping(5.0)
    watchdog.enter(6.0)
    watchdog.ping(7.0)
    watchdog.leave(8.0)
    assert watchdog.due is None
    assert watchdog.look(1e6) is None
    watchdog.arm(100.0)
    assert watchdog.due == 110.0


def test_ready_is_itself_a_call_and_arms_all_the_same() -> None:
    watchdog = Watchdog(10.0)
    watchdog.enter(1.0)
    watchdog.arm(1.0)
    watchdog.leave(3.0)
    assert watchdog.due == 13.0


def test_off_it_never_bites() -> None:
    watchdog = armed(None)
    watchdog.enter(1.0)
    watchdog.leave(2.0)
    assert watchdog.due is None
    assert watchdog.look(1e9) is None


def test_any_call_is_a_ping() -> None:
    watchdog = armed()
    watchdog.enter(9.0)
    watchdog.leave(9.0)
    assert watchdog.look(18.9) is None
    assert watchdog.look(19.0) == "abort"


def test_a_slow_kernel_call_is_not_a_hang() -> None:
    watchdog = armed()
    watchdog.enter(9.0)
    assert watchdog.due is None
    assert watchdog.look(1e6) is None
    watchdog.leave(1e6)
    assert watchdog.due == 1e6 + 10


def test_two_calls_at_once_hold_it_until_both_are_answered() -> None:
    watchdog = armed()
    watchdog.enter(1.0)
    watchdog.enter(2.0)
    watchdog.leave(50.0)
    assert watchdog.look(1000.0) is None
    watchdog.leave(1000.0)
    assert watchdog.due == 1010.0


def test_a_suspended_agent_has_afterwards_what_was_left_before() -> None:
    watchdog = armed()
    watchdog.hold(7.0)
    assert watchdog.look(1e6) is None
    watchdog.release(1e6)
    assert watchdog.due == 1e6 + 3


def test_suspended_during_an_approval_it_stands_still_until_both_are_over() -> None:
    watchdog = armed()
    watchdog.hold(4.0)  # approval
    watchdog.hold(5.0)  # suspended
    watchdog.release(500.0)
    assert watchdog.due is None
    watchdog.release(1000.0)
    assert watchdog.due == 1006.0


def test_nothing_calls_it_back_once_it_has_bitten() -> None:
    watchdog = armed()
    assert watchdog.look(10.0) == "abort"
    watchdog.ping(11.0)
    watchdog.enter(11.0)
    watchdog.leave(12.0)
    watchdog.hold(12.0)
    watchdog.arm(13.0)
    assert watchdog.look(15.0) == "kill"


def test_one_release_too_many_changes_nothing() -> None:
    watchdog = armed()
    watchdog.release(3.0)
    watchdog.hold(4.0)
    assert watchdog.due is None


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 100.0)), max_size=30))
def test_only_time_that_is_not_held_counts(steps: list[tuple[bool, float]]) -> None:
    countdown = Countdown(1000.0)
    now = free = 0.0
    holds = 0
    countdown.start(now)
    for hold, span in steps:
        now += span
        free += 0.0 if holds else span
        if hold:
            countdown.hold(now)
            holds += 1
        elif holds:
            countdown.release(now)
            holds -= 1
    for _ in range(holds):
        countdown.release(now)
    assert countdown.due is not None
    if free < 1000.0:
        assert abs((countdown.due - now) - (1000.0 - free)) < 1e-6
    else:
        assert countdown.over(now + 1e-6)
