"""The loop from outside: how runs go and end, against a kernel in process and a model whose every step is written."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import (
    EACCES,
    EAGAIN,
    EAPPROVAL,
    EBUDGET,
    ECANCELED,
    EHOSTUNREACH,
    EINTR,
    EINVAL,
    EIO,
    EISOLATION,
    EMSGSIZE,
    ENOENT,
    EPERM,
    ETIMEDOUT,
    ETYPE,
    EUNKNOWN,
    AgentOSError,
)
from agent_os.abi.models import OpaqueBlock, TextBlock, ToolCall, ToolResultBlock, Usage
from agent_os.abi.tools import ToolResult, ToolSpec
from agent_os.userland.loop import Loop, state_from, work
from agent_os.userland.loop_history import unpaired
from agent_os.userland.loop_terms import Answer, Outcome, Terms
from agent_os.userland.tools import tool
from userland.loop_host import Died, FakeHost, Mail, call, step


def terms(**more: Any) -> Terms:
    return Terms(model="scripted/test", **more)


def run(host: FakeHost, goal: str = "Find out.", **more: Any) -> tuple[Outcome, Loop]:
    own = more.pop("own", ())
    on_compact = more.pop("on_compact", None)
    loop = Loop(host, terms(**more), own=own, on_compact=on_compact)
    outcome = asyncio.run(loop.run(goal))
    assert loop.state
    assert unpaired(loop.state.entries) == ""
    assert host.events[-1][0] == "agent.done"
    assert host.events[-1][1]["stop"] == outcome.stop
    return outcome, loop


def raising(error: AgentOSError) -> Any:
    def function(**_: Any) -> Any:
        raise error

    return function


def test_an_answer_without_calls_is_the_result() -> None:
    outcome, _ = run(FakeHost([step("42")]))
    assert (outcome.stop, outcome.result, outcome.turns, outcome.scripted) == ("done", "42", 1, True)
    assert (outcome.usage.input, outcome.usage.output, outcome.cost_microusd) == (100, 10, 5)
    assert outcome.models == ["scripted/test"]


def test_a_run_needs_a_goal() -> None:
    with pytest.raises(EINVAL, match="no goal"):
        run(FakeHost(), "")


def test_the_model_is_told_the_goal_the_inputs_and_its_tools() -> None:
    host = FakeHost([step("ok")], {"file.read": ("pure", str), "web.get": ("idempotent", str)})
    loop = Loop(host, terms(tools=["file.*"], instructions="Be brief."))
    asyncio.run(loop.run("Answer inputs.question.", {"question": "why?"}))
    request = host.requests[0]
    assert request.messages[0].role == "system"
    assert '"question": "why?"'.replace('"', '\\"') in host.told(0)
    assert "Be brief." in host.told(0)
    assert [tool.name for tool in request.tools] == ["file.read"]
    assert request.deadline_ms is not None
    assert 0 < request.deadline_ms <= 1_800_000


def test_results_come_back_in_the_order_of_the_calls() -> None:
    host = FakeHost(
        [step("", call("slow", "a"), call("quick", "b"), call("act", "c"), call("quick", "d")), step("done")],
        {"slow": ("pure", lambda: "first"), "quick": ("pure", lambda: "second"), "act": ("opaque", lambda: "third")},
    )
    outcome, _ = run(host)
    tool = host.requests[1].messages[-1]
    assert tool.role == "tool"
    assert [block.id for block in tool.blocks if isinstance(block, ToolResultBlock)] == ["a", "b", "c", "d"]
    assert host.results() == ["first", "second", "third", "second"]
    assert outcome.tool_calls == 4


def test_pure_calls_at_the_beginning_of_a_turn_run_at_once_and_the_rest_in_order() -> None:
    pure = {"look": ("pure", lambda n: n), "act": ("opaque", lambda n: n)}
    together = FakeHost([step("", *(call("look", n=n) for n in range(4))), step("x")], pure)
    run(together)
    assert together.most_running == 4
    ordered = FakeHost(
        [step("", call("act", n=0), call("look", n=1), call("act", n=2), call("look", n=3)), step("x")], pure
    )
    run(ordered)
    assert ordered.most_running == 1
    assert ordered.effects == [("act", {"n": 0}), ("act", {"n": 2})]


def test_what_the_provider_keeps_to_itself_goes_back_byte_for_byte() -> None:
    opaque = OpaqueBlock(dialect="anthropic", data=b'{"signature": "\\u00e9=="}')
    reply = step("thinking", call("look", "a"))
    reply.blocks.insert(0, opaque)
    host = FakeHost([reply, step("done")], {"look": ("pure", lambda: "")})
    run(host)
    assert opaque in host.requests[1].messages[-2].blocks


def test_calls_with_empty_or_repeated_ids_get_their_own() -> None:
    calls = [call("look", "same", n=1), ToolCall(id="", name="look", args={"n": 2}), call("look", "same", n=3)]
    host = FakeHost(
        [step("", *calls), step("", call("look", "same", n=4)), step("done")], {"look": ("pure", lambda n: n)}
    )
    run(host)
    ids = [b.id for m in host.requests[-1].messages for b in m.blocks if isinstance(b, ToolCall)]
    assert len(set(ids)) == 4
    assert ids[0] == "same"


def test_a_version_that_the_terms_name_is_asked_for() -> None:
    host = FakeHost(
        [step("", call("look")), step("ok")], {"look": ("pure", lambda: "new"), "look@^1.2": ("pure", lambda: "old")}
    )
    run(host, tools=["look@^1.2"])
    assert [tool.name for tool in host.requests[0].tools] == ["look"]
    assert host.results()[0] == "old"


# Stops


def test_it_stops_after_its_turns() -> None:
    host = FakeHost([step(f"turn {n}", call("look", n=n)) for n in range(3)], {"look": ("pure", lambda n: n)})
    outcome, _ = run(host, turns=3)
    assert (outcome.stop, outcome.turns, outcome.text) == ("turns", 3, "turn 2")


def test_it_stops_at_its_tool_calls_and_none_is_run_beyond() -> None:
    host = FakeHost([step("", *(call("act", n=n) for n in range(5)))], {"act": ("opaque", lambda n: n)})
    outcome, loop = run(host, tool_calls=3)
    assert (outcome.stop, outcome.tool_calls, len(host.effects)) == ("tool_calls", 3, 3)
    assert loop.state
    assert len(loop.state.entries[-1].message.blocks) == 5, "every call has a result, also those that did not run"
    pure = FakeHost([step("", *(call("look", n=n) for n in range(5)))], {"look": ("pure", lambda n: n)})
    assert run(pure, tool_calls=3)[0].stop == "tool_calls"
    assert sum(name == "exec" for name, _, _ in pure.made) == 3


def test_a_run_at_its_tool_calls_can_still_answer() -> None:
    host = FakeHost([step("", call("act", n=1)), step("that is all")], {"act": ("opaque", lambda n: n)})
    assert run(host, tool_calls=1)[0].stop == "done"


def test_it_stops_when_its_time_is_over() -> None:
    host = FakeHost(lambda _: step("", call("look")), {"look": ("pure", lambda: "")}, think_secs=40)
    outcome, _ = run(host, wall_secs=100, turns=50)
    assert outcome.stop == "deadline"
    assert outcome.turns == 3
    assert [round((r.deadline_ms or 0) / 1000) for r in host.requests] == [100, 60, 20]


@pytest.mark.parametrize(
    ("error", "stop"),
    [
        (ETIMEDOUT("deadline", "too late"), "deadline"),
        (EIO("timeout", "sent, and no answer"), "deadline"),
        (EBUDGET("budget", "nothing is left"), "budget"),
        (ECANCELED("cancelled", "the operator did"), "cancelled"),
        (EINTR("interrupted", "SIGINT"), "cancelled"),
        (EIO("auth", "the key is bad"), "failed"),
        (ENOENT("model", "no such model"), "failed"),
        (EINVAL("request", "no"), "failed"),
        (EHOSTUNREACH("provider", "down"), "failed"),
    ],
)
def test_a_model_call_that_fails_ends_the_run_with_its_reason(error: AgentOSError, stop: str) -> None:
    host = FakeHost([step("so far", call("look")), error], {"look": ("pure", lambda: "")})
    outcome, _ = run(host)
    assert (outcome.stop, outcome.text) == (stop, "so far")
    assert error.reason in outcome.why


def test_a_busy_model_is_waited_for() -> None:
    busy = EAGAIN("rate", "slow down", retry_after_ms=2500)
    host = FakeHost([busy, busy, step("ok")])
    assert run(host)[0].stop == "done"
    assert host.slept == [2.5, 2.5]


def test_a_model_that_stays_busy_is_not_waited_for_for_ever() -> None:
    assert run(FakeHost([EAGAIN("rate", "no", retry_after_ms=10)] * 9))[0].stop == "failed"
    host = FakeHost([EAGAIN("rate", "no", retry_after_ms=60_000)])
    assert run(host, wall_secs=30)[0].stop == "failed"
    assert host.slept == []


def test_a_provider_that_is_down_is_replaced_by_the_fallbacks_in_order() -> None:
    down = EHOSTUNREACH("provider", "down")
    host = FakeHost([step("", call("look")), down, down, step("ok")], {"look": ("pure", lambda: "")})
    outcome, _ = run(host, fallback=["b/two", "c/three"])
    assert outcome.stop == "done"
    assert [one.model for one in host.requests] == ["scripted/test", "scripted/test", "b/two", "c/three"]


@pytest.mark.parametrize("stop", ["refused", "filtered"])
def test_a_refusal_of_the_model_ends_the_run(stop: str) -> None:
    outcome, _ = run(FakeHost([step("I will not.", stop=stop)]))
    assert (outcome.stop, outcome.text) == ("refused", "I will not.")


def test_answers_that_are_cut_off_are_gone_on_with_and_three_in_a_row_are_the_end() -> None:
    host = FakeHost([step("a", stop="length"), step("b", stop="length"), step("c")])
    assert run(host)[0].stop == "done"
    assert "cut off" in host.told(1)
    outcome, _ = run(FakeHost([step(f"{n}", stop="length") for n in range(3)]))
    assert (outcome.stop, outcome.turns, outcome.text) == ("length", 3, "2")


def test_calls_of_an_answer_that_was_cut_off_are_not_run() -> None:
    host = FakeHost([step("", call("act", n=1), stop="length"), step("ok")], {"act": ("opaque", lambda n: n)})
    assert run(host)[0].stop == "done"
    assert host.effects == []
    assert "cut off" in host.results()[0]


def test_cut_off_answers_count_only_in_a_row() -> None:
    cut = step("", call("look", n=0), stop="length")
    fine = step("", call("look", n=1))
    host = FakeHost([cut, cut, fine, cut, cut, step("ok")], {"look": ("pure", lambda n: n)})
    assert run(host)[0].stop == "done"


# What the model is told of a call


def test_an_unknown_tool_is_answered_with_the_nearest_names_and_never_leaves() -> None:
    host = FakeHost(
        [step("", call("file.raed", path="x")), step("ok")], {"file.read": ("pure", str), "x.y": ("pure", str)}
    )
    assert run(host)[0].stop == "done"
    assert "file.read" in host.results()[0]
    assert not [name for name, _, _ in host.made if name == "exec"]


def test_three_turns_of_malformed_calls_end_the_run() -> None:
    bad = [
        step("", call("nothing.here")),
        step("", ToolCall(id="x", name="look", args_error="ends in the middle", raw='{"a": ')),
        step("", call("strict", n="no number")),
    ]
    functions = {
        "look": ("pure", str),
        "strict": ("pure", raising(ETYPE("tool.input", "expected integer", pointer="/n"))),
    }
    host = FakeHost(bad, functions)
    outcome, _ = run(host)
    assert (outcome.stop, outcome.turns) == ("failed", 3)
    assert "ends in the middle" in host.told()


def test_a_good_call_forgives_malformed_ones() -> None:
    bad, good = step("", call("nothing.here")), step("", call("look"), call("nothing.else"))
    host = FakeHost([bad, bad, good, bad, bad, step("ok")], {"look": ("pure", lambda: "")})
    assert run(host)[0].stop == "done"


def test_a_tool_that_ran_and_broke_its_own_schema_has_failed_and_was_not_malformed() -> None:
    broken = raising(ETYPE("tool.output", "expected text", ran=True, output="42"))
    host = FakeHost([*[step("", call("odd", n=n)) for n in range(4)], step("ok")], {"odd": ("opaque", broken)})
    assert run(host)[0].stop == "done"
    assert "42" in host.results()[0]


REFUSALS = {
    "capability": EPERM("cap.missing", "you hold no file:/etc/**:read", hint="ask for it"),
    "excluded": EACCES("cap.excludes", "reading only"),
    "refused": EAPPROVAL("approval.refused", "q-1: a person refused it: too risky", outcome="refused"),
    "expired": EAPPROVAL("approval.expired", "q-1: nobody answered in time", outcome="expired"),
}


@pytest.mark.parametrize("which", REFUSALS)
def test_a_refusal_is_told_as_what_it_is_and_the_run_goes_on(which: str) -> None:
    host = FakeHost([step("", call("act")), step("without it")], {"act": ("opaque", raising(REFUSALS[which]))})
    assert run(host)[0].stop == "done"
    told = host.results()[0]
    assert REFUSALS[which].reason in told
    assert ("not allowed" in told) == (which in ("capability", "excluded"))
    assert ("refused. Do not try it again" in told.replace("again:", "again") or "and refused" in told) == (
        which == "refused"
    )
    assert ("no refusal" in told) == (which == "expired")


def test_a_tool_that_fails_is_told_with_its_code_and_what_there_was() -> None:
    late = ETIMEDOUT("tool.timeout", "killed after 30 s", stdout="line 1\nline 2")
    host = FakeHost([step("", call("act")), step("ok")], {"act": ("opaque", raising(late))})
    run(host)
    told = host.results()[0]
    assert "ETIMEDOUT" in told
    assert "killed after 30 s" in told
    assert "line 2" in told
    block = host.requests[1].messages[-1].blocks[0]
    assert isinstance(block, ToolResultBlock)
    assert block.error


@pytest.mark.parametrize("error", [EUNKNOWN("unknown", "began, and nobody knows"), EISOLATION("sandbox", "not built")])
def test_a_failure_of_the_machinery_is_never_told_to_the_model(error: AgentOSError) -> None:
    host = FakeHost([step("", call("act")), step("guess")], {"act": ("opaque", raising(error))})
    with pytest.raises(type(error)):
        run(host)
    assert len(host.requests) == 1


def test_a_call_that_is_cancelled_ends_the_run() -> None:
    host = FakeHost(
        [step("x", call("act"), call("act"))], {"act": ("opaque", raising(ECANCELED("cancelled", "by you")))}
    )
    outcome, _ = run(host)
    assert outcome.stop == "cancelled"
    assert len(host.effects) == 1


def test_a_picture_comes_as_a_picture() -> None:
    shot = ToolResult(value={"blob": "ab" * 32, "media_type": "image/png", "width": 5}, tool="b.shot@1", digest="d")
    host = FakeHost([step("", call("shot")), step("ok")], {"shot": ("opaque", lambda: shot)})
    run(host)
    block = host.requests[1].messages[-1].blocks[0]
    assert isinstance(block, ToolResultBlock)
    assert msgspec.to_builtins(block.content) == [{"type": "image", "blob": "ab" * 32, "media_type": "image/png"}]


def test_a_result_that_was_cut_says_where_the_rest_is() -> None:
    long = ToolResult(text="begin … end", size=10**6, cut=True, blob="cd" * 32, tool="x@1", digest="d")
    host = FakeHost([step("", call("act")), step("ok")], {"act": ("pure", lambda: long)})
    run(host)
    assert "1000000 bytes" in host.results()[0]
    assert "cd" * 32 in host.results()[0]


# Going round in circles


def test_the_same_call_with_the_same_result_is_remarked_on_at_three_and_ends_the_run_at_five() -> None:
    host = FakeHost(lambda _: step("", call("look", path="/a")), {"look": ("pure", lambda path: "same")})
    outcome, _ = run(host)
    assert (outcome.stop, outcome.turns) == ("stuck", 5)
    assert "very call" not in host.told(2)
    assert "very call 3 times" in host.results(3)[-1]


def test_two_calls_in_turn_are_a_circle_as_well() -> None:
    turns = iter(range(100))
    host = FakeHost(lambda _: step("", call("look", n=next(turns) % 2)), {"look": ("pure", lambda n: n)})
    outcome, _ = run(host)
    assert outcome.stop == "stuck"
    assert outcome.turns < 14


def test_a_result_that_changes_is_no_circle() -> None:
    prices = iter(range(100))
    host = FakeHost(lambda _: step("", call("quote")), {"quote": ("pure", lambda: next(prices))})
    assert run(host, turns=12)[0].stop == "turns"


def test_whoever_edits_and_tests_in_turns_gets_on() -> None:
    edits = iter(range(100))
    functions = {"edit": ("opaque", lambda n: "ok"), "test": ("opaque", lambda: "1 failed")}
    host = FakeHost(lambda _: step("", call("edit", n=next(edits)), call("test")), functions)
    assert run(host, turns=12)[0].stop == "turns"


def test_the_same_call_many_times_in_one_turn_counts_once() -> None:
    host = FakeHost([step("", *(call("look") for _ in range(6))), step("ok")], {"look": ("pure", lambda: "x")})
    assert run(host)[0].stop == "done"


# A result with a schema


def is_number(value: Any) -> str:
    return "" if isinstance(value, int) else f"expected integer, got {type(value).__name__}"


WITH_SCHEMA = {"output_schema": {"type": "integer"}}


def test_a_result_is_handed_over_by_finishing() -> None:
    host = FakeHost([step("so", call("agent.finish", result=7))], result_schema=is_number)
    outcome, _ = run(host, **WITH_SCHEMA)
    assert (outcome.stop, outcome.result, outcome.tool_calls) == ("done", 7, 0)
    (finish,) = (tool for tool in host.requests[0].tools if tool.name == "agent.finish")
    assert finish.input_schema["properties"]["result"] == {"type": "integer"}


def test_a_result_that_does_not_fit_is_told_and_counted() -> None:
    bad = step("", call("agent.finish", result="seven"))
    host = FakeHost([bad, step("", call("agent.finish", result=7))], result_schema=is_number)
    assert run(host, **WITH_SCHEMA)[0].result == 7
    assert "expected integer" in host.results()[0]
    assert run(FakeHost([bad] * 3, result_schema=is_number), **WITH_SCHEMA)[0].stop == "failed"


def test_a_result_written_as_json_counts_and_one_written_as_prose_does_not() -> None:
    assert run(FakeHost([step("7")], result_schema=is_number), **WITH_SCHEMA)[0].result == 7
    host = FakeHost([step("It is seven."), step('"seven"'), step("7")], result_schema=is_number)
    assert run(host, **WITH_SCHEMA)[0].result == 7
    assert "agent.finish" in host.told(1)
    assert run(FakeHost([step("prose")] * 3, result_schema=is_number), **WITH_SCHEMA)[0].stop == "failed"


def test_what_comes_after_finishing_is_not_run() -> None:
    calls = [call("act", n=1), call("agent.finish", result=7), call("act", n=2)]
    host = FakeHost([step("", *calls)], {"act": ("opaque", lambda n: n)}, result_schema=is_number)
    assert run(host, **WITH_SCHEMA)[0].result == 7
    assert host.effects == [("act", {"n": 1})]


def test_without_a_schema_finishing_is_no_tool() -> None:
    host = FakeHost([step("", call("agent.finish", result=7)), step("7")])
    assert run(host)[0].result == "7"


# Budget


def test_below_a_tenth_of_the_budget_one_last_turn_without_tools_hands_over() -> None:
    script = [step("a", call("act", n=1)), step("This is what I have.")]
    host = FakeHost(script, {"act": ("opaque", lambda n: n)}, shares=[1.0, 0.09])
    outcome, _ = run(host)
    assert (outcome.stop, outcome.result) == ("budget", "This is what I have.")
    assert "tokens" in outcome.why
    assert host.requests[1].tool_choice == "none"
    assert "last turn" in host.told(1)


def test_calls_in_the_last_turn_are_not_run() -> None:
    host = FakeHost([step("All I have.", call("act", n=2))], {"act": ("opaque", lambda n: n)}, shares=[0.01])
    assert run(host)[0].stop == "budget"
    assert host.effects == []


def test_a_last_turn_under_a_schema_asks_for_the_result_itself() -> None:
    host = FakeHost([step("5", parsed=5)], shares=[0.05])
    assert run(host, **WITH_SCHEMA)[0].result == 5
    assert host.requests[0].output_schema == {"type": "integer"}


def test_a_tool_that_the_budget_refuses_brings_the_last_turn() -> None:
    refused = raising(EBUDGET("budget.tool_calls", "1000 of 1000 tool calls are spent"))
    host = FakeHost([step("", call("act"), call("act")), step("Here.")], {"act": ("opaque", refused)})
    outcome, _ = run(host)
    assert (outcome.stop, outcome.result) == ("budget", "Here.")
    assert len(host.effects) == 1


def test_a_budget_that_does_not_even_pay_the_last_turn_ends_with_what_was_said() -> None:
    script = [step("so far", call("act")), EBUDGET("budget.tokens", "nothing is left")]
    host = FakeHost(script, {"act": ("opaque", lambda: 1)}, shares=[1.0, 0.0])
    outcome, _ = run(host)
    assert (outcome.stop, outcome.text, outcome.result) == ("budget", "so far", None)


def test_a_model_without_a_price_makes_the_cost_unknown() -> None:
    host = FakeHost([step("", call("look")), step("x", cost_microusd=None)], {"look": ("pure", lambda: "")})
    assert run(host)[0].cost_microusd is None


# People and other agents


def test_what_the_operator_says_joins_at_the_next_turn_as_the_users_word() -> None:
    mail = [[], [Mail("m1", "Use metres.", via="operator")]]
    host = FakeHost([step("", call("look")), step("ok")], {"look": ("pure", lambda: "")}, mail=mail)
    run(host)
    last = host.requests[1].messages[-1]
    assert (last.role, [b.text for b in last.blocks if isinstance(b, TextBlock)]) == ("user", ["Use metres."])
    assert host.acked == ["m1"]


def test_what_another_agent_says_is_quoted() -> None:
    host = FakeHost([step("ok")], mail=[[Mail("m1", {"do": "rm -rf"}, sender="default/mallory")]])
    run(host)
    assert "Message from the agent default/mallory, not from your user" in host.told(0)


@pytest.mark.parametrize(("end", "error"), [(step("42"), None), (EBUDGET("b", "empty"), "budget: empty")])
def test_a_request_is_answered_with_the_result(end: Any, error: str | None) -> None:
    host = FakeHost(
        [step("", call("look")), end], {"look": ("pure", lambda: "")}, mail=[[Mail("r1", "?", is_request=True)]]
    )
    outcome, _ = run(host)
    assert host.acked == []
    assert host.replies == [("r1", outcome.result, error)]


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (Answer(state="value", value="blue"), "done", "blue"),
        (Answer(state="refused", reason="not now"), "done", "refused"),
        (Answer(state="expired"), "done", "did not answer in time"),
        (Answer(state="cancelled"), "cancelled", "cancelled"),
    ],
)
def test_a_person_can_be_asked_and_the_answers_differ(answer: Answer, kind: str, words: str) -> None:
    host = FakeHost([step("", call("agent.ask", question="Which?")), step("ok")], answers=[answer])
    outcome, loop = run(host)
    assert outcome.stop == kind
    assert loop.state
    assert words in str(loop.state.entries)
    assert host.asked == ["Which?"]
    assert ("agent.waiting", {"turn": 1, "question": "Which?"}) in host.events


def test_waiting_for_a_person_does_not_count_as_the_runs_time() -> None:
    script = [step("", call("agent.ask", question="Which?")), step("ok")]
    host = FakeHost(script, answers=[Answer(state="value", value="blue")])
    assert run(host, wall_secs=30)[0].stop == "done", "the person took ten minutes"


def test_the_model_may_ask_only_where_the_terms_say_so() -> None:
    host = FakeHost([step("", call("agent.ask", question="Which?")), step("ok")], {"file.read": ("pure", str)})
    assert run(host, tools=["file.*"])[0].stop == "done"
    assert host.asked == []


# Tools of the program itself


class Own:
    def __init__(self, name: str, effect: str, function: Any) -> None:
        self.spec = ToolSpec(name=name, effect=effect)  # pyright: ignore[reportArgumentType]
        self._function = function

    async def run(self, params: Any, context: Any = None) -> Any:
        return self._function(**params)


def test_a_tool_of_the_program_runs_in_its_process() -> None:
    host = FakeHost([step("", call("count", text="a b c")), step("3")])
    assert run(host, own=[Own("count", "pure", lambda text: len(text.split()))])[0].stop == "done"
    assert host.results()[0] == "3"
    assert not [name for name, _, _ in host.made if name == "exec"]


def test_what_a_tool_of_the_program_raises_is_told() -> None:
    host = FakeHost([step("", call("div", by=0)), step("ok")])
    assert run(host, own=[Own("div", "pure", lambda by: 1 / by)])[0].stop == "done"
    assert "ZeroDivisionError" in host.results()[0]


def test_a_decorated_function_is_a_tool_of_the_program() -> None:
    @tool(effect="pure")
    async def word_count(text: str) -> int:
        "Number of words in a text."
        return len(text.split())

    host = FakeHost([step("", call("word_count", text="a b")), step("", call("word_count", words=1)), step("2")])
    assert run(host, own=[word_count])[0].stop == "done"
    assert host.requests[0].tools[0].input_schema["required"] == ["text"]
    assert host.results()[0] == "2"
    assert "Not run" in host.results()[1]


class Found(msgspec.Struct):
    claim: str
    source: str


def test_a_run_inside_a_program_gives_what_its_author_named() -> None:
    found = {"claim": "c", "source": "s"}
    host = FakeHost([step("", call("count", n=1)), step("", call("agent.finish", result=found))])
    own = Own("count", "pure", lambda n: n)
    outcome = asyncio.run(work(host, "Find.", model="scripted/x", tools=["file.*", own], output=Found, turns=5))
    assert outcome.result == Found("c", "s")
    assert host.requests[0].tools[-1].input_schema["properties"]["result"]["required"] == ["claim", "source"]
    assert host.checkpoints == []


# Events


def test_every_turn_is_told_of() -> None:
    host = FakeHost([step("", call("look")), step("ok")], {"look": ("pure", lambda: "x")})
    run(host)
    assert host.kinds() == ["agent.model", "agent.tool", "agent.turn", "agent.model", "agent.done"]
    assert host.events[0][1]["usage"]["input"] == 100
    assert host.events[1][1] == {"turn": 1, "tool": "look", "outcome": "good", "size": 1}


# Too long


def long_run(n: int, size: int = 3000) -> FakeHost:
    counter = iter(range(10**6))

    def think(request: Any) -> Any:
        if not request.tools:
            return step("SUMMARY of it")
        number = next(counter)
        usage = Usage(input=len(msgspec.json.encode(request)) // 3)
        calls = [call("read", n=number)] if number < n else []
        return step(f"step {number}", *calls, usage=usage)

    return FakeHost(think, {"read": ("pure", lambda n: f"{n}:" + "x" * size)})


def test_a_history_near_the_window_is_compacted_and_the_goal_stays() -> None:
    host = long_run(30)
    outcome, loop = run(host, "THE GOAL", window=12_000, max_output=1000)
    assert outcome.stop == "done"
    assert "agent.compacted" in host.kinds()
    for number, request in enumerate(host.requests):
        if request.tools:
            assert "THE GOAL" in host.told(number)
        assert len(host.told(number)) / 3 < 12_000
    assert loop.state
    assert any("SUMMARY of it" in str(entry.message) for entry in loop.state.entries)


def test_the_window_is_what_replies_say_where_the_manifest_says_nothing() -> None:
    host = long_run(30)
    original = host.script
    host.script = lambda request: msgspec.structs.replace(original(request), window=12_000)  # pyright: ignore
    outcome, loop = run(host, max_output=1000)
    assert outcome.stop == "done"
    assert "agent.compacted" in host.kinds()
    assert loop.state
    assert loop.state.window == 12_000
    told = run(long_run(30), window=50_000, max_output=1000)[1].state
    assert told
    assert told.window == 50_000, "who wrote the manifest knows better"


def test_where_the_window_is_not_known_the_kernels_refusal_tells_it() -> None:
    host = long_run(8)
    original = host.script

    def think(request: Any) -> Any:
        size = len(msgspec.json.encode(request.messages)) // 3
        if size > 6000:
            raise EMSGSIZE("context", "too long", limit=6000, asked=size)
        return original(request)  # pyright: ignore[reportCallIssue]

    host.script = think
    outcome, loop = run(host, max_output=500)
    assert outcome.stop == "done"
    assert loop.state
    assert loop.state.window == 6000


def test_a_goal_that_is_too_long_by_itself_fails_and_does_not_go_round() -> None:
    def think(_: Any) -> Any:
        raise EMSGSIZE("context", "too long", limit=100, asked=10_000)

    host = FakeHost(think)
    outcome, _ = run(host, "word " * 2000)
    assert outcome.stop == "failed"
    assert "too long" in outcome.why
    assert len(host.requests) == 2


def test_an_authors_hook_is_used_and_held_to_pairs() -> None:
    seen: list[int] = []

    def hook(history: Any, target: int) -> Any:
        seen.append(target)
        return [entry for entry in history if entry.pinned]

    host = long_run(20)
    assert run(host, window=8000, max_output=500, on_compact=hook)[0].stop == "done"
    assert set(seen) == {4000}

    async def torn(history: Any, target: int) -> Any:
        return [entry for entry in history if entry.message.role != "tool"]

    with pytest.raises(EINVAL, match="cannot be used"):
        run(long_run(20), window=8000, max_output=500, on_compact=torn)


def test_a_summary_nobody_can_make_is_replaced_by_the_steps() -> None:
    host = long_run(30)
    original = host.script

    def think(request: Any) -> Any:
        if not request.tools:
            raise EHOSTUNREACH("provider", "down")
        return original(request)  # pyright: ignore[reportCallIssue]

    host.script = think
    outcome, loop = run(host, window=6000, max_output=500)
    assert outcome.stop == "done"
    assert loop.state
    assert any("call: read" in str(entry.message) for entry in loop.state.entries)


def test_the_estimate_follows_what_the_provider_reports() -> None:
    host = FakeHost([step("", call("look"), usage=Usage(input=5000)) for _ in range(3)] + [step("ok")])
    host.functions = {"look": ("pure", lambda: "")}
    _, loop = run(host)
    assert loop.state
    assert loop.state.ratio > 1.5


# Again from the record


def worked() -> dict[str, Any]:
    """A run with everything in it: reading at once, acting, a message, a person, a refusal, a bad call."""
    script = [
        step("looking", call("look", "a", n=1), call("look", "b", n=2)),
        step("acting", call("act", "c", n=1), call("act", "d", n=2)),
        step("", call("nothing.here", "e"), call("agent.ask", "f", question="Which?")),
        step("", call("forbidden", "g"), call("act", "h", n=3)),
        step("The answer."),
    ]
    return {
        "script": script,
        "functions": {
            "look": ("pure", lambda n: n * 10),
            "act": ("opaque", lambda n: f"did {n}"),
            "forbidden": ("opaque", raising(EPERM("cap.missing", "no"))),
        },
        "mail": [[], [Mail("m1", "Hurry.", via="operator")]],
        "answers": [Answer(state="value", value="blue")],
    }


def transcript(loop: Loop) -> Any:
    assert loop.state
    return msgspec.to_builtins(loop.state.entries, builtin_types=(bytes,))


def test_a_run_that_dies_at_any_call_goes_on_to_the_same_end_and_repeats_nothing() -> None:
    whole = FakeHost(**worked())
    outcome, loop = run(whole)
    assert outcome.stop == "done"
    assert len(whole.made) > 25
    for number in range(len(whole.made)):
        for moment in ("before", "after"):
            first = FakeHost(**worked(), dies_at=(number, moment))
            with pytest.raises(Died):
                asyncio.run(Loop(first, terms()).run("Find out."))
            first.dies_at, first.record = None, first.recorded()
            again, first.made, first.events, first.requests = len(first.record), [], [], []
            resumed = Loop(first, terms())
            ended = asyncio.run(resumed.run("Find out."))
            assert (number, moment, ended) == (number, moment, outcome)
            assert transcript(resumed) == transcript(loop)
            assert first.effects == whole.effects, f"an effect was repeated after dying {moment} call {number}"
            assert first._thought == len(whole.requests), "no recorded answer is paid for twice"
            assert again >= number - 1


def test_a_run_goes_on_from_its_checkpoint_as_if_nothing_had_been() -> None:
    def fresh(**more: Any) -> FakeHost:
        counter = iter(range(1000))

        def think(_: Any) -> Any:
            n = next(counter)
            return step("done") if n == 47 else step(f"{n}", call("act", f"id{n}", n=n))

        return FakeHost(think, {"act": ("opaque", lambda n: f"did {n}")}, **more)

    whole = fresh()
    outcome, loop = run(whole)
    assert [state["turn"] for _, state in whole.checkpoints] == [20, 40]
    number, kept = whole.checkpoints[1]
    later = fresh(record=whole.recorded(number))
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(kept))
    resumed = Loop(later, terms(), state=state_from(wire))
    assert asyncio.run(resumed.run()) == outcome
    assert transcript(resumed) == transcript(loop)
    assert later.effects == []
    assert len(later.made) == len(whole.made) - number


def test_a_long_history_fits_into_a_checkpoint() -> None:
    host = long_run(25, size=100_000)
    run(host, window=10_000_000)
    ((number, kept),) = host.checkpoints
    wire = msgspec.msgpack.encode(kept)
    assert len(wire) < 100_000, "it has two million characters"
    resumed = Loop(long_run(25, size=100_000), terms(), state=state_from(msgspec.msgpack.decode(wire)))
    assert resumed.state
    assert resumed.state.turn == 20
    assert sum(len(entry.message.blocks) for entry in resumed.state.entries) > 40
    assert number > 20


names = st.sampled_from(["look", "act", "fails", "nothing.here", "agent.finish", "agent.ask", ""])
calls_ = st.builds(
    ToolCall,
    id=st.sampled_from(["", "a", "b", "c"]),
    name=names,
    args=st.fixed_dictionaries({}, optional={"n": st.integers(0, 2), "question": st.text(max_size=3)}),
    args_error=st.sampled_from([None, None, None, "no JSON"]),
)
stops = st.sampled_from(["end", "tool", "tool", "tool", "length", "stop_sequence", "refused", "context", "cancelled"])
said_ = st.builds(
    lambda text, calls, stop: step(text, *calls, stop=stop), st.text(max_size=5), st.lists(calls_, max_size=4), stops
)
faults = st.sampled_from(
    [EAGAIN("rate", "wait", retry_after_ms=10), EHOSTUNREACH("provider", "down"), EMSGSIZE("context", "long")]
)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(said_ | faults, max_size=12), st.booleans(), st.lists(st.sampled_from([1.0, 1.0, 1.0, 0.05]), max_size=8)
)
def test_whatever_a_model_says_a_run_ends_in_order_and_again_the_same(script: Any, schema: bool, shares: Any) -> None:
    def host(**more: Any) -> FakeHost:
        functions = {
            "look": ("pure", lambda **_: "seen"),
            "act": ("opaque", lambda **_: "done"),
            "fails": ("opaque", raising(EIO("tool.failed", "broken"))),
        }
        told = [*script, *(step("the end") for _ in range(20))]
        return FakeHost(told, functions, shares=shares, answers=[Answer(state="value", value=1)] * 50, **more)

    bounds: dict[str, Any] = {"turns": 15, "tool_calls": 20, "fallback": ["b/c"]}
    bounds |= {"output_schema": {}} if schema else {}
    first, again = host(), host()
    outcome, loop = run(first, **bounds)
    assert outcome.turns <= 15
    assert outcome.tool_calls <= 20
    assert len(first.effects) <= 20
    again.record = first.recorded()
    ended, replayed = run(again, **bounds)
    assert (ended, transcript(replayed), again.effects) == (outcome, transcript(loop), [])


def test_a_program_that_changed_is_found_out() -> None:
    from agent_os.abi.errors import ENONDET

    first = FakeHost(**worked())
    run(first)
    other = FakeHost(**worked(), record=first.recorded())
    with pytest.raises(ENONDET):
        run(other, "Another goal.")
