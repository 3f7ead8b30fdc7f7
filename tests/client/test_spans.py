"""Spans: what belongs together in the record has one beginning and one end, and always the same ids."""

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_os.client import conventions as names
from agent_os.client.spans import Entry, Span, Spans, as_otlp, exported, worth_exporting

BEGAN = datetime(2026, 11, 17, 12, tzinfo=UTC)
REPLY = {
    "blocks": [{"type": "text", "text": "the secret plan"}],
    "stop": "end",
    "usage": {"input": 1204, "output": 188, "cached_read": 7},
    "provider": "anthropic",
    "model": "claude-x-1",
    "queued_ms": 3,
}


def entry(seq: int, kind: str, agent: str = "default/anna", inc: int = 1, **more: Any) -> Entry:
    moment = (BEGAN + timedelta(milliseconds=100 * seq)).isoformat(timespec="microseconds")
    return {"seq": seq, "time": moment, "agent": agent, "kind": kind, **({"inc": inc} if inc else {}), **more}


def think(seq: int, **more: Any) -> Entry:
    body = {"request": {"model": "anthropic/claude-x", "max_output": 512}, "value": REPLY}
    cost = {"spent": {"cost": 6400, "tokens": 1392}, "model": "anthropic/claude-x"}
    return entry(seq, "outcome", op="SYS_THINK", verdict="allow", handle=9, body=body, cost=cost, **more)


def all_of(entries: list[Entry]) -> list[Span]:
    spans = Spans()
    return [one for each in entries for one in spans.ended(each)]


def test_an_intent_and_its_outcome_are_one_span() -> None:
    (spawn, chat) = all_of([entry(1, "spawn"), entry(2, "intent", op="SYS_THINK"), think(5, ref=2)])
    assert (spawn.sort, chat.sort, chat.seq) == ("event", "chat", 2)
    assert chat.seconds == 0.3
    assert (chat.name, chat.lane, chat.usage, chat.dollars) == ("chat anthropic/claude-x", "model", (1204, 188), 0.0064)


def test_a_model_call_has_the_names_of_the_conventions_and_no_content_unless_asked_for() -> None:
    (chat,) = all_of([think(5)])
    found = chat.attributes()
    assert found[names.OPERATION] == "chat"
    assert (found[names.PROVIDER], found[names.REQUEST_MODEL]) == ("anthropic", "claude-x")
    assert (found[names.INPUT_TOKENS], found[names.OUTPUT_TOKENS], found[names.CACHED_TOKENS]) == (1204, 188, 7)
    assert (found[names.CAPABILITY], found[names.DECISION], found[names.SEQUENCE]) == ("c-9", "allow", 5)
    assert found[names.FINISH_REASONS] == ["end"]
    assert "secret plan" not in str(found)
    assert "secret plan" in chat.attributes(content=True)[names.OUTPUT_MESSAGES]


def test_a_call_tells_what_was_left_of_the_budget_after_it_where_somebody_limits_that() -> None:
    cost = {"spent": {"cost": 6400, "calls": 1, "tokens": 9}, "left": {"cost": 493_600, "calls": 0}}
    limited, other = all_of([entry(3, "result", op="SYS_EXEC", cost=cost), entry(4, "result", op="SYS_EXEC")])
    found = limited.attributes()
    assert found["agent_os.budget.left.cost_usd"] == 0.4936
    assert found["agent_os.budget.left.calls"] == 0  # nothing is something to tell
    assert "agent_os.budget.left.tokens" not in found
    assert not [name for name in other.attributes() if name.startswith(names.BUDGET_LEFT)]


def test_a_tool_tells_its_name_and_what_it_was_given_only_where_switched_on() -> None:
    body = {"request": {"tool": "http.fetch@1.0.0", "params": {"url": "https://x"}}, "value": {"value": {"ok": True}}}
    (tool,) = all_of([entry(3, "result", op="SYS_EXEC", verdict="allow", rule="net.read", body=body)])
    assert (tool.name, tool.lane, tool.rule) == ("execute_tool http.fetch", "tools", "net.read")
    assert "https://x" not in str(tool.attributes())
    assert tool.attributes(content=True)[names.TOOL_ARGUMENTS] == '{"url": "https://x"}'


def test_a_refusal_is_of_the_policy_and_an_error() -> None:
    refusal = entry(4, "decision", op="SYS_EXEC", verdict="forbid", rule="never", code="EPOLICY", step=3, body={})
    (span,) = all_of([refusal])
    assert (span.refused, span.lane, worth_exporting(span)) == (True, "policy", True)
    told = exported(span, "log")
    assert (told.error, told.attributes[names.RULE], told.attributes[names.ERROR_TYPE]) == (
        "EPOLICY",
        "never",
        "EPOLICY",
    )


