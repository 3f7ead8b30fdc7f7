"""What every request passes before any route sees it: ASGI middleware. Of the kernel it asks one thing:
whether a token is good, before a body of some size is read for it.

A service on loopback is not private to its user: any page in any browser can send requests to it, and a rebinding DNS
server can make it ours by another name. So the Host must be a name of ours, an Origin must be ours, changes must be
JSON, which no form of a foreign page can send; bodies, headers and nesting have limits, and a token has a rate. What is
refused here is told as a problem, and answers carry the headers that keep a browser from being clever.
"""

import asyncio
import hashlib
import re
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any
from urllib.parse import unquote

from fastapi.security import HTTPAuthorizationCredentials
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_os.abi.errors import EAGAIN, EINVAL, EMSGSIZE, ENOENT, EPERM, ETIMEDOUT, AgentOSError
from agent_os.gateway import problems
from agent_os.gateway.asking import token_of
from agent_os.gateway.bucket import Bucket
from agent_os.gateway.idempotency import again
from agent_os.gateway.settings import Settings

_CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_WITH_BODY = _CHANGES - {"DELETE"}  # a form can send a POST without a body or a type; nothing but a script a DELETE
_MOST_BUCKETS = 4096
_TEXT = re.compile(rb'"[^"]*"?')  # of JSON without escapes
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_ASKED = ("/api/", "/mcp", "/metrics")
_ENTRANCE = "/api/v1/session"
_OWN_SITES = ("same-origin", "none")  # what a browser says of a request: that it comes from us, or from its user
_SMALL = 64 << 10  # bytes of a body that are read for anybody
_SLASHED = re.compile(rb"(/api/v1/(?:agents|budgets)/[a-z0-9_.-]+)%2[fF]([^?]*)")
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


Check = Callable[[str], Awaitable[None]]  # raises if a token is not good


class _Refusal(Exception):
    def __init__(self, error: AgentOSError, status: int, allowed: Sequence[str] = ()) -> None:
        self.error, self.status = error, status
        self.headers = {"Allow": ", ".join(allowed)} if allowed else {}


class Guard:
    def __init__(self, app: ASGIApp, settings: Settings, check: Check) -> None:
        self._app, self._settings, self._limits, self._check = app, settings, settings.limits, check
        self._hosts, self._origins = frozenset(settings.hosts), frozenset(settings.origins)
        self._buckets: OrderedDict[bytes, Bucket] = OrderedDict()
        self._large = Counter[str]()  # bodies under way that are not small, by token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _dress(scope, message)
            await send(message)

        _name_agent(scope)
        path = scope["path"]
        try:
            headers = self._headers(scope)
            self._rate(scope, headers)
            _one_way(scope)
            self._method(scope)
            async with self._body(scope, headers, receive) as receive:
                await self._app(scope, receive, sending)
        except _Refusal as refusal:
            answer = problems.response(refusal.error, path, refusal.status, refusal.headers)
            # What was not read of its body must not be taken for the next request.
            answer.headers["Connection"] = "close"
            await answer(scope, receive, sending)
        except Exception as bug:  # told to whoever asked as a trace id, and to the log as it is
            if started:
                raise
            await problems.internal(path, bug)(scope, receive, sending)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._headers(scope)
        except _Refusal as refusal:
            await _deny(scope, receive, send, refusal)
            return
        await self._app(scope, receive, send)

    def _headers(self, scope: Scope) -> Headers:
        headers = Headers(scope=scope)
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size > self._limits.headers:
            reason = f"the headers have {size} bytes, and may have {self._limits.headers}"
            raise _Refusal(EMSGSIZE("headers.size", reason, hint="send fewer of them"), 431)
        if "transfer-encoding" in headers and "content-length" in headers:
            reason = "Content-Length and Transfer-Encoding: such a request ends in two places"
            raise _Refusal(EINVAL("framing", reason, hint="send one of them"), 400)
        hosts = headers.getlist("host")
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            reason = f"this server is called {' or '.join(self._settings.hosts)}, not {', '.join(hosts) or 'nothing'}"
            raise _Refusal(EINVAL("host", reason, hint=f"use {self._settings.url}"), 421)
        origins = headers.getlist("origin")
        if origins and (len(origins) > 1 or origins[0].lower() not in self._origins):
            reason = f"a page of {', '.join(origins)} may not ask this server"
            raise _Refusal(EPERM("origin", reason, hint=f"use the dashboard at {self._settings.url}"), 403)
        if headers.get("sec-fetch-site", "none") not in _OWN_SITES and scope["path"].startswith(_ASKED):
            reason = "a page of another site may not ask this server, not even for a picture"
            raise _Refusal(EPERM("origin", reason, hint=f"use the dashboard at {self._settings.url}"), 403)
        if any(word in scope["query_string"] for word in (b"aos_", b"aoss_")):
            reason = "a token does not belong into an address, where logs and histories keep it"
            raise _Refusal(EINVAL("token.query", reason, hint="send it as Authorization: Bearer TOKEN"), 400)
        return headers

    def _method(self, scope: Scope) -> None:
        """Before anything else about a request matters; a path that fits two routes is the more exact one's."""
        allowed = problems.methods_of(scope["app"], scope["path"])
        if allowed and scope["method"] not in allowed:
            raise _Refusal(problems.wrong_method(scope["method"], scope["path"], allowed), 405, allowed)

    def _rate(self, scope: Scope, headers: Headers) -> None:
        """Each token has a bucket of its own; whoever has none shares one, and whoever comes to get one another."""
        if not scope["path"].startswith(_ASKED):
            return
        enters = scope["path"] == _ENTRANCE and scope["method"] == "POST"
        name = hashlib.sha256(b"enter" if enters else headers.get("authorization", "").encode()).digest()
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = Bucket(self._limits.rate, self._limits.burst)
            if len(self._buckets) > _MOST_BUCKETS:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        if wait := bucket.take(time.monotonic()):
            reason = f"more than {self._limits.rate:g} requests a second"
            hint = f"try again in {wait:.2f} s"
            raise _Refusal(EAGAIN("gateway.rate", reason, hint=hint, retry_after_ms=int(wait * 1000) + 1), 429)

    @asynccontextmanager
    async def _body(self, scope: Scope, headers: Headers, receive: Receive) -> AsyncGenerator[Receive]:
        """All of it, checked; the routes read it again from here. More than a little is only read for a good token, and
        for each of them only so many at a time: it is held in memory until its request is over."""
        if scope["method"] not in _CHANGES:
            yield receive
            return
        most = self._most(scope)
        told = headers.get("content-length", "")
        if told.isdigit() and int(told) > most:
            raise self._too_large(most)
        held = ""
        try:
            if told.isdigit() and int(told) > _SMALL:
                held = await self._admitted(headers)
            data = bytearray()
            async with aclosing(self._pieces(receive)) as pieces:
                async for piece in pieces:
                    data += piece
                    if len(data) > most:
                        raise self._too_large(most)
                    if len(data) > _SMALL and not held:
                        held = await self._admitted(headers)
            if data or scope["method"] in _WITH_BODY or "content-type" in headers:
                self._json(headers, data)
            yield again(bytes(data), receive)
        finally:
            if held:
                self._large -= Counter((held,))

    async def _pieces(self, receive: Receive) -> AsyncGenerator[bytes]:
        """A body that is cut off is none, whatever its beginning says."""
        until = asyncio.get_running_loop().time() + self._limits.body_s
        more = True
        while more:
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                reason = f"the body did not come within {self._limits.body_s:g} s"
                raise _Refusal(ETIMEDOUT("body.time", reason, hint="send it at once"), 408) from None
            if message["type"] != "http.request":
                raise _Refusal(EINVAL("body.cut", "the connection ended before the body did"), 400)
            yield message.get("body", b"")
            more = message.get("more_body", False)

    async def _admitted(self, headers: Headers) -> str:
        kind, _, word = headers.get("authorization", "").partition(" ")
        shown = HTTPAuthorizationCredentials(scheme=kind, credentials=word) if kind.lower() == "bearer" else None
        try:
            token = token_of(shown)
            await self._check(token)
            if self._large[token] >= self._limits.large_bodies:
                reason = f"{self._large[token]} large bodies are under way for this token"
                raise EAGAIN("gateway.bodies", reason, hint="send one after the other", retry_after_ms=1000)
        except AgentOSError as error:
            raise _Refusal(error, problems.status_of(error)) from None
        self._large[token] += 1
        return token

    def _most(self, scope: Scope) -> int:
        memory = scope["method"] == "PUT" and "/memory/" in scope["path"]
        return self._limits.memory_body if memory else self._limits.body

    def _too_large(self, most: int) -> _Refusal:
        return _Refusal(EMSGSIZE("body.size", f"the body may have {most} bytes", hint="send less at once"), 413)

    def _json(self, headers: Headers, data: bytearray) -> None:
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            reason = f"the body is said to be {kind or 'nothing in particular'}, and changes are JSON"
            raise _Refusal(EINVAL("content.type", reason, hint="send Content-Type: application/json"), 415)
        if too_deep(data, self._limits.depth):
            reason = f"the body is nested more than {self._limits.depth} deep"
            raise _Refusal(EINVAL("json.depth", reason, hint="send it flatter"), 400)


