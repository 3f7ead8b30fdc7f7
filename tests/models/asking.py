"""Short ways to ask a provider in a test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from agent_os.abi.models import Block, Message, ModelReply, ModelRequest, TextBlock, ToolSchema
from agent_os.drivers.models import Cancel, LimitsSeen, ModelProvider, ProviderEvent
from agent_os.kernel.models.provider import Collector
from models.provider import KEY

FILE_READ = ToolSchema(
    name="file.read",
    description="Reads a file.",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)


def user(*blocks: Block | str) -> Message:
    return Message(role="user", blocks=[TextBlock(text=part) if isinstance(part, str) else part for part in blocks])


def request(*messages: Message, **fields: Any) -> ModelRequest:
    return ModelRequest(model="mock-small", messages=list(messages) or [user("Hello")], **fields)


def run(provider: ModelProvider, work: Callable[[], Awaitable[Any]]) -> Any:
    async def whole() -> Any:
        try:
            return await work()
        finally:
            await provider.close()

    return asyncio.run(whole())


def events(
    provider: ModelProvider, asked: ModelRequest, key: str | None = KEY, cancel: Cancel | None = None
) -> list[ProviderEvent]:
    async def work() -> list[ProviderEvent]:
        return [event async for event in provider.stream(asked, key, cancel)]

    return run(provider, work)


def ask(provider: ModelProvider, asked: ModelRequest, key: str | None = KEY) -> ModelReply:
    collector = Collector()
    for event in events(provider, asked, key):
        if not isinstance(event, LimitsSeen):
            collector.take(event)
    return collector.reply()
