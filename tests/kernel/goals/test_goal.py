"""What is asked for is a goal, or every problem with it is named."""

from typing import Any

import pytest

from agent_os.abi.errors import EINVAL, EPERM
from agent_os.kernel.goals.goal import LONGEST_TEXT, Goal, read, require_priority


def test_bare_text_is_a_whole_goal() -> None:
    assert read("Summarise the news") == Goal("Summarise the news")


def test_every_key_is_taken_and_none_means_left_out() -> None:
    asked: dict[str, Any] = {
        "text": "Count",
        "agent": "counter",
        "tenant": "lab",
        "priority": "high",
        "deadline": 1.8e9,
        "budget": {"tokens": 1000, "usd": 0.5},
        "memory_mb": 64,
        "inputs": {"file": "a.csv"},
    }
    assert read(asked) == Goal(**asked)
    assert read({"text": "Count", "agent": None, "deadline": None, "budget": None}) == Goal("Count")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("", "`text`"),
        (" \n", "`text`"),
        ({}, "`text`"),
        ({"text": 5}, "`text`"),
        ("x" * (LONGEST_TEXT + 1), "characters"),
        ({"text": "a", "agent": ""}, "`agent`"),
        ({"text": "a", "agent": 7}, "`agent`"),
        ({"text": "a", "tenant": ["b"]}, "`tenant`"),
        ({"text": "a", "priority": "urgent"}, "critical, high, normal, low"),
        ({"text": "a", "priority": ["high"]}, "`priority`"),
        ({"text": "a", "deadline": "soon"}, "`deadline`"),
        ({"text": "a", "deadline": True}, "`deadline`"),
        ({"text": "a", "deadline": float("nan")}, "`deadline`"),
        ({"text": "a", "memory_mb": -1}, "`memory_mb`"),
        ({"text": "a", "memory_mb": 1.5}, "`memory_mb`"),
        ({"text": "a", "budget": 5}, "`budget`"),
        ({"text": "a", "budget": {"tokens": -1}}, "`budget`"),
        ({"text": "a", "budget": {"tokens": None}}, "`budget`"),
        ({"text": "a", "inputs": [1]}, "`inputs`"),
        ({"text": "a", "priorty": "high"}, "`priorty` unknown, did you mean `priority`?"),
    ],
)
def test_what_is_no_goal_is_refused_naming_the_key(asked: Any, says: str) -> None:
    with pytest.raises(EINVAL) as caught:
        read(asked)
    assert says in caught.value.reason


def test_all_problems_are_named_in_one_go() -> None:
    with pytest.raises(EINVAL) as caught:
        read({"txt": "a", "priority": "urgent", "memory_mb": "x"})
    assert len(caught.value.detail["problems"]) == 4  # type: ignore[arg-type]


def test_a_bad_priority_lists_the_four_names() -> None:
    with pytest.raises(EINVAL) as caught:
        require_priority("urgent", operator=True)
    assert caught.value.hint == "one of critical, high, normal, low"


def test_critical_is_for_operators() -> None:
    with pytest.raises(EPERM):
        require_priority("critical", operator=False)
    assert require_priority("critical", operator=True) == "critical"
    assert require_priority("high", operator=False) == "high"
