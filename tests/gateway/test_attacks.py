"""Whoever tries to get in at the front door, or to get more than is theirs. Each attempt stands beside one that differs
in a single thing and succeeds, so that a refusal is one."""

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import InvalidStatus

from agent_os.abi.doors import Session, Tokens
from agent_os.client.wire import connect
from cli.desk import SECONDS, until
from gateway.house import API, House
from gateway.listening import PROTOCOL, heard, listening

pytestmark = pytest.mark.integration
JSON = "Content-Type: application/json"
LIMIT = f"{API}/budgets/worker"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"), limits={"rate": 10_000, "burst": 10_000})
    house.desk.start("worker")
    yield house
    house.close()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def head(house: House, line: str, *more: str, host: str | None = None, token: str | None = None) -> bytes:
    lines = [line, f"Host: {host or house.host}", f"Authorization: Bearer {token or house.tokens['operator']}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


def sent(house: House, data: bytes) -> tuple[list[int], bytes]:
    """The statuses of all answers until the gateway closes, byte for byte as written here."""
    name, _, port = house.host.partition(":")
    with socket.create_connection((name, int(port)), timeout=SECONDS) as line:
        line.sendall(data)
        got = b"".join(iter(lambda: line.recv(65536), b""))
    return [int(one) for one in re.findall(rb"HTTP/1\.1 (\d{3}) ", got)], got


def change(value: int) -> bytes:
    return json.dumps({"limits": {"calls": value}}).encode()


def put(house: House, value: int, **more: Any) -> tuple[list[int], bytes]:
    """A change, raw."""
    body = change(value)
    lines = [
        JSON,
        f"Content-Length: {len(body)}",
        "Connection: close",
        *more.pop("add", []),
    ]
    return sent(house, head(house, f"PUT {LIMIT} HTTP/1.1", *lines, **more) + body)


def cap(house: House) -> Any:
    uses = [use for one in house.get("budgets").json()["items"] for use in one["uses"] if "worker" in one["account"]]
    return next((use["limit"] for use in uses if use["resource"] == "calls"), None)


# Pages and names.


@pytest.mark.parametrize(
    ("add", "host", "status"),
    [
        (["Origin: https://evil.example"], None, 403),
        (["Origin: null"], None, 403),
        (["Origin: http://127.0.0.1:1"], None, 403),
        (["Origin: OWN", "Origin: https://evil.example"], None, 403),
        ([], "evil.example:7700", 421),
        ([], "127.0.0.1.evil.example:80", 421),
        ([], "127.0.0.1", 421),
        (["X-Forwarded-Host: OWN", "Forwarded: host=OWN"], "evil.example", 421),
    ],
)
def test_a_foreign_page_and_a_name_that_was_rebound_change_nothing(
    house: House, add: list[str], host: str | None, status: int
) -> None:
    assert put(house, 1000, add=[f"Origin: {house.url}"])[0] == [200]
    assert cap(house) == 1000
    lines = [one.replace("OWN", house.url if one.startswith("Origin") else house.host) for one in add]
    got, said = put(house, 6, add=lines, host=host)
    assert got == [status], said
    assert cap(house) == 1000
    assert b"access-control" not in said.lower()


def test_a_foreign_page_gets_no_stream(house: House) -> None:
    async def hello(origin: str | None, path: str = "") -> None:
        async with open_socket(
            f"ws://{house.host}{API}/events{path}",
            additional_headers=bearer(house.tokens["operator"]),
            subprotocols=[PROTOCOL],  # type: ignore[list-item]
            origin=origin,  # type: ignore[arg-type]
            proxy=None,
        ) as client:
            await client.send(json.dumps({"cursor": None}))
            assert (await heard(client))["type"] == "stream.live"

    asyncio.run(hello(None))
    asyncio.run(hello(house.url))
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus) as refused:
            asyncio.run(hello(origin))
        assert refused.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as refused:
        asyncio.run(hello(None, f"?token={house.tokens['operator']}"))
    assert refused.value.response.status_code == 400


# Tokens, codes, sessions, tickets.


def test_a_change_needs_a_token_that_is_good_and_of_the_role(house: House) -> None:
    short = house.token("brief", ttl_s=2.0)
    assert put(house, 2000, token=short)[0] == [200]
    until(lambda: house.get("session", role=None, headers=bearer(short)).status_code == 401)
    assert house.call("PUT", LIMIT, role=None, json={"limits": {"calls": 6}}).status_code == 401
    assert put(house, 6, token=short)[0] == [401]
    assert put(house, 6, token="aos_" + "A" * 43)[0] == [401]
    assert put(house, 6, token=house.tokens["operator"][:-1])[0] == [401]
    for role in ("viewer", "auditor"):
        assert put(house, 6, token=house.tokens[role])[0] == [403]
    assert cap(house) == 2000


