"""Whoever is at the door without a word, or with half of one: they end, take little, and keep nobody else out."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from agent_os.gateway.guard import too_deep
from cli.desk import SECONDS, until
from gateway.house import API, House

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]
ENTRY = f"{API}/agents/worker/memory/mem/working/large"
LINES = 24
PIECE = b"f000\r\n" + b" " * 0xF000 + b"\r\n"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    limits = {"rate": 10_000, "burst": 10_000, "lines": LINES, "ask_s": 2, "body_s": 3}
    house = House(tmp_path_factory.mktemp("house"), limits=limits)
    yield house
    house.close()


def dial(house: House, data: bytes = b"") -> socket.socket:
    name, _, port = house.host.partition(":")
    line = socket.create_connection((name, int(port)), timeout=SECONDS)
    line.sendall(data)
    return line


def upload(house: House, *more: str, token: str | None = None) -> bytes:
    """The head of a change, whose body is yet to come."""
    lines = [f"PUT {ENTRY} HTTP/1.1", f"Host: {house.host}", "Content-Type: application/json", *more]
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, "", ""]).encode()


def answer(line: socket.socket) -> tuple[int, str]:
    """Status and code; 0: there was none, the connection ended."""
    got = b""
    try:
        while data := line.recv(65536):
            got += data
    except ConnectionError:
        pass
    head, _, body = got.partition(b"\r\n\r\n")
    return (int(head.split()[1]), json.loads(body)["detail_code"]) if head else (0, "")


@pytest.mark.parametrize("half", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n", b"G"])
def test_whoever_asks_nothing_is_shown_out(house: House, half: bytes) -> None:
    with dial(house, half) as line:
        assert answer(line) == (0, "")


def test_half_a_request_after_a_whole_one_keeps_no_place_either(house: House) -> None:
    with dial(house, f"GET /healthz HTTP/1.1\r\nHost: {house.host}\r\n\r\n".encode()) as line:
        whole = b""
        while b'{"ok":true}' not in whole:  # it may come in pieces
            whole += line.recv(65536)
        line.sendall(b"GET /healthz HTTP/1.1\r\n")
        assert answer(line) == (0, "")


def test_a_body_that_does_not_come_is_not_waited_for(house: House) -> None:
    with dial(house, upload(house, "Content-Length: 100", token=house.tokens["operator"]) + b"{") as line:
        assert answer(line) == (408, "body.time")


def test_a_body_that_is_cut_off_changes_nothing(house: House) -> None:
    whole = b'{"data": "cut"}'
    place = ENTRY.replace("large", "cut")
    house.desk.start("worker")
    head = upload(house, f"Content-Length: {len(whole) + 1}", token=house.tokens["operator"]).replace(
        ENTRY.encode(), place.encode()
    )
    with dial(house, head + whole) as line:
        line.shutdown(socket.SHUT_WR)
        answer(line)
    assert house.get(place).status_code == 404
    assert house.call("PUT", place, content=whole).status_code == 200, "whole, it is a change"


def test_nobody_is_kept_out_by_those_who_ask_nothing(house: House) -> None:
    with ExitStack() as stack:
        for _ in range(3 * LINES):
            stack.enter_context(dial(house, b"GET / HTTP/1.1\r\n"))
            stack.enter_context(dial(house, upload(house, "Transfer-Encoding: chunked") + b"1\r\n"))
        began = time.monotonic()
        house.http.close()  # whose old line was idle, and may have been the first to go
        house.http = house.client()
        assert house.get("status").status_code == 200
        assert time.monotonic() - began < 2, "before any of them had to go for being late"


def test_of_a_stranger_little_is_read(house: House) -> None:
    """Nothing but the first of it is kept before somebody has said who it is for."""
    for token in (None, "aos_" + "A" * 43):
        with dial(house, upload(house, "Transfer-Encoding: chunked", token=token) + PIECE * 2) as line:
            assert answer(line)[0] == 401
        with dial(house, upload(house, "Content-Length: 9000000", token=token)) as line:
            assert answer(line)[0] == 401
    with dial(house, upload(house, "Content-Length: 9000000", token=house.tokens["operator"])) as line:
        assert answer(line) == (408, "body.time"), "it is waited for"


def test_one_token_holds_a_few_large_bodies_at_a_time(house: House) -> None:
    head = upload(house, "Content-Length: 9000000", token=house.tokens["viewer"])
    with ExitStack() as stack:
        lines = [stack.enter_context(dial(house, head)) for _ in range(5)]
        with dial(house, upload(house, "Content-Length: 9000000", token=house.tokens["operator"])) as line:
            assert answer(line) == (408, "body.time"), "of another token there are none"
        # Whichever of them comes in last: they are looked at side by side.
        assert sorted(answer(one) for one in lines) == [(408, "body.time")] * 4 + [(429, "gateway.bodies")]

    def free() -> bool:
        with dial(house, head) as line:
            return answer(line) == (408, "body.time")

    until(free)


def test_a_large_body_is_looked_through_in_no_time() -> None:
    """By the processor's clock, and in far less than a look at each byte takes: nobody else is served meanwhile."""
    text = b'"' + b"[" * 100 + b"a" * (16 << 20) + b'"'
    pairs = b"[" + b"[]," * (5 << 20) + b"1]"
    for data in (text, pairs):
        began = time.process_time()
        assert not too_deep(data, 64)
        whole, began = time.process_time() - began, time.process_time()
        assert sum(byte in b"[{" for byte in data[: len(data) // 8])
        each = 8 * (time.process_time() - began)
        assert whole < each / 2, f"{each / whole:.1f} times faster"
