"""The process whose kernel carries the messages that `bus.py` measures: in memory, or durable in a home.

Started with the home, or nothing. For each line of JSON read it runs one measurement and prints one line of facts.
"""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from agent_os.abi.signals import AgentSignal
from agent_os.daemon.process import calm_collector
from agent_os.message_bus import MessageBus
from agent_os.space import KernelSpace

AGENTS = str(Path(__file__).with_name("bus_agents.py"))
FOLDER = str(Path(__file__).parent)
PLACE = {"workspace": "tmpfs", "cwd": FOLDER, "mounts": [FOLDER], "python": sys.executable}
SENDS = "capability://ipc/agent/**?action=send"
SETTLE = 2.0  # seconds, for the last of a crowd to be there


async def main(home: str) -> None:
    async with KernelSpace(home=Path(home) if home else None) as space:
        calm_collector()
        print("ready", flush=True)
        asked: asyncio.Queue[str] = asyncio.Queue()
        asyncio.get_running_loop().add_reader(0, lambda: asked.put_nowait(sys.stdin.readline()))
        while line := await asked.get():
            order = json.loads(line)
            facts = await DOES[order["do"]](space, order)
            print(json.dumps(facts), flush=True)


async def round_trips(space: KernelSpace, order: dict[str, Any]) -> dict[str, Any]:
    await space.spawn(f"{AGENTS}:ponger", name="ponger", **PLACE)
    cpu = time.process_time()
    name = await space.spawn(f"{AGENTS}:pinger", input={"rounds": order["rounds"]}, caps=[SENDS], **PLACE)
    ended = await space.wait(name)
    await space.signal("ponger", AgentSignal.SIGKILL)
    return {"took": ended["result"], "cpu": time.process_time() - cpu, "reason": ended["reason"]}


async def crowd(space: KernelSpace, order: dict[str, Any]) -> dict[str, Any]:
    """So many senders, each to a receiver of its own, all at once when all are there."""
    names: list[str] = []
    for number in range(order["pairs"]):
        to, mine = f"to-{number}", {name: order[name] for name in ("count", "window", "batch")}
        names.append(await space.spawn(f"{AGENTS}:receiver", name=to, input={"count": order["count"]}, **PLACE))
        sender = await space.spawn(
            f"{AGENTS}:sender", name=f"from-{number}", input={"to": to, **mine}, caps=[SENDS], **PLACE
        )
        names.append(sender)
    await asyncio.sleep(SETTLE)
    bus = MessageBus(space)
    for number in range(order["pairs"]):
        await bus.send(f"to-{number}", f"from-{number}", "go")
    cpu = time.process_time()
    ended = [await space.wait(name) for name in names]
    times = [one["result"] for one in ended]
    if any(one is None for one in times):
        return {"problem": next(one["reason"] for one in ended if one["result"] is None)}
    began, over = min(one[0] for one in times), max(one[1] for one in times)
    count = order["pairs"] * order["count"]
    return {"rate": count / (over - began), "cpu": (time.process_time() - cpu) / count * 1e6}


async def quiet(space: KernelSpace, order: dict[str, Any]) -> dict[str, Any]:
    """Round trips of one pair, alone and beside an agent that sends as fast as it may, in turn."""
    await space.spawn(f"{AGENTS}:ponger", name="ponger", **PLACE)
    await space.spawn(f"{AGENTS}:receiver", name="flooded", input={"count": 1 << 40}, **PLACE)
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(order["turns"]):
        for took, flooded in ((alone, False), (beside, True)):
            if flooded:
                await space.spawn(f"{AGENTS}:flooder", name="flooder", caps=[SENDS], **PLACE)
                await asyncio.sleep(SETTLE)
            name = await space.spawn(f"{AGENTS}:pinger", input={"rounds": order["rounds"]}, caps=[SENDS], **PLACE)
            took += (await space.wait(name))["result"]
            if flooded:
                await space.signal("flooder", AgentSignal.SIGKILL)
    for name in ("ponger", "flooded"):
        await space.signal(name, AgentSignal.SIGKILL)
    return {"alone": alone, "beside": beside}


async def stuck(space: KernelSpace, order: dict[str, Any]) -> dict[str, Any]:
    """Memory of the kernel while agents send to one that takes nothing, each as much as it may."""
    await space.spawn(f"{AGENTS}:sleeper", name="stuck", **PLACE)
    names = [
        await space.spawn(f"{AGENTS}:pusher", name=f"push-{n}", input={"size": order["size"]}, caps=[SENDS], **PLACE)
        for n in range(order["senders"])
    ]
    before, sizes = _resident(), list[int]()
    for _ in range(order["seconds"]):
        await asyncio.sleep(1)
        sizes.append(_resident() - before)
    for name in (*names, "stuck"):
        await space.signal(name, AgentSignal.SIGKILL)
    return {"sizes": sizes}


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


DOES = {"rounds": round_trips, "crowd": crowd, "quiet": quiet, "stuck": stuck}


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1] if len(sys.argv) > 1 else ""))
