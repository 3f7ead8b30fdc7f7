"""The gateway's process.

    python -m agent_os.gateway < ORDER

The order is one JSON line on the standard input: where the kernel is, limits, and the descriptor of the socket at which
we listen. Whoever started us keeps that socket, so that nobody gets our address while we are not there. What comes of
the order is one JSON line on the standard output (`url` or `error`); the log goes to stderr. The input stays open for
as long as whoever started us lives: its end is ours. A line on it asks whether we still turn, and an empty one is the
answer.
"""

import asyncio
import ctypes
import logging
import os
import signal
import socket
import ssl
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.gateway import sockets
from agent_os.gateway.app import create_app
from agent_os.gateway.lines import lines
from agent_os.gateway.settings import Limits, Settings, is_loopback, require_safe

_PR_SET_PDEATHSIG = 1
_MOST_HEADERS = 64 << 10  # of the parser; the guard's own limit is lower, and says what is wrong
_TO_END = 2
log = logging.getLogger("agent_os.gateway")


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """What we are started with."""

    socket: str
    host: str
    listener: int
    names: list[str] = []
    cert: str | None = None
    key: str | None = None
    limits: dict[str, float] = {}


def main() -> int:
    _end_with_parent()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)  # below that it writes down the addresses of WebSockets
    try:
        settings, listener = _settled(sys.stdin.readline())
    except AgentOSError as error:
        _say({"error": {"name": error.name, "code": error.code, "reason": error.reason, "hint": error.hint}})
        return 2
    server = uvicorn.Server(_config(settings))
    with asyncio.Runner(loop_factory=_loop) as runner:
        runner.run(_serve(server, listener, settings))
    return 0


def _end_with_parent() -> None:
    """Also if it is killed, and we hang: then nobody would notice the end of our input."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _settled(line: str) -> tuple[Settings, socket.socket]:
    try:
        order = msgspec.json.decode(line, type=Order)
        limits = msgspec.convert({**msgspec.to_builtins(Limits()), **order.limits}, Limits, strict=False)
    except msgspec.MsgspecError as problem:
        raise EINVAL("gateway.order", f"the gateway was not told what to do: {problem}", hint="agentctl up") from None
    require_safe(order.host, tuple(order.names), order.cert, order.key)
    if order.cert:
        _require_usable(order.cert, order.key)
    listener = socket.socket(fileno=order.listener)
    listener.set_inheritable(False)
    settings = Settings(
        Path(order.socket),
        order.host,
        listener.getsockname()[1],
        tuple(order.names),
        Path(order.cert) if order.cert else None,
        Path(order.key) if order.key else None,
        limits,
    )
    return settings, listener


def _require_usable(cert: str, key: str | None) -> None:
    """EINVAL before anything listens: the server itself would only end."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
    except OSError as problem:
        why = (problem.reason if isinstance(problem, ssl.SSLError) else problem.strerror) or "they are no PEM files"
        reason = f"the certificate {cert} with the key {key} cannot be used: {why}"
        raise EINVAL(
            "gateway.cert", reason, hint="both in PEM, the key of that certificate and without a password"
        ) from None


def _config(settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(None, settings),
        http=lines(settings.limits),
        lifespan="on",
        log_config=None,
        access_log=False,  # addresses can hold what people type
        proxy_headers=False,  # whoever asks could write them
        server_header=False,
        h11_max_incomplete_event_size=_MOST_HEADERS,
        timeout_graceful_shutdown=_TO_END,
        ssl_certfile=settings.cert,
        ssl_keyfile=settings.key,
        **sockets.OPTIONS,
    )


def _loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def _serve(server: uvicorn.Server, listener: socket.socket, settings: Settings) -> None:
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), _heard, server)
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    if server.started:
        _say({"url": settings.url})
        where = "" if is_loopback(settings.host) else ", with TLS"
        log.info("listening at %s%s", settings.url, where)
    await serving


def _heard(server: uvicorn.Server) -> None:
    """Asked whether we live, we say so. Nothing more is said: this is the end of whoever started us."""
    with suppress(BlockingIOError):
        if os.read(sys.stdin.fileno(), 4096):
            sys.stdout.buffer.write(b"\n")
            sys.stdout.buffer.flush()
        else:
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            server.should_exit = True


def _say(what: dict[str, Any]) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
