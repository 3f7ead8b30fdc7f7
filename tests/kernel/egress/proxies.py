"""A proxy that runs, servers for it to reach, and the first bytes of TLS: what the tests of the egress share.

Real loopback sockets throughout; only names are mapped by hand, and ports that not everyone may bind.
"""

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent_os.kernel.egress import Connection, Egress, Limits, parse_grant
from agent_os.kernel.egress.addresses import Address
from agent_os.kernel.egress.asking import Asking
from agent_os.kernel.egress.attempt import Attempt, Record
from agent_os.kernel.egress.visit import Doors

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
QUICK = Limits(connections=4, header_seconds=0.3, idle_seconds=0.4, dial_seconds=1)


GREETING = b"\x05\x01\x00"
OPENED = b"\x05\x00\x00\x01" + bytes(6)


def socks_request(host: str | bytes, port: int, command: int = 1) -> bytes:
    """A name as text, an address as its bytes."""
    if isinstance(host, str):
        raw = host.encode("latin-1")
        place = b"\x03" + bytes([len(raw)]) + raw
    else:
        place = (b"\x01" if len(host) == 4 else b"\x04") + host
    return bytes([5, command, 0]) + place + port.to_bytes(2)


class Redirected(Egress):
    """Ports below 1024 cannot be bound by everyone: what is dialled at port 443 is served at another one."""

    at: Mapping[int, int]

    async def _dial(self, attempt: Attempt, addresses: Sequence[Address], port: int) -> socket.socket:
        return await super()._dial(attempt, addresses, self.at.get(port, port))


class Proxy:
    """A running proxy, what it recorded, and which names it asked for."""

    def __init__(
        self,
        grants: Sequence[str],
        names: dict[str, list[str]],
        limits: Limits | None,
        at: dict[int, int],
        routed: Collection[str] = (),
        doors: Doors | None = None,
        asking: Asking | None = None,
        record: Record | None = None,
    ) -> None:
        self._told = record
        self.records: list[Connection] = []
        self.asked: list[str] = []
        self.writers: list[asyncio.StreamWriter] = []  # of tunnels, closed at the end
        self.names = names
        self.egress = Redirected(
            "a1",
            [parse_grant(text) for text in grants],
            self._saw,
            resolve=self.resolve,
            limits=limits,
            routed=routed,
            doors=doors,
            asking=asking,
        )
        self.egress.at = at
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]

    def _saw(self, connection: Connection) -> Awaitable[None] | None:
        self.records.append(connection)
        return self._told(connection) if self._told else None

    async def resolve(self, host: str, _port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.names:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.names[host]

    async def send(self, data: bytes) -> bytes:
        """Everything the proxy answers to these bytes, until it closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            return await asyncio.wait_for(reader.read(), 10)
        finally:
            writer.close()

    async def get(self, url: str, *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
        place = url.partition("://")[2].partition("/")[0] or "127.0.0.1:3128"
        lines = [f"{method} {url} HTTP/1.1", f"Host: {place}", "Connection: close", *headers, "", ""]
        return await self.send("\r\n".join(lines).encode("latin-1") + body)

    async def connect(self, target: str) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode("latin-1"))
        self.writers.append(writer)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        return head, reader, writer

    async def socks(self, host: str | bytes, port: int) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
        """The reply to a SOCKS5 request, after a greeting that was answered, and the way on."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.writers.append(writer)
        writer.write(GREETING)
        assert await asyncio.wait_for(reader.readexactly(2), 10) == b"\x05\x00"
        writer.write(socks_request(host, port))
        return await asyncio.wait_for(reader.readexactly(10), 10), reader, writer

    async def last(self, count: int = 1) -> Connection:
        """The last record, once `count` connections are done."""
        async with asyncio.timeout(10):
            while len(self.done) < count:
                await asyncio.sleep(0.005)
        return self.done[-1]

    @property
    def done(self) -> list[Connection]:
        return [record for record in self.records if record.done]


@asynccontextmanager
async def proxy(
    *grants: str,
    names: dict[str, list[str]] | None = None,
    limits: Limits | None = None,
    at: dict[int, int] | None = None,
    routed: Collection[str] = (),
    doors: Doors | None = None,
    asking: Asking | None = None,
    record: Record | None = None,
) -> AsyncGenerator[Proxy, None]:
    running = Proxy(grants, names or {}, limits, at or {}, routed, doors, asking, record)
    serving = asyncio.create_task(running.egress.serve(running.listener))
    try:
        yield running
    finally:
        for writer in running.writers:
            writer.close()
        await running.egress.close()
        await asyncio.wait_for(serving, 5)
        assert not [record for record in running.records if record.code == "net.internal"]


class Server:
    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.received = b""


@asynccontextmanager
async def server(handler: Handler | bytes, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Server, None]:
    """A server on loopback; bytes as a handler answer any request head with these bytes."""
    seen = Server()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.connections += 1
        try:
            if isinstance(handler, bytes):
                seen.received += await reader.readuntil(b"\r\n\r\n")
                writer.write(handler)
                await writer.drain()
            else:
                await handler(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # what the client of a test does to its server is checked at the client
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    seen.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield seen


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b"<end>")


def granted(name: str, port: int) -> list[str]:
    """A name on a test server's port, and the loopback endpoint it maps to."""
    return [f"{name}:{port}", f"127.0.0.1:{port}"]


HERE = {"site.test": ["127.0.0.1"]}


def client_hello(name: str | None, version: ssl.TLSVersion | None = None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if version is not None:
        context.maximum_version = version
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


GOOD = client_hello("site.test")


def make_certificate(folder: Path) -> None:
    """A key and a certificate for site.test."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command here to make a certificate with")
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=site.test -addext subjectAltName=DNS:site.test"
    )
    both = [*command.split(), "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(both, check=True, capture_output=True)
