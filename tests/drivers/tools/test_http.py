"""`http.fetch` over real sockets, through the agent's own way out: redirects, bombs, broken and hostile servers."""

import asyncio
import gzip
import json
import ssl
import time
import tracemalloc
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agent_os.abi.errors import EACCES, EHOSTUNREACH, EINVAL, EIO, ETIMEDOUT, AgentOSError
from agent_os.drivers.tools import http
from agent_os.kernel.authority.redaction import Needles
from agent_os.kernel.egress.addresses import parse_grant
from agent_os.kernel.egress.attempt import Connection, Limits
from agent_os.kernel.egress.fetching import Fetching
from agent_os.kernel.egress.proxy import Egress
from agent_os.kernel.tools.registry import Deed, Registry
from agent_os.kernel.tools.schema import Schema
from drivers.tools.means import Bodies

Reply = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


class Server:
    """A server that says exactly what a test wants it to."""

    def __init__(self, answers: dict[str, bytes | Reply]) -> None:
        self.answers, self.seen = answers, list[bytes]()
        self.port = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (int(one.split(b":")[1]) for one in head.lower().split(b"\r\n") if b"content-length:" in one), 0
            )
            request = head + await reader.readexactly(length)
            self.seen.append(request)
            answer = self.answers[head.split(b" ")[1].decode()]
            if isinstance(answer, bytes):
                writer.write(answer.replace(b"@PORT@", str(self.port).encode()))
                await writer.drain()
            else:
                await answer(reader, writer, request)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort() if writer.transport.is_closing() else writer.close()


