"""`Idempotency-Key`: a POST that is sent again is answered as the first one was, and is not done again.

Twice over: what was answered is kept here for a day, by token and key, within bounds; and the kernel gets a key for
every change that the request makes, so that a gateway that was restarted meanwhile does nothing twice either. The same
key with another request is 409. Only what went well is kept: whoever was refused may mend the cause and send it again.
"""

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import sha256

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_os.abi import frames
from agent_os.abi.errors import ECONFLICT, EINVAL, AgentOSError
from agent_os.abi.syscalls import BY_REQUEST, Body, Effect
from agent_os.gateway import problems

HEADER = "idempotency-key"
KEPT_S = 24 * 3600.0
MOST_KEYS = 10_000  # then the oldest goes
MOST_BYTES = 16 << 20  # of all answers
LARGEST = 256 << 10  # of one; a larger one is not kept, and the kernel's own keys do
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_SECRET = "/session"  # what comes from there is shown once, and kept nowhere

Check = Callable[[str], Awaitable[None]]  # raises if a token is good no more


@dataclass(eq=False)
class _First:
    """The first request with its key: under way, or answered."""

    print: bytes
    at: float
    over: asyncio.Event = field(default_factory=asyncio.Event)
    start: Message | None = None
    body: bytes = b""


class Idempotency:
    """ASGI middleware, behind the guard."""

    def __init__(
        self, app: ASGIApp, check: Check, *, keys: int = MOST_KEYS, size: int = MOST_BYTES, seconds: float = KEPT_S
    ) -> None:
        self._app, self._check = app, check
        self._most, self._most_bytes, self._seconds = keys, size, seconds
        self._firsts: OrderedDict[tuple[bytes, str], _First] = OrderedDict()
        self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else None
        given = headers.getlist(HEADER) if headers and scope["method"] == "POST" else []
        if headers is None or not given or scope["path"].partition(_SECRET)[0] == "/api/v1":
            await self._app(scope, receive, send)
            return
        try:
            await self._once(scope, receive, send, headers, given)
        except AgentOSError as error:
            await problems.response(error, scope["path"])(scope, receive, send)

    async def _once(self, scope: Scope, receive: Receive, send: Send, headers: Headers, given: list[str]) -> None:
        if len(given) != 1 or not _KEY.fullmatch(given[0]):
            hint = "send one, with 1 to 200 visible ASCII characters"
            raise EINVAL("key.form", "this is no Idempotency-Key", hint=hint, field="Idempotency-Key")
        token, body = headers.get("authorization", ""), await _whole(receive)
        name = (sha256(token.encode()).digest(), given[0])
        print_ = sha256(b"\0".join((scope["path"].encode(), scope["query_string"], body))).digest()
        self._sweep()
        while first := self._firsts.get(name):
            if first.print != print_:
                reason = f"the Idempotency-Key {given[0]!r} belongs to another request"
                raise ECONFLICT("key.reused", reason, hint="a new request needs a new key")
            await first.over.wait()
            if first.start is not None:
                await self._check(token.partition(" ")[2])
                await _repeat(first, send)
                return
        scope.setdefault("state", {})["key"] = f"{given[0]}:{print_.hex()[:16]}"
        await self._first(name, _First(print_, time.monotonic()), scope, again(body, receive), send)

    async def _first(self, name: tuple[bytes, str], first: _First, scope: Scope, receive: Receive, send: Send) -> None:
        """Cancelled or refused, the key is free again; what it had begun, the kernel knows."""
        self._firsts[name] = first
        start: Message | None = None
        kept = bytearray()

        async def sending(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
            elif message["type"] == "http.response.body" and len(kept) <= LARGEST:
                kept.extend(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, sending)
            if start and 200 <= start["status"] < 300 and len(kept) <= LARGEST:
                first.start, first.body = start, bytes(kept)
                self._bytes += len(kept)
        finally:
            first.over.set()
            if first.start is None:
                self._firsts.pop(name, None)

    def _sweep(self) -> None:
        now = time.monotonic()
        while self._firsts:
            name, oldest = next(iter(self._firsts.items()))
            full = len(self._firsts) >= self._most or self._bytes > self._most_bytes
            if not full and now - oldest.at < self._seconds:
                return
            if oldest.start is None:  # under way: it stays, as the newest
                self._firsts.move_to_end(name)
                if all(one.start is None for one in self._firsts.values()):
                    return
                continue
            self._bytes -= len(oldest.body)
            del self._firsts[name]


def key_of(given: str | None, request: Body) -> str | None:
    """For the kernel, of one change that a request with a key makes. Looks have none."""
    if given is None or BY_REQUEST[type(request)].effect is Effect.PURE:
        return None
    return f"http:{given}:{sha256(bytes(frames.body(request))).hexdigest()[:16]}"


async def _whole(receive: Receive) -> bytes:
    """The body, whose size the guard has bounded."""
    data = bytearray()
    while True:
        message = await receive()
        data += message.get("body", b"")
        if message["type"] != "http.request" or not message.get("more_body"):
            return bytes(data)


def again(data: bytes, receive: Receive) -> Receive:
    """A body that was read, for whoever reads it next."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": data, "more_body": False}

    return replay


async def _repeat(first: _First, send: Send) -> None:
    assert first.start is not None
    start = {**first.start, "headers": list(first.start["headers"])}
    MutableHeaders(scope=start)["Idempotency-Replayed"] = "true"
    await send(start)
    await send({"type": "http.response.body", "body": first.body})
