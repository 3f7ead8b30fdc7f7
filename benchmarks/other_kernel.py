"""Run under agent-os-kernel's venv (`benchmarks/get-others`): its `ctx.read`, `ctx.write`, with policy and recorder.

In process and unsynced. Prints one line of JSON for each line read: µs per call, median of the round.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from agent_control_plane.flight_recorder import FlightRecorder
from agent_control_plane.kernel_space import KernelSpace
from agent_control_plane.policy_engine import PolicyEngine

CALLS = 300
PATH, DATA = "/mem/working/x", "y" * 100


async def main(folder: Path) -> None:
    policy = PolicyEngine()
    policy.add_constraint("bench", ["file_read", "file_write"])
    kernel = KernelSpace(policy, FlightRecorder(str(folder / "recorder.db")))
    context = kernel.create_agent_context("bench")
    await context.write(PATH, DATA)
    if bytes(await context.read(PATH)) != DATA.encode():
        raise SystemExit("agent-os-kernel did not give back what was written")
    for _ in sys.stdin:
        took: dict[str, list[float]] = {"read": [], "write": []}
        for _ in range(CALLS):
            began = time.perf_counter()
            await context.read(PATH)
            between = time.perf_counter()
            await context.write(PATH, DATA)
            took["read"].append((between - began) * 1e6)
            took["write"].append((time.perf_counter() - between) * 1e6)
        print(json.dumps({name: statistics.median(each) for name, each in took.items()}), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
