"""Agents: who is there, starting, ending and asking them, signals, and what one did and does."""

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Body, Query
from pydantic import Field

from agent_os.abi import frames
from agent_os.abi.errors import EINVAL, ESRCH, ETYPE, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import (
    Apply,
    CheckpointOf,
    Declared,
    Delete,
    Events,
    History,
    Inspect,
    ListAgents,
    Logs,
    Post,
    Release,
    Restart,
    Run,
    Start,
    Stop,
    Tell,
)
from agent_os.client.members import OVER, Row, is_shown, members, short
from agent_os.client.values import jsonable
from agent_os.gateway.asking import Asker, Caller
from agent_os.gateway.listing import Numbered, Pages, paged
from agent_os.gateway.models import AgentRow, Page, Wanted, answers, one_of
from agent_os.gateway.models import Row as Answer
from agent_os.gateway.naming import AgentName, Amount, Reason, Resource, Word, Words, in_path, meant
from agent_os.gateway.problems import Json, shape, status_of
from agent_os.gateway.records import entries_page
from agent_os.gateway.routes_operations import OperationRow, TheOperations, finished

# `POST /agents/{agent}/invoke`: ask an agent whose manifest says `interface.protocol = "rest"`, and get its answer.
# The kernel holds both to the schemas of the manifest, and says which field does not fit; this only carries them.

# What one agent did and does: those below it, its record, what it wrote, its lives and states; starting it again.

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
    return Json(_branch(top, rows, {top["id"]}))


def _branch(top: Row, rows: list[Row], seen: set[str]) -> Row:
    """`seen`: whatever the rows say, nobody is told twice."""
    children = [row for row in rows if row["parent"] == top["id"] and row["id"] not in seen]
    seen |= {row["id"] for row in children}
    return {**top, "children": [_branch(one, rows, seen) for one in children]}


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


LONGEST_S = 3600.0
TO_ANSWER_S = 25.0  # what takes longer is an operation


class Answered(Answer):
    """`answer` is what the agent gave; `error`, in its place, a sentence in which it says why it could not."""

    id: str
    answer: Any = None
    error: str | None = None


LONG = {**answers(Answered), **answers(OperationRow, 202, "It is still at it: look at /operations/{id}")}
Asked = Annotated[Any, Body(description="As the agent's request_schema says.")]


@router.post("/agents/{agent}/invoke", responses=LONG, summary="Ask an agent, and wait for its answer.")
async def invoke(agent: AgentName, request: Asked, caller: Caller, operations: TheOperations) -> Json:
    """The whole body is the request. It may take as long as the manifest's `interface.timeout_secs` says."""
    try:
        payload = frames.body(request)
    except OverflowError:
        raise EINVAL("number.range", "a number has more than 64 bits", hint="send it as text") from None
    except UnicodeEncodeError:
        hint = "send whole characters: a \\ud800 needs its second half"
        raise EINVAL("text.surrogate", "a text has half a character in it", hint=hint) from None
    post = Post(to=meant(agent), payload=payload, wait=True, protocol="rest", deadline_ms=int(LONGEST_S * 1000))
    return await finished(operations, caller, f"invoke {meant(agent)}", _asked(caller, post), TO_ANSWER_S)


async def _asked(caller: Asker, post: Post) -> dict[str, Any]:
    answer = await caller.ask(post, deadline=LONGEST_S)
    return {"id": answer["id"], "answer": answer["payload"], "error": answer.get("error")}


TO_ACT = 120.0  # seconds for a signal to be true
SOON_S = 10.0  # what takes longer is an operation
TO_START = 120.0
_PATH = "/usr/local/bin:/usr/bin:/bin"
SignalName = Literal["SIGSTOP", "SIGCONT", "SIGINT", "SIGKILL", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGBUDGET", "SIGCHLD"]


class SignalOrder(Wanted):
    signal: SignalName
    tree: bool = Field(default=False, description="Also everybody below it.")
    reason: Reason = ""


class SignalToAll(Wanted):
    signal: SignalName
    reason: Reason = ""


class Told(Answer):
    """What became of it, for each."""

    done: list[dict[str, Any]]
    failed: list[dict[str, Any]]


TOLD = {**answers(Told), **answers(OperationRow, 202, "It is not true yet: look at /operations/{id}")}


class Order(Wanted):
    """A command, or the function of a file, as an isolated agent: what `agentctl run --detach` takes. Paths are
    absolute, or relative to `cwd`."""

    argv: Annotated[list[Word], Field(max_length=1000, description="The command; behind a file its parameters.")] = []
    cwd: Annotated[str, Field(pattern="^/", max_length=4096, description="Its workspace, unless `workspace` is.")]
    workspace: Word | None = None
    mounts: Words = []
    net: Words = []
    secrets: Words = []
    models: Words = []
    caps: Words = []
    budget: dict[Resource, Amount] = {}
    env: Words = []
    environment: dict[str, Word] = Field(default={}, description="PATH and the like, where programs are looked for.")
    timeout: Word | None = None
    limit: Words = []
    min_isolation: Literal["S0", "S1", "S2", "S3", "S4"] | None = None
    origin: Word | None = None
    snapshot: Word | None = None
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,62}$")] | None = None
    after: Literal["keep", "commit", "discard"] = "keep"
    allow_protected: bool = False
    file: Word | None = Field(default=None, description="An agent written for us: its file.")
    function: Word = ""
    python: Word = ""


class ManifestFile(Wanted):
    """A manifest as it is written; its folder is where the agent works."""

    file: Annotated[str, Field(pattern=r"^/.*\.agent\.(toml|json)$", max_length=4096)]
    text: Annotated[str, Field(max_length=1 << 19)]


def _absent() -> Any:
    """Not null, which would be something."""
    return None


