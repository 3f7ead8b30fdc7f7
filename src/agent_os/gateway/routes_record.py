"""The record: entries, the newest signed head, and proofs about it. `agentctl audit verify` needs no gateway."""

from typing import Annotated

from fastapi import APIRouter, Path, Query

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.abi.syscalls import Consistency, Events, Head, Prove
from agent_os.client.values import jsonable
from agent_os.gateway.asking import Caller
from agent_os.gateway.listing import Numbered, next_cursor
from agent_os.gateway.models import Page, Row, answers
from agent_os.gateway.naming import ActorFilter
from agent_os.gateway.problems import Json
from agent_os.gateway.records import entries_page, hexed

router = APIRouter(tags=["record"])
Seq = Annotated[int | None, Query(ge=1, lt=2**63)]


class Entry(Row):
    seq: int
    kind: str
    agent: str


class Proof(Row):
    pass


@router.get("/audit", responses=answers(Page), summary="Entries of the journal, in its order.")
async def audit(
    caller: Caller,
    pages: Numbered,
    agent: ActorFilter = None,
    first: Annotated[int, Query(alias="from", ge=0, lt=2**63)] = 0,
    to: Seq = None,
    last: Annotated[int | None, Query(ge=1, le=500, description="Only the newest so many.")] = None,
) -> Json:
    request = Events(agent=agent, start=first, end=to, last=last if pages.after is None else None, bodies=True)
    return Json(await entries_page(caller, request, pages))


@router.get("/audit/head", responses=answers(Row), summary="The newest signed head.")
async def head(caller: Caller) -> Json:
    async with caller.client() as client:
        return Json(hexed(await client.call(Head(), deadline=caller.wait_s)))


@router.get("/audit/heads", responses=answers(Page), summary="Every signed head, the newest first.")
async def heads(caller: Caller, pages: Numbered) -> Json:
    request = Head(most=pages.limit, below=pages.after)
    async with caller.client() as client:
        found = hexed((await client.call(request, deadline=caller.wait_s))["heads"])
    return Json({"items": found, "next": next_cursor(found[-1]["size"]) if len(found) == pages.limit else None})


@router.get("/audit/proofs", responses=answers(Proof), summary="Prove that an entry is there, or that a head goes on.")
async def proofs(caller: Caller, seq: Seq = None, size: Seq = None, first: Seq = None, second: Seq = None) -> Json:
    """`seq` (with `size`, that of a head): that the entry is in the log. `first` (with `second`): that the head of one
    size is the beginning of the other's."""
    if (seq is None) == (first is None):
        raise EINVAL("proof.which", "?seq= proves an entry, ?first= a head: give one of the two", field="seq")
    request = Prove(seq=seq, size=size) if seq is not None else Consistency(first=first or 1, second=second)
    async with caller.client() as client:
        return Json(hexed(await client.call(request, deadline=caller.wait_s)))


@router.get("/audit/{seq}", responses=answers(Entry), summary="One entry, with all that is recorded of it.")
async def entry(seq: Annotated[int, Path(ge=1, lt=2**63)], caller: Caller) -> Json:
    chunks, _ = await caller.collect(Events(start=seq, end=seq, bodies=True))
    found = [one for chunk in chunks for one in chunk]
    if not found:
        raise ENOENT("entry.unknown", f"there is no entry {seq}", hint="GET /api/v1/audit lists them")
    return Json(jsonable(found[0]))
