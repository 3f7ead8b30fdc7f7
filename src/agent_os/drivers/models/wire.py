"""HTTP to one model provider: requests out, answers in as they arrive.

In: a path below the end point's base URL, headers, a body, and a `Cancel`. Out: an `Answer` with status, headers and
bytes exactly as they came. Serves native calls and the door for unmodified programs alike.

It is the bare transport of httpx2: no cookie is kept, no redirect followed, no variable of the environment read and
nothing decompressed. The package is loaded at the first call and in a thread, because that takes as long as many calls.
"""

import asyncio
import functools
import ipaddress
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from msgspec import Struct, field

from agent_os.abi.errors import EINVAL, EIO
from agent_os.drivers.models import Cancel, ModelFault
from agent_os.drivers.models.faults import lost

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

LARGEST_ERROR = 64 << 10  # bytes read of an answer that is no reply
_KEPT_OPEN = 512  # connections without a call
_KEPT_S = 30.0  # for as long
_SPARE_S = 0.02  # for the end of a body whose last event was read, so that the connection can be used again
_MASK = b"[key]"
_KEY = re.compile(r"[\x21-\x7e]+")


class Endpoint(Struct, frozen=True):
    """Where a provider is, as the operator says."""

    base: str  # https://api.example.com/v1
    headers: Mapping[str, str] = field(default_factory=dict[str, str])  # of every request, such as an organisation
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])  # fields of every request's body
    local: bool | None = None  # None: by its address
    proxy: str | None = None
    trust: ssl.SSLContext | None = None  # None: what this system trusts
    connect_s: float = 10.0
    idle_s: float = 300.0  # without a byte; local models think long before their first
    longest_s: float = 3600.0  # of one stream

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.base)
            sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:
            sound, parts = False, urlsplit("")
        if not sound or parts.username is not None or parts.query or parts.fragment or not _KEY.fullmatch(self.base):
            raise EINVAL("base_url", "a base URL is http:// or https://, a host, and perhaps a port and a path", got="")

    @property
    def host(self) -> str:
        return urlsplit(self.base).hostname or ""

    @property
    def is_local(self) -> bool:
        if self.local is not None:
            return self.local
        return _is_loopback(self.host)


class Cancelled(Exception):
    """By a `Cancel`, not as a task."""


class Watch:
    """Lets a `Cancel` interrupt the one thing that is being waited for, and nothing else of the waiting task."""

    def __init__(self, cancel: Cancel | None) -> None:
        self._cancel = cancel or Cancel()
        self._task: asyncio.Task[Any] | None = None
        self._struck = False
        self._cancel.listen(self._strike)

    def close(self) -> None:
        self._cancel.forget(self._strike)

    def _strike(self) -> None:
        if self._task is not None:
            self._struck = True
            self._task.cancel()

    async def wait(self, what: Awaitable[T]) -> T:
        """Cancelled: `what` was interrupted where it stood, and whatever it held is closed."""
        task = asyncio.current_task()
        assert task is not None
        if self._cancel.done:
            await _dropped(what)
            raise Cancelled
        before = task.cancelling()
        self._task = task
        try:
            return await what
        except BaseException:
            # As asyncio.timeout does: it was us, and nobody else wants the task to end.
            if self._struck and task.uncancel() <= before:
                raise Cancelled from None
            raise
        finally:
            self._task = None


async def _dropped(what: Awaitable[Any]) -> None:
    if asyncio.iscoroutine(what):
        what.close()


class Answer:
    """What a provider answered. The body is read once, by `chunk` or by `body`; `close` is always safe."""

    def __init__(self, response: "httpx2.Response", key: str | None, release: Callable[[], Awaitable[None]]) -> None:
        self._response = response
        self._release: Callable[[], Awaitable[None]] | None = release
        self._key = key
        self.status = response.status_code
        self.headers: dict[str, str] = {}
        for name, value in response.headers.multi_items():
            held = self.headers.get(name.lower())
            self.headers[name.lower()] = value if held is None else f"{held}, {value}"
        stream: Any = response.stream
        self._chunks: AsyncGenerator[bytes, None] = aiter(stream)

    async def chunk(self) -> bytes | None:
        """The next bytes as they came. None: that was all."""
        try:
            return await anext(self._chunks, None)
        except _transport_errors() as error:
            raise lost(_why(error), sent=True) from error

    async def body(self, limit: int = LARGEST_ERROR) -> bytes:
        """Up to `limit` of it, with the key masked: what is quoted to people and kept in records."""
        pieces, size = list[bytes](), 0
        while size < limit and (chunk := await self.chunk()) is not None:
            pieces.append(chunk)
            size += len(chunk)
        return self.masked(b"".join(pieces)[:limit])

    def masked(self, data: bytes) -> bytes:
        return data.replace(self._key.encode(), _MASK) if self._key else data

    async def spend(self) -> None:
        """Read the little that follows the last event, then close."""
        try:
            async with asyncio.timeout(_SPARE_S):
                while await self.chunk() is not None:
                    pass
        except (TimeoutError, ModelFault):
            pass
        await self.close()

    async def close(self) -> None:
        if (release := self._release) is None:
            return
        self._release = None
        try:
            await self._chunks.aclose()
            await self._response.aclose()
        except _transport_errors():
            pass  # it is as closed as it will be
        finally:
            await release()


