"""Who is asking: a one-time code becomes a session, a session gives tickets for the event stream."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from agent_os.abi.doors import TICKET, Session, Whoami
from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.abi.syscalls import Approvals, Budgets, Declared, ListAgents, Status
from agent_os.client.values import jsonable
from agent_os.gateway.asking import Caller, ThePool, TheSettings
from agent_os.gateway.cursors import Cursor
from agent_os.gateway.models import Entered, Nothing, SnapshotRow, StatusRow, Ticket, Wanted, Who, answers
from agent_os.gateway.problems import Json

router = APIRouter(tags=["session"])


class Code(Wanted):
    code: Annotated[str, Field(min_length=4, max_length=64, description="As `agentctl ui` printed it.")]


@router.post("/session", responses=answers(Entered), summary="Exchange a one-time code for a session.")
async def enter(body: Code, pool: ThePool, settings: TheSettings) -> Json:
    async with pool.once(f"code:{body.code}") as client:
        entered = jsonable(await client.call(Session(do="enter"), deadline=settings.limits.wait_s))
    pool.vouch(entered["session"])
    return Json(entered)


@router.get("/session", responses=answers(Who), summary="Who the token says that one is.")
async def whoami(caller: Caller) -> Json:
    return Json(await caller.ask(Whoami()))


@router.delete("/session", responses=answers(Nothing), summary="End the session.")
async def leave(caller: Caller) -> Json:
    try:
        await caller.ask(Session(do="leave"))
    except EINVAL as error:
        if error.code != "session.none":
            raise
        hint = "a token has no session; agentctl token rm removes it"
        raise ENOENT("session.none", "there is no session to end", hint=hint) from None
    return Json({})


@router.post("/session/tickets", responses=answers(Ticket), summary="A ticket for one WebSocket.")
async def ticket(body: Nothing, caller: Caller, pool: ThePool) -> Json:
    made = await caller.ask(Session(do="ticket"))
    pool.vouch(f"{TICKET}{made['ticket']}")
    return Json(made)


@router.get("/status", responses=answers(StatusRow), summary="How the kernel is.")
async def status(caller: Caller) -> Json:
    return Json(await caller.ask(Status()))


@router.get("/snapshot", responses=answers(SnapshotRow), summary="Everything a dashboard begins with, and a cursor.")
async def snapshot(caller: Caller) -> Json:
    """The status is looked at first: what changes while the rest is read comes again in the stream."""
    facts = await caller.ask(Status())
    listed = await caller.ask(ListAgents(all=True))
    who = await caller.ask(Whoami())
    return Json(
        {
            "cursor": str(Cursor(facts["log"], facts["entries"])),
            "status": facts,
            "agents": listed["agents"],
            "quarantined": listed["quarantined"],
            "declared": (await caller.ask(Declared()))["agents"],
            "approvals": (await caller.ask(Approvals()))["approvals"],
            "budgets": (await caller.ask(Budgets()))["accounts"],
            "session": {name: who[name] for name in ("name", "role", "boot")},
        }
    )