def too_deep(data: bytes | bytearray, most: int) -> bool:
    """Whether JSON is nested deeper than `most`, found without building any of it, and without a look at each byte
    here: bodies are large, and everybody waits meanwhile. Of what is no JSON, some that is not as deep is let pass."""
    if data.count(b"[") + data.count(b"{") <= most:
        return False
    unescaped = bytes(data).replace(rb"\\", b"").replace(rb"\"", b"")
    left = _TEXT.sub(b"", unescaped).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(most):  # each time the innermost pairs go
        left = left.replace(b"[]", b"")
    return b"[]" in left or left.count(b"[") > most


def _name_agent(scope: Scope) -> None:
    """`system%2Froot` is one name: what a program makes of an agent's id. In an address it is `system~root`."""
    found = _SLASHED.match(scope.get("raw_path") or b"")
    if found:
        scope["path"] = unquote((found[1] + b"~" + found[2]).decode("ascii"))


def _one_way(scope: Scope) -> None:
    """A slash written as %2f parts nothing, and would if somebody read it again. Only names of agents have one."""
    raw: bytes = scope.get("raw_path") or b""
    if b"%2f" in raw.lower() and not raw.startswith((b"/api/v1/agents/", b"/api/v1/budgets/")):
        reason = f"there is nothing at {scope['path']} written so"
        raise _Refusal(ENOENT("route.unknown", reason, hint="write a slash as /"), 404)


def _dress(scope: Scope, message: Message) -> None:
    headers = MutableHeaders(scope=message)
    for name, value in HEADERS.items():
        headers.setdefault(name, value)
    if not scope["path"].startswith("/assets/"):
        headers.setdefault("Cache-Control", "no-store")


async def _deny(scope: Scope, receive: Receive, send: Send, refusal: _Refusal) -> None:
    """A handshake answered as any other request would be, where the server can do that."""
    extensions: Any = scope.get("extensions") or {}
    if "websocket.http.response" not in extensions:
        await send({"type": "websocket.close", "code": 4003, "reason": refusal.error.reason[:100]})
        return
    answer = problems.response(refusal.error, scope["path"], refusal.status)
    await answer(scope, receive, send)
