"""Our tools for programs that speak MCP: one server, over whatever carries it, as the client that its connection is.

In: requests of both eras, the 2025 revisions and 2026-07-28, and for each the way to a kernel connection. Out: what the
kernel said. `tools/list` is SYS_TOOLS and `tools/call` is SYS_EXEC, so a call is one passage of the gate, one decision,
one record; an agent with `interface.protocol = "mcp"` is asked by SYS_REQUEST. That a listing would look otherwise is
told by `mcp_changes.py`. Decides nothing, holds no key, and never offers to approve anything.

A call that waits for a person: in the new era it is answered with the kernel's state of it, which the client brings
back; in the old one it is waited for here, with notices of progress, and ends as an error that names the approval.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast
from weakref import WeakKeyDictionary

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from agent_os import __version__
from agent_os.abi import frames
from agent_os.abi.errors import EAPPROVAL, EINVAL, AgentOSError
from agent_os.abi.syscalls import ApproveWait, Exec, Request, Tools
from agent_os.client.values import jsonable
from agent_os.client.wire import Client
from agent_os.gateway.mcp_changes import Changes

Context = ServerRequestContext[Any, Any]
Way = Callable[[Context], AbstractAsyncContextManager[Client]]  # to the connection as which a request acts
ERROR = "agent-os/error"  # among the meta of a result: code, reason, hint, decision
AGENT = "agent."  # how the name of an agent begins that is a tool
INSTRUCTIONS = (
    "Tools of Agent OS. Each call is checked against what this client was given, and recorded. "
    "A refusal says why, and how its operator could allow it. Some calls wait for a person."
)
_NEW_S, _AGAIN_S = 2.0, 20.0  # seconds for a person, before a call is answered that it waits
_OLD_S, _OLDEST_S = 45.0, 900.0  # the same in the old era: without and with notices of progress
_NOTICE_S = 5.0  # between two of them
_LATE_S = 5.0  # beyond what an agent has to answer, until we give up ourselves
_BLOCKS = ("text", "image", "audio", "resource", "resource_link")
_UNDECIDED = ("pending", "waiting")
_PROTOCOL = {"tool.unknown": "Unknown tool", "state.refused": "Invalid requestState"}  # what is no outcome of a tool


def server(way: Way) -> "Server[Any]":
    """One for all that come by `way`; it keeps nothing of anybody but what tools are called."""
    return Offered(way).server


class _Telling(Server[Any]):
    """One that says at the handshake that it tells of changes. In the new era the SDK says so wherever
    `subscriptions/listen` is served."""

    def create_initialization_options(
        self, notification_options: NotificationOptions | None = None, *more: Any, **named: Any
    ) -> InitializationOptions:
        told = notification_options or NotificationOptions(tools_changed=True)
        return super().create_initialization_options(told, *more, **named)


class Offered:
    """The handlers. `way` leads to the kernel, as whoever asks."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._called: WeakKeyDictionary[Client, dict[str, str]] = WeakKeyDictionary()  # names, as they were last listed
        changes = Changes(way)
        self.server: Server[Any] = _Telling(
            "agent-os",
            version=__version__,
            title="Agent OS",
            instructions=INSTRUCTIONS,
            on_list_tools=self.tools,
            on_call_tool=self.call,
            on_subscriptions_listen=changes.listen,
        )
        self.server.add_notification_handler("notifications/initialized", types.NotificationParams, changes.opened)

    async def tools(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        if params and params.cursor:
            raise MCPError(types.INVALID_PARAMS, "there is one page of tools, and no cursor leads to another")
        try:
            async with self._way(ctx) as client:
                named = self._names(client, await client.call(Tools()))
        except AgentOSError as error:
            raise _failed(error) from None
        return types.ListToolsResult(tools=[_tool(name, row) for name, row in named.items()])

    def _names(self, client: Client, answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        named = _named(answer)
        self._called.setdefault(client, {}).update((name, row["name"]) for name, row in named.items())
        return named

    async def _meant(self, client: Client, name: str) -> str:
        """Our name of a tool. One that is not shown any more is asked for all the same: the gate says why not."""
        if "." in name:
            return name
        if name not in self._called.get(client, ()):
            self._names(client, await client.call(Tools()))
        return self._called[client].get(name) or name.replace("_", ".", 1)

    async def call(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        try:
            async with self._way(ctx) as client:
                tool = await self._meant(client, params.name)
                if tool.startswith(AGENT) and (row := await _agent(client, tool)):
                    return await _ask(client, row, params.arguments or {})
                if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    return await self._in_new_era(client, tool, params)
                return await self._in_old_era(ctx, client, tool, params.arguments or {})
        except OverflowError:
            return failure(EINVAL("number.range", "a number has more than 64 bits", hint="send it as text"))
        except UnicodeEncodeError:
            return failure(EINVAL("text.surrogate", "a text has half a character in it", hint="send whole characters"))
        except AgentOSError as error:
            if error.code in _PROTOCOL:
                raise MCPError(types.INVALID_PARAMS, f"{_PROTOCOL[error.code]}: {error.reason}", told(error)) from None
            return failure(error)

    async def _in_new_era(
        self, client: Client, tool: str, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        state = params.request_state or ""
        wait = int((_AGAIN_S if state else _NEW_S) * 1000)
        try:
            return success(
                await client.call(Exec(tool=tool, params=params.arguments or {}, whole=True, wait_ms=wait, state=state))
            )
        except EAPPROVAL as error:
            if error.code != "approval.waiting" or "state" not in error.detail:
                raise
            facts = told(error)
            taken_up = str(error.detail["state"])
            # Nothing is asked of the client, and programs look into the map all the same.
            return types.InputRequiredResult(input_requests={}, request_state=taken_up, _meta={ERROR: facts})

    async def _in_old_era(
        self, ctx: Context, client: Client, tool: str, arguments: dict[str, Any]
    ) -> types.CallToolResult:
        """Asked once; then the question is watched, and the same call takes up its answer."""
        request = Exec(tool=tool, params=arguments, whole=True, wait_ms=1000)
        try:
            return success(await client.call(request))
        except EAPPROVAL as error:
            if error.code != "approval.waiting":
                raise
            waiting = error
        approval = str(waiting.detail["approval"])
        loop = asyncio.get_running_loop()
        patience = _OLDEST_S if ctx.meta and ctx.meta.get("progress_token") is not None else _OLD_S
        began = loop.time()
        while (spent := loop.time() - began) < patience:
            await ctx.session.report_progress(spent, patience, f"waiting for a person to decide about {approval}")
            step = min(_NOTICE_S, patience - spent)
            said = await client.call(ApproveWait(request=approval, wait_ms=int(step * 1000)))
            if said["decision"] not in _UNDECIDED:
                return success(await client.call(request))
        raise waiting


# Names.


def _named(answer: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Tools as they are called over there, where many take no dots. Of two that would be called alike, one keeps its
    dots."""
    found: dict[str, Mapping[str, Any]] = {}
    for row in (*answer["tools"], *answer.get("agents", ())):
        short = str(row["name"]).replace(".", "_")
        found[row["name"] if short in found else short] = row
    return found


def _tool(name: str, row: Mapping[str, Any]) -> types.Tool:
    output = row.get("output_schema")
    effect = row.get("effect", "opaque")
    return types.Tool(
        name=name,
        title=row["name"] if name != row["name"] else None,
        description=row.get("description") or None,
        input_schema={"type": "object", **(row.get("input_schema") or {})},
        output_schema=output if output and output.get("type") == "object" else None,
        annotations=types.ToolAnnotations(
            read_only_hint=effect == "pure",
            idempotent_hint=effect in ("pure", "idempotent"),
            destructive_hint=effect not in ("pure", "idempotent"),
        ),
    )


# Agents that are tools.


async def _agent(client: Client, name: str) -> Mapping[str, Any] | None:
    """The row of an agent that is a tool. None: `name` is a tool like any other, or nothing."""
    agents = (await client.call(Tools()))["agents"]
    return next((row for row in agents if row["name"] == name), None)


async def _ask(client: Client, row: Mapping[str, Any], arguments: dict[str, Any]) -> types.CallToolResult:
    payload = arguments.get("input") if row["wrapped"] else arguments
    seconds = float(row["seconds"])
    request = Request(to=row["name"].removeprefix(AGENT), payload=frames.body(payload), deadline_ms=int(seconds * 1000))
    answer = await client.call(request, deadline=seconds + _LATE_S)
    if error := answer.get("error"):
        return types.CallToolResult(content=[_text(str(error))], is_error=True)
    return success({"value": answer["payload"]})


# Answers.


def success(result: Mapping[str, Any]) -> types.CallToolResult:
    """A result as content: text, the blocks it is made of, or JSON; what is a map also as structured content."""
    if "value" not in result:
        return types.CallToolResult(content=[_text(str(result.get("text", "")))])
    value = jsonable(result["value"])
    structured = cast("dict[str, Any]", value) if isinstance(value, dict) else None
    if structured and (blocks := _blocks(structured)) is not None:
        return types.CallToolResult(content=blocks, structured_content=structured.get("structured"))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return types.CallToolResult(content=[_text(text)], structured_content=structured)


def _blocks(value: Mapping[str, Any]) -> "list[types.ContentBlock] | None":
    """Of a tool that answers with content as MCP has it."""
    content = value.get("content")
    if not isinstance(content, list) or set(value) - {"content", "structured"}:
        return None
    rows = cast("list[Any]", content)
    if not rows or any(not isinstance(one, dict) or one.get("type") not in _BLOCKS for one in rows):
        return None
    try:
        return types.CallToolResult.model_validate({"content": rows}).content
    except ValueError:
        return None


def failure(error: AgentOSError) -> types.CallToolResult:
    """A refusal or failure that a model can act on. Its parts are among the meta: structured content would have to be
    as the tool's schema says."""
    lines = [str(error)]
    lines += [f"hint: {error.hint}"] if error.hint else []
    if decision := error.detail.get("decision"):
        lines.append(f"decision {decision}: agentctl explain {decision}")
    if approval := error.detail.get("approval"):
        lines.append(f"approval {approval}: agentctl approve {approval}")
    meta = {ERROR: told(error)}
    return types.CallToolResult(content=[_text("\n".join(lines))], is_error=True, _meta=meta)


def told(error: AgentOSError) -> dict[str, Any]:
    facts = {name: error.detail[name] for name in ("rule", "decision", "approval", "outcome") if name in error.detail}
    said = {"code": error.name, "detail_code": error.code, "reason": error.reason, "hint": error.hint}
    return {**said, "retryable": error.retryable, **cast("dict[str, Any]", jsonable(facts))}


def _failed(error: AgentOSError) -> MCPError:
    code = types.INVALID_PARAMS if isinstance(error, EINVAL) else types.INTERNAL_ERROR
    return MCPError(code, str(error), told(error))


def _text(text: str) -> types.TextContent:
    return types.TextContent(type="text", text=text)
