"""What an agent tells of its work, in lines for whoever looks on: turns of a model, tools, progress, questions.

In: entries of the journal with their bodies. Out: a line each, or none. A scripted model is always called so.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

from agent_os.cli.entries import Entry
from agent_os.cli.output import plain, shortened

_EVENT = "SYS_EVENT"
_LONGEST = 200  # characters of what an agent said
_MOST_NAMED = 10
Facts = Mapping[str, Any]


def told(entry: Entry) -> str:
    """A line; empty: nothing that somebody who looks on must see."""
    body = _map(entry.get("body"))
    if entry["kind"] == "approval" and body.get("state") == "pending":
        verb = "answer" if entry.get("op") == "SYS_ASK" else "approve"
        return f"waits for you  {_question(body)}   agentctl {verb} {body.get('id', '')}"
    if entry["kind"] != "result" or entry.get("op") != _EVENT:
        return ""
    request = _map(body.get("request"))
    return line(str(request.get("kind", "")), _map(request.get("facts")))


def line(kind: str, facts: Facts) -> str:
    match kind:
        case "agent.model":
            return f"{_turn(facts)}  {model(facts)}  {_tokens(_map(facts.get('usage')))}"
        case "agent.tool":
            why = f": {_words(facts['why'])}" if facts.get("why") else ""
            return f"{_turn(facts)}  {_words(facts.get('tool'))}  {_words(facts.get('outcome'))}{why}"
        case "agent.progress":
            done = f"{_number(facts['done']):.0%}  " if facts.get("done") is not None else ""
            return f"{done}{_words(facts.get('text'))}"
        case "agent.compacted":
            before, after = _number(facts.get("before")), _number(facts.get("after"))
            return f"{_turn(facts)}  the history was shortened, {before} to {after}"
        case _:
            return ""


def summary(facts: Facts, said: str = "") -> str:
    """Of `agent.done`: how a run went. `said`: what the reader is told anyway."""
    models = facts.get("models")
    named = cast("list[Any]", models) if isinstance(models, list) else []
    names = ", ".join(map(_words, named[:_MOST_NAMED])) or "no answer of a model"
    scripted = " (scripted)" if facts.get("scripted") else ""
    cost = facts.get("cost_microusd")
    price = "price unknown" if cost is None else f"${_number(cost) / 1e6:.4f}"
    why = _words(facts.get("why"))
    stop = f"stopped ({_words(facts.get('stop'))}): {why}  " if facts.get("stop") != "done" and why not in said else ""
    counts = f"{_counted(facts.get('turns'), 'turn')}, {_counted(facts.get('tool_calls'), 'tool call')}"
    return f"{stop}{names}{scripted}  {counts}, {_tokens(_map(facts.get('usage')))}, {price}"


def model(facts: Facts) -> str:
    """Its name, and that it is a script where it is one."""
    return _words(facts.get("model")) + (" (scripted)" if facts.get("scripted") else "")


def done(entry: Entry) -> Facts | None:
    """What `agent.done` says, if that is what an entry is."""
    request = _map(_map(entry.get("body")).get("request"))
    if entry["kind"] == "result" and entry.get("op") == _EVENT and request.get("kind") == "agent.done":
        return _map(request.get("facts"))
    return None


def _question(body: Facts) -> str:
    question = _map(body.get("args")).get("question")
    if isinstance(question, dict):
        question = _map(question).get("begins")
    return f'"{_words(question)}"' if question else _words(body.get("wants"))


def _counted(number: Any, what: str) -> str:
    return f"{_number(number)} {what}{'' if number == 1 else 's'}"


def _tokens(usage: Facts) -> str:
    return f"{_number(usage.get('input')):,} + {_number(usage.get('output')):,} tokens"


def _turn(facts: Facts) -> str:
    return f"turn {_number(facts.get('turn'))}"


def _number(value: Any) -> int | float:
    """An agent says it, and may say anything."""
    return value if isinstance(value, int | float) and math.isfinite(value) else 0


def _words(value: Any) -> str:
    return shortened(plain(str(value or "")), _LONGEST)


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
