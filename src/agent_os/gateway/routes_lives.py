"""What one agent did and does: those below it, its record, what it wrote, its lives and states; starting it again."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from agent_os.abi.errors import ESRCH
from agent_os.abi.syscalls import CheckpointOf, Events, History, Inspect, Logs, Release, Restart, Start, Stop
from agent_os.client.members import Row, members
from agent_os.client.values import jsonable
from agent_os.gateway.asking import Caller
from agent_os.gateway.listing import Numbered, paged
from agent_os.gateway.models import Page, Wanted, answers
from agent_os.gateway.models import Row as Answer
from agent_os.gateway.naming import AgentName, Reason, meant
from agent_os.gateway.problems import Json
from agent_os.gateway.records import entries_page

router = APIRouter(tags=["agents"])
_TO_ACT = 120.0
_MOST_LOG = 4 << 20  # bytes


class Tree(Answer):
    name: str
    children: list[dict[str, Any]]


class Written(Answer):
    text: str = Field(description="What it wrote; bytes that are no text are shown as such.")
    size: int


class CheckpointWish(Wanted):
    name: Annotated[str, Field(max_length=63, description="Empty: the next number.")] = ""


class LifeWish(Wanted):
    do: Literal["start", "stop", "restart", "release"]
    grace_s: Annotated[float, Field(ge=0, le=86_400)] | None = None
    reason: Reason = ""


@router.get("/agents/{agent}/tree", responses=answers(Tree), summary="An agent and everybody below it.")
async def tree(agent: AgentName, caller: Caller) -> Json:
    async with caller.client() as client:
        rows: list[Row] = jsonable(await members(client, ended=True))
    name = meant(agent)
    top = next((row for row in rows if name in (row["id"], row["name"])), None)
    if top is None:
        raise ESRCH("agent.unknown", f"there is no agent {name!r}", hint="GET /api/v1/agents lists them")
    return Json(_below(top, rows, {top["id"]}))


def _below(top: Row, rows: list[Row], seen: set[str]) -> Row:
    """`seen`: whatever the rows say, nobody is told twice."""
    children = [row for row in rows if row["parent"] == top["id"] and row["id"] not in seen]
    seen |= {row["id"] for row in children}
    return {**top, "children": [_below(one, rows, seen) for one in children]}


@router.get("/agents/{agent}/trace", responses=answers(Page), summary="Its record, in the order of the journal.")
async def trace(agent: AgentName, caller: Caller, pages: Numbered) -> Json:
    return Json(await entries_page(caller, Events(agent=meant(agent), bodies=True), pages))


@router.get("/agents/{agent}/logs", responses=answers(Written), summary="What it wrote.")
async def logs(
    agent: AgentName, caller: Caller, last: Annotated[int, Query(ge=0, le=100_000, description="Lines.")] = 1000
) -> Json:
    chunks, _ = await caller.collect(Logs(agent=meant(agent), last=last), _MOST_LOG)
    data = b"".join(chunks)
    return Json({"text": data.decode(errors="backslashreplace"), "size": len(data)})


@router.get("/agents/{agent}/history", responses=answers(Answer), summary="Its lives, the oldest first.")
async def history(agent: AgentName, caller: Caller) -> Json:
    return Json(await caller.ask(History(agent=meant(agent))))


@router.get("/agents/{agent}/checkpoints", responses=answers(Page), summary="States that were kept.")
async def checkpoints(agent: AgentName, caller: Caller, pages: Numbered) -> Json:
    rows = (await caller.ask(Inspect(agent=meant(agent)))).get("checkpoints", [])
    return Json(paged(rows, pages, lambda row: row["at"]))


@router.post("/agents/{agent}/checkpoints", responses=answers(Answer), summary="Keep its present state.")
async def checkpoint(agent: AgentName, body: CheckpointWish, caller: Caller) -> Json:
    return Json(await caller.ask(CheckpointOf(agent=meant(agent), name=body.name), deadline=_TO_ACT))


@router.post("/agents/{agent}/life", responses=answers(Answer), summary="Start, stop or restart a declared agent.")
async def life(agent: AgentName, body: LifeWish, caller: Caller) -> Json:
    """Answered when it is ready, or nothing of it is left. `release` ends a quarantine."""
    name = meant(agent)
    requests = {
        "start": lambda: Start(agent=name),
        "stop": lambda: Stop(agent=name, grace_s=body.grace_s, reason=body.reason),
        "restart": lambda: Restart(agent=name, grace_s=body.grace_s, reason=body.reason),
        "release": lambda: Release(agent=name, reason=body.reason),
    }
    return Json(await caller.ask(requests[body.do](), deadline=_TO_ACT) or {})
