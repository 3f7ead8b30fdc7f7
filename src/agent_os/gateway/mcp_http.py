"""`/mcp`: our MCP server over streamable HTTP, for tokens that are bound to an outside client.

In: requests that passed the guard. Out: the server's answers, as the client that the token stands for. A token of a
person is refused: it would be an operator, and MCP is for agents. Each client has a room of its own for its sessions of
the old era, so that none takes another's, or all there are. A request is served for as long as the kernel lets its
client stay: a stream that is open ends with the registration and with the token. The SDK is imported with the first
request: it takes a second, and few need it.
"""

import asyncio
import importlib.util
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable
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
_MOST_SESSIONS = 128  # of one client
_MOST_ROOMS = 128  # more than the kernel has clients; beyond, the one that was not used for longest is closed
_TO_ANSWER = 2.0  # seconds for what is under way, when the kernel has shown its client out


class _Room:
    """The sessions of one client. They live in one task of their own."""

    def __init__(self, way: Any) -> None:
        self.opened: asyncio.Future[ASGIApp] = asyncio.get_running_loop().create_future()
        self.enough = asyncio.Event()
        self.task = asyncio.create_task(self._run(way))

    async def _run(self, way: Any) -> None:
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

            from agent_os.gateway.mcp import server

            manager = StreamableHTTPSessionManager(server(way), max_sessions=_MOST_SESSIONS)
            async with manager.run():
                self.opened.set_result(manager.handle_request)
                await self.enough.wait()
        except BaseException as problem:
            if not self.opened.done():
                self.opened.set_exception(problem)
            raise


class McpDoor:
    """An ASGI application. `close` ends what it has open."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._rooms: OrderedDict[str, _Room] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            token = _token(Headers(scope=scope).get("authorization", ""))
            async with self._pool.using(token) as client:
                who = client.welcome.agent
                if ":" in who:  # local:0, token:anna: a person
                    hint = "agentctl mcp register NAME, then agentctl mcp token NAME"
                    raise EPERM("mcp.token", "this token is no outside client's", hint=hint)
                app = await self._room(who)
                await _while_it_stays(client, app({**scope, "user": _user(who)}, receive, send))
        except AgentOSError as error:
            await problems.response(error, scope["path"])(scope, receive, send)

    async def _room(self, who: str) -> ASGIApp:
        room = self._rooms.get(who)
        if room is None or room.task.done():
            if importlib.util.find_spec("mcp") is None:
                raise ENOSYS("mcp.extra", "/mcp needs mcp", hint="pip install 'agent-os[mcp]'")
            if len(self._rooms) >= _MOST_ROOMS:
                self._rooms.popitem(last=False)[1].enough.set()
            room = self._rooms[who] = _Room(self._way)
        self._rooms.move_to_end(who)
        return await asyncio.shield(room.opened)

    @asynccontextmanager
    async def _way(self, ctx: Any) -> AsyncGenerator[Client]:
        """By the token of the very request: a session is no authority."""
        async with self._pool.using(_token(ctx.request.headers.get("authorization", ""))) as client:
            yield client

    async def close(self) -> None:
        for room in self._rooms.values():
            room.enough.set()
        if self._rooms:
            await asyncio.wait([room.task for room in self._rooms.values()])


async def _while_it_stays(client: Client, work: Awaitable[None]) -> None:
    serving, gone = asyncio.ensure_future(work), asyncio.ensure_future(client.closed())
    try:
        await asyncio.wait([serving, gone], return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await asyncio.wait([serving], timeout=_TO_ANSWER)
    finally:
        for one in (serving, gone):
            one.cancel()
        await asyncio.gather(serving, gone, return_exceptions=True)
    if not serving.cancelled():
        serving.result()


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
