"""One connection that an agent makes to its proxy: requests one after the other, or one tunnel (CONNECT or SOCKS5).

Owns what is read from and written to the agent and its server: strict parsing (h11, `socks`), header rewriting, the
check of a tunnel's first bytes, back-pressure, half-close and the clocks. In: an accepted socket, and `open`, which
decides and dials. Out: bytes both ways. Never decides which host is allowed and never resolves or dials by itself.

The sockets are driven with loop.sock_*: one chunk per direction is read only after the last one was written, so nothing
piles up, and an idle connection holds no buffer. These calls do not yield while a socket is ready, hence `_give_way`:
without it one busy connection would hold the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from agent_os.abi.errors import EINVAL
from agent_os.kernel.egress.addresses import Address, canonical_host, endpoint, parse_port, printable
from agent_os.kernel.egress.asking import TLS_PORT, Wanted, plain_path
from agent_os.kernel.egress.attempt import Attempt, Limits, Stop, advice_to_api, explain, explain_as_api
from agent_os.kernel.egress.socks import SOCKS4, SOCKS5, Handshake
from agent_os.kernel.egress.waiting import half_close, idle, until_all, until_last
from agent_os.lazy import lazy

# The server name in a TLS ClientHello, read by OpenSSL, not by us. In: the first bytes a client sends into a
# tunnel, in whatever pieces they arrive. Out: whether they ask for the host the tunnel was opened to, and if not,
# the problem and the alert to send back. Never answers a handshake: OpenSSL is stopped at the name, before any key
# is made. Touches no socket.

TLS_HANDSHAKE = 0x16  # the first byte of a TLS connection


class ClientHello:
    """Feed it bytes until it says True; then `problem` is empty if the name is the expected one."""

    def __init__(self, expected: str, *, name_required: bool) -> None:
        self._expected = expected
        self._name_required = name_required  # clients send no name for an IP address
        self._seen = False
        self.problem = ""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # We judge the name, not the strength: that is between the client and its server.
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
        context.sni_callback = self._judge
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    @property
    def alert(self) -> bytes:
        return self._outgoing.read()

    def feed(self, data: bytes) -> bool:
        self._incoming.write(data)
        try:
            with _undecodable_names_are_refused_quietly():
                self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            if not self._seen:
                self.problem = f"not a readable TLS ClientHello: {error.reason or 'malformed'}"
        self._tls.context.sni_callback = None  # it refers back to us: free everything now, not at the next collection
        return True

    def _judge(self, _tls: object, name: str | None, _context: object) -> int:
        self._seen = True
        if name is None:
            self.problem = f"TLS without a server name, expected {self._expected}" if self._name_required else ""
        elif name.lower().removesuffix(".") != self._expected:
            self.problem = f"TLS asks for {name}, but the tunnel was opened to {self._expected}"
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME  # always: the handshake ends here, in either case


@contextlib.contextmanager
def _undecodable_names_are_refused_quietly() -> Generator[None, None, None]:
    """Python's ssl reports a name that is not ASCII to `sys.unraisablehook` and then refuses it, as we want.

    Without this an agent could write tracebacks to the operator's terminal at will. No await happens inside.
    """
    previous = sys.unraisablehook

    def hook(report: sys.UnraisableHookArgs) -> None:
        if not isinstance(report.exc_value, UnicodeDecodeError):
            previous(report)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous


if TYPE_CHECKING:
    import h11
else:
    h11 = lazy("h11")

CHUNK = 128 * 1024  # what one direction of one connection holds in memory at most
MOST_SHOWN = 256 * 1024  # bytes of a body that is read before it is sent, for a person to judge
LINGER_SECONDS = 2.0

Opener = Callable[[Attempt, Wanted], Awaitable[socket.socket]]
Dialler = Callable[[Attempt, str | Address, int], Awaitable[socket.socket]]


class Near(Protocol):
    """The agent's side of one request, as whatever stands behind a door sees it."""

    limits: Limits

    async def event(self) -> h11.Event | type[h11.PAUSED]:
        """The next event of the agent's request."""
        ...

    async def whole(self, request: h11.Request) -> bytes | None:
        """All of the request's body, which `event` then gives as ever. None: it has more than `MOST_SHOWN` bytes."""
        ...

    async def tell(self, *events: h11.Event) -> None:
        """Answer, in one piece."""
        ...

    async def gone(self) -> None:
        """Returns when the agent's client has closed its side. Its next request may come meanwhile, and waits."""
        ...

    @property
    def dial(self) -> Dialler:
        """Decided by the door rather than by a grant; addresses are checked, and it is recorded, as ever."""
        ...


