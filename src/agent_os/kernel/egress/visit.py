"""One connection that an agent makes to its proxy: requests one after the other, or one tunnel (CONNECT or SOCKS5).

Owns what is read from and written to the agent and its server: strict parsing (h11, `socks`), header rewriting, the
check of a tunnel's first bytes, back-pressure, half-close and the clocks. In: an accepted socket, and `open`, which
decides and dials. Out: bytes both ways. Never decides which host is allowed and never resolves or dials by itself.

The sockets are driven with loop.sock_*: one chunk per direction is read only after the last one was written, so nothing
piles up, and an idle connection holds no buffer. These calls do not yield while a socket is ready, hence `_give_way`:
without it one busy connection would hold the loop.
"""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

import h11

from agent_os.abi.errors import EINVAL
from agent_os.kernel.egress.addresses import Address, canonical_host, endpoint, parse_port, printable
from agent_os.kernel.egress.attempt import Attempt, Limits, Stop, explain
from agent_os.kernel.egress.hello import TLS_HANDSHAKE, ClientHello
from agent_os.kernel.egress.socks import SOCKS4, SOCKS5, Handshake

CHUNK = 128 * 1024  # what one direction of one connection holds in memory at most
LINGER_SECONDS = 2.0

Opener = Callable[[Attempt, str | Address, int], Awaitable[socket.socket]]


@dataclass(frozen=True, slots=True)
class _Link:
    """The way to the server of one request."""

    attempt: Attempt
    remote: socket.socket
    touch: Callable[[], None]  # called whenever something moved


