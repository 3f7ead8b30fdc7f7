"""The agents that `bus.py` measures, each an isolated process of its own. What they return is what they saw."""

import asyncio
import time
from itertools import islice

from agent_os import Context, agent
from agent_os.abi import frames
from agent_os.abi.errors import EAGAIN
from agent_os.abi.syscalls import Recv, Reply, Request, Send

WARM = 100


@agent
async def ponger(ctx: Context) -> None:
    done: list[str] = []
    while True:
        (message,) = await ctx.syscall(Recv(wait_ms=None, ack=done))
        await ctx.syscall(Reply(request=message["id"], payload=frames.body(message["payload"])))


@agent
async def pinger(ctx: Context, rounds: int) -> list[float]:
    """µs of each round trip."""
    took: list[float] = []
    for number in range(WARM + rounds):
        began = time.perf_counter()
        await ctx.syscall(Request(to="ponger", payload=frames.body(number)))
        took.append((time.perf_counter() - began) * 1e6)
    return took[WARM:]


@agent
async def sender(ctx: Context, to: str, count: int, window: int, batch: int) -> list[float]:
    """When it began and ended, by a clock that all processes of a machine share."""
    await ctx.recv()  # the word to begin
    began = time.monotonic()
    left = iter(range(count))

    async def send() -> None:
        while some := list(islice(left, batch)):
            more = [frames.body(number) for number in some[1:]]
            await ctx.syscall(Send(to=to, payload=frames.body(some[0]), more=more))

    await asyncio.gather(*(send() for _ in range(window)))
    return [began, time.monotonic()]


@agent
async def receiver(ctx: Context, count: int) -> list[float]:
    done: list[str] = []
    got, first = 0, 0.0
    while got < count:
        found = await ctx.syscall(Recv(max=64, wait_ms=None, ack=done))
        first = first or time.monotonic()
        done = [one["id"] for one in found]
        got += len(found)
    await ctx.syscall(Recv(ack=done))
    return [first, time.monotonic()]


@agent
async def flooder(ctx: Context) -> None:
    """As fast as it may, for ever."""

    async def send() -> None:
        while True:
            try:
                await ctx.syscall(Send(to="flooded", payload=frames.body(0), lane="low"))
            except EAGAIN as full:
                await asyncio.sleep((full.retry_after_ms or 10) / 1000)

    await asyncio.gather(*(send() for _ in range(8)))


@agent
async def sleeper(ctx: Context) -> None:
    """Takes one message and is never done with it."""
    await ctx.recv(visible=36_000)
    await ctx.sleep(36_000)


@agent
async def pusher(ctx: Context, size: int) -> None:
    payload = frames.body(b"x" * size)
    while True:
        try:
            await ctx.syscall(Send(to="stuck", payload=payload))
        except EAGAIN:
            await asyncio.sleep(0.01)
