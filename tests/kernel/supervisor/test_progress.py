"""Whoever only repeats a call is noticed, told, and in the end stopped."""

from typing import Any

import pytest

from agent_os.kernel.supervisor.health import HEALTHY
from agent_os.kernel.supervisor.watch import Progress


def found(limit: int | None, calls: list[tuple[str, Any]]) -> list[str | None]:
    progress = Progress(limit)
    return [progress.call(tool, arguments) for tool, arguments in calls]


def test_n_equal_calls_in_a_row_are_told_once_and_twice_as_many_are_a_loop() -> None:
    assert found(3, [("fs.read", {"path": "/a"})] * 9) == [
        None,
        None,
        "repeats",
        None,
        None,
        "loop",
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    "other",
    [("fs.read", {"path": "/b"}), ("fs.list", {"path": "/a"}), ("fs.read", {}), ("fs.read", {"path": "/a", "n": None})],
)
def test_any_other_call_between_begins_the_count_anew(other: tuple[str, Any]) -> None:
    same = ("fs.read", {"path": "/a"})
    assert found(3, [same, same, other, same, same]) == [None] * 5


def test_the_order_of_arguments_is_no_difference() -> None:
    assert found(2, [("t", {"a": 1, "b": {"c": 1, "d": 2}}), ("t", {"b": {"d": 2, "c": 1}, "a": 1})])[1] == "repeats"


def test_a_number_is_not_its_text() -> None:
    assert found(2, [("t", {"a": 1}), ("t", {"a": "1"})]) == [None, None]


@pytest.mark.parametrize("odd", [{"n": 1 << 80}, {"s": "\ud800"}, {"o": object}])
def test_arguments_that_our_wire_cannot_hold_count_too(odd: Any) -> None:
    assert found(2, [("t", odd)] * 4) == [None, "repeats", None, "loop"]


def test_off_it_finds_nothing() -> None:
    assert found(None, [("t", {})] * 100) == [None] * 100


def test_it_is_unhealthy_until_it_does_something_else() -> None:
    progress = Progress(2)
    assert progress.health is HEALTHY
    progress.call("web.get", {"url": "x"})
    progress.call("web.get", {"url": "x"})
    assert str(progress.health) == "unhealthy: it called web.get with the same arguments 2 times in a row"
    progress.call("web.get", {"url": "y"})
    assert progress.health is HEALTHY