class Visit:
    def __init__(self, sock: socket.socket, limits: Limits, begin: Callable[[], Attempt], open_: Opener) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._limits = limits
        self._begin = begin
        self._open = open_
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.header_bytes)
        self._method = b""
        self._socks: Handshake | None = None
        self._owed = 0  # see `_give_way`

    async def run(self) -> None:
        with self._sock:
            self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            first = await self._first_bytes(self._limits.header_seconds)
            if first[:1] in (SOCKS4, SOCKS5):
                attempt = self._begin()
                await self._recorded(attempt, self._serve_socks(attempt, first))
            elif first:
                self._http.receive_data(first)
                while await self._turn():
                    self._http.start_next_cycle()
            with contextlib.suppress(OSError):  # the client is gone, or stays (TimeoutError): either way we are done
                async with asyncio.timeout(LINGER_SECONDS):
                    await self._linger()

    async def run_through(self, host: Address, port: int) -> None:
        """A connection to a listener that stands for one granted endpoint: no proxy protocol, only bytes."""
        with self._sock:
            attempt = self._begin()
            attempt.protocol, attempt.host, attempt.port = "forward", str(host), port
            await self._recorded(attempt, self._through(attempt, host, port))

    async def _turn(self) -> bool:
        """One request, from its first byte to its last record. True if the client may send another."""
        if not await self._has_begun():
            return False
        attempt = self._begin()
        await self._recorded(attempt, self._serve(attempt))
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def _serve(self, attempt: Attempt) -> None:
        request = await self._read_request()
        if request.method == b"CONNECT":
            await self._tunnel(attempt, request)
        else:
            await self._forward(attempt, request)

    async def _recorded(self, attempt: Attempt, work: Coroutine[Any, Any, None]) -> None:
        """However the work ends, the attempt gets its last record."""
        try:
            await work
            attempt.end("net.allow", "ended")
        except Stop as stop:
            await self._stop(attempt, stop)
        except asyncio.CancelledError:
            attempt.end("net.closed", "the agent's network was closed")
            raise
        except Exception as error:  # whatever an agent or a server sends, the proxy goes on; the record shows our bug
            await self._stop(attempt, Stop("net.internal", f"{type(error).__name__}: {error}"))

    # ------------------------------------------------------------------------------------------------- the request

    async def _has_begun(self) -> bool:
        """Wait for the first bytes of a request. False if none come: there is no request, so nothing to record."""
        if self._http.trailing_data[0]:
            return True
        data = await self._first_bytes(self._limits.idle_seconds)
        if data:
            self._http.receive_data(data)
        return bool(data)

    async def _first_bytes(self, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                return await self._loop.sock_recv(self._sock, CHUNK)
        except OSError:  # reset, or silent for too long (TimeoutError)
            return b""

    async def _read_request(self) -> h11.Request:
        try:
            async with asyncio.timeout(self._limits.header_seconds):
                event = await self._event()
        except TimeoutError:
            reason = f"the request header took longer than {self._limits.header_seconds:g} s"
            raise Stop("net.limit", reason, status=408) from None
        if not isinstance(event, h11.Request):
            raise Stop("net.malformed", "not an HTTP request", status=400)
        self._method = event.method
        _check_header(event, self._limits.header_bytes)
        return event

    async def _event(self) -> h11.Event | type[h11.PAUSED]:
        """The next event of the client; waits for its bytes, never holds more than one incomplete event."""
        while True:
            try:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event  # pyright: ignore[reportReturnType] (h11 types the two sentinels as one)
                self._http.receive_data(await self._loop.sock_recv(self._sock, CHUNK))
            except h11.RemoteProtocolError as error:
                reason = f"not a valid HTTP request: {error}"
                raise Stop("net.malformed", reason, status=error.error_status_hint) from error
            except OSError as error:
                raise Stop("net.broken", f"the client went away: {error.strerror}") from error

    async def _stop(self, attempt: Attempt, stop: Stop) -> None:
        """Write the last record, then tell the client, if an answer can still be sent."""
        if stop.code in ("net.sni", "net.malformed"):
            attempt.verdict = "deny"
        attempt.end(stop.code, stop.reason, stop.allow_flag)
        with contextlib.suppress(OSError):  # the client is gone or does not read (TimeoutError): nobody to tell
            async with asyncio.timeout(LINGER_SECONDS):
                if self._socks is not None:
                    await self._loop.sock_sendall(self._sock, self._socks.refuse(stop.code))
                elif attempt.protocol != "forward" and self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self._answer(endpoint(attempt.host, attempt.port or None), attempt.verdict, stop)

    async def _answer(self, target: str, verdict: str, stop: Stop) -> None:
        body = explain(target, stop)
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("X-AgentOS", "denied" if verdict == "deny" else "failed"),
            ("Connection", "close"),
        ]
        # Many clients show nothing but this phrase when a CONNECT fails.
        phrase = f"Agent OS: {stop.code}".encode()
        data = self._http.send(h11.Response(status_code=stop.status, headers=headers, reason=phrase)) or b""
        if self._method != b"HEAD":
            data += self._http.send(h11.Data(data=body)) or b""
        await self._loop.sock_sendall(self._sock, data)

    async def _linger(self) -> None:
        """Read on for a moment: closing with unread bytes sends a reset, which would eat the answer."""
        self._sock.shutdown(socket.SHUT_WR)
        for _ in range(64):
            if not await self._loop.sock_recv(self._sock, CHUNK):
                return
            await asyncio.sleep(0)

    async def _give_way(self, size: int) -> None:
        """Let the others have the loop after every large chunk and after every few small ones."""
        self._owed += 1 + size // 8192
        if self._owed > 16:
            self._owed = 0
            await asyncio.sleep(0)

    # ------------------------------------------------------------------------------------------- absolute-form HTTP

    async def _forward(self, attempt: Attempt, request: h11.Request) -> None:
        """One request on one upstream connection, rebuilt rather than copied, so both ends read the same framing."""
        target = request.target.decode("ascii")
        if target.startswith("/"):
            raise Stop("net.door", f"there is no door {printable(target)} here")
        authority, path = _absolute(target)
        host, port = _split(attempt, authority, default=80)
        remote = await self._open(attempt, host, port)
        upstream = h11.Connection(h11.CLIENT, max_incomplete_event_size=2 * self._limits.header_bytes)
        onward = h11.Request(method=request.method, target=path, headers=_onward(request, endpoint(host, port), port))
        with remote:
            async with _idle(self._limits.idle_seconds) as touch:
                link = _Link(attempt, remote, touch)
                head = upstream.send(onward) or b""
                if _framing(request.headers):
                    await _until_last(self._send_body(link, upstream, head), self._send_reply(link, upstream))
                else:  # most requests have no body: no need for two tasks
                    await self._send_body(link, upstream, head)
                    await self._send_reply(link, upstream)

    async def _send_up(self, link: _Link, data: bytes) -> None:
        if data:
            await self._loop.sock_sendall(link.remote, data)
            link.attempt.up += len(data)
            link.touch()
            await self._give_way(len(data))

    async def _receive_down(self, link: _Link) -> bytes:
        data = await self._loop.sock_recv(link.remote, CHUNK)
        link.attempt.down += len(data)
        link.touch()
        await self._give_way(len(data))
        return data

    async def _send_body(self, link: _Link, upstream: h11.Connection, head: bytes) -> None:
        """Send the head and then the body as it comes in. Returns early if the server stops reading."""
        data, event = head, None
        while True:
            try:
                await self._send_up(link, data)
            except OSError:
                return  # a server may answer and close early; the reply, or its absence, tells
            if isinstance(event, h11.EndOfMessage):
                return
            event = await self._event()
            if isinstance(event, h11.EndOfMessage):
                event = h11.EndOfMessage()  # trailers are hop-by-hop here
            elif not isinstance(event, h11.Data):
                raise Stop("net.broken", "the client closed in the middle of its request")
            data = upstream.send(event) or b""

    async def _send_reply(self, link: _Link, upstream: h11.Connection) -> None:
        ready: list[bytes] = []  # from one read of the server, sent in one piece
        while True:
            await self._give_way(0)  # one read can hold thousands of tiny chunks
            try:
                event = upstream.next_event()
                if event is h11.NEED_DATA:
                    await self._send_down(b"".join(ready))
                    ready.clear()
                    upstream.receive_data(await self._receive_down(link))
                    continue
            except (h11.RemoteProtocolError, OSError) as error:
                raise Stop("net.broken", f"the server's answer is broken: {error}") from error
            if isinstance(event, h11.InformationalResponse) and self._http.their_http_version == b"1.0":
                continue  # such a client knows none
            ready.append(self._http.send(_reply(event)) or b"")
            if isinstance(event, h11.EndOfMessage):
                return await self._send_down(b"".join(ready))

    async def _send_down(self, data: bytes) -> None:
        try:
            if data:
                await self._loop.sock_sendall(self._sock, data)
        except OSError as error:
            raise Stop("net.broken", f"the client went away: {error.strerror}") from error

    # ------------------------------------------------------------------------------------------------------ tunnels

    async def _tunnel(self, attempt: Attempt, request: h11.Request) -> None:
        attempt.protocol = "connect"
        if any(name in (b"content-length", b"transfer-encoding") for name, _ in request.headers):
            raise Stop("net.malformed", "a CONNECT request has no body", status=400)
        host, port = _split(attempt, request.target.decode("ascii"), default=None)
        with await self._open(attempt, host, port) as remote:
            await self._event()  # the end of the request; what follows belongs to the tunnel
            early = self._http.trailing_data[0]
            opened = self._http.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            await self._send_down(opened or b"")
            await self._both_ways(attempt, remote, self._first_words(early, host, port))

    async def _serve_socks(self, attempt: Attempt, first: bytes) -> None:
        attempt.protocol = "socks"
        self._socks = Handshake()
        try:
            async with asyncio.timeout(self._limits.header_seconds):
                await self._shake_hands(self._socks, first)
        except TimeoutError:
            reason = f"the SOCKS5 handshake took longer than {self._limits.header_seconds:g} s"
            raise Stop("net.limit", reason) from None
        host, port = _locate(attempt, self._socks.host, self._socks.port)
        with await self._open(attempt, host, port) as remote:
            await self._send_down(self._socks.accept())
            await self._both_ways(attempt, remote, self._first_words(self._socks.rest, host, port))

    async def _shake_hands(self, socks: Handshake, data: bytes) -> None:
        """Until the client has asked for a target. Holds little: a handshake has less than 600 bytes."""
        while True:
            await self._send_down(socks.feed(data))
            if socks.problem:
                raise Stop("net.malformed", socks.problem)
            if socks.asked:
                return
            try:
                data = await self._loop.sock_recv(self._sock, CHUNK)
            except OSError as error:
                raise Stop("net.broken", f"the client went away: {error.strerror}") from error
            if not data:
                raise Stop("net.malformed", "the client closed in the middle of its SOCKS5 handshake")

    async def _through(self, attempt: Attempt, host: Address, port: int) -> None:
        with await self._open(attempt, host, port) as remote:
            await self._both_ways(attempt, remote, self._loop.sock_recv(self._sock, CHUNK))

    async def _both_ways(self, attempt: Attempt, remote: socket.socket, first: Awaitable[bytes]) -> None:
        async with _idle(self._limits.idle_seconds) as touch:
            link = _Link(attempt, remote, touch)
            await _until_all(self._up(link, first), self._down(link))

    async def _up(self, link: _Link, first: Awaitable[bytes]) -> None:
        data = await first
        while data:
            await self._send_up(link, data)
            data = await self._loop.sock_recv(self._sock, CHUNK)
        _half_close(link.remote)

    async def _down(self, link: _Link) -> None:
        while data := await self._receive_down(link):
            await self._loop.sock_sendall(self._sock, data)
            link.touch()
        _half_close(self._sock)

    async def _first_words(self, early: bytes, host: str | Address, port: int) -> bytes:
        """The client's first bytes, once they are known to be what they should: nothing reaches the server before.

        On port 443 they must be TLS for this host. On another granted port a client may speak anything, or wait for
        the server to speak first; if it speaks TLS, the name must be right there, too.
        """
        strict = port == 443
        try:
            async with asyncio.timeout(self._limits.header_seconds if strict else None):
                data = early or await self._loop.sock_recv(self._sock, CHUNK)
            if not data or (data[0] != TLS_HANDSHAKE and not strict):
                return data
            if data[0] != TLS_HANDSHAKE:
                raise Stop("net.sni", "what the client speaks on port 443 is not TLS")
            async with asyncio.timeout(self._limits.header_seconds):
                return await self._read_hello(data, host)
        except TimeoutError:
            raise Stop("net.limit", f"no TLS ClientHello within {self._limits.header_seconds:g} s") from None

    async def _read_hello(self, data: bytes, host: str | Address) -> bytes:
        hello = ClientHello(str(host), name_required=isinstance(host, str))
        words = bytearray()
        while True:
            words += data
            if hello.feed(data):
                break
            if len(words) >= self._limits.header_bytes:
                raise Stop("net.sni", "the TLS ClientHello is too long")
            data = await self._loop.sock_recv(self._sock, CHUNK)
            if not data:
                raise Stop("net.sni", "the client closed in the middle of its TLS ClientHello")
        if hello.problem:
            with contextlib.suppress(OSError):  # the alert is a courtesy
                self._sock.send(hello.alert)
            raise Stop("net.sni", hello.problem)
        return bytes(words)


