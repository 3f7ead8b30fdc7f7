"""MCP servers: which the operator added, what of each was approved, and who speaks with each.

In: OP_MCP of an operator, and calls of `mcp.<server>.<tool>`. Out: tools in the registry, each pinned by the
fingerprint that the operator approved of. One that its server has changed is held from then on, also if it is changed
back, until somebody approves. A server is in the store, so its tools are there after a restart; it is started when it
is first asked, and again when it has died. What it says is a stranger's word.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
from msgspec import Struct, field

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EBUSY, ECONFLICT, EEXIST, EHOSTUNREACH, EINVAL, ENOENT, EPIPE, ETIMEDOUT, AgentOSError
from agent_os.abi.helpers import McpTool, McpTools, Nothing, Op, fingerprint
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.abi.text import native
from agent_os.abi.tools import LONGEST_DESCRIPTION, LONGEST_TIMEOUT_S, ToolSpec
from agent_os.drivers.store import Put
from agent_os.kernel import orders
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.helpers import mcp
from agent_os.kernel.helpers.mcp import Speaking
from agent_os.kernel.journal import Draft
from agent_os.kernel.table import qualified
from agent_os.kernel.tools.registry import Call, Deed

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

SERVERS = "mcp"  # the bucket
CHANGED = "mcp.tools_changed"  # a helper's notice
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}", re.ASCII)
_TO_LIST, _TO_ANSWER = 30.0, 10.0  # seconds: to begin with, after a call that took too long
_BETWEEN_LOOKS = 1.0  # seconds: whoever says without end that its tools are others is not looked at without end
_MOST = 100  # servers
_ROOM, _SHORT = 256 << 10, 200  # characters of what tools say of themselves: of all, of one that is approved


class Speech(Protocol):
    """What is known of the protocol's tools: `drivers.tools.mcp`."""

    def spec(self, server: str, tool: McpTool, seconds: float) -> ToolSpec: ...

    def changed(self, approved: Sequence[McpTool], listed: Sequence[McpTool]) -> dict[str, str]: ...

    def call(
        self, name: str, params: Mapping[str, Any], helper: Any, keep: Any, seconds: float
    ) -> Awaitable[dict[str, Any]]: ...


class Server(Struct):
    """As it is kept."""

    name: str
    order: dict[str, Any] = {}  # of a command
    url: str = ""
    secret: str = ""
    connect_s: float = 30.0
    call_s: float = 60.0
    tools: list[McpTool] = field(default_factory=list[McpTool])  # as they were approved
    held: dict[str, str] = field(default_factory=dict[str, str])  # of them, what was seen to be another, and why

    @property
    def agent(self) -> str:
        """What it is called among agents."""
        return f"mcp-{self.name}"

    @property
    def where(self) -> str:
        return self.url or " ".join(map(native, self.order["argv"]))


