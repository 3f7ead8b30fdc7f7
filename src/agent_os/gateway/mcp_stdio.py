"""`python -m agent_os.gateway.mcp_stdio NAME`: our MCP server on standard input and output, as one outside client.

A process of the operator's: it asks the kernel for a pass as NAME and comes in with that, so whatever it asks passes
the gate as that client. When the kernel was restarted it gets a new pass, with the next request. Ends with its input.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

from mcp.server.stdio import stdio_server

from agent_os.abi.doors import Clients
from agent_os.client.wire import Client, connect
from agent_os.gateway.mcp import Context, server


class Line:
    """A connection as one client, made when it is first needed and again when it was lost."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._open: AsyncExitStack | None = None
        self._client: Client | None = None
        self._opening = asyncio.Lock()

    @asynccontextmanager
    async def using(self, ctx: Context | None = None) -> AsyncGenerator[Client]:
        async with self._opening:
            if self._client is None or self._client.lost:
                await self.close()
                async with connect() as operator:
                    word = (await operator.call(Clients(do="enter", name=self._name)))["token"]
                self._open = AsyncExitStack()
                self._client = await self._open.enter_async_context(connect(token=word))
        yield self._client

    async def close(self) -> None:
        opened, self._open, self._client = self._open, None, None
        if opened:
            await opened.aclose()


async def serve(name: str) -> None:
    line = Line(name)
    made: Any = server(line.using)
    try:
        async with stdio_server() as (read, write):
            await made.run(read, write, made.create_initialization_options())
    finally:
        await line.close()


def main() -> None:
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(sys.argv[1]))
    os._exit(0)  # the thread that reads standard input may sit there for ever


if __name__ == "__main__":
    main()
