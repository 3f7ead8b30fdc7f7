"""The order of goals that wait, without regard to room."""

from typing import Any

import pytest

from agent_os.kernel.goals.goal import PRIORITIES, Goal, Waiting
from agent_os.kernel.goals.queue import AGING_SECS, SLACK_SECS, Lines
from agent_os.kernel.goals.shares import START_SECS, Standing
from agent_os.kernel.supervisor.terms import Priority

LEVEL = {tenant: Standing(0, 0.0) for tenant in "abc"}


def waiting(name: str, priority: Priority = "normal", at: float = 0.0, **goal: Any) -> Waiting:
    """`a3` is the goal of tenant a that arrived third."""
    asked = Goal("do it", tenant=name[0], priority=priority, **goal)
    return Waiting(name, int(name[1:]), asked, f"{name[0]}/x", "named", priority, at, 1)


def lines(*goals: Waiting) -> Lines:
    made = Lines()
    for one in goals:
        made.add(one)
    return made


def order(made: Lines, now: float = 0.0, standings: dict[str, Standing] | None = None) -> list[str]:
    return [one.id for one in made.in_order(standings or LEVEL, now)]


def test_tenants_with_equal_standing_take_turns() -> None:
    made = lines(*(waiting(name) for name in ("a1", "a2", "a3", "b4", "b5", "c6")))
    assert order(made) == ["a1", "b4", "c6", "a2", "b5", "a3"]


def test_the_tenant_with_more_at_work_waits_until_the_others_have_as_many() -> None:
    made = lines(*(waiting(name) for name in ("a1", "a2", "b3", "b4", "b5")))
    assert order(made, standings=LEVEL | {"a": Standing(2, 0.0)}) == ["b3", "b4", "a1", "b5", "a2"]


def test_goals_come_by_arrival_however_they_were_added() -> None:
    made = lines(*(waiting(name) for name in ("a3", "a1", "a2")))
    assert order(made) == ["a1", "a2", "a3"]


@pytest.mark.parametrize(
    ("priority", "waited", "before"),
    [
        ("low", 1.0 * AGING_SECS - 1, {"low"}),
        ("low", 1.0 * AGING_SECS, {"low", "normal"}),
        ("low", 2.0 * AGING_SECS, {"low", "normal", "high"}),
        ("low", 9.0 * AGING_SECS, {"low", "normal", "high"}),
        ("normal", 1.0 * AGING_SECS - 1, {"low", "normal"}),
        ("normal", 1.0 * AGING_SECS, {"low", "normal", "high"}),
        ("critical", 0.0, set(PRIORITIES)),
    ],
)
def test_waiting_lifts_a_class_every_ten_minutes_and_never_to_critical(
    priority: Priority, waited: float, before: set[str]
) -> None:
    fresh = [waiting(f"b{10 + rank}", word, at=waited) for rank, word in enumerate(PRIORITIES)]
    old = waiting("a1", priority, at=0.0)
    found = order(lines(old, *fresh), now=waited)
    assert {one.priority for one in fresh if one.id in found[found.index("a1") :]} == before


def test_only_the_oldest_of_a_line_is_lifted_and_serving_it_takes_that_back() -> None:
    made = lines(*(waiting(name, "low") for name in ("a1", "a2", "a3")), waiting("b4", "high", at=5000.0))
    assert order(made, now=5000.0) == ["a1", "b4", "a2", "a3"]
    made.serve(next(iter(made.in_order(LEVEL, 5000.0))), 5000.0)
    assert order(made, now=5000.0) == ["b4", "a2", "a3"]
    assert order(made, now=5000.0 + 2 * AGING_SECS) == ["a2", "b4", "a3"]


def test_deadlines_come_by_time_and_only_while_the_tenant_is_not_ahead() -> None:
    made = lines(waiting("a1", deadline=900.0), waiting("a2", deadline=100.0), waiting("b3"))
    assert order(made) == ["a2", "a1", "b3"]
    ahead = LEVEL | {"a": Standing(1, SLACK_SECS + 1)}
    assert order(made, standings=ahead) == ["b3", "a2", "a1"]


def test_of_many_deadlines_only_those_within_the_slack_go_first() -> None:
    heeded = int(SLACK_SECS / START_SECS) + 1
    made = lines(*(waiting(f"a{number}", deadline=1e6) for number in range(1, 50)), waiting("b60"))
    assert order(made).index("b60") == heeded


def test_counts_follow_what_is_removed() -> None:
    one, other = waiting("a1"), waiting("a2", "low")
    made = lines(one, other)
    assert (made.count("a"), made.tenants()) == (2, {"a"})
    made.remove(one)
    made.remove(other)
    assert (made.count("a"), made.tenants(), order(made)) == (0, set(), [])
