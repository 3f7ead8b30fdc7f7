"""What may be spent, and what was. Money is in millionths of a dollar."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field

from agent_os.abi.errors import ENOENT
from agent_os.abi.syscalls import Budgets, Cost, Limit
from agent_os.gateway.asking import Caller
from agent_os.gateway.listing import Pages, paged
from agent_os.gateway.models import Page, Row, Wanted, answers
from agent_os.gateway.naming import AgentFilter, AgentName, Amount, Reason, Resource, meant
from agent_os.gateway.problems import Json

router = APIRouter(tags=["money"])


class Caps(Wanted):
    limits: dict[Resource, Amount | None] = Field(min_length=1, description="By resource; null: without limit.")
    more: bool = Field(default=False, description="So much on top of what it may spend now.")
    reason: Reason = ""


class Costs(Row):
    rows: list[dict[str, Any]]
    total: dict[str, Any]


@router.get("/budgets", responses=answers(Page), summary="Accounts: caps, what is spent and reserved.")
async def budgets(caller: Caller, pages: Pages, agent: AgentFilter = None) -> Json:
    return Json(paged((await caller.ask(Budgets(agent=agent)))["accounts"], pages, account))


def account(row: dict[str, Any]) -> str:
    return str(row["account"])


@router.put("/budgets/{agent}", responses=answers(Row), summary="Say how much an agent, and all below it, may spend.")
async def limit(agent: AgentName, body: Caps, caller: Caller) -> Json:
    limits: dict[str, int | None] = {**body.limits}
    return Json(await caller.ask(Limit(agent=meant(agent), limits=limits, more=body.more, reason=body.reason)))


@router.delete("/budgets/{agent}", responses=answers(Row), summary="Take its caps away.")
async def unlimited(agent: AgentName, caller: Caller) -> Json:
    name = meant(agent)
    accounts = (await caller.ask(Budgets(agent=name)))["accounts"]
    own = [one for one in accounts if name in (account(one), account(one).removeprefix("default/"))]
    limits: dict[str, int | None] = {
        use["resource"]: None for one in own for use in one["uses"] if use["limit"] is not None
    }
    if not limits:
        raise ENOENT("budget.none", f"{name} has no cap of its own", hint="GET /api/v1/budgets lists those there are")
    return Json(await caller.ask(Limit(agent=name, limits=limits)))


@router.get("/costs", responses=answers(Costs), summary="What was spent, added up.")
async def costs(
    caller: Caller,
    by: Annotated[list[Literal["agent", "model", "day", "hour", "minute"]], Query(max_length=5)] = [],  # noqa: B006
    since_ns: Annotated[int, Query(ge=0, lt=2**63, description="Wall clock.")] = 0,
) -> Json:
    return Json(await caller.ask(Cost(by=by, since_ns=since_ns)))
