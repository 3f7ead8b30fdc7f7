"""Everybody at one moment: what stands above the table, who comes first, and whom words choose."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.cli.glance import HEADINGS, ORDERS, Glance, agents, head, holds, line, ordered
from agent_os.cli.members import merged
from cli.test_members import declared, process

FACTS: dict[str, Any] = {"version": "0.1.0", "pid": 4121, "seconds": 7300.0, "entries": 12345}
FACTS |= {"approvals": 0, "load": 0.5}


def glance(records: list[dict[str, Any]], processes: list[dict[str, Any]] | None = None, **facts: Any) -> Glance:
    return Glance({**FACTS, **facts}, merged(records, processes or []))


def names(seen: Glance, order: str, words: str = "") -> list[str]:
    return [f"{lead}{row['name']}" for lead, row in ordered(seen, order, words)]


def test_who_is_in_trouble_comes_first() -> None:
    seen = glance([declared("a"), declared("z", "failed", why="max_restarts"), declared("m", "backoff")])
    assert names(seen, "state") == ["z", "m", "a"]


def test_the_largest_the_oldest_and_the_least_lucky_come_first() -> None:
    records = [declared("a", consecutive=1), declared("b", consecutive=3), declared("c")]
    seen = glance(records, [process("a", memory=1, age=9.0), process("b", memory=2, age=1.0)])
    assert names(seen, "memory") == ["b", "a", "c"]
    assert names(seen, "age") == ["a", "b", "c"]
    assert names(seen, "restarts") == ["b", "a", "c"]


def test_a_tree_has_root_and_everybody_below_whom_he_answers_to() -> None:
    team = [declared("team", role="supervisor"), declared("w", parent="default/team")]
    assert names(glance(team), "tree") == ["root", "└ team", "  └ w"]


def test_words_choose_by_name_role_state_parent_and_what_it_does() -> None:
    seen = glance([declared("crawler", role="service"), declared("w", "failed", why="max_restarts")], [])
    assert names(seen, "name", "serv") == ["crawler"]
    assert names(seen, "name", "MAX_restarts") == ["w"]
    assert names(seen, "name", "failed w") == ["w"]
    assert names(seen, "name", "failed crawler") == []
    assert names(seen, "name", "root") == ["crawler", "w"]  # both are its children


@given(st.text(max_size=5), st.sampled_from([*ORDERS, "tree"]))
def test_whatever_is_asked_for_nobody_appears_twice_and_nobody_else_does(words: str, order: str) -> None:
    seen = glance([declared(f"a{number}") for number in range(5)], [process("a1")])
    found = [row["id"] for _, row in ordered(seen, order, words)]
    assert len(found) == len(set(found))
    assert {row["id"] for row in agents(seen) if holds(row, words)} <= set(found)


@pytest.mark.parametrize(
    ("asked", "said"), [(1, "1 waits for you: agentctl approvals"), (2, "2 wait for you: agentctl approvals")]
)
def test_it_says_what_waits_for_a_person_in_a_line_of_its_own(asked: int, said: str) -> None:
    assert head(glance([], approvals=asked))[2:] == [said]
    assert len(head(glance([]))) == 2


def test_the_weakest_walls_are_told_and_the_strongest() -> None:
    both = glance([], [process("a"), process("b", level="S1")])
    assert head(both)[0].endswith("isolation S1–S3")
    assert head(glance([], [process("a")]))[0].endswith("isolation S3")
    assert "isolation" not in head(glance([]))[0]


def test_without_a_kernel_there_is_one_line() -> None:
    assert head(Glance()) == ["no kernel is running: agentctl up starts one"]


def test_a_line_has_a_cell_for_every_heading() -> None:
    for _, row in ordered(glance([declared("a")], [process("b")]), "tree"):
        assert len(line("", row)) == len(HEADINGS)
