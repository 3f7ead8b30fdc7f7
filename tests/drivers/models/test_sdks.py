"""The official SDKs as judges: they read what the mock provider says, and their types allow what our drivers send.

Run where `openai` and `anthropic` are installed; the product itself never imports them.
"""

import platform
from collections.abc import Iterator
from typing import Any

import pytest

from agent_os.abi.models import ImageBlock, Message, ModelRequest, OpaqueBlock, TextBlock, ToolCall, ToolResultBlock
from agent_os.drivers.models.anthropic import Anthropic
from agent_os.drivers.models.names import Names
from agent_os.drivers.models.openai import OpenAI
from agent_os.drivers.models.wire import Endpoint
from models.asking import FILE_READ, request, user
from models.provider import KEY, Called, Fail, MockProvider, Say

anthropic = pytest.importorskip("anthropic", reason="the official SDK `anthropic` is not installed")
openai = pytest.importorskip("openai", reason="the official SDK `openai` is not installed")
pydantic = pytest.importorskip("pydantic")
platform.processor()  # the SDK asks for it, and the first answer comes from a program: no test is to start one

SAY = Say("Grüße 🌍", calls=[Called("file_read", {"path": "/ä"})], thinking="hmm", piece=3, cached=5, reasoning=2)
TOOL = {"name": "file_read", "description": "d", "input_schema": {"type": "object", "properties": {}}}


@pytest.fixture
def mock() -> Iterator[MockProvider]:
    with MockProvider() as provider:
        yield provider


@pytest.fixture
def claude(mock: MockProvider) -> Iterator[Any]:
    with anthropic.Anthropic(api_key=KEY, base_url=mock.url, max_retries=0) as client:
        yield client


@pytest.fixture
def gpt(mock: MockProvider) -> Iterator[Any]:
    with openai.OpenAI(api_key=KEY, base_url=f"{mock.url}/v1", max_retries=0) as client:
        yield client


def test_the_messages_of_the_mock_are_messages(mock: MockProvider, claude: Any) -> None:
    mock.then(SAY, SAY)
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    with claude.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (streamed, claude.messages.create(**asked)):
        assert [block.type for block in message.content] == ["thinking", "redacted_thinking", "text", "tool_use"]
        assert message.content[2].text == "Grüße 🌍"
        assert message.content[3].input == {"path": "/ä"}
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (20, 5)
        assert message.stop_reason == "tool_use"
    assert claude.messages.count_tokens(model="m", messages=asked["messages"]).input_tokens > 0
    assert [model.id for model in claude.models.list()] == ["mock-small", "mock-large"]


def test_the_chat_of_the_mock_is_chat(mock: MockProvider, gpt: Any) -> None:
    mock.then(SAY, SAY)
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    with gpt.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        streamed = stream.get_final_completion()
    for completion in (streamed, gpt.chat.completions.create(**asked)):
        message = completion.choices[0].message
        assert message.content == "Grüße 🌍"
        assert message.tool_calls[0].function.arguments == '{"path": "/ä"}'
        assert completion.usage.prompt_tokens_details.cached_tokens == 5
        assert completion.choices[0].finish_reason == "tool_calls"
    assert [model.id for model in gpt.models.list()] == ["mock-small", "mock-large"]


def test_the_responses_of_the_mock_are_responses(mock: MockProvider, gpt: Any) -> None:
    mock.then(SAY, SAY)
    with gpt.responses.stream(model="m", input="hi") as stream:
        streamed = stream.get_final_response()
    for response in (streamed, gpt.responses.create(model="m", input="hi")):
        assert [item.type for item in response.output] == ["reasoning", "message", "function_call"]
        assert response.output_text == "Grüße 🌍"
        assert response.output[2].arguments == '{"path": "/ä"}'
        assert response.usage.input_tokens_details.cached_tokens == 5


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "BadRequestError"),
        (401, "AuthenticationError"),
        (404, "NotFoundError"),
        (429, "RateLimitError"),
        (500, "InternalServerError"),
        (529, None),
    ],
)
def test_the_errors_of_the_mock_are_errors(mock: MockProvider, claude: Any, gpt: Any, status: int, kind: str) -> None:
    mock.then(*[Fail(status, "no luck")] * 3)
    says = [{"role": "user", "content": "hi"}]
    with pytest.raises(anthropic.APIStatusError) as caught:
        claude.messages.create(model="m", max_tokens=1, messages=says)
    assert caught.value.status_code == status
    assert kind is None or type(caught.value).__name__ == kind
    for call in (gpt.chat.completions.create, gpt.responses.create):
        with pytest.raises(openai.APIStatusError) as caught:
            call(model="m", **({"messages": says} if call == gpt.chat.completions.create else {"input": "hi"}))
        assert caught.value.status_code == status
        assert kind is None or type(caught.value).__name__ == kind


