"""Model calls through the kernel beside the same calls made directly: one, many at once, at a guest's door; what a slow
one costs the others, what waiting costs, and how soon a killed agent's call is over.

The model is a process of its own on the loopback, the kernel another, on disk and with a key; agents are in their
sandboxes. Direct calls are made from this process, with the package that the kernel uses. What is compared is taken in
turn. `shell.execute` and the ledger are here because they are the other halves of an agent's turn.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from benchmarks import agents, sides
from benchmarks.measure import Report, Series, Step, in_rows

from agent_os.kernel.authority.budget import Ledger

HERE = Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"  # a guest sees it without any mount
TURNS, ROUNDS = 4, 50
AGENTS, EACH, WAIT_MS, START_SECS = 500, 6, 200, 120
WAITERS, CALLS = 32, 32
PROMPTS = {"a short prompt": "What is two and two?", "a prompt of 200 kB": "word " * 40_000}
LEVELS = ("tenant", "agent", "child")  # and the operator above them


async def run(report: Report, long: bool) -> None:
    if not os.access(PYTHON, os.X_OK):
        report.skip("models", f"no {PYTHON}, which the client needs inside a guest")
        return
    agents.raise_descriptor_limit()
    with tempfile.TemporaryDirectory(prefix="agent-os-bench-") as home, model() as port:
        side = await sides.start([sys.executable, str(HERE / "models_side.py"), home, str(port)])
        try:
            for name, prompt in PROMPTS.items():
                await one_call(report, side, port, name, prompt)
            await at_the_door(report, side, port, Path(home))
            await behind_a_slow_one(report, side, port)
            await killed(report, side, port)
            await waiting(report, side)
            await shell(report, side)
            await crowd(report, side, port)
        finally:
            await sides.end(side)
    ledger(report)


async def one_call(report: Report, side: Process, port: int, name: str, prompt: str) -> None:
    ours, direct = Series(f"model call of an agent, {name}", "ms"), Series(f"the same directly, {name}", "ms")
    async with httpx2.AsyncClient() as client:
        for _ in range(TURNS):
            ours.samples += (await sides.ask(side, {"do": "calls", "rounds": ROUNDS, "prompt": prompt}))["took"]
            direct.samples += await _direct(client, port, 0, ROUNDS, prompt)
    report.add(ours)
    report.add(direct)
    _added(report, f"added to a model call, {name}", ours, direct)


async def at_the_door(report: Report, side: Process, port: int, home: Path) -> None:
    """First byte and last of an unmodified program's call. The bytes are the provider's, or it is no figure."""
    told: dict[str, dict[str, Any]] = {"door": {}, "straight": {}}
    for _ in range(TURNS):
        _add(told["door"], await sides.ask(side, {"do": "door", "rounds": ROUNDS}))
        _add(told["straight"], await asyncio.to_thread(_straight, port, home))
    if told["door"]["digest"] != told["straight"]["digest"]:
        report.fail("models", "the door's answers are not those of the provider")
        return
    for which, words in (("first", "first byte"), ("whole", "last byte")):
        door = report.add(Series(f"{words} of an answer at the door of a guest", "ms", told["door"][which]))
        straight = report.add(Series(f"{words} straight from the model", "ms", told["straight"][which]))
        if which == "first":
            _added(report, "added to the first byte by the door", door, straight)


async def behind_a_slow_one(report: Report, side: Process, port: int) -> None:
    ours, direct = Series("50 ms calls of four agents behind a slow one", "ms"), Series("the same directly", "ms")
    ours.samples += (await sides.ask(side, {"do": "behind", "rounds": 10}))["took"]
    async with httpx2.AsyncClient() as client:
        took = await asyncio.gather(*(_direct(client, port, 50, 10, "") for _ in range(4)))
        direct.samples += [one for each in took for one in each]
    report.add(ours)
    report.add(direct)
    report.goal("beyond 1.2 × direct", ours.p50 - 1.2 * direct.p50, "≤", 5, "ms")


async def killed(report: Report, side: Process, port: int) -> None:
    """From the word to the end of the connection that its call had, as the model sees it."""
    series = Series("kill of an agent until its model call is over", "ms")
    async with httpx2.AsyncClient() as client:
        for _ in range(5):
            before = len((await _told(client, port))["lost"])
            at = (await sides.ask(side, {"do": "kill"}))["at"]
            while len(lost := (await _told(client, port))["lost"]) == before:
                await asyncio.sleep(0.01)
            series.samples.append((lost[-1] - at) * 1000)
    report.add(series)
    report.goal("a killed agent's call in flight, at worst", max(series.samples), "≤", 100, "ms")


async def waiting(report: Report, side: Process) -> None:
    said = await sides.ask(side, {"do": "waiting", "agents": WAITERS, "each": CALLS})
    report.figure(f"memory of the kernel for one of {WAITERS * CALLS:,} calls that wait", said["bytes"] / 1024, "KiB")
    report.figure("kill of all who wait", said["kill"] * 1000, "ms")
    if said["left"]:
        report.fail("models", f"{said['left']} calls of killed agents still wait")


async def shell(report: Report, side: Process) -> None:
    ours, bare = Series("shell.execute true, recorded", "ms"), Series("bare fork and exec of true", "ms")
    for _ in range(TURNS):
        ours.samples += (await sides.ask(side, {"do": "shell", "rounds": 10}))["took"]
        for _ in range(10):
            began = time.perf_counter()
            agents.fork_exec_true()
            bare.samples.append((time.perf_counter() - began) * 1000)
    report.add(ours)
    report.add(bare)
    report.goal("shell.execute beyond 3 × a bare fork and exec, p50", ours.p50 - 3 * bare.p50, "≤", 10, "ms")


async def crowd(report: Report, side: Process, port: int) -> None:
    """As many in flight as there are agents, so that the model's own limit is none."""
    asked = {"do": "crowd", "agents": AGENTS, "rounds": EACH, "wait_ms": WAIT_MS, "within": START_SECS}
    said = await sides.ask(side, asked)
    count, prompt = said["agents"], PROMPTS["a short prompt"]
    limits = httpx2.Limits(max_connections=count, max_keepalive_connections=count)
    async with httpx2.AsyncClient(limits=limits, timeout=120) as client:
        began = time.perf_counter()
        await asyncio.gather(*(_direct(client, port, WAIT_MS, EACH, prompt) for _ in range(count)))
        direct = count * EACH / (time.perf_counter() - began)
    if count < AGENTS:
        report.note(f"{count} of {AGENTS} agents could be started within {START_SECS} s")
    report.figure(f"{count} agents, until all have started", said["started"], "s")
    report.figure(f"calls of {count} agents to a model of {WAIT_MS} ms", said["rate"], "/s")
    report.figure(f"the same of {count} tasks directly", direct, "/s")
    report.figure("cpu of the kernel for a call", said["cpu"], "µs")
    report.goal(f"calls of {count} agents", said["rate"], "≥", 200, "/s")
    report.goal(f"calls of {count} agents / directly", said["rate"] / direct, "≥", 0.25, "×")


