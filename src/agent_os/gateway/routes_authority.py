"""Who may do what: questions that wait for a person, capabilities, and why something was decided."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import Field

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.abi.syscalls import Approvals, Capabilities, Decide, Explain, Grant, Revoke
from agent_os.gateway.asking import Caller
from agent_os.gateway.listing import Numbered, number, paged
from agent_os.gateway.models import Page, Row, Wanted, answers
from agent_os.gateway.naming import WHOLE, Agent, AgentFilter
from agent_os.gateway.problems import Json

router = APIRouter(tags=["authority"])
Handle = Annotated[
    str, Path(pattern="^[cq]-[0-9]{1,18}$", description="`c-12` of a capability, `q-7` of a standing approval.")
]


class Decision(Wanted):
    outcome: Literal["approve", "deny"]
    args_hash: Annotated[str, Field(max_length=128, description="`digest` of the question as it was shown.")]
    scope: Literal["once", "session", "always"] = "once"
    reason: Annotated[str, Field(max_length=1000)] = ""
    value: Any = Field(default=None, description="The answer to a question for a value.")


@router.get("/approvals", responses=answers(Page), summary="What waits for a person.")
async def approvals(
    caller: Caller,
    pages: Numbered,
    agent: AgentFilter = None,
    all: Annotated[bool, Query(description="Also what was answered, expired or cancelled lately.")] = False,
) -> Json:
    rows = (await caller.ask(Approvals(agent=agent, all=all)))["approvals"]
    return Json(paged(rows, pages, lambda row: number(row["id"])))


@router.post("/approvals/{approval}/decision", responses=answers(Row), summary="Approve or deny.")
async def decide(
    approval: Annotated[str, Path(pattern="^q-[0-9]{1,18}$", description="Its id, as `q-31`.")],
    body: Decision,
    caller: Caller,
) -> Json:
    """Refused if the question is another than the one whose digest is sent, or somebody else was quicker."""
    request = Decide(
        approval=approval,
        outcome=body.outcome,
        digest=body.args_hash,
        scope=body.scope,
        reason=body.reason,
        value=body.value,
    )
    return Json(await caller.ask(request))


class GrantWish(Wanted):
    agent: Agent
    capability: Annotated[str, Field(min_length=1, max_length=4096, description="As `http:api.example.com:get`.")]
    ttl_ms: Annotated[int, Field(ge=1, le=10**12), WHOLE] | None = None
    uses: Annotated[int, Field(ge=1, le=10**12), WHOLE] | None = None


class Question(Wanted):
    agent: Agent
    capability: Annotated[str, Field(min_length=1, max_length=4096)]


class Verdict(Row):
    verdict: Literal["allow", "ask", "refuse"]
    steps: list[dict[str, Any]]


@router.get("/capabilities", responses=answers(Page), summary="Who holds what, and where it came from.")
async def capabilities(
    caller: Caller,
    pages: Numbered,
    agent: AgentFilter = None,
    tree: Annotated[bool, Query(description="Also what it was derived from, and what was derived from that.")] = False,
) -> Json:
    found = await caller.ask(Capabilities(agent=agent, tree=tree))
    return Json(
        {**paged(found["capabilities"], pages, lambda row: number(row["handle"])), "standing": found["standing"]}
    )


@router.post("/capabilities", status_code=201, responses=answers(Row, 201), summary="Give an agent a capability.")
async def grant(body: GrantWish, caller: Caller) -> Json:
    request = Grant(agent=body.agent, capability=body.capability, ttl_ms=body.ttl_ms, uses=body.uses)
    made = await caller.ask(request)
    return Json(made, 201, {"Location": f"/api/v1/capabilities/{made['handle']}"})


@router.post("/capabilities/check", responses=answers(Verdict), summary="Say whether an agent may do something now.")
async def check(body: Question, caller: Caller) -> Json:
    return Json(await caller.ask(Explain(agent=body.agent, capability=body.capability)))


@router.get("/capabilities/{handle}", responses=answers(Row), summary="One capability.")
async def capability(handle: Handle, caller: Caller) -> Json:
    found = await caller.ask(Capabilities(tree=True))
    for row in [*found["capabilities"], *found["standing"]]:
        if row["handle"] == handle:
            return Json(row)
    raise ENOENT("capability.unknown", f"nobody holds {handle}", hint="GET /api/v1/capabilities lists what is held")


@router.delete("/capabilities/{handle}", responses=answers(Row), summary="Take it back, with all that rests on it.")
async def revoke(
    handle: Handle,
    caller: Caller,
    future_only: Annotated[bool, Query(description="Leave what is mounted to whoever has it.")] = False,
    reason: Annotated[str, Query(max_length=1000)] = "",
) -> Json:
    """What it opened is closed when the answer comes; a process with a mount is killed."""
    return Json(await caller.ask(Revoke(handles=[handle], future_only=future_only, reason=reason)))


@router.get("/decisions/{decision}", responses=answers(Verdict), summary="Which step and rule decided, and why.")
async def decision(
    decision: Annotated[str, Path(pattern="^d-[1-9][0-9]{0,17}$", description="As a refusal names it: `d-5512`.")],
    caller: Caller,
) -> Json:
    try:
        return Json(await caller.ask(Explain(seq=number(decision))))
    except EINVAL as error:  # an entry of another kind
        raise ENOENT("decision.unknown", error.reason, hint="a refusal names its decision") from None
