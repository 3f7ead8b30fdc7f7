"""`agentctl history`: a life in one line, with why it ended and what followed."""

from typing import Any

import pytest

from agent_os.cli.history import _cells  # pyright: ignore[reportPrivateUsage]

S = 10**9
LIFE: dict[str, Any] = {"incarnation": 2, "level": "S3", "began_ns": 100 * S, "ready_ns": 100 * S + S // 2}
LIFE |= {"ended_ns": 103 * S, "class": "error", "code": 3, "reason": "", "decision": "restart", "why": "error"}
LIFE |= {"delay_ms": 200}


def shown(**facts: Any) -> tuple[str, ...]:
    life, level, _, *rest = _cells({**LIFE, **facts})
    return (life, level, *rest)


@pytest.mark.parametrize(
    ("facts", "cells"),
    [
        ({}, ("2", "S3", "0.50 s", "3.00 s", "error", "3", "restart in 0.2 s", "-")),
        (
            {"decision": "fail", "why": "max_restarts", "delay_ms": 0, "reason": "it fell"},
            ("2", "S3", "0.50 s", "3.00 s", "error", "3", "fail: max_restarts", "it fell"),
        ),
        (
            {"class": None, "code": None, "ended_ns": None, "decision": None, "delay_ms": None, "reason": None},
            ("2", "S3", "0.50 s", "runs", "-", "-", "-", "-"),
        ),
        (
            {"ended_ns": 800 * S, "ready_ns": None, "level": None, "decision": None, "delay_ms": None, "code": 0},
            ("2", "-", "-", "11m", "error", "0", "-", "-"),
        ),
    ],
)
def test_a_life_in_one_line(facts: dict[str, Any], cells: tuple[str, ...]) -> None:
    assert shown(**facts) == cells


def test_a_clock_that_was_set_back_gives_no_negative_time() -> None:
    assert shown(ended_ns=90 * S)[3] == "0.00 s"