class Doors(Protocol):
    """What stands behind targets of this listener itself, and what must not leave by any other way."""

    async def serve(self, attempt: Attempt, request: h11.Request, near: Near) -> None: ...

    def inspect(self, attempt: Attempt, request: h11.Request) -> None:
        """A plain request that is about to be sent to the attempt's host; Stop if it must not be."""
        ...

    def guard(self, attempt: Attempt) -> Callable[[bytes], None]:
        """For everything that is sent there, in order; Stop if it must not be."""
        ...


class _Link(Struct, frozen=True):
    """The way to the server of one request."""

    attempt: Attempt
    remote: socket.socket
    touch: Callable[[], None]  # called whenever something moved
    guard: Callable[[bytes], None] | None = None  # called before something is sent


class Visit:
    def __init__(
        self,
        sock: socket.socket,
        limits: Limits,
        begin: Callable[[], Attempt],
        open_: Opener,
        dial: Dialler,
        doors: Doors | None = None,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self.limits = self._limits = limits
        self._begin = begin
        self._open = open_
        self.dial = dial
        self._doors = doors
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.header_bytes)
        self._method = b""
        self._socks: Handshake | None = None
        self._ahead: list[h11.Event] = []  # read before their time, see `whole`
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
        self._ahead.clear()
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
            cut = attempt.leave.cut if attempt.leave else None
            attempt.end(*(cut or ("net.closed", "the agent's network was closed")))
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
                event = await self.event()
        except TimeoutError:
            reason = f"the request header took longer than {self._limits.header_seconds:g} s"
            raise Stop("net.limit", reason, status=408) from None
        if not isinstance(event, h11.Request):
            raise Stop("net.malformed", "not an HTTP request", status=400)
        self._method = event.method
        _check_header(event, self._limits.header_bytes)
        return event

    async def event(self) -> h11.Event | type[h11.PAUSED]:
        """The next event of the client; waits for its bytes, never holds more than one incomplete event."""
        if self._ahead:
            return self._ahead.pop(0)
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

    async def whole(self, request: h11.Request) -> bytes | None:
        length = dict(request.headers).get(b"content-length", b"0")
        if len(length) > 9 or int(length) > MOST_SHOWN:
            return None
        if self._http.they_are_waiting_for_100_continue:
            await self.tell(h11.InformationalResponse(status_code=100, headers=[]))
        body = bytearray()
        async with idle(self._limits.idle_seconds) as touch:
            while isinstance(event := await self.event(), h11.Data):
                touch()
                body += event.data
                if len(body) > MOST_SHOWN:
                    self._ahead = [h11.Data(data=bytes(body))]
                    return None
        if not isinstance(event, h11.EndOfMessage):
            raise Stop("net.broken", "the client closed in the middle of its request")
        self._ahead = [h11.Data(data=bytes(body)), h11.EndOfMessage()]
        return bytes(body)

    async def gone(self) -> None:
        """Looks without taking anything: what is there belongs to the next request."""
        closed = self._loop.create_future()

        def look() -> None:
            try:
                there = self._sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                return
            except OSError:
                there = b""
            self._loop.remove_reader(self._sock)
            if not there and not closed.done():
                closed.set_result(None)

        self._loop.add_reader(self._sock, look)
        try:
            await closed
        finally:
            self._loop.remove_reader(self._sock)

    async def _stop(self, attempt: Attempt, stop: Stop) -> None:
        """Write the last record, then tell the client, if an answer can still be sent."""
        if stop.code in ("net.sni", "net.malformed"):
            attempt.verdict = "deny"
        attempt.end(stop.code, stop.reason, stop.allow_flag)
        if stop.after:
            await asyncio.wait((stop.after,))
        with contextlib.suppress(OSError):  # the client is gone or does not read (TimeoutError): nobody to tell
            async with asyncio.timeout(LINGER_SECONDS):
                if self._socks is not None:
                    await self._loop.sock_sendall(self._sock, self._socks.refuse(stop.code))
                elif attempt.protocol != "forward" and self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    await self._answer(attempt, stop)

    async def _answer(self, attempt: Attempt, stop: Stop) -> None:
        target, verdict = endpoint(attempt.host, attempt.port or None), attempt.verdict
        json = attempt.protocol == "route"
        body = explain_as_api(stop) if json else explain(target, stop)
        headers = [
            ("Content-Type", "application/json" if json else "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("X-AgentOS", "denied" if verdict == "deny" else "failed"),
            ("Connection", "close"),
            *(advice_to_api(stop) if json else ()),
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
            if self._doors is None:
                raise Stop("net.door", f"there is no door {printable(target)} here")
            return await self._doors.serve(attempt, request, self)
        authority, path = _absolute(target)
        host, port = _split(attempt, authority, default=80)
        _require_same_host(request, host, port)
        body = partial(self.whole, request) if framing(request.headers) else None
        method, headers = request.method.decode("ascii").lower(), list(request.headers)
        wanted = Wanted(host, port, method, plain_path(path), path, headers=headers, body=body)
        if self._doors:
            self._doors.inspect(attempt, request)
        remote = await self._open(attempt, wanted)
        upstream = h11.Connection(h11.CLIENT, max_incomplete_event_size=2 * self._limits.header_bytes)
        onward = h11.Request(method=request.method, target=path, headers=_onward(request, endpoint(host, port), port))
        with remote:
            async with idle(self._limits.idle_seconds) as touch:
                link = _Link(attempt, remote, touch, self._guard(attempt))
                head = upstream.send(onward) or b""
                if framing(request.headers):
                    await until_last(self._send_body(link, upstream, head), self._send_reply(link, upstream))
                else:  # most requests have no body: no need for two tasks
                    await self._send_body(link, upstream, head)
                    await self._send_reply(link, upstream)

    async def _send_up(self, link: _Link, data: bytes) -> None:
        if data:
            if link.guard:
                link.guard(data)
            link.attempt.count(up=len(data))
            await self._loop.sock_sendall(link.remote, data)
            link.touch()
            await self._give_way(len(data))

    async def _receive_down(self, link: _Link) -> bytes:
        data = await self._loop.sock_recv(link.remote, CHUNK)
        link.attempt.count(down=len(data))
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
            event = await self.event()
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

    async def tell(self, *events: h11.Event) -> None:
        await self._send_down(b"".join(self._http.send(event) or b"" for event in events))

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
        with await self._open(attempt, Wanted(host, port)) as remote:
            await self.event()  # the end of the request; what follows belongs to the tunnel
            early = self._http.trailing_data[0]
            opened = self._http.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
            await self._send_down(opened or b"")
            await self._both_ways(attempt, remote, self._first_words(attempt, early, host, port))

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
        with await self._open(attempt, Wanted(host, port)) as remote:
            await self._send_down(self._socks.accept())
            await self._both_ways(attempt, remote, self._first_words(attempt, self._socks.rest, host, port))

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
        with await self._open(attempt, Wanted(host, port)) as remote:
            await self._both_ways(attempt, remote, self._loop.sock_recv(self._sock, CHUNK))

    async def _both_ways(self, attempt: Attempt, remote: socket.socket, first: Awaitable[bytes]) -> None:
        async with idle(self._limits.idle_seconds) as touch:
            link = _Link(attempt, remote, touch)
            await until_all(self._up(link, first), self._down(link))

    def _guard(self, attempt: Attempt) -> Callable[[bytes], None] | None:
        return self._doors.guard(attempt) if self._doors else None

    async def _up(self, link: _Link, first: Awaitable[bytes]) -> None:
        data = await first
        if data and data[0] != TLS_HANDSHAKE:  # inside TLS there is nothing to be seen
            link = replace(link, guard=self._guard(link.attempt))
        while data:
            await self._send_up(link, data)
            data = await self._loop.sock_recv(self._sock, CHUNK)
        half_close(link.remote)

    async def _down(self, link: _Link) -> None:
        while data := await self._receive_down(link):
            await self._loop.sock_sendall(self._sock, data)
            link.touch()
        half_close(self._sock)

    async def _first_words(self, attempt: Attempt, early: bytes, host: str | Address, port: int) -> bytes:
        """The client's first bytes, once they are known to be what they should: nothing reaches the server before.

        On port 443 they must be TLS for this host, and wherever only TLS is granted. On another granted port a client
        may speak anything, or wait for the server to speak first; if it speaks TLS, the name must be right there, too.
        """
        strict = port == TLS_PORT or (attempt.leave is not None and attempt.leave.tls_only)
        try:
            async with asyncio.timeout(self._limits.header_seconds if strict else None):
                data = early or await self._loop.sock_recv(self._sock, CHUNK)
            if not data or (data[0] != TLS_HANDSHAKE and not strict):
                return data
            if data[0] != TLS_HANDSHAKE:
                raise Stop("net.sni", f"what the client speaks on port {port} is not TLS")
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


def _require_same_host(request: h11.Request, host: str | Address, port: int) -> None:
    """Host is rewritten in any case; who says two things at once hopes that somebody believes the other."""
    for name, value in request.headers:
        if name == b"host" and _place(value.decode("latin-1")) != (host, port):
            reason = f"the Host header {printable(value.decode('latin-1'))} is not {endpoint(host, port)}"
            raise Stop("net.malformed", reason, status=400)


def _place(authority: str) -> tuple[str | Address, int] | None:
    match = _AUTHORITY.fullmatch(authority.strip())
    try:
        return (canonical_host(match[1]), parse_port(match[2]) if match[2] else 80) if match else None
    except EINVAL:
        return None


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


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers that are meant for the other end: no hop-by-hop, no Proxy-*, none that Connection names."""
    pairs = list(headers)
    named = {word.strip().lower() for name, value in pairs if name == b"connection" for word in value.split(b",")}
    return [
        (name, value)
        for name, value in pairs
        if name not in _HOP_BY_HOP and name not in named and not name.startswith(b"proxy-")
    ]


def framing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Framing is kept whatever Connection names: dropping it would let one end see a body the other does not."""
    pairs = dict(headers)
    if b"transfer-encoding" in pairs:
        return [(b"transfer-encoding", b"chunked")]
    return [(b"content-length", pairs[b"content-length"])] if b"content-length" in pairs else []


def _onward(request: h11.Request, authority: str, port: int) -> list[tuple[bytes, bytes]]:
    host = authority.removesuffix(":80") if port == 80 else authority
    own = [(b"host", host.encode("ascii"))]
    return own + end_to_end(request.headers) + framing(request.headers) + [(b"connection", b"close")]


def _reply(event: object) -> h11.Event:
    """The server's event as the client shall see it."""
    if isinstance(event, h11.Response):
        headers = end_to_end(event.headers) + framing(event.headers)
        return h11.Response(status_code=event.status_code, headers=headers, reason=event.reason)
    if isinstance(event, h11.InformationalResponse):
        headers = end_to_end(event.headers)
        return h11.InformationalResponse(status_code=event.status_code, headers=headers, reason=event.reason)
    if isinstance(event, h11.Data):
        return h11.Data(data=event.data)
    if isinstance(event, h11.EndOfMessage):
        return h11.EndOfMessage()
    raise Stop("net.broken", "the server closed without an answer")
