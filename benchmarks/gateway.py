"""The gateway beside 64 busy agents: the p99 of their calls with and without full HTTP load, its memory with clients
that do not read, and what a scrape of /metrics a second costs.

Kernel and gateway are processes of their own; this process is all the agents, and another one asks over HTTP. With and
without are sampled in turn, so that both meet the same neighbours.
"""

import asyncio
import json
import multiprocessing
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from socket import SO_RCVBUF, SOL_SOCKET, create_connection, create_server, socket
from typing import Any

from benchmarks.kernel import AGENTS, folder
from benchmarks.kernel_load import RECEIVED, ROOT, WRITE, Side, drive
from benchmarks.measure import Report, Series

from agent_os.abi.doors import Tokens
from agent_os.abi.frames import Splitter
from agent_os.client.wire import connect

ROUNDS, SECONDS = 5, 2.0
LINES = 8  # HTTP connections, each asking as fast as it is answered
SLOW = 32
PATHS = ("/api/v1/status", "/api/v1/agents", "/api/v1/approvals", "/metrics")
LIMITS = {"rate": 1e6, "burst": 1_000_000, "websockets": 1000}


async def run(report: Report, long: bool) -> None:
    with folder() as home:
        path = home / "kernel.sock"
        side = Side("kernel", home, AGENTS, socket=str(path), doors=True)
        try:
            async with connect(path) as client:
                token = (await client.call(Tokens(do="add", name="bench", role="operator")))["token"]
            with gateway(path) as (address, process):
                measure(report, side, address, token)
                slow(report, side, address, token, process.pid)
        finally:
            side.close()


@contextmanager
def gateway(path: Path) -> Iterator[tuple[tuple[str, int], "subprocess.Popen[str]"]]:
    command = [sys.executable, "-m", "agent_os.gateway"]
    pipe, quiet = subprocess.PIPE, subprocess.DEVNULL
    with (
        create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=quiet, text=True, pass_fds=(listener.fileno(),)
        ) as process,
    ):
        order = {"socket": str(path), "host": "127.0.0.1", "listener": listener.fileno(), "limits": LIMITS}
        assert process.stdin
        assert process.stdout
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        host, port = json.loads(process.stdout.readline())["url"].rpartition("/")[2].split(":")
        try:
            yield (host, int(port)), process
        finally:
            process.kill()


def measure(report: Report, side: Side, address: tuple[str, int], token: str) -> None:
    alone, loaded = Series("p99 of a call, 64 agents", "µs"), Series("p99 of a call under full HTTP load", "µs")
    quiet, scraped = Series("calls, 64 agents", "/s"), Series("calls with a scrape a second", "/s")
    asked = multiprocessing.get_context("spawn").Value("q", 0)
    for _ in range(ROUNDS):
        alone.samples.append(p99(side.socks, SECONDS))
        with asking(address, token, LINES, 0.0, asked):
            loaded.samples.append(p99(side.socks, SECONDS))
        quiet.samples.append(drive(side.socks, WRITE, SECONDS))
        with asking(address, token, 1, 1.0, asked):
            scraped.samples.append(drive(side.socks, WRITE, SECONDS))
    for series in (alone, loaded, quiet, scraped):
        report.add(series)
    report.figure("HTTP requests answered meanwhile", asked.value / (ROUNDS * SECONDS), "/s")
    report.goal("gateway: p99 of a call under HTTP load, of that without", loaded.p50 / alone.p50, "≤", 3, "×")
    report.goal("gateway: a scrape a second costs of calls/s", 100 * (1 - scraped.p50 / quiet.p50), "≤", 1, "%")


def p99(socks: Sequence[socket], seconds: float) -> float:
    """µs. Each agent asks one call after the other."""
    poll, took = select.epoll(), list[float]()
    peers = {sock.fileno(): (sock, Splitter()) for sock in socks}
    began = dict.fromkeys(peers, 0.0)
    end = time.perf_counter() + seconds
    for number, (sock, _) in peers.items():
        poll.register(number, select.EPOLLIN)
        began[number] = time.perf_counter()
        sock.sendall(WRITE)
    waiting = set(peers)
    while waiting:
        for number, _ in poll.poll(5):
            sock, splitter = peers[number]
            if splitter.feed(sock.recv(RECEIVED)):
                now = time.perf_counter()
                took.append((now - began[number]) * 1e6)
                if now < end:
                    began[number] = now
                    sock.sendall(WRITE)
                else:
                    waiting.discard(number)
    poll.close()
    return sorted(took)[int(len(took) * 0.99)]


@contextmanager
def asking(address: tuple[str, int], token: str, lines: int, pause: float, count: Any) -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=load, args=(address, token, lines, pause, count))
    process.start()
    before = count.value
    while count.value == before:  # it is at it
        time.sleep(0.01)
    try:
        yield
    finally:
        process.terminate()
        process.join()


def load(address: tuple[str, int], token: str, lines: int, pause: float, count: Any) -> None:
    async def line(number: int) -> None:
        reader, writer = await asyncio.open_connection(*address)
        turn = number
        while True:
            path = "/metrics" if pause else PATHS[turn % len(PATHS)]
            turn += 1
            head = f"GET {path} HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nAuthorization: Bearer {token}\r\n\r\n"
            writer.write(head.encode())
            answer = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " not in answer.partition(b"\r\n")[0]:
                raise RuntimeError(answer.decode())
            size = next(one for one in answer.lower().split(b"\r\n") if one.startswith(b"content-length"))
            await reader.readexactly(int(size.partition(b":")[2]))
            count.value += 1
            await asyncio.sleep(pause)

    async def all_lines() -> None:
        await asyncio.gather(*(line(number) for number in range(lines)))

    asyncio.run(all_lines())


def slow(report: Report, side: Side, address: tuple[str, int], token: str, pid: int) -> None:
    """Clients of the event stream that ask for everything and read nothing."""
    before = memory(pid)
    clients = [deaf(address, token) for _ in range(SLOW)]
    most = 0
    for _ in range(10):
        drive(side.socks, WRITE, 1.0)
        most = max(most, memory(pid))
    for client in clients:
        client.close()
    report.figure(f"gateway: memory before {SLOW} clients that do not read", before / 2**20, "MiB")
    report.goal("gateway: memory for each client that does not read", (most - before) / SLOW / 2**20, "≤", 3, "MiB")


def deaf(address: tuple[str, int], token: str) -> socket:
    opened = create_connection(address)
    opened.setsockopt(SOL_SOCKET, SO_RCVBUF, 4096)
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: {address[0]}:{address[1]}\r\nAuthorization: Bearer {token}\r\n"
    head += "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    head += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: agent-os.v1\r\n\r\n"
    opened.sendall(head.encode())
    if b" 101 " not in opened.recv(1024):
        raise RuntimeError("the gateway took no WebSocket")
    wish = b"{}"
    opened.sendall(bytes((0x81, 0x80 | len(wish), 0, 0, 0, 0)) + wish)
    return opened


def memory(pid: int) -> int:
    rows = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(row[1]) * 1024 for row in rows if row[0].startswith("Private_"))
