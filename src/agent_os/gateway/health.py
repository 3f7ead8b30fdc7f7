"""Whether the gateway lives, and whether a kernel is behind it. No token, no detail, and no word to the kernel."""

import stat

from fastapi import APIRouter

from agent_os.abi.errors import EHOSTUNREACH
from agent_os.gateway.asking import TheSettings
from agent_os.gateway.models import Row, answers
from agent_os.gateway.problems import Json

router = APIRouter(tags=["health"])


class Fine(Row):
    ok: bool


@router.get("/healthz", responses=answers(Fine), summary="Whether the gateway lives.")
async def healthz() -> Json:
    return Json({"ok": True})


@router.get("/readyz", responses=answers(Fine), summary="Whether there is a kernel to ask.")
async def readyz(settings: TheSettings) -> Json:
    try:
        there = stat.S_ISSOCK(settings.socket.stat().st_mode)
    except OSError:
        there = False
    if not there:
        raise EHOSTUNREACH("daemon.down", "there is no kernel to ask", hint="agentctl up starts one")
    return Json({"ok": True})
