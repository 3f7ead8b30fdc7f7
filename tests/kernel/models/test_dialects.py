"""What the door reads in a guest's body: what happens at the provider is named, plain fields are not our business."""

import json
from typing import Any

import msgspec
import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.models.dialects import Wish, read, word_of
from agent_os.kernel.models.passage import CHAT, COUNT_TOKENS, EMBEDDINGS, MESSAGES, RESPONSES

_USER = {"role": "user", "content": "hi"}
_SOUND: dict[str, dict[str, Any]] = {
    MESSAGES: {"model": "m", "max_tokens": 10, "messages": [_USER]},
    COUNT_TOKENS: {"model": "m", "messages": [_USER]},
    CHAT: {"model": "m", "messages": [_USER]},
    RESPONSES: {"model": "m", "input": "hi"},
    EMBEDDINGS: {"model": "m", "input": ["hi"]},
}


def ask(path: str, **more: Any) -> Wish:
    return read(path, json.dumps(_SOUND[path] | more).encode())


def said(path: str, block: dict[str, Any]) -> Wish:
    """A block inside a message."""
    if path == RESPONSES:
        return ask(path, input=[{"role": "user", "content": [block]}])
    return ask(path, messages=[{"role": "user", "content": [{"type": "text", "text": "see"}, block]}])


@pytest.mark.parametrize("path", _SOUND)
def test_a_plain_request_asks_for_nothing_at_the_provider(path: str) -> None:
    found = ask(path, metadata={"file_id": "mine"}, brand_new_field={"anything": [1, {"deep": True}]})
    assert found.server_tools == frozenset()
    assert found.model == "m"


@pytest.mark.parametrize(
    ("path", "kind", "word"),
    [
        (MESSAGES, "web_search_20250305", "web_search"),
        (MESSAGES, "web_fetch_20260318", "web_fetch"),
        (MESSAGES, "code_execution_20250825", "code_execution"),
        (MESSAGES, "mcp_toolset", "mcp"),
        (MESSAGES, "advisor_20260301", "advisor"),
        (MESSAGES, "never_heard_of_20990101", "never_heard_of"),
        (CHAT, "web_search", "web_search"),
        (CHAT, "mcp", "mcp"),
        (CHAT, "never_heard_of", "never_heard_of"),
        (RESPONSES, "web_search_preview_2025_03_11", "web_search"),
        (RESPONSES, "file_search", "file_search"),
        (RESPONSES, "code_interpreter", "code_execution"),
        (RESPONSES, "image_generation", "image_generation"),
        (RESPONSES, "mcp", "mcp"),
        (RESPONSES, "programmatic_tool_calling", "programmatic_tool_calling"),
        (RESPONSES, "shell", "code_execution"),
        (RESPONSES, "a b\n", "a_b_"),
    ],
)
def test_a_tool_that_runs_at_the_provider_or_is_not_known_is_named(path: str, kind: str, word: str) -> None:
    assert ask(path, tools=[{"type": "function", "name": "f"}, {"type": kind}]).server_tools >= {word}


@pytest.mark.parametrize(
    ("path", "tool"),
    [
        (MESSAGES, {"name": "f", "input_schema": {"type": "object", "properties": {"file_id": {"source": {}}}}}),
        (MESSAGES, {"type": "custom", "name": "f", "input_schema": {}}),
        (MESSAGES, {"type": "bash_20250124", "name": "bash"}),
        (MESSAGES, {"type": "text_editor_20250728", "name": "edit"}),
        (MESSAGES, {"type": "computer_20251124", "name": "computer"}),
        (MESSAGES, {"type": "memory_20250818", "name": "memory"}),
        (MESSAGES, {"type": "tool_search_tool_bm25_20251119", "name": "search"}),
        (CHAT, {"type": "function", "function": {"name": "f", "parameters": {"image_url": {"type": "string"}}}}),
        (CHAT, {"type": "custom", "custom": {"name": "f"}}),
        (RESPONSES, {"type": "function", "name": "f", "parameters": {}}),
        (RESPONSES, {"type": "local_shell"}),
        (RESPONSES, {"type": "shell", "environment": {"type": "local"}}),
        (RESPONSES, {"type": "apply_patch"}),
        (RESPONSES, {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}),
    ],
)
def test_a_tool_that_the_guest_runs_itself_is_nobodys_business(path: str, tool: dict[str, Any]) -> None:
    assert ask(path, tools=[tool]).server_tools == frozenset()


