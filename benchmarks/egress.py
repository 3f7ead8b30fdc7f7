"""What the way out costs: the same client straight to a server, through the proxy on the host, and from inside a guest.

The server is a process of its own, the proxy runs in this one as it does in the kernel, with real records on disk.
Names are not resolved: that costs the same with or without us. A guest has no other way out, so the straight connection
is the host's.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from benchmarks import agents
from benchmarks.measure import Report, Series

from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.egress import Connection, Egress, parse_grant
from agent_os.kernel.journal import Journal
from agent_os.kernel.records import Records
from agent_os.sandbox.spec import GUEST_LIMITS, PROXY_PORT, SpawnSpec

ROUNDS, MEGABYTES, REPEATS = 200, 256, 3
CLIENT = Path(__file__).with_name("egress_client.py")
PYTHON = "/usr/bin/python3"  # a guest sees it without any mount, so all three can use the same
SERVER = Path(__file__).with_name("egress_server.py")
Samples = dict[str, list[float]]
Record = Callable[[Connection], Awaitable[None] | None]


async def run(report: Report, long: bool) -> None:
    if not os.access(PYTHON, os.X_OK):
        report.skip("egress", f"no {PYTHON}, which the client needs inside a guest")
        return
    with tempfile.TemporaryDirectory(prefix="agent-os-bench-") as scratch, upstream() as port:
        store = SqliteStore(Path(scratch) / "journal.db")
        journal = Journal.open(store, home=Path(scratch))
        records = Records(journal)
        results: dict[str, Samples] = {}
        for _ in range(REPEATS):  # in turn, so that all meet the same load
            merge(results, "direct", await on_host(port, proxy=None))
            merge(results, "proxy", await through_proxy(port, lambda connection: None))
            merge(results, "proxy, recorded on disk", await through_proxy(port, recorder(records)))
            merge(results, "guest", await from_guest(port, recorder(records)))
        await journal.close()
        store.close()
    show(report, results)


def merge(results: dict[str, Samples], way: str, samples: Samples) -> None:
    for what, values in samples.items():
        results.setdefault(way, {}).setdefault(what, []).extend(values)


def show(report: Report, results: dict[str, Samples]) -> None:
    for what in results["direct"]:
        unit = "MiB/s" if "throughput" in what else "ms"
        by_way = {way: report.add(Series(f"{what}, {way}", unit, results[way][what])) for way in results}
        if unit == "MiB/s":
            report.goal(f"{what}, guest", by_way["guest"].p50, "≥", 150, unit)
        else:
            added = by_way["guest"].p50 - by_way["direct"].p50
            report.goal(f"{what}: added by the way out of a guest", added, "≤", 0.6, unit)


def recorder(records: Records) -> Record:
    """As `kernel.process` writes them: the verdict is on disk before anything is dialled."""

    def record(connection: Connection) -> Awaitable[None] | None:
        write = records.after if connection.done else records.before
        return write("bench", "connect", **{k: v for k, v in asdict(connection).items() if k not in ("agent", "time")})

    return record


def orders(port: int, proxy: int | None) -> list[str]:
    address = ["127.0.0.1", proxy] if proxy else None
    asked = {"server": ["127.0.0.1", port], "proxy": address, "rounds": ROUNDS, "megabytes": MEGABYTES}
    return ["-I", "-S", "-c", CLIENT.read_text(), json.dumps(asked)]


async def on_host(port: int, proxy: int | None) -> Samples:
    client = await asyncio.create_subprocess_exec(PYTHON, *orders(port, proxy), stdout=subprocess.PIPE)
    output, _ = await client.communicate()
    return json.loads(output)


async def through_proxy(port: int, record: Record) -> Samples:
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    number = listener.getsockname()[1]
    egress = Egress("bench", [parse_grant(f"127.0.0.1:{port}")], record)
    serving = asyncio.create_task(egress.serve(listener))
    try:
        return await on_host(port, number)
    finally:
        await egress.close()
        await serving


async def from_guest(port: int, record: Record) -> Samples:
    read, write = os.pipe()
    argv = [PYTHON, *orders(port, PROXY_PORT)]
    spec = SpawnSpec(agents.name(), "guest", "exec", argv=argv, net="proxy", limits=GUEST_LIMITS)
    async with agents.launcher() as launcher:
        guest = await agents.start(launcher, spec, grouped=True, stdout=write)
        os.close(write)
        egress = Egress(spec.spawn_id, [parse_grant(f"127.0.0.1:{port}")], record)
        serving = asyncio.create_task(egress.serve(guest.listeners[0]))
        try:
            return json.loads(await asyncio.to_thread(read_all, read))
        finally:
            await guest.kill()
            await egress.close()
            await serving
            guest.close()


def read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


@contextmanager
def upstream() -> Iterator[int]:
    """The server's port."""
    server = subprocess.Popen([sys.executable, SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.communicate()
