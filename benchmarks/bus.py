"""The bus: a round trip between two isolated processes, and the throughput of eight to eight, beside other buses; what
a flooding agent costs a quiet one, and what a consumer that is stuck costs the kernel.

Ours is a kernel in a process of its own with agents in their sandboxes, everything recorded; the others are one process
each, in memory, in a venv of their own (`benchmarks/get-others`). What is compared is taken in turn. A burst of 2,000
messages is what one agent may send at once, so a sender sends fewer.
"""

import asyncio
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path

from benchmarks import sides
from benchmarks.kernel_side import queue_round_trip
from benchmarks.measure import Report, Series

HERE = Path(__file__).resolve().parent
OTHERS = HERE.parent / ".cache" / "others"
TURNS, ROUNDS = 2, 200
PAIRS, COUNT, WINDOW, BATCH = 8, 1000, 4, 16
QUIET_TURNS = 5


async def run(report: Report, long: bool) -> None:
    with tempfile.TemporaryDirectory() as home:
        ours = await sides.start([sys.executable, str(HERE / "bus_side.py")])
        durable = await sides.start([sys.executable, str(HERE / "bus_side.py"), home])
        amb, autogen = await _other("amb-core", "other_amb.py"), await _other("autogen-core", "other_autogen.py")
        try:
            await round_trips(report, ours, amb)
            await throughput(report, ours, durable, autogen)
            await beside_a_flood(report, ours)
            await stuck(report, durable)
        finally:
            for one in (ours, durable, amb, autogen):
                await sides.end(one)


async def round_trips(report: Report, ours: Process, amb: Process | None) -> None:
    mine, theirs = Series("request and response of two processes", "µs"), Series("the same in amb-core", "µs")
    queue = Series("there and back by asyncio.Queue, one process", "µs")
    for _ in range(TURNS):
        mine.samples += (await sides.ask(ours, {"do": "rounds", "rounds": ROUNDS}))["took"]
        queue.samples.append(await queue_round_trip())
        if amb:
            theirs.samples += (await sides.ask(amb, {}))["took"]
    report.add(mine)
    report.figure("request and response of two processes, p99", _p99(mine.samples), "µs")
    report.add(queue)
    report.ratio("request and response / asyncio.Queue", mine, queue)
    if amb:
        report.add(theirs)
        report.goal("round trip / amb-core", report.ratio("ours / amb-core", mine, theirs), "≤", 0.05, "×")


async def throughput(report: Report, ours: Process, durable: Process, autogen: Process | None) -> None:
    order = {"do": "crowd", "pairs": PAIRS, "count": COUNT, "window": WINDOW, "batch": BATCH}
    memory, disk = (Series(f"{PAIRS} to {PAIRS} processes, {what}", "/s") for what in ("in memory", "durable"))
    theirs = Series(f"{PAIRS} to {PAIRS} in autogen-core, one process", "/s")
    cpu = Series("cpu of the kernel for a message", "µs")
    for _ in range(TURNS):
        for side, series in ((ours, memory), (durable, disk)):
            said = await sides.ask(side, order)
            series.samples.append(said["rate"])
            cpu.samples.append(said["cpu"])
        if autogen:
            theirs.samples.append((await sides.ask(autogen, {}))["rate"])
    for series in (memory, disk, cpu):
        report.add(series)
    if autogen:
        report.add(theirs)
        report.goal("throughput in memory / autogen-core", report.ratio("memory", memory, theirs), "≥", 5, "×")
        report.goal("throughput durable / autogen-core", report.ratio("durable", disk, theirs), "≥", 1, "×")


async def beside_a_flood(report: Report, ours: Process) -> None:
    """p99 is of the worst of few: of several turns the one that met the least from outside counts."""
    said = await sides.ask(ours, {"do": "quiet", "turns": QUIET_TURNS, "rounds": ROUNDS})
    alone, beside = (
        min(_p99(said[which][at : at + ROUNDS]) for at in range(0, len(said[which]), ROUNDS))
        for which in ("alone", "beside")
    )
    report.figure("request and response of a quiet pair, p99", alone, "µs")
    report.figure("the same beside an agent that floods, p99", beside, "µs")
    report.goal("p99 of a quiet agent beside a flooding one / alone", beside / alone, "≤", 2, "×")


async def stuck(report: Report, durable: Process) -> None:
    """A mailbox holds 16 MiB, whatever is sent: memory grows to some times that, and then no more. Durable, because a
    kernel without a home keeps its record in memory as well."""
    said = await sides.ask(durable, {"do": "stuck", "senders": 4, "size": 64 << 10, "seconds": 8})
    sizes: list[int] = said["sizes"]
    half = max(sizes[: len(sizes) // 2])
    report.figure("memory of a kernel with a stuck consumer, more by", max(sizes) / 2**20, "MiB")
    report.goal("growth in the second half of that time / the first", (max(sizes) - half) / half, "≤", 0.1, "×")


def _p99(samples: Sequence[float]) -> float:
    return sorted(samples)[max(0, round(len(samples) * 0.99) - 1)]


async def _other(name: str, script: str) -> Process | None:
    python = OTHERS / name / "bin" / "python"
    if not python.exists():
        print(f"  {name} is not installed; benchmarks/get-others installs it", flush=True)
        return None
    return await asyncio.create_subprocess_exec(
        python, str(HERE / script), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=1 << 22
    )
