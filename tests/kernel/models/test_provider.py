"""A stream collected into a reply."""

from typing import Any

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.abi.models import (
    BlockDone,
    Finished,
    Message,
    ModelRequest,
    OpaqueBlock,
    Started,
    TextBlock,
    TextDelta,
    ToolCall,
    ToolDelta,
    ToolSchema,
    Usage,
    UsageSeen,
)
from agent_os.kernel.models.provider import Collector, require_sound, value_in


def test_a_reply_is_made_of_blocks_in_their_order() -> None:
    collector = Collector()
    call, text = ToolCall(id="1", name="a.b"), TextBlock(text="hello")
    for event in (
        Started(model="asked"),
        TextDelta(index=1, text="hel"),
        ToolDelta(index=2, id="1", name="a.b"),
        BlockDone(index=2, block=call),
        BlockDone(index=1, block=text),
        BlockDone(index=0, block=OpaqueBlock(dialect="x", data=b"{}")),
        UsageSeen(usage=Usage(input=1)),
        Finished(stop="tool", usage=Usage(input=5, output=2), model="answered"),
    ):
        collector.take(event)
    reply = collector.reply()
    assert [type(block) for block in reply.blocks] == [OpaqueBlock, TextBlock, ToolCall]
    assert (reply.text, reply.tool_calls, reply.stop, reply.model) == ("hello", [call], "tool", "answered")
    assert reply.usage == Usage(input=5, output=2)


def test_what_was_cut_short_keeps_its_text_and_no_half_a_call() -> None:
    collector = Collector()
    assert not collector.began
    collector.take(TextDelta(index=0, text="half a sen"))
    collector.take(ToolDelta(index=1, id="1", name="a.b", args='{"x'))
    reply = collector.reply()
    assert collector.began
    assert (reply.text, reply.tool_calls, reply.stop) == ("half a sen", [], "cancelled")
    assert reply.usage.estimated


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"model": ""}, "names a model"),
        ({"messages": []}, "says something"),
        ({"messages": [Message(role="user")]}, "says something"),
        ({"max_output": 0}, "max_output"),
        ({"tools": [ToolSchema(name="a.b"), ToolSchema(name="a.b")]}, "twice"),
        ({"tool_choice": "a.c", "tools": [ToolSchema(name="a.b")]}, "a.c"),
        ({"tool_choice": "required"}, "none is offered"),
        ({"deadline_ms": -1}, "deadline_ms"),
    ],
)
def test_what_no_provider_could_make_sense_of_is_refused(fields: dict[str, Any], word: str) -> None:
    said = Message(role="user", blocks=[TextBlock(text="hi")])
    require_sound(ModelRequest(model="a/b", messages=[said]))
    with pytest.raises(EINVAL, match=word):
        require_sound(ModelRequest(**{"model": "a/b", "messages": [said], **fields}))


@pytest.mark.parametrize(
    "text",
    ['{"n": 1}', ' {"n": 1}\n', '```json\n{"n": 1}\n```', 'Here you are:\n```\n{"n": 1}\n```\nBye.'],
)
def test_a_value_is_found_bare_or_fenced(text: str) -> None:
    assert value_in(text) == {"n": 1}


def test_a_fence_inside_a_value_is_part_of_it() -> None:
    assert value_in('{"code": "```\\nx\\n```"}') == {"code": "```\nx\n```"}


@pytest.mark.parametrize("text", ["", "no", "{'n': 1}", '{"n": 1} and more', "[" * 100_000])
def test_what_is_no_value_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="not JSON"):
        value_in(text)
