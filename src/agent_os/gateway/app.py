"""The application: guards, problems, and every resource of the API; put together here and nowhere else.

    create_app(connect, settings) -> FastAPI

`connect` opens a connection to the kernel for a token. No globals: two gateways in one process know nothing of each
other.
"""

import stat
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.routing import Route

from agent_os import __version__
from agent_os.abi.errors import EHOSTUNREACH
from agent_os.client import wire
from agent_os.gateway import (
    metrics,
    problems,
    routes_agents,
    routes_authority,
    routes_bus,
    routes_goals,
    routes_memory,
    routes_money,
    routes_operations,
    routes_policy,
    routes_record,
    routes_session,
    routes_system,
    routes_tools,
    static,
    telemetry,
)
from agent_os.gateway.asking import TheSettings
from agent_os.gateway.guard import Guard
from agent_os.gateway.idempotency import Idempotency
from agent_os.gateway.mcp_http import PATH, McpDoor
from agent_os.gateway.models import Row, answers
from agent_os.gateway.operations import Operations
from agent_os.gateway.pool import Connect, Pool
from agent_os.gateway.problems import Json, Problem
from agent_os.gateway.settings import Settings
from agent_os.gateway.stream import Bounds, Streams

# The OpenAPI document, as the framework makes it, with our own shape for errors in place of its.


def document(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title,
            version=app.version,
            description=(
                "What `agentctl` does, over HTTP. Rows are those of `agentctl … -o json`; errors are RFC 9457 with "
                "the kernel's code, reason and hint."
            ),
            routes=app.routes,
        )
        schemas = made.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema()
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for what in (one for methods in made["paths"].values() for one in methods.values()):
            for parameter in what.get("parameters", ()):
                parameter["schema"] = _without_null(parameter["schema"])
        app.openapi_schema = made
    return app.openapi_schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """What is not sent is absent: an address or a header has no null."""
    kinds = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    if len(kinds) != 1:
        return schema
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **kinds[0]}


# Whether the gateway lives, and whether a kernel is behind it. No token, no detail, and no word to the kernel.

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


API = "/api/v1"
ROUTERS = (
    routes_session,
    routes_agents,
    routes_memory,
    routes_goals,
    routes_authority,
    routes_policy,
    routes_bus,
    routes_tools,
    routes_record,
    routes_money,
    routes_system,
    routes_operations,
)


def create_app(connect: Connect | None, settings: Settings) -> FastAPI:
    pool, operations = Pool(connect or kernel_at(settings), settings.limits), Operations()
    mcp = McpDoor(pool)
    streams = Streams(pool.once, Bounds(settings.limits.websockets))

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncGenerator[None]:
        await pool.start()
        try:
            async with telemetry.following(settings.socket):
                yield
        finally:
            await mcp.close()
            await operations.close()
            await pool.close()

    app = FastAPI(
        title="Agent OS", version=__version__, lifespan=running, docs_url=None, redoc_url=None, redirect_slashes=False
    )
    app.state.pool, app.state.settings, app.state.operations = pool, settings, operations
    app.openapi = partial(document, app)
    problems.install(app)
    app.add_middleware(Idempotency, check=pool.check)
    app.add_middleware(Guard, settings=settings, check=pool.check)
    api = APIRouter(prefix=API)
    for one in ROUTERS:
        api.include_router(one.router)
    api.add_api_websocket_route("/events", streams.serve)
    app.include_router(api)
    app.router.routes.append(Route(PATH, endpoint=mcp, methods=["GET", "POST", "DELETE"], include_in_schema=False))
    app.include_router(metrics.router)
    app.include_router(router)
    app.include_router(static.routes(settings.static))
    return app


def kernel_at(settings: Settings) -> Connect:
    return lambda token: wire.connect(settings.socket, token=token)
