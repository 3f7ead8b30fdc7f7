"""The desk of an operator who lets programs outside in, and those programs: official clients of MCP, as they come."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, TextContent

from cli.desk import AGENTCTL, SECONDS, Desk

CLIENT = "visitor"
ERAS = ("legacy", "2026-07-28")
MEMORY = ("tool:memory.store:call", "tool:memory.retrieve:call", "mem:/mem/semantic/**:read,write")
ERROR = "agent-os/error"


class Door(Desk):
    def register(self, name: str, *words: str, caps: tuple[str, ...] = MEMORY) -> None:
        self.good("mcp", "register", name, *(word for cap in caps for word in ("--cap", cap)), *words)

    def server(self, name: str) -> StdioServerParameters:
        command, *args = AGENTCTL
        return StdioServerParameters(command=command, args=[*args, "mcp", "serve", "--as", name], env=self.env)

    @asynccontextmanager
    async def client(self, name: str, era: str = "auto", **options: Any) -> AsyncGenerator[Client]:
        async with Client(stdio_client(self.server(name)), mode=era, **options) as client:
            yield client

    def record(self, *words: str) -> list[dict[str, Any]]:
        """Entries of the journal."""
        return self.good("events", "-n", "10000", "--json", *words).json["entries"]


def visit(work: Callable[[], Awaitable[None]]) -> None:
    async def within() -> None:
        with anyio.fail_after(SECONDS):
            await work()

    anyio.run(within)


def text(result: CallToolResult) -> str:
    return "\n".join(one.text for one in result.content if isinstance(one, TextContent))


def error(result: CallToolResult) -> dict[str, Any]:
    assert result.is_error, result
    return (result.meta or {})[ERROR]
