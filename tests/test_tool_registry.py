"""`ToolRegistry` of the first design: a function registered, found, listed and called for an agent, by the gate."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from agent_os import KernelSpace, ToolRegistry, tool
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EEXIST, ENOENT, EPERM, ETYPE


@tool(name="text.count", effect="pure", tags=["text"])
async def count(text: str) -> int:
    "Number of words in a text."
    return len(text.split())


@tool(name="text.lie")
def lie(n: int) -> int:
    "Says that it gives a number."
    return "none"  # type: ignore[return-value]


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_a_tool_is_registered_listed_and_called() -> None:
    async def body() -> None:
        async with KernelSpace() as kernel:
            tools = ToolRegistry(kernel)
            tools.register(count)
            tools.register(count)  # the same again
            kernel.create_agent_context("worker", caps=["tool:text.count:call"])
            kernel.create_agent_context("nobody")
            assert tools.get("text.count@^1").spec.name == "text.count"
            assert [one.name for one in tools.list("text.count")] == ["text.count"]
            assert [one.name for one in tools.list(agent_id="worker")] == ["text.count"]
            assert tools.list(agent_id="nobody") == []
            assert await tools.execute("text.count", {"text": "one two"}, "worker") == 2
            with pytest.raises(EPERM):
                await tools.execute("text.count", {"text": "one two"}, "nobody")
            assert tools.get("text.count").health.metrics.calls == 1
            acts = [entry for entry, _ in kernel.journal.scan("default/worker") if entry.kind == Kind.RESULT]
            assert len(acts) == 1

    run(body())


def test_what_does_not_fit_is_refused_before_and_after() -> None:
    async def body() -> None:
        async with KernelSpace() as kernel:
            tools = ToolRegistry(kernel)
            tools.register(lie)
            kernel.create_agent_context("worker", caps=["tool:text.lie:call"])
            with pytest.raises(ETYPE) as caught:
                await tools.execute("text.lie", {"n": "one"}, "worker")
            assert caught.value.detail["pointer"] == "/n"
            with pytest.raises(ETYPE) as caught:
                await tools.execute("text.lie", {"n": 1}, "worker")
            assert caught.value.detail["ran"] is True
            with pytest.raises(ENOENT) as missing:
                await tools.execute("text.lei", {}, "worker")
            assert "text.lie" in missing.value.hint

    run(body())


def test_another_function_of_the_same_version_is_refused() -> None:
    @tool(name="text.count", effect="pure", tags=["text"])
    async def other(text: str) -> int:
        "Number of words in a text."
        return 0

    async def body() -> None:
        async with KernelSpace() as kernel:
            tools = ToolRegistry(kernel)
            tools.register(count)
            with pytest.raises(EEXIST):
                tools.register(other)

    run(body())
