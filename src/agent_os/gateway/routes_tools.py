"""Tools: which there are, and a call of one as a named agent."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from pydantic import Field

from agent_os.abi.errors import ENOENT
from agent_os.abi.syscalls import ToolCall, ToolsOf
from agent_os.gateway.asking import Caller
from agent_os.gateway.listing import Pages, paged
from agent_os.gateway.models import Page, Row, Wanted, answers
from agent_os.gateway.naming import Agent, AgentFilter
from agent_os.gateway.problems import Json

router = APIRouter(tags=["tools"])
_TOOL = r"^[A-Za-z0-9_.-]{1,128}(@[\^~]?[1-9]?[0-9](\.[1-9]?[0-9]){0,2})?$"
ToolName = Annotated[str, Path(pattern=_TOOL, description="As `http.fetch`, or `http.fetch@^1.2`.")]
_TO_CALL = 600.0


class Call(Wanted):
    agent: Agent | None = Field(default=None, description="By what this one holds; none: as the operator.")
    params: dict[str, Any] = {}
    dry_run: bool = False


class ToolRows(Row):
    tools: list[dict[str, Any]]


@router.get("/tools", responses=answers(Page), summary="List tools, by name.")
async def tools(
    caller: Caller,
    pages: Pages,
    query: Annotated[str, Query(max_length=500)] = "",
    tag: Annotated[str, Query(max_length=100)] = "",
    agent: AgentFilter = None,
) -> Json:
    rows = (await caller.ask(ToolsOf(query=query, tag=tag, agent=agent)))["tools"]
    return Json(paged(rows, pages, lambda row: f"{row['name']}@{row['version']}"))


@router.get("/tools/{name}", responses=answers(ToolRows), summary="All versions of one, each with its whole spec.")
async def tool(name: ToolName, caller: Caller) -> Json:
    found = (await caller.ask(ToolsOf(name=name)))["tools"]
    if not found:
        raise ENOENT("tool.unknown", f"there is no tool {name}", hint="GET /api/v1/tools lists them")
    return Json({"tools": found})


@router.post("/tools/{name}/calls", responses=answers(Row), summary="Call it.")
async def call(name: ToolName, body: Call, caller: Caller) -> Json:
    request = ToolCall(tool=name, params=body.params, agent=body.agent, dry_run=body.dry_run)
    return Json(await caller.ask(request, deadline=_TO_CALL))