def ledger(report: Report) -> None:
    """Reserve and settle on a chain of four accounts; what the journal costs is not in it."""
    book = Ledger()
    for number, name in enumerate(LEVELS):
        book.open(name, LEVELS[number - 1] if number else None, limits={"tokens": 10**12, "cost": 10**12})

    def once(_: int) -> None:
        held = book.reserve(LEVELS[-1], {"tokens": 5_000, "cost": 90_000, "model_calls": 1})
        book.settle(held, {"tokens": 1_200, "cost": 20_000, "model_calls": 1})

    subject: dict[str, Step] = {"reserve and settle, four levels": (lambda number: number, once)}
    (series,) = in_rows(subject, 20).values()
    report.goal("reserve and settle, four levels, p50", report.add(series).p50, "≤", 50, "µs")


def _added(report: Report, name: str, of: Series, to: Series) -> None:
    """On a busy machine the fastest tenth is as near as one comes to what is ours."""
    report.figure(f"{name}, fastest tenth of each", _fast(of) - _fast(to), "ms")
    report.goal(f"{name}, p50", of.p50 - to.p50, "≤", 5, "ms")


def _fast(series: Series) -> float:
    return sorted(series.samples)[len(series.samples) // 10]


# Directly.


async def _direct(client: httpx2.AsyncClient, port: int, wait_ms: int, rounds: int, prompt: str) -> list[float]:
    """Milliseconds of each call, read to its end."""
    said = {"model": "stub", "stream": True, "messages": [{"role": "user", "content": prompt}]}
    took: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        async with client.stream("POST", f"http://127.0.0.1:{port}/{wait_ms}/v1/chat/completions", json=said) as reply:
            async for _ in reply.aiter_bytes():
                pass
        took.append((time.perf_counter() - began) * 1000)
    return took


async def _told(client: httpx2.AsyncClient, port: int) -> dict[str, Any]:
    return (await client.get(f"http://127.0.0.1:{port}/")).json()


def _straight(port: int, home: Path) -> dict[str, Any]:
    asked = json.dumps({"port": port, "path": "/0/v1", "rounds": ROUNDS})
    client = (HERE / "models_client.py").read_text()
    subprocess.run([PYTHON, "-I", "-S", "-c", client, asked], cwd=home, check=True)
    return json.loads((home / "out.json").read_text())


def _add(told: dict[str, Any], more: dict[str, Any]) -> None:
    for which in ("first", "whole"):
        told.setdefault(which, []).extend(more[which])
    told["digest"] = more["digest"]


@contextmanager
def model() -> Iterator[int]:
    """Its port."""
    server = subprocess.Popen([sys.executable, HERE / "models_server.py"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        yield int(server.stdout.readline())
    finally:
        server.kill()
        server.communicate()
