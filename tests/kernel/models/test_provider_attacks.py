"""A hostile or broken provider of native calls: it is paid for what it wrote, holds little, and tells no key."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.models import OpaqueBlock
from agent_os.drivers.models import speaking
from kernel.models.test_gateway import Bench, asked, bench
from models.provider import KEY, Called, Raw, Say

_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(**delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta}
    return b"data: " + json.dumps({"id": "x", "model": "small", "choices": [choice]}).encode() + b"\n\n"


def test_a_provider_that_tells_no_usage_is_counted_by_what_it_wrote(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("word " * 300, usage=False))
        reply = await one.agent().think(asked())
        assert reply.usage.estimated
        assert reply.usage.output >= 500
        assert one.spent()["tokens"] >= 500

    bench(tmp_path, work)


def test_reasoning_without_end_is_cut_and_paid(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Raw(_STREAM + event(reasoning_content="hmm " * 100) * 1000))
        reply = await one.agent().think(asked(max_output=300))
        assert reply.stop == "length"
        assert 1000 < reply.usage.output < 40_000

    bench(tmp_path, work)


def test_a_stream_of_nothing_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaking, "LARGEST_REPLY", 100_000)

    async def work(one: Bench) -> None:
        one.mock.then(Raw(_STREAM + event(role="assistant", odd="x" * 1000) * 1000))
        assert (await one.agent().think(asked())).stop == "length"

    bench(tmp_path, work)


@pytest.mark.parametrize(
    "said",
    [
        Say("fine", thinking=f"the key is {KEY}"),
        Say(calls=[Called(f"call_{KEY}", {"a": 1}, id=f"id_{KEY}")]),
        Say(calls=[Called("f", f"no json {KEY}")]),
        Say("fine", headers={"x-request-id": KEY}),
    ],
)
def test_a_key_is_in_no_part_of_a_reply(tmp_path: Path, said: Say) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(said)
        reply = await one.agent().think(asked())
        shown = repr(reply) + "".join(str(block.data) for block in reply.blocks if isinstance(block, OpaqueBlock))
        assert KEY not in shown

    bench(tmp_path, work)
    for path in (tmp_path / "kernel").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_a_key_is_not_in_the_names_of_models_that_an_error_lists(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        body = json.dumps({"data": [{"id": f"model-{KEY.encode().hex()}"}]}).encode()
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        one.mock.then(Raw(head % (b"404 Not Found", 2) + b"{}"))
        one.mock.strict = False
        one.mock._step, before = (
            (  # type: ignore[method-assign]
                lambda seen: Raw(head % (b"200 OK", len(body)) + body) if seen.method == "GET" else before(seen)
            ),
            one.mock._step,
        )
        with pytest.raises(Exception) as refused:  # noqa: PT011
            await one.agent().think(asked())
        assert KEY.encode().hex() not in repr(vars(refused.value))

    bench(tmp_path, work)
