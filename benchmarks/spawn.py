"""How fast agents start and end, and what an idle one costs, beside fork+exec of `true` and a plain Python start."""

import asyncio
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from benchmarks.measure import Report, Series

from agent_os.kernel.tools import run_tool
from agent_os.sandbox.spawner import Launcher, Process
from agent_os.sandbox.spec import SpawnSpec

ROUNDS = 200
IDLE = 50


async def run(report: Report) -> None:
    true = report.add(repeat("fork+exec of true", lambda: subprocess.run(["/bin/true"])))
    bare = report.add(
        repeat("python -I -S -c pass", lambda: subprocess.run([sys.executable, "-I", "-S", "-c", "pass"]), 50)
    )
    cold = Series("launcher start (cold)", "ms")
    for _ in range(5):
        began = time.perf_counter()
        launcher = await Launcher.start()
        cold.samples.append((time.perf_counter() - began) * 1000)
        await launcher.close()
    report.add(cold)
    launcher = await Launcher.start()
    try:
        warm = report.add(await repeat_async("warm native agent, to ready", lambda: spawn_and_end(launcher, "pass")))
        guest = report.add(await repeat_async("guest /bin/true, to exec", lambda: guest_true(launcher)))
        tool = report.add(await repeat_async("tool /bin/true, whole run", lambda: tool_true(launcher)))
        report.add(await kill_times(launcher))
        report.add(await idle_memory(launcher))
    finally:
        await launcher.close()
    report.ratio("warm native agent / fork+exec of true", warm, true)
    report.ratio("warm native agent / plain Python start", warm, bare)
    report.ratio("guest / fork+exec of true", guest, true)
    report.ratio("tool run / fork+exec of true", tool, true)


def repeat(name: str, work: Callable[[], object], rounds: int = ROUNDS) -> Series:
    series = Series(name, "ms")
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        series.samples.append((time.perf_counter() - began) * 1000)
    return series


async def repeat_async(name: str, work: Callable[[], Awaitable[float]], rounds: int = ROUNDS) -> Series:
    return Series(name, "ms", [await work() for _ in range(rounds)])


async def spawn_and_end(launcher: Launcher, code: str) -> float:
    """Milliseconds until the agent is ready; its end is awaited but not counted."""
    began = time.perf_counter()
    process = await start(launcher, SpawnSpec(name(), argv=["-c", code]))
    took = (time.perf_counter() - began) * 1000
    await process.wait()
    process.close()
    return took


async def guest_true(launcher: Launcher) -> float:
    began = time.perf_counter()
    process = await start(launcher, SpawnSpec(name(), "guest", argv=["/bin/true"]))
    took = (time.perf_counter() - began) * 1000
    await process.wait()
    process.close()
    return took


async def tool_true(launcher: Launcher) -> float:
    began = time.perf_counter()
    await run_tool(launcher, name(), ["/bin/true"])
    return (time.perf_counter() - began) * 1000


async def kill_times(launcher: Launcher) -> Series:
    series = Series("kill of an agent, to nothing left", "ms")
    for _ in range(50):
        process = await start(launcher, SpawnSpec(name(), argv=["-c", "import signal; signal.pause()"]))
        began = time.perf_counter()
        await process.kill()
        series.samples.append((time.perf_counter() - began) * 1000)
        process.close()
    return series


async def idle_memory(launcher: Launcher) -> Series:
    """What an idle native agent adds: its own share of pages (PSS), as the kernel counts it with many alike."""
    code = "import signal; signal.pause()"
    idle = [await start(launcher, SpawnSpec(name(), argv=["-c", code])) for _ in range(IDLE)]
    series = Series(f"memory of an idle native agent, {IDLE} alive", "MB", [pss_mb(process) for process in idle])
    for process in idle:
        await process.kill()
        process.close()
    return series


async def start(launcher: Launcher, spec: SpawnSpec) -> Process:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        return await launcher.spawn(spec, streams=(null, null, null))
    finally:
        os.close(null)


def pss_mb(process: Process) -> float:
    info = Path(f"/proc/self/fdinfo/{process.pidfd}").read_text()
    pid = next(line for line in info.splitlines() if line.startswith("Pid:")).split()[1]
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except PermissionError:  # not dumpable: only root may look
        status = Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        return int(fields["RssAnon"].split()[0]) / 1024
    return int(next(line for line in rollup.splitlines() if line.startswith("Pss:")).split()[1]) / 1024


def name() -> str:
    return f"bench-{secrets.token_hex(4)}"


if __name__ == "__main__":
    asyncio.run(run(Report()))
