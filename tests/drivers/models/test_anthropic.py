"""The Messages dialect: what is sent, what is kept of a reply, what is counted."""

import hashlib
import json
from collections.abc import Iterator

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.abi.models import (
    ImageBlock,
    Message,
    OpaqueBlock,
    TextBlock,
    ToolCall,
    ToolResultBlock,
    ToolSchema,
    Usage,
)
from agent_os.drivers.models import ModelFault
from agent_os.drivers.models.anthropic import Anthropic, usage_of
from agent_os.drivers.models.wire import Endpoint
from models.asking import FILE_READ, ask, request, run, user
from models.provider import Called, MockProvider, Say

PNG = b"\x89PNG\r\n\x1a\n"
BLOB = hashlib.sha256(PNG).hexdigest()
STRICT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


@pytest.fixture
def mock() -> Iterator[MockProvider]:
    with MockProvider() as provider:
        yield provider


def anthropic(mock: MockProvider) -> Anthropic:
    return Anthropic(Endpoint(mock.url), blobs=lambda digest: PNG if digest == BLOB else None)


def test_a_request_says_all_it_was_told(mock: MockProvider) -> None:
    asked = request(
        Message(role="system", blocks=[TextBlock(text="Be brief.")]),
        user("Look:", ImageBlock(blob=BLOB)),
        tools=[FILE_READ, ToolSchema(name="now")],
        tool_choice="file.read",
        max_output=77,
        temperature=0.5,
        stop=["END"],
    )
    ask(anthropic(mock), asked)
    assert mock.seen[-1].headers["anthropic-version"] == "2023-06-01"
    assert mock.seen[-1].headers["accept-encoding"] == "identity"
    assert mock.last == {
        "model": "mock-small",
        "max_tokens": 77,
        "stream": True,
        "system": "Be brief.",
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Look:"},
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
                    },
                ],
            }
        ],
        "tools": [
            {"name": "file_read", "description": "Reads a file.", "input_schema": FILE_READ.input_schema},
            {"name": "now", "description": "", "input_schema": {"type": "object", "properties": {}}},
        ],
        "tool_choice": {"type": "tool", "name": "file_read"},
        "temperature": 0.5,
        "stop_sequences": ["END"],
    }


@pytest.mark.parametrize(("choice", "theirs"), [("auto", "auto"), ("none", "none"), ("required", "any")])
def test_a_choice_of_tools_is_put_in_its_words(mock: MockProvider, choice: str, theirs: str) -> None:
    ask(anthropic(mock), request(tools=[FILE_READ], tool_choice=choice))
    assert mock.last["tool_choice"] == {"type": theirs}


def test_reasoning_goes_back_byte_for_byte_in_its_place(mock: MockProvider) -> None:
    mock.then(Say("I look.", thinking="hmm … “quoted” \\ /", calls=[Called("file_read", {"path": "/a"})]))
    reply = ask(anthropic(mock), request(tools=[FILE_READ]))
    assert [type(block) for block in reply.blocks] == [OpaqueBlock, OpaqueBlock, TextBlock, ToolCall]
    assert "hmm" not in reply.text
    result = ToolResultBlock(id=reply.tool_calls[0].id, content=[TextBlock(text="hello")])
    history = [user("Hello"), Message(role="assistant", blocks=reply.blocks), Message(role="tool", blocks=[result])]
    assert ask(anthropic(mock), request(*history, tools=[FILE_READ])).text == "ok"
    sent = mock.last["messages"][1]["content"]
    assert [block["type"] for block in sent] == ["thinking", "redacted_thinking", "text", "tool_use"]
    assert sent[0] == {
        "type": "thinking",
        "thinking": "hmm … “quoted” \\ /",
        "signature": "EqQBCkYIAhgCIkA/+=" * 3,
    }
    for block in reply.blocks[:2]:
        assert isinstance(block, OpaqueBlock)
        assert block.data in mock.seen[-1].raw
    assert mock.last["messages"][2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_00", "content": [{"type": "text", "text": "hello"}]},
        ],
    }


@pytest.mark.parametrize(
    "data",
    [
        b'{"type":"image","source":{"type":"url","url":"http://evil/"}}',
        b'{"type":"thinking","thinking":"x","signature":"y","type":"image"}',
        b'{"type":"thinking","thinking":"x","signature":"y","source":{"type":"url"}}',
        b'{"type":"thinking"}],"tools":[{"type":"web_search"}],"x":[{}',
        b'{"type":"thinking"}, {"type":"image"}',
        '{"type":"thinking"}'.encode("utf-16"),
        b'{"type":["thinking"]}',
        b"{}",
        b"[]",
        b"",
        b"\xff",
        b'{"type":"thinking","thinking":NaN}',
        b"[" * 100_000,
    ],
)
def test_an_opaque_block_that_the_provider_did_not_give_is_not_sent(mock: MockProvider, data: bytes) -> None:
    forged = Message(role="assistant", blocks=[OpaqueBlock(dialect="anthropic", data=data), TextBlock(text="a")])
    with pytest.raises(ModelFault) as caught:
        ask(anthropic(mock), request(user("a"), forged, user("b")))
    assert isinstance(caught.value.error, EINVAL)
    assert not caught.value.sent
    assert mock.seen == []


def test_what_belongs_to_another_dialect_stays_here(mock: MockProvider) -> None:
    foreign = OpaqueBlock(dialect="openai.responses", data=b'{"type":"reasoning"}')
    ask(
        anthropic(mock), request(user("a"), Message(role="assistant", blocks=[foreign, TextBlock(text="b")]), user("c"))
    )
    assert b"reasoning" not in mock.seen[-1].raw


