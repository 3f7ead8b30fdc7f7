"""How fast agents start, beside fork+exec of `true`, a plain Python start, and other sandboxes on the same machine."""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import agents, others
from benchmarks.measure import Report, Series, Work, in_turn, timed

from agent_os.kernel.tools.oneshot import run_tool
from agent_os.sandbox.spawner import Launcher
from agent_os.sandbox.spec import SpawnSpec

ROUNDS, QUIET_ROUNDS, QUIET_SECONDS = 200, 40, 0.05
TRUE = "fork+exec of true (posix_spawn, wait)"
RAW = "subprocess.run of true, output captured"
WARM = "warm native agent, to ready"
RESTED = f"{WARM}, after a pause"
GROUPED = "warm native agent with a cgroup, to ready, after a pause"
GUEST, TOOL = "guest /bin/true, to exec", "tool /bin/true, whole run"


async def run(report: Report, long: bool) -> None:
    python = await in_turn(
        {
            "python -I -S -c pass": timed(lambda: subprocess.run([sys.executable, "-I", "-S", "-c", "pass"])),
            "launcher start, to its first spawn (cold)": launcher_start,
        },
        rounds=10,
    )
    bare, cold = map(report.add, python.values())
    async with agents.launcher() as launcher:

        async def tool() -> float:
            began = time.perf_counter()
            await run_tool(launcher, agents.name(), ["/bin/true"])
            return (time.perf_counter() - began) * 1000

        subjects = {
            TRUE: timed(agents.fork_exec_true),
            RAW: timed(lambda: subprocess.run(["/bin/true"], stdin=subprocess.DEVNULL, capture_output=True)),
            WARM: lambda: agents.spawn_and_end(launcher, agents.native("pass")),
            GUEST: lambda: agents.spawn_and_end(launcher, SpawnSpec(agents.name(), "guest", argv=["/bin/true"])),
            TOOL: tool,
        }
        series = {name: report.add(one) for name, one in (await in_turn(subjects, ROUNDS)).items()}
        await after_quiet(report, launcher)
        await beside_others(report, subjects[TOOL])
    report.ratio("launcher start / plain Python start", cold, bare)
    report.ratio("warm native agent / plain Python start", series[WARM], bare)
    report.ratio("guest, to exec / fork+exec of true", series[GUEST], series[TRUE])
    report.ratio("tool run / fork+exec of true", series[TOOL], series[TRUE])
    warm = report.ratio("warm native agent / fork+exec of true", series[WARM], series[TRUE])
    report.goal("warm native agent / fork+exec of true, p50", warm, "≤", 6, "×")
    report.goal("warm native agent, p95 (of an idle machine)", series[WARM].p95, "≤", 12, "ms")
    report.goal("tool run over a raw subprocess, p50", series[TOOL].p50 - series[RAW].p50, "≤", 4, "ms")


async def after_quiet(report: Report, launcher: Launcher) -> None:
    """After a pause the launcher has a child made ahead. Joining a cgroup waits for all CPUs unless somebody has just
    done so: its cost shows only then."""

    async def one(work: Work) -> float:
        await asyncio.sleep(QUIET_SECONDS)
        return await work()

    true = f"{TRUE}, after a pause"
    subjects: dict[str, Work] = {
        true: lambda: one(timed(agents.fork_exec_true)),
        RESTED: lambda: one(lambda: agents.spawn_and_end(launcher, agents.native("pass"))),
    }
    if agents.can_group():
        subjects[GROUPED] = lambda: one(lambda: agents.spawn_and_end(launcher, agents.native("pass"), grouped=True))
    else:
        report.skip(GROUPED, "no cgroup of our own on this host")
    series = {name: report.add(each) for name, each in (await in_turn(subjects, QUIET_ROUNDS)).items()}
    report.ratio("warm native agent / fork+exec of true, after a pause", series[RESTED], series[true])


async def launcher_start() -> float:
    began = time.perf_counter()
    launcher = await Launcher.start()
    took = (time.perf_counter() - began) * 1000
    await launcher.close()
    return took


async def beside_others(report: Report, tool: Work) -> None:
    """Each in turn with our own tool run, which does the same work: a box made, `true` run in it, the box gone."""
    with tempfile.TemporaryDirectory(prefix="agent-os-bench-") as scratch:
        for other in others.all_others(Path(scratch)):
            label = f"{other.name} /bin/true, whole run"
            if why := other.why_not():
                report.skip(label, why)
                continue
            ours = f"tool /bin/true, in turn with {other.name}"
            pair = await in_turn({label: timed(lambda other=other: other.run(["/bin/true"])), ours: tool}, other.rounds)
            theirs: Series = report.add(pair[label])
            report.ratio(f"{other.name} / tool run", theirs, report.add(pair[ours]))
