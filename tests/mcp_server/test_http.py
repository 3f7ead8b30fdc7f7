"""`/mcp`: official clients over streamable HTTP, as the client that their token is bound to, behind the guard."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.house import House
from mcp_server.door import ERAS, MEMORY, error, text, visit

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("MCP answers are the same for every user")]
CAPS = [word for cap in MEMORY for word in ("--cap", cap)]
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    house = House(tmp_path_factory.mktemp("house"))
    yield house
    house.close()


def client_of(house: House, name: str) -> str:
    house.desk.good("mcp", "register", name, *CAPS)
    return house.desk.good("mcp", "token", name, "--json").json["token"]


@asynccontextmanager
async def over_http(house: House, token: str, era: str = "auto") -> AsyncGenerator[Client]:
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers, trust_env=False, timeout=60) as http,
        Client(streamable_http_client(f"{house.url}/mcp", http_client=http), mode=era) as client,
    ):
        yield client


@pytest.mark.parametrize("era", ERAS)
def test_a_client_lists_and_calls_governed_tools(house: House, era: str) -> None:
    token = client_of(house, f"web-{era}")

    async def work() -> None:
        async with over_http(house, token, era) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"memory_store", "memory_retrieve"}
            assert not (await client.call_tool("memory_store", {"key": "a", "value": "hello"})).is_error
            assert '"hello"' in text(await client.call_tool("memory_retrieve", {"key": "a"}))
            refused = error(await client.call_tool("http.fetch", {"url": "https://example.com/"}))
            assert refused["detail_code"] == "cap.missing"
            assert refused["decision"].startswith("d-")

    visit(work)
    assert house.desk.good("can", f"web-{era}", MEMORY[0]).code == 0


def test_a_session_is_its_creators_alone_and_ends_with_the_token(house: House) -> None:
    mine, theirs = client_of(house, "mine"), client_of(house, "theirs")
    opened = house.http.post("/mcp", json=HELLO, headers={**ACCEPT, "Authorization": f"Bearer {mine}"})
    assert opened.status_code == 200
    session = opened.headers["mcp-session-id"]
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    same = {**ACCEPT, "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
    assert house.http.post("/mcp", json=ping, headers={**same, "Authorization": f"Bearer {mine}"}).status_code == 200
    assert house.http.post("/mcp", json=ping, headers={**same, "Authorization": f"Bearer {theirs}"}).status_code == 404
    unasked = house.desk.ask("mcp", "unregister", "mine")
    assert (unasked.code, "agentctl mcp unregister mine --yes" in unasked.err) == (2, True)
    assert house.http.post("/mcp", json=ping, headers={**same, "Authorization": f"Bearer {mine}"}).status_code == 200
    house.desk.good("mcp", "unregister", "mine", "--yes")
    assert house.http.post("/mcp", json=ping, headers={**same, "Authorization": f"Bearer {mine}"}).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer aos_nothing"}, 401),
        ({"Authorization": "Bearer OPERATOR"}, 403),
        ({"Authorization": "Bearer CLIENT", "Host": "evil.example:7700"}, 421),
        ({"Authorization": "Bearer CLIENT", "Origin": "https://evil.example"}, 403),
        ({"Authorization": "Bearer CLIENT", "Content-Type": "text/plain"}, 415),
        ({"Authorization": "Bearer CLIENT"}, 200),
    ],
)
def test_nobody_else_comes_in(house: House, guarded: str, headers: dict[str, str], status: int) -> None:
    known = {"Bearer OPERATOR": f"Bearer {house.tokens['operator']}", "Bearer CLIENT": f"Bearer {guarded}"}
    sent = {**ACCEPT, **{name: known.get(value, value) for name, value in headers.items()}}
    answer = house.http.post("/mcp", json=HELLO, headers=sent)
    assert answer.status_code == status, answer.text
    if status != 200:
        assert answer.json()["hint"], answer.text


@pytest.fixture(scope="module")
def guarded(house: House) -> str:
    return client_of(house, "guarded")


def hello(house: House, token: str, session: str | None = None) -> dict[str, str]:
    """The headers of a session: a new one, or that."""
    mine = {**ACCEPT, "Authorization": f"Bearer {token}"}
    if session is None:
        opened = house.http.post("/mcp", json=HELLO, headers=mine)
        session = opened.headers.get("mcp-session-id", f"none: {opened.status_code}")
    return {**mine, "Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}


def test_one_client_that_opens_session_after_session_takes_none_of_anothers(house: House) -> None:
    greedy, modest = client_of(house, "greedy"), client_of(house, "modest")
    opened = [hello(house, greedy)["Mcp-Session-Id"] for _ in range(136)]
    refused = [one for one in opened if one.startswith("none")]
    assert (len(refused), set(refused)) == (8, {"none: 503"})
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    assert house.http.post("/mcp", json=ping, headers=hello(house, modest)).status_code == 200
    assert house.http.post("/mcp", json=ping, headers=hello(house, modest, opened[0])).status_code == 404


@pytest.mark.parametrize("end", [("mcp", "unregister", "watcher", "--yes"), ("token", "rm", "mcp-watcher", "--yes")])
def test_a_stream_ends_with_whoever_opened_it(house: House, end: tuple[str, ...]) -> None:
    token = client_of(house, "watcher")
    with house.http.stream("GET", "/mcp", headers=hello(house, token)) as stream:
        assert (stream.status_code, stream.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
        house.desk.good(*end)
        with suppress(httpx2.RemoteProtocolError):  # it is cut off
            stream.read()
    house.desk.ask("mcp", "unregister", "watcher", "--yes")
