"""Row 15 of the fault table: frames that were changed by chance, connection after connection, from a process beside.

The kernel stays up, nothing in it breaks, whoever goes too far hears a goodbye, and an agent that works beside it gets
its answers: in the long form, ten minutes, not later than twice as late as alone. A build that lets a decoder's own
error through does not pass.
"""

import asyncio
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from agent_os.abi import frames
from agent_os.abi.errors import EMSGSIZE, EPROTO
from agent_os.abi.syscalls import Now
from agent_os.kernel import connection
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Agent
from faults.world import SOAK
from peer import Peer, agent, greeted, running

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]

SECONDS = 600.0 if SOAK else 3.0
CALLS, PAUSE = 200, 0.002  # of a neighbour at work, in one round; it is no flood
AT_HAND = 60  # connections for a round
FUZZER = Path(__file__).with_name("fuzzer.py")


class Fuzzing:
    """The process that fuzzes, and the kernel's side of it: another agent's connection whenever it asks for one, or,
    while it is to leave the kernel alone, an order to work for nobody."""

    def __init__(self, kernel: Kernel, door: socket.socket) -> None:
        self._kernel, self._door = kernel, door
        self.on = False
        self._ready: list[tuple[Agent, socket.socket]] = []
        self._over: list[Agent] = []
        self.agents = 0
        door.setblocking(False)

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        while await loop.sock_recv(self._door, 16):
            if not (self.on and self._ready):
                self._door.send(b"alone")
                continue
            row, theirs = self._ready.pop()
            socket.send_fds(self._door, [b"here"], [theirs.fileno()])
            theirs.close()
            self._over.append(row)

    async def prepare(self) -> None:
        """Agents for a round: to make them is the test's work and not the fuzzer's, so it is done before."""
        for row in [one for one in self._over if one.silent.is_set()]:
            self._over.remove(row)
            if row.exit is None:
                self._kernel.table.forget(row)
        while len(self._ready) < AT_HAND:
            self.agents += 1
            self._ready.append(await agent(self._kernel, f"fuzz{self.agents}"))


@asynccontextmanager
async def fuzzing(kernel: Kernel, told: dict[str, Any]) -> AsyncIterator[Fuzzing]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    seed = os.environ.get("SEED", "1")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, FUZZER, str(theirs.fileno()), seed]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], env=env, stdout=subprocess.PIPE) as process:
        theirs.close()
        door = Fuzzing(kernel, ours)
        serving = asyncio.create_task(door.serve())
        try:
            yield door
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            ours.close()
            out, _ = await asyncio.to_thread(process.communicate)
            told.update(json.loads(out or b"{}"))


async def late(peer: Peer) -> float:
    """The 99th percentile of how long an answer takes, in milliseconds."""
    took: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        assert await peer.ask(Now())
        took.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PAUSE)
    return statistics.quantiles(took, n=100)[98]


def fuzzed(seconds: float) -> tuple[dict[str, Any], list[str], float, float]:
    """What the fuzzer heard, what broke in the kernel, and how late its neighbour's answers were: alone, and beside."""
    told: dict[str, Any] = {}
    broken: list[str] = []
    alone: list[float] = []
    beside: list[float] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: broken.append(str(about)))
        async with running() as kernel:
            _, peer = await greeted(kernel, "neighbour")
            async with fuzzing(kernel, told) as door:
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    door.on = False
                    await door.prepare()
                    alone.append(await late(peer))
                    door.on = True
                    beside.append(await late(peer))
            assert await peer.ask(Now())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
    return told, broken, undisturbed(alone), undisturbed(beside)


def undisturbed(rounds: list[float]) -> float:
    """Of rounds that others on this machine disturb now and then, one that they did not."""
    return sorted(rounds)[len(rounds) // 10]


def test_frames_changed_by_chance_harm_nobody_but_their_sender(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    told, broken, alone, beside = fuzzed(SECONDS)
    print(f"{told}; a neighbour's p99: {alone:.2f} ms alone, {beside:.2f} ms beside it")
    assert broken == []
    assert [record.getMessage() for record in caplog.records] == []
    assert told["frames"] > 100 * SECONDS / 3
    assert told["answers"] > 0
    assert {f"bye {EPROTO.number}", f"bye {EMSGSIZE.number}"} <= set(told)
    if SOAK:
        assert beside <= 2 * alone


def test_a_build_that_lets_a_decoders_error_through_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = msgspec.msgpack.Decoder(frames.FromAgent).decode
    monkeypatch.setattr(connection.frames, "decode_from_agent", decode)
    _, broken, _, _ = fuzzed(1.0)
    assert broken
