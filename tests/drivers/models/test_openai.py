"""Chat Completions and Responses: what is sent, what is kept of a reply, what is counted."""

import hashlib
import json
from collections.abc import Iterator

import pytest

from agent_os.abi.models import (
    ImageBlock,
    Message,
    OpaqueBlock,
    TextBlock,
    ToolCall,
    ToolResultBlock,
    Usage,
)
from agent_os.drivers.models import ModelFault, chat, responses
from agent_os.drivers.models.openai import Api, OpenAI
from agent_os.drivers.models.wire import Endpoint
from models.asking import FILE_READ, ask, request, run, user
from models.provider import KEY, Called, MockProvider, Raw, Say

PNG = b"\x89PNG\r\n\x1a\n"
BLOB = hashlib.sha256(PNG).hexdigest()
URL = "data:image/png;base64,iVBORw0KGgo="
STRICT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
LOOSE = {"type": "object", "properties": {"n": {"type": "integer"}}}


@pytest.fixture
def mock() -> Iterator[MockProvider]:
    with MockProvider() as provider:
        yield provider


def openai(mock: MockProvider, api: Api = "chat") -> OpenAI:
    return OpenAI(Endpoint(f"{mock.url}/v1"), api=api, blobs=lambda digest: PNG if digest == BLOB else None)


def chunks(*said: dict, done: bool = True) -> Raw:
    events = [json.dumps(chunk) for chunk in said] + (["[DONE]"] if done else [])
    body = "".join(f"data: {event}\n\n" for event in events)
    return Raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + body.encode())


def delta(fields: dict, reason: str | None = None, **more: object) -> dict:
    return {"id": "c1", "model": "m", "choices": [{"index": 0, "delta": fields, "finish_reason": reason, **more}]}


def test_a_chat_request_says_all_it_was_told(mock: MockProvider) -> None:
    asked = request(
        Message(role="system", blocks=[TextBlock(text="Be brief.")]),
        user("Look:", ImageBlock(blob=BLOB)),
        tools=[FILE_READ],
        tool_choice="file.read",
        max_output=77,
        temperature=0.0,
        stop=["END"],
        seed=4,
        output_schema=STRICT,
    )
    ask(openai(mock), asked)
    assert mock.seen[-1].headers["authorization"] == f"Bearer {KEY}"
    assert mock.last == {
        "model": "mock-small",
        "max_tokens": 77,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Look:"}, {"type": "image_url", "image_url": {"url": URL}}],
            },
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "file_read",
                    "description": "Reads a file.",
                    "parameters": FILE_READ.input_schema,
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "file_read"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": STRICT, "strict": True},
        },
        "temperature": 0.0,
        "seed": 4,
        "stop": ["END"],
    }


def test_a_responses_request_says_all_it_was_told(mock: MockProvider) -> None:
    asked = request(
        Message(role="system", blocks=[TextBlock(text="Be brief.")]),
        user("Look:", ImageBlock(blob=BLOB)),
        tools=[FILE_READ],
        tool_choice="required",
        max_output=77,
        output_schema=LOOSE,
    )
    ask(openai(mock, "responses"), asked)
    assert mock.last == {
        "model": "mock-small",
        "max_output_tokens": 77,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "input": [
            {"role": "system", "content": [{"type": "input_text", "text": "Be brief."}]},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "Look:"},
                    {"type": "input_image", "image_url": URL, "detail": "auto"},
                ],
            },
        ],
        "tools": [
            {
                "type": "function",
                "name": "file_read",
                "description": "Reads a file.",
                "parameters": FILE_READ.input_schema,
                "strict": False,
            }
        ],
        "tool_choice": "required",
        "text": {"format": {"type": "json_schema", "name": "answer", "schema": LOOSE, "strict": False}},
    }