# --------------------------------------------------------------------------------------------------------- pure parts

_ABSOLUTE = re.compile(r"http://([^/?#]*)((?:[/?][^#]*)?)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::(.*))?", re.DOTALL)
_HOP_BY_HOP = frozenset(
    b"connection keep-alive te trailer upgrade host content-length transfer-encoding x-agentos".split()
)


def _check_header(request: h11.Request, limit: int) -> None:
    """h11 bounds an *incomplete* header only; one that arrives in one piece is measured here."""
    size = len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
    if size > limit:
        raise Stop("net.malformed", f"the request header is longer than {limit} bytes", status=431)
    names = {name for name, _ in request.headers}
    if b"content-length" in names and b"transfer-encoding" in names:
        raise Stop("net.malformed", "both Content-Length and Transfer-Encoding", status=400)


def _absolute(target: str) -> tuple[str, str]:
    """Authority and path of an absolute-form target."""
    match = _ABSOLUTE.fullmatch(target)
    if match is None:
        hint = "https goes through CONNECT" if target.lower().startswith("https:") else "expected http://host/path"
        raise Stop("net.malformed", f"{printable(target)} cannot be proxied: {hint}", status=400)
    path = match[2]
    return match[1], path if path.startswith("/") else "/" + path


def _split(attempt: Attempt, authority: str, default: int | None) -> tuple[str | Address, int]:
    """Canonical host and port of an authority; the attempt learns them, as far as they can be read."""
    attempt.host = printable(authority)
    match = _AUTHORITY.fullmatch(authority)
    try:
        if match is None:
            raise EINVAL("net.malformed", f"{printable(authority)!r} is not host:port")
        if match[2] is None and default is None:
            raise EINVAL("net.malformed", f"{printable(authority)!r} has no port")
        port = parse_port(match[2]) if match[2] is not None else default or 0
    except EINVAL as error:
        raise Stop("net.malformed", error.reason) from error
    return _locate(attempt, match[1], port)


