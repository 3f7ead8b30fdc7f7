"""Back-off: doubled, capped, spread."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.backoff import nominal, waited
from agent_os.kernel.supervisor.terms import Backoff, Jitter

DEFAULT = Backoff()


def test_delays_double_from_100_ms_up_to_30_s() -> None:
    doubled = [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000, 30000]
    assert [nominal(DEFAULT, crashes) for crashes in range(1, 12)] == doubled
    assert nominal(DEFAULT, 60) == nominal(DEFAULT, 10**9) == 30_000


def test_without_a_crash_nothing_is_waited() -> None:
    assert nominal(DEFAULT, 0) == 0


@given(st.integers(1, 100), st.floats(0, 1), st.integers(1, 10_000), st.integers(1, 100_000))
def test_half_of_the_delay_is_certain_and_no_more_than_all_is_waited(
    crashes: int, chance: float, base: int, cap: int
) -> None:
    terms = Backoff(base, cap)
    delay = nominal(terms, crashes)
    assert delay <= max(cap, 1000)
    assert delay / 2 <= waited(terms, delay, chance) <= delay


@pytest.mark.parametrize("terms", [Backoff(0, 0, "none"), Backoff(1, 1, "none")])
def test_whatever_a_manifest_says_an_endless_crasher_starts_once_a_second(terms: Backoff) -> None:
    assert [nominal(terms, crashes) for crashes in (1, 2, 5)] == [1, 2, 16]
    assert nominal(terms, 11) == nominal(terms, 10**9) == 1000


def test_jitter_can_be_turned_off() -> None:
    assert {waited(Backoff(jitter="none"), 400, chance) for chance in (0.0, 0.3, 1.0)} == {400.0}


def worst_bucket(jitter: Jitter) -> int:
    """200 agents crash together, again and again: the most that start in the same 100 ms, after the first second."""
    chance, terms = Random(4), Backoff(jitter=jitter)
    starts: Counter[int] = Counter()
    for _ in range(200):
        at = 0.0
        for crashes in range(1, 6):
            at += waited(terms, nominal(terms, crashes), chance.random())
            starts[int(at / 100)] += 1
    return max(times for bucket, times in starts.items() if bucket >= 10)


def test_two_hundred_that_crash_together_do_not_start_together() -> None:
    assert worst_bucket("none") == 200
    assert worst_bucket("equal") * 3 <= worst_bucket("none")


@pytest.mark.parametrize(("chance", "total"), [(0.0, 1550), (1.0, 3100)])
def test_an_instant_crasher_is_given_up_after_1_6_to_3_1_seconds(chance: float, total: float) -> None:
    assert sum(waited(DEFAULT, nominal(DEFAULT, crashes), chance) for crashes in range(1, 6)) == total
