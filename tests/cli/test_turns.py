"""What agents tell of their work, in lines: a script is called one, and nothing an agent said steers a terminal."""

from typing import Any

import pytest

from agent_os.cli import running as turns

USAGE = {"input": 1200, "output": 34}


def event(kind: str, **facts: Any) -> dict[str, Any]:
    return {"kind": "result", "op": "SYS_EVENT", "body": {"request": {"kind": kind, "facts": facts}}}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (event("agent.model", turn=1, model="p/m", scripted=False, usage=USAGE), "turn 1  p/m  1,200 + 34 tokens"),
        (
            event("agent.model", turn=2, model="scripted/x", scripted=True, usage=USAGE),
            "turn 2  scripted/x (scripted)  1,200 + 34 tokens",
        ),
        (event("agent.tool", turn=1, tool="file.read", outcome="good"), "turn 1  file.read  good"),
        (
            event("agent.tool", turn=2, tool="file.raed", outcome="bad", why="Not run: there is no tool"),
            "turn 2  file.raed  bad: Not run: there is no tool",
        ),
        (event("agent.progress", text="half", done=0.5), "50%  half"),
        (event("agent.progress", text="on the way"), "on the way"),
        (event("agent.turn", turn=1), ""),
        (event("agent.of_its_own"), ""),
        ({"kind": "result", "op": "SYS_READ", "body": {"request": {"path": "/x"}}}, ""),
        ({"kind": "approval", "op": "SYS_ASK", "body": {"state": "used", "id": "q-1"}}, ""),
        (
            {
                "kind": "approval",
                "op": "SYS_ASK",
                "body": {"state": "pending", "id": "q-1", "args": {"question": "Where?"}, "wants": "an answer"},
            },
            'waits for you  "Where?"   agentctl answer q-1',
        ),
        (
            {"kind": "approval", "op": "SYS_EXEC", "body": {"state": "pending", "id": "q-2", "wants": "tool.call pay"}},
            "waits for you  tool.call pay   agentctl approve q-2",
        ),
    ],
)
def test_an_entry_is_a_line_or_none(entry: dict[str, Any], said: str) -> None:
    assert turns.told(entry) == said


def test_a_text_of_an_agent_is_made_harmless_and_short() -> None:
    said = turns.told(event("agent.progress", text="\x1b[2J" + "x" * 1000))
    assert "\x1b" not in said
    assert len(said) < 300


def test_a_summary_says_why_a_run_was_stopped_and_what_it_cost() -> None:
    facts = {"models": ["p/m"], "turns": 3, "tool_calls": 2, "usage": USAGE, "cost_microusd": 1500}
    done = turns.summary({**facts, "stop": "done", "scripted": False})
    assert done == "p/m  3 turns, 2 tool calls, 1,200 + 34 tokens, $0.0015"
    stopped = turns.summary({**facts, "stop": "turns", "why": "3 turns are over", "cost_microusd": None})
    assert stopped.startswith("stopped (turns): 3 turns are over  p/m  ")
    assert stopped.endswith("price unknown")
    assert "(scripted)" in turns.summary({**facts, "stop": "done", "scripted": True})
    short = {**facts, "turns": 1, "tool_calls": 1, "stop": "turns", "why": "its turns are over: 1"}
    assert turns.summary(short, "stopped (turns): its turns are over: 1").startswith("p/m  1 turn, 1 tool call, ")


def test_the_end_of_a_run_is_found_among_entries() -> None:
    assert turns.done(event("agent.done", stop="done")) == {"stop": "done"}
    assert turns.done(event("agent.turn", turn=1)) is None


@pytest.mark.parametrize("value", ["\x1b]0;mine\x07", [], {}, None, float("nan"), float("inf"), "1" * 10_000, -1])
@pytest.mark.parametrize("kind", ["agent.model", "agent.tool", "agent.progress", "agent.compacted"])
def test_whatever_an_agent_claims_of_its_work_makes_one_harmless_line(kind: str, value: Any) -> None:
    names = "turn model tool outcome why text done before after usage scripted".split()
    said = [turns.told(event(kind, **dict.fromkeys(names, value)))]
    said.append(turns.told(event(kind, usage={"input": value, "output": value})))
    said.append(turns.summary(dict.fromkeys("models stop why turns tool_calls usage cost_microusd".split(), value)))
    said.append(turns.summary({"models": [value] * 100, "usage": {"input": value}}))
    assert all(one.isprintable() and len(one) < 3000 for one in said)
