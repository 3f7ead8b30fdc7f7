"""What an agent keeps: entries below /mem, as they are or were; and what it wrote below /work, to be read."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Path, Query
from pydantic import Field

from agent_os.abi.doors import Memory
from agent_os.abi.errors import ECONFLICT, EINVAL, EISDIR
from agent_os.client.values import jsonable
from agent_os.gateway import problems
from agent_os.gateway.asking import Asker, Caller
from agent_os.gateway.listing import Pages, Paging, next_cursor
from agent_os.gateway.models import Page, Row, Wanted, answers
from agent_os.gateway.naming import WHOLE, Agent, AgentName, meant
from agent_os.gateway.problems import Json

router = APIRouter(tags=["memory"])
_MOST = 16 << 20
_AT_ONCE = 128 << 10  # bytes that go inside a call; more goes in chunks beside it
_ETAG = '^"?[0-9]{1,18}"?$'
EntryPath = Annotated[str, Path(max_length=1000, description="Below the agent's root, such as `mem/semantic/plan`.")]
AsOf = Annotated[int | None, Query(ge=1, lt=2**63, description="As it was after this entry of the journal.")]


class Entry(Row):
    path: str


class NewEntry(Wanted):
    data: Annotated[str, Field(max_length=_MOST)]
    mode: Literal["replace", "append", "create"] = "replace"


class SearchWish(Wanted):
    query: Annotated[str, Field(min_length=1, max_length=1000, description="Every word of it, in path or text.")]
    path: Annotated[str, Field(pattern="^/mem(/|$)", max_length=1000)] = "/mem"
    max: Annotated[int, Field(ge=1, le=256), WHOLE] = 50


class ShareWish(Wanted):
    path: Annotated[str, Field(pattern="^/mem/", max_length=1000)]
    to: Agent
    rights: Literal["r", "rw"] = "r"
    ttl_s: Annotated[int, Field(ge=1, le=10**9), WHOLE] | None = None
    end: bool = Field(default=False, description="Take it back.")


@router.get("/agents/{agent}/memory", responses=answers(Page), summary="List what it keeps.")
async def everything(agent: AgentName, caller: Caller, pages: Pages, as_of: AsOf = None) -> Json:
    return Json(await _listed(caller, Memory(agent=meant(agent), as_of=as_of), pages))


@router.post("/agents/{agent}/memory/search", responses=answers(Row), summary="Find words in what it keeps.")
async def search(agent: AgentName, body: SearchWish, caller: Caller) -> Json:
    request = Memory(agent=meant(agent), do="search", path=body.path, query=body.query, max=body.max)
    return Json(await caller.ask(request))


@router.post("/agents/{agent}/memory/share", responses=answers(Row), summary="Let another agent see an entry.")
async def share(agent: AgentName, body: ShareWish, caller: Caller) -> Json:
    request = Memory(
        agent=meant(agent),
        do="share",
        path=body.path,
        to=body.to,
        rights=body.rights,
        ttl_s=body.ttl_s,
        end=body.end,
    )
    return Json(await caller.ask(request) or {})


@router.get(
    "/agents/{agent}/memory/{path:path}", responses=answers(Row), summary="An entry, or what a directory holds."
)
async def read(
    agent: AgentName,
    path: EntryPath,
    caller: Caller,
    pages: Pages,
    as_of: AsOf = None,
    version: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
    history: Annotated[bool, Query(description="Its changes, the newest first, in place of its content.")] = False,
) -> Json:
    request = Memory(agent=meant(agent), do="read", path=_rooted(path), as_of=as_of, version=version)
    if history:
        return Json(await caller.ask(Memory(agent=request.agent, do="history", path=request.path, max=pages.limit)))
    try:
        chunks, found = await caller.collect(request, _MOST)
    except EISDIR:
        listing = Memory(agent=request.agent, path=request.path, as_of=as_of)
        return Json(await _listed(caller, listing, pages))
    if chunks:
        found["data"] = _together(chunks)
    etag = {"ETag": f'"{found["version"]}"'} if "version" in found else {}
    return Json(found, headers=etag)


@router.put("/agents/{agent}/memory/{path:path}", responses=answers(Row), summary="Write an entry.")
async def write(
    agent: AgentName,
    path: EntryPath,
    body: NewEntry,
    caller: Caller,
    if_match: Annotated[str | None, Header(pattern=_ETAG, description="`ETag` of the version it replaces.")] = None,
) -> Json:
    request = Memory(agent=meant(agent), do="write", path=_rooted(path), mode=body.mode, if_version=_version(if_match))
    data = _bytes(body.data)
    try:
        if len(data) <= _AT_ONCE:
            request.data = body.data
            done = await caller.ask(request)
        else:
            request.stream = True
            done = await caller.give(request, data)
    except ECONFLICT as error:
        return _changed(error, agent, path, if_match)
    return Json(done, headers={"ETag": f'"{done["version"]}"'} if "version" in done else {})


@router.delete("/agents/{agent}/memory/{path:path}", responses=answers(Row), summary="Remove an entry.")
async def remove(
    agent: AgentName,
    path: EntryPath,
    caller: Caller,
    if_match: Annotated[str | None, Header(pattern=_ETAG, description="`ETag` of the version that is meant.")] = None,
) -> Json:
    request = Memory(agent=meant(agent), do="remove", path=_rooted(path), if_version=_version(if_match))
    try:
        return Json(await caller.ask(request) or {})
    except ECONFLICT as error:
        return _changed(error, agent, path, if_match)


def _together(pieces: list[Any]) -> Any:
    """A large entry; to a viewer each piece of it is a size and a hash."""
    if all(isinstance(one, bytes) for one in pieces):
        return jsonable(b"".join(pieces))
    return {"size": sum(one["size"] for one in pieces), "pieces": pieces}


def _rooted(path: str) -> str:
    return "/" + path.strip("/")


def _version(if_match: str | None) -> int | None:
    if if_match is None:
        return None
    return int(if_match.strip('"'))


def _changed(error: ECONFLICT, agent: str, path: str, if_match: str | None) -> Json:
    return problems.response(error, f"/api/v1/agents/{agent}/memory/{path}", 412 if if_match is not None else 409)


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EINVAL("text.surrogate", "data: it has half a character in it", field="data") from None


async def _listed(caller: Asker, request: Memory, pages: Paging[str]) -> dict[str, Any]:
    request.after, request.max = pages.after or "", min(pages.limit, 256)
    found = await caller.ask(request)
    more = found.get("next")
    return {"items": found["entries"], "next": next_cursor(more) if more else None}
