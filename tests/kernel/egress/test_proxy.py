"""The proxy on real loopback sockets: real clients, real servers, real TLS. Only names are mapped by hand."""

import asyncio
import contextlib
import hashlib
import socket
import ssl
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.kernel.egress import Connection, Egress, Limits, parse_grant
from agent_os.kernel.egress.attempt import Attempt
from kernel.egress.proxies import (
    GOOD,
    GREETING,
    HERE,
    OK,
    QUICK,
    client_hello,
    echo,
    granted,
    make_certificate,
    proxy,
    server,
)

# ----------------------------------------------------------------------------------------------------- HTTP, allowed


def test_an_allowed_request_reaches_the_server_rebuilt_and_is_recorded_twice() -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            hop = [
                "Proxy-Authorization: x",
                "Connection: X-Secret, content-length",
                "X-Secret: 1",
                "TE: trailers",
                "X-Keep: 2",
            ]
            answer = await agent.get(f"http://SITE.test.:{site.port}/a?b=c", *hop)
            assert answer.startswith(b"HTTP/1.1 200")
            assert answer.endswith(b"hi")
            head, _, rest = site.received.partition(b"\r\n")
            assert head == b"GET /a?b=c HTTP/1.1"
            sent = dict(line.lower().split(b": ", 1) for line in rest.split(b"\r\n") if line)
            assert sent == {b"host": f"site.test:{site.port}".encode(), b"x-keep": b"2", b"connection": b"close"}
            end = await agent.last()
            verdict = agent.records[0]
            assert [record.done for record in agent.records] == [False, True]
            assert (verdict.verdict, verdict.code, verdict.id, verdict.bytes_up) == ("allow", "net.allow", end.id, 0)
            assert (end.agent, end.protocol, end.host, end.port) == ("a1", "http", "site.test", site.port)
            assert (end.verdict, end.address, end.bytes_up) == ("allow", "127.0.0.1", len(site.received))
            assert end.bytes_down == len(OK)

    asyncio.run(scenario())