def test_openai_itself_is_spoken_to_in_responses_and_others_in_chat(mock: MockProvider) -> None:
    assert isinstance(OpenAI().dialect(request()), responses.Responses)
    assert OpenAI().dialect(request(stop=["x"])) == chat.Chat(limit="max_completion_tokens")
    assert OpenAI().dialect(request(seed=1)) == chat.Chat(limit="max_completion_tokens")
    assert OpenAI(Endpoint(f"{mock.url}/v1")).dialect(request()) == chat.Chat(limit="max_tokens")
    assert isinstance(openai(mock, "responses").dialect(request()), responses.Responses)


def test_old_models_are_told_the_schema_in_words() -> None:
    asked = request(output_schema=STRICT)
    for model, native in (("gpt-4o", True), ("gpt-4", False), ("gpt-3.5-turbo", False), ("gpt-4-turbo", False)):
        asked.model = model
        assert OpenAI().dialect(asked) == responses.Responses(native)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_a_turn_with_a_tool_goes_back_whole(mock: MockProvider, api: Api) -> None:
    mock.then(Say("I look.", thinking="hmm …", calls=[Called("file_read", {"path": "/a"})]))
    reply = ask(openai(mock, api), request(tools=[FILE_READ]))
    assert [type(block) for block in reply.blocks] == [OpaqueBlock, TextBlock, ToolCall]
    assert "hmm" not in reply.text
    pictured = ToolResultBlock(id=reply.tool_calls[0].id, content=[TextBlock(text="seen"), ImageBlock(blob=BLOB)])
    history = [user("go"), Message(role="assistant", blocks=reply.blocks), Message(role="tool", blocks=[pictured])]
    assert ask(openai(mock, api), request(*history, tools=[FILE_READ])).text == "ok"
    if api == "chat":
        assert mock.last["messages"][1:] == [
            {
                "role": "assistant",
                "content": "I look.",
                "reasoning_content": "hmm …",
                "tool_calls": [
                    {
                        "id": "call_00",
                        "type": "function",
                        "function": {"name": "file_read", "arguments": '{"path":"/a"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "call_00", "content": "seen"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
        ]
    else:
        opaque = reply.blocks[0]
        assert isinstance(opaque, OpaqueBlock)
        assert opaque.data in mock.seen[-1].raw
        assert mock.last["input"][1:] == [
            {"id": "rs_1", "type": "reasoning", "summary": [], "encrypted_content": "gAAAA/" * 5 + "=="},
            {"role": "assistant", "content": "I look."},
            {"type": "function_call", "call_id": "call_00", "name": "file_read", "arguments": '{"path":"/a"}'},
            {
                "type": "function_call_output",
                "call_id": "call_00",
                "output": [
                    {"type": "input_text", "text": "seen"},
                    {"type": "input_image", "image_url": URL, "detail": "auto"},
                ],
            },
        ]


@pytest.mark.parametrize(
    ("dialect", "data"),
    [
        ("openai.responses", b'{"type":"item_reference","id":"x"}'),
        ("openai.responses", b'{"type":"mcp_approval_response","approve":true}'),
        ("openai.responses", b'{"type":"reasoning","id":"x","image_url":"http://evil/"}'),
        ("openai.responses", b'{"type":"reasoning","type":"item_reference"}'),
        ("openai.chat", b'{"role":"system"}'),
        ("openai.chat", b'{"tool_calls":[]}'),
        ("openai.chat", b'{"reasoning_content":"x","content":"y"}'),
    ],
)
def test_an_opaque_block_that_the_provider_did_not_give_is_not_sent(
    mock: MockProvider, dialect: str, data: bytes
) -> None:
    forged = Message(role="assistant", blocks=[OpaqueBlock(dialect=dialect, data=data)])
    api: Api = "chat" if dialect == "openai.chat" else "responses"
    with pytest.raises(ModelFault, match="opaque block"):
        ask(openai(mock, api), request(user("a"), forged, user("b")))
    assert mock.seen == []


def test_extra_fields_of_a_block_are_only_the_known_ones(mock: MockProvider) -> None:
    for blocks in (
        [ToolCall(id="a", name="b", extra=b'{"function":{"name":"c"}}')],
        [ToolCall(id="a", name="b", extra=b"nonsense")],
    ):
        with pytest.raises(ModelFault, match="extra fields"):
            ask(openai(mock), request(user("a"), Message(role="assistant", blocks=[*blocks])))
    said = Message(role="assistant", blocks=[TextBlock(text="x", extra=b'{"role":"system"}')])
    with pytest.raises(ModelFault, match="extra fields"):
        ask(openai(mock, "responses"), request(user("a"), said))


def test_signatures_on_a_call_go_back_with_it(mock: MockProvider) -> None:
    signed = {"extra_content": {"google": {"thought_signature": "AbC+/="}}}
    mock.then(Say(calls=[Called("file_read", {})], extra=signed))
    reply = ask(openai(mock), request(tools=[FILE_READ]))
    result = Message(role="tool", blocks=[ToolResultBlock(id=reply.tool_calls[0].id)])
    ask(openai(mock), request(user("a"), Message(role="assistant", blocks=reply.blocks), result, tools=[FILE_READ]))
    assert mock.last["messages"][1]["tool_calls"][0]["extra_content"] == signed["extra_content"]


def test_the_phase_of_a_message_goes_back_with_it(mock: MockProvider) -> None:
    mock.then(Say("On it.", extra={"phase": "commentary"}))
    reply = ask(openai(mock, "responses"), request())
    ask(openai(mock, "responses"), request(user("a"), Message(role="assistant", blocks=reply.blocks), user("b")))
    assert mock.last["input"][1] == {"role": "assistant", "content": "On it.", "phase": "commentary"}


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_the_whole_prompt_is_counted_with_what_the_cache_gave_inside(mock: MockProvider, api: Api) -> None:
    mock.then(Say("ok", input=1000, cached=600, output=50, reasoning=20))
    usage = ask(openai(mock, api), request()).usage
    assert usage == Usage(input=1000, cached_read=600, output=50, reasoning=20)


@pytest.mark.parametrize(
    ("said", "usage"),
    [
        ({"prompt_tokens": 5, "completion_tokens": 2}, Usage(input=5, output=2)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "total_tokens": 17,
                "completion_tokens_details": {"reasoning_tokens": 10},
            },
            Usage(input=5, output=12, reasoning=10),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 4},
            Usage(input=5, cached_read=4, output=2),
        ),
        (
            {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 900}},
            Usage(input=5, cached_read=5, output=2),
        ),
        ({"prompt_tokens": -1, "completion_tokens": 2}, None),
        ({"prompt_tokens": "5", "completion_tokens": 2}, None),
        (None, None),
    ],
)
def test_chat_usage_is_read_in_all_its_forms(said: object, usage: Usage | None) -> None:
    assert chat.usage_of(said) == usage


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_usage_that_is_not_told_is_estimated(mock: MockProvider, api: Api) -> None:
    mock.then(Say("ok", usage=False))
    assert ask(openai(mock, api), request()).usage.estimated


@pytest.mark.parametrize(
    ("api", "say", "stop"),
    [
        ("chat", Say("x"), "end"),
        ("chat", Say("x", stop="length"), "length"),
        ("chat", Say("x", stop="content_filter"), "filtered"),
        ("chat", Say(refusal="I will not."), "refused"),
        ("chat", Say(calls=[Called("a", {})], stop="stop"), "tool"),
        ("responses", Say("x"), "end"),
        ("responses", Say("x", stop="length"), "length"),
        ("responses", Say("x", stop="content_filter"), "filtered"),
        ("responses", Say(refusal="I will not."), "refused"),
    ],
)
def test_every_reason_to_stop_has_a_word(mock: MockProvider, api: Api, say: Say, stop: str) -> None:
    mock.then(say)
    reply = ask(openai(mock, api), request())
    assert reply.stop == stop
    assert reply.text == (say.text or say.refusal)


def test_calls_without_an_index_or_an_id_are_told_apart(mock: MockProvider) -> None:
    whole = {"function": {"name": "f", "arguments": "{}"}}
    mock.then(
        chunks(
            delta({"tool_calls": [{"id": "a", **whole}]}),
            delta({"tool_calls": [{"id": "b", "index": 0, **whole}]}),
            delta({"tool_calls": [{"id": "c", "index": 0, **whole}]}, "stop"),
        ),
        chunks(delta({"tool_calls": [{"index": 0, **whole}, {"index": 1, **whole}]}, "tool_calls")),
    )
    assert [call.id for call in ask(openai(mock), request()).tool_calls] == ["a", "b", "c"]
    ids = [call.id for call in ask(openai(mock), request()).tool_calls]
    assert len(set(ids)) == 2


def test_arguments_that_are_an_object_are_taken_too(mock: MockProvider) -> None:
    mock.then(chunks(delta({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]}, "stop")))
    assert ask(openai(mock), request()).tool_calls[0].args == {"x": 1}


