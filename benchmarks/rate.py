"""How many agents a second: with 1, 2, 4 and 8 outstanding, sustained with exits, and 200 at once.

Each sustained agent starts, ends by itself and is given back before its place is taken again.
"""

import asyncio
import os
import shutil
import tempfile
import time
from pathlib import Path

from benchmarks import agents, others
from benchmarks.measure import Report, Series

from agent_os.sandbox.spawner import Launcher

SWEEP, SWEEP_SECONDS = (1, 2, 4, 8), 3.0
SUSTAINED, SHORT, LONG = 4, 10.0, 60.0  # outstanding; seconds
BURST = 200


async def run(report: Report, long: bool) -> None:
    seconds = LONG if long else SHORT
    base = report.figure("fork+exec of true, 2 outstanding", processes_per_second(2, SWEEP_SECONDS), "/s")
    async with agents.launcher() as launcher:
        for outstanding in SWEEP:
            rate = await agents_per_second(launcher, outstanding, SWEEP_SECONDS)
            report.figure(f"warm native agents with exits, {outstanding} outstanding", rate, "/s")
        label = f"sustained {seconds:.0f} s, {SUSTAINED} outstanding"
        rate = await agents_per_second(launcher, SUSTAINED, seconds)
        sustained = report.figure(f"warm native agents with exits, {label}", rate, "/s")
        if agents.can_group():
            rate = await agents_per_second(launcher, SUSTAINED, SWEEP_SECONDS, grouped=True)
            report.figure(f"the same with a cgroup each, {SWEEP_SECONDS:.0f} s", rate, "/s")
        bursts = Series(f"burst of {BURST} native agents, until all are ready", "/s")
        for _ in range(3):
            bursts.samples.append(await burst_per_second(launcher))
        burst = report.add(bursts)
    beside_bubblewrap(report, sustained)
    report.ratio("fork+exec of true / sustained agents", base, sustained)
    report.goal("burst of native agents", burst.p50, "≥", 200, "/s")
    report.goal(f"sustained with exits, {seconds:.0f} s", sustained.p50, "≥", 200, "/s")


async def agents_per_second(launcher: Launcher, outstanding: int, seconds: float, grouped: bool = False) -> float:
    began = time.perf_counter()
    done = 0

    async def one_place() -> None:
        nonlocal done
        while time.perf_counter() - began < seconds:
            await agents.spawn_and_end(launcher, agents.native("pass"), grouped=grouped)
            done += 1

    await asyncio.gather(*(one_place() for _ in range(outstanding)))
    return done / (time.perf_counter() - began)


async def burst_per_second(launcher: Launcher) -> float:
    began = time.perf_counter()
    alive = await asyncio.gather(*(agents.start(launcher, agents.native(agents.IDLE)) for _ in range(BURST)))
    took = time.perf_counter() - began
    await agents.end(alive)
    return BURST / took


def processes_per_second(outstanding: int, seconds: float, argv: tuple[str, ...] = ("/bin/true",)) -> float:
    """Plain processes. Runs while no launcher is up: it waits for any child."""
    began = time.perf_counter()
    running = {agents.plain_spawn(*argv) for _ in range(outstanding)}
    done = 0
    while running:
        pid, _ = os.waitpid(-1, 0)
        running.discard(pid)
        done += 1
        if time.perf_counter() - began < seconds:
            running.add(agents.plain_spawn(*argv))
    return done / (time.perf_counter() - began)


def beside_bubblewrap(report: Report, ours: Series) -> None:
    label = "bubblewrap /bin/true, 4 outstanding"
    with tempfile.TemporaryDirectory(prefix="agent-os-bench-") as scratch:
        bubblewrap = others.all_others(Path(scratch))[0]
        if why := bubblewrap.why_not():
            report.skip(label, why)
            return
        program, *rest = bubblewrap.command(["/bin/true"])
        argv = (shutil.which(program) or program, *rest)
        theirs = report.figure(label, processes_per_second(SUSTAINED, SWEEP_SECONDS, argv), "/s")
        report.ratio("sustained agents / bubblewrap", ours, theirs)
