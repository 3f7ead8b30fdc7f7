"""SOCKS5: the handshake byte by byte, then on real sockets with real clients. Tunnels themselves: test_proxy."""

import asyncio
import shutil
import socket
from ipaddress import ip_address
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.kernel.egress.socks import Handshake
from kernel.egress.proxies import GOOD, GREETING, HERE, OK, OPENED, QUICK, echo, granted, proxy, server, socks_request

PLAIN = b"\x05\x00"  # the answer to a greeting


def reply(code: int) -> bytes:
    return bytes([5, code, 0, 1]) + bytes(6)


# ------------------------------------------------------------------------------------------------------ the handshake


def shake(*pieces: bytes) -> tuple[Handshake, bytes]:
    socks, said = Handshake(), b""
    for piece in pieces:
        if socks.problem or socks.asked:
            socks.rest += piece  # nobody feeds it any more; what comes belongs to the tunnel
        else:
            said += socks.feed(piece)
    return socks, said


TARGETS = [
    ("site.test", 443, "site.test"),
    ("s\xefte\0.test", 1, "s\xefte\0.test"),  # not judged here
    ("", 65535, ""),
    ("x" * 255, 80, "x" * 255),
    (bytes([192, 168, 1, 2]), 22, "192.168.1.2"),
    (ip_address("2606:4700::1").packed, 443, "[2606:4700::1]"),
    (bytes(16), 0, "[::]"),
]


@pytest.mark.parametrize(("host", "port", "text"), TARGETS)
def test_every_form_of_a_target_is_read(host: str | bytes, port: int, text: str) -> None:
    socks, said = shake(GREETING, socks_request(host, port) + b"early")
    assert (said, socks.asked, socks.problem) == (PLAIN, True, "")
    assert (socks.host, socks.port, socks.rest) == (text, port, b"early")
    assert socks.accept() == OPENED
    assert socks.refuse("net.broken") == b""  # the tunnel is open: whatever we say now, the client takes for the server


@pytest.mark.parametrize("greeting", [b"\x05\x01\x00", b"\x05\x03\x02\x01\x00", b"\x05\xff" + bytes(255)])
def test_a_greeting_that_offers_no_authentication_is_welcome(greeting: bytes) -> None:
    socks, said = shake(greeting)
    assert (said, socks.problem, socks.asked) == (PLAIN, "", False)


# what the client says; the part of it that is answered as if it were right; the last word; what is wrong
WRONG = [
    (b"\x05\x00", b"", b"\x05\xff", "authentication"),
    (b"\x05\x02\x02\x01", b"", b"\x05\xff", "authentication"),
    (b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", b"", b"\x00\x5b" + bytes(6), "SOCKS4"),
    (b"\x04", b"", b"\x00\x5b" + bytes(6), "SOCKS4"),
    (GREETING + b"\x04\x01", PLAIN, b"", "not a SOCKS5 request"),
    (GREETING + b"GET / HTTP/1.1", PLAIN, b"", "not a SOCKS5 request"),
    (GREETING + b"\x05\x02", PLAIN, reply(7), "BIND"),
    (GREETING + b"\x05\x03\x00\x01" + bytes(6), PLAIN, reply(7), "UDP ASSOCIATE"),
    (GREETING + b"\x05\x00", PLAIN, reply(7), "number 0"),
    (GREETING + b"\x05\xf0", PLAIN, reply(7), "number 240"),
    (GREETING + b"\x05\x01\x01\x01", PLAIN, b"", "reserved"),
    (GREETING + b"\x05\x01\x00\x02", PLAIN, reply(8), "address type 2"),
    (GREETING + b"\x05\x01\x00\x00", PLAIN, reply(8), "address type 0"),
]


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize(("data", "said", "last", "problem"), WRONG)
def test_what_is_not_right_has_its_own_answer_and_only_one(
    data: bytes, said: bytes, last: bytes, problem: str, one_by_one: bool
) -> None:
    socks, heard = shake(*(bytes([byte]) for byte in data)) if one_by_one else shake(data)
    assert heard == said
    assert problem in socks.problem
    assert not socks.asked
    assert socks.refuse("net.malformed") == last
    assert socks.refuse("net.malformed") == b""


REPLIES = [
    *[(code, 2) for code in ("net.host", "net.port", "net.address", "net.route", "net.malformed")],
    *[("net.resolve", 4), ("net.dial", 5), ("net.limit", 1), ("net.internal", 1)],
]


@pytest.mark.parametrize(("code", "number"), REPLIES)
def test_every_end_has_its_reply(code: str, number: int) -> None:
    socks, _ = shake(GREETING + socks_request("site.test", 443))
    assert socks.refuse(code) == reply(number)


def test_before_the_greeting_is_read_there_is_nothing_to_say() -> None:
    assert shake(b"\x05")[0].refuse("net.limit") == b""


@given(
    st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(GREETING.__add__)),
    st.lists(st.integers(0, 300), max_size=5),
)
def test_the_pieces_in_which_it_comes_make_no_difference(data: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in pairwise(places)]
    whole, said_whole = shake(data)
    parts, said_parts = shake(*pieces)
    assert said_whole == said_parts
    assert (whole.problem, whole.asked, whole.host, whole.port) == (parts.problem, parts.asked, parts.host, parts.port)
    if whole.asked:
        assert whole.rest == parts.rest
    assert whole.refuse("net.host") == parts.refuse("net.host")


