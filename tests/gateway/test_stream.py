"""The event stream over real sockets: nothing is lost or told twice, whoever does not read goes, and nobody comes in
who may not."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from agent_os.abi.doors import Gateway, Session, Tokens
from agent_os.client.values import jsonable
from agent_os.client.wire import connect
from gateway.house import House
from gateway.listening import entries, expected, heard, listening, place

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]
SECONDS = 120  # a safety limit
BUSY = """
from agent_os import agent

@agent
async def busy(ctx):
    number = 0
    while True:
        number += 1
        await ctx.write("/mem/working/note", f"{number} " + "x" * 300)
"""


def start_busy(house: House, *names: str) -> None:
    (house.desk.project / "busy.py").write_text(BUSY)
    for name in names:
        house.desk.good("run", "--detach", "--name", name, "busy.py:busy")


@pytest.fixture(scope="module")
def busy(house: House) -> Iterator[House]:
    """Two agents that never rest."""
    start_busy(house, "b1", "b2")
    yield house
    for name in ("b1", "b2"):
        house.desk.ask("kill", name)


def run(test: Any) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(SECONDS):
            return await test

    return asyncio.run(limited())


async def closing(client: ClientConnection) -> tuple[int, str]:
    """Read on until it is over: the code and the reason."""
    try:
        while True:
            await client.recv()
    except ConnectionClosed as closed:
        return (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")


def ticket(house: House, token: str | None = None) -> str:
    async def asked() -> str:
        async with connect(house.socket, token=token or house.tokens["operator"]) as kernel:
            return (await kernel.call(Session(do="ticket")))["ticket"]

    return asyncio.run(asked())


# What comes.


@settings(max_examples=8, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 120), st.booleans()), min_size=1, max_size=8))
def test_over_any_cuts_the_union_of_what_is_heard_is_the_record(busy: House, cuts: list[tuple[int, bool]]) -> None:
    """Under load: some events are of the past when they are asked for, some come as they happen."""

    async def test() -> None:
        cursor = busy.get("snapshot").json()["cursor"]
        start, told = cursor, list[dict[str, Any]]()
        for most, rough in [*cuts, (150, False)]:
            async with listening(busy, cursor) as client:
                for _ in range(most):
                    event = await heard(client)
                    if not event["type"].startswith("stream."):
                        told.append(event)
                        cursor = event["cursor"]
                if rough:
                    client.transport.abort()
        assert told == await expected(busy, start, cursor, busy.tokens["operator"])
        assert len({one["cursor"] for one in told}) == len(told)

    run(test())


def test_the_past_comes_first_then_word_that_it_is_over_then_what_happens(busy: House) -> None:
    async def test() -> None:
        status = busy.get("status").json()
        async with listening(busy, f"{status['log']}.{max(0, status['entries'] - 600)}") as client:
            seen = list[int]()
            while (event := await heard(client))["type"] != "stream.live":
                seen.append(place(event["cursor"]).seq)
            assert seen[0] <= status["entries"] <= place(event["cursor"]).seq
            after = await heard(client)
            assert place(after["cursor"]).seq > place(event["cursor"]).seq
            assert after["ts"].endswith("+00:00")
            assert after.keys() == {"type", "cursor", "ts", "agent", "data"}
        async with listening(busy) as client:
            assert (await heard(client))["type"] == "stream.live", "without a cursor: from now on"

    run(test())


def test_a_client_hears_only_of_what_it_chose(busy: House) -> None:
    async def test() -> None:
        async with listening(busy, types=["decision"], agents=["b2"]) as client:
            assert (await heard(client))["type"] == "stream.live"
            for _ in range(20):
                event = await heard(client)
                assert (event["type"], event["agent"]) == ("decision", "default/b2")
        async with listening(busy, types=["agent.state"], agents=["b9"]) as client:
            assert (await heard(client))["type"] == "stream.live"
            (busy.desk.project / "busy.py").write_text(BUSY)
            await asyncio.to_thread(busy.desk.good, "run", "--detach", "--name", "b9", "busy.py:busy")
            await asyncio.to_thread(busy.desk.good, "kill", "b9")
            kinds = list[str]()
            while "exit" not in kinds:
                event = await heard(client)
                assert (event["type"], event["agent"]) == ("agent.state", "default/b9")
                kinds.append(event["data"]["kind"])
            assert kinds[0] == "spawn"

    run(test())


def test_what_is_not_in_the_record_comes_only_when_it_is_asked_for(busy: House) -> None:
    async def test() -> None:
        async with listening(busy, types=["metric"]) as client:
            assert (await heard(client))["type"] == "stream.live"
            event = await heard(client)
            assert event["type"] == "metric"
            assert "cursor" not in event
            assert event["data"]["counters"]
        loud = "from agent_os import agent\n\n@agent\nasync def loud(ctx):\n    while True:\n"
        loud += "        print('here I am', flush=True)\n        await ctx.sleep(0.05)\n"
        (busy.desk.project / "loud.py").write_text(loud)
        await asyncio.to_thread(busy.desk.good, "run", "--detach", "--name", "loud", "loud.py:loud")
        async with listening(busy, types=["log"], agents=["loud"]) as client:
            assert (await heard(client))["type"] == "stream.live"
            event = await heard(client)
            assert (event["type"], event["agent"]) == ("log", "default/loud")
            assert "here I am" in event["data"]["text"]
        await asyncio.to_thread(busy.desk.good, "kill", "loud")

    run(test())


def test_a_viewer_is_told_what_the_kernel_tells_a_viewer(busy: House) -> None:
    async def test() -> None:
        viewer = busy.tokens["viewer"]
        async with listening(busy, token=viewer, types=["decision"], agents=["b1"]) as client:
            first = await heard(client)
            event = await heard(client)
        seq = place(event["cursor"]).seq
        (own,) = await entries(busy, seq, seq, viewer)
        (whole,) = await entries(busy, seq, seq)
        assert first["type"] == "stream.live"
        assert event["data"]["body"] == jsonable(own["body"])
        assert "/mem/working/note" in str(whole["body"]), "there was something to hide"
        assert "/mem/working/note" not in json.dumps(event["data"])

    run(test())


@pytest.mark.parametrize("cursor", ["", "nonsense", "0" * 32 + ".1", "LOG.999999999"])
def test_a_cursor_that_is_not_of_this_record_is_answered_with_a_reset(busy: House, cursor: str) -> None:
    async def test() -> None:
        log = busy.get("status").json()["log"]
        async with listening(busy, cursor.replace("LOG", log)) as client:
            event = await heard(client)
            assert event["type"] == "stream.reset"
            assert place(event["cursor"]).log == log
            assert (await closing(client))[0] == 1000

    run(test())


# Who does not read.


def memory(pid: int) -> int:
    """Bytes that a process holds."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))


