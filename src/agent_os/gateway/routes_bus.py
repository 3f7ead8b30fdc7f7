"""Messages, topics, and what could not be delivered."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Path
from msgspec import Raw
from pydantic import Field

from agent_os.abi.errors import ETYPE
from agent_os.abi.syscalls import Bus, DeadLetters, Post, Topics
from agent_os.gateway.asking import Caller, sendable
from agent_os.gateway.listing import Pages, paged
from agent_os.gateway.models import Nothing, Page, Row, Wanted, answers, one_of
from agent_os.gateway.naming import BLANK, WHOLE, Agent, AgentFilter, Word
from agent_os.gateway.problems import Json

router = APIRouter(tags=["bus"])
LetterId = Annotated[str, Path(pattern="^[A-Za-z0-9_.:-]{1,100}$", description="As GET /dead-letters lists it.")]
_TOKEN = rf"[^{BLANK}./*>]+"
Topic = Annotated[str, Field(pattern=rf"^{_TOKEN}(\.{_TOKEN}){{0,30}}$", max_length=255, description="As `news.eu`.")]
TopicFilter = Annotated[
    str,
    Field(
        pattern=rf"^((\*|{_TOKEN})(\.(\*|{_TOKEN})){{0,29}}(\.>)?|>)$",
        max_length=255,
        description="With `*` for one word and `>` for the rest.",
    ),
]


class Message(Wanted):
    """To an agent, or on a topic."""

    model_config = one_of("to", "topic")

    to: Agent = Field(default_factory=str)
    topic: Topic = Field(default_factory=str)
    payload: Any = None
    schema_: Word = Field(default="", alias="schema")
    lane: Literal["high", "normal", "low"] = "normal"
    key: Annotated[str, Field(max_length=200, description="Of two with the same key one is handled.")] | None = None
    ttl_ms: Annotated[int, Field(ge=1, le=10**10), WHOLE] = 86_400_000
    wait: bool = Field(default=False, description="For the response, which is the answer.")
    deadline_ms: Annotated[int, Field(ge=1, le=600_000), WHOLE] = 30_000


class TopicWish(Wanted):
    topic: TopicFilter
    reliable: bool = Field(default=True, description="It loses nothing: publishers are refused while somebody lags.")


@router.get("/messages", responses=answers(Page), summary="What waits for whom.")
async def mailboxes(caller: Caller, pages: Pages, agent: AgentFilter = None) -> Json:
    found = await caller.ask(Bus(agent=agent))
    more = {name: found[name] for name in ("requests", "dead")}
    return Json({**paged(found["mailboxes"], pages, lambda row: row["agent"]), **more})


@router.post("/messages", responses=answers(Row), summary="Send a message, or publish an event.")
async def post(body: Message, caller: Caller) -> Json:
    if bool(body.to) == bool(body.topic):
        raise ETYPE("request.field", "to: one of to and topic is needed", hint="send just one", field="to")
    with sendable():
        payload = Raw(msgspec.msgpack.encode(body.payload))
    request = Post(
        to=body.to,
        topic=body.topic,
        payload=payload,
        schema=body.schema_,
        lane=body.lane,
        key=body.key,
        ttl_ms=body.ttl_ms,
        wait=body.wait,
        deadline_ms=body.deadline_ms,
    )
    return Json(await caller.ask(request, deadline=body.deadline_ms / 1000 + 5 if body.wait else None))


@router.get("/topics", responses=answers(Page), summary="Who subscribed to what, and how far behind each is.")
async def topics(caller: Caller, pages: Pages) -> Json:
    found = paged((await caller.ask(Bus()))["subscriptions"], pages, lambda row: row["sub"])
    return Json({**found, "reliable": (await caller.ask(Topics()))["reliable"]})


@router.post("/topics", responses=answers(Row), summary="Say whether a topic loses nothing.")
async def reliable(body: TopicWish, caller: Caller) -> Json:
    return Json(await caller.ask(Topics(topic=body.topic, reliable=body.reliable)))


@router.get("/dead-letters", responses=answers(Page), summary="What could not be delivered, and why.")
async def dead(caller: Caller, pages: Pages, agent: AgentFilter = None) -> Json:
    return Json(paged((await caller.ask(DeadLetters(agent=agent)))["letters"], pages, lambda row: row["id"]))


@router.post("/dead-letters/{letter}/redeliver", responses=answers(Row), summary="Deliver it once more.")
async def redeliver(letter: LetterId, body: Nothing, caller: Caller) -> Json:
    return Json(await caller.ask(DeadLetters(do="redeliver", letters=[letter])))


@router.delete("/dead-letters/{letter}", responses=answers(Row), summary="Forget it; the record keeps that it was.")
async def drop(letter: LetterId, caller: Caller) -> Json:
    return Json(await caller.ask(DeadLetters(do="drop", letters=[letter])) or {})
