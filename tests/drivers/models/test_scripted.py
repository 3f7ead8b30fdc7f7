"""A model that says what a file says."""

import asyncio
import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.abi.models import (
    Finished,
    Message,
    ModelReply,
    ModelRequest,
    TextBlock,
    TextDelta,
    ToolResultBlock,
    Usage,
)
from agent_os.drivers.models import Cancel, ModelFault
from agent_os.drivers.models.scripted import Scripted, Step, read_script
from models.asking import ask, events, request, user

SCRIPT = """
- when: refund
  text: I will look.
  tool_calls: [{name: file.read, args: {path: /work/order.txt}}]
- text: First.
  tool_calls: [{name: a.b}, {name: a.c, args: {n: 1}}]
- when: '/total: \\d+/'
  text: I saw a number.
- text: Second.
  stop: length
  usage: {input: 1200, output: 40}
"""


def scripted(source: str = SCRIPT) -> Scripted:
    steps = read_script(source)
    return Scripted(lambda name: steps)


def went_on(asked: ModelRequest, reply: ModelReply, said: str = "done") -> ModelRequest:
    results = [ToolResultBlock(id=call.id, content=[TextBlock(text=said)]) for call in reply.tool_calls]
    answer = Message(role="tool", blocks=[*results]) if results else user(said)
    return request(*asked.messages, Message(role="assistant", blocks=reply.blocks), answer)


def test_steps_without_when_answer_by_turns() -> None:
    provider, asked = scripted(), request()
    first = ask(provider, asked)
    assert (first.text, first.stop, first.scripted) == ("First.", "tool", True)
    assert [(call.name, call.args) for call in first.tool_calls] == [("a.b", {}), ("a.c", {"n": 1})]
    second = ask(provider, went_on(asked, first))
    assert (second.text, second.stop, second.usage) == ("Second.", "length", Usage(input=1200, output=40))


def test_a_step_that_fits_the_last_message_answers_first() -> None:
    assert ask(scripted(), request(user("I want a REFUND"))).tool_calls[0].args == {"path": "/work/order.txt"}
    first = ask(scripted(), request())
    assert ask(scripted(), went_on(request(), first, "total: 12")).text == "I saw a number."
    assert ask(scripted(), went_on(request(), first, "total: x")).text == "Second."


def test_the_same_request_gets_the_same_reply_from_another_process() -> None:
    asked = went_on(request(), ask(scripted(), request()))
    assert ask(scripted(), asked) == ask(scripted(), asked)


def test_a_shortened_history_does_not_begin_again() -> None:
    script = "".join(f"- {{text: step {n}, tool_calls: [{{name: a.b}}]}}\n" for n in range(6))
    asked = request()
    for turn in range(6):
        reply = ask(scripted(script), asked)
        assert reply.text == f"step {turn}"
        asked = went_on(asked, reply)
        asked = request(asked.messages[0], *asked.messages[-2:])  # only the last turn is kept


def test_a_missing_step_is_named() -> None:
    provider, asked = scripted("- text: only"), request()
    with pytest.raises(ModelFault) as caught:
        ask(provider, went_on(asked, ask(provider, asked), "and now?"))
    error = caught.value.error
    assert (type(error), error.code, error.detail["turn"], caught.value.sent) == (EINVAL, "script", 2, False)
    assert "no step for turn 2" in error.reason
    assert "and now?" in error.reason


def test_a_script_that_is_not_there_is_told() -> None:
    def load(name: str) -> list[Step]:
        raise ENOENT("script", f"there is no script {name}")

    with pytest.raises(ModelFault, match="no script mock-small"):
        ask(Scripted(load), request())


@pytest.mark.parametrize(
    ("word", "code", "again"),
    [
        ("request", "request", "no"),
        ("auth", "auth", "no"),
        ("model", "model", "no"),
        ("context", "context", "no"),
        ("rate", "rate", "yes"),
        ("overloaded", "provider", "yes"),
        ("provider", "provider", "yes"),
        ("lost", "provider", "yes"),
        ("garbled", "garbled", "once"),
        ("timeout", "timeout", "no"),
        ("cancelled", "cancelled", "no"),
    ],
)
def test_every_fault_can_be_raised(word: str, code: str, again: str) -> None:
    with pytest.raises(ModelFault) as caught:
        ask(scripted(f"- {{fault: {word}, retry_after_ms: 5}}"), request())
    assert (caught.value.error.code, caught.value.again) == (code, again)
    if word == "rate":
        assert caught.value.error.retry_after_ms == 5


def test_faults_in_a_list_come_before_the_answer() -> None:
    provider = scripted("- {fault: [rate, provider], text: at last}")
    for code in ("rate", "provider"):
        with pytest.raises(ModelFault) as caught:
            events(provider, request())
        assert caught.value.error.code == code
    assert ask(provider, request()).text == "at last"


def test_a_fault_beside_a_text_comes_in_the_middle() -> None:
    with pytest.raises(ModelFault) as caught:
        ask(scripted("- {text: half of it, fault: lost}"), request())
    assert caught.value.usage is not None
    assert caught.value.usage.output > 0


def test_arguments_that_are_no_json_can_be_played() -> None:
    script = "- {tool_calls: [{name: a.b, args: '{\"x\": '}]}"
    call = ask(scripted(script), request()).tool_calls[0]
    assert call.args_error is not None
    assert call.raw == '{"x": '


def test_a_delay_is_waited_for_and_can_be_cancelled() -> None:
    waited = list[float]()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    steps = read_script("- {text: late, delay_ms: 250}")
    assert ask(Scripted(lambda _: steps, sleep=sleep), request()).text == "late"
    assert waited == [0.25]

    async def cancelled() -> list[object]:
        cancel = Cancel()
        asyncio.get_running_loop().call_later(0.05, cancel.set)
        slow = Scripted(lambda _: read_script("- {text: never, delay_ms: 60000}"))
        return [event async for event in slow.stream(request(), None, cancel)]

    assert [(type(event), getattr(event, "stop", "")) for event in asyncio.run(cancelled())] == [
        (Finished, "cancelled")
    ]


def test_a_text_comes_in_pieces() -> None:
    long = "word " * 50
    pieces = [event.text for event in events(scripted(f"- text: '{long}'"), request()) if isinstance(event, TextDelta)]
    assert len(pieces) > 3
    assert "".join(pieces) == long


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("{", "not YAML"),
        ("text: x", "list of steps"),
        ("- {texts: x}", "texts"),
        ("- {stop: later}", "stop"),
        ("- {fault: boom}", "fault"),
        ("- {delay_ms: -1}", "delay_ms"),
        ("- {when: '/(/'}", "step 1"),
        ("- {tool_calls: [{args: {}}]}", "name"),
        ("- !!python/object:os.system {}", "not YAML"),
    ],
)
def test_a_script_that_is_wrong_is_told_where(source: str, word: str) -> None:
    with pytest.raises(EINVAL, match=word):
        read_script(source)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_is_more_than_a_wrong_script(source: str) -> None:
    with contextlib.suppress(EINVAL):
        read_script(source)


def test_the_scripts_of_the_examples_are_sound() -> None:
    scripts = [*(Path(__file__).parents[3] / "examples").glob("*/*.yaml")]
    assert scripts
    assert all(read_script(path.read_bytes()) for path in scripts)
