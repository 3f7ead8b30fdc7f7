"""Answers that pass by: read along, not changed."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.models import Usage
from agent_os.drivers.models.passing import Meter, Passed, WithoutUsage, asking_for_usage, request_of
from agent_os.drivers.models.wire import Endpoint, Wire
from models.provider import KEY, Called, Fail, MockProvider, Say

PATHS = ["/v1/messages", "/v1/chat/completions", "/v1/responses"]
SAY = Say("Grüße 🌍 and more", calls=[Called("f", {"x": 1})], input=100, cached=40, output=30, reasoning=7)
USAGE = Usage(input=100, cached_read=40, output=30, reasoning=7)


@pytest.fixture
def mock() -> Iterator[MockProvider]:
    with MockProvider() as provider:
        yield provider


def passed(mock: MockProvider, path: str, **fields: Any) -> tuple[bytes, Passed]:
    says = [{"role": "user", "content": "hi"}]
    body = {"model": "m", "max_tokens": 9, "messages": says, "input": "hi", **fields}
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01", "content-type": "application/json"}

    async def work() -> tuple[bytes, Passed]:
        wire, meter, seen = Wire(Endpoint(mock.url)), Meter(path, stream=bool(fields.get("stream"))), b""
        answer = await wire.send("POST", path, headers, json.dumps(body).encode(), key=KEY)
        while (chunk := await answer.chunk()) is not None:
            seen += chunk
            meter.take(chunk)
        await answer.close()
        await wire.close()
        return seen, meter.result()

    return asyncio.run(work())


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("piece", [0, 1])
def test_a_stream_is_metered_while_it_passes(mock: MockProvider, path: str, piece: int) -> None:
    mock.then(Say(**{**vars(SAY), "piece": piece}))
    _, result = passed(mock, path, stream=True, stream_options={"include_usage": True})
    assert result == Passed(USAGE, "tool", None)


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_is_metered_too(mock: MockProvider, path: str) -> None:
    mock.then(SAY)
    _, result = passed(mock, path)
    assert result.usage == USAGE
    assert result.stop in ("tool", "end")


def test_embeddings_cost_what_they_were_given(mock: MockProvider) -> None:
    assert passed(mock, "/v1/embeddings")[1] == Passed(Usage(input=5), "end")


@pytest.mark.parametrize("path", PATHS)
def test_an_error_in_the_middle_is_told_and_what_came_before_is_counted(mock: MockProvider, path: str) -> None:
    mock.then(Say("x" * 300, error_after=9, deltas=30))
    _, result = passed(mock, path, stream=True)
    assert result.fault is not None
    assert result.usage.estimated
    assert result.usage.output > 10


@pytest.mark.parametrize("path", PATHS)
def test_what_cannot_be_read_is_estimated(mock: MockProvider, path: str) -> None:
    mock.then(Say("x" * 300, garble_after=9, deltas=30), Fail(200, body=b"not json" * 30))
    assert passed(mock, path, stream=True)[1].usage.output > 10
    _, result = passed(mock, path)
    assert (result.usage.estimated, result.usage.output, result.stop) == (True, 80, None)


def test_usage_that_only_we_asked_for_is_taken_out_again(mock: MockProvider) -> None:
    mock.then(SAY, SAY)
    path = "/v1/chat/completions"
    plain = passed(mock, path, stream=True)[0]
    asked = passed(mock, path, stream=True, stream_options={"include_usage": True})[0]
    assert b'"usage": {' in asked
    filtered = WithoutUsage()
    told = b"".join(filtered.take(asked[at : at + 3]) for at in range(0, len(asked), 3)) + filtered.end()
    assert b'"usage": {' not in told
    assert told.replace(b', "usage": null', b"") == plain


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(1, 20))
def test_other_bytes_pass_as_they_are(data: bytes, size: int) -> None:
    filtered = WithoutUsage()
    pieces = [filtered.take(data[at : at + size]) for at in range(0, len(data), size)]
    assert b"".join(pieces) + filtered.end() == data


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from([*PATHS, "/v1/embeddings", "/x"]), st.booleans())
def test_no_answer_does_harm(data: bytes, path: str, stream: bool) -> None:
    meter = Meter(path, stream=stream)
    meter.take(b"data: " + data + b"\n\n")
    assert meter.result().usage.output >= 0


def test_a_body_is_made_to_ask_and_else_left_alone() -> None:
    body = b'{"model": "m", "temperature": 1.0, "stream":true, "x": {"a":  1}}'
    asking = asking_for_usage(body)
    assert asking is not None
    assert b'"x":{"a":  1}' in asking
    assert b'"temperature":1.0' in asking
    assert json.loads(asking)["stream_options"] == {"include_usage": True}
    assert asking_for_usage(asking) is None
    assert asking_for_usage(b'{"model": "m"}') is None
    assert asking_for_usage(b"nonsense") is None


def test_a_request_is_known_by_its_model() -> None:
    assert request_of(b'{"model": "m", "stream": true}') == ("m", True)
    assert request_of(b'{"model": "m", "stream": 1}') == ("m", False)
    assert request_of(b'{"model": 5}') is None
    assert request_of(b"[]") is None


def test_what_never_ends_is_not_kept() -> None:
    filtered = WithoutUsage()
    assert sum(len(filtered.take(b"x" * (1 << 20))) for _ in range(20)) >= 16 << 20