def _locate(attempt: Attempt, text: str, port: int) -> tuple[str | Address, int]:
    attempt.host, attempt.port = printable(text), port
    try:
        host, port = canonical_host(text), parse_port(str(port))
    except EINVAL as error:
        raise Stop("net.malformed", error.reason) from error
    attempt.host = str(host)
    return host, port


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that are meant for the other end: no hop-by-hop, no Proxy-*, none that Connection names."""
    pairs = list(headers)
    named = {word.strip().lower() for name, value in pairs if name == b"connection" for word in value.split(b",")}
    return [
        (name, value)
        for name, value in pairs
        if name not in _HOP_BY_HOP and name not in named and not name.startswith(b"proxy-")
    ]


def _framing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Framing is kept whatever Connection names: dropping it would let one end see a body the other does not."""
    pairs = dict(headers)
    if b"transfer-encoding" in pairs:
        return [(b"transfer-encoding", b"chunked")]
    return [(b"content-length", pairs[b"content-length"])] if b"content-length" in pairs else []


def _onward(request: h11.Request, authority: str, port: int) -> list[tuple[bytes, bytes]]:
    host = authority.removesuffix(":80") if port == 80 else authority
    own = [(b"host", host.encode("ascii"))]
    return own + _end_to_end(request.headers) + _framing(request.headers) + [(b"connection", b"close")]


