"""Telling MCP clients that what they could call has changed, in the way that their era has for it.

In: the kernel's notice `tools` on a connection, pushed when a listing would look otherwise. Out:
`notifications/tools/list_changed`. In the new era it goes on the stream that `subscriptions/listen` opened, and on no
other; in the old one to the session: over its pipe, or over HTTP on the GET stream that the client holds open, and to
nobody while it holds none. Nothing is kept for whoever does not listen: it asks anew when it comes again.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPError

from agent_os.abi.errors import ENOENT, EPERM, AgentOSError
from agent_os.client.wire import Client

if TYPE_CHECKING:
    from agent_os.gateway.mcp import Context, Way

_MOST_STREAMS = 256  # of the new era, of all clients together
_SOONEST_S, _LATEST_S = 1.0, 30.0  # between two looks for a kernel that is away
SESSION = "mcp-session-id"


class Changes:
    """The handlers of `subscriptions/listen` and `notifications/initialized`."""

    def __init__(self, way: "Way") -> None:
        self._way = way
        self._streams = 0
        self._sessions: set[str] = set()  # of the old era, each of which is told by one task

    async def listen(
        self, ctx: "Context", params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """One stream of the new era. It ends with the connection to the kernel, so that whoever was shown out, or whose
        kernel was restarted, comes again and asks anew."""
        if self._streams >= _MOST_STREAMS:
            raise MCPError(types.INTERNAL_ERROR, f"{_MOST_STREAMS} streams are open already")
        wanted = types.SubscriptionFilter(tools_list_changed=params.notifications.tools_list_changed)
        bus = InMemorySubscriptionBus()
        handler = ListenHandler(bus)  # of this stream alone: another's events are another client's

        async def carry(client: Client) -> None:
            await _each(client, lambda: bus.publish(ToolsListChanged()))
            handler.close()

        self._streams += 1
        try:
            async with self._way(ctx) as client, _beside(carry(client)):
                # Only what we will tell is acknowledged: there are no prompts and no resources.
                return await handler(ctx, params.model_copy(update={"notifications": wanted}))
        except AgentOSError as error:
            raise MCPError(types.INTERNAL_ERROR, str(error)) from None
        finally:
            self._streams -= 1

    async def opened(self, ctx: "Context", params: types.NotificationParams | None) -> None:
        """A session of the old era, from its first word on; the SDK cancels this when it ends."""
        session = ctx.request.headers.get(SESSION, "") if ctx.request else ""
        if session in self._sessions:  # it said so before
            return
        self._sessions.add(session)
        pause, lost = _SOONEST_S, False
        try:
            while True:
                try:
                    async with self._way(ctx) as client:
                        if lost:  # who knows what changed meanwhile
                            await ctx.session.send_tool_list_changed()
                        pause = _SOONEST_S
                        await _each(client, ctx.session.send_tool_list_changed)
                except (EPERM, ENOENT):  # its token or its registration is gone
                    return
                except AgentOSError:  # the kernel is away
                    pause = min(2 * pause, _LATEST_S)
                lost = True
                await asyncio.sleep(pause)
        finally:
            self._sessions.discard(session)


async def _each(client: Client, tell: Callable[[], Awaitable[None]]) -> None:
    """`tell`, each time that a listing would look otherwise; several times may be one. Returns with the connection."""
    news = asyncio.Event()

    def hear(what: str, body: Any) -> None:
        if what == "notice" and body.get("type") == "tools":
            news.set()

    async def lose() -> None:
        await client.closed()
        news.set()

    deaf = client.hear(hear)
    try:
        async with _beside(lose()):
            while True:
                await news.wait()
                news.clear()
                if client.lost:
                    return
                await tell()
    finally:
        deaf()


@asynccontextmanager
async def _beside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Runs while the block does."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
