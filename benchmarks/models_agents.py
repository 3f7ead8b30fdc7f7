"""The agents that `models.py` measures, each an isolated process of its own. What they return is what they saw."""

import asyncio
import time

from agent_os import Context, agent

WARM = 5
PROMPT = "What is two and two?"


@agent
async def caller(ctx: Context, model: str, rounds: int, prompt: str = PROMPT) -> list[float]:
    """Milliseconds of each call, from the program's side."""
    took: list[float] = []
    for _ in range(WARM + rounds):
        began = time.perf_counter()
        await ctx.model(prompt, model=model)
        took.append((time.perf_counter() - began) * 1000)
    return took[WARM:]


@agent
async def one_of_many(ctx: Context, model: str, rounds: int) -> list[float]:
    """When it began and ended, by a clock that all processes of a machine share."""
    await ctx.recv()  # the word to begin
    began = time.monotonic()
    for _ in range(rounds):
        await ctx.model(PROMPT, model=model)
    return [began, time.monotonic()]


@agent
async def waiter(ctx: Context, model: str, calls: int) -> None:
    await asyncio.gather(*(ctx.model(PROMPT, model=model) for _ in range(calls)))


@agent
async def shell(ctx: Context, rounds: int) -> list[float]:
    took: list[float] = []
    for _ in range(WARM + rounds):
        began = time.perf_counter()
        await ctx.call("shell.execute", argv=["/bin/true"])
        took.append((time.perf_counter() - began) * 1000)
    return took[WARM:]
