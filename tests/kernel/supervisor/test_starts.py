"""The start limiter: a burst is flattened, by priority, and nobody waits for ever."""

from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.pacing import Starts
from agent_os.kernel.supervisor.terms import Priority

PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high", "critical")


def test_no_more_start_at_once_than_there_are_slots() -> None:
    starts = Starts(4)
    for number in range(200):
        starts.ask(f"a{number}", "normal", 0.0)
    assert starts.admit(0.0) == ["a0", "a1", "a2", "a3"]
    assert starts.admit(0.0) == []
    starts.leave("a2")
    assert starts.admit(0.1) == ["a4"]
    assert len(starts) == 195


def test_in_a_burst_the_higher_priority_goes_first_and_equals_in_turn() -> None:
    starts = Starts(8)
    for number, priority in enumerate((*PRIORITIES, *PRIORITIES)):
        starts.ask(f"{priority}{number}", priority, 0.0)
    order = ["critical3", "critical7", "high2", "high6", "normal1", "normal5", "low0", "low4"]
    assert starts.admit(0.0) == order


def test_one_that_never_becomes_ready_passes_its_slot_on() -> None:
    starts = Starts(1, hold_secs=2.0)
    starts.ask("stuck", "critical", 0.0)
    starts.ask("next", "low", 0.0)
    assert starts.admit(0.0) == ["stuck"]
    assert starts.again_at() == 2.0
    assert starts.admit(1.9) == []
    assert starts.admit(2.0) == ["next"]
    assert starts.again_at() is None


def test_who_is_stopped_before_its_turn_never_gets_one() -> None:
    starts = Starts(1)
    starts.ask("a", "normal", 0.0)
    starts.ask("b", "normal", 0.0)
    starts.leave("a")
    assert starts.admit(0.0) == ["b"]


def test_who_leaves_and_asks_again_stands_at_the_end_and_asking_twice_changes_nothing() -> None:
    starts = Starts(3)
    starts.ask("a", "normal", 0.0)
    starts.ask("b", "normal", 0.0)
    starts.leave("a")
    starts.ask("a", "normal", 0.0)
    starts.ask("a", "critical", 0.0)
    assert starts.admit(0.0) == ["b", "a"]


def test_a_stream_of_critical_ones_does_not_starve_a_low_one() -> None:
    starts = Starts(1, hold_secs=1.0)
    starts.ask("low", "low", 0.0)
    for second in range(100):
        starts.ask(f"c{second}", "critical", float(second))
        if "low" in starts.admit(float(second)):
            assert second <= 31
            return
    raise AssertionError("it was never started")


@given(st.lists(st.tuples(st.sampled_from(PRIORITIES), st.booleans()), max_size=60), st.integers(1, 8))
def test_everybody_who_stays_in_line_is_started_once(asked: list[tuple[Priority, bool]], slots: int) -> None:
    starts, now, started = Starts(slots), 0.0, list[str]()
    for number, (priority, _) in enumerate(asked):
        starts.ask(str(number), priority, now)
    for number, (_, stays) in enumerate(asked):
        if not stays:
            starts.leave(str(number))
    while len(starts):
        admitted = starts.admit(now)
        assert 0 < len(admitted) <= slots
        started += admitted
        now = starts.again_at() or now
    assert sorted(started, key=int) == [str(number) for number, (_, stays) in enumerate(asked) if stays]