def _reply(event: object) -> h11.Event:
    """The server's event as the client shall see it."""
    if isinstance(event, h11.Response):
        headers = _end_to_end(event.headers) + _framing(event.headers)
        return h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
    if isinstance(event, h11.InformationalResponse):
        headers = _end_to_end(event.headers)
        return h11.InformationalResponse(status_code=event.status_code, headers=headers, reason=event.reason)
    if isinstance(event, h11.Data):
        return h11.Data(data=event.data)
    if isinstance(event, h11.EndOfMessage):
        return h11.EndOfMessage()
    raise Stop("net.broken", "the server closed without an answer")


# ------------------------------------------------------------------------------------------------------------ waiting


@contextlib.asynccontextmanager
async def _idle(seconds: float) -> AsyncGenerator[Callable[[], None], None]:
    """Ends what is inside when nothing moved for `seconds`; call what it yields for every move."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds) as clock:

            def touch() -> None:
                when = loop.time() + seconds
                # Moving the timer for every chunk would cost more than the chunk.
                if not clock.expired() and when - (clock.when() or 0.0) > seconds / 60:
                    clock.reschedule(when)

            yield touch
    except TimeoutError:
        raise Stop("net.limit", f"nothing moved for {seconds:g} s", status=504) from None


async def _until_last(first: Coroutine[Any, Any, None], last: Coroutine[Any, Any, None]) -> None:
    """Run both; over when `last` is. A failure of either ends both."""
    tasks = asyncio.create_task(first), asyncio.create_task(last)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if tasks[1] not in done:
            tasks[0].result()
        await tasks[1]
    finally:
        await _cancel(*tasks)


async def _until_all(*work: Coroutine[Any, Any, None]) -> None:
    """Run all; over when all are, or with the first failure."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except OSError as error:
        raise Stop("net.broken", f"the connection broke: {error.strerror}") from error
    finally:
        await _cancel(*tasks)


async def _cancel(*tasks: asyncio.Task[None]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # the failure that counts was raised already


def _half_close(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other end has closed both ways already
        sock.shutdown(socket.SHUT_WR)