def test_a_token_in_an_address_is_refused_even_beside_a_good_header(house: House) -> None:
    token = house.tokens["operator"]
    assert house.get("status", params={"x": "y"}).status_code == 200
    for query in ({"token": token}, {"access_token": token}, {"x": f"aoss_{token[4:]}"}):
        assert house.get("status", params=query).json()["detail_code"] == "token.query"
    assert token not in house.log()


def test_a_code_is_good_once_and_five_wrong_ones_kill_it(house: House) -> None:
    enter = lambda code: house.post("session", {"code": code}, role=None)  # noqa: E731
    used = house.code()
    assert enter(used).status_code == 200
    assert enter(used).status_code == 401
    right = house.code()
    wrong = [enter(f"ZZZZ-ZZZ{number}").status_code for number in range(2, 7)]
    assert wrong == [401] * 5
    late = enter(right)
    assert late.status_code == 401, late.text
    assert enter(house.code()).status_code == 200, "a new one is good"


def test_a_ticket_opens_one_stream(house: House) -> None:
    once = house.post("session/tickets", {}, headers=bearer(house.session()), role=None).json()["ticket"]

    async def test() -> None:
        async with listening(house, ticket=once) as client:
            assert (await heard(client))["type"] == "stream.live"
        async with listening(house, ticket=once) as client:
            await client.wait_closed()
            assert client.close_code == 4001
        assert (await asyncio.to_thread(house.get, "status", role=None, headers=bearer(once))).status_code == 401

    asyncio.run(test())


def test_a_session_ends_with_the_token_that_it_came_from(house: House) -> None:
    async def code(token: str) -> str:
        async with connect(house.socket, token=token) as client:
            return (await client.call(Session(do="code", role="viewer")))["code"]

    token = house.token("anna", "viewer")
    mine = bearer(house.post("session", {"code": asyncio.run(code(token))}, role=None).json()["session"])
    assert house.get("status", role=None, headers=mine).status_code == 200
    house.ask(Tokens(do="remove", name="anna"))
    assert house.get("status", role=None, headers=mine).status_code == 401


def test_a_session_that_was_given_away_to_look_takes_no_place_of_its_owners(house: House) -> None:
    """Both are called by the name of whoever is at the machine."""
    code = house.ask(Session(do="code", role="viewer"))["code"]
    wall, own = (house.post("session", {"code": one}, role=None).json() for one in (code, house.code()))
    assert (wall["name"], wall["role"], own["role"]) == (own["name"], "viewer", "operator")

    def ticket(session: str) -> str:
        return house.post("session/tickets", {}, role=None, headers=bearer(session)).json()["ticket"]

    first = ticket(own["session"])
    taken = [ticket(wall["session"]) for _ in range(70)]

    async def test() -> None:
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(listening(house, ticket=one)) for one in taken[-64:]]
            for one in streams:
                assert (await heard(one))["type"] == "stream.live"
            async with listening(house, token=wall["session"]) as more:
                await more.wait_closed()
                assert more.close_code == 1013, "they have had theirs"
            async with listening(house, ticket=first) as mine:
                assert (await heard(mine))["type"] == "stream.live"

    asyncio.run(test())


def test_a_session_of_an_earlier_boot_is_over_and_a_token_is_not(tmp_path: Path) -> None:
    house = House(tmp_path)
    try:
        mine, code = bearer(house.session()), house.code()
        assert house.get("status", role=None, headers=mine).status_code == 200
        house.desk.kill_kernel()
        house.http.close()
        house.open()
        assert house.get("status").status_code == 200
        assert house.get("status", role=None, headers=mine).status_code == 401
        assert house.post("session", {"code": code}, role=None).status_code == 401
    finally:
        house.close()


def test_the_key_of_another_token_gives_nobody_its_answer(house: House) -> None:
    wish = {"agent": "worker", "capability": "http:api.example.com:get"}
    key = {"Idempotency-Key": "k-1"}
    first = house.post("capabilities", wish, headers=key)
    again = house.post("capabilities", wish, headers=key)
    assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    low = house.post("capabilities", wish, headers=key, role="viewer")
    assert (low.status_code, first.json()["handle"] in low.text) == (403, False)
    other = house.post("capabilities", wish, role=None, headers={**key, **bearer(house.token("berta"))})
    assert other.status_code == 201
    assert "idempotency-replayed" not in other.headers
    assert other.json()["handle"] != first.json()["handle"]
    assert house.post("capabilities", wish, role=None, headers={**key, **bearer("aos_" + "A" * 43)}).status_code == 401


