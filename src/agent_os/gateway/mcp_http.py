"""`/mcp`: our MCP server over streamable HTTP, for tokens that are bound to an outside client.

In: requests that passed the guard. Out: the server's answers, as the client that the token stands for. A token of a
person is refused: it would be an operator, and MCP is for agents. Sessions of the old era are their creator's alone.
The SDK is imported with the first request: it takes a second, and few need it.
"""

import asyncio
import importlib.util
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_os.abi.errors import ENOSYS, EPERM, AgentOSError
from agent_os.client.wire import Client
from agent_os.gateway import problems
from agent_os.gateway.pool import Pool

PATH = "/mcp"
_LONGEST_TOKEN = 512
_MOST_SESSIONS = 256


class McpDoor:
    """An ASGI application. `close` ends what it has open."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._app: ASGIApp | None = None
        self._opening = asyncio.Lock()
        self._enough = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            token = _token(Headers(scope=scope).get("authorization", ""))
            async with self._pool.using(token) as client:
                who = client.welcome.agent
            if ":" in who:  # local:0, token:anna: a person
                hint = "agentctl mcp register NAME, then agentctl mcp token NAME"
                raise EPERM("mcp.token", "this token is no outside client's", hint=hint)
            app = await self._open()
        except AgentOSError as error:
            await problems.response(error, scope["path"])(scope, receive, send)
            return
        await app({**scope, "user": _user(who)}, receive, send)

    async def _open(self) -> ASGIApp:
        """The server, once there was a first request."""
        async with self._opening:
            if self._app is None:
                if importlib.util.find_spec("mcp") is None:
                    raise ENOSYS("mcp.extra", "/mcp needs mcp", hint="pip install 'agent-os[mcp]'")
                opened: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
                self._running = asyncio.create_task(self._run(opened))
                self._app = await opened
        return self._app

    async def _run(self, opened: "asyncio.Future[ASGIApp]") -> None:
        """The sessions live in one task of their own."""
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            from agent_os.gateway.mcp import server

            manager = StreamableHTTPSessionManager(server(self._way), max_sessions=_MOST_SESSIONS)
            async with manager.run():
                opened.set_result(manager.handle_request)
                await self._enough.wait()
        except BaseException as problem:
            if not opened.done():
                opened.set_exception(problem)
            raise

    @asynccontextmanager
    async def _way(self, ctx: Any) -> AsyncGenerator[Client]:
        """By the token of the very request: a session is no authority."""
        async with self._pool.using(_token(ctx.request.headers.get("authorization", ""))) as client:
            yield client

    async def close(self) -> None:
        self._enough.set()
        if self._running:
            await asyncio.wait([self._running])


def _token(header: str) -> str:
    kind, _, token = header.partition(" ")
    if kind.lower() != "bearer" or not token:
        hint = "send Authorization: Bearer TOKEN; agentctl mcp token NAME makes one"
        raise EPERM("token.missing", "this needs a token of an outside client", hint=hint)
    if len(token) > _LONGEST_TOKEN or not token.startswith("aos_"):
        raise EPERM("token.unknown", "this is no token of ours", hint="agentctl mcp token NAME makes one")
    return token


def _user(who: str) -> Any:
    """For the SDK, which lets nobody but its creator use a session."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    return AuthenticatedUser(AccessToken(token="", client_id=who, scopes=[]))
