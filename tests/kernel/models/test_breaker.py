import math

from agent_os.kernel.models.breaker import Breaker


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker()
    for number in range(5):
        breaker.failed(f"c{number}", now)
    return breaker


def test_five_failures_in_a_row_open_it():
    breaker = Breaker()
    for number in range(4):
        breaker.failed(f"c{number}", 0.0)
        assert breaker.allows(0.0)
    breaker.failed("c5", 0.0)
    assert not breaker.allows(14.9)
    assert breaker.again_at(0.0) == 15.0


def test_a_success_between_begins_the_count_anew():
    breaker = Breaker()
    for number in range(12):
        breaker.failed(f"f{number}", 0.0) if number % 4 else breaker.succeeded(f"s{number}", 0.0)
    assert breaker.allows(0.0)


def test_half_of_twenty_within_thirty_seconds_open_it():
    breaker = Breaker()
    for number in range(20):
        assert breaker.allows(number)
        breaker.failed(f"c{number}", number) if number % 2 else breaker.succeeded(f"c{number}", number)
    assert not breaker.allows(20)


def test_what_is_older_than_thirty_seconds_is_forgotten():
    breaker = Breaker()
    for number in range(40):
        breaker.failed(f"c{number}", number * 4) if number % 2 else breaker.succeeded(f"c{number}", number * 4)
    assert breaker.allows(160)


def test_failures_that_will_not_pass_and_full_keys_do_not_count():
    breaker = Breaker()
    for number in range(50):
        breaker.failed(f"c{number}", 0.0, counts=False)
        breaker.busy(f"b{number}", 0.0)
    assert breaker.allows(0.0)


def test_one_probe_at_a_time_and_its_success_closes_it():
    breaker = opened()
    assert breaker.allows(15.0)
    breaker.left("probe", 15.0)
    assert not breaker.allows(15.0)
    assert breaker.again_at(15.0) == math.inf
    breaker.succeeded("probe", 16.0)
    assert breaker.allows(16.0)
    assert not breaker.open


def test_a_success_of_a_call_from_before_proves_nothing():
    breaker = opened()
    breaker.succeeded("old", 1.0)
    assert not breaker.allows(2.0)


def test_each_failed_probe_doubles_the_pause_up_to_five_minutes():
    breaker, now, pauses = opened(), 0.0, list[float]()
    for number in range(7):
        pauses.append(breaker.again_at(now) - now)
        now = breaker.again_at(now)
        breaker.left(f"p{number}", now)
        breaker.failed(f"p{number}", now)
    assert pauses == [15, 30, 60, 120, 240, 300, 300]


def test_a_probe_that_was_cancelled_makes_way_for_another():
    breaker = opened()
    breaker.left("probe", 15.0)
    breaker.failed("probe", 15.0, counts=False)
    assert breaker.allows(15.0)
    assert breaker.open


def test_a_full_key_is_a_sign_of_life():
    breaker = opened()
    breaker.left("probe", 15.0)
    breaker.busy("probe", 15.5)
    assert not breaker.open
