"""Named base-URL routes: how an unmodified program uses an API whose key it never has.

A route is `http://127.0.0.1:3128/_api/NAME` on the agent's own listener. Whatever comes there is sent on, over TLS with
the certificate checked, to the one host that the route leads to; the agent's own credentials, which are the word
`placeholder`, are taken off and the secret is put on as its binding says. The answer goes back as it comes, with every
known value masked. In: requests that `visit` has parsed. Out: requests to bound hosts, and answers.

The order of one request: find the route → judge path, Host and headers → ask the binding → record the use → dial (which
checks and records the address) → TLS → ask the binding again and attach. Redirects are not followed: whoever does makes
a new request. A placeholder or a value that is on its way to anywhere else is refused, and `misused` is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast
from urllib.parse import parse_qsl, urlencode

from msgspec import Struct

from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.kernel.authority.bindings import require_name
from agent_os.kernel.authority.redaction import Needles, Redactor
from agent_os.kernel.authority.secrets import Given, Safe
from agent_os.kernel.egress.addresses import canonical_host, endpoint, printable
from agent_os.kernel.egress.asking import Body, Headers, plain_path, stopped
from agent_os.kernel.egress.attempt import Attempt, Leave, Stop
from agent_os.kernel.egress.visit import CHUNK, Near, end_to_end, framing
from agent_os.kernel.egress.waiting import idle, until_last
from agent_os.lazy import lazy

if TYPE_CHECKING:
    import h11
else:
    h11 = lazy("h11")

DOOR = "/_api/"
BASE = "http://127.0.0.1:3128" + DOOR
PLACEHOLDER = "placeholder"
LARGEST_BODY = 4 << 20  # bytes of a body into which a field has to be put

_TARGET = re.compile(rf"{DOOR}([^/?#]+)(/[^?#]*)?(\?[^#]*)?")
_NAMED = re.compile(rb"secret://([A-Za-z0-9_.-]+)")
OWN = frozenset(("127.0.0.1", "localhost"))
# Nobody's credentials but those of the binding: with a key of its own an agent could leave data with another account.
CREDENTIALS = frozenset(
    b"authorization x-api-key api-key x-goog-api-key x-auth-token x-access-token cookie cookie2".split()
)
_BASE_VARIABLES = {
    "api.openai.com": (("OPENAI_BASE_URL", "/v1"), ("OPENAI_API_BASE", "/v1")),
    "api.anthropic.com": (("ANTHROPIC_BASE_URL", ""),),
}
_KEY_VARIABLES = {"api.openai.com": "OPENAI_API_KEY", "api.anthropic.com": "ANTHROPIC_API_KEY"}
log = logging.getLogger("agent_os.routes")


class Route(Struct, frozen=True):
    """`_api/NAME` leads to one host, and brings one secret: the one of the same name."""

    name: str
    host: str
    port: int

    @property
    def url(self) -> str:
        return BASE + self.name


class Use(Struct, frozen=True):
    """A secret is about to be sent."""

    agent: str
    secret: str
    version: int
    host: str
    port: int
    method: str
    path: str = "/"  # decoded, without its query
    written: str = ""  # path and query as they were sent
    headers: Headers = ()
    body: Body | None = None

    def __repr__(self) -> str:
        return f"Use({self.agent!r}, {self.secret!r}, {self.method} {self.host}:{self.port}{self.path})"


class Misuse(Struct, frozen=True):
    """Something that stands for a secret, or is one, was on its way to where no binding has it."""

    agent: str
    secret: str  # its name; empty if what was seen does not tell
    what: Literal["placeholder", "value"]
    where: str


def routes_of(words: Iterable[str], safe: Safe, agent: str) -> tuple[Route, ...]:
    """`NAME`, or `NAME=HOST` where it is bound to several. Refused now rather than at the first request."""
    routes: dict[str, Route] = {}
    for word in words:
        name, given, host = word.partition("=")
        require_name(name)
        if name in routes:
            raise EINVAL("secret.twice", f"--secret {name} is there twice", hint="one route leads to one host")
        targets = [each for one in safe.bindings_of(name) for each in one.hosts]
        exact = [each for each in targets if not each.below and (not given or host in (each.host, str(each)))]
        if targets and len(exact) != 1:
            bound = ", ".join(map(str, targets))
            reason = f"--secret {word}: {name} is bound to {bound}; a route leads to one of them"
            raise EINVAL("secret.host", reason, hint=f"--secret {name}=HOST")
        chosen = exact[0] if exact else None
        safe.binding(name, agent, chosen.host if chosen else host or "HOST", chosen.port if chosen else 443)
        if chosen:
            routes[name] = Route(name, chosen.host, chosen.port)
    return tuple(routes.values())


def environment(routes: Iterable[Route]) -> dict[str, str]:
    """What a program is told: for known APIs by the variables that their clients read, for every route by its name."""
    told: dict[str, str] = {}
    for route in routes:
        told["AGENT_OS_ROUTE_" + re.sub(r"[^A-Z0-9]", "_", route.name.upper())] = route.url
        for variable, path in _BASE_VARIABLES.get(route.host, ()):
            told[variable] = route.url + path
        if key := _KEY_VARIABLES.get(route.host):
            told[key] = PLACEHOLDER
    return told


class Routes:
    """One agent's. `used` is awaited before anything is dialled, and refuses by raising an error of the family: it is
    where the use is recorded, and where a gate stands. What `misused` begins is over before the agent is answered."""

    def __init__(
        self,
        agent: str,
        routes: Sequence[Route],
        safe: Safe,
        *,
        used: Callable[[Use], Awaitable[Leave | None]],
        misused: Callable[[Misuse], asyncio.Future[None] | None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._agent = agent
        self._routes = {route.name: route for route in routes}
        self._safe = safe
        self._used, self._misused = used, misused
        self._tls = tls

    async def serve(self, attempt: Attempt, request: h11.Request, near: Near) -> None:
        attempt.protocol = "route"
        route, path = self._find(request)
        attempt.host, attempt.port = route.host, route.port
        needles = self._needles()
        self._judge(attempt, request, route, needles)
        attempt.leave = await self._permitted(route, self._given(route, request), request, path, near)
        link = await self._connect(attempt, route, near)
        try:
            async with idle(near.limits.route_seconds) as link.touch:
                await self._exchange(link, request, path, route)
        except Stop:
            raise
        except Exception as error:  # ours, and it may quote what it could not send
            raise Stop("net.internal", needles.mask_text(f"{type(error).__name__}: {error}")) from None
        finally:
            link.writer.transport.abort()  # the answer is complete, or nobody wants the rest

    # ------------------------------------------------------------------------------------------------ judging

    def _find(self, request: h11.Request) -> tuple[Route, str]:
        target = request.target.decode("ascii")
        match = _TARGET.fullmatch(target)
        if match is None or match[1] not in self._routes:
            known = ", ".join(DOOR + name for name in self._routes) or "none for this agent"
            raise Stop("net.door", f"there is no door {printable(target)} here; doors: {known}")
        path = match[2] or "/"
        plain_path(path)
        return self._routes[match[1]], path + (match[3] or "")

    def _judge(self, attempt: Attempt, request: h11.Request, route: Route, needles: Needles) -> None:
        for name, value in request.headers:
            if name == b"host" and host_of(value) not in OWN:
                reason = f"the Host header {printable(value.decode('latin-1'))} is not this door's"
                raise Stop("net.malformed", reason, status=400)
        for name in _named(request):
            if name != route.name:
                self._refuse(attempt, name, "placeholder")
        self._refuse_values(attempt, request, needles)

    def _given(self, route: Route, request: h11.Request) -> Given:
        """The value, if the binding has it for this very request."""
        try:
            return self._safe.use(route.name, self._agent, route.host, route.port, request.method.decode())
        except AgentOSError as error:
            raise Stop(error.code, error.reason) from None

    async def _permitted(self, route: Route, given: Given, request: h11.Request, path: str, near: Near) -> Leave | None:
        """On record, and with whatever else `used` asks before."""
        method, plain = request.method.decode(), plain_path(path)
        body = partial(near.whole, request) if framing(request.headers) else None
        where = (route.host, route.port, method, plain, path, list(request.headers))
        use = Use(self._agent, given.name, given.version, *where, body)
        try:
            return await self._used(use)
        except AgentOSError as error:
            raise stopped(error) from None

    def _needles(self) -> Needles:
        try:
            return self._safe.needles()
        except AgentOSError as error:
            if self._routes:
                raise Stop(error.code, "the kernel cannot open its secrets") from None
            # An agent without routes was never near a value: it is a wire across an empty room that is missing.
            log.warning("secrets are not looked for in what %s sends: %s", self._agent, error)
            return Needles(())

    def inspect(self, attempt: Attempt, request: h11.Request) -> None:
        for name in _named(request):
            self._refuse(attempt, name, "placeholder")
        if self._routes and any(_is_placeholder(name, value) for name, value in request.headers):
            self._refuse(attempt, next(iter(self._routes)) if len(self._routes) == 1 else "", "placeholder")
        self._refuse_values(attempt, request, self._needles())

    def guard(self, attempt: Attempt) -> Callable[[bytes], None]:
        """Looks at what is sent, and stops it; it holds nothing back, since a client may wait for an answer to it."""
        needles = self._needles()
        seen = Redactor(needles)

        def look(data: bytes) -> None:
            if needles:
                seen.feed(data)
                if seen.found:
                    self._refuse(attempt, "", "value")

        return look

    def _refuse_values(self, attempt: Attempt, request: h11.Request, needles: Needles) -> None:
        head = b"\n".join((request.target, *(part for pair in request.headers for part in pair)))
        if needles.within(head):
            self._refuse(attempt, "", "value")

    def _refuse(self, attempt: Attempt, secret: str, what: Literal["placeholder", "value"]) -> None:
        where = endpoint(attempt.host, attempt.port or None)
        attempt.verdict = "deny"
        held = self._misused(Misuse(self._agent, secret, what, where))
        whose = f" of {secret}" if secret else ""
        reason = f"the {what}{whose} does not belong in a request to {where}"
        raise Stop("secret.misuse", f"{reason}; the agent is held until an operator decides", after=held)

    # ------------------------------------------------------------------------------------------------ sending

    async def _connect(self, attempt: Attempt, route: Route, near: Near) -> _Link:
        remote = await near.dial(attempt, canonical_host(route.host), route.port)
        where = endpoint(route.host, route.port)
        try:
            reader, writer = await asyncio.open_connection(
                sock=remote,
                ssl=self._tls or default_tls(),
                server_hostname=route.host,
                ssl_handshake_timeout=near.limits.dial_seconds,
                limit=CHUNK,
            )
        except ssl.SSLCertVerificationError as error:
            reason = f"the certificate of {where} is not to be trusted: {error.verify_message}"
            raise Stop("net.tls", reason, status=502) from None
        except OSError as error:  # ssl.SSLError and TimeoutError are some
            remote.close()
            reason = f"{where} speaks no TLS with us: {error.strerror or error or 'it was silent'}"
            raise Stop("net.tls", reason, status=502) from None
        except BaseException:
            remote.close()
            raise
        return _Link(attempt, near, reader, writer)

    async def _exchange(self, link: _Link, request: h11.Request, path: str, route: Route) -> None:
        upstream = h11.Connection(h11.CLIENT, max_incomplete_event_size=2 * link.near.limits.header_bytes)
        field = self._given(route, request).binding.place == "field"
        body = await self._whole_body(link, request) if field else None
        given = self._given(route, request)  # nothing is awaited from here until the value is written
        needles = self._safe.needles()
        onward = _onward(request, endpoint(route.host, None if route.port == 443 else route.port), given)
        if body is None:
            head = upstream.send(h11.Request(method=request.method, target=path, headers=onward)) or b""
            link.send(head)
            if framing(request.headers):
                body_sent, answered = self._send_body(link, upstream), _send_reply(link, upstream, needles)
                return await until_last(body_sent, answered)
            await self._send_body(link, upstream)
        else:
            body = _with_field(request, body, given)
            onward += [(b"content-length", b"%d" % len(body))]
            events = h11.Request(method=request.method, target=path, headers=onward), h11.Data(data=body)
            link.send(b"".join(upstream.send(event) or b"" for event in (*events, h11.EndOfMessage())))
        await _send_reply(link, upstream, needles)

    async def _send_body(self, link: _Link, upstream: h11.Connection) -> None:
        """The body as it comes in. Returns early if the server stops reading: its answer, or none, tells."""
        look = self.guard(link.attempt)
        while True:
            event = await link.near.event()
            if isinstance(event, h11.EndOfMessage):
                event = h11.EndOfMessage()  # trailers are hop-by-hop here
            elif isinstance(event, h11.Data):
                look(bytes(event.data))
            else:
                raise Stop("net.broken", "the client closed in the middle of its request")
            data = upstream.send(event) or b""
            if data:
                link.send(data)
                try:
                    await link.writer.drain()
                except OSError:
                    return
            if isinstance(event, h11.EndOfMessage):
                return

    async def _whole_body(self, link: _Link, request: h11.Request) -> bytes:
        look, body = self.guard(link.attempt), bytearray()
        if any(name == b"expect" for name, _ in request.headers):
            await link.near.tell(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(event := await link.near.event(), h11.Data):
            look(bytes(event.data))
            body += event.data
            if len(body) > LARGEST_BODY:
                reason = f"a body into which a secret has to be put may have {LARGEST_BODY} bytes"
                raise Stop("net.malformed", reason, status=413)
        if not isinstance(event, h11.EndOfMessage):
            raise Stop("net.broken", "the client closed in the middle of its request")
        return bytes(body)


class _Link(Struct):
    """Both sides of one request, once the server is there."""

    attempt: Attempt
    near: Near
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    touch: Callable[[], None] = lambda: None

    def send(self, data: bytes) -> None:
        self.attempt.count(up=len(data))
        self.writer.write(data)
        self.touch()

    async def receive(self) -> bytes:
        data = await self.reader.read(CHUNK)
        self.attempt.count(down=len(data))
        self.touch()
        return data


async def _send_reply(link: _Link, upstream: h11.Connection, needles: Needles) -> None:
    """The answer as it comes, without any value. Nothing of it waits for more but what may be the beginning of one."""
    masked = Redactor(needles)
    while True:
        try:
            event = upstream.next_event()
            if event is h11.NEED_DATA:
                upstream.receive_data(await link.receive())
                continue
        except (h11.RemoteProtocolError, OSError) as error:  # which may quote the server
            raise Stop("net.broken", needles.mask_text(f"the server's answer is broken: {error}")) from None
        if isinstance(event, h11.Data):
            if data := masked.feed(bytes(event.data)):
                await link.near.tell(h11.Data(data=data))
        elif isinstance(event, h11.EndOfMessage):
            rest = masked.end()
            return await link.near.tell(*([h11.Data(data=rest)] if rest else []), h11.EndOfMessage())
        elif isinstance(event, h11.Response | h11.InformationalResponse):
            await link.near.tell(_reply(event, needles))
        else:
            raise Stop("net.broken", "the server closed without an answer")
        await asyncio.sleep(0)  # one read can hold thousands of tiny chunks


# ------------------------------------------------------------------------------------------------------- pure parts


@functools.cache  # reading all authorities takes longer than a request
def default_tls() -> ssl.SSLContext:
    """The trust of the kernel's own process: the system's, or what its SSL_CERT_FILE and SSL_CERT_DIR name."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def host_of(header: bytes) -> str:
    return header.decode("latin-1").lower().rpartition(":")[0] or header.decode("latin-1").lower()