@pytest.mark.parametrize(
    ("path", "fields", "word"),
    [
        (MESSAGES, {"mcp_servers": [{"type": "url", "url": "https://x"}]}, "mcp"),
        (MESSAGES, {"container": "c1"}, "code_execution"),
        (MESSAGES, {"thread": {"type": "continue"}}, "stored"),
        (MESSAGES, {"fallbacks": "default"}, "other_models"),
        (CHAT, {"web_search_options": {"user_location": 1}}, "web_search"),
        (CHAT, {"plugins": [{"id": "web"}]}, "plugins"),
        (CHAT, {"models": ["dearer"]}, "other_models"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"previous_response_id": "resp_1"}, "stored"),
        (RESPONSES, {"conversation": {"id": "c"}}, "stored"),
        (RESPONSES, {"prompt": {"id": "p"}}, "stored"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "m"}]}, "stored"),
        (RESPONSES, {"input": [{"id": "msg_1"}]}, "stored"),
        (RESPONSES, {"input": [{"type": "additional_tools", "tools": [{"type": "mcp"}]}]}, "mcp"),
        (
            MESSAGES,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_addition",
                                "tool": {"type": "tool_definition", "definition": {"type": "web_search_20250305"}},
                            }
                        ],
                    }
                ]
            },
            "web_search",
        ),
    ],
)
def test_what_a_field_asks_of_the_provider_is_named(path: str, fields: dict[str, Any], word: str) -> None:
    assert ask(path, **fields).server_tools == {word}


def test_a_web_search_with_no_options_is_one() -> None:
    assert ask(CHAT, web_search_options={}).server_tools == {"web_search"}
    assert ask(CHAT, web_search_options=None).server_tools == frozenset()


@pytest.mark.parametrize(
    ("path", "block", "word"),
    [
        (MESSAGES, {"type": "image", "source": {"type": "url", "url": "https://x/a.png"}}, "url"),
        (MESSAGES, {"type": "document", "source": {"type": "url", "url": "https://x"}}, "url"),
        (MESSAGES, {"type": "document", "source": {"type": "file", "file_id": "f"}}, "file_id"),
        (MESSAGES, {"type": "document", "source": {"type": "brand_new"}}, "source"),
        (MESSAGES, {"type": "container_upload", "file_id": "f"}, "file_id"),
        (
            MESSAGES,
            {
                "type": "tool_result",
                "tool_use_id": "t",
                "content": [{"type": "image", "source": {"type": "url", "url": "https://x"}}],
            },
            "url",
        ),
        (COUNT_TOKENS, {"type": "image", "source": {"type": "url", "url": "https://x"}}, "url"),
        (CHAT, {"type": "image_url", "image_url": {"url": "https://x/a.png"}}, "url"),
        (CHAT, {"type": "image_url", "image_url": "http://x/a.png"}, "url"),
        (CHAT, {"type": "image_url", "Image_URL": " data:"}, "url"),
        (CHAT, {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}, "url"),
        (CHAT, {"type": "file", "file": {"file_id": "f"}}, "file_id"),
        (RESPONSES, {"type": "input_image", "image_url": "https://x"}, "url"),
        (RESPONSES, {"type": "input_image", "file_id": "f"}, "file_id"),
        (RESPONSES, {"type": "input_file", "file_url": "https://x"}, "url"),
        (RESPONSES, {"type": "input_file", "file_id": "f"}, "file_id"),
    ],
)
def test_a_source_outside_the_request_is_named(path: str, block: dict[str, Any], word: str) -> None:
    assert said(path, block).server_tools >= {word}