class Servers:
    def __init__(self, kernel: "Kernel", speech: Speech) -> None:
        self._kernel, self._speech = kernel, speech
        self._servers: dict[str, Server] = {}
        self._speaking: dict[str, Speaking] = {}
        self._opening: dict[str, asyncio.Lock] = {}
        self._listed: dict[str, McpTools] = {}  # as each was last seen
        self._problem: dict[str, str] = {}
        self._unfit: dict[str, dict[str, str]] = {}  # server → tool → why it cannot be one here
        self._looking: dict[str, asyncio.Task[None]] = {}
        for _, kept in kernel.store.items(SERVERS):
            server = msgspec.msgpack.decode(kept, type=Server)
            self._servers[server.name] = server
            self._register(server)

    def require_no_server(self, agent: str) -> None:
        if any(one.agent == agent for one in self._servers.values()):
            raise EEXIST("agent.server", f"{agent} is the name of an MCP server", hint="choose another name")

    # What operators ask.

    async def do(self, request: abi.Mcp, by: str) -> list[dict[str, Any]]:
        if request.do == "list":
            return [self._row(one) for one in self._servers.values()]
        if request.do == "add":
            return [await self._add(request, by)]
        server = self._find(request.name)
        if request.do == "remove":
            return await self._remove(server, by)
        await self._look(server)
        if request.do == "approve":
            await self._approve(server, request.listing, by)
        return [self._told(server)]

    async def _add(self, request: abi.Mcp, by: str) -> dict[str, Any]:
        server = self._wanted(request)
        self._servers[server.name] = server
        try:
            server.tools = await self._look(server)
            await self._keep(server, by, "add")
            self._register(server)
        except BaseException:
            self._withdraw(server)
            self._servers.pop(server.name, None)
            await self._end(server.name, "it was not added")
            raise
        return self._told(server)

    def _wanted(self, request: abi.Mcp) -> Server:
        """Checked before anything is started; what it shows of the host is what it is now."""
        mcp.require_sdk()
        if not _NAME.fullmatch(request.name):
            hint = "small letters, digits and _, a letter first, at most 32"
            raise EINVAL("mcp.name", f"{request.name!r} is no name of a server", hint=hint)
        if request.name in self._servers:
            raise EEXIST("mcp.exists", f"there is a server {request.name}", hint=f"agentctl mcp rm {request.name}")
        if len(self._servers) >= _MOST:
            raise EBUSY("mcp.many", f"{_MOST} servers are the most there are", hint="agentctl mcp rm NAME")
        if bool(request.order.get("argv")) == bool(request.url):
            raise EINVAL("mcp.where", "give either a command or an address", hint="-- CMD ARG…, or --url https://…")
        if not 0 < request.connect_s <= LONGEST_TIMEOUT_S / 4 or not 0 < request.call_s <= LONGEST_TIMEOUT_S / 2:
            reason = f"a server has up to {LONGEST_TIMEOUT_S / 4:g} s to connect and {LONGEST_TIMEOUT_S / 2:g} s a call"
            raise EINVAL("mcp.seconds", reason, hint="--connect 30s --timeout 60s")
        order: dict[str, Any] = {}
        if request.url:
            mcp.endpoint(request.url)
        else:
            order = self._pinned(request.order)
        if request.secret and not request.url.startswith("https://"):
            raise EINVAL("mcp.secret", "a secret is brought to an https:// address only", hint="--url https://…")
        server = Server(request.name, order, request.url, request.secret, request.connect_s, request.call_s)
        if not self._kernel.table.is_free(qualified(server.agent)):
            raise EEXIST("agent.exists", f"{server.agent} is running already", hint="choose another name")
        return server

    def _pinned(self, order: dict[str, Any]) -> dict[str, Any]:
        """Its changes are nobody's work: they go when it ends."""
        written = orders.read({**order, "after": "discard"})
        if written.file or written.tty or written.name or written.origin or written.snapshot:
            raise EINVAL("mcp.order", "a server is a command with pipes, called after the server")
        parsed = orders.parse(written, orders.host_of(written, self._kernel.guests.home))
        return orders.pinned({**order, "after": "discard"}, parsed)

    async def _approve(self, server: Server, listing: str, by: str) -> None:
        listed = self._listed[server.name].tools
        if listing != digest(listed):
            reason = f"{server.name} does not list what you have looked at"
            raise ECONFLICT("mcp.listing", reason, hint=f"agentctl mcp test {server.name}")
        self._withdraw(server)
        server.tools, server.held = listed, {}
        await self._keep(server, by, "approve")
        self._register(server)

    async def _remove(self, server: Server, by: str) -> list[dict[str, Any]]:
        told = frames.encode_body({"event": "mcp remove", "server": server.name})
        draft = Draft(by, Kind.CHANGE, body=told)
        await self._kernel.journal.record(draft, puts=[Put(SERVERS, server.name, None)])
        self._withdraw(server)
        self._servers.pop(server.name, None)
        await self._end(server.name, "it was removed")
        for kept in (self._listed, self._problem, self._unfit):
            kept.pop(server.name, None)
        return [self._row(one) for one in self._servers.values()]

    async def _keep(self, server: Server, by: str, event: str, **facts: Any) -> None:
        prints = {tool.alias: fingerprint(tool) for tool in server.tools}
        told = {"event": f"mcp {event}", "server": server.name, "where": server.where, "approved": prints, **facts}
        row = Put(SERVERS, server.name, msgspec.msgpack.encode(server))
        await self._kernel.journal.record(Draft(by, Kind.CHANGE, body=frames.encode_body(told)), puts=[row])

    def _find(self, name: str) -> Server:
        if name not in self._servers:
            hint = f"there is {', '.join(sorted(self._servers)) or 'none'}"
            raise ENOENT("mcp.unknown", f"there is no MCP server {name!r}", hint=hint)
        return self._servers[name]

    def _row(self, server: Server) -> dict[str, Any]:
        name, speaking = server.name, self._speaking.get(server.name)
        state = "held" if server.held else "running" if speaking and speaking.alive else "ready"
        unfit = self._unfit.get(name, {})
        return {
            "name": name,
            "state": "failed" if self._problem.get(name) else state,
            "where": server.where,
            "agent": server.agent,
            "tools": [f"mcp.{name}.{tool.alias}" for tool in server.tools if tool.alias not in unfit],
            "held": server.held,
            "problem": self._problem.get(name, ""),
        }

    def _told(self, server: Server) -> dict[str, Any]:
        """With all that it lists. What is not approved yet is told as far as a model would read it."""
        seen, approved = self._listed[server.name], {tool.alias for tool in server.tools}
        new = [tool.alias for tool in seen.tools if tool.alias not in approved]
        says, room = dict[str, str](), _ROOM
        for tool in seen.tools:
            text = tool.description or tool.title
            most = LONGEST_DESCRIPTION if tool.alias in (*new, *server.held) else _SHORT
            says[tool.alias] = text[: max(0, min(most, room))]
            room -= len(says[tool.alias])
        left_out = {**seen.left_out, **self._unfit.get(server.name, {})}
        return {**self._row(server), "new": new, "says": says, "left_out": left_out, "listing": digest(seen.tools)}

    # Its tools.

    def _register(self, server: Server) -> None:
        """A tool of which nothing can be made is left out; the others of its server are there."""
        longest, unfit = server.connect_s + server.call_s + 2 * _TO_LIST, dict[str, str]()
        for tool in server.tools:
            deed = Deed(partial(self._call, server.name, tool), digest=fingerprint(tool).encode())
            try:
                spec = self._speech.spec(server.name, tool, longest)
                self._kernel.tools.registry.register(spec, deed, foreign=True)
            except AgentOSError as problem:
                unfit[tool.alias] = problem.reason
            self._kernel.tools.registry.suspend(f"mcp.{server.name}.{tool.alias}", _held(server, tool.alias))
        self._unfit[server.name] = unfit

    def _withdraw(self, server: Server) -> None:
        for tool in server.tools:
            self._kernel.tools.registry.withdraw(f"mcp.{server.name}.{tool.alias}")

    async def _call(self, name: str, tool: McpTool, call: Call) -> Any:
        server = self._find(name)
        speaking = await self._spoken(server)
        if tool.alias in server.held:
            raise EBUSY("tool.suspended", f"{call.tool.id} is suspended: {_held(server, tool.alias)}", ran=False)
        call.under.confirm((), {})
        try:
            return await self._speech.call(tool.alias, call.params, speaking, call.under.keep, server.call_s)
        except (EPIPE, EHOSTUNREACH) as problem:
            await self._lost(name, speaking, problem)
            raise
        except ETIMEDOUT:
            with suppress(AgentOSError):  # one that is only slow lists its tools; one that hangs is ended
                await self._list(server, speaking, _TO_ANSWER)
            raise

    # The server itself.

    async def _spoken(self, server: Server) -> Speaking:
        """Started if need be; then what it lists is looked at, for it may be another one than was approved."""
        async with self._opening.setdefault(server.name, asyncio.Lock()):
            speaking = self._speaking.get(server.name)
            if speaking and speaking.alive:
                return speaking
            try:
                speaking = self._speaking[server.name] = await self._listed_anew(server)
            except AgentOSError as problem:
                self._problem[server.name] = problem.reason
                raise
            return speaking

    async def _listed_anew(self, server: Server) -> Speaking:
        """Nobody speaks with one whose listing was not looked at."""
        speaking = await self._start(server)
        try:
            await self._list(server, speaking)
        except BaseException:
            await speaking.end("what it lists could not be seen")
            raise
        return speaking

    async def _start(self, server: Server) -> Speaking:
        def notice(text: str) -> None:
            if text == CHANGED and server.name not in self._looking:
                self._looking[server.name] = asyncio.create_task(self._look_again(server))

        words = (self._kernel, server.agent)
        if server.url:
            return await mcp.reach(*words, server.url, server.secret, server.connect_s, notice)
        return await mcp.run_command(*words, server.order, server.connect_s, notice)

    async def _look(self, server: Server) -> list[McpTool]:
        """What it has now, held against what was approved."""
        before = self._listed.get(server.name)
        speaking = await self._spoken(server)
        if self._listed.get(server.name) is before:  # it was running already
            await self._list(server, speaking)
        return self._listed[server.name].tools

    async def _list(self, server: Server, speaking: Speaking, seconds: float = _TO_LIST) -> None:
        try:
            listed = (await speaking.ask(Op.MCP_TOOLS, Nothing(), McpTools, seconds=seconds)).value
        except (EPIPE, EHOSTUNREACH, ETIMEDOUT) as problem:
            await self._lost(server.name, speaking, problem)
            raise
        if self._servers.get(server.name) is not server:
            raise ENOENT("mcp.unknown", f"{server.name} was removed")
        self._listed[server.name] = listed
        self._problem.pop(server.name, None)
        news = self._speech.changed([one for one in server.tools if one.alias not in server.held], listed.tools)
        if news:
            server.held |= news
            for alias in news:
                self._kernel.tools.registry.suspend(f"mcp.{server.name}.{alias}", _held(server, alias))
            await self._keep(server, "kernel", "held", held=news)

    async def _look_again(self, server: Server) -> None:
        """It says that its tools are others. What cannot be seen is told when it is called."""
        try:
            await asyncio.sleep(_BETWEEN_LOOKS)
        finally:
            self._looking.pop(server.name, None)  # what it says from here on is about another listing
        speaking = self._speaking.get(server.name)
        try:
            if speaking and speaking.alive:
                await self._list(server, speaking)
        except AgentOSError as problem:
            self._problem[server.name] = problem.reason

    async def _lost(self, name: str, speaking: Speaking, problem: AgentOSError) -> None:
        """A connection that has failed is made anew by the next call."""
        self._problem[name] = problem.reason
        await speaking.end(problem.reason)

    async def _end(self, name: str, why: str) -> None:
        if looking := self._looking.pop(name, None):
            looking.cancel()
        if speaking := self._speaking.pop(name, None):
            await speaking.end(why)

    async def close(self) -> None:
        for name in list(self._speaking):
            await self._end(name, "the kernel is stopping")


def digest(listed: Sequence[McpTool]) -> str:
    """Of all that a server lists."""
    return sha256(" ".join(sorted(f"{tool.alias}={fingerprint(tool)}" for tool in listed)).encode()).hexdigest()


def _held(server: Server, alias: str) -> str:
    why = server.held.get(alias, "")
    return f"{why} (agentctl mcp approve {server.name})" if why else ""


def _mcp(kernel: "Kernel", caller: Any, asked: Asked) -> Act:
    request = cast("abi.Mcp", asked.request)

    async def do() -> Done:
        tools = kernel.tools
        if tools.make_servers is None:
            raise EINVAL("mcp.none", "this kernel has no helpers for MCP servers")
        tools.servers = tools.servers or tools.make_servers()
        return Done({"servers": await tools.servers.do(request, caller.id)})

    return Act(do)


Prepare = Callable[["Kernel", Any, Asked], Act]
PREPARE: dict[int, Prepare] = {BY_REQUEST[abi.Mcp].number: _mcp}
