"""Requests of unmodified programs on a real kernel: door, gate, budget, queue, retries, and a provider on a socket."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.signals import AgentSignal
from agent_os.drivers.models import ModelFault
from agent_os.kernel.authority.bindings import bind
from agent_os.kernel.egress import Connection, Egress
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.models import doors, forwarding
from agent_os.kernel.models.catalogue import Provider
from agent_os.kernel.models.passage import CHAT, COUNT_TOKENS, MESSAGES
from agent_os.kernel.recorded import Recorded
from agent_os.space import AgentContext, KernelSpace
from kernel.egress.test_models import Answer
from models.provider import KEY, Fail, MockProvider, Say

_USER = [{"role": "user", "content": "hi"}]
ASKS = {"model": "small", "max_tokens": 1000, "messages": _USER}
CAP = "llm:mock/small:call"


class Bench:
    """A kernel, an agent in this process, and the door that a guest of its name would have."""

    def __init__(self, space: KernelSpace, mock: MockProvider, caps: list[str]) -> None:
        self.kernel: Kernel = space._kernel
        self.mock = mock
        self.context: AgentContext = space.create_agent_context("a", caps=caps)
        self.agent = self.kernel.table.find("a")
        self.records: list[Connection] = []
        door = doors.door(self.kernel, self.agent, None)
        self.egress = Egress("a", [], self.records.append, doors=door)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    async def open(self, path: str = MESSAGES, **fields: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A request under way."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        body = json.dumps({**ASKS, **fields}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: placeholder\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return reader, writer

    async def ask(self, path: str = MESSAGES, **fields: Any) -> Answer:
        reader, writer = await self.open(path, **fields)
        try:
            return Answer(await asyncio.wait_for(reader.read(), 60))
        finally:
            writer.close()

    @property
    def spent(self) -> dict[str, int]:
        return {key: amount for key, amount in self.kernel.budgets.account(self.agent.id).spent.items() if amount}

    @property
    def held(self) -> dict[str, int]:
        return {key: amount for key, amount in self.kernel.budgets.account(self.agent.id).held.items() if amount}

    def kept(self, kind: Kind) -> list[Any]:
        found = self.kernel.journal.scan(self.agent.id)
        return [Recorded.of(kept) for entry, kept in found if entry.kind == kind and entry.op == 19]

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not true():
                await asyncio.sleep(0.01)


def bench(home: Path, work: Callable[[Bench], Awaitable[None]], *, cap: str = CAP, **fields: Any) -> None:
    async def whole() -> None:
        with MockProvider() as mock:
            async with KernelSpace(home / "kernel") as space:
                catalogue, safe = space._kernel.models.catalogue, space._kernel.safe
                about = {"name": "mock", "dialect": "anthropic", "base": mock.url, "keys": ("mock-key",), **fields}
                if about["dialect"] == "openai":
                    about["base"] += "/v1"
                catalogue.keep(catalogue.added(Provider(**about)))
                safe.add("mock-key", KEY.encode())
                safe.bind(bind("mock-key", [f"127.0.0.1:{mock.port}"]))
                one = Bench(space, mock, [cap] if cap else [])
                serving = asyncio.create_task(one.egress.serve(one.listener))
                try:
                    await work(one)
                finally:
                    serving.cancel()
                    with suppress(asyncio.CancelledError):
                        await serving

    asyncio.run(whole())


def test_a_call_is_on_the_record_with_both_bodies_by_hash_and_paid_by_what_was_used(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("hello", input=30, output=4))
        answer = await one.ask()
        assert answer.status == 200
        assert one.spent == {"tokens": 34, "model_calls": 1}
        assert one.held == {}
        [intent], [outcome] = one.kept(Kind.INTENT), one.kept(Kind.OUTCOME)
        asked = msgspec.msgpack.decode(intent.request)
        assert (asked["door"], asked["model"]) == (MESSAGES, "mock/small")
        assert one.kernel.store.blob(asked["request"]) == json.dumps(ASKS).encode()
        told = msgspec.msgpack.decode(outcome.value)
        assert told["status"] == 200
        assert told["answer"] == sha256(answer.body).digest()
        assert one.kernel.store.blob(told["answer"]) == answer.body
        assert one.records == []

    bench(tmp_path, work)


@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_is_metered_as_it_passes(tmp_path: Path, stream: bool) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("hello there", input=30, cached=10, output=7))
        answer = await one.ask(CHAT, stream=stream)
        assert answer.status == 200
        assert b'"choices": []' not in answer.body
        assert one.spent == {"tokens": 37, "model_calls": 1}

    bench(tmp_path, work, dialect="openai")


def test_counting_tokens_costs_none(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        assert (await one.ask(COUNT_TOKENS)).status == 200
        assert one.spent == {"model_calls": 1}
        assert one.held == {}

    bench(tmp_path, work)


def test_without_the_capability_nothing_is_sent(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        answer = await one.ask(model="mock/small")
        assert (answer.status, answer.headers["x-should-retry"]) == (403, "false")
        await one.until(lambda: bool(one.records))
        assert one.records[0].allow_flag == "--model mock/small"
        assert one.mock.seen == []

    bench(tmp_path, work, cap="")


def test_a_tool_at_the_provider_needs_a_grant_of_its_own(tmp_path: Path) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}]

    async def without(one: Bench) -> None:
        answer = await one.ask(tools=tools)
        assert answer.status == 403
        assert "server_tools" in answer.error["message"]
        assert one.mock.seen == []

    async def granted(one: Bench) -> None:
        assert (await one.ask(tools=tools)).status == 200
        assert (await one.ask(tools=tools, container="c")).status == 403

    bench(tmp_path / "1", without)
    bench(tmp_path / "2", granted, cap="llm:mock/small:call{server_tools:web_search}")


def test_a_budget_lowers_the_output_or_refuses(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.kernel.budgets.limit(one.agent.id, {"tokens": 500})
        assert (await one.ask()).status == 200
        assert 256 <= one.mock.last["max_tokens"] < 500
        one.kernel.budgets.limit(one.agent.id, {"tokens": one.spent["tokens"] + 100})
        answer = await one.ask()
        assert (answer.status, answer.headers["x-should-retry"]) == (403, "false")
        assert answer.error["type"] == "permission_error"
        assert len(one.mock.seen) == 1
        assert one.held == {}

    bench(tmp_path, work)


def test_a_call_is_tried_again_before_the_program_sees_anything(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Fail(429, retry_after="0"), Fail(503), Say("there", input=9, output=2))
        answer = await one.ask()
        assert (answer.status, json.loads(answer.body)["content"][0]["text"]) == (200, "there")
        assert len(one.mock.seen) == 3
        assert one.spent["tokens"] == 11

    bench(tmp_path, work)


@pytest.mark.long
def test_what_the_provider_refuses_the_program_hears_in_its_own_words(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Fail(400, "your request is odd"), *[Fail(529)] * 4)
        answer = await one.ask()
        assert (answer.status, answer.error["message"]) == (400, "your request is odd")
        assert (await one.ask()).status == 529
        assert len(one.mock.seen) == 5
        assert one.held == {}
        assert one.spent == {"model_calls": 2}

    bench(tmp_path, work)


def test_a_provider_that_quotes_the_key_tells_nobody(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say(f"it is {KEY}!", piece=5), Fail(400, f"bad key {KEY}"))
        for stream in (True, False):
            answer = await one.ask(stream=stream)
            assert KEY.encode() not in answer.body
            assert len(answer.body) > 50

    bench(tmp_path, work)
    for path in (tmp_path / "kernel").rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes(), path


def test_a_program_that_goes_away_pays_for_what_came(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("word " * 500, between_s=0.02, input=50))
        reader, writer = await one.open(stream=True)
        await reader.readuntil(b"word")
        writer.close()
        assert await asyncio.to_thread(one.mock.seen[0].gone.wait, 5)
        await one.until(lambda: not one.held and bool(one.spent))
        assert 50 <= one.spent["tokens"] < 1000

    bench(tmp_path, work)


def test_a_killed_agent_has_no_call_under_way(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.mock.then(Say("word " * 500, between_s=0.02))
        first = await one.open(stream=True)
        await first[0].readuntil(b"word")
        second = await one.open()  # which waits: there is one slot
        await one.until(lambda: len(one.kernel.models.places()) == 1)
        one.context.signals.signal(AgentSignal.SIGKILL)
        assert await asyncio.to_thread(one.mock.seen[0].gone.wait, 8)
        assert one.kernel.models.places() == []
        for reader, writer in (first, second):
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
        assert len(one.mock.seen) == 1
        assert one.held == {}

    bench(tmp_path, work, slots=1)


def test_who_waits_too_long_is_told_when_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarding, "LONGEST_WAIT_S", 0.2)

    async def work(one: Bench) -> None:
        one.mock.then(Say("slow", first_s=5))
        _, writer = await one.open()
        await one.until(lambda: bool(one.mock.seen))
        answer = await one.ask()
        assert (answer.status, answer.error["type"]) == (529, "overloaded_error")
        assert int(answer.headers["retry-after"]) >= 1
        assert len(one.mock.seen) == 1
        writer.close()
        await one.until(lambda: not one.held)

    bench(tmp_path, work, slots=1)


def test_an_alias_stands_for_a_model(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.kernel.models.catalogue.alias("quick", "mock/small")
        assert (await one.ask(model="quick")).status == 200
        assert one.mock.last["model"] == "small"

    bench(tmp_path, work)


def test_the_door_adds_little_to_the_first_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A figure, with a bound that only something broken passes: the machine may be busy."""

    async def first_byte(port: int, key: str) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps(ASKS).encode()
        head = f"POST {MESSAGES} HTTP/1.1\r\nHost: 127.0.0.1\r\nx-api-key: {key}\r\nanthropic-version: 2023-06-01\r\n"
        began = time.perf_counter()
        writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        await reader.readexactly(1)
        took = time.perf_counter() - began
        await reader.read()
        writer.close()
        return took

    async def work(one: Bench) -> None:
        await one.ask()
        pairs = [(await first_byte(one.mock.port, KEY), await first_byte(one.port, "placeholder")) for _ in range(40)]
        straight, door = median(a for a, _ in pairs), median(b for _, b in pairs)
        with capsys.disabled():
            print(f"\ndoor: first byte after {door * 1e3:.1f} ms, straight {straight * 1e3:.1f} ms")
        assert door - straight < 0.25

    bench(tmp_path, work)


def test_a_driver_forwards_as_its_interface_says(tmp_path: Path) -> None:
    """Without an answer at all there is a fault, and nothing was sent."""

    async def work(one: Bench) -> None:
        from agent_os.drivers.models.anthropic import Anthropic
        from agent_os.drivers.models.wire import Endpoint

        nobody = Anthropic(Endpoint("http://127.0.0.1:9"))
        with pytest.raises(ModelFault) as lost:
            await nobody.forward(MESSAGES, {}, b"{}", KEY)
        assert not lost.value.sent
        await nobody.close()

    bench(tmp_path, work)