@given(st.text(st.characters(max_codepoint=255), max_size=255), st.integers(0, 65535), st.binary(max_size=50))
def test_what_a_client_asks_for_is_what_is_read(name: str, port: int, early: bytes) -> None:
    socks, _ = shake(GREETING + socks_request(name, port) + early)
    assert (socks.asked, socks.host, socks.port, socks.rest) == (True, name, port, early)


# --------------------------------------------------------------------------------------------------- on real sockets


def test_a_tunnel_by_name_carries_bytes_both_ways_half_closes_and_is_recorded() -> None:
    async def scenario() -> None:
        async with server(echo) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            answer, reader, writer = await agent.socks("SITE.test.", site.port)
            assert answer == OPENED
            writer.write(b"plain words")
            writer.write_eof()
            assert await asyncio.wait_for(reader.read(), 5) == b"plain words<end>"
            end = await agent.last()
            assert (end.protocol, end.host, end.port, end.verdict) == ("socks", "site.test", site.port, "allow")
            assert (end.address, end.bytes_up, end.bytes_down) == ("127.0.0.1", 11, 16)
            assert [record.done for record in agent.records] == [False, True]
            assert agent.asked == ["site.test"]

    asyncio.run(scenario())


@pytest.mark.parametrize("host", [bytes([127, 0, 0, 1]), ip_address("::ffff:127.0.0.1").packed, "127.0.0.1"])
def test_an_address_needs_its_grant_in_every_form(host: str | bytes) -> None:
    async def scenario() -> None:
        async with server(echo) as site, proxy(f"127.0.0.1:{site.port}") as agent, proxy("site.test") as other:
            assert (await agent.socks(host, site.port))[0] == OPENED
            assert (await other.socks(host, site.port))[0] == reply(2)
            record = await other.last()
            assert (record.code, record.host, record.allow_flag) == (
                "net.address",
                "127.0.0.1",
                f"--net 127.0.0.1:{site.port}",
            )
            assert site.connections == 1

    asyncio.run(scenario())


def test_all_of_it_in_one_piece_and_all_of_it_byte_by_byte() -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            words = GREETING + socks_request("site.test", site.port) + b"GET / HTTP/1.0\r\n\r\n"
            assert await agent.send(words) == PLAIN + OPENED + OK
            reader, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in words:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            assert await asyncio.wait_for(reader.read(), 5) == PLAIN + OPENED + OK
            writer.close()

    asyncio.run(scenario())


