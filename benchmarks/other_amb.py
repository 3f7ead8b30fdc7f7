"""Run under amb-core's venv (`benchmarks/get-others`): request and reply in one process, in memory, with
priorities.

Prints one line of JSON for each line read: µs of each round trip.
"""

import asyncio
import json
import sys
import time
from typing import Any

from amb_core.bus import MessageBus
from amb_core.memory_broker import InMemoryBroker

ROUNDS = 100


async def main() -> None:
    async with MessageBus(adapter=InMemoryBroker(use_priority_delivery=True)) as bus:

        async def answer(message: Any) -> None:
            await bus.reply(message, {"n": 1})

        await bus.subscribe("ping", answer)
        for _ in sys.stdin:
            took: list[float] = []
            for number in range(ROUNDS):
                began = time.perf_counter()
                await bus.request("ping", {"n": number}, timeout=10)
                took.append((time.perf_counter() - began) * 1e6)
            print(json.dumps({"took": took}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