class Wish(Wanted):
    """One of the two."""

    model_config = one_of("order", "manifest")

    order: Order = Field(default_factory=_absent)
    manifest: ManifestFile = Field(default_factory=_absent)


class Spawned(Answer):
    name: str
    level: str | None = None


@router.get("/agents", responses=answers(Page), summary="List agents.")
async def everybody(
    caller: Caller, pages: Pages, all: Annotated[bool, Query(description="Also those that have ended.")] = False
) -> Json:
    """Those of manifests and those without one; the rows of `agentctl ps -o json`."""
    async with caller.client() as client:
        rows = jsonable(await members(client, ended=all))
    return Json(paged([row for row in rows if all or is_shown(row)], pages, lambda row: row["id"]))


@router.get("/agents/{agent}", responses=answers(AgentRow), summary="Everything on one agent.")
async def one(agent: AgentName, caller: Caller) -> Json:
    return Json(await caller.ask(Inspect(agent=meant(agent))))


@router.post("/agents", status_code=201, responses=answers(Spawned, 201), summary="Start an agent.")
async def spawn(body: Wish, caller: Caller) -> Json:
    """A command, which runs on by itself, or the agent of a manifest, which is declared and started."""
    if len(body.model_fields_set) != 1:
        raise ETYPE("request.field", "order: one of order and manifest is needed", hint="send just one", field="order")
    if "order" in body.model_fields_set:
        order = {name: value for name, value in body.order.model_dump().items() if value is not None}
        order["environment"] = {"PATH": _PATH, **order["environment"]}
        made = await caller.ask(Run(order=order, detach=True), deadline=TO_START)
    else:
        applied = await caller.ask(Apply(files={body.manifest.file: body.manifest.text}), deadline=TO_START)
        made = {"name": short(applied["agents"][0]["id"]), **await _started(caller, applied["agents"][0]["id"])}
    return Json(made, 201, {"Location": f"/api/v1/agents/{in_path(made['name'])}"})


async def _started(caller: Asker, agent: str) -> dict[str, Any]:
    """To run it is to want it now, whatever its manifest says of when it starts by itself."""
    row = (await caller.ask(Declared(agents=[agent])))["agents"][0]
    if row["state"] in OVER or row["activation"] not in ("", "always"):
        return await caller.ask(Start(agent=agent), deadline=TO_START)
    return {"state": row["state"]}


@router.delete("/agents/{agent}", responses=answers(Answer), summary="End an agent; a declared one is forgotten.")
async def terminate(agent: AgentName, caller: Caller) -> Json:
    """Answered when nothing of it is left. Its record and its changes stay."""
    name = meant(agent)
    try:
        declared = (await caller.ask(Declared(agents=[name])))["agents"]
    except ESRCH:
        declared = []
    if declared:
        return Json(await caller.ask(Delete(agents=[name]), deadline=TO_START))
    return Json({"name": name, **await _tell(caller, name, "SIGKILL")})


@router.post("/agents/{agent}/signals", responses=TOLD, summary="Send a signal; answered when it is true.")
async def signal(agent: AgentName, body: SignalOrder, caller: Caller, operations: TheOperations) -> Json:
    """What is not true soon is an operation, which goes on."""
    name = meant(agent)
    what = f"{body.signal} to {name}"
    if not body.tree:
        return await finished(operations, caller, what, _alone(caller, name, body), SOON_S)
    rows = (await caller.ask(ListAgents()))["agents"]
    work = _all(caller, [*_below(rows, name), name], body, f"/api/v1/agents/{agent}/signals")
    return await finished(operations, caller, f"{what} and everybody below", work, SOON_S)


@router.post("/signals", responses=TOLD, summary="Send a signal to every agent.")
async def signal_everybody(body: SignalToAll, caller: Caller, operations: TheOperations) -> Json:
    """The red button is SIGSTOP: every agent stands still until SIGCONT."""
    rows = (await caller.ask(ListAgents()))["agents"]
    work = _all(caller, [row["name"] for row in rows], body, "/api/v1/signals")
    return await finished(operations, caller, f"{body.signal} to everybody", work, SOON_S)


async def _tell(caller: Asker, name: str, signal: str, reason: str = "") -> dict[str, Any]:
    return await caller.ask(Tell(agent=name, signal=AgentSignal[signal], reason=reason), deadline=TO_ACT)


async def _alone(caller: Asker, name: str, order: SignalOrder) -> dict[str, Any]:
    return {"done": [{"name": name, **await _tell(caller, name, order.signal, order.reason)}], "failed": []}


async def _all(caller: Asker, names: Iterable[str], order: SignalOrder | SignalToAll, path: str) -> dict[str, Any]:
    """Everybody at once. One that fails keeps nobody else from it."""

    async def each(name: str) -> dict[str, Any] | tuple[str, AgentOSError]:
        try:
            return {"name": name, **await _tell(caller, name, order.signal, order.reason)}
        except AgentOSError as error:
            return name, error

    told = await asyncio.gather(*map(each, names))
    refused = [one for one in told if isinstance(one, tuple)]
    if refused and len(refused) == len(told):
        raise refused[-1][1]
    failed = [{"name": name, "problem": shape(error, path, status_of(error))} for name, error in refused]
    return {"done": [one for one in told if isinstance(one, dict)], "failed": failed}


def _below(rows: list[Row], name: str) -> list[str]:
    """Everybody under it, the deepest first."""
    own = next((row["id"] for row in rows if name in (row["id"], row["name"])), None)
    found: list[str] = []
    level = {own}
    while level:
        children = [row for row in rows if row["parent"] in level]
        found[:0] = [row["name"] for row in children]
        level = {row["id"] for row in children}
    return found