DISGUISES = [
    *("2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0xa9fea9fe", "a b.test", "user@site.test", "s\xefte.test"),
    *(
        "site.test\0.evil.test",
        "evil.test\0.site.test",
        "\0",
        "site.test\0",
        "site..test",
        "site.test:443",
        "*.site.test",
    ),
    *("", "\xe9", "::1", "[::1", "x" * 255),
]
REFUSED = [
    ("evil.test", 443, "net.host", "--net evil.test"),
    ("site.test", 22, "net.port", "--net site.test:22"),
    ("site.test", 25, "net.port", "--net site.test:25"),
    ("deep.test", 443, "net.address", None),
    (ip_address("169.254.169.254").packed, 80, "net.address", None),
    (ip_address("64:ff9b::a9fe:a9fe").packed, 80, "net.address", None),
    (ip_address("2002:7f00:1::").packed, 80, "net.address", "--net 127.0.0.1:80"),
    (ip_address("::1").packed, 80, "net.address", "--net [::1]:80"),
    (bytes(4), 80, "net.address", None),
    (bytes(16), 80, "net.address", None),
    ("site.test", 0, "net.malformed", None),
    *[(host, 443, "net.malformed", None) for host in DISGUISES],
]


@pytest.mark.parametrize(("host", "port", "code", "flag"), REFUSED)
def test_what_is_not_granted_is_refused_with_code_2_and_never_dialled(
    host: str | bytes, port: int, code: str, flag: str | None
) -> None:
    async def scenario() -> None:
        names = HERE | {"deep.test": ["169.254.169.254"]}
        async with proxy("site.test", "*.site.test", "deep.test", "0.0.0.0/0", names=names) as agent:
            answer, reader, _ = await agent.socks(host, port)
            assert answer == reply(2)
            assert await asyncio.wait_for(reader.read(), 5) == b""
            record = await agent.last()
            assert (record.verdict, record.code, record.protocol, record.allow_flag) == ("deny", code, "socks", flag)
            assert record.host.isprintable()
            assert record.reason.isprintable()
            assert [asked for asked in agent.asked if asked != "deep.test"] == []
            assert len(agent.records) == 1

    asyncio.run(scenario())


def test_a_failure_is_told_apart_from_a_refusal() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port = gone.getsockname()[1]
        async with proxy("nowhere.test", f"127.0.0.1:{port}") as agent:
            assert (await agent.socks("nowhere.test", 443))[0] == reply(4)
            assert (await agent.last()).code == "net.resolve"
            assert (await agent.socks("127.0.0.1", port))[0] == reply(5)
            assert (await agent.last(2)).code == "net.dial"

    asyncio.run(scenario())


@pytest.mark.parametrize(("data", "said", "last", "problem"), WRONG)
def test_a_wrong_handshake_is_answered_closed_and_recorded(data: bytes, said: bytes, last: bytes, problem: str) -> None:
    async def scenario() -> None:
        async with proxy("site.test", names=HERE) as agent:
            assert await agent.send(data) == said + last
            record = await agent.last()
            assert (record.verdict, record.code, record.protocol) == ("deny", "net.malformed", "socks")
            assert problem in record.reason
            assert agent.asked == []

    asyncio.run(scenario())


@pytest.mark.parametrize("data", [b"\x05", b"\x05\x02\x00", GREETING, GREETING + b"\x05\x01\x00\x03\x09site"])
def test_a_slow_handshake_is_cut(data: bytes) -> None:
    async def scenario() -> None:
        async with proxy("site.test", limits=QUICK) as agent:
            answer = await asyncio.wait_for(agent.send(data), 5)
            assert answer == (PLAIN + reply(1) if data.startswith(GREETING) else b"")
            assert [record.code for record in agent.done] == ["net.limit"]

    asyncio.run(scenario())


@pytest.mark.parametrize("data", [b"\x05", GREETING, GREETING + b"\x05\x01\x00\x03\x09site"])
def test_a_client_that_leaves_in_the_middle_is_recorded(data: bytes) -> None:
    async def scenario() -> None:
        async with proxy("site.test") as agent:
            _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
            writer.write(data)
            writer.write_eof()
            assert (await agent.last()).code == "net.malformed"
            writer.close()

    asyncio.run(scenario())


