"""Run under autogen-core's venv (`benchmarks/get-others`): 8 agents that send to 8 others, in one process, in memory.

Prints one line of JSON for each line read: messages a second.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass

from autogen_core import AgentId, MessageContext, RoutedAgent, SingleThreadedAgentRuntime, message_handler

PAIRS, COUNT = 8, 250


@dataclass
class Number:
    value: int


class Receiver(RoutedAgent):
    def __init__(self) -> None:
        super().__init__("receives")

    @message_handler
    async def take(self, message: Number, ctx: MessageContext) -> None:
        return None


async def main() -> None:
    runtime = SingleThreadedAgentRuntime()
    await Receiver.register(runtime, "receiver", Receiver)
    runtime.start()

    async def send(number: int) -> None:
        for value in range(COUNT):
            await runtime.send_message(Number(value), AgentId("receiver", str(number)))

    for _ in sys.stdin:
        began = time.perf_counter()
        await asyncio.gather(*(send(number) for number in range(PAIRS)))
        print(json.dumps({"rate": PAIRS * COUNT / (time.perf_counter() - began)}), flush=True)
    await runtime.stop()


if __name__ == "__main__":
    asyncio.run(main())
