"""One warning before the end, one word at the end, for each resource and crossing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.supervisor.watching import Notice, Usage


def told(limit: int | None, values: list[int]) -> list[str | None]:
    usage = Usage({"memory": limit})
    notices = [usage.note("memory", value) for value in values]
    return [notice.what if notice else None for notice in notices]


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ([79, 80, 81, 99], [None, "resource_warning", None, None]),  # S-55
        ([100, 101, 150], ["exceeded", None, None]),  # S-56
        ([80, 100], ["resource_warning", "exceeded"]),
        ([80, 79, 80], ["resource_warning", None, "resource_warning"]),
        ([100, 90, 100, 10, 100], ["exceeded", None, None, None, "exceeded"]),
    ],
)
def test_notices_by_use_of_a_hundred(values: list[int], what: list[str | None]) -> None:
    assert told(100, values) == what


def test_a_notice_names_resource_value_and_limit() -> None:
    usage = Usage({"memory": 256, "messages": 5})
    assert usage.note("memory", 205) == Notice("resource_warning", "memory", 205, 256)
    assert usage.note("messages", 5) == Notice("exceeded", "messages", 5, 5)


def test_without_a_limit_nothing_is_told() -> None:
    assert told(None, [0, 1 << 60]) == [None, None]
    assert Usage({}).note("disk", 1 << 60) is None


def test_of_a_limit_of_zero_only_use_is_news() -> None:
    assert told(0, [0, 0, 1, 2]) == [None, None, "exceeded", None]


@given(st.integers(1, 1000), st.lists(st.integers(0, 2000)))
def test_nothing_is_told_twice_without_having_been_below_four_fifths(limit: int, values: list[int]) -> None:
    usage, seen = Usage({"r": limit}), set[str]()
    for value in values:
        if value < 0.8 * limit:
            seen.clear()
        if notice := usage.note("r", value):
            assert notice.what not in seen
            assert value >= (limit if notice.what == "exceeded" else 0.8 * limit)
            seen.add(notice.what)
        elif value >= limit:
            assert "exceeded" in seen