REPLIES = [
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n", "GET", b"2\r\nhi\r\n0\r\n\r\n"),
    (b"HTTP/1.0 200 OK\r\n\r\nhi", "GET", b"2\r\nhi\r\n0\r\n\r\n"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", "HEAD", b"\r\n\r\n"),
    (b"HTTP/1.1 204 No Content\r\n\r\n", "GET", b"\r\n\r\n"),
    (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, "GET", b"hi"),
]


@pytest.mark.parametrize(("reply", "method", "ending"), REPLIES)
def test_every_framing_of_an_answer_arrives(reply: bytes, method: str, ending: bytes) -> None:
    async def scenario() -> None:
        async with server(reply) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            answer = await agent.get(f"http://127.0.0.1:{site.port}/", method=method)
            assert answer.endswith(ending), answer
            assert (await agent.last()).code == "net.allow"

    asyncio.run(scenario())


@pytest.mark.parametrize("chunked", [False, True])
def test_large_bodies_pass_unchanged_both_ways(chunked: bool) -> None:
    body = hashlib.sha256(b"seed").digest() * 100_000

    async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if chunked:
            assert b"transfer-encoding: chunked" in head.lower()
            await reader.readuntil(b"0\r\n\r\n")
        else:
            assert await reader.readexactly(len(body)) == body
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()

    async def scenario() -> None:
        async with server(mirror) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
            sent = b"%x\r\n%b\r\n0\r\n\r\n" % (3200, b"z" * 3200) if chunked else body
            answer = await agent.get(f"http://127.0.0.1:{site.port}/", framing, method="POST", body=sent)
            assert answer.endswith(body)

    asyncio.run(scenario())


def test_a_client_that_waits_for_100_continue_gets_it_from_the_server() -> None:
    async def careful(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"100-continue" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(3) == b"abc"
        writer.write(OK)

    async def scenario() -> None:
        async with server(careful) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            writer.write(f"POST http://127.0.0.1:{site.port}/ HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n".encode())
            writer.write(b"Content-Length: 3\r\nExpect: 100-continue\r\n\r\n")
            assert b"100" in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            writer.write(b"abc")
            assert b"200 OK" in await asyncio.wait_for(reader.readuntil(b"hi"), 5)
            writer.close()

    asyncio.run(scenario())


def test_an_early_answer_arrives_although_the_body_was_not_read() -> None:
    async def scenario() -> None:
        refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno"
        async with server(refusal) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            half = b"x" * 1000
            answer = await agent.get(f"http://127.0.0.1:{site.port}/", "Content-Length: 9000", method="PUT", body=half)
            assert answer.startswith(b"HTTP/1.1 413")
            assert answer.endswith(b"no")

    asyncio.run(scenario())


def test_each_request_on_one_connection_is_a_decision_of_its_own() -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            good = f"GET http://site.test:{site.port}/ HTTP/1.1\r\nHost: site.test:{site.port}\r\n\r\n"
            answer = await agent.send((good + good + good.replace("site.test", "evil.test") + good).encode())
            assert answer.count(b"200 OK") == 2
            assert answer.count(b"HTTP/1.1 403") == 1
            assert [record.verdict for record in agent.done] == ["allow", "allow", "deny"]
            assert agent.asked == ["site.test", "site.test"]
            assert site.connections == 2

    asyncio.run(scenario())


# ----------------------------------------------------------------------------------------------------- HTTP, refused


@pytest.mark.parametrize("connect", [False, True])
def test_a_host_without_a_grant_is_refused_with_its_flag_and_never_resolved(connect: bool) -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy("other.test", names=HERE) as agent:
            if connect:
                answer = await agent.send(f"CONNECT site.test:{site.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            else:
                answer = await agent.get(f"http://site.test:{site.port}/")
            assert answer.startswith(b"HTTP/1.1 403")
            assert b"x-agentos: denied" in answer.lower()
            assert f"--net site.test:{site.port}".encode() in answer
            assert answer.startswith(b"HTTP/1.1 403 Agent OS: net.host\r\n")
            record = await agent.last()
            assert (record.verdict, record.code, record.protocol) == (
                "deny",
                "net.host",
                "connect" if connect else "http",
            )
            assert record.allow_flag == f"--net site.test:{site.port}"
            assert (agent.asked, site.connections, len(agent.records)) == ([], 0, 1)
        async with server(OK) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:  # the control
            if connect:
                assert b" 200 " in (await agent.connect(f"site.test:{site.port}"))[0]
            else:
                assert b"200 OK" in await agent.get(f"http://site.test:{site.port}/")

    asyncio.run(scenario())


@pytest.mark.parametrize("port", [22, 25, 8080])
def test_only_the_ports_80_and_443_are_open_unless_named(port: int) -> None:
    async def scenario() -> None:
        async with (
            server(echo) as site,
            proxy("site.test", f"127.0.0.1:{port}", names=HERE, at={port: site.port}) as agent,
        ):
            answer = await agent.send(f"CONNECT site.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403")
            assert (await agent.last()).code == "net.port"
            assert (agent.asked, site.connections) == ([], 0)
        async with server(echo) as site, proxy(*granted("site.test", port), names=HERE, at={port: site.port}) as agent:
            assert b" 200 " in (await agent.connect(f"site.test:{port}"))[0]

    asyncio.run(scenario())


ADDRESSES = [
    (["169.254.169.254"], ["0.0.0.0/0"], None),
    (["::ffff:169.254.169.254"], ["0.0.0.0/0"], None),
    (["64:ff9b::a9fe:a9fe"], ["0.0.0.0/0"], None),
    (["fd00:ec2::254"], ["fc00::/7"], None),
    (["100.100.100.200"], ["100.64.0.0/10"], None),
    (["10.9.9.9"], [], "--net 10.9.9.9"),
    (["127.0.0.1"], [], "--net 127.0.0.1:80"),
    (["0.0.0.0"], ["127.0.0.1:80"], None),
    (["fe80::1%eth0"], [], None),
    (["1.1.1.1", "10.9.9.9"], [], "--net 10.9.9.9"),
    (["224.0.0.1"], [], None),
]


@pytest.mark.parametrize(("addresses", "more", "flag"), ADDRESSES)
def test_a_granted_name_that_leads_to_a_forbidden_address_is_refused(
    addresses: list[str], more: list[str], flag: str | None
) -> None:
    async def scenario() -> None:
        async with proxy("site.test", *more, names={"site.test": addresses}) as agent:
            answer = await agent.get("http://site.test/")
            assert answer.startswith(b"HTTP/1.1 403")
            record = await agent.last()
            assert (record.code, record.allow_flag, record.address) == ("net.address", flag, "")
            assert len(agent.records) == 1

    asyncio.run(scenario())


HOSTS = [
    *("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0xa9fea9fe", "2852039166", "a\x00b.test", "a b.test"),
    *(
        "user@site.test",
        "site.test\\@evil.test",
        "site.test%00",
        "s\xefte.test",
        "[::1",
        "[fe80::1%25lo]",
        "",
        "site..test",
    ),
]


@pytest.mark.parametrize("connect", [False, True])
@pytest.mark.parametrize("host", HOSTS)
def test_a_host_in_a_disguise_is_refused(host: str, connect: bool) -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy("*.test", "site.test", f"127.0.0.1:{site.port}", names=HERE) as agent:
            target = f"{host}:{site.port}"
            line = f"CONNECT {target}" if connect else f"GET http://{target}/"
            answer = await agent.send(f"{line} HTTP/1.1\r\nHost: x\r\n\r\n".encode("latin-1"))
            assert answer[:12] in (b"HTTP/1.1 403", b"HTTP/1.1 400")
            assert b"x-agentos: denied" in answer.lower()
            record = await agent.last()
            assert (record.verdict, record.code, record.allow_flag) == ("deny", "net.malformed", None)
            assert record.host.isprintable()
            assert record.reason.isprintable()
            assert (agent.asked, site.connections) == ([], 0)

    asyncio.run(scenario())


BROKEN = [
    (b"POST http://site.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
    (b"POST http://site.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    (b"GET http://site.test/ HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 33_000 + b"\r\n\r\n", 431),
    (b"GET http://site.test/" + b"b" * 40_000, 431),
    (b"GET https://site.test/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET ftp://site.test/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET http://site.test/#x HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"GET * HTTP/1.1\r\nHost: x\r\n\r\n", 400),
    (b"CONNECT site.test HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    (b"CONNECT site.test:0 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    (b"CONNECT site.test:99999 HTTP/1.1\r\nHost: x\r\n\r\n", 403),
    (b"CONNECT site.test:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc", 400),
    (b"\x06\x01\x00" + b"\r\n\r\n", 400),
    (b"GET http://site.test/ HTTP/1.1\r\nHost: x\r\nA\0: b\r\n\r\n", 400),
]


@pytest.mark.parametrize(("request_", "status"), BROKEN)
def test_a_request_that_is_not_strictly_right_is_refused_before_anything_else(request_: bytes, status: int) -> None:
    async def scenario() -> None:
        async with proxy("site.test", names=HERE) as agent:
            answer = await agent.send(request_)
            assert answer.startswith(b"HTTP/1.1 %d" % status), answer
            record = await agent.last()
            assert (record.verdict, record.code, agent.asked) == ("deny", "net.malformed", [])

    asyncio.run(scenario())


def test_a_door_that_does_not_exist_is_not_found() -> None:
    async def scenario() -> None:
        async with proxy() as agent:
            answer = await agent.get("/_api/anthropic/v1/messages")
            assert answer.startswith(b"HTTP/1.1 404")
            assert b"no door /_api/anthropic/v1/messages" in answer
            assert (await agent.last()).code == "net.door"

    asyncio.run(scenario())


def test_a_redirect_is_a_new_request() -> None:
    async def scenario() -> None:
        moved = b"HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\nContent-Length: 0\r\nX-AgentOS: denied\r\n\r\n"
        async with server(moved) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            answer = await agent.get(f"http://127.0.0.1:{site.port}/")
            assert b"evil.test" in answer
            assert b"x-agentos" not in answer.lower()  # only we say so
            assert (await agent.get("http://evil.test/")).startswith(b"HTTP/1.1 403")

    asyncio.run(scenario())


def test_only_we_say_x_agentos() -> None:
    forged = b"HTTP/1.1 103 Early Hints\r\nX-AgentOS: a\r\n\r\nHTTP/1.1 403 Forbidden\r\nX-agentos: b\r\n"
    forged += b"Transfer-Encoding: chunked\r\nTrailer: X-AgentOS\r\n\r\n0\r\nX-AgentOS: c\r\n\r\n"

    async def scenario() -> None:
        async with server(forged) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            answer = await agent.get(f"http://127.0.0.1:{site.port}/", "X-AgentOS: mine")
            assert b"403 Forbidden" in answer
            assert b"x-agentos" not in answer.lower()
            assert b"x-agentos" not in site.received.lower()

    asyncio.run(scenario())


# grants, port, whether a host with a route of its own is reached in spite of it
ROUTED = [
    (["site.test"], 443, False),
    (["site.test"], 80, False),
    (["*.test"], 443, False),
    (["site.test:8443"], 443, False),
    (["site.test", "127.0.0.1:443"], 443, False),
    ([], 443, False),
    (["site.test:443", "127.0.0.1:443"], 443, True),
]


@pytest.mark.parametrize("way", ["http", "connect", "socks"])
@pytest.mark.parametrize(("grants", "port", "passes"), ROUTED)
def test_a_host_with_a_route_is_reached_by_its_door_or_an_exact_grant_only(
    grants: list[str], port: int, passes: bool, way: str
) -> None:
    async def scenario() -> None:
        async with (
            server(OK) as site,
            proxy(*grants, names=HERE, at={port: site.port}, routed=["Site.test."]) as agent,
        ):
            if way == "http":
                answer = await agent.get(f"http://SITE.test:{port}/")
                assert answer.startswith(b"HTTP/1.1 200" if passes else b"HTTP/1.1 403 Agent OS: net.route")
            elif way == "connect":
                answer = (await agent.connect(f"SITE.test.:{port}"))[0]
                assert answer.startswith(b"HTTP/1.1 200" if passes else b"HTTP/1.1 403 Agent OS: net.route")
            else:
                assert (await agent.socks("site.test.", port))[0][1] == (0 if passes else 2)
            if not passes:
                record = await agent.last()
                assert (record.verdict, record.code, record.protocol) == ("deny", "net.route", way)
                assert (agent.asked, site.connections) == ([], 0)
                assert "/_api/" in record.reason
                assert record.allow_flag == f"--net site.test:{port}"

    asyncio.run(scenario())


def test_a_route_closes_no_other_host() -> None:
    async def scenario() -> None:
        names = HERE | {"a.site.test": ["127.0.0.1"]}
        async with (
            server(echo) as site,
            proxy("*.site.test:81", "127.0.0.1:81", names=names, at={81: site.port}, routed=["site.test"]) as agent,
        ):
            assert b" 200 " in (await agent.connect("a.site.test:81"))[0]

    asyncio.run(scenario())


def test_a_failure_is_told_apart_from_a_refusal() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        async with proxy("nowhere.test", f"127.0.0.1:{port}", names={}) as agent:
            answer = await agent.get("http://nowhere.test/")
            assert answer.startswith(b"HTTP/1.1 502")
            assert b"x-agentos: failed" in answer.lower()
            first = await agent.last()
            assert (first.verdict, first.code) == ("allow", "net.resolve")
            assert (await agent.get(f"http://127.0.0.1:{port}/")).startswith(b"HTTP/1.1 502")
            second = await agent.last(2)
            assert (second.verdict, second.code, second.address) == ("allow", "net.dial", "127.0.0.1")

    asyncio.run(scenario())


@pytest.mark.parametrize("reply", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\n\r\n"])
def test_a_broken_answer_is_a_bad_gateway(reply: bytes) -> None:
    async def scenario() -> None:
        async with server(reply) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            assert (await agent.get(f"http://127.0.0.1:{site.port}/")).startswith(b"HTTP/1.1 502")
            assert (await agent.last()).code == "net.broken"

    asyncio.run(scenario())


def test_what_cannot_be_recorded_is_not_dialled() -> None:
    async def scenario() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context["exception"]))
        async with server(OK) as site:

            def refuse(_: Connection) -> None:
                raise OSError("the disk is full")

            egress = Egress("a1", [parse_grant(f"127.0.0.1:{site.port}")], refuse)
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            serving = asyncio.create_task(egress.serve(listener))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET http://127.0.0.1:{site.port}/ HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode())
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            await egress.close()
            await serving
            assert site.connections == 0
        assert [str(problem) for problem in problems] == ["the disk is full"]

    asyncio.run(scenario())


# ----------------------------------------------------------------------------------------------------------- tunnels


def test_a_tunnel_carries_bytes_both_ways_and_half_closes() -> None:
    async def scenario() -> None:
        async with server(echo) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            head, reader, writer = await agent.connect(f"site.test:{site.port}")
            assert head == b"HTTP/1.1 200 Connection established\r\n\r\n"
            writer.write(b"plain words")
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 5) == b"plain words<end>"
            writer.close()
            end = await agent.last()
            assert (end.protocol, end.verdict, end.bytes_up, end.bytes_down) == ("connect", "allow", 11, 16)

    asyncio.run(scenario())


def test_bytes_sent_together_with_connect_belong_to_the_tunnel() -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            answer = await agent.send(
                f"CONNECT 127.0.0.1:{site.port} HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.0\r\n\r\n".encode()
            )
            assert answer.endswith(OK)
            assert site.received == b"GET / HTTP/1.0\r\n\r\n"

    asyncio.run(scenario())


def test_a_server_may_speak_first_on_a_named_port() -> None:
    async def banner(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 ready\r\n")
        writer.write(await reader.readline())

    async def scenario() -> None:
        async with server(banner) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            _, reader, writer = await agent.connect(f"site.test:{site.port}")
            assert await asyncio.wait_for(reader.readline(), 5) == b"220 ready\r\n"
            writer.write(b"HELO\r\n")
            assert await asyncio.wait_for(reader.readline(), 5) == b"HELO\r\n"
            writer.close()

    asyncio.run(scenario())


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    make_certificate(folder)
    return folder


@pytest.mark.integration
def test_tls_passes_through_to_the_right_host(certificate: Path) -> None:
    async def scenario() -> None:
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        serving.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
        async with (
            server(echo, tls=serving) as site,
            proxy("site.test", "127.0.0.1:443", names=HERE, at={443: site.port}) as agent,
        ):
            _, reader, writer = await agent.connect("site.test:443")
            trust = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
            await asyncio.wait_for(writer.start_tls(trust, server_hostname="site.test"), 5)
            writer.write(b"secret")
            assert await asyncio.wait_for(reader.readexactly(6), 5) == b"secret"
            writer.close()
            assert (await agent.last()).verdict == "allow"

    asyncio.run(scenario())


def in_small_records(hello: bytes) -> bytes:
    """The same handshake message cut into TLS records of seven bytes."""
    message = hello[5:]
    return b"".join(
        hello[:3] + len(part).to_bytes(2) + part for part in (message[i : i + 7] for i in range(0, len(message), 7))
    )


# what the client says first, on which port, to which host, and whether it reaches the server
FIRST_WORDS = [
    ("the right name", GOOD, 443, "site.test", True),
    ("the right name in capitals", client_hello("SITE.test"), 443, "site.test", True),
    ("the right name, TLS 1.2", client_hello("site.test", ssl.TLSVersion.TLSv1_2), 443, "site.test", True),
    ("the right name in many records", in_small_records(GOOD), 443, "site.test", True),
    ("another name", client_hello("evil.test"), 443, "site.test", False),
    ("another name in many records", in_small_records(client_hello("evil.test")), 443, "site.test", False),
    ("a name below", client_hello("a.site.test"), 443, "site.test", False),
    ("no name", client_hello(None), 443, "site.test", False),
    ("no name, for an address", client_hello(None), 443, "127.0.0.1", True),
    ("a name, for an address", GOOD, 443, "127.0.0.1", False),
    ("no TLS", b"SSH-2.0-OpenSSH\r\n", 443, "site.test", False),
    ("broken TLS", b"\x16\x03\x01\x00\x05hello", 443, "site.test", False),
    ("a name with a NUL", GOOD.replace(b"site.test", b"site\0test"), 443, "site.test", False),
    ("a name that is not ASCII", GOOD.replace(b"site.test", b"s\xefte.test"), 443, "site.test", False),
    ("no TLS on a named port", b"SSH-2.0-OpenSSH\r\n", 2222, "site.test", True),
    ("the right name on a named port", GOOD, 2222, "site.test", True),
    ("another name on a named port", client_hello("evil.test"), 2222, "site.test", False),
    ("no TLS on port 80", b"GET / HTTP/1.1\r\n\r\n", 80, "site.test", True),
]


@pytest.mark.parametrize("way", ["connect", "socks"])
@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize(
    ("words", "port", "host", "passes"), [case[1:] for case in FIRST_WORDS], ids=[case[0] for case in FIRST_WORDS]
)
def test_a_tunnels_first_words_must_fit_its_host(
    words: bytes, port: int, host: str, passes: bool, pieces: bool, way: str
) -> None:
    async def scenario() -> None:
        arrived = bytearray()
        over = asyncio.Event()

        async def listen(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(65536):
                arrived.extend(data)
            over.set()

        async with (
            server(listen) as site,
            proxy(f"site.test:{port}", f"127.0.0.1:{port}", names=HERE, at={port: site.port}) as agent,
        ):
            opened = agent.socks(host, port) if way == "socks" else agent.connect(f"{host}:{port}")
            _, reader, writer = await opened
            for piece in [words[i : i + 100] for i in range(0, len(words), 100)] if pieces else [words]:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if passes:
                writer.write_eof()
            said = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            await asyncio.wait_for(over.wait(), 5)
            end = await agent.last()
            assert bytes(arrived) == (words if passes else b"")
            assert (end.verdict, end.code) == (("allow", "net.allow") if passes else ("deny", "net.sni"))
            assert end.protocol == way
            if not passes and words.startswith(b"SSH"):
                assert "not TLS" in end.reason
            if not passes and b"evil.test" in words:
                assert said[:1] == b"\x15"  # a TLS alert, so the client can say what is wrong
                assert "evil.test" in end.reason

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------------------ bounds


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"", b""), (b"GET http://site.test/ HTTP/1.1\r\nHost:", b"HTTP/1.1 408")],
)
def test_a_slow_header_is_cut(data: bytes, status: bytes) -> None:
    async def scenario() -> None:
        async with proxy("site.test", limits=QUICK) as agent:
            assert (await asyncio.wait_for(agent.send(data), 5)).startswith(status)
            assert [record.code for record in agent.done] == (["net.limit"] if data else [])

    asyncio.run(scenario())


@pytest.mark.parametrize("words", [b"", GOOD[:50]], ids=["nothing", "a part"])
def test_a_slow_client_hello_is_cut(words: bytes) -> None:
    async def scenario() -> None:
        async with server(echo) as site, proxy("127.0.0.1:443", limits=QUICK, at={443: site.port}) as agent:
            _, reader, writer = await agent.connect("127.0.0.1:443")
            writer.write(words)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()
            assert (await agent.last()).code == "net.limit"

    asyncio.run(scenario())


def test_an_endless_client_hello_is_cut() -> None:
    async def scenario() -> None:
        record = b"\x16\x03\x01\x00\x05\x01\x00\xff\xff\x03"  # announces 64 KiB, then sends it byte by byte
        flood = record + b"\x16\x03\x01\x00\x01a" * 20_000
        async with server(echo) as site, proxy("127.0.0.1:443", at={443: site.port}) as agent:
            _, reader, writer = await agent.connect("127.0.0.1:443")
            writer.write(flood)
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
            end = await agent.last()
            assert (end.code, end.bytes_up) == ("net.sni", 0)

    asyncio.run(scenario())


@pytest.mark.parametrize("connect", [False, True])
def test_an_idle_connection_is_cut(connect: bool) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def scenario() -> None:
        async with server(silent) as site, proxy(f"127.0.0.1:{site.port}", limits=QUICK) as agent:
            if connect:
                _, reader, writer = await agent.connect(f"127.0.0.1:{site.port}")
                assert await asyncio.wait_for(reader.read(), 5) == b""
                writer.close()
            else:
                assert (await agent.get(f"http://127.0.0.1:{site.port}/")).startswith(b"HTTP/1.1 504")
            end = await agent.last()
            assert (end.verdict, end.code) == ("allow", "net.limit")

    asyncio.run(scenario())


def test_a_moving_connection_outlives_the_idle_bound() -> None:
    async def slow(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(8):
            await asyncio.sleep(0.1)  # the pace of the server, not a wait for something
            writer.write(b".")
            await writer.drain()

    async def scenario() -> None:
        async with server(slow) as site, proxy(f"127.0.0.1:{site.port}", limits=QUICK) as agent:
            _, reader, writer = await agent.connect(f"127.0.0.1:{site.port}")
            assert await asyncio.wait_for(reader.readexactly(8), 5) == b"........"
            writer.close()

    asyncio.run(scenario())


def test_one_connection_too_many_is_turned_away_and_a_free_place_serves_again() -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy(f"127.0.0.1:{site.port}", limits=Limits(connections=3)) as agent:
            held = [await asyncio.open_connection("127.0.0.1", agent.port) for _ in range(3)]
            url = f"http://127.0.0.1:{site.port}/"
            assert (await agent.get(url)).startswith(b"HTTP/1.1 503")
            assert (await agent.last()).code == "net.limit"
            for _, writer in held:
                writer.close()
            async with asyncio.timeout(5):
                while b"200 OK" not in await agent.get(url):
                    pass

    asyncio.run(scenario())


def test_a_client_that_does_not_read_stops_its_server_instead_of_filling_memory() -> None:
    async def scenario() -> None:
        sent = 0

        async def flood(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            writer.transport.set_write_buffer_limits(0)
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
                sent += 65536

        async with server(flood) as site, proxy(f"127.0.0.1:{site.port}", limits=Limits(idle_seconds=1)) as agent:
            head, reader, writer = await agent.connect(f"127.0.0.1:{site.port}")
            assert b"200" in head
            writer.transport.pause_reading()
            end = await agent.last()
            assert (end.code, end.verdict) == ("net.limit", "allow")
            assert (
                0 < sent < 32 * 1024 * 1024
            )  # the buffers of four sockets, not what the server could send in a second
            writer.close()
            del reader

    asyncio.run(scenario())


def test_close_ends_every_connection_and_leaves_no_task() -> None:
    async def scenario() -> None:
        async with server(echo) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            tunnels = [await agent.connect(f"127.0.0.1:{site.port}") for _ in range(5)]
            idle = await asyncio.open_connection("127.0.0.1", agent.port)
            await agent.egress.close()
            for _, reader, writer in tunnels:
                assert await asyncio.wait_for(reader.read(), 5) == b""
                writer.close()
            assert await asyncio.wait_for(idle[0].read(), 5) == b""
            idle[1].close()
            assert [record.code for record in agent.done] == ["net.closed"] * 5  # the idle one asked for nothing
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", agent.port)
        ours = [task for task in asyncio.all_tasks() if "agent_os" in repr(task.get_coro())]
        assert ours == []

    asyncio.run(scenario())


def test_a_cancelled_serve_closes_everything() -> None:
    async def scenario() -> None:
        records: list[Connection] = []
        egress = Egress("a1", [], records.append)
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        serving = asyncio.create_task(egress.serve(listener))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert b"403" in await reader.read()
        writer.close()
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert listener.fileno() == -1

    asyncio.run(scenario())


def test_a_server_that_answers_in_tiny_chunks_does_not_hold_the_loop() -> None:
    async def scenario() -> None:
        chunks = 20_000
        tiny = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * chunks + b"0\r\n\r\n"
        async with server(tiny) as site, proxy(f"127.0.0.1:{site.port}") as agent:
            asking = asyncio.create_task(agent.get(f"http://127.0.0.1:{site.port}/"))
            turns = 0
            while not asking.done():
                await asyncio.sleep(0)
                turns += 1
            assert (await asking).count(b"x") >= chunks
            assert turns > chunks / 20  # one turn of the loop for at most some twenty chunks

    asyncio.run(scenario())


def test_a_request_ends_in_one_record_even_if_it_ends_twice() -> None:
    records: list[Connection] = []
    attempt = Attempt("a1", 1, records.append)
    attempt.end("net.host", "first")
    attempt.end("net.internal", "second")
    assert [record.reason for record in records] == ["first"]


def test_a_flood_of_one_agent_leaves_another_agent_served() -> None:
    async def scenario() -> None:
        async with (
            server(OK) as site,
            proxy(limits=Limits(connections=50, header_seconds=600)) as noisy,  # it does not end by itself
            proxy(f"127.0.0.1:{site.port}") as quiet,
        ):
            held = [await asyncio.open_connection("127.0.0.1", noisy.port) for _ in range(300)]
            for _, writer in held:
                writer.write(b"GET http://x")  # a header that never ends
            for _ in range(20):
                answer = await asyncio.wait_for(quiet.get(f"http://127.0.0.1:{site.port}/"), 10)
                assert b"200 OK" in answer
            for _, writer in held:
                writer.close()

    asyncio.run(scenario())


# -------------------------------------------------------------------------------------------------------------- fuzz

PIECES = st.sampled_from(
    [
        *(
            b"GET ",
            b"CONNECT ",
            b"POST ",
            b"http://",
            b"site.test",
            b":80",
            b":443",
            b"/",
            b" HTTP/1.1",
            b" HTTP/1.0",
            b"\r\n",
        ),
        *(
            b"\r\n\r\n",
            b"Host: x",
            b"Content-Length: 5",
            b"Transfer-Encoding: chunked",
            b"Connection: close",
            b"127.0.0.1",
        ),
        *(
            b"\0",
            b"\n",
            b"[::1]",
            b"0\r\n\r\n",
            b"Expect: 100-continue",
            b"\x16\x03\x01",
            b" ",
            b"/_api/x",
            GOOD[:60],
            GOOD,
        ),
    ]
)
NOISE = st.lists(st.one_of(PIECES, st.binary(max_size=40)), max_size=12).map(b"".join)


@settings(max_examples=15, deadline=None)
@given(st.lists(NOISE, min_size=1, max_size=12))
def test_whatever_bytes_an_agent_sends_the_next_request_is_answered(noises: list[bytes]) -> None:
    async def scenario() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
        async with server(OK) as site:
            grants = ["site.test", "127.0.0.1:80", "127.0.0.1:443", f"127.0.0.1:{site.port}"]
            at = {80: site.port, 443: site.port}
            async with proxy(*grants, names=HERE, at=at) as agent:  # which asserts that no record says net.internal
                for noise in noises:
                    _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
                    writer.write(noise)
                    if writer.can_write_eof():
                        writer.write_eof()
                    assert b"200 OK" in await agent.get(f"http://127.0.0.1:{site.port}/")
                    writer.close()
        assert problems == []

    asyncio.run(scenario())


# -------------------------------------------------------------------------------------------------------------- doors


async def through_a_door(*grants: str) -> tuple[bytes, list[Connection], int]:
    """What a client gets from a listener that stands for one endpoint, with these grants for that endpoint's port."""

    async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read()).upper())
        await writer.drain()
        writer.close()

    async with server(shout) as far:
        texts = [grant.replace("PORT", str(far.port)) for grant in grants]
        async with proxy(*texts) as near:
            listener = socket.create_server(("127.0.0.1", 0))
            place = listener.getsockname()
            serving = asyncio.create_task(near.egress.serve(listener, (ip_address("127.0.0.1"), far.port)))
            reader, writer = await asyncio.open_connection(*place)
            heard = b""
            with contextlib.suppress(OSError):  # a door that is shut hangs up
                writer.write(b"plain bytes, no proxy protocol")
                writer.write_eof()
                heard = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            await near.last()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            return heard, near.records, far.connections


def test_a_door_carries_bytes_to_its_endpoint_and_records_them() -> None:
    heard, records, connections = asyncio.run(through_a_door("127.0.0.1:PORT"))
    assert heard == b"PLAIN BYTES, NO PROXY PROTOCOL"
    assert connections == 1
    assert [(one.protocol, one.done, one.verdict) for one in records] == [
        ("forward", False, "allow"),
        ("forward", True, "allow"),
    ]
    assert (records[-1].bytes_up, records[-1].bytes_down) == (30, 30)


def test_a_door_without_its_grant_stays_shut() -> None:
    heard, records, connections = asyncio.run(through_a_door("example.com"))
    assert (heard, connections) == (b"", 0)
    assert [(one.done, one.verdict, one.code) for one in records] == [(True, "deny", "net.address")]


@pytest.mark.parametrize(
    "host", ["other.test", "site.test:81", "127.0.0.1", "site.test@other.test", "", "site.test, x"]
)
def test_a_host_header_for_another_place_is_refused(host: str) -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            line = f"GET http://site.test:{site.port}/ HTTP/1.1\r\n"
            answer = await agent.send(f"{line}Host: {host}\r\nConnection: close\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 400")
            assert (site.connections, agent.asked) == (0, [])
            for same in (f"site.test:{site.port}", f"SITE.test.:{site.port}"):
                answer = await agent.send(f"{line}Host: {same}\r\nConnection: close\r\n\r\n".encode())
                assert answer.startswith(b"HTTP/1.1 200")

    asyncio.run(scenario())


# Forms of a name that some library turns into site.test, or that two libraries turn into different names.
OTHER_FORMS = {
    "full width": "ｓｉｔｅ.test",
    "a soft hyphen": "si\u00adte.test",
    "an ideographic dot": "site。test",
    "sharp s": "faß.test",
    "a joiner": "si\u200dte.test",
    "final sigma": "βόλος.test",
}


@pytest.mark.parametrize("way", ["http", "connect", "socks"])
@pytest.mark.parametrize("host", OTHER_FORMS.values(), ids=OTHER_FORMS)
def test_no_international_form_passes_for_another_name(host: str, way: str) -> None:
    """Nobody here maps them: a name is written in its ASCII form, or is none."""

    async def scenario() -> None:
        names = {**HERE, "fass.test": ["127.0.0.1"], "xn--fa-hia.test": ["127.0.0.1"]}
        async with server(OK) as site, proxy("*.test", f"127.0.0.1:{site.port}", names=names) as agent:
            raw, port = host.encode(), site.port
            if way == "socks":
                data = GREETING + b"\x05\x01\x00\x03" + bytes([len(raw)]) + raw + port.to_bytes(2)
            else:
                place = raw + b":%d" % port
                data = b"CONNECT " + place if way == "connect" else b"GET http://" + place + b"/"
                data += b" HTTP/1.1\r\nHost: x\r\n\r\n"
            await agent.send(data)
            assert (await agent.last()).code == "net.malformed"
            assert (site.connections, agent.asked) == (0, [])

    asyncio.run(scenario())