def test_whoever_does_not_read_is_shown_out_with_a_notice_and_costs_little(busy: House) -> None:
    async def test() -> None:
        pid = busy.gateway["pid"]
        async with listening(busy, types=["decision"]) as fast:
            assert (await heard(fast))["type"] == "stream.live"
            before = memory(pid)
            slow = [listening(busy, buffer=4096) for _ in range(12)]
            clients = [await one.__aenter__() for one in slow]
            try:
                start, most = busy.get("status").json()["entries"], 0
                while (event := await heard(fast))["data"]["seq"] < start + 4000:
                    most = max(most, memory(pid)) if event["data"]["seq"] % 50 == 0 else most
                for client in clients:
                    code, reason = await closing(client)
                    assert code == 4008, reason
                    assert "too slowly" in reason
                assert most - before < 12 * (3 << 20), "a queue, the sockets' buffers, and what goes with them"
            finally:
                for client in clients:
                    client.transport.abort()
            assert place((await heard(fast))["cursor"]).seq > start, "others hear on"

    run(test())


def raw_stream(house: House) -> socket.socket:
    """A viewer's stream, of which nobody reads anything."""
    name, _, port = house.host.partition(":")
    line = socket.socket()
    line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    line.settimeout(60)
    line.connect((name, int(port)))
    lines = [
        "GET /api/v1/events HTTP/1.1",
        f"Host: {house.host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Sec-WebSocket-Protocol: agent-os.v1",
        f"Authorization: Bearer {house.tokens['viewer']}",
    ]
    line.sendall("\r\n".join([*lines, "", ""]).encode() + frame(0x81, b'{"cursor": null}'))
    assert b" 101 " in line.recv(4096)
    return line


def frame(first: int, data: bytes = b"") -> bytes:
    return bytes([first, 0x80 | len(data), 0, 0, 0, 0]) + data


def go_on(line: socket.socket) -> None:
    """Until there is nobody to say it to."""
    for _ in range(10_000):
        line.sendall(frame(0x8A, b"!") * 100)


