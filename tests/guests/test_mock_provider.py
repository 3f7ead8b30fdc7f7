"""The stand-in for a provider speaks each wire as its clients read it, streamed and whole."""

import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from guests.mock_provider import Call, Provider, Say

WIRES = ("/v1/messages?beta=true", "/v1/responses", "/v1/chat/completions")
TOOLS = {
    "/v1/messages?beta=true": [{"name": "Read", "input_schema": {}}],
    "/v1/responses": [{"type": "namespace", "tools": [{"type": "function", "name": "Read"}]}],
    "/v1/chat/completions": [{"type": "function", "function": {"name": "Read"}}],
}


def post(provider: Provider, path: str, body: dict[str, Any]) -> str:
    request = urllib.request.Request(provider.url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def called(path: str, text: str) -> tuple[str, dict[str, Any]]:
    """The tool call of an answer that came whole: name and arguments."""
    answer = json.loads(text)
    if path == "/v1/responses":
        return answer["output"][0]["name"], json.loads(answer["output"][0]["arguments"])
    if path == "/v1/chat/completions":
        function = answer["choices"][0]["message"]["tool_calls"][0]["function"]
        return function["name"], json.loads(function["arguments"])
    return answer["content"][0]["name"], answer["content"][0]["input"]


@pytest.mark.parametrize("path", WIRES)
def test_a_call_takes_the_name_that_the_client_offered(path: str) -> None:
    with Provider([Call({"shell": {"command": "x"}, "Read": {"file_path": "/a"}}), Say("done")]) as provider:
        assert called(path, post(provider, path, {"tools": TOOLS[path]})) == ("Read", {"file_path": "/a"})
        assert "done" in post(provider, path, {"tools": TOOLS[path]})
    assert [request.turn for request in provider.requests] == [0, 1]
    assert provider.problems == []


@pytest.mark.parametrize("path", WIRES)
def test_a_stream_is_a_series_of_events_with_a_last_one(path: str) -> None:
    with Provider([Say("streamed words")]) as provider:
        text = post(provider, path, {"stream": True})
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert "streamed words" in text
    assert {"[DONE]": True}.get(events[-1]) or json.loads(events[-1])["type"] in {"message_stop", "response.completed"}


def test_what_a_client_with_tools_asks_without_them_is_no_turn_of_the_script() -> None:
    with Provider([Call({"Read": {}})]) as provider:
        post(provider, "/v1/messages", {"messages": ["a title, please"]})
        assert json.loads(post(provider, "/v1/messages/count_tokens", {})) == {"input_tokens": 10}
        assert provider.told == []
    assert [request.path for request in provider.requests] == ["/v1/messages", "/v1/messages/count_tokens"]


def test_what_the_script_cannot_answer_is_a_problem() -> None:
    with Provider([Call({"Write": {}})]) as provider:
        post(provider, "/v1/messages", {"tools": [{"name": "Read"}]})
        post(provider, "/v1/messages", {"tools": [{"name": "Read"}]})
        with pytest.raises(urllib.error.HTTPError, match="404"):
            post(provider, "/v1/embeddings", {})
    assert len(provider.problems) == 2