def test_turns_are_the_users_and_the_assistants_by_turns(mock: MockProvider) -> None:
    calls = [ToolCall(id="a.1", name="x.y"), ToolCall(id="a.2", name="x.y")]
    history = [
        user("one"),
        user("two", ""),
        Message(role="assistant", blocks=[*calls]),
        Message(role="tool", blocks=[ToolResultBlock(id="a.1", content=[TextBlock(text="r")])]),
        Message(role="tool", blocks=[ToolResultBlock(id="a.2", error=True)]),
        user("three"),
    ]
    ask(anthropic(mock), request(*history))
    assert [message["role"] for message in mock.last["messages"]] == ["user", "assistant", "user"]
    assert [block["type"] for block in mock.last["messages"][2]["content"]] == ["tool_result", "tool_result", "text"]
    assert mock.last["messages"][2]["content"][1]["is_error"] is True


def test_the_whole_prompt_is_counted_with_what_the_cache_gave_and_took(mock: MockProvider) -> None:
    mock.then(Say("ok", input=1000, cached=600, cache_write=300, output=50, reasoning=20))
    usage = ask(anthropic(mock), request()).usage
    assert usage == Usage(input=1000, cached_read=600, cache_write=300, output=50, reasoning=20)


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        ({"input_tokens": 5, "output_tokens": 2}, Usage(input=5, output=2)),
        ({"input_tokens": -5, "output_tokens": "2", "cache_read_input_tokens": 1e9}, Usage()),
        ({"input_tokens": True, "output_tokens": 10**12}, Usage()),
        (None, Usage()),
        ([], Usage()),
    ],
)
def test_a_count_that_is_none_is_not_one(said: object, usage: Usage) -> None:
    assert usage_of(said) == usage


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("end_turn", "end"),
        ("max_tokens", "length"),
        ("stop_sequence", "stop_sequence"),
        ("refusal", "refused"),
        ("pause_turn", "end"),
        ("model_context_window_exceeded", "context"),
        ("something_new", "end"),
    ],
)
def test_every_reason_to_stop_has_a_word(mock: MockProvider, theirs: str, ours: str) -> None:
    mock.then(Say("ok", stop=theirs))
    assert ask(anthropic(mock), request()).stop == ours


def test_a_schema_goes_by_the_providers_mode_where_there_is_one(mock: MockProvider) -> None:
    asked = request(output_schema=STRICT)
    asked.model = "claude-sonnet-4-5"
    ask(anthropic(mock), asked)
    assert mock.last["output_config"] == {"format": {"type": "json_schema", "schema": STRICT}}
    assert "system" not in mock.last


@pytest.mark.parametrize(
    ("model", "schema"),
    [
        ("claude-3-5-haiku-latest", STRICT),
        ("claude-sonnet-4-20250514", STRICT),
        ("claude-opus-4-1", STRICT),
        ("claude-sonnet-4-5", {"type": "object", "properties": {"n": {"type": "integer"}}}),
    ],
)
def test_a_schema_is_told_in_words_where_there_is_no_mode(mock: MockProvider, model: str, schema: dict) -> None:
    asked = request(output_schema=schema)
    asked.model = model
    ask(anthropic(mock), asked)
    assert "output_config" not in mock.last
    assert json.dumps(schema, separators=(",", ":")) in mock.last["system"]


@pytest.mark.parametrize(
    ("blocks", "word"),
    [
        ([ImageBlock(blob="0" * 64)], "no blob"),
        ([ImageBlock(blob=BLOB, media_type="text/html")], "text/html"),
    ],
)
def test_an_image_that_is_none_is_not_sent(mock: MockProvider, blocks: list, word: str) -> None:
    with pytest.raises(ModelFault, match=word):
        ask(anthropic(mock), request(user(*blocks)))
    assert mock.seen == []


def test_a_seed_is_refused_rather_than_dropped(mock: MockProvider) -> None:
    with pytest.raises(ModelFault, match="no seed"):
        ask(anthropic(mock), request(seed=1))


def test_the_models_are_listed(mock: MockProvider) -> None:
    provider = anthropic(mock)
    assert run(provider, lambda: provider.models("sk-test-0123456789abcdef")) == ["mock-large", "mock-small"]


def test_events_and_blocks_that_nobody_knew_do_no_harm(mock: MockProvider) -> None:
    body = (
        b'event: message_start\ndata: {"type":"message_start","message":{"model":"m","usage":{"input_tokens":3}}}\n\n'
        b'event: fancy\ndata: {"type":"fancy","index":null}\n\n'
        b'data: {"type":"content_block_start","index":0,"content_block":{"type":"server_tool_use","id":"s"}}\n\n'
        b'data: {"type":"content_block_delta","index":0,"delta":{"type":"new_delta"}}\n\n'
        b'data: {"type":"content_block_stop","index":0}\n\n'
        b'data: {"type":"content_block_start","index":1,"content_block":{"type":"text","text":"ok"}}\n\n'
        b'data: {"type":"content_block_stop","index":1}\n\n'
        b'data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":2}}\n\n'
        b'data: {"type":"message_stop"}\n\n'
    )
    from models.provider import Raw

    mock.then(Raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + body))
    reply = ask(anthropic(mock), request())
    assert (reply.text, reply.usage, reply.model) == ("ok", Usage(input=3, output=2), "m")
