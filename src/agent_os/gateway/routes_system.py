"""The machine and what the kernel needs of it: health, models, servers of tools, and the doctor."""

from typing import Any

from fastapi import APIRouter

from agent_os.abi.doors import Doctor, Metrics
from agent_os.abi.syscalls import Health, Links, Mcp, Models
from agent_os.gateway.asking import Caller
from agent_os.gateway.models import Row, answers
from agent_os.gateway.problems import Json

router = APIRouter(tags=["system"])
_TO_EXAMINE = 120.0


class Examined(Row):
    level: str
    ok: bool
    checks: list[dict[str, Any]]


@router.get("/doctor", responses=answers(Examined), summary="What this machine can isolate, and what is wrong.")
async def doctor(caller: Caller) -> Json:
    return Json(await caller.ask(Doctor(), deadline=_TO_EXAMINE))


@router.get("/health", responses=answers(Row), summary="How the declared agents are.")
async def health(caller: Caller) -> Json:
    return Json(await caller.ask(Health()))


@router.get("/models", responses=answers(Row), summary="Providers of models, aliases, limits, and who waits.")
async def models(caller: Caller) -> Json:
    return Json(await caller.ask(Models(do="list")))


@router.get("/links", responses=answers(Row), summary="Who is linked to whom, and who monitors whom.")
async def links(caller: Caller) -> Json:
    return Json(await caller.ask(Links()))


@router.get("/mcp-servers", responses=answers(Row), summary="Servers of the Model Context Protocol.")
async def servers(caller: Caller) -> Json:
    return Json(await caller.ask(Mcp(do="list")))


@router.get("/metrics", responses=answers(Row), summary="What the kernel counts; /metrics has it for Prometheus.")
async def metrics(caller: Caller) -> Json:
    return Json(await caller.ask(Metrics()))
