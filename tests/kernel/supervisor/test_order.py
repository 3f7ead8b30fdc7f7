"""Strategies: who is stopped and started with a failed child, in which order."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.order import Lists, Sibling, affected, stopping
from agent_os.kernel.supervisor.terms import RestartPolicy, State, Strategy


def children(*ids: str, policy: RestartPolicy = RestartPolicy.ON_FAILURE, **states: State) -> tuple[Sibling, ...]:
    return tuple(Sibling(one, policy, states.get(one, State.ACTIVE)) for one in ids)


@pytest.mark.parametrize(
    ("strategy", "failed", "expected"),
    [
        (Strategy.ONE_FOR_ONE, "b", Lists((), ("b",))),
        (Strategy.ONE_FOR_ALL, "b", Lists(("c", "a"), ("a", "b", "c"))),
        (Strategy.REST_FOR_ONE, "b", Lists(("c",), ("b", "c"))),
        (Strategy.REST_FOR_ONE, "a", Lists(("c", "b"), ("a", "b", "c"))),
        (Strategy.REST_FOR_ONE, "c", Lists((), ("c",))),
    ],
)
def test_stops_go_backwards_and_starts_forwards(strategy: Strategy, failed: str, expected: Lists) -> None:
    assert affected(strategy, children("a", "b", "c"), failed) == expected


def test_a_sibling_that_is_never_restarted_is_stopped_and_stays_so() -> None:
    group = children("a", "b") + children("c", policy=RestartPolicy.NEVER) + children("d")
    assert affected(Strategy.ONE_FOR_ALL, group, "a") == Lists(("d", "c", "b"), ("a", "b", "d"))


@pytest.mark.parametrize("state", [State.STOPPED, State.COMPLETED, State.FAILED, State.QUARANTINED, State.BLOCKED])
@pytest.mark.parametrize("strategy", [Strategy.ONE_FOR_ALL, Strategy.REST_FOR_ONE])
def test_no_strategy_brings_back_who_ended_for_a_reason_of_its_own(strategy: Strategy, state: State) -> None:
    assert affected(strategy, children("a", "b", "c", b=state), "a") == Lists(("c",), ("a", "c"))


@pytest.mark.parametrize("state", [State.PENDING, State.BACKOFF])
def test_who_waits_to_be_started_keeps_its_place_in_the_order(state: State) -> None:
    assert affected(Strategy.ONE_FOR_ALL, children("a", "b", "c", b=state), "c") == Lists(("a",), ("a", "b", "c"))


def test_those_that_live_are_stopped_the_last_started_first() -> None:
    assert stopping(children("a", "b", "c", "d", c=State.COMPLETED)) == ("d", "b", "a")


groups = st.lists(st.tuples(st.sampled_from(list(RestartPolicy)), st.sampled_from(list(State))), min_size=1, max_size=9)


@given(groups, st.data(), st.sampled_from(list(Strategy)))
def test_only_the_failed_one_and_siblings_that_live_or_wait_are_touched(
    drawn: list[tuple[RestartPolicy, State]], data: st.DataObject, strategy: Strategy
) -> None:
    group = [Sibling(str(number), *one) for number, one in enumerate(drawn)]
    failed = data.draw(st.sampled_from(group)).id
    stop, start = affected(strategy, group, failed)
    assert failed in start
    assert failed not in stop
    assert list(start) == sorted(start, key=int)
    assert list(stop) == sorted(stop, key=int, reverse=True)
    live = {one.id for one in group if one.state is State.ACTIVE}
    waiting = {one.id for one in group if one.state in (State.PENDING, State.BACKOFF)}
    assert set(stop) <= live
    assert set(start) <= set(stop) | waiting | {failed}
    if strategy is Strategy.REST_FOR_ONE:
        assert all(int(one) >= int(failed) for one in (*stop, *start))