def reply(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    pairs = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in pairs.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def to(location: str, status: str = "302 Found") -> bytes:
    return reply(b"", status, location=location)


class World:
    def __init__(self) -> None:
        self.records: list[Connection] = []
        self.bodies = Bodies()
        self.servers: list[Server] = []
        self.asked: list[str] = []

    @property
    def first(self) -> Server:
        return self.servers[0]


def fetched(
    answers: dict[str, bytes | Reply],
    path: str = "/",
    *,
    other: dict[str, bytes | Reply] | None = None,
    world: World | None = None,
    granted: bool = True,
    scheme: str = "http",
    host: str = "127.0.0.1",
    served: ssl.SSLContext | None = None,
    trusted: ssl.SSLContext | None = None,
    secret: Sequence[tuple[str, str]] = (),
    needles: Sequence[bytes] = (),
    limits: Limits | None = None,
    **params: Any,
) -> dict[str, Any]:
    """One fetch of a path of the first server; `@OTHER@` in its answers is the second one's port."""
    world = world or World()

    async def resolve(name: str, port: int) -> list[str]:
        world.asked.append(name)
        return ["93.184.216.34"]

    async def body() -> dict[str, Any]:
        async with AsyncExitStack() as stack:
            for one in (answers, other or {}):
                server = Server(dict(one))
                listening = await asyncio.start_server(server, "127.0.0.1", 0, ssl=served, limit=1 << 20)
                await stack.enter_async_context(listening)
                server.port = listening.sockets[0].getsockname()[1]
                world.servers.append(server)
            mine, others = world.servers
            for key, answer in mine.answers.items():
                if isinstance(answer, bytes):
                    mine.answers[key] = answer.replace(b"@OTHER@", str(others.port).encode())
            grants = [parse_grant(f"127.0.0.1:{one.port}") for one in world.servers] if granted else []
            egress = Egress("agent", grants, world.records.append, resolve=resolve, limits=limits)
            web = Fetching(
                egress.attempt,
                egress.open,
                egress.limits,
                secret=lambda *_: secret,
                needles=lambda: Needles(needles),
                tls=trusted,
            )
            url = f"{scheme}://{host}:{mine.port}{path}"
            return await http.fetch({"url": url, **params}, web, world.bodies.kept())

    found = asyncio.run(body())
    Schema(http.FETCH.output_schema).require(found, "it", ran=True)
    return found


def test_its_spec_can_be_registered_and_its_capability_has_the_method() -> None:
    async def nothing(call: Any) -> None: ...

    there = Registry(lambda: 0.0)
    there.register(http.FETCH, Deed(nothing, names=http.names))
    call = there.prepare("http.fetch", {"url": "https://example.com/a"})
    assert [tuple(need) for need in call.needs] == [
        ("tool", "call", "http.fetch"),
        ("http", "get", "example.com/a"),
    ]
    assert call.source == "http:example.com"
    assert (call.effect.name, call.facts["port"]) == ("IDEMPOTENT", 443)
    posting = there.prepare("http.fetch", {"url": "https://example.com/a", "method": "POST"})
    assert posting.effect.name == "OPAQUE"


def test_a_page_comes_as_its_text() -> None:
    page = (
        b"<html><head><title>T &amp; t</title><style>p{}</style></head><body><h1>Head</h1><p>one <b>two</b></p>"
        b"<script>alert('x')</script><!-- no --><ul><li>a</li><li>b</li></ul></body></html>"
    )
    world = World()
    found = fetched({"/": reply(page, content_type="text/html; charset=utf-8")}, world=world)
    assert found["body"].split() == ["T", "&", "t", "Head", "one", "two", "a", "b"]
    assert (found["status"], found["size"]) == (200, len(page))
    assert [record.done for record in world.records] == [False, True]


def test_json_raw_and_other_kinds() -> None:
    assert fetched({"/": reply(b'{"a": [1]}')}, format="json")["json"] == {"a": [1]}
    with pytest.raises(EIO) as caught:
        fetched({"/": reply(b"<html>no")}, format="json")
    assert caught.value.code == "http.json"
    raw = fetched({"/": reply(b"<p>as it is</p>", content_type="text/html")}, format="raw")
    assert raw["body"] == "<p>as it is</p>"
    latin = fetched({"/": reply("grüße".encode("latin-1"), content_type="text/plain; charset=latin-1")})
    assert latin["body"] == "grüße"
    odd = fetched({"/": reply(b"plain", content_type="text/plain; charset=nonsense")})
    assert odd["body"] == "plain"


def test_an_error_of_the_server_is_a_result() -> None:
    found = fetched({"/": reply(b"not here", "404 Not Found", content_type="text/plain")})
    assert (found["status"], found["body"]) == (404, "not here")


def test_what_is_no_text_comes_as_a_blob() -> None:
    world, raw = World(), b"\x89PNG\0" + bytes(range(256))
    found = fetched({"/": reply(raw, content_type="image/png")}, world=world)
    assert found["body"] == ""
    assert world.bodies[found["blob"]] == raw


def test_a_long_text_is_cut_and_kept() -> None:
    world = World()
    found = fetched({"/": reply(b"x" * 200_000, content_type="text/plain")}, world=world)
    assert "left out" in found["body"]
    assert len(world.bodies[found["blob"]]) == 200_000


def test_what_is_sent() -> None:
    world = World()
    fetched({"/p?q=1": reply(b"")}, "/p?q=1", world=world, method="POST", body="däta", headers={"X-One": "1"})
    head, _, body = world.first.seen[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /p?q=1 HTTP/1.1\r\n")
    assert f"host: 127.0.0.1:{world.first.port}".encode() in head.lower()
    assert b"x-one: 1" in head
    assert body == "däta".encode()


@pytest.mark.parametrize(
    "headers",
    [
        {"X": "a\r\nInjected: 1"},
        {"X": "a\nb"},
        {"X\r\nY": "a"},
        {"X": "a\0"},
        {"Host": "evil.example"},
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": "x-secret"},
        {"Proxy-Authorization": "x"},
        {"a b": "c"},
        {"": "x"},
        {"X": "grüße"},
        {"A": "1", "a": "2"},
    ],
)
def test_a_header_that_would_be_more_than_itself_is_refused(headers: dict[str, str]) -> None:
    world = World()
    with pytest.raises(EINVAL):
        fetched({"/": reply()}, headers=headers, world=world)
    assert world.first.seen == []


# Redirects.


def test_redirects_are_followed_and_each_hop_is_a_request_of_its_own() -> None:
    world = World()
    found = fetched(
        {"/": to("/b"), "/b": to("http://127.0.0.1:@OTHER@/c", "301 Moved")}, other={"/c": reply(b"end")}, world=world
    )
    assert found["body"] == "end"
    assert found["url"].endswith("/c")
    assert len(found["redirects"]) == 2
    assert len([record for record in world.records if not record.done]) == 3


def test_letters_of_any_language_and_spaces_are_encoded_once() -> None:
    world = World()
    further = to("/zwei W\u00c3\u00b6rter%20da")  # bytes of UTF-8, as some servers send them
    answers = {"/gr%C3%BC%C3%9Fe?q=%C3%A4%20b": further, "/zwei%20W%C3%B6rter%20da": reply(b"end")}
    assert fetched(answers, "/grüße?q=ä%20b#part", world=world)["body"] == "end"
    assert len(world.first.seen) == 2


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("http://10.0.0.1/", EACCES),
        ("http://169.254.169.254/latest/meta-data/", EACCES),
        ("http://[::ffff:169.254.169.254]/", EACCES),
        ("http://localhost:1/", EACCES),
        ("http://127.0.0.1:1/", EACCES),
        ("http://evil.example/", EACCES),
        ("//evil.example/", EACCES),
        ("http://2130706433/", EINVAL),
        ("file:///etc/passwd", EIO),
        ("gopher://127.0.0.1/", EIO),
        ("javascript:alert(1)", EIO),
        ("http://user:pw@127.0.0.1:@PORT@/", EIO),
        ("http://127.0.0.1:@PORT@/a/%2e%2e/b", EINVAL),
        ("http://[broken/", EIO),
    ],
)
def test_a_redirect_to_where_it_may_not_go_is_refused_and_nothing_is_resolved(
    location: str, error: type[AgentOSError]
) -> None:
    world = World()
    with pytest.raises(error):
        fetched({"/": to(location)}, world=world)
    assert len(world.first.seen) == 1
    assert world.asked == []


