"""A hostile guest and a hostile provider at the door: nobody overspends, nobody holds up the kernel or a key."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.drivers.models import passing
from agent_os.kernel.models.passage import CHAT, MESSAGES
from kernel.models.test_forwarding import ASKS, Bench, bench
from models.provider import Raw, Say

_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def _deaf(port: int) -> socket.socket:
    """A client whose side holds next to nothing of what it does not read."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.connect(("127.0.0.1", port))
    made.setblocking(False)
    return made


def chunk(text: str, index: int = 0, **more: Any) -> bytes:
    choice = {"index": index, "delta": {"content": text}, **more}
    return b"data: " + json.dumps({"id": "x", "model": "small", "choices": [choice]}).encode() + b"\n\n"


def test_a_provider_that_tells_no_usage_is_counted_by_what_it_wrote(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("word " * 300, usage=False))
        assert (await one.ask(CHAT, stream=True)).status == 200
        assert one.spent["tokens"] >= 500

    bench(tmp_path, work, dialect="openai")


def test_a_guest_that_asks_for_many_answers_and_leaves_before_the_bill_pays_for_all(tmp_path: Path) -> None:
    many = b"".join(chunk("word " * 60, index) for index in range(20))

    async def work(one: Bench) -> None:
        one.mock.then(Raw(_STREAM + many))
        await one.ask(CHAT, stream=True, n=20)
        assert one.spent["tokens"] >= 20 * 60 * 5 // 3

    bench(tmp_path, work, dialect="openai")


def test_a_guest_that_leaves_before_a_whole_answer_pays_what_it_may_have_cost(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("late", first_s=30))
        _, writer = await one.open(max_tokens=5000)
        await one.until(lambda: bool(one.mock.seen))
        writer.close()
        await one.until(lambda: not one.held)
        assert one.spent["tokens"] >= 5000

    bench(tmp_path, work)


@pytest.mark.parametrize("n", [1, 4])
def test_a_guest_that_names_no_limit_gets_no_more_than_was_reserved(tmp_path: Path, n: int) -> None:
    async def work(one: Bench) -> None:
        one.kernel.budgets.limit(one.agent.id, {"tokens": 30_000})
        await one.ask(CHAT, max_tokens=None, n=n)
        entries = [entry for entry, _ in one.kernel.journal.scan(one.agent.id) if entry.kind == Kind.INTENT]
        assert one.mock.last["max_completion_tokens"] * n <= entries[-1].cost["held"]["tokens"]

    bench(tmp_path, work, dialect="openai")


def test_a_stream_is_cut_when_the_reservation_is_used_up(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.kernel.budgets.limit(one.agent.id, {"tokens": 2000})
        one.mock.then(Raw(_STREAM + chunk("word " * 20) * 2000))
        answer = await one.ask(CHAT, stream=True, max_tokens=500)
        assert answer.status == 200
        assert len(answer.body) < 200_000
        assert one.held == {}
        assert one.spent["tokens"] < 5000

    bench(tmp_path, work, dialect="openai")


def test_an_answer_of_many_megabytes_is_read_for_its_bill_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it again from its beginning with every piece held the kernel up for a minute."""
    body = json.dumps({"data": [{"embedding": [0.123456789] * 300_000}], "usage": {"prompt_tokens": 7}}).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    looked: list[int] = []
    read = passing._about
    monkeypatch.setattr(passing, "_about", lambda said: looked.append(len(said)) or read(said))

    async def work(one: Bench) -> None:
        one.mock.then(Raw(head + body))
        answer = await one.ask("/v1/embeddings", model="small", input=["a"])
        assert len(answer.body) == len(body)
        assert one.spent["tokens"] == 7
        assert looked == [len(body)]

    bench(tmp_path, work, dialect="openai", cap="llm:mock/small:embed")


def test_a_guest_that_does_not_read_keeps_no_slot_of_the_key(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        one.mock.then(Say("word " * 40_000, deltas=2000), Say("next"))
        reader, writer = await asyncio.open_connection(sock=_deaf(one.port), limit=1024)
        body = json.dumps({**ASKS, "stream": True, "max_tokens": 400_000}).encode()
        head = (
            f"POST {MESSAGES} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await one.until(lambda: bool(one.mock.seen))
        answer = await one.ask()
        assert answer.status == 200
        assert one.held != {}  # it has not read
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        assert b"message_stop" in await reader.read()
        writer.close()
        await one.until(lambda: not one.held)

    bench(tmp_path, work, slots=1)


def test_a_name_of_another_dialect_does_not_pass_by_an_alias(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.kernel.models.catalogue.alias("quick", "mock/small")
        answer = await one.ask(MESSAGES, model="quick")
        assert answer.status == 400
        assert one.mock.seen == []

    bench(tmp_path, work, dialect="openai")


@pytest.mark.long
@pytest.mark.parametrize(
    "head",
    [
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Odd: \u2603\r\nContent-Length: 2\r\n\r\n{}",
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 304 Not Modified\r\n\r\n",
        "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 999 Odd\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi",
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nshort",
        "not http at all\r\n\r\n",
    ],
)
def test_an_odd_answer_ends_the_call_and_leaves_nothing_held(
    tmp_path: Path, head: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(*[Raw(head.encode())] * 4)
        await one.ask()
        one.mock.then(Say("fine"))
        while len(one.mock._plan) > 1:
            one.mock._plan.pop(0)
        assert one.held == {}
        assert (await one.ask()).status == 200

    bench(tmp_path, work)
    assert "Traceback" not in caplog.text