def test_pings_whose_answers_nobody_reads_are_not_answered_for_ever(house: House) -> None:
    pid, many = house.gateway["pid"], 200_000
    before = memory(pid)
    with raw_stream(house) as line:
        for _ in range(many // 500):
            line.sendall(frame(0x89, b"x" * 125) * 500)
        assert memory(pid) - before < many * 125 // 3
    assert house.get("status").status_code == 200


def test_a_message_in_endless_pieces_ends_the_stream(house: House) -> None:
    with raw_stream(house) as line:
        line.sendall(frame(0x01) + frame(0x00) * 10 + frame(0x89, b"?"))
        said = b""
        while b"\x8a\x01?" not in said:  # some are a client's right
            said += line.recv(4096)
        line.sendall(frame(0x00) * 1000)
        with pytest.raises(ConnectionError):
            go_on(line)


# Who may not.


def test_a_ticket_is_good_once_and_a_socket_needs_one(house: House) -> None:
    async def test() -> None:
        once = await asyncio.to_thread(ticket, house)
        async with listening(house, ticket=once) as client:
            assert client.subprotocol == "agent-os.v1"
            assert (await heard(client))["type"] == "stream.live"
        for used, token in ((once, None), ("aaaa", None), (None, "aos_" + "0" * 64)):
            async with listening(house, ticket=used, token=token) as client:
                code, reason = await closing(client)
                assert code == 4001, reason
        async with listening(house, token=" ") as client:
            code, reason = await closing(client)
            assert (code, "POST /session/tickets" in reason) == (4001, True)

    run(test())


def test_a_role_that_may_not_read_output_is_told_so(house: House) -> None:
    async def test() -> None:
        async with listening(house, token=house.tokens["viewer"], types=["log"], agents=["a"]) as client:
            code, reason = await closing(client)
            assert (code, "needs the role auditor" in reason) == (4003, True), reason

    run(test())


def test_a_token_that_is_removed_ends_its_streams(house: House) -> None:
    async def test() -> None:
        short = await asyncio.to_thread(house.token, "short-lived", "viewer")
        async with listening(house, token=short) as client:
            assert (await heard(client))["type"] == "stream.live"
            await asyncio.to_thread(house.ask, Tokens(do="remove", name="short-lived"))
            assert (await closing(client))[0] == 4009

    run(test())


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ({"types": ["agents.state"]}, "agents.state"),
        ({"types": "decision"}, "types"),
        ({"filter": 1}, "filter"),
        ({"types": ["log"]}, "agents"),
        ({"agents": [f"a{number}" for number in range(501)]}, "agents"),
    ],
)
def test_a_wish_that_cannot_be_met_is_refused_by_its_field(house: House, wish: Any, named: str) -> None:
    async def test() -> None:
        async with listening(house, **wish) as client:
            code, reason = await closing(client)
            assert (code, named in reason) == (1008, True), reason

    run(test())


def test_a_client_says_one_thing(house: House) -> None:
    async def test() -> None:
        async with listening(house) as client:
            await client.send("{}")
            assert (await closing(client))[0] == 1008

    run(test())


def test_a_token_has_so_many_streams_and_a_gateway_that_ends_says_so(tmp_path: Path) -> None:
    house = House(tmp_path, limits={"websockets": 2})

    async def test() -> None:
        async with listening(house) as first, listening(house) as second:
            for client in (first, second):
                assert (await heard(client))["type"] == "stream.live"
            async with listening(house) as third:
                code, reason = await closing(third)
                assert (code, "2 streams" in reason) == (1013, True), reason
            await second.close()
            async with listening(house) as third:
                assert (await heard(third))["type"] == "stream.live"
            await asyncio.to_thread(house.ask, Gateway(do="stop"))
            assert (await closing(first))[0] == 1012

    try:
        run(test())
    finally:
        house.close()


def test_after_a_killed_kernel_a_client_goes_on_where_it_was_and_an_old_session_is_over(tmp_path: Path) -> None:
    house = House(tmp_path)
    start_busy(house, "b1")
    session = house.session()

    async def before() -> tuple[str, str, list[dict[str, Any]]]:
        cursor = start = house.get("snapshot").json()["cursor"]
        told = list[dict[str, Any]]()
        async with listening(house, cursor, token=session) as client:
            while len(told) < 100:
                event = await heard(client)
                if not event["type"].startswith("stream."):
                    told.append(event)
                    cursor = event["cursor"]
            os.kill(pid, signal.SIGKILL)
            assert (await closing(client))[0] in (1006, 1012)
        return start, cursor, told

    async def after(start: str, cursor: str, told: list[dict[str, Any]]) -> None:
        async with listening(house, token=session) as client:
            assert (await closing(client))[0] == 4001
        async with listening(house, cursor) as client:
            while (event := await heard(client))["type"] != "stream.live":
                told.append(event)
        assert told == await expected(house, start, told[-1]["cursor"])
        assert "boot" in {one["data"]["kind"] for one in told}

    try:
        pid = house.status()["pid"]
        facts = run(before())
        house.http.close()
        house.open()
        run(after(*facts))
    finally:
        house.close()
