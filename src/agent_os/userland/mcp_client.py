"""The MCP client: one helper process per server, sandboxed, that speaks the protocol so that the kernel need not.

In: where the server is, then `tools` and `call` over descriptor 3. Out: typed tools and parts of results, every text
and size bounded. Both eras of the protocol are the official SDK's (the extra `mcp`), loaded when a helper starts and
nowhere else. It offers a server nothing: no sampling, no questions to people, no folders. Grants and pins nothing.
"""

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, cast

from agent_os.abi import frames
from agent_os.abi.errors import EBUSY, EHOSTUNREACH, EINVAL, EIO, ENOENT, EPIPE, ETIMEDOUT, ETYPE, AgentOSError
from agent_os.abi.helpers import LARGEST_LIMIT, CallMcp, McpServer, McpTool, McpTools, Nothing, Op, OpenMcp, Outcome
from agent_os.userland import mcp_reading as reading
from agent_os.userland.answering import Answer, Kernel, Operation, run
from agent_os.userland.mcp_pipes import child, pipes, streams

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import Transport

_MOST_PAGES = 100
_ROOM = frames.MAX_FRAME - (64 << 10)  # bytes of one listing
_LONGEST_MESSAGE = 2048  # characters of a server's error
_INSTRUCTIONS = 4096