RULES = 'version = 1\ndefault = "capability"\n[[rule]]\nid = "{}"\neffect = "forbid"\nwhat = ["tool:mail:call"]\n'


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("agents/worker/memory/mem/working/raced", lambda name: {"data": name}),
        ("policies/operator", lambda name: {"text": RULES.format(name)}),
    ],
    ids=["memory", "policy"],
)
def test_of_many_who_replace_one_version_at_once_one_does(
    house: House, place: str, body: Callable[[str], dict[str, str]]
) -> None:
    if "memory" in place:
        assert house.call("PUT", place, json={"data": "first"}).status_code == 200
    etag = house.get(place).headers["etag"]

    def replaced(name: str) -> int:
        return house.call("PUT", place, json=body(name), headers={"If-Match": etag}).status_code

    names = [f"by-{letter}" for letter in "abcdefghijklmnop"]
    with ThreadPoolExecutor(len(names)) as threads:
        ended = dict(zip(names, threads.map(replaced, names), strict=True))
    assert sorted(ended.values()) == [200, *[412] * 15]
    now = house.get(place)
    assert [name for name in names if name in now.text] == [name for name in names if ended[name] == 200]
    assert now.headers["etag"] != etag


# Addresses.


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../index.html",
        "/assets/..%2findex.html",
        "/assets/%2e%2e/index.html",
        "/assets/..%5cindex.html",
        "/assets/%2fetc%2fpasswd",
        "/assets//etc/passwd",
        "/assets/....//index.html",
        "/..%2f..%2f..%2fetc/passwd",
        "/api/v1/status/",
        "/api/v1//status",
        "/api/v1/./status",
        "/api/v1/agents/../status",
        "/api/v1/agents/..%2fstatus",
        "/api/v1/agents/worker%2f..%2f..%2fstatus",
        "/api/v1/agents/worker%00",
        "/api/v1%2fstatus",
        "/%61pi/v1/status%2f",
    ],
)
def test_no_trick_of_an_address_leads_anywhere(house: House, path: str) -> None:
    page = house.get("/", role=None).text
    asset = re.search(r"/assets/[\w.-]+\.js", page)
    assert asset
    assert sent(house, head(house, f"GET {asset[0]} HTTP/1.1", "Connection: close"))[0] == [200]
    got, said = sent(house, head(house, f"GET {path} HTTP/1.1", "Connection: close"))
    assert got in ([404], [422]), said
    assert json.loads(said.partition(b"\r\n\r\n")[2])["code"] in ("ENOENT", "ETYPE")


@pytest.mark.parametrize(
    "path",
    [
        "../../etc/passwd",
        "mem/working/../../etc/passwd",
        "mem/working/..%2f..%2f..%2fetc%2fpasswd",
        "mem/working/%2e%2e/%2e%2e/etc/passwd",
        "%2fetc%2fpasswd",
        "work/../../../etc/passwd",
        "mem/working/../../../other/mem/working/note",
        "proc/self/environ",
        "mem/working/note%00",
    ],
)
def test_no_path_in_a_memory_leads_out_of_it(house: House, path: str) -> None:
    place = f"GET {API}/agents/worker/memory/"
    got, said = sent(house, head(house, f"{place}mem/working/note HTTP/1.1", "Connection: close"))
    assert (got, b'"hello"' in said) == ([200], True)
    got, said = sent(house, head(house, f"{place}{path} HTTP/1.1", "Connection: close"))
    assert got in ([400], [403], [404]), said
    assert b"root:" not in said
    assert b"PATH=" not in said


# Bodies.