def test_a_circle_of_redirects_ends() -> None:
    world = World()
    with pytest.raises(EIO) as caught:
        fetched({"/": to("/")}, world=world)
    assert caught.value.code == "http.redirects"
    assert len(world.first.seen) == http.MOST_HOPS + 1


def test_credentials_stay_with_their_origin() -> None:
    world = World()
    answers = {"/": to("/same"), "/same": to("http://127.0.0.1:@OTHER@/other")}
    headers = {"Authorization": "Bearer t0ken", "Cookie": "a=b", "Private-Token": "t0ken", "Accept-Language": "stays"}
    fetched(answers, other={"/other": reply()}, headers=headers, world=world)
    assert all(b"t0ken" in one and b"a=b" in one for one in world.first.seen)
    [last] = world.servers[1].seen
    assert b"t0ken" not in last
    assert b"a=b" not in last
    assert b"stays" in last


@pytest.mark.parametrize(
    ("status", "method", "kept"),
    [
        ("303 See Other", "GET", False),
        ("302 Found", "GET", False),
        ("307 Temporary", "POST", True),
        ("308 P", "POST", True),
    ],
)
def test_what_is_sent_again_after_a_redirect(status: str, method: str, kept: bool) -> None:
    world = World()
    fetched({"/": to("/b", status), "/b": reply()}, method="POST", body="data", world=world)
    last = world.first.seen[-1]
    assert last.startswith(method.encode())
    assert last.endswith(b"data") is kept


def test_without_a_grant_nothing_is_dialled() -> None:
    world = World()
    with pytest.raises(EACCES) as caught:
        fetched({"/": reply()}, granted=False, world=world)
    assert "--net 127.0.0.1" in caught.value.hint
    assert world.first.seen == []
    assert [record.verdict for record in world.records] == ["deny"]


# What comes back may be anything.


def test_packed_answers_are_unpacked() -> None:
    deflated = zlib.compressobj(wbits=-15)
    for coding, data in (
        ("gzip", gzip.compress(b"packed")),
        ("gzip", gzip.compress(b"pack") + gzip.compress(b"ed")),
        ("deflate", zlib.compress(b"packed")),
        ("deflate", deflated.compress(b"packed") + deflated.flush()),
    ):
        assert fetched({"/": reply(data, content_encoding=coding, content_type="text/plain")})["body"] == "packed"


