"""Model calls that go wrong, or need more than words: what the agent is told, what is paid, and what is sent."""

import asyncio
import base64
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import syscalls
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUDGET, EHOSTUNREACH, EINVAL, EMSGSIZE, ENOENT, ETIMEDOUT
from agent_os.abi.models import ImageBlock, Message, TextBlock
from agent_os.drivers.store import Blob, Put
from agent_os.kernel.authority.labels import CLEAN, packed
from agent_os.kernel.journal import Draft
from agent_os.kernel.models import desk
from agent_os.kernel.table import Actor
from agent_os.kernel.tooling import BLOBS
from kernel.models.bench import MODEL, Bench, asked, bench
from models.provider import Fail, Say, Seen, Step

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))


# Images.


async def given(one: Bench, name: str) -> str:
    """A blob that a tool gave to an agent."""
    digest, agent = sha256(PNG).digest(), one.kernel.table.find(name).id
    puts = [Put(BLOBS, f"{agent}\0{digest.hex()}", packed(CLEAN))]
    await one.kernel.journal.record(Draft(agent, Kind.CHANGE, body=b"\x80"), puts=puts, blobs=[Blob(digest, PNG)])
    return digest.hex()


def shown(blob: str) -> Any:
    blocks = [TextBlock(text="What is it?"), ImageBlock(blob=blob)]
    return asked(messages=[Message(role="user", blocks=blocks)])


def test_an_image_is_sent_by_the_blob_that_a_tool_gave(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        await agent.think(shown(await given(one, "a")))
        [_, image] = one.mock.last["messages"][0]["content"]
        assert image["image_url"]["url"] == "data:image/png;base64," + base64.b64encode(PNG).decode()

    bench(tmp_path, work)


def test_nobody_sends_the_image_of_another(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        one.agent()
        thief = one.agent("b")
        blob = await given(one, "a")
        for name in (blob, "00" * 32, "../../etc/passwd", "https://example.com/x.png"):
            with pytest.raises(ENOENT) as refused:
                await thief.think(shown(name))
            assert refused.value.code == "image"
        assert one.mock.seen == []

    bench(tmp_path, work)


# A provider that keeps failing.


def broken(one: Bench) -> None:
    """As after five failures in a row."""
    now = asyncio.get_running_loop().time()
    [breaker] = one.kernel.models._breakers.values()
    for number in range(5):
        breaker.failed(f"earlier {number}", now)
    assert not breaker.allows(now)


def test_who_has_another_model_hears_at_once_that_one_is_left_alone(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        await agent.think(asked())
        broken(one)
        with pytest.raises(EHOSTUNREACH, match="left alone"):
            await agent.think(asked(waits=False))
        with pytest.raises(ETIMEDOUT):
            await agent.think(asked(deadline_ms=100))
        assert len(one.mock.seen) == 1

    bench(tmp_path, work)


def test_a_loop_goes_on_with_its_fallback_while_the_first_model_is_left_alone(tmp_path: Path) -> None:
    def answer(seen: Seen) -> Step:
        return Say("from the other") if seen.body["model"] == "large" else Say("from the first")

    async def work(one: Bench) -> None:
        one.mock.answer = answer
        agent = one.agent(caps=["llm:mock/small:call", "llm:mock/large:call"])
        await agent.think(asked())
        broken(one)
        outcome = await agent.loop("Say where you are.", model=MODEL, fallback=["mock/large"])
        assert (outcome.stop, outcome.text, outcome.models) == ("done", "from the other", ["mock/large"])

    bench(tmp_path, work)


# What a person must mend.


def test_an_unknown_model_is_told_with_the_names_that_there_are(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        with pytest.raises(ENOENT) as unknown:
            await one.agent().think(asked())
        assert unknown.value.code == "model"
        assert "large" in unknown.value.reason
        assert (one.spent()["tokens"], one.held()) == (0, {})

    bench(tmp_path, work, models=["large"])


def test_a_context_that_is_too_long_is_told_at_once_with_both_numbers(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        long = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
        one.mock.then(Fail(400, long, word="context_length_exceeded"))
        with pytest.raises(EMSGSIZE) as refused:
            await one.agent().think(asked("word " * 9000))
        assert refused.value.code == "context"
        assert {8192, 9000} <= set(refused.value.detail.values())
        assert (len(one.mock.seen), one.held()) == (1, {})

    bench(tmp_path, work)


def test_a_prompt_above_all_that_a_key_allows_is_not_sent(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        with pytest.raises(EMSGSIZE) as refused:
            await one.agent().think(asked("word " * 9000))
        assert refused.value.code == "context"
        assert one.mock.seen == []

    bench(tmp_path, work, limits={"tokens": (5000.0, 100.0)})


def test_so_many_calls_as_a_budget_has_are_made_and_no_more(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        one.kernel.budgets.limit(one.kernel.table.find("a").id, {"model_calls": 2})
        for _ in range(2):
            await agent.think(asked())
        with pytest.raises(EBUDGET) as over:
            await agent.think(asked())
        assert over.value.detail["limit"] == 2
        assert len(one.mock.seen) == 2

    bench(tmp_path, work)


# What an operator says of keys and tenants.


async def said(one: Bench, **words: Any) -> Any:
    return await desk._do(one.kernel, Actor("operator"), syscalls.Models(**words))


def test_an_operators_limit_holds_for_calls_that_wait_already(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        agent = one.agent()
        await agent.think(asked())
        told = await said(one, do="limit", name="mock", limits={"requests": 1})
        assert told["limits"] == {"requests": 1}
        await agent.think(asked())  # the bucket begins full
        with pytest.raises(ETIMEDOUT):
            await agent.think(asked(deadline_ms=200))
        waits = asyncio.create_task(agent.think(asked()))
        await one.until(lambda: [place.reason for _, _, place in one.kernel.models.places()] == ["rate"])
        await said(one, do="limit", name="mock")
        assert (await waits).text == "ok"
        assert len(one.mock.seen) == 3

    bench(tmp_path, work)


def test_limits_and_shares_that_make_no_sense_are_refused_and_others_are_kept(tmp_path: Path) -> None:
    async def work(one: Bench) -> None:
        for limits in ({"requests": 0}, {"request": 5}, {"tokens": float("nan")}):
            with pytest.raises(EINVAL):
                await said(one, do="limit", name="mock", limits=limits)
        for name, weight in (("a/b", 2.0), ("acme", 0.0), ("acme", float("nan"))):
            with pytest.raises(EINVAL):
                await said(one, do="share", name=name, weight=weight)
        assert await said(one, do="share", name="acme", weight=3) == {"namespace": "acme", "share": 3}
        assert type(one.kernel.models.catalogue)(one.kernel.store).weights == {"acme": 3}
        assert (await said(one, do="share", name="acme"))["share"] == 1

    bench(tmp_path, work)
