"""`MessageBus` as the first design has it, on a kernel in this process."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from agent_os import AgentContext, KernelSpace, MessageBus
from agent_os.abi.errors import EIO, ESRCH


def with_two(test: Callable[[MessageBus, AgentContext, AgentContext], Awaitable[None]]) -> None:
    async def main() -> None:
        async with KernelSpace() as kernel, asyncio.timeout(60):
            caps = ["ipc:topic/event.**:publish,subscribe"]
            await test(
                MessageBus(kernel),
                kernel.create_agent_context("a", caps=caps),
                kernel.create_agent_context("b", caps=caps),
            )

    asyncio.run(main())


def test_the_host_says_who_sends_and_the_message_tells_that_it_did() -> None:
    async def test(bus: MessageBus, a: AgentContext, b: AgentContext) -> None:
        await bus.send("a", "b", {"x": 1})
        (got,) = await b.recv(wait=5)
        assert (got.payload, got.sender, got.via) == ({"x": 1}, "a", "host")
        with pytest.raises(ESRCH):
            await bus.send("a", "nobody", 1)
        with pytest.raises(ESRCH):
            await bus.send("nobody", "b", 1)

    with_two(test)


def test_a_broadcast_reaches_agents_and_handlers_of_the_host() -> None:
    async def test(bus: MessageBus, a: AgentContext, b: AgentContext) -> None:
        heard: asyncio.Queue[Any] = asyncio.Queue()
        tries = 0

        async def handle(event: Any) -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ValueError("not yet")
            await heard.put(event)

        end = await bus.subscribe("a", "done", handle)
        await b.subscribe("event.*")
        await bus.broadcast("a", {"type": "done", "paper": 7})
        assert await heard.get() == {"type": "done", "paper": 7}
        assert tries == 2
        assert [one.payload["paper"] for one in await b.recv(wait=5)] == [7]
        end()
        await asyncio.sleep(0)
        await bus.broadcast("a", {"type": "done"})
        assert heard.empty()

    with_two(test)


def test_a_request_has_a_response_or_says_why_not() -> None:
    async def test(bus: MessageBus, a: AgentContext, b: AgentContext) -> None:
        async def handle(message: Any) -> Any:
            return 10 // message.payload

        serving = asyncio.create_task(b.serve(handle))
        assert await bus.request("a", "b", 5) == 2
        with pytest.raises(EIO, match="ZeroDivisionError"):
            await bus.request("a", "b", 0)
        serving.cancel()

    with_two(test)