def test_a_question_ends_with_the_call_that_was_asked_about() -> None:
    pending = {"id": "q-1", "state": "pending", "wants": "file.write /x", "args": {"path": "/x"}}
    asked = entry(2, "approval", inc=0, op="SYS_WRITE", verdict="ask", step=6, body=pending)
    done = entry(9, "outcome", op="SYS_WRITE", verdict="allow", rule="ask-first,approval:q-1", body={})
    spawn, question, write = all_of([entry(1, "spawn"), asked, done])
    assert (question.name, question.seconds, question.incarnation) == ("approval file.write /x", 0.7, 1)
    assert (spawn.sort, write.sort) == ("event", "call")
    denied = entry(7, "decision", op="SYS_WRITE", verdict="refuse", step=6, body={"request": {"path": "/x"}})
    other = entry(6, "decision", op="SYS_WRITE", verdict="refuse", step=2, body={"request": {"path": "/x"}})
    assert [one.sort for one in all_of([asked, other])] == ["call"], "another call, refused for another reason"
    assert [one.sort for one in all_of([asked, denied])] == ["approval", "call"]


def test_a_life_lasts_from_its_first_entry_to_its_exit_and_holds_all_of_it() -> None:
    entries = [entry(1, "spawn"), think(3), entry(8, "exit", body={"class": "signal", "code": -9})]
    spans = [one for one in all_of(entries) if worth_exporting(one)]
    told = [exported(one, "log") for one in spans]
    chat, life = told
    assert (life.name, life.parent_id, life.error) == ("invoke_agent anna", None, "signal")
    assert (chat.parent_id, chat.trace_id) == (life.span_id, life.trace_id)
    assert life.end_ns - life.start_ns == 700_000_000
    again = [exported(one, "log") for one in all_of(entries) if worth_exporting(one)]
    assert again == told, "the same entries give the same ids"
    other = exported(spans[0], "another journal")
    assert (other.trace_id, other.span_id) != (chat.trace_id, chat.span_id)


def test_two_lives_are_two_traces() -> None:
    first, second = (exported(all_of([{**think(3), "inc": inc}])[0], "log") for inc in (1, 2))
    assert first.trace_id != second.trace_id


def test_what_is_open_at_the_end_of_a_life_is_forgotten() -> None:
    spans = Spans()
    pending = {"id": "q-1", "state": "pending"}
    for one in (
        entry(1, "spawn"),
        entry(2, "intent", op="SYS_EXEC"),
        entry(3, "accept", op="SYS_SLEEP", pos="0:1"),
        entry(4, "approval", op="SYS_WRITE", body=pending),
        entry(5, "exit", body={"class": "normal"}),
    ):
        spans.ended(one)
    assert spans == Spans()


def test_otlp_as_json_has_what_a_collector_reads() -> None:
    (chat,) = all_of([think(5)])
    told = as_otlp([exported(chat, "log")], "1.0")
    (resource,) = told["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    (span,) = scope["spans"]
    assert (len(span["traceId"]), len(span["spanId"]), len(span["parentSpanId"])) == (32, 16, 16)
    values = {one["key"]: one["value"] for one in span["attributes"]}
    assert values[names.INPUT_TOKENS] == {"intValue": "1204"}
    assert values[names.COST] == {"doubleValue": 0.0064}
    assert values[names.FINISH_REASONS] == {"arrayValue": {"values": [{"stringValue": "end"}]}}


KINDS = st.sampled_from(["intent", "outcome", "result", "decision", "approval", "exit", "spawn", "accept", "state"])


@given(
    st.lists(st.tuples(KINDS, st.sampled_from("ab"), st.integers(0, 40), st.sampled_from(["SYS_THINK", "SYS_EXEC"])))
)
def test_whatever_the_record_holds_every_span_ends_once_and_not_before_it_began(steps: list[Any]) -> None:
    spans, seen = Spans(), list[Span]()
    for seq, (kind, agent, ref, op) in enumerate(steps, 1):
        body = {"id": f"q-{ref}", "state": "pending" if ref % 2 else "approved"}
        found = spans.ended(entry(seq, kind, f"default/{agent}", op=op, ref=ref, pos=f"0:{ref}", body=body))
        assert not any(one.open for one in found)
        assert all(one.seconds >= 0 for one in found)
        seen += found
    assert len({id(one) for one in seen}) == len(seen)
    told = [exported(one, "log") for one in seen]
    assert len({(one.trace_id, one.span_id) for one in told if one.parent_id is not None}) == sum(
        one.parent_id is not None for one in told
    )
