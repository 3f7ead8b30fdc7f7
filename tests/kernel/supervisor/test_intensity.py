"""How often is too often, over pids and over kernels."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.intensity import Restarts, is_passed, noted, recent
from agent_os.kernel.supervisor.terms import ROOT, Supervision, Terms

TEN_A_MINUTE = Supervision()


def test_ten_restarts_in_a_minute_pass_and_the_eleventh_does_not() -> None:
    times: tuple[float, ...] = ()
    for second in range(10):
        assert not is_passed(TEN_A_MINUTE, times, second)
        times = noted(TEN_A_MINUTE, times, second)
    assert is_passed(TEN_A_MINUTE, times, 10)


def test_the_period_slides() -> None:
    times = tuple(float(second) for second in range(10))
    assert is_passed(TEN_A_MINUTE, times, 59.9)
    assert not is_passed(TEN_A_MINUTE, times, 60.0)
    assert len(noted(TEN_A_MINUTE, times, 60.0)) == 10


def test_root_has_no_intensity_and_keeps_no_times() -> None:
    assert not is_passed(ROOT, [1.0] * 1000, 1.0)
    assert noted(ROOT, [1.0] * 1000, 1.0) == ()


def test_an_intensity_of_zero_allows_no_restart() -> None:
    assert is_passed(Supervision(intensity=0), (), 0.0)


def test_a_clock_that_was_set_back_forgives_nothing_and_holds_nothing_for_ever() -> None:
    times = (1000.0,) * 10
    assert is_passed(TEN_A_MINUTE, times, 500.0)
    times = noted(Supervision(intensity=11), times, 500.0)
    assert not is_passed(TEN_A_MINUTE, times, 560.0)


@given(st.lists(st.floats(0, 1e6)), st.floats(0, 1e6), st.floats(0.1, 1e4))
def test_what_is_kept_is_of_the_last_period(times: list[float], now: float, period: float) -> None:
    kept = recent(times, now, period)
    assert all(now - period <= time <= now for time in kept)
    assert len(kept) == sum(now - time < period for time in times)


def test_what_is_left_counts_down_and_never_below_nothing() -> None:
    seen = [Restarts(Terms(), consecutive) for consecutive in range(7)]
    assert [one.remaining for one in seen] == [5, 4, 3, 2, 1, 0, 0]
    assert [one.exhausted for one in seen] == [False] * 5 + [True] * 2


def test_a_new_agent_has_no_count_no_delay_and_no_last_restart() -> None:
    new = Restarts(Terms())
    assert (new.consecutive, new.delay_ms, new.last) == (0, 0, None)


@pytest.mark.parametrize(("consecutive", "delay"), [(1, 100), (2, 200), (5, 1600)])
def test_the_delay_before_the_present_life_is_read_from_the_count(consecutive: int, delay: int) -> None:
    assert Restarts(Terms(), consecutive).delay_ms == delay