class Wire:
    """A transport of httpx2 for each call that is under way, used again for later ones: its own pool looks at every
    connection for every request, which at 500 calls costs more than all the rest."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._idle: list[tuple[float, httpx2.AsyncHTTPTransport]] = []  # since when; the newest is used first
        self._trust = endpoint.trust
        self._closed = False

    async def send(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        content: bytes = b"",
        *,
        key: str | None = None,
        idle_s: float | None = None,
    ) -> Answer:
        """ModelFault: there is no answer. `key` is only masked here; it travels in `headers`."""
        if self._trust is None:
            self._trust = await asyncio.to_thread(_loaded, self.endpoint.base)
        import httpx2

        at = self.endpoint
        idle = at.idle_s if idle_s is None else idle_s
        request = httpx2.Request(
            method,
            _url(at.base.rstrip("/") + path),
            headers={"user-agent": "agent-os", "accept-encoding": "identity", **at.headers, **headers},
            content=content,
            extensions={"timeout": {"connect": at.connect_s, "read": idle, "write": at.connect_s * 3, "pool": None}},
        )
        transport = self._idle.pop()[1] if self._idle else self._opened(self._trust)
        try:
            return Answer(await transport.handle_async_request(request), key, partial(self._kept, transport))
        except BaseException as error:
            await self._kept(transport)
            if isinstance(error, _transport_errors()):
                raise lost(_why(error), sent=not isinstance(error, _unsent_errors())) from error
            raise

    def _opened(self, trust: ssl.SSLContext) -> "httpx2.AsyncHTTPTransport":
        import httpx2

        one = httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEPT_S)
        return httpx2.AsyncHTTPTransport(verify=trust, trust_env=False, proxy=self.endpoint.proxy, limits=one)

    async def _kept(self, transport: "httpx2.AsyncHTTPTransport") -> None:
        now = asyncio.get_running_loop().time()
        if self._closed or len(self._idle) >= _KEPT_OPEN:
            await transport.aclose()
        else:
            self._idle.append((now, transport))
        while self._idle and self._idle[0][0] < now - _KEPT_S:
            await self._idle.pop(0)[1].aclose()

    async def close(self) -> None:
        """Calls that are under way end when their answers are closed."""
        self._closed = True
        while self._idle:
            await self._idle.pop()[1].aclose()


def _loaded(base: str) -> ssl.SSLContext:
    """What this system trusts, which takes long to read; nothing where nothing is encrypted. In a thread: so does the
    package."""
    import httpx2

    return httpx2.create_ssl_context(verify=True, trust_env=False) if base.startswith("https://") else _nothing()


def _nothing() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@functools.cache
def _is_loopback(host: str) -> bool:
    """Asked several times for every call."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@functools.lru_cache(maxsize=64)  # an end point has few paths; a guest's queries could be many
def _url(text: str) -> "httpx2.URL":
    import httpx2

    return httpx2.URL(text)


def bearer(key: str) -> str:
    """A key as a header may carry it."""
    if not _KEY.fullmatch(key):
        hint = "set it again without line ends and spaces: agentctl secrets set NAME"
        raise ModelFault(EIO("auth", "the key has characters that no header can carry", hint=hint), sent=False)
    return key


@functools.cache
def _transport_errors() -> tuple[type[Exception], ...]:
    import httpx2

    return (httpx2.TransportError, httpx2.InvalidURL, OSError)


@functools.cache
def _unsent_errors() -> tuple[type[Exception], ...]:
    import httpx2

    return (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


def _why(error: Exception) -> str:
    """A sentence without headers, keys or URLs."""
    kind = type(error).__name__
    words = {
        "ConnectError": "no connection",
        "ConnectTimeout": "no connection in time",
        "ReadTimeout": "it went silent",
        "WriteTimeout": "it stopped taking the request",
        "ReadError": "the connection was lost",
        "WriteError": "the connection was lost",
        "RemoteProtocolError": "the connection was lost, or it does not speak HTTP",
    }
    cause = f" ({error})" if kind == "ConnectError" and "certificate" in str(error).lower() else ""
    return words.get(kind, kind) + cause