def _named(request: h11.Request) -> list[str]:
    """The secrets that a request's head names by `secret://`."""
    words = (request.target, *(value for _, value in request.headers))
    return [name.decode() for word in words for name in _NAMED.findall(word)]


def _is_placeholder(name: bytes, value: bytes) -> bool:
    """The bare word as somebody's key; anywhere else it is a word."""
    words = value.decode("latin-1").split()
    return name in CREDENTIALS and bool(words) and words[-1] == PLACEHOLDER


def _onward(request: h11.Request, host: str, given: Given) -> list[tuple[bytes, bytes]]:
    """The headers that the server gets. A compressed answer could not be searched, so none is asked for."""
    header = given.binding.place == "header"
    own = {b"accept-encoding", given.binding.key.encode() if header else b"expect"}
    kept = [pair for pair in end_to_end(request.headers) if pair[0] not in CREDENTIALS | own]
    attached = [(given.binding.key.encode(), given.filled)] if header else []
    lengths = framing(request.headers) if header else []
    plain = [(b"accept-encoding", b"identity"), (b"connection", b"close")]
    return [(b"host", host.encode("ascii")), *kept, *lengths, *plain, *attached]


def _with_field(request: h11.Request, body: bytes, given: Given) -> bytes:
    """The body with the field set, whatever the agent had in it."""
    kind = next((value for name, value in request.headers if name == b"content-type"), b"").split(b";")[0].strip()
    text = given.filled.decode()
    try:
        if kind == b"application/x-www-form-urlencoded":
            pairs = [pair for pair in parse_qsl(body.decode(), True, True) if pair[0] != given.binding.key]
            return urlencode([*pairs, (given.binding.key, text)]).encode()
        fields: Any = json.loads(body)
    except ValueError:
        raise Stop("net.malformed", "the body is not what its content type says", status=400) from None
    if kind != b"application/json" or not isinstance(fields, dict):
        reason = f"the field {given.binding.key} needs a JSON object or a form as body"
        raise Stop("net.malformed", reason, status=415)
    return json.dumps({**cast("Mapping[str, Any]", fields), given.binding.key: text}).encode()


def _reply(event: h11.Response | h11.InformationalResponse, needles: Needles) -> h11.Event:
    """The answer's head as the agent shall see it."""
    pairs = [(name, value) for name, value in end_to_end(event.headers) if name != b"set-cookie"]
    if any(name == b"content-encoding" and value.strip().lower() != b"identity" for name, value in pairs):
        reason = "the server compressed its answer although it was asked not to, so nobody can tell what is in it"
        raise Stop("net.broken", reason)
    headers = [(needles.mask(name), needles.mask(value)) for name, value in pairs]
    reason = needles.mask(event.reason)
    with contextlib.suppress(h11.LocalProtocolError):
        if isinstance(event, h11.InformationalResponse):
            return h11.InformationalResponse(status_code=event.status_code, headers=headers, reason=reason)
        return h11.Response(status_code=event.status_code, headers=headers + framing(event.headers), reason=reason)
    raise Stop("net.broken", "the server's answer has a header that cannot be passed on")
