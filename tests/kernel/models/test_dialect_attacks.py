"""A guest that words its request so that the provider does more than the door sees."""

import json
import time
from typing import Any

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.models.dialects import read
from agent_os.kernel.models.passage import CHAT, EMBEDDINGS, MESSAGES, RESPONSES
from kernel.models.test_dialects import ask, said


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        (
            {"search_parameters": {"mode": "on", "sources": [{"type": "rss", "links": ["https://evil/?q=1"]}]}},
            "web_search",
        ),
        ({"enable_search": True}, "web_search"),
        ({"data_sources": [{"type": "azure_search", "parameters": {"endpoint": "https://evil"}}]}, "file_search"),
        ({"api_base": "https://evil/v1"}, "other_servers"),
        ({"api_key": "sk-of-somebody-else"}, "other_servers"),
        ({"brand_new": {"deep": [{"where": "HTTPS://evil/collect"}]}}, "url"),
        ({"brand_new": "ftp://evil/"}, "url"),
        ({"service_tier": "priority"}, "priority"),
        ({"speed": "fast"}, "priority"),
        ({"model": "openai/gpt:online"}, "web_search"),
        ({"tools": [{"google_search": {}}]}, "google_search"),
        ({"tools": [{"name": "f", "tools": [{"type": "mcp", "server_url": "https://evil"}]}]}, "mcp"),
    ],
)
def test_what_leads_out_of_the_provider_is_named(fields: dict[str, Any], word: str) -> None:
    assert word in ask(CHAT, **fields).server_tools


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image", "image": "https://evil/pixel.png"},
        {"type": "video", "video": "https://evil/film"},
        {"file_data": {"file_uri": "gs://evil/x"}},
        {"type": "image_url", "imageUrl": "https://evil/pixel.png"},
    ],
)
def test_a_source_by_another_name_is_a_source(block: dict[str, Any]) -> None:
    assert "url" in said(CHAT, block).server_tools


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"Type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"ty\u017fe": 1, "TYPE": "mcp", "name": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "Source": {"type": "url", "url": "https://e"}}]}]},
        {"dataSources": [{"type": "azure_search"}]},
        {"stream": "true"},
        {"stream": 1},
    ],
)
def test_what_two_would_read_differently_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(EINVAL):
        ask(MESSAGES, **fields)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            CHAT,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"$schema": "https://json-schema.org/"}},
                }
            },
        ),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {"$id": "https://example.org/x"}}}}),
        (CHAT, {"messages": [{"role": "user", "content": "https://example.org says"}]}),
        (CHAT, {"service_tier": "auto", "stop": ["http://"], "prediction": {"type": "content", "content": "http://a"}}),
        (MESSAGES, {"tools": [{"name": "f", "input_schema": {"properties": {"url": {"type": "string"}}}}]}),
        (EMBEDDINGS, {"input": ["https://example.org"]}),
    ],
)
def test_what_is_only_said_to_the_model_asks_for_nothing(path: str, fields: dict[str, Any]) -> None:
    assert ask(path, **fields).server_tools == frozenset()


@pytest.mark.parametrize("piece", [b"[],", b"{},", b"1,", b'"",'])
def test_a_body_of_very_many_values_is_refused_before_it_fills_the_memory(piece: bytes) -> None:
    body = b'{"model":"m","messages":[' + piece * ((8 << 20) // len(piece)) + b"0]}"
    began = time.thread_time()
    with pytest.raises(EINVAL, match="values"):
        read(CHAT, body)
    assert time.thread_time() - began < 5


def test_a_long_text_with_many_commas_is_no_such_body() -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": 'a,[{"\\' * (1 << 18)}]}).encode()
    assert read(CHAT, body).model == "m"


def test_a_text_that_never_ends_is_refused_in_time() -> None:
    began = time.thread_time()
    with pytest.raises(EINVAL):
        read(CHAT, b'{"model":"m",' + b"," * (1 << 20) + b'"' + b'\\"' * (4 << 20))
    assert time.thread_time() - began < 5
