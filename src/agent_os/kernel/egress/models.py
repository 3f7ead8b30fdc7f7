"""The door to models for programs that speak a provider's dialect themselves: `/v1/…` on the agent's own listener.

In: requests that `visit` has parsed. Out: what they ask, for the model gateway; its answers, byte for byte; refusals in
the shape that clients of these APIs show. A program's own credentials are the word `placeholder`, and are taken off; no
key is ever here. Whatever is not a known target of a dialect is refused; so is work that would go on after a kill.

The order of one request: target and headers → whole body → what it asks for (`models.dialects`) → gateway. While it
waits or is answered, the agent's side is watched: a program that goes away has cancelled.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from msgspec import Struct

from agent_os.abi.errors import (
    EAGAIN,
    ECANCELED,
    EHOSTUNREACH,
    EINVAL,
    EIO,
    EMSGSIZE,
    ENOENT,
    ENOSYS,
    EPIPE,
    ETIMEDOUT,
    ETYPE,
    AgentOSError,
)
from agent_os.kernel.authority.redaction import Needles, Redactor
from agent_os.kernel.egress.addresses import printable
from agent_os.kernel.egress.attempt import Attempt, Stop
from agent_os.kernel.egress.routes import BASE, CREDENTIALS, OWN, PLACEHOLDER, host_of
from agent_os.kernel.egress.visit import Doors, Near, end_to_end
from agent_os.kernel.egress.waiting import idle
from agent_os.kernel.models.dialects import MODELS, Wish, read
from agent_os.kernel.models.passage import DIALECTS, EMBEDDINGS, Dialect, Passage, Through
from agent_os.kernel.table import Agent
from agent_os.lazy import lazy

if TYPE_CHECKING:
    import h11
else:
    h11 = lazy("h11")

LARGEST_BODY = 32 << 20  # bytes: what the providers themselves take
_MOST_HELD = 64 << 20  # bytes of an agent's requests that are not answered yet
_LARGE = 256 << 10  # a body that is read in a thread
_TARGET = re.compile(r"(/v1(?:/[^?#]*)?|/api/[^?#]*)(\?[^#]*)?")
_AFTER_A_KILL = re.compile(
    r"/v1/(messages/batches|batches|files|uploads|fine_tuning|assistants|threads|vector_stores|containers|conversations"
    r"|responses/.+|videos|evals)(/.*)?"
)
_NOT_PASSED = CREDENTIALS | frozenset(
    b"accept-encoding expect content-length openai-organization openai-project forwarded".split()
)
# Other names for a key, and what would lead a request elsewhere than to where it was judged for.
_NEVER_PASSED = re.compile(
    rb".*(api-?key|authorization|secret|credential|cookie|target-url|custom-host|method-override).*"
    rb"|.*-(auth|token)|x-forwarded-.*|x-(original|rewrite)-url|x-http-method"
)
_QUERY = re.compile(r"(\?((beta|api-version)=[A-Za-z0-9._-]*(&|$))*)?")  # a key may stand in one, too
_NOT_BACK = frozenset(("content-length", "set-cookie", "alt-svc", "strict-transport-security"))
_LEAST_WAIT_S = 1
_STATUSES: tuple[tuple[type[AgentOSError], int], ...] = (
    (EINVAL, 400),
    (ETYPE, 400),
    (ENOENT, 404),
    (EMSGSIZE, 413),
    (ENOSYS, 501),
    (EIO, 502),
    (ETIMEDOUT, 504),
)  # every other error of the family is a refusal: 403


class Told(Struct, frozen=True):
    """What the plan of an agent says of its door."""

    dialects: tuple[Dialect, ...] = ()
    hosts: tuple[str, ...] = ()  # which no connection of its own may reach


UNTOLD = Told()


def environment(dialects: Collection[Dialect]) -> dict[str, str]:
    """What a program is told where it may call models: the addresses that clients read, and keys that are none."""
    root = BASE.removesuffix("/_api/")
    told: dict[str, str] = {}
    if "anthropic" in dialects:
        told |= {"ANTHROPIC_BASE_URL": root, "ANTHROPIC_API_KEY": PLACEHOLDER}
    if "openai" in dialects:
        told |= {"OPENAI_BASE_URL": f"{root}/v1", "OPENAI_API_BASE": f"{root}/v1", "OPENAI_API_KEY": PLACEHOLDER}
        told["OLLAMA_HOST"] = root
    return told


class ModelDoor:
    """One agent's. What is not for models goes to the doors of its secrets, if it has some."""

    def __init__(
        self,
        agent: Agent,
        gateway: Through,
        needles: Callable[[], Needles],
        others: Doors | None = None,
        before: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`before` is awaited with the size of every request: it waits, or refuses."""
        self._agent, self._gateway, self._needles, self._others = agent, gateway, needles, others
        self._before = before
        self._held = 0  # bytes of requests that are not answered yet

    def inspect(self, attempt: Attempt, request: h11.Request) -> None:
        if self._others:
            self._others.inspect(attempt, request)

    def guard(self, attempt: Attempt) -> Callable[[bytes], None]:
        return self._others.guard(attempt) if self._others else _anything

    async def serve(self, attempt: Attempt, request: h11.Request, near: Near) -> None:
        target = _TARGET.fullmatch(request.target.decode("ascii"))
        if target is None:
            if self._others is None:
                raise Stop("net.door", f"there is no door {printable(request.target.decode('ascii'))} here")
            return await self._others.serve(attempt, request, near)
        attempt.protocol = "route"  # refusals are told as these APIs do
        _require_own_host(request)
        if target[1] == MODELS or target[1].startswith(f"{MODELS}/"):
            return await self._list(attempt, request, near, target[1])
        _require_target(request, target[1], target[2] or "")
        body = await self._body(attempt, request, near)
        try:
            if self._before:
                await self._before(len(body))
            wish = read(target[1], body) if len(body) < _LARGE else await asyncio.to_thread(read, target[1], body)
            await self._pass(near, self._passage(wish, request, target[2] or ""))
        except AgentOSError as error:
            raise _stop(error) from None
        finally:
            self._held -= len(body)
        attempt.told()

    # The request.

    async def _body(self, attempt: Attempt, request: h11.Request, near: Near) -> bytes:
        look = self.guard(attempt)
        look(b"\n".join((request.target, *(part for pair in request.headers for part in pair), b"")))
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in request.headers):
            raise Stop("net.malformed", "the body is compressed, and nobody could tell what it asks for", status=415)
        if any(name == b"expect" for name, _ in request.headers):
            await near.tell(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        try:
            async with idle(near.limits.idle_seconds) as touch:
                while isinstance(event := await near.event(), h11.Data):
                    touch()
                    look(bytes(event.data))
                    body += event.data
                    self._held += len(event.data)
                    self._require_room(len(body))
            if not isinstance(event, h11.EndOfMessage):
                raise Stop("net.broken", "the client closed in the middle of its request")
        except BaseException:
            self._held -= len(body)
            raise
        attempt.count(up=len(body))
        return bytes(body)

    def _require_room(self, size: int) -> None:
        if size > LARGEST_BODY:
            raise Stop("net.malformed", f"a request to a model may have {LARGEST_BODY} bytes", status=413)
        if self._held > _MOST_HELD:
            reason = f"{_MOST_HELD} bytes of your requests wait for answers, which is as many as may"
            raise Stop("net.busy", reason, status=429, retry_after_s=_LEAST_WAIT_S)

    def _passage(self, wish: Wish, request: h11.Request, query: str) -> Passage:
        return Passage(
            path=wish.path,
            model=self._gateway.named(self._agent, DIALECTS[wish.path], wish.model),
            body=wish.body,
            written=wish.written,
            headers=_passed_on(request),
            query=query,
            stream=wish.stream,
            max_output=wish.max_output,
            answers=wish.answers,
            action="embed" if wish.path == EMBEDDINGS else "call",
            server_tools=wish.server_tools,
            hide_usage=wish.hide_usage,
        )

    # The answer.

    async def _pass(self, near: Near, passage: Passage) -> None:
        sink = _Sink(near, self._needles())
        work = asyncio.ensure_future(self._gateway.pass_through(self._agent, passage, sink))
        gone = asyncio.ensure_future(near.gone())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Stop("net.broken", "the client went away")
            try:
                work.result()
            except AgentOSError as error:
                if sink.began:
                    raise Stop("net.broken", f"the answer broke off: {error.reason}") from None
                raise
            await sink.end()
        finally:
            await _ended(work, gone)

    async def _list(self, attempt: Attempt, request: h11.Request, near: Near, path: str) -> None:
        """Of what the agent may call; no provider is asked."""
        if request.method not in (b"GET", b"HEAD"):
            raise Stop("net.method", "models are listed with GET", status=405)
        while isinstance(await near.event(), h11.Data):
            pass
        dialect = _dialect(request)
        names = sorted({name for one in self._gateway.models(self._agent) if (name := self._name(dialect, one))})
        if path == MODELS:
            value: dict[str, Any] = _listed(dialect, names)
        elif (name := unquote(path.removeprefix(f"{MODELS}/"))) in names:
            value = _model(dialect, name)
        else:
            raise Stop("model", f"there is no model {printable(name)} here; there is {', '.join(names)}", status=404)
        await _tell_json(near, request, value)
        attempt.told()

    def _name(self, dialect: Dialect, full: str) -> str | None:
        """As a program of this dialect writes it. None: it cannot."""
        for name in (full.partition("/")[2], full):
            try:
                if self._gateway.named(self._agent, dialect, name) == full:
                    return name
            except AgentOSError:
                continue
        return None


class _Sink:
    """The agent's side, as the gateway sees it. No value of a secret passes, wherever a provider may quote one."""

    def __init__(self, near: Near, needles: Needles) -> None:
        self._near, self._needles = near, needles
        self._masked = Redactor(needles)
        self.began = False

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        if headers.get("content-encoding", "identity").lower() != "identity":
            raise EIO("garbled", "the provider compressed its answer although it was asked not to")
        pairs = end_to_end((name.lower().encode(), _octets(value)) for name, value in headers.items())
        kept = [(name, self._needles.mask(value)) for name, value in pairs if name.decode() not in _NOT_BACK]
        try:
            response = h11.Response(status_code=status, headers=kept)
        except h11.LocalProtocolError:
            raise EIO("garbled", "the provider's answer has a header that cannot be passed on") from None
        self.began = True
        await self._tell(response)

    async def chunk(self, data: bytes) -> None:
        if passed := self._masked.feed(data):
            await self._tell(h11.Data(data=passed))

    async def end(self) -> None:
        rest = self._masked.end()
        await self._tell(*([h11.Data(data=rest)] if rest else []), h11.EndOfMessage())

    async def _tell(self, *events: h11.Event) -> None:
        try:
            await self._near.tell(*events)
        except Stop as stop:
            raise EPIPE("client", stop.reason) from None


def _octets(value: str) -> bytes:
    """A header's value as it was: whoever read it took it for one of the two."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()


def _anything(data: bytes) -> None:
    pass


async def _ended(*work: asyncio.Future[None]) -> None:
    """However one waits for them, they are over when this returns; what they came to was told already."""
    for one in work:
        one.cancel()
    await asyncio.gather(*work, return_exceptions=True)


# ------------------------------------------------------------------------------------------------------- pure parts


def _require_own_host(request: h11.Request) -> None:
    for name, value in request.headers:
        if name == b"host" and host_of(value) not in OWN:
            reason = f"the Host header {printable(value.decode('latin-1'))} is not this door's"
            raise Stop("net.malformed", reason, status=400)


def _require_target(request: h11.Request, path: str, query: str) -> None:
    if _AFTER_A_KILL.fullmatch(path):
        reason = f"{printable(path)} is closed: work there goes on when the agent that began it has ended"
        raise Stop("net.door", reason, status=403)
    if path not in DIALECTS:
        known = ", ".join((*DIALECTS, MODELS))
        raise Stop("net.door", f"there is no {printable(path)} here; there is {known}")
    if request.method != b"POST":
        raise Stop("net.method", f"{path} takes POST", status=405)
    if not _QUERY.fullmatch(query):
        reason = f"of {printable(query)} only beta and api-version would be passed on: leave the rest out"
        raise Stop("net.malformed", reason, status=400)


def _dialect(request: h11.Request) -> Dialect:
    """Of a target that both have."""
    names = {name for name, _ in request.headers}
    return "anthropic" if names & {b"anthropic-version", b"x-api-key"} else "openai"


def _passed_on(request: h11.Request) -> dict[str, str]:
    pairs = [pair for pair in end_to_end(request.headers) if pair[0] not in _NOT_PASSED]
    pairs = [pair for pair in pairs if not _NEVER_PASSED.fullmatch(pair[0])]
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}


def _stop(error: AgentOSError) -> Stop:
    """As its client is told. What it would try again by itself, it is told to only where waiting helps."""
    flag = _flag(str(error.detail["missing"])) if "missing" in error.detail else None
    reason = f"{error.reason} ({error.hint})" if error.hint else error.reason
    wait = None if error.retry_after_ms is None else max(_LEAST_WAIT_S, -(-error.retry_after_ms // 1000))
    if isinstance(error, EAGAIN):
        status = 529 if error.code == "queue" else 429
        return Stop(error.code, reason, status=status, retry_after_s=wait or _LEAST_WAIT_S)
    if isinstance(error, EHOSTUNREACH):
        return Stop(error.code, reason, status=529 if wait else 502, retry_after_s=wait)
    if isinstance(error, ECANCELED | EPIPE):
        return Stop("net.broken", reason)
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 403)
    return Stop(error.code, reason, allow_flag=flag, status=status)


def _flag(missing: str) -> str:
    """What gives a capability to whoever is run."""
    plain = re.fullmatch(r"llm:([^:{}]+/[^:{}]+):(call|embed)", missing)
    return f"--model {plain[1]}" if plain else f"--cap '{missing}'"


def _listed(dialect: Dialect, names: list[str]) -> dict[str, Any]:
    data = [_model(dialect, name) for name in names]
    if dialect == "openai":
        return {"object": "list", "data": data}
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None}
    return {"data": data, "has_more": False, **ends}


def _model(dialect: Dialect, name: str) -> dict[str, Any]:
    if dialect == "openai":
        return {"id": name, "object": "model", "created": 0, "owned_by": "agent-os"}
    return {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}


async def _tell_json(near: Near, request: h11.Request, value: dict[str, Any]) -> None:
    body = json.dumps(value).encode()
    headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
    data = [] if request.method == b"HEAD" else [h11.Data(data=body)]
    await near.tell(h11.Response(status_code=200, headers=headers), *data, h11.EndOfMessage())
