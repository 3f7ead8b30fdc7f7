"""A thousand idle native agents alive at once, then all ended: how long until not one process of them is left.

Two ways: a kill of each (what `kill --all` does), and the end of the launcher, which takes its whole namespace with it.
"""

import asyncio
import os
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks import agents
from benchmarks.measure import Report

from agent_os.sandbox.spawner import Launcher, Process

CROWD, AT_ONCE = 1000, 8


async def run(report: Report, long: bool) -> None:
    soft, hard = agents.raise_descriptor_limit()
    report.note(f"descriptor limit {soft} raised to {hard}: the kernel holds three for each agent, the launcher one")
    base = report.figure(f"{CROWD} idle plain processes (sleep), killed until none is left", plain_crowd_ms(), "ms")
    async with agents.launcher() as launcher:
        alive = await assemble(report, launcher)
        pids = [agents.pid_of(process) for process in alive]
        began = time.perf_counter()
        await asyncio.gather(*(process.kill() for process in alive))
        killed = report.figure(f"{CROWD} idle agents, each killed, until none is left", since(began), "ms")
        require_gone(pids)
        for process in alive:
            process.close()
        report.figure(
            f"{CROWD} idle agents, killed and every cgroup, uid and descriptor given back", since(began), "ms"
        )
        alive = await assemble(report, launcher)
        pids = [agents.pid_of(process) for process in alive]
        began = time.perf_counter()
        await launcher.close()
        report.figure(f"{CROWD} idle agents, launcher closed, until none is left", since(began), "ms")
        require_gone(pids)
        for process in alive:
            process.close()
    report.ratio(f"{CROWD} agents killed / {CROWD} plain processes killed", killed, base)
    report.goal(f"{CROWD} live agents, all gone after kill", killed.p50, "≤", 2000, "ms")


async def assemble(report: Report, launcher: Launcher) -> list[Process]:
    places = asyncio.Semaphore(AT_ONCE)

    async def one() -> Process:
        async with places:
            return await agents.start(launcher, agents.native(agents.IDLE), grouped=True)

    began = time.perf_counter()
    alive = list(await asyncio.gather(*(one() for _ in range(CROWD))))
    living = sum(is_there(agents.pid_of(process)) for process in alive)
    report.figure("idle agents alive at once", living, "agents")
    report.figure(f"time to start {CROWD} agents, with a cgroup each if possible", since(began), "ms")
    return alive


def plain_crowd_ms() -> float:
    pids = [agents.plain_spawn("/bin/sleep", "1000") for _ in range(CROWD)]
    began = time.perf_counter()
    for pid in pids:
        os.kill(pid, 9)
    for pid in pids:
        os.waitpid(pid, 0)
    return since(began)


def since(began: float) -> float:
    return (time.perf_counter() - began) * 1000


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def require_gone(pids: Iterable[int]) -> None:
    left = [pid for pid in pids if is_there(pid)]
    if left:
        raise SystemExit(f"{len(left)} agents survived, the first is process {left[0]}: the figure would be a lie")
