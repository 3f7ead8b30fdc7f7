import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.drivers.models import LimitSample
from agent_os.kernel.models.buckets import Buckets


def tokens(capacity: float = 1000, rate: float = 10, now: float = 0.0) -> Buckets:
    return Buckets.configured(now, tokens=(capacity, rate))


def level(buckets: Buckets, now: float) -> float:
    return buckets.by_kind["tokens"].refill(now)


def test_a_bucket_refills_with_time_and_never_beyond_its_capacity():
    buckets = tokens()
    buckets.reserve(1, 600, 400, 0.0)
    assert level(buckets, 10.0) == 100
    assert level(buckets, 1_000.0) == 1_000


def test_a_call_fits_when_every_bucket_has_room():
    buckets = Buckets.configured(0.0, tokens=(1000, 10), requests=(2, 0.5))
    buckets.reserve(1, 100, 0, 0.0)
    buckets.reserve(2, 100, 0, 0.0)
    assert buckets.fits_in(10, 10, 0.0) == pytest.approx(2.0)  # a request comes back every two seconds
    assert buckets.fits_in(10, 10, 2.0) == 0


def test_a_call_larger_than_the_bucket_may_leave_when_it_is_full():
    buckets = tokens()
    buckets.reserve(1, 1000, 0, 0.0)
    assert buckets.fits_in(990, 400, 50.0) == pytest.approx(50.0)
    assert buckets.fits_in(990, 400, 100.0) == 0


def test_a_bucket_that_never_refills_says_never():
    buckets = tokens(rate=0)
    buckets.reserve(1, 1000, 0, 0.0)
    assert buckets.fits_in(1, 0, 5.0) == math.inf


def test_what_a_call_did_not_need_returns():
    buckets = tokens()
    buckets.reserve(1, 300, 400, 0.0)
    buckets.settle(1, 310, 90, 0.0)
    assert level(buckets, 0.0) == 600
    buckets.settle(1, 310, 90, 0.0)  # once
    assert level(buckets, 0.0) == 600


def test_a_sample_counts_what_left_later_as_well_and_its_own_call_no_more():
    buckets = tokens()
    buckets.reserve(1, 100, 100, 0.0)
    buckets.reserve(2, 100, 100, 0.0)
    buckets.sample(1, LimitSample("tokens", 1000, 850), 0.0)
    assert level(buckets, 0.0) == 650  # what the provider says, less the call that it may not have seen
    buckets.settle(1, 100, 50, 0.0)
    assert level(buckets, 0.0) == 650  # the provider has counted it
    buckets.settle(2, 100, 50, 0.0)
    assert level(buckets, 0.0) == 700


def test_a_sample_of_an_earlier_call_than_the_newest_is_ignored():
    buckets = tokens()
    buckets.reserve(1, 100, 0, 0.0)
    buckets.reserve(2, 100, 0, 0.0)
    buckets.sample(2, LimitSample("tokens", 1000, 500), 0.0)
    buckets.sample(1, LimitSample("tokens", 1000, 900), 0.0)
    assert level(buckets, 0.0) == 500


@pytest.mark.parametrize("value", [-1, 0, float("nan"), float("inf"), 1e300])
def test_a_limit_that_makes_no_sense_is_ignored_and_counted(value: float):
    buckets = Buckets()
    buckets.reserve(1, 10, 10, 0.0)
    buckets.sample(1, LimitSample("tokens", value, 100), 0.0)  # type: ignore[arg-type]
    assert buckets.by_kind == {}
    assert buckets.ignored == 1


def test_nothing_remaining_is_an_answer_and_less_than_nothing_is_none():
    buckets = tokens()
    buckets.reserve(1, 10, 0, 0.0)
    buckets.sample(1, LimitSample("tokens", 1000, -5), 0.0)
    assert level(buckets, 0.0) == 990
    buckets.sample(1, LimitSample("tokens", 1000, 0), 0.0)
    assert level(buckets, 0.0) == 0
    assert buckets.ignored == 1


def test_limits_are_learned_from_a_reply_and_counted_from_then_on():
    buckets = Buckets()
    assert buckets.fits_in(10**9, 0, 0.0) == 0  # nothing is known
    buckets.reserve(1, 200, 100, 0.0)
    buckets.reserve(2, 300, 100, 0.0)
    buckets.sample(1, LimitSample("tokens", 1000, 750), 1.0)
    assert buckets.by_kind["tokens"].source == "learned"
    assert level(buckets, 1.0) == 350
    assert buckets.largest() == 1000


def test_what_the_operator_said_of_the_capacity_stays_said():
    buckets = tokens(capacity=500)
    buckets.reserve(1, 10, 0, 0.0)
    buckets.sample(1, LimitSample("tokens", 100_000, 90_000), 0.0)
    assert buckets.by_kind["tokens"].capacity == 500
    assert level(buckets, 0.0) == 500


def test_the_rate_is_learned_from_when_the_bucket_will_be_full():
    buckets = Buckets()
    buckets.reserve(1, 10, 0, 0.0)
    buckets.sample(1, LimitSample("tokens", 60_000, 30_000, 15.0), 0.0)
    assert buckets.by_kind["tokens"].rate == pytest.approx(2_000)


def test_the_rate_is_learned_from_two_samples_where_no_reset_is_told():
    """A provider of 8,000 tokens a second says only what is left; its limit, read as a minute's, would be 1,333."""
    buckets, rng = Buckets(), random.Random(5)
    true, now, rate, capacity = 80_000.0, 0.0, 8_000.0, 80_000.0
    for seq in range(1, 200):
        now += 0.5
        true = min(capacity, true + 0.5 * rate)
        prompt, output = 3_800, rng.randint(100, 500)
        if true >= prompt + output:
            buckets.reserve(seq, prompt, 500, now, likely=300)
            true -= prompt + output
            buckets.sample(seq, LimitSample("tokens", int(capacity), int(true)), now)
            buckets.settle(seq, prompt, output, now)
    assert buckets.by_kind["tokens"].rate == pytest.approx(rate, rel=0.1)


def test_a_refused_call_took_nothing_and_fits_after_the_wait_that_was_asked_for():
    buckets = tokens()
    buckets.reserve(1, 300, 100, 0.0)
    buckets.refused(1, 7.0, 0.0)
    assert buckets.fits_in(300, 100, 0.0) == pytest.approx(7.0)


def test_output_is_reserved_up_to_a_quarter_of_the_bucket():
    buckets = tokens(capacity=1000)
    assert buckets.output_room(100) == 250
    assert buckets.output_room(900) == 100
    assert Buckets().output_room(10) == math.inf


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 200), st.floats(0, 5), st.booleans()), max_size=40))
def test_we_never_think_that_more_is_left_than_there_is(calls: list[tuple[int, int, float, bool]]):
    """Whatever arrives in whatever order, as long as outputs stay within what was reserved."""
    buckets, true, now, open_ = tokens(2000, 50), 2000.0, 0.0, dict[int, tuple[int, int]]()
    for seq, (prompt, output, pause, sampled) in enumerate(calls, 1):
        now += pause
        true = min(2000.0, true + 50 * pause)
        if buckets.fits_in(prompt, 200, now) == 0:
            buckets.reserve(seq, prompt, 200, now)
            true -= prompt + output
            open_[seq] = (prompt, output)
        if sampled and open_:
            oldest = min(open_)
            buckets.sample(oldest, LimitSample("tokens", 2000, int(true)), now)
        if open_ and len(open_) > 3:
            oldest = min(open_)
            buckets.settle(oldest, *open_.pop(oldest), now)
        assert level(buckets, now) <= true + 1e-6
