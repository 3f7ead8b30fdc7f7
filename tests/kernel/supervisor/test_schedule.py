"""Scheduled runs: due when cron says so, missed ones once together, never two at a time."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.supervisor.schedule import Schedule

HOUR = 3600.0
BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC if zone == "UTC" else ZoneInfo(zone)).timestamp()


NOON = at("2026-03-10T12:00:00")


def test_the_next_due_time_is_later_than_the_moment_itself() -> None:
    hourly = Schedule("0 * * * *")
    assert hourly.after(NOON) == NOON + HOUR
    assert hourly.after(NOON - 0.5) == NOON
    assert hourly.after(NOON + 0.5) == NOON + HOUR


def test_a_zone_moves_the_clock_of_the_expression() -> None:
    assert Schedule("30 6 * * *", BERLIN).after(NOON) == at("2026-03-11T06:30:00", BERLIN) == at("2026-03-11T05:30:00")


def test_an_hour_that_does_not_exist_runs_just_after_it_and_once() -> None:
    nightly = Schedule("30 2 * * *", BERLIN)
    before = at("2026-03-29T01:00:00", BERLIN)
    first = nightly.after(before)
    assert first == at("2026-03-29T03:00:00", BERLIN)
    assert nightly.after(first) == at("2026-03-30T02:30:00", BERLIN)


def test_an_hour_that_comes_twice_runs_once() -> None:
    nightly = Schedule("30 2 * * *", BERLIN)
    first = nightly.after(at("2026-10-25T00:00:00", BERLIN))
    assert first == at("2026-10-25T00:30:00")  # summer time
    assert nightly.after(first) == at("2026-10-26T02:30:00", BERLIN)
    assert nightly.after(first + HOUR - 900) == at("2026-10-26T02:30:00", BERLIN), "asked within the second time"


def test_nothing_due_is_waited_for() -> None:
    look = Schedule("0 * * * *").look(NOON, NOON + 60)
    assert (look.act, look.next, look.passed, look.missed) == ("wait", NOON + HOUR, 0, 0)


def test_due_it_starts_and_does_not_start_again() -> None:
    hourly = Schedule("0 * * * *")
    look = hourly.look(NOON, NOON + HOUR)
    assert (look.act, look.settled, look.next, look.missed, look.first) == (
        "start",
        NOON + HOUR,
        NOON + 2 * HOUR,
        0,
        NOON + HOUR,
    )
    assert hourly.look(look.settled, NOON + HOUR).act == "wait"
    assert hourly.look(look.settled, NOON + HOUR + 1).act == "wait"


def test_a_kernel_that_was_down_over_two_due_times_starts_once_and_records_the_missed_run() -> None:
    hourly = Schedule("0 * * * *")
    look = hourly.look(NOON, NOON + 2.5 * HOUR)
    assert (look.act, look.passed, look.missed, look.first) == ("start", 2, 1, NOON + HOUR)
    assert hourly.look(look.settled, NOON + 2.5 * HOUR).act == "wait"
    assert look.next == NOON + 3 * HOUR


def test_a_run_due_while_the_last_still_lives_is_skipped_and_not_caught_up() -> None:
    hourly = Schedule("0 * * * *")
    look = hourly.look(NOON, NOON + HOUR, alive=True)
    assert (look.act, look.missed, look.first) == ("skip", 1, NOON + HOUR)
    assert hourly.look(look.settled, NOON + HOUR + 5).act == "wait"


def test_a_year_of_missed_minutes_starts_once_and_is_not_counted_for_seconds() -> None:
    look = Schedule("* * * * *").look(NOON, NOON + 365 * 24 * HOUR)
    assert (look.act, look.passed) == ("start", 1000)
    assert look.next == NOON + 365 * 24 * HOUR + 60


def test_a_clock_set_back_a_little_repeats_nothing() -> None:
    look = Schedule("0 * * * *").look(NOON, NOON - HOUR / 2)
    assert (look.act, look.settled, look.next) == ("wait", NOON, NOON + HOUR)


def test_a_clock_that_was_wrong_by_years_does_not_stop_the_schedule() -> None:
    look = Schedule("0 * * * *").look(at("2040-01-01T00:00:00"), NOON)
    assert (look.act, look.settled, look.next) == ("wait", NOON, NOON + HOUR)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "has 0 fields"),
        ("* * * *", "has 4 fields"),
        ("0 0 * * * *", "has 6 fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * * * MOO", "bad day-of-week"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 30 2 *", "bad day-of-month"),
        ("@daily", "has 1 fields"),
        ("1," * 300 + "1 * * * *", "is too long"),
    ],
)
def test_what_is_no_schedule_is_refused_in_words(expression: str, says: str) -> None:
    with pytest.raises(EINVAL) as caught:
        Schedule(expression)
    assert caught.value.code == "schedule.expression"
    assert says in caught.value.reason
    assert "five fields" in caught.value.hint


@pytest.mark.parametrize(
    "zone", ["Europe/Berln", "", "../../etc/passwd", "/etc/localtime", "a\0b", "Europe", "x" * 5000]
)
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(EINVAL) as caught:
        Schedule("0 * * * *", zone)
    assert caught.value.code == "schedule.timezone"


FIELD = st.text("0123456789*/-,#LW", min_size=1, max_size=6) | st.sampled_from(["*", "MON", "JAN", "5#5", "L", "1/7"])


@given(st.lists(FIELD, min_size=5, max_size=5).map(" ".join) | st.text(max_size=20))
def test_any_text_is_a_schedule_that_comes_due_or_is_refused(expression: str) -> None:
    try:
        schedule = Schedule(expression)
    except EINVAL:
        return
    due = schedule.after(NOON)
    assert due is not None
    assert due > NOON


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=20), st.booleans())
def test_however_often_one_looks_each_due_time_is_settled_exactly_once(gaps: list[int], berlin: bool) -> None:
    schedule = Schedule("*/20 1-4 * * *", BERLIN if berlin else "UTC")
    began = now = settled = at("2026-10-24T22:00:00")
    passed = 0
    for gap in gaps:
        now += gap
        look = schedule.look(settled, now)
        assert look.missed == max(0, look.passed - 1)
        settled, passed = look.settled, passed + look.passed
    assert passed == schedule.look(began, now).passed