def test_no_done_is_no_harm_if_there_was_a_reason_to_stop(mock: MockProvider) -> None:
    mock.then(chunks(delta({"content": "hi"}), delta({}, "stop"), done=False))
    assert ask(openai(mock), request()).text == "hi"
    mock.then(chunks(delta({"content": "hi"}), done=False))
    with pytest.raises(ModelFault, match="broke off"):
        ask(openai(mock), request())


def test_a_stop_sequence_is_told_where_the_server_tells_it(mock: MockProvider) -> None:
    mock.then(chunks(delta({"content": "hi"}), delta({}, "stop", stop_reason="END")))
    assert ask(openai(mock), request(stop=["END"])).stop == "stop_sequence"


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_shapes_that_nobody_expects_do_no_harm(mock: MockProvider, api: Api) -> None:
    odd = [
        {"choices": None},
        {"choices": [None, 3, {"delta": []}, {"delta": {"tool_calls": "x", "content": 5}}]},
        {"type": "response.something.new", "x": 1},
        {"type": 5},
        {"usage": [], "model": {}},
    ]
    last = (
        [delta({"content": "ok"}, "stop")]
        if api == "chat"
        else [{"type": "response.completed", "response": {"status": "completed", "output": None}}]
    )
    mock.then(chunks(*odd, *last))
    assert ask(openai(mock, api), request()).stop == "end"


