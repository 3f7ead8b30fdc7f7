"""The process that `kernel.py` measures: our kernel, or an echo of frames on the same wire, on inherited sockets.

Started with one JSON argument. Says `ready`; then answers each line of its input with one line of facts about itself.
"""

import asyncio
import json
import os
import resource
import sys
import time
from pathlib import Path
from socket import socket
from typing import Any

import uvloop

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.frames import Hello, Reply, Splitter, Welcome
from agent_os.daemon.process import calm_collector
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority import capability
from agent_os.kernel.boot import boot
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel

QUEUE_ROUNDS = 5000


class Echo(asyncio.Protocol):
    """The least that a kernel on this wire could do: cut, decode, encode, write."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._splitter = Splitter()

    def data_received(self, data: bytes) -> None:
        out: list[bytes] = []
        for raw in self._splitter.feed(data):
            frame: Any = frames.decode_from_agent(raw)
            known = type(frame) is Hello
            out.append(frames.encode(Welcome(1, "echo", 1, {}) if known else Reply(frame.id, frame.body)))
        self._transport.write(b"".join(out))


async def serve(order: dict[str, Any]) -> None:
    loop, kernel, store, door = asyncio.get_running_loop(), None, None, None
    socks = [socket(fileno=fd) for fd in order["fds"]]
    if order["mode"] == "echo":
        for sock in socks:
            await loop.create_unix_connection(Echo, sock=sock)
    elif order["mode"] == "kernel":
        home = Path(order["home"])
        store = SqliteStore(home / "journal.db", reserve=0)
        kernel = await boot(store=store, home=home, agents=bool(order.get("doors")))
        for number, sock in enumerate(socks):
            await adopt(kernel, f"a{number}", sock, order.get("work"))
        if order.get("socket"):
            door = await loop.create_unix_server(kernel.control_protocol, order["socket"], backlog=1024)
    calm_collector()
    print("ready", flush=True)
    asked: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(0, lambda: asked.put_nowait(sys.stdin.readline()))
    while line := await asked.get():
        facts = {"queue_us": await queue_round_trip()} if line.strip() == "queue" else about(kernel)
        print(json.dumps(facts), flush=True)
    if door:
        door.close()
    if kernel and store:
        if order.get("doors"):
            await kernel.guests.close()
        await kernel.close()
        store.close()


async def adopt(kernel: Kernel, name: str, sock: socket, work: str | None) -> None:
    agent = kernel.table.admit(name, "native")
    draft = Draft(agent.id, Kind.SPAWN, agent.incarnation, body=frames.encode_body({"kind": "native"}))
    await kernel.journal.record(draft, puts=kernel.table.puts(agent))
    agent.holdings.grant(capability.parse("file:/work/**:*"), "operator")
    await kernel.adopt(agent, sock, os.open(work, os.O_PATH | os.O_DIRECTORY) if work else None)


def about(kernel: Kernel | None) -> dict[str, Any]:
    counts = kernel.journal.counts if kernel else {}
    return {"cpu": time.process_time(), "loop": time.thread_time(), "private": private_bytes(), **counts}


def private_bytes() -> int:
    rows = (line.split() for line in Path("/proc/self/smaps_rollup").read_text().splitlines())
    return sum(int(row[1]) * 1024 for row in rows if row[0].startswith("Private_"))


async def queue_round_trip() -> float:
    """µs for a message to another task of this loop and its answer."""
    there: asyncio.Queue[int] = asyncio.Queue()
    back: asyncio.Queue[int] = asyncio.Queue()

    async def answer() -> None:
        while True:
            await back.put(await there.get())

    task = asyncio.get_running_loop().create_task(answer())
    began = time.perf_counter()
    for number in range(QUEUE_ROUNDS):
        await there.put(number)
        await back.get()
    took = time.perf_counter() - began
    task.cancel()
    return took / QUEUE_ROUNDS * 1e6


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(serve(json.loads(sys.argv[1])))
