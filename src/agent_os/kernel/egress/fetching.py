"""One request to the web that the kernel makes for an agent's tool: `drivers.tools.Web`.

In: a method, a URL, headers and a body, from an agent. Out: the answer, bounded, or an error of the family. It goes the
way of every request of that agent (`Egress`): canonical host, gate, resolve, judge every address, record, dial. Over
TLS the certificate is checked and method and path are known to the gate. Follows no redirect, keeps no connection and
no cookie; a secret is put on only here, and is not in what comes back.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from socket import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agent_os.abi.errors import EACCES, EHOSTUNREACH, EINVAL, EIO, ETIMEDOUT, AgentOSError
from agent_os.drivers.tools import Answer
from agent_os.kernel.authority.redaction import Needles, Redactor
from agent_os.kernel.egress.addresses import Address, canonical_host, endpoint
from agent_os.kernel.egress.asking import Wanted, plain_path
from agent_os.kernel.egress.attempt import Attempt, Limits, Stop
from agent_os.kernel.egress.routes import default_tls
from agent_os.kernel.egress.waiting import idle
from agent_os.lazy import lazy

if TYPE_CHECKING:
    import h11
else:
    h11 = lazy("h11")

_PORTS = {"http": 80, "https": 443}
_UNREACHABLE = frozenset({"net.resolve", "net.dial", "net.tls"})  # and nothing was sent
_CHUNK = 64 << 10
Secret = Callable[[str | Address, int, str], Sequence[tuple[str, str]]]  # host, port, method → headers to put on


def _no_secret(host: str | Address, port: int, method: str) -> Sequence[tuple[str, str]]:
    return ()


class Fetching:
    """One agent's. `secret` is asked last, when everything was waited for."""

    def __init__(
        self,
        begin: Callable[[], Attempt],
        open_: Callable[[Attempt, Wanted], Awaitable[socket]],
        limits: Limits | None = None,
        *,
        secret: Secret = _no_secret,
        needles: Callable[[], Needles] = lambda: Needles(()),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._begin, self._open, self._limits = begin, open_, limits or Limits()
        self._secret, self._needles, self._tls = secret, needles, tls

    async def request(
        self, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes, most: int
    ) -> Answer:
        """Cancelled: the connection is closed, and the record says so."""
        attempt = self._begin()
        try:
            answer = await self._request(attempt, method, url, headers, body, most)
        except Stop as stop:
            attempt.end(stop.code, stop.reason, stop.allow_flag)
            raise _failed(stop) from None
        except AgentOSError as error:
            attempt.end(error.code, error.reason)
            raise
        except asyncio.CancelledError:
            cut = attempt.leave.cut if attempt.leave else None
            attempt.end(*(cut or ("net.closed", "its call was ended")))
            if cut:  # what it rests on was taken back: that is the call's outcome, not somebody's wish
                raise EACCES(*cut, ran=True) from None
            raise
        attempt.end("net.allow", "ended")
        return answer

    async def _request(
        self, attempt: Attempt, method: str, url: str, headers: Sequence[tuple[str, str]], body: bytes, most: int
    ) -> Answer:
        parts = urlsplit(url)
        if parts.scheme not in _PORTS or "@" in parts.netloc:
            raise Stop("net.malformed", f"{url[:200]!r} is not a plain http or https URL")
        bare = parts.netloc
        host = canonical_host(bare[: bare.rindex("]") + 1] if bare.startswith("[") else bare.partition(":")[0])
        port, tls = parts.port or _PORTS[parts.scheme], parts.scheme == "https"
        attempt.host, attempt.port = str(host), port
        written = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        sent = [(name.encode(), value.encode()) for name, value in headers]

        async def whole() -> bytes:
            return body

        path = plain_path(parts.path or "/")
        shown = whole if body else None
        wanted = Wanted(host, port, method.lower(), path, written, tls=tls, headers=sent, body=shown)
        sock = await self._open(attempt, wanted)
        reader, writer = await self._connected(sock, str(host) if tls else None)
        try:
            async with idle(self._limits.idle_seconds) as touch:
                secret = self._secret(host, port, method)  # nothing is awaited from here until it is written
                head = _head(method, written, host, port, tls, headers, secret, len(body))
                return await self._exchange(attempt, reader, writer, head, body, most, touch, bool(secret))
        except (OSError, h11.RemoteProtocolError) as error:
            raise Stop("net.broken", self._needles().mask_text(f"the answer is broken: {error}")) from None
        finally:
            writer.transport.abort()

    async def _connected(self, sock: socket, name: str | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = (self._tls or default_tls()) if name is not None else None
        try:
            async with asyncio.timeout(self._limits.header_seconds):
                return await asyncio.open_connection(sock=sock, ssl=context, server_hostname=name, limit=_CHUNK)
        except (OSError, ssl.SSLError) as error:
            sock.close()
            raise Stop("net.tls", f"TLS with {name} failed: {error}") from None
        except BaseException:
            sock.close()
            raise

    async def _exchange(
        self,
        attempt: Attempt,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: h11.Request,
        body: bytes,
        most: int,
        touch: Callable[[], None],
        guarded: bool,
    ) -> Answer:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=2 * self._limits.header_bytes)
        events = [head, *([h11.Data(data=body)] if body else []), h11.EndOfMessage()]
        data = b"".join(http.send(event) or b"" for event in events)
        attempt.count(up=len(data))
        writer.write(data)
        response, kept, masked = None, bytearray(), Redactor(self._needles())
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                piece = await reader.read(_CHUNK)
                attempt.count(down=len(piece))
                touch()
                http.receive_data(piece)
            elif isinstance(event, h11.Response):
                response = event
                _require_readable(event, guarded)
            elif isinstance(event, h11.Data):
                kept += masked.feed(bytes(event.data))
                if len(kept) > most:
                    return self._answer(response, bytes(kept[:most]), truncated=True)
            elif isinstance(event, h11.EndOfMessage):
                kept += masked.end()
                return self._answer(response, bytes(kept[:most]), truncated=len(kept) > most)
            elif not isinstance(event, h11.InformationalResponse):
                raise Stop("net.broken", "the server closed without an answer")
            await asyncio.sleep(0)  # one read can hold thousands of tiny chunks

    def _answer(self, response: h11.Response | None, body: bytes, *, truncated: bool) -> Answer:
        if response is None:
            raise Stop("net.broken", "the server closed without an answer")
        needles = self._needles()
        pairs = [(name.decode("latin-1"), needles.mask(value).decode("latin-1")) for name, value in response.headers]
        return Answer(response.status_code, [one for one in pairs if one[0] != "set-cookie"], body, truncated)


def _head(
    method: str,
    target: str,
    host: str | Address,
    port: int,
    tls: bool,
    headers: Sequence[tuple[str, str]],
    secret: Sequence[tuple[str, str]],
    length: int,
) -> h11.Request:
    """A compressed answer could not be searched for a secret, so with one none is asked for."""
    own = {name.lower() for name, _ in secret}
    kept = [(name, value) for name, value in headers if name not in own and not (secret and name == "accept-encoding")]
    authority = endpoint(host, None if port == (443 if tls else 80) else port)
    bare = f"[{host}]" if authority == str(host) and ":" in authority else authority
    framing = [("content-length", str(length))] if length or method in ("POST", "PUT", "PATCH") else []
    plain = [("accept-encoding", "identity")] if secret else []
    pairs = [("host", bare), *kept, *framing, *plain, ("connection", "close"), *secret]
    try:
        return h11.Request(method=method, target=target, headers=pairs)
    except h11.LocalProtocolError as error:
        raise Stop("net.malformed", f"this cannot be sent: {error}") from None


def _require_readable(response: h11.Response, guarded: bool) -> None:
    coding = next((value for name, value in response.headers if name == b"content-encoding"), b"identity")
    if guarded and coding.strip().lower() != b"identity":
        raise Stop("net.broken", "the server compressed its answer although it was asked not to")


def _failed(stop: Stop) -> AgentOSError:
    """As the caller of a tool is told. What was sent may have been done, so that is never said to be tried again."""
    if stop.code in _UNREACHABLE:
        return EHOSTUNREACH(stop.code, stop.reason, retryable=stop.code != "net.tls", ran=False)
    if stop.code == "net.malformed":
        return EINVAL(stop.code, stop.reason)
    if stop.code == "net.limit":
        return ETIMEDOUT(stop.code, stop.reason, ran=True)
    if stop.code in ("net.internal", "net.broken"):
        return EIO(stop.code, stop.reason, ran=True)
    return EACCES(stop.code, stop.reason, hint=f"agentctl run {stop.allow_flag}" if stop.allow_flag else "")