def test_the_models_are_listed(mock: MockProvider) -> None:
    provider = openai(mock)
    assert run(provider, lambda: provider.models(KEY)) == ["mock-large", "mock-small"]


def test_a_list_that_is_none_is_garbled(mock: MockProvider) -> None:
    mock.strict = False
    provider = OpenAI(Endpoint(f"{mock.url}/v1/messages/count_tokens?x=".split("?")[0]))
    with pytest.raises(ModelFault):
        run(provider, lambda: provider.models(KEY))


@pytest.mark.parametrize(
    ("base", "local"),
    [
        ("http://127.0.0.1:8080/v1", True),
        ("http://localhost/v1", True),
        ("http://[::1]:80/v1", True),
        ("https://api.openai.com/v1", False),
        ("http://192.168.1.5:8000/v1", False),
        ("http://localhost.evil.example/v1", False),
        ("http://127.0.0.1.evil.example/v1", False),
    ],
)
def test_only_what_is_on_this_machine_is_local(base: str, local: bool) -> None:
    assert OpenAI(Endpoint(base)).info("m").local is local


def test_a_local_server_needs_no_key() -> None:
    with MockProvider(keys=()) as mock:
        assert ask(openai(mock), request(), key=None).text == "ok"
        assert "authorization" not in mock.seen[-1].headers
