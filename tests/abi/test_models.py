"""Requests, replies and events cross the wire as they are, and nothing else does."""

import msgspec
import pytest

from agent_os.abi.models import (
    BlockDone,
    Finished,
    ImageBlock,
    Message,
    ModelEvent,
    ModelReply,
    ModelRequest,
    OpaqueBlock,
    Started,
    TextBlock,
    TextDelta,
    ToolCall,
    ToolDelta,
    ToolResultBlock,
    ToolSchema,
    Usage,
    UsageSeen,
    text_of,
)

BLOCKS = [
    TextBlock(text="a"),
    ImageBlock(blob="0" * 64),
    ToolCall(id="1", name="a.b", args={"x": [1, None]}),
    ToolResultBlock(id="1", content=[TextBlock(text="r"), ImageBlock(blob="1" * 64)], error=True),
    OpaqueBlock(dialect="anthropic", data=b'{"type":"thinking"}\xff'),
]


@pytest.mark.parametrize(
    "value",
    [
        ModelRequest(model="a/b", messages=[Message(role="user", blocks=[*BLOCKS])], tools=[ToolSchema(name="a.b")]),
        ModelReply(blocks=[*BLOCKS], usage=Usage(input=1), parsed={"n": 1}),
    ],
)
def test_it_comes_out_as_it_went_in(value: ModelRequest | ModelReply) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=type(value)) == value


@pytest.mark.parametrize(
    "event",
    [
        Started(model="m"),
        TextDelta(index=0, text="a"),
        ToolDelta(index=0, id="1", name="a.b"),
        *(BlockDone(index=0, block=block) for block in BLOCKS),
        UsageSeen(usage=Usage(output=1)),
        Finished(stop="end", usage=Usage()),
    ],
)
def test_an_event_is_told_from_the_others(event: ModelEvent) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=ModelEvent) == event


@pytest.mark.parametrize(
    "request_body",
    [
        {"model": "a/b", "messages": [], "base_url": "http://evil/"},
        {"model": "a/b", "messages": [], "headers": {}},
        {"model": "a/b", "messages": [{"role": "root", "blocks": []}]},
        {"model": "a/b", "messages": [{"role": "user", "blocks": [{"type": "image", "url": "http://evil/"}]}]},
        {"model": "a/b", "messages": [{"role": "user", "blocks": [{"type": "document"}]}]},
        {"model": "a/b", "messages": [], "tools": [{"type": "web_search"}]},
        {"model": "a/b"},
    ],
)
def test_an_address_a_header_and_what_is_not_known_cannot_be_said(request_body: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(request_body), type=ModelRequest)


def test_only_text_is_readable() -> None:
    assert text_of([*BLOCKS, TextBlock(text="b")]) == "ab"
    assert ModelReply(blocks=[*BLOCKS]).tool_calls == [BLOCKS[2]]


def test_usage_is_not_shared_between_replies() -> None:
    first, second = ModelReply(), ModelReply()
    first.usage.input = 5
    assert second.usage.input == 0
