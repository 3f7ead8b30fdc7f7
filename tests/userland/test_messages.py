"""Messages as an author sees them: what the iterator and `serve` say of each, and what errors tell."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from agent_os import AgentContext, AgentSignal, KernelSpace
from agent_os.abi.errors import EINVAL, EIO, ETIMEDOUT
from agent_os.userland.messages import Message


def with_two(test: Callable[[AgentContext, AgentContext], Awaitable[None]]) -> None:
    caps = ["ipc:agent/*:send", "ipc:topic/**:publish,subscribe"]

    async def main() -> None:
        async with KernelSpace() as kernel, asyncio.timeout(60):
            await test(kernel.create_agent_context("a", caps=caps), kernel.create_agent_context("b", caps=caps))

    asyncio.run(main())


async def rest(ctx: AgentContext) -> list[Any]:
    return [one.payload for one in await ctx.recv(wait=0, max=99)]


def test_each_is_done_with_when_the_next_is_asked_for() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        for number in range(4):
            await a.send("b", number)
        got: list[int] = []
        async with aclosing(b.messages()) as messages:
            async for message in messages:
                got.append(message.payload)
                if message.payload == 2:
                    break
        assert got == [0, 1, 2]
        assert await rest(b) == [3], "two is still in hand: its turn was not over"

    with_two(test)


def test_what_was_fetched_and_not_begun_is_there_for_others_at_once() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        for number in range(4):
            await a.send("b", number)
        async with aclosing(b.messages(batch=4)) as messages:
            async for message in messages:
                await message.ack()
                break
        assert await rest(b) == [1, 2, 3]

    with_two(test)


def test_serving_answers_requests_and_says_what_became_of_the_rest() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        tries: list[Any] = []

        async def handle(message: Message) -> Any:
            tries.append(message.payload)
            if message.payload == "bad":
                raise ValueError("cannot be read")
            if message.payload == "never":
                raise EINVAL("test", "cannot be right", retryable=False)
            return {"got": message.payload}

        serving = asyncio.create_task(b.serve(handle))
        assert (await a.request("b", "hello")).payload == {"got": "hello"}
        with pytest.raises(EIO, match="b says: ValueError: cannot be read"):
            await a.request("b", "bad")
        tries.clear()
        await a.send("b", "bad")
        await a.send("b", "never")
        await a.request("b", "last")
        while len(tries) < 7:
            await asyncio.sleep(0.001)
        assert sorted(tries) == ["bad"] * 5 + ["last", "never"]
        serving.cancel()

    with_two(test)


def test_serving_goes_on_whoever_asked_and_whatever_was_returned() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        async def handle(message: Message) -> Any:
            return b"x" * message.payload if message.payload else object()

        serving = asyncio.create_task(b.serve(handle))
        await a.send("b", 1, type="request")  # and nobody waits
        with pytest.raises(EIO, match=r"b says: EMSGSIZE bus\.size: the payload has"):
            await a.request("b", 300_000)
        with pytest.raises(EIO, match=r"b says: EINVAL bus\.payload: this cannot be sent"):
            await a.request("b", 0)
        assert (await a.request("b", 2)).payload == b"xx"
        serving.cancel()

    with_two(test)


def test_a_request_whose_asker_has_ended_is_answered_to_nobody() -> None:
    async def main() -> None:
        async with KernelSpace() as kernel, asyncio.timeout(60):
            b = kernel.create_agent_context("b")
            a = kernel.create_agent_context("a", caps=["ipc:agent/b:send"])
            asked = asyncio.create_task(a.request("b", 1))
            (message,) = await b.recv()
            asked.cancel()
            await asyncio.wait([asked])
            a.signals.signal(AgentSignal.SIGKILL)
            assert not await message.reply("too late")
            assert not await message.reply("and again")
            assert await rest(b) == []

    asyncio.run(main())


def test_a_slow_handler_asks_for_more_time() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        await a.send("b", 1)
        (got,) = await b.recv(visible=0.05)
        await got.extend(60)
        await asyncio.sleep(0.2)
        assert await rest(b) == []
        await got.nack("not now", delay=0.01)
        (again,) = await b.recv(wait=5)
        assert (again.id, again.deliveries) == (got.id, 2)

    with_two(test)


def test_a_subscription_lasts_until_its_end() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        async with await b.subscribe("news.*"):
            await a.publish("news.one", 1)
            assert await rest(b) == [1]
        await a.publish("news.two", 2)
        assert await rest(b) == []

    with_two(test)


def test_nobody_answers_and_a_late_reply_is_told() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        asking = asyncio.create_task(a.request("b", 1, timeout=0.05))
        (got,) = await b.recv()
        assert got.is_request
        with pytest.raises(ETIMEDOUT):
            await asking
        assert not await got.reply(2)

    with_two(test)


def test_several_are_sent_at_once() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        ids = await a.send_all("b", range(20))
        got = await b.recv(max=30)
        assert [one.id for one in got] == ids
        assert [one.payload for one in got] == list(range(20))
        assert (await a.send_all("b", []), len(await a.send_all("b", [1]))) == ([], 1)

    with_two(test)


def test_what_cannot_be_sent_is_named() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        with pytest.raises(EINVAL, match="cannot be sent"):
            await a.send("b", object())

    with_two(test)


def test_no_message_ends_whoever_serves() -> None:
    async def test(a: AgentContext, b: AgentContext) -> None:
        async def handle(message: Message) -> Any:
            if message.payload == "quote":
                raise ValueError("x" * 300_000)
            return "x" * 300_000 if message.payload == "much" else message.payload

        serving = asyncio.create_task(b.serve(handle))
        await a.send("b", "nobody waits", type="request")
        with pytest.raises(EIO, match="EMSGSIZE"):
            await a.request("b", "much")
        with pytest.raises(EIO, match="xxx"):
            await a.request("b", "quote")
        assert (await a.request("b", "still there")).payload == "still there"
        serving.cancel()

    with_two(test)