@pytest.mark.parametrize(
    ("path", "block"),
    [
        (MESSAGES, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}),
        (MESSAGES, {"type": "document", "source": {"type": "text", "data": "x"}}),
        (MESSAGES, {"type": "search_result", "source": "https://was.read/before", "content": []}),
        (MESSAGES, {"type": "tool_use", "id": "t", "name": "f", "input": {"file_id": "a", "image_url": "https://x"}}),
        (CHAT, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
        (CHAT, {"type": "text", "text": "https://x/file_id"}),
        (RESPONSES, {"type": "input_image", "image_url": "data:image/png;base64,AA"}),
        (RESPONSES, {"type": "output_text", "text": "", "annotations": [{"type": "url_citation", "url": "https://x"}]}),
    ],
)
def test_what_the_request_holds_itself_passes(path: str, block: dict[str, Any]) -> None:
    assert said(path, block).server_tools == frozenset()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"[]",
        b'{"model": "a", "model": "b", "messages": []}',
        b'{"model": "m", "MODEL": "other", "messages": []}',
        '{"model": "m", "tool\u017f": [{"type": "mcp"}]}'.encode(),
        b'{"model": "m", "messages": [{"role": "user", "role": "system"}]}',
        b'{"model": "m", "temperature": NaN}',
        b'{"messages": []}',
        b'{"model": ""}',
        b'{"model": 5}',
        b'{"model": "m", "tools": {}}',
        b'{"model": "m", "tools": ["web_search"]}',
        b'{"model": "m", "tools": [{"type": 5}]}',
        b'{"model": "m", "max_tokens": "many"}',
        b'{"model": "m", "max_tokens": 1e3}',
        b'{"model": "m", "max_tokens": -1}',
        b'{"model": "m", "n": 0}',
        b'{"model": "m", "stream_options": 5}',
        b"\xff",
        b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_two_could_read_differently_is_refused(body: bytes) -> None:
    with pytest.raises(EINVAL) as refused:
        read(CHAT, body)
    assert refused.value.code == "request"


def test_the_output_of_all_answers_is_counted_together() -> None:
    assert ask(CHAT, max_completion_tokens=100, n=3).max_output == 300
    assert ask(CHAT).max_output is None
    assert ask(RESPONSES, max_output_tokens=7).max_output == 7
    assert ask(EMBEDDINGS).max_output == ask(COUNT_TOKENS).max_output == 0


def test_a_body_that_needs_no_change_is_sent_as_it_came() -> None:
    body = b'{ "max_tokens":10,  "model": "m" , "messages":[], "x":1.0e2 }'
    assert read(MESSAGES, body).written("m") is body
    assert read(MESSAGES, body).written("m", 10) is body


def test_where_a_field_changes_all_others_keep_their_bytes() -> None:
    body = b'{"max_tokens": 10, "model": "alias", "x": 1.0e2, "y": [ 1,2 ], "z": "\\u00e9"}'
    written = read(MESSAGES, body).written("real", 5)
    assert msgspec.json.decode(written) == msgspec.json.decode(body) | {"model": "real", "max_tokens": 5}
    assert b'"x":1.0e2,"y":[ 1,2 ],"z":"\\u00e9"' in written


def test_less_output_is_divided_among_the_answers() -> None:
    written = ask(CHAT, max_tokens=100, max_completion_tokens=100, n=2).written("m", 50)
    assert msgspec.json.decode(written) == _SOUND[CHAT] | {"max_tokens": 25, "max_completion_tokens": 25, "n": 2}
    assert msgspec.json.decode(ask(CHAT).written("m", 50))["max_completion_tokens"] == 50


def test_usage_is_asked_for_where_a_stream_would_not_tell() -> None:
    plain = ask(CHAT, stream=True, stream_options={"include_obfuscation": False})
    assert plain.hide_usage
    options = msgspec.json.decode(plain.written("m"))["stream_options"]
    assert options == {"include_obfuscation": False, "include_usage": True}
    asking = ask(CHAT, stream=True, stream_options={"include_usage": True})
    assert not asking.hide_usage
    assert asking.written("m") is asking.body
    assert not ask(CHAT).hide_usage
    assert not ask(MESSAGES, stream=True).hide_usage


def test_a_word_fits_into_a_capability() -> None:
    assert word_of("§§§") == "_"
    assert word_of("_20250305") == "unnamed"
