"""Entries as events: one entry makes the same events always, and a cursor says exactly which of them somebody has."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.gateway import cursors
from agent_os.gateway.cursors import Cursor
from agent_os.gateway.events import Choice, after, events_of, ids, types_of, whom

LOG = "0123456789abcdef" * 2


def entry(kind: str, seq: int = 7, agent: str = "default/a", **more: Any) -> dict[str, Any]:
    return {"seq": seq, "time": "2026-11-17T00:00:00.000000+00:00", "agent": agent, "kind": kind, **more}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (entry("spawn"), ["agent.state"]),
        (entry("exit"), ["agent.state"]),
        (entry("boot", agent="kernel"), ["agent.state"]),
        (entry("state", body={"event": "ready"}), ["agent.state"]),
        (entry("state", body={"event": "bus"}), ["message"]),
        (entry("result", op="SYS_READ", verdict="allow"), ["decision"]),
        (entry("decision", op="SYS_SEND", verdict="refuse"), ["decision"]),
        (entry("outcome", op="SYS_SEND"), ["message"]),
        (entry("outcome", op="OP_POST", agent="local:0"), ["message"]),
        (entry("result", op="SYS_THINK", cost={"cost": 12, "tokens": 3}), ["decision", "cost"]),
        (entry("result", op="SYS_SEND", cost={"messages": 1}), ["message"]),
        (entry("budget", cost={"cost": 12}), ["cost"]),
        (entry("approval", verdict="ask"), ["approval.new"]),
        (entry("approval", verdict="allow"), ["approval.done"]),
        (entry("approval", verdict="refuse"), ["approval.done"]),
        (entry("approval", agent="kernel", body={"forgotten": "q-1"}), []),
        (entry("result", op="OP_STATUS", agent="local:0"), []),
        (entry("decision", op="OP_DOWN", agent="token:v", verdict="refuse"), ["decision"]),
        (entry("dead"), ["message"]),
        (entry("head"), []),
        (entry("policy.load", agent="kernel"), []),
        (entry("99"), []),  # of a later release
    ],
)
def test_each_entry_has_its_word(found: dict[str, Any], words: list[str]) -> None:
    assert types_of(found) == words


def test_an_answer_concerns_the_agent_that_asked_and_not_the_person_who_gave_it() -> None:
    answered = entry("approval", agent="local:0", verdict="allow", body={"agent": "default/a"})
    assert whom(answered) == "default/a"
    assert whom(entry("approval", agent="local:0", verdict="allow", body={"size": 3})) is None
    assert whom(entry("signal")) == "default/a"
    assert whom(entry("boot", agent="kernel")) is None


def test_what_was_spent_is_told_beside_the_call_and_both_can_be_told_apart() -> None:
    decision, cost = events_of(entry("result", op="SYS_THINK", cost={"cost": 5}), LOG)
    assert (decision.type, str(decision.cursor)) == ("decision", f"{LOG}.7.1")
    assert (cost.type, str(cost.cursor)) == ("cost", f"{LOG}.7")
    said = json.loads(cost.text)
    assert said["data"]["cost"] == {"cost": 5}
    assert said.keys() == {"type", "cursor", "ts", "agent", "data"}


def test_a_large_body_is_told_by_its_size() -> None:
    (event,) = events_of(entry("spawn", body={"text": "x" * 10_000}), LOG)
    assert json.loads(event.text)["data"]["body"] == {"size": 10_011}
    (event,) = events_of(entry("spawn", body={"raw": b"\xff"}), LOG)
    assert json.loads(event.text)["data"]["body"] == {"raw": {"base64": "/w=="}}


def test_a_cursor_is_read_as_it_was_written_and_nothing_else_is_one() -> None:
    for cursor in (Cursor(LOG, 0), Cursor(LOG, 12), Cursor(LOG, 12, 1)):
        assert cursors.read(str(cursor)) == cursor
    for text in (
        "",
        "12",
        f"{LOG}.",
        f"{LOG}.-1",
        f"{LOG}.1.0",
        f"{LOG}.1.2.3",
        f"{LOG[:-1]}.1",
        f"{LOG}.1\n",
        f"{LOG}.٣",
    ):
        assert cursors.read(text) is None, text


def test_a_choice_is_by_word_and_by_agent() -> None:
    (event,) = events_of(entry("spawn"), LOG)
    assert Choice().takes(event)
    assert Choice(frozenset({"agent.state"}), ids(["a"])).takes(event)
    assert not Choice(frozenset({"decision"})).takes(event)
    assert not Choice(agents=ids(["b", "other/a"])).takes(event)


KINDS = st.sampled_from(["spawn", "head", "result", "budget", "approval"])
COSTS = st.sampled_from([{}, {"cost": 1}])


@given(st.lists(st.tuples(KINDS, COSTS), max_size=30), st.lists(st.integers(1, 5), max_size=30))
def test_whoever_is_cut_off_anywhere_and_comes_back_has_every_event_once(
    made: list[tuple[str, dict[str, int]]], cuts: list[int]
) -> None:
    """The stream as a client sees it: some events, a cut, and on from the last cursor."""
    record = [entry(kind, seq, cost=cost, verdict="ask") for seq, (kind, cost) in enumerate(made, 1)]
    whole = [event for one in record for event in events_of(one, LOG)]
    cursor, heard = Cursor(LOG, 0), list[Any]()
    for most in [*cuts, len(whole) + 1]:
        left = [event for one in record for event in after(cursor, one, LOG)]
        heard += left[:most]
        cursor = heard[-1].cursor if heard else cursor
        read = cursors.read(str(cursor))
        assert read is not None
        cursor = read
    assert heard == whole
