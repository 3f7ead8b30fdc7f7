"""The process whose kernel makes the model calls that `models.py` measures: on disk, with a key, as `agentctl up` does.

Started with its home and the port of the model. For each line of JSON read it runs one measurement and prints one line
of facts.
"""

import asyncio
import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from agent_os.abi.errors import AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.daemon.process import calm_collector
from agent_os.kernel.authority.bindings import bind
from agent_os.kernel.models.catalogue import Provider
from agent_os.message_bus import MessageBus
from agent_os.sandbox.spec import PROXY_PORT
from agent_os.space import KernelSpace

FOLDER = Path(__file__).parent
AGENTS = str(FOLDER / "models_agents.py")
PLACE = {"workspace": "tmpfs", "cwd": str(FOLDER), "mounts": [str(FOLDER)], "python": sys.executable}
PYTHON = "/usr/bin/python3"  # a guest sees it without any mount
AT_ONCE = 8  # starts
SLOW_MS = 60_000  # longer than anything that is measured beside it


class Side:
    def __init__(self, space: KernelSpace, home: Path, port: int) -> None:
        self._space, self._home, self._port = space, home, port
        self._kernel: Any = space._kernel  # pyright: ignore[reportPrivateUsage]

    def provide(self, name: str, wait_ms: int, slots: int) -> str:
        """A model that answers after so long; its name."""
        catalogue, base = self._kernel.models.catalogue, f"http://127.0.0.1:{self._port}/{wait_ms}/v1"
        made = Provider(name=name, dialect="openai", base=base, keys=("bench",), slots=slots)
        catalogue.keep(catalogue.added(made))
        return f"{name}/stub"

    def unlock(self) -> None:
        self._kernel.safe.add("bench", b"sk-bench-0123456789abcdef")
        self._kernel.safe.bind(bind("bench", [f"127.0.0.1:{self._port}"]))

    async def calls(self, order: dict[str, Any]) -> dict[str, Any]:
        """Calls of one agent, one after the other."""
        model = self.provide("bench", 0, 64)
        given = {"model": model, "rounds": order["rounds"], "prompt": order["prompt"]}
        return {"took": await self._result("caller", given, [_may(model)])}

    async def shell(self, order: dict[str, Any]) -> dict[str, Any]:
        return {"took": await self._result("shell", {"rounds": order["rounds"]}, ["tool:*:call", "shell:execute"])}

    async def door(self, order: dict[str, Any]) -> dict[str, Any]:
        """The same client as on the host, in a guest that knows nothing of us."""
        self.provide("bench", 0, 64)
        work = self._home / f"door-{time.monotonic_ns()}"
        work.mkdir()
        asked = json.dumps({"port": PROXY_PORT, "path": "/v1", "rounds": order["rounds"]})
        argv = [PYTHON, "-I", "-S", "-c", (FOLDER / "models_client.py").read_text(), asked]
        place = {"cwd": str(work), "workspace": f"bind:{work}", "models": ["bench/stub"]}
        ended = await self._space.wait(await self._space.spawn(argv, **place))
        if not (work / "out.json").exists():
            return {"problem": f"the guest at the door ended: {ended['reason']}"}
        return json.loads((work / "out.json").read_text())

    async def crowd(self, order: dict[str, Any]) -> dict[str, Any]:
        """Agents with so many calls each, one after the other, all at once when all are there: as many as are asked for
        or could be started in time."""
        model = self.provide("crowd", order["wait_ms"], order["agents"])
        began = time.perf_counter()
        given = {"model": model, "rounds": order["rounds"]}
        names = await self._many("one_of_many", order["agents"], given, model, within=order["within"])
        started = time.perf_counter() - began
        bus, cpu = MessageBus(self._space), time.process_time()
        for name in names:
            await bus.send("starter", name, "go")
        ended = [await self._space.wait(name) for name in names]
        times = [one["result"] for one in ended]
        if any(one is None for one in times):
            return {"problem": next(one["reason"] for one in ended if one["result"] is None)}
        calls = len(names) * order["rounds"]
        span = max(one[1] for one in times) - min(one[0] for one in times)
        each = (time.process_time() - cpu) / calls * 1e6
        return {"agents": len(names), "rate": calls / span, "cpu": each, "started": started}

    async def behind(self, order: dict[str, Any]) -> dict[str, Any]:
        """Calls of four agents while a fifth waits for a slow model, which is the same one by another name."""
        slow, fast = self.provide("slow", SLOW_MS, 64), self.provide("fast", 50, 64)
        long = await self._in_flight(slow)
        given = {"model": fast, "rounds": order["rounds"]}
        took = await asyncio.gather(*(self._result("caller", given, [_may(fast)]) for _ in range(4)))
        await self._space.signal(long, AgentSignal.SIGKILL)
        return {"took": [one for each in took for one in each]}

    async def kill(self, order: dict[str, Any]) -> dict[str, Any]:
        """When an agent was killed whose call was in flight."""
        model = self.provide("slow", SLOW_MS, 64)
        name = await self._in_flight(model)
        at = time.monotonic()
        await self._space.signal(name, AgentSignal.SIGKILL)
        return {"at": at}

    async def waiting(self, order: dict[str, Any]) -> dict[str, Any]:
        """Memory of the kernel for calls that wait for their turn, and how long it takes to kill all who wait."""
        model, each = self.provide("one-at-a-time", SLOW_MS, 1), order["each"]
        names = await self._many("one_of_many", order["agents"], {"model": model, "rounds": 1}, model)
        for name in names:
            await self._space.signal(name, AgentSignal.SIGKILL)
        before = _resident()
        names = await self._many("waiter", order["agents"], {"model": model, "calls": each}, model)
        await self._until_waiting(order["agents"] * each - 1)
        after = _resident()
        began = time.perf_counter()
        await asyncio.gather(*(self._space.signal(name, AgentSignal.SIGKILL) for name in names))
        left = len(self._kernel.models.places())
        return {"bytes": (after - before) / (order["agents"] * each), "kill": time.perf_counter() - began, "left": left}

    # Parts.

    async def _result(self, function: str, given: dict[str, Any], caps: list[str]) -> list[float]:
        ended = await self._space.wait(await self._space.spawn(f"{AGENTS}:{function}", input=given, caps=caps, **PLACE))
        if ended["result"] is None:
            raise RuntimeError(f"{function} ended without a result: {ended['reason']}")
        return ended["result"]

    async def _many(
        self, function: str, count: int, given: dict[str, Any], model: str, *, within: float = float("inf")
    ) -> list[str]:
        """Their names. `within`: seconds after which no other is started."""
        places, until = asyncio.Semaphore(AT_ONCE), time.perf_counter() + within

        async def one() -> str | None:
            async with places:
                if time.perf_counter() > until:
                    return None
                return await self._space.spawn(f"{AGENTS}:{function}", input=given, caps=[_may(model)], **PLACE)

        return [name for name in await asyncio.gather(*(one() for _ in range(count))) if name]

    async def _in_flight(self, model: str) -> str:
        """An agent whose call has been sent."""
        (agent,) = await self._many("waiter", 1, {"model": model, "calls": 1}, model)
        lanes = self._kernel.models._lanes
        while not any(name == model and lane.queue.in_flight for (_, name), lane in lanes.items()):
            await asyncio.sleep(0.01)
        return agent

    async def _until_waiting(self, calls: int) -> None:
        while len(self._kernel.models.places()) < calls:
            await asyncio.sleep(0.05)


def _may(model: str) -> str:
    return f"llm:{model}:call"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def main(home: Path, port: int) -> None:
    async with KernelSpace(home=home / "kernel") as space:
        side = Side(space, home, port)
        side.unlock()
        space.create_agent_context("starter")
        calm_collector()
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):  # it may be long, and come in pieces
            order = json.loads(line)
            try:
                facts = await getattr(side, order["do"])(order)
            except (AgentOSError, RuntimeError) as problem:
                facts = {"problem": f"{order['do']}: {problem}"}
            print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2])))
