"""Deadlines are heard late by a grain at most, never early, and what was dropped leaves nothing."""

from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.bus.wheel import Wheel


@given(st.dictionaries(st.integers(), st.floats(0, 100)), st.sets(st.integers()), st.lists(st.floats(0, 200)))
def test_each_is_heard_once_and_never_early(times: dict[int, float], dropped: set[int], looks: list[float]) -> None:
    wheel: Wheel[int] = Wheel(0.5)
    for thing, at in times.items():
        wheel.set(thing, at)
    for thing in dropped & times.keys():
        wheel.drop(thing, times[thing])
    left = {thing: at for thing, at in times.items() if thing not in dropped}
    for now in [*sorted(looks), 300.0]:
        due = wheel.due(now)
        assert len(due) == len(set(due))
        for thing in due:
            assert left.pop(thing) <= now
        assert all(at > now - 0.5 - 1e-9 for at in left.values())
    assert not left
    assert wheel.next is None


def test_what_is_set_and_dropped_for_ever_takes_no_room() -> None:
    wheel: Wheel[int] = Wheel(0.05)
    for number in range(100_000):
        at = number / 10_000 + 30
        wheel.set(number, at)
        wheel.drop(number, at)
        if number % 100 == 0:
            wheel.due(number / 10_000)
    assert len(wheel._order) == len(wheel._slots) <= 700  # pyright: ignore[reportPrivateUsage]
