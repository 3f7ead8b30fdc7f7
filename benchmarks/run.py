"""`make bench`: the benchmarks of this folder, all or the named ones; ratios of one run, then the goals, met or missed.

`make bench ARGS="spawn rate --long"`. Figures go to `.cache/bench.json` (or `$AGENT_OS_BENCH`). A figure of a machine
that does other work at the same time is a ratio at best: the load is printed and written with it.
"""

import argparse
import asyncio
import os
import sys
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import (  # noqa: E402 (the path is set above)
    authority,
    bus,
    crowd,
    egress,
    ending,
    gate,
    gateway,
    journal,
    kernel,
    memory,
    models,
    policy,
    rate,
    spawn,
    startup,
    supervision,
)
from benchmarks.measure import Report  # noqa: E402
from benchmarks.sharedllm import bench as sharedllm  # noqa: E402

from agent_os.sandbox.spawner import SandboxError  # noqa: E402

BENCHMARKS = {
    "spawn": spawn.run,
    "startup": startup.run,
    "memory": memory.run,
    "rate": rate.run,
    "crowd": crowd.run,
    "egress": egress.run,
    "ending": ending.run,
    "journal": journal.run,
    "kernel": kernel.run,
    "authority": authority.run,
    "policy": policy.run,
    "gate": gate.run,
    "gateway": gateway.run,
    "supervision": supervision.run,
    "bus": bus.run,
    "sharedllm": sharedllm.run,
    "models": models.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=__doc__)
    parser.add_argument("benchmark", nargs="*", help=f"which ones: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--long", action="store_true", help="the sustained rate over 60 s instead of 10")
    parser.add_argument("--rounds", type=int, default=startup.ROUNDS, help="of `startup` (default: %(default)s)")
    given = parser.parse_args()
    if unknown := [name for name in given.benchmark if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    if given.rounds < 1:
        parser.error("--rounds takes a number from 1")
    benchmarks = BENCHMARKS | {"startup": partial(startup.run, rounds=given.rounds)}
    mode = "root" if os.geteuid() == 0 else "user"
    report = Report()
    for name in given.benchmark or BENCHMARKS:
        print(f"{name} ({mode} mode, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cpus)", flush=True)
        try:
            asyncio.run(benchmarks[name](report, given.long))
        except SandboxError as problem:  # the others still have something to say
            report.fail(name, f"{problem.why} {problem.step}".rstrip())
    print("goals")
    for goal in report.goals:
        print(f"  {goal}")
    target = Path(os.environ.get("AGENT_OS_BENCH", ROOT / ".cache" / "bench.json"))
    report.write(target, mode, sys.argv[1:])
    print(f"written to {target}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
