"""How long it takes to end or to freeze an agent: idle, busy, with a hundred descendants, forking all it may, frozen.

"Gone" is when Linux has reported the end of the agent's pid 1, which it does after everything in its namespace is gone.
"""

import os
import time

from benchmarks import agents
from benchmarks.measure import Report, Series

from agent_os.sandbox.spawner import Launcher, Process
from agent_os.sandbox.spec import Limits, SpawnSpec

ROUNDS = 40
SAY = "import os, signal; os.write(1, b'.'); "
BUSY = SAY + "\nwhile True: pass"
FAMILY = "import os, signal\nfor _ in range(100):\n  if os.fork() == 0: signal.pause()\n" + SAY + "signal.pause()"
STORM = SAY + "\nwhile True:\n  try: os.fork()\n  except OSError: pass"
SLOW = {FAMILY, STORM}  # to start


async def run(report: Report, long: bool) -> None:
    base = report.add(Series("kill of a plain process (sleep), to reaped", "ms", [plain_kill() for _ in range(ROUNDS)]))
    async with agents.launcher() as launcher:
        cases = {"an idle agent": SAY + "signal.pause()", "a busy agent": BUSY, "an agent with 100 descendants": FAMILY}
        fatal = cases | {"a fork storm of 128 processes": STORM}
        killed = {what: report.add(await kills(launcher, what, code)) for what, code in fatal.items()}
        await freezing(report, launcher, cases)
    report.ratio("kill of an idle agent / kill of a plain process", killed["an idle agent"], base)
    worst = max(one.p95 for one in killed.values())
    report.goal("kill of any of these agents, p95", worst, "≤", 1000, "ms")


async def kills(launcher: Launcher, what: str, code: str, frozen: bool = False) -> Series:
    series = Series(f"kill of {what}", "ms")
    for _ in range(15 if code in SLOW else ROUNDS):
        process = await started(launcher, code)
        if frozen:
            await process.freeze()
        began = time.perf_counter()
        await process.kill()
        series.samples.append((time.perf_counter() - began) * 1000)
        process.close()
    return series


async def freezing(report: Report, launcher: Launcher, cases: dict[str, str]) -> None:
    probe = await started(launcher, cases["an idle agent"])
    can_freeze = probe.group is not None
    await agents.end([probe])
    if not can_freeze:
        report.skip("freeze and thaw", "no cgroup of our own on this host")
        return
    for what, code in cases.items():
        freeze, thaw = Series(f"freeze of {what}", "ms"), Series(f"thaw of {what}", "ms")
        for _ in range(15):
            process = await started(launcher, code)
            for series, wanted in ((freeze, True), (thaw, False)):
                began = time.perf_counter()
                if not await process.freeze(wanted):
                    raise SystemExit(f"{series.name} did not happen: the figure would be a lie")
                series.samples.append((time.perf_counter() - began) * 1000)
            await agents.end([process])
        report.add(freeze)
        report.add(thaw)
    report.add(await kills(launcher, "a frozen busy agent", BUSY, frozen=True))


async def started(launcher: Launcher, code: str) -> Process:
    """An agent that has said that it does what it is meant to do."""
    read, write = os.pipe()
    spec = SpawnSpec(agents.name(), argv=["-c", code], limits=Limits(pids=128))
    try:
        process = await agents.start(launcher, spec, grouped=True, stdout=write)
    finally:
        os.close(write)
    os.read(read, 1)
    os.close(read)
    return process


def plain_kill() -> float:
    pid = agents.plain_spawn("/bin/sleep", "1000")
    began = time.perf_counter()
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    return (time.perf_counter() - began) * 1000
