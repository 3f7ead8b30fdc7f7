"""Everybody as one list: declared agents and others, whatever their rows say, each once and in its place."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_os.cli.members import ROOT, command, in_tree, is_shown, merged, now, restarts, states

Row = dict[str, Any]


def declared(name: str, state: str = "active", **facts: Any) -> Row:
    row: Row = {"id": f"default/{name}", "role": "worker", "parent": ROOT, "index": 0, "wanted": True, "state": state}
    row |= {"why": "", "until": None, "incarnation": 1, "pid": 7, "consecutive": 0, "max_restarts": 5}
    row |= {"policy": "on_failure", "activation": "always", "ready": True, "needs": [], "health": "healthy"}
    return {**row, **facts}


def process(name: str, **facts: Any) -> Row:
    row: Row = {"id": f"default/{name}", "name": name, "kind": "guest", "state": "running", "detail": "", "number": 7}
    row |= {"pid": 4711, "incarnation": 1, "isolation": "S3", "level": "S3", "parent": None, "limits": "v1", "age": 2.0}
    return {**row, "memory": 1000, "processes": 1, "command": ["sleep", "9"], "project": None, **facts}


def only(rows: list[Row]) -> Row:
    found = [row for row in rows if row["id"] != ROOT]
    assert len(found) == 1
    return found[0]


def test_a_declared_agent_and_its_process_are_one_row() -> None:
    row = only(merged([declared("a", role="service", parent="default/team")], [process("a")]))
    assert (row["name"], row["role"], row["parent"]) == ("a", "service", "default/team")
    assert (row["state"], row["pid"], row["number"]) == ("running", 4711, 7)


def test_an_agent_without_a_manifest_is_roots_child() -> None:
    row = only(merged([], [process("plain")]))
    assert (row["declared"], row["role"], row["parent"]) == (False, "worker", ROOT)


def test_the_state_of_one_without_a_process_is_that_of_its_record() -> None:
    rows = merged([declared("b", "backoff", why="error", until=103.2)], [])
    assert now(only(rows), 100.0) == "again in 3 s, after error"
    assert only(merged([declared("f", "failed", why="max_restarts")], []))["state"] == "failed"


def test_a_process_that_is_not_ready_yet_is_starting() -> None:
    assert only(merged([declared("a", ready=False)], [process("a")]))["state"] == "starting"
    assert only(merged([declared("a", ready=False)], [process("a", state="paused")]))["state"] == "paused"


def test_one_whose_requirement_is_gone_runs_and_says_whom_it_needs() -> None:
    row = only(merged([declared("a", ready=False, needs=["default/clock", "ops/db"])], [process("a")]))
    assert (row["state"], now(row)) == ("running", "not ready: needs clock, ops/db")
    blocked = only(merged([declared("a", "blocked", why="dependency", ready=False, needs=["default/clock"])], []))
    assert now(blocked) == "needs clock"


def test_a_supervisor_without_a_program_runs() -> None:
    assert only(merged([declared("team", role="supervisor")], []))["state"] == "running"


def test_what_is_unwell_says_why_in_place_of_its_command() -> None:
    row = only(merged([declared("a", health="degraded: slow")], [process("a")]))
    assert now(row) == "degraded: slow"
    assert now(only(merged([declared("a")], [process("a")]))) == "sleep 9"


def test_restarts_are_never_more_than_there_may_be() -> None:
    assert restarts({**declared("a", consecutive=3, max_restarts=2), "declared": True}) == "2/2"
    assert restarts({**declared("a", policy="never"), "declared": True}) == "never"
    assert restarts({**process("a"), "declared": False}) == "-"


def test_lists_show_who_failed_and_who_waits_for_its_time_but_not_who_is_done() -> None:
    row = lambda state, **facts: {**declared("a", state, **facts), "declared": True}  # noqa: E731
    assert is_shown(row("failed"))
    assert is_shown(row("completed", activation="on_schedule"))
    assert not is_shown(row("completed"))
    assert not is_shown(row("stopped"))
    assert not is_shown({**process("a", state="failed"), "declared": False})


def test_an_authors_agent_is_shown_as_its_file_and_function() -> None:
    assert (
        command(process("a", kind="native", command=["python", "-c", "import …", "/x/tally.py:tally"]))
        == "tally.py:tally"
    )


def test_the_tree_follows_the_order_of_start_and_draws_the_lines() -> None:
    team = declared("team", index=1)
    rows = merged(
        [
            {**declared("root"), "id": ROOT, "parent": None},
            declared("late", index=2),
            team,
            declared("second", parent=team["id"], index=2),
            declared("first", parent=team["id"], index=1),
        ],
        [process("plain")],
    )
    drawn = [f"{lead}{row['name']}" for lead, row in in_tree(rows)]
    assert drawn == ["root", "├ team", "│ ├ first", "│ └ second", "├ late", "└ plain"]
    assert [row["name"] for _, row in in_tree(rows, team["id"])] == ["team", "first", "second"]


def test_states_are_counted_the_frequent_first() -> None:
    assert states([{"state": "failed"}, {"state": "running"}, {"state": "running"}]) == "2 running, 1 failed"
    assert states([]) == "none"


@given(st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 12))), unique_by=lambda one: one[0]))
def test_whatever_parents_are_told_nobody_is_drawn_twice(family: list[tuple[int, int | None]]) -> None:
    """Parents that are not listed, circles, one's own parent: rows of agents come and go while they are read."""
    living = [process(f"a{child}", parent=None if above is None else f"default/a{above}") for child, above in family]
    drawn = [row["id"] for _, row in in_tree(merged([], living))]
    assert len(drawn) == len(set(drawn))
    assert drawn[0] == ROOT
    below_root = {row["id"] for row in merged([], living) if row["parent"] == ROOT}
    assert below_root <= {ROOT, *drawn}