class Server:
    """One connection to one server. It is opened and closed in one task, as the SDK asks; calls come from others."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._ends = asyncio.Event()
        self._life: asyncio.Task[None] | None = None
        self._names: dict[str, str] = {}
        self.changed: Callable[[str], None] = lambda _: None  # called when the server says that its tools are others

    async def open(self, request: OpenMcp) -> Answer:
        if self._life is not None:
            raise EBUSY("mcp.open", "this helper has a server already: one helper, one server")
        opened: asyncio.Future[McpServer] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(request, opened))
        try:
            return Answer(await asyncio.shield(opened))
        except BaseException:
            await self.end()
            raise

    async def _live(self, request: OpenMcp, opened: "asyncio.Future[McpServer]") -> None:
        try:
            from mcp import Client

            transport = _transport(request)
            async with Client(transport, mode=request.era, cache=None, message_handler=self._heard) as client:
                self._client = client
                if not opened.done():
                    opened.set_result(_introduced(client))
                await self._ends.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as problem:  # whatever ends a connection: who waits for it is told, later calls as well
            if not opened.done():
                opened.set_exception(_told(problem, "connect"))
        finally:
            self._client = None
            if not opened.done():
                opened.set_exception(EHOSTUNREACH("mcp.connect", "the server's connection ended before it began"))
            opened.exception()  # nobody may be waiting any more

    async def _heard(self, message: Any) -> None:
        import mcp_types

        if isinstance(message, mcp_types.ToolListChangedNotification):
            self.changed("mcp.tools_changed")

    async def tools(self, _: Nothing) -> Answer:
        """All that the server lists and that can be a tool of ours; of the rest the names, and why not."""
        client = self._connected()
        found, left_out, room = list[McpTool](), dict[str, str](), _ROOM
        cursor, aliases = None, set[str]()
        for _page in range(_MOST_PAGES):
            page = await self._asked(client.list_tools(cursor=cursor))
            for listed in page.tools:
                try:
                    tool = reading.tool(listed, aliases, len(found))
                    size = len(frames.encode_body(tool))
                    if size > room:
                        raise ValueError("there is no room for it in the listing")
                except ValueError as why:
                    if len(left_out) < reading.MOST_LEFT_OUT:
                        left_out[reading.plain(listed.name, 64)] = str(why)
                    continue
                room -= size
                aliases.add(tool.alias)
                found.append(tool)
            cursor = page.next_cursor
            if cursor is None:
                break
        self._names = {tool.alias: tool.name for tool in found}
        return Answer(McpTools(found, left_out))

    async def call(self, request: CallMcp) -> Answer:
        client = self._connected()
        limit = min(request.limit, LARGEST_LIMIT)
        result = await self._asked(client.call_tool(self._names.get(request.tool, request.tool), request.arguments))
        parts, data, left_out = reading.parts(result, limit)
        return Answer(Outcome(parts, result.is_error, left_out), data)

    async def close(self, _: Nothing) -> Answer:
        await self.end()
        return Answer(Outcome([]))

    async def end(self) -> None:
        self._ends.set()
        if self._life is not None:
            _, late = await asyncio.wait([self._life], timeout=10)
            for task in late:
                task.cancel()

    def _connected(self) -> "Client":
        if self._client is None:
            raise EPIPE("mcp.closed", "there is no connection to the server: open one")
        return self._client

    async def _asked(self, question: Any) -> Any:
        try:
            return await question
        except asyncio.CancelledError:
            raise
        except Exception as problem:
            raise _told(problem, "request") from problem


def _transport(request: OpenMcp) -> "Transport":
    match request.transport:
        case "child":
            if not request.argv:
                raise EINVAL("mcp.command", "a server that is a child needs a command")
            return streams(child(request.argv, request.env))
        case "pipes":
            return streams(pipes(0, 1))
        case "http":
            if not request.url.startswith(("http://", "https://")):
                raise EINVAL("mcp.url", f"{request.url[:100]!r} is no address of a server: http:// or https://")
            return _http(request.url)


@contextlib.asynccontextmanager
async def _http(url: str) -> AsyncGenerator[Any]:
    """Through the proxy of the environment, or to a door of the proxy's own, which attaches a key that is none of
    ours."""
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    async def plain(response: httpx2.Response) -> None:
        # A small compressed answer can be a large one: we ask for none, and read none.
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise httpx2.DecodingError("the server compressed its answer, which was not asked for")
        if int(response.headers.get("content-length") or 0) > reading.LARGEST_MESSAGE:
            raise httpx2.DecodingError(f"the server's answer is over {reading.LARGEST_MESSAGE} bytes")
        if "x-agentos" in response.headers and _is_short(response.headers):
            raise httpx2.ProxyError(_reason((await response.aread()).decode(errors="replace")))
        if response.status_code in (401, 403):
            raise httpx2.ProxyError(f"the server answers {response.status_code}: it wants a key, or another one")

    async with httpx2.AsyncClient(
        headers={"accept-encoding": "identity"},
        timeout=httpx2.Timeout(30, read=300),
        event_hooks={"response": [plain]},
        trust_env=not url.startswith(f"{os.environ.get('HTTP_PROXY', '-')}/"),
    ) as client:
        most = reading.LARGEST_MESSAGE
        async with streamable_http_client(url, http_client=client, max_sse_event_size=most) as both:
            yield both


def _reason(said: str) -> str:
    """Of a refusal by the way out, whose doors speak JSON."""
    try:
        return str(json.loads(said)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return said.strip()


def _is_short(headers: Any) -> bool:
    return 0 < int(headers.get("content-length") or 0) <= _LONGEST_MESSAGE


def _introduced(client: "Client") -> McpServer:
    info = client.server_info
    return McpServer(
        reading.plain(client.protocol_version, 32),
        reading.plain(info.name, 128) if info else "",
        reading.plain(info.version, 64) if info else "",
        reading.plain(client.instructions or "", _INSTRUCTIONS),
    )


def _told(problem: BaseException, when: str) -> AgentOSError:
    """One of our errors for whatever came out of the SDK. What the server said is quoted, cut and made plain."""
    import httpx2
    import mcp_types
    from mcp import MCPError
    from pydantic import ValidationError

    problem = _cause(problem)
    said = reading.plain(str(problem), _LONGEST_MESSAGE)
    match problem:
        case AgentOSError():
            return problem
        # the SDK's number for it is also the one that servers use for any error
        case MCPError() if problem.code == mcp_types.CONNECTION_CLOSED and said == "Connection closed":
            return EPIPE("mcp.closed", "the server closed the connection or ended")
        case MCPError() if problem.code == mcp_types.INVALID_REQUEST and said == "Session terminated":
            return EPIPE("mcp.closed", "the server has forgotten the session")
        case MCPError() if problem.code == mcp_types.REQUEST_TIMEOUT:
            return ETIMEDOUT("mcp.timeout", said)
        case MCPError() if problem.code == mcp_types.METHOD_NOT_FOUND:
            return ENOENT("mcp.method", said)
        case MCPError() if problem.code == mcp_types.INVALID_PARAMS:
            return EINVAL("mcp.params", said)
        case MCPError():
            return EIO("mcp.error", said, number=problem.code)
        case ValidationError():
            return EIO("mcp.garbled", f"the server's answer is not what the protocol says: {said[:500]}")
        case FileNotFoundError() | PermissionError() if when == "connect":
            return ENOENT("mcp.command", f"the server cannot be started: {problem.strerror}: {problem.filename}")
        case httpx2.HTTPError() | OSError():
            return EHOSTUNREACH("mcp.connect", said or type(problem).__name__)
        case TimeoutError():
            return ETIMEDOUT("mcp.timeout", f"no answer to the {when}")
        case RuntimeError() if when == "request":  # what the SDK raises for a result that breaks the tool's own schema
            return ETYPE("mcp.output", said)
        case _:
            return EIO("mcp.failed", f"{type(problem).__name__}: {said}")


def _cause(problem: BaseException) -> BaseException:
    """Of the SDK's task groups: the first cause is as good as any."""
    while isinstance(problem, BaseExceptionGroup):
        problem = cast("BaseExceptionGroup[BaseException]", problem).exceptions[0]
    return problem


async def _main(sock: socket.socket) -> None:
    server = Server()
    kernel = Kernel(
        sock,
        {
            Op.OPEN: Operation(OpenMcp, server.open),
            Op.MCP_TOOLS: Operation(Nothing, server.tools),
            Op.MCP_CALL: Operation(CallMcp, server.call),
            Op.CLOSE: Operation(Nothing, server.close),
        },
    )
    server.changed = kernel.notice
    try:
        await kernel.serve()
    finally:
        await server.end()


def main() -> int:
    os.environ.setdefault("OTEL_SDK_DISABLED", "true")
    return run(_main)