def test_an_error_in_the_middle_is_one_for_the_sdks_too(mock: MockProvider, claude: Any, gpt: Any) -> None:
    mock.then(*[Say("x" * 300, error_after=6)] * 3)
    with (
        pytest.raises(anthropic.APIStatusError),
        claude.messages.stream(model="m", max_tokens=1, messages=[{"role": "user", "content": "hi"}]) as stream,
    ):
        stream.get_final_message()
    with pytest.raises(openai.APIError):
        list(gpt.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True))
    assert "error" in [event.type for event in gpt.responses.create(model="m", input="hi", stream=True)]


def full(dialect: str, **fields: Any) -> ModelRequest:
    """A request with one of everything."""
    kept = {
        "anthropic": b'{"type":"thinking","thinking":"x","signature":"y"}',
        "openai.chat": b'{"reasoning_content":"x"}',
        "openai.responses": b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"x"}',
    }[dialect]
    image = ImageBlock(blob="0" * 64)
    call = ToolCall(id="c.1", name="file.read", args={"path": "/a"})
    broken = ToolCall(id="c.2", name="file.read", args_error="no JSON", raw="{")
    results = [
        ToolResultBlock(id="c.1", content=[TextBlock(text="r"), image]),
        ToolResultBlock(id="c.2", content=[TextBlock(text="no JSON")], error=True),
    ]
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    return request(
        Message(role="system", blocks=[TextBlock(text="s")]),
        user("hi", image),
        Message(role="assistant", blocks=[OpaqueBlock(dialect=dialect, data=kept), TextBlock(text="t"), call, broken]),
        Message(role="tool", blocks=[*results]),
        user("go on"),
        tools=[FILE_READ],
        output_schema=schema,
        temperature=0.5,
        **fields,
    )


def consumed(value: Any) -> Any:
    """Validators of iterables work only when they are read."""
    if isinstance(value, dict):
        return {name: consumed(part) for name, part in value.items()}
    if isinstance(value, str | bytes | int | float | None):
        return value
    return [consumed(part) for part in value]


def allowed(body: dict[str, Any], params: Any, beyond: frozenset[str] = frozenset()) -> None:
    import msgspec

    plain = msgspec.json.decode(msgspec.json.encode(body))
    known = {name for base in (params, *params.__orig_bases__) for name in getattr(base, "__annotations__", {})}
    assert set(plain) - beyond <= known
    adapter = pydantic.TypeAdapter(params)  # must live until the last iterator is read
    consumed(adapter.validate_python(plain))


def test_the_types_of_anthropic_allow_what_we_send() -> None:
    from anthropic.types.message_create_params import MessageCreateParamsStreaming

    asked = full("anthropic", stop=["x"])
    asked.model = "claude-sonnet-4-5"
    body = Anthropic(Endpoint("http://127.0.0.1")).dialect(asked).body(asked, Names.of(asked), lambda _: b"png")
    # Sampling was taken out of the newest types; models that have it take it, the others say so.
    allowed(body, MessageCreateParamsStreaming, frozenset(("temperature",)))


@pytest.mark.parametrize("official", [True, False])
def test_the_types_of_openai_allow_what_we_send_in_chat(official: bool) -> None:
    from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

    asked = full("openai.chat", stop=["x"], seed=1)
    provider = OpenAI() if official else OpenAI(Endpoint("http://127.0.0.1/v1"))
    allowed(provider.dialect(asked).body(asked, Names.of(asked), lambda _: b"png"), CompletionCreateParamsStreaming)


def test_the_types_of_openai_allow_what_we_send_in_responses() -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    asked = full("openai.responses")
    allowed(OpenAI().dialect(asked).body(asked, Names.of(asked), lambda _: b"png"), ResponseCreateParamsStreaming)


def test_what_is_not_allowed_is_noticed() -> None:
    from openai.types.responses.response_create_params import ResponseCreateParamsStreaming

    asked = full("openai.responses")
    body = OpenAI().dialect(asked).body(asked, Names.of(asked), lambda _: b"png")
    with pytest.raises(AssertionError):
        allowed({**body, "made_up": 1}, ResponseCreateParamsStreaming)
    with pytest.raises(pydantic.ValidationError):
        allowed({**body, "input": [{"type": "function_call"}]}, ResponseCreateParamsStreaming)