def test_what_is_too_large_or_too_deep_is_refused_without_being_read(house: House) -> None:
    deep = lambda number: b'{"to":"worker","payload":' + b"[" * number + b"]" * number + b"}"  # noqa: E731
    assert house.call("POST", "messages", content=deep(63)).status_code == 200
    assert house.call("POST", "messages", content=deep(64)).json()["detail_code"] == "json.depth"
    assert house.call("POST", "messages", content=deep(500_000)).json()["detail_code"] == "json.depth"
    said = sent(house, head(house, f"PUT {LIMIT} HTTP/1.1", JSON, "Content-Length: 99999999"))
    assert said[0] == [413]
    many = b"".join(b"10000\r\n" + b" " * 65536 + b"\r\n" for _ in range(17)) + b"0\r\n\r\n"
    lines = [JSON, "Transfer-Encoding: chunked"]
    assert sent(house, head(house, f"PUT {LIMIT} HTTP/1.1", *lines) + many)[0] == [413], "nobody said how large it is"
    assert house.get("status").status_code == 200


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: LENGTH", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 4"],
        ["Content-Length: LENGTH", "Content-Length: 4"],
        ["Content-Length: +LENGTH"],
        ["Content-Length: LENGTH, 4"],
        ["Content-Length: -1"],
        ["Content-Length : LENGTH"],
        ["Transfer-Encoding: identity"],
        ["Transfer-Encoding: chunked, chunked"],
        ["Transfer-Encoding: xchunked"],
        ["Content-Length: LENGTH", "X-Bad: a\rTransfer-Encoding: chunked"],
    ],
)
def test_no_request_is_hidden_in_another(house: House, lines: list[str]) -> None:
    """One that could be read in two ways is refused, and what comes after it is not read at all."""
    body = change(3000)
    whole = [JSON, f"Content-Length: {len(body)}"]
    second = head(house, f"DELETE {LIMIT} HTTP/1.1", "Connection: close")
    assert sent(house, head(house, f"PUT {LIMIT} HTTP/1.1", *whole) + body + second)[0] == [200, 200], "one by one"
    assert put(house, 3000)[0] == [200]
    told = [line.replace("LENGTH", str(len(body))) for line in lines]
    chunked = b"%x\r\n" % len(body) + body + b"\r\n0\r\n\r\n"
    for data in (body, chunked):
        first = head(house, f"PUT {LIMIT} HTTP/1.1", JSON, *told)
        got, said = sent(house, first + data + second)
        assert len(got) == 1, said
        assert 400 <= got[0] < 500, said
        assert cap(house) == 3000


def test_a_form_without_anything_in_it_is_no_change(house: House) -> None:
    line = f"POST {API}/session/tickets HTTP/1.1"
    whole = [JSON, "Content-Length: 2", "Connection: close"]
    assert sent(house, head(house, line, *whole) + b"{}")[0] == [200]
    assert sent(house, head(house, line, "Content-Length: 0", "Connection: close"))[0] == [415]
    assert sent(house, head(house, line, "Connection: close"))[0] == [415]


@pytest.mark.parametrize(
    "path", ["/", f"{API}/status", f"{API}/nothing", "/assets/nothing", "/openapi.json", "/healthz"]
)
def test_no_page_of_ours_is_shown_inside_another(house: House, path: str) -> None:
    for headers in ({}, {"Origin": "https://evil.example"}):
        said = house.get(path, headers=headers)
        assert (said.status_code == 403) == bool(headers)
        assert "frame-ancestors 'none'" in said.headers["content-security-policy"]
        assert said.headers["x-frame-options"] == "DENY"
        assert said.headers["cross-origin-opener-policy"] == "same-origin"


# From inside.

REACH = """
import json, os, socket, sys
host, port = sys.argv[1:]
def direct(name):
    with socket.create_connection((name, int(port)), timeout=10) as line:
        line.sendall(f"GET /healthz HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nConnection: close\\r\\n\\r\\n".encode())
        return line.recv(65536)
def proxied(name, tunnel):
    with socket.create_connection(("127.0.0.1", 3128), timeout=10) as line:
        first = f"CONNECT {name}:{port}" if tunnel else f"GET http://{name}:{port}/healthz"
        line.sendall(f"{first} HTTP/1.1\\r\\nHost: {name}:{port}\\r\\nConnection: close\\r\\n\\r\\n".encode())
        said = line.recv(65536)
        if tunnel and b" 200 " in said:
            line.sendall(f"GET /healthz HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nConnection: close\\r\\n\\r\\n".encode())
            said = line.recv(65536)
        return said
names = ["127.0.0.1", "localhost", "127.1", "0.0.0.0", "2130706433", "0x7f000001", "[::1]", "[::ffff:127.0.0.1]",
         "localhost.", "LOCALHOST", "127.0.0.1.nip.io"]
reached = []
for name in names:
    for way in (direct, lambda one: proxied(one, False), lambda one: proxied(one, True)):
        try:
            if b'"ok":true' in way(name):
                reached.append(name)
        except OSError:
            pass
print(json.dumps(reached))
"""


@pytest.mark.parametrize("net", [None, "127.0.0.1:1", "GATEWAY"])
def test_no_agent_gets_to_the_door(house: House, net: str | None) -> None:
    """But one whose operator opened that very port."""
    host, _, port = house.host.partition(":")
    (house.desk.project / "reach.py").write_text(REACH)
    flags = [] if net is None else ["--net", net.replace("GATEWAY", house.host)]
    said = house.desk.ask("run", "-q", *flags, "--", "python3", "reach.py", host, port)
    assert bool(json.loads(said.out.splitlines()[-1])) == (net == "GATEWAY"), said
