import pytest

from agent_os.kernel.models.retries import RetryShare, Tried, decide


def test_pauses_are_drawn_from_a_range_that_doubles():
    longest = [decide(Tried(attempts, "yes"), 0.0, 0.999999).pause for attempts in (1, 2, 3)]
    assert longest == [pytest.approx(0.5, rel=1e-3), pytest.approx(1, rel=1e-3), pytest.approx(2, rel=1e-3)]
    assert decide(Tried(1, "yes"), 0.0, 0.0).pause == 0


def test_the_fourth_attempt_is_the_last():
    assert decide(Tried(3, "yes"), 0.0, 0.5).pause is not None
    assert decide(Tried(4, "yes"), 0.0, 0.5).because == "attempts"


def test_a_garbled_reply_is_tried_once_more():
    assert decide(Tried(1, "once"), 0.0, 0.5).pause is not None
    assert decide(Tried(2, "once"), 0.0, 0.5).because == "attempts"


def test_what_no_repetition_helps_is_not_tried_again():
    assert decide(Tried(1, "no"), 0.0, 0.5).because == "fault"


def test_nothing_is_tried_again_once_the_caller_has_seen_some_of_it():
    assert decide(Tried(1, "yes", delivered=True), 0.0, 0.5).because == "delivered"


def test_what_the_provider_asks_for_is_waited_for():
    pause = decide(Tried(1, "yes", retry_after=20.0), 0.0, 0.5).pause
    assert pause is not None
    assert 20 <= pause <= 20.5


def test_a_wait_past_the_deadline_or_above_a_minute_is_for_the_caller():
    late = decide(Tried(1, "yes", retry_after=20.0, deadline=19.0), 0.0, 0.0)
    assert (late.pause, late.because, late.wait) == (None, "deadline", 20.0)
    long = decide(Tried(1, "yes", retry_after=61.0), 0.0, 0.0)
    assert (long.pause, long.because, long.wait) == (None, "long", 61.0)


def test_a_tenth_of_a_minutes_calls_may_be_retries_and_three_always():
    share = RetryShare()
    for number in range(40):
        share.sent(0.0, retry=number < 3)
    assert share.allows(1.0)
    share.sent(1.0, retry=True)
    assert not share.allows(1.0)
    assert decide(Tried(1, "yes", share=share), 1.0, 0.5).because == "share"
    assert share.allows(61.0)  # all of it is forgotten
    few = RetryShare()
    for _ in range(3):
        assert few.allows(0.0)
        few.sent(0.0, retry=True)
    assert not few.allows(0.0)
