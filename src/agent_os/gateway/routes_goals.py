"""Goals: what is to be done, by whom, in which order."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

from agent_os.abi.syscalls import LookAtGoal, Prioritize, Queue, Submit, Withdraw
from agent_os.gateway.asking import Caller
from agent_os.gateway.listing import Numbered, number, paged
from agent_os.gateway.models import Page, Row, Wanted, answers
from agent_os.gateway.naming import BLANK, WHOLE, Agent, Amount, Resource
from agent_os.gateway.problems import Json

router = APIRouter(tags=["goals"])
GoalId = Annotated[str, Path(pattern="^[a-z0-9-]{1,64}$", description="As POST /goals answered it.")]
Priority = Literal["critical", "high", "normal", "low"]


class Goal(Wanted):
    text: Annotated[
        str, Field(min_length=1, max_length=16 << 10, pattern=f"[^{BLANK}]", description="What is to be done.")
    ]
    agent: Agent | None = Field(default=None, description="Who; else the ready agent that fits best.")
    tenant: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    priority: Priority | None = None
    deadline: Annotated[float, Field(gt=0, lt=1e12, description="Seconds of the wall clock.")] | None = None
    budget: dict[Resource, Amount] | None = None
    memory_mb: Annotated[int, Field(ge=0, le=1 << 24), WHOLE] | None = None
    inputs: dict[str, Any] | None = None


class Urgency(Wanted):
    priority: Priority


class Submitted(Row):
    id: str
    agent: str


@router.get("/goals", responses=answers(Page), summary="Goals that agents are at, and those that wait.")
async def goals(
    caller: Caller, pages: Numbered, all: Annotated[bool, Query(description="Also those that ended lately.")] = False
) -> Json:
    found = await caller.ask(Queue(all=all))
    rows = [{**row, "part": part} for part in ("working", "waiting", "ended") for row in found[part]]
    return Json(paged(rows, pages, lambda row: number(row["id"])))


@router.post("/goals", status_code=201, responses=answers(Submitted, 201), summary="Submit a goal.")
async def submit(body: Goal, caller: Caller) -> Json:
    made = await caller.ask(Submit(goal=body.model_dump(exclude_none=True)))
    return Json(made, 201, {"Location": f"/api/v1/goals/{made['id']}"})


@router.get("/goals/{goal}", responses=answers(Row), summary="One goal, with its result once it has one.")
async def goal(goal: GoalId, caller: Caller) -> Json:
    return Json(await caller.ask(LookAtGoal(goal=goal)))


@router.patch("/goals/{goal}", responses=answers(Row), summary="Say how urgent it is.")
async def prioritize(goal: GoalId, body: Urgency, caller: Caller) -> Json:
    await caller.ask(LookAtGoal(goal=goal))  # else this could be the name of an agent
    return Json(await caller.ask(Prioritize(target=goal, priority=body.priority)))


@router.delete("/goals/{goal}", responses=answers(Row), summary="Take back a goal that waits.")
async def withdraw(goal: GoalId, caller: Caller, reason: Annotated[str, Query(max_length=1000)] = "") -> Json:
    return Json(await caller.ask(Withdraw(goal=goal, reason=reason)))
