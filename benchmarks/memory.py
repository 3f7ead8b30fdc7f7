"""What an idle native agent costs: its own share of pages, and what the machine loses, kernel structures included.

Two ways of counting, both stated. *Its pages*: PSS of its process with 50 alike alive (root only: agents are not
dumpable). *The machine*: how much `/proc/meminfo` moves per agent when 200 start and when they end, which counts every
shared page once and also what no process owns: mounts, namespaces, stacks, page tables. Other work on the machine moves
it too, so the median of several rises and falls is taken.
"""

import asyncio
import os
import statistics
import sys
import time
from pathlib import Path

from benchmarks import agents
from benchmarks.measure import Report, Series

from agent_os.sandbox.spawner import Launcher, Process

FEW, MANY, REPEATS = 50, 200, 3
PAGES = ("AnonPages", "Shmem")
KERNEL = ("SReclaimable", "SUnreclaim", "KernelStack", "PageTables", "Percpu")


async def run(report: Report, long: bool) -> None:
    plain = report.add(Series("memory of an idle plain Python process", "MB", [await plain_python_mb()]))
    async with agents.launcher() as launcher:
        few = await crowd(launcher, FEW)
        measured = [mb for process in few if (mb := pss_mb(agents.pid_of(process))) is not None]
        await agents.end(few)
        if measured:
            report.add(Series(f"pages of an idle native agent (PSS, {FEW} alive)", "MB", measured))
        else:
            report.skip("pages of an idle native agent (PSS)", "agents are not dumpable; only root may look")
        moved = await movements(launcher)
    pages = report.add(per_agent(moved, PAGES, f"pages per agent (meminfo, {MANY} agents)"))
    kernel = report.add(per_agent(moved, KERNEL, f"kernel structures per agent (meminfo, {MANY} agents)"))
    for name in KERNEL:
        report.add(per_agent(moved, (name,), f"  of them {name}"))
    report.add(per_agent(moved, ("MemAvailable",), f"MemAvailable taken per agent ({MANY} agents)", sign=-1))
    report.ratio("pages of an idle native agent / plain Python", pages, plain)
    report.goal("memory per idle native agent, pages + kernel", pages.p50 + kernel.p50, "≤", 2.5, "MB")


async def crowd(launcher: Launcher, count: int) -> list[Process]:
    return [await agents.start(launcher, agents.native(agents.IDLE), grouped=True) for _ in range(count)]


async def movements(launcher: Launcher) -> list[dict[str, float]]:
    """kB by which each line of meminfo rose when the agents started, or fell when they ended."""
    moved: list[dict[str, float]] = []
    for _ in range(REPEATS):
        before = await settled()
        idle = await crowd(launcher, MANY)
        during = await settled()
        await agents.end(idle)
        after = await settled()
        moved.append({name: during[name] - before[name] for name in before})
        moved.append({name: during[name] - after[name] for name in before})
    return moved


async def settled() -> dict[str, int]:
    """meminfo once the kernel is done with what it does later: namespaces are taken apart in the background."""
    deadline = time.monotonic() + 8
    last = meminfo()
    while time.monotonic() < deadline:
        await asyncio.sleep(0.5)
        now = meminfo()
        if abs(now["SUnreclaim"] - last["SUnreclaim"]) < 200:
            return now
        last = now
    return last


def meminfo() -> dict[str, int]:
    rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {row[0].rstrip(":"): int(row[1]) for row in rows}


def per_agent(moved: list[dict[str, float]], names: tuple[str, ...], label: str, sign: int = 1) -> Series:
    totals = [sum(one.get(name, 0) for name in names) for one in moved]
    return Series(label, "MB", [sign * statistics.median(totals) / MANY / 1024])


async def plain_python_mb() -> float:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    code = f"import os, signal; os.write({write}, b'.'); signal.pause()"
    pid = agents.plain_spawn(sys.executable, "-I", "-S", "-c", code)
    os.read(read, 1)
    try:
        return pss_mb(pid) or 0.0
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def pss_mb(pid: int) -> float | None:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:
        return None
    return int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1]) / 1024