def test_socks_is_spoken_from_the_first_byte_or_not_at_all() -> None:
    async def scenario() -> None:
        async with server(OK) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            first = f"GET http://site.test:{site.port}/ HTTP/1.1\r\nHost: site.test:{site.port}\r\n\r\n".encode()
            answer = await agent.send(first + GREETING + socks_request("site.test", site.port) + b"\r\n\r\n")
            assert answer.count(b"200 OK") == 1
            assert b" 400 " in answer
            assert [(one.protocol, one.code) for one in agent.done] == [
                ("http", "net.allow"),
                ("http", "net.malformed"),
            ]
            assert site.connections == 1

    asyncio.run(scenario())


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl command here to ask with")
def test_curl_asks_by_name_and_is_refused_by_name() -> None:
    async def curl(*words: str) -> tuple[int, bytes]:
        command = ["curl", "-q", "-sS", "--max-time", "10", "--noproxy", "", *words]
        done = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        output, errors = await done.communicate()
        return done.returncode or 0, output + errors

    async def scenario() -> None:
        async with server(OK) as site, proxy(*granted("site.test", site.port), names=HERE) as agent:
            url, way = f"http://site.test:{site.port}/", f"127.0.0.1:{agent.port}"
            assert await curl("--socks5-hostname", way, url) == (0, b"hi")
            assert await curl("-x", f"socks5h://{way}", url) == (0, b"hi")
            code, words = await curl("--socks5-hostname", way, url.replace("site", "evil"))
            assert (code, b"(2)" in words) == (97, True), words
            assert (await curl("--socks4a", way, url))[0] != 0
            assert await curl("-x", f"http://{way}", url) == (0, b"hi")
            assert [one.protocol for one in agent.done] == ["socks"] * 4 + ["http"]
            assert agent.asked == ["site.test"] * 3

    asyncio.run(scenario())


# -------------------------------------------------------------------------------------------------------------- fuzz

HOSTS = st.one_of(
    st.sampled_from(["site.test", "SITE.test.", "evil.test", "127.0.0.1", "127.1", "site.test\0evil.test", ""]),
    st.text(st.characters(max_codepoint=255), max_size=255),
    st.sampled_from(["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254"]).map(
        lambda text: ip_address(text).packed
    ),
    st.binary(min_size=4, max_size=4),
    st.binary(min_size=16, max_size=16),
)
REQUESTS = st.builds(socks_request, HOSTS, st.sampled_from([0, 22, 80, 443]), st.sampled_from([1, 1, 1, 2, 3, 9]))
PIECES = st.one_of(
    st.just(GREETING),
    REQUESTS,
    st.binary(max_size=40),
    st.sampled_from(
        [b"\x05", b"\x04", b"\x05\x00", b"\x05\xff", GOOD, GOOD[:70], b"GET / HTTP/1.1\r\n\r\n", b"\0" * 300]
    ),
)
NOISE = st.builds(
    lambda first, second, rest: first + second + b"".join(rest),
    st.sampled_from([GREETING, GREETING, b"\x05", b"\x04", b""]),
    st.one_of(REQUESTS, st.binary(max_size=300)),
    st.lists(PIECES, max_size=4),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(NOISE, st.integers(0, 400)), min_size=1, max_size=12))
def test_whatever_bytes_a_socks_client_sends_nothing_ungranted_is_dialled_and_the_next_is_served(
    noises: list[tuple[bytes, int]],
) -> None:
    async def scenario() -> None:
        problems: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
        async with server(OK) as site:
            grants = ["site.test", "127.0.0.1:80", "127.0.0.1:443", f"127.0.0.1:{site.port}"]
            async with proxy(*grants, names=HERE, at={80: site.port, 443: site.port}) as agent:
                for noise, cut in noises:
                    _, writer = await asyncio.open_connection("127.0.0.1", agent.port)
                    writer.write(noise[:cut])
                    await asyncio.sleep(0)
                    writer.write(noise[cut:])
                    writer.write_eof()
                    answer, reader, good = await agent.socks("127.0.0.1", site.port)
                    assert answer == OPENED
                    good.write(b"GET / HTTP/1.0\r\n\r\n")
                    assert await asyncio.wait_for(reader.read(), 5) == OK
                    writer.close()
                assert {record.address for record in agent.records} <= {"", "127.0.0.1"}
                assert set(agent.asked) <= {"site.test"}
        assert problems == []

    asyncio.run(scenario())
