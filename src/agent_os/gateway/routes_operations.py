"""Work that takes longer than a request should, looked at under `/operations/{id}`: checks of the record, replays."""

import asyncio
import sys
from collections.abc import Coroutine
from hashlib import sha256
from pathlib import Path as File
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Path, Request
from pydantic import Field

from agent_os.abi.errors import EIO
from agent_os.abi.syscalls import Consistency, Replay, Status
from agent_os.gateway.asking import Asker, Caller
from agent_os.gateway.models import Nothing, Row, Wanted, answers
from agent_os.gateway.naming import WHOLE, AgentName, meant
from agent_os.gateway.operations import QUICK_S, Operation, Operations
from agent_os.gateway.problems import Json

router = APIRouter(tags=["operations"])
TO_REPLAY = 600.0  # seconds


class OperationRow(Row):
    id: str
    what: str
    began: str
    state: Literal["running", "done", "failed"]


class ReplayOrder(Wanted):
    at: Annotated[int, Field(ge=1, le=2**53, description="Up to this entry of the journal."), WHOLE] | None = None


def operations_of(request: Request) -> Operations:
    return request.app.state.operations


TheOperations = Annotated[Operations, Depends(operations_of)]
LONG = {**answers(Row), **answers(OperationRow, 202, "It goes on: look at /operations/{id}")}


def owner(caller: Asker) -> str:
    """Whose an operation is: nobody keeps a token to say so."""
    return sha256(caller.token.encode()).hexdigest()


async def finished(
    operations: Operations, caller: Asker, what: str, work: Coroutine[Any, Any, Any], seconds: float = QUICK_S
) -> Json:
    """What came of it if it is quick, else 202 and where to look."""
    found = await operations.within(owner(caller), what, work, seconds)
    if isinstance(found, Operation):
        return Json(found.shown(), 202, {"Location": f"/api/v1/operations/{found.id}"})
    return Json(found)


@router.get("/operations/{operation}", responses=answers(OperationRow), summary="What became of long work.")
async def look(
    operation: Annotated[str, Path(pattern="^op-[0-9a-f]{16}$", description="As a 202 gave it.")],
    caller: Caller,
    operations: TheOperations,
) -> Json:
    """Only whoever began it sees it. One that is over is kept for an hour."""
    return Json(operations.find(owner(caller), operation).shown())


@router.post("/agents/{agent}/replay", responses=LONG, summary="Run an agent's program against its record, dry.")
async def replay(agent: AgentName, body: ReplayOrder, caller: Caller, operations: TheOperations) -> Json:
    work = caller.ask(Replay(agent=meant(agent), at=body.at), deadline=TO_REPLAY)
    return await finished(operations, caller, f"replay {meant(agent)}", work)


@router.post("/audit/verify", responses=LONG, summary="Check the whole record against every signed head.")
async def verify(body: Nothing, caller: Caller, operations: TheOperations) -> Json:
    """`ok`, `first_bad`, `entries`, `findings` and `gaps`, as `agentctl audit verify -o json` has them. The work is a
    process of its own, and reads what the kernel wrote: nobody else is slower for it."""
    await caller.ask(Consistency(first=1))  # the kernel says whether this one may
    home = File((await caller.ask(Status()))["home"])
    return await finished(operations, caller, "audit verify", operations.alone(_verified(home)))


async def _verified(home: File) -> Any:
    command = [sys.executable, "-P", "-m", "agent_os.gateway.verifying", str(home)]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        said, wrong = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode:
        reason = wrong.decode(errors="replace").strip().rpartition("\n")[2][:500]
        raise EIO("audit.verify", f"the record could not be checked: {reason}", hint="agentctl audit verify")
    return msgspec.json.decode(said)