@pytest.mark.parametrize(
    ("coding", "data"), [("br", b"x"), ("gzip, gzip", b"x"), ("gzip", b"not gzip"), ("zstd", b"x")]
)
def test_what_cannot_be_unpacked_is_an_error(coding: str, data: bytes) -> None:
    with pytest.raises(EIO) as caught:
        fetched({"/": reply(data, content_encoding=coding)})
    assert caught.value.code == "http.encoding"


@pytest.mark.long
def test_a_bomb_is_unpacked_only_so_far() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(300)) + packer.flush()  # 300 MiB
    answer = reply(bomb, content_encoding="gzip", content_type="text/plain")
    tracemalloc.start()
    try:
        found = fetched({"/": answer})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found["truncated"]
    assert found["size"] == http.LARGEST_BODY
    assert peak < 60 << 20


def test_many_small_members_end_soon() -> None:
    began = time.process_time()
    fetched({"/": reply(gzip.compress(b"") * 100_000, content_encoding="gzip")})
    assert time.process_time() - began < 5


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    await reader.read()


async def cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    await writer.drain()


def test_a_body_without_an_end_is_cut() -> None:
    found = fetched({"/": endless})
    assert found["truncated"]
    assert found["size"] == http.LARGEST_BODY


@pytest.mark.parametrize(
    "answer",
    [
        silent,
        cut_off,
        b"",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
    ],
)
def test_a_server_that_is_silent_or_broken_is_an_error_and_soon(answer: Any) -> None:
    limits = Limits(idle_seconds=1.0)
    with pytest.raises((EIO, ETIMEDOUT)) as caught:
        fetched({"/": answer}, limits=limits)
    assert not caught.value.retryable  # it may have done what it was asked for
    assert caught.value.detail["ran"] is True


@pytest.mark.parametrize(
    "page",
    [
        "<" * 2_000_000,
        "<script" * 300_000,
        "<script>" * 300_000,
        "<!--" * 500_000,
        "<a " * 700_000,
        "<style></style" * 150_000,
        "&" * 2_000_000,
        "&#x" * 700_000,
        "\n " * 1_000_000,
        "İ<script>x</script>" * 100_000,
    ],
)
def test_a_hostile_page_is_read_in_linear_time(page: str) -> None:
    began = time.process_time()
    http.readable(page)
    assert time.process_time() - began < 8


def test_scripts_are_left_out_whatever_the_letters_around_them() -> None:
    assert http.readable("İİİ<SCRIPT>evil()</ScRiPt >kept") == "İİİkept"


# Secrets and TLS.


def test_a_secret_is_put_on_and_taken_out_of_what_comes_back() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> None:
        writer.write(reply(request, content_type="text/plain", x_echo="s3cret-value"))
        await writer.drain()

    world = World()
    secret = [("authorization", "Bearer s3cret-value")]
    found = fetched(
        {"/": echo}, secret=secret, needles=[b"s3cret-value"], headers={"Authorization": "mine"}, world=world
    )
    assert b"s3cret-value" in world.first.seen[0]
    assert b"mine" not in world.first.seen[0]
    assert b"accept-encoding: identity" in world.first.seen[0]
    assert "s3cret-value" not in json.dumps(found)


def test_a_packed_answer_to_a_request_with_a_secret_is_refused() -> None:
    packed = reply(gzip.compress(b"s3cret-value"), content_encoding="gzip")
    with pytest.raises(EIO):
        fetched({"/": packed}, secret=[("authorization", "s3cret-value")], needles=[b"s3cret-value"])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path


def test_over_tls_the_certificate_is_checked(certificate: Path) -> None:
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate)
    trusted = ssl.create_default_context(cafile=str(certificate))
    found = fetched({"/": reply(b"safe")}, scheme="https", host="localhost", served=served, trusted=trusted)
    assert found["body"] == "safe"
    for wrong in ({"trusted": None, "host": "localhost"}, {"trusted": trusted, "host": "127.0.0.1"}):
        with pytest.raises(EHOSTUNREACH):
            fetched({"/": reply(b"safe")}, scheme="https", served=served, **wrong)  # type: ignore[arg-type]
