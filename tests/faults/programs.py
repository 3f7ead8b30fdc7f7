"""Programs of agents for faults, each an `async def` of a context; run as `programs.py NAME DESCRIPTOR` with the
kernel on that descriptor. What a program was told it notes in the file ACKS, outside of the kernel's reach."""

import asyncio
import os
import random
import socket
import sys
import time
from typing import Any

from agent_os.abi.errors import EPERM, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.userland.context import Context

STEPS = int(os.environ.get("STEPS", "5"))


def ack(name: str, value: object = "-") -> None:
    fd = os.open(os.environ["ACKS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, f"{name} {value}\n".encode())
    os.close(fd)


async def effects(ctx: Context) -> Any:
    """One effect of each class per step, a file outside, an entry in the store, and a few pure calls at once."""
    for step in range(STEPS):
        for kind in ("pure", "idempotent", "verifiable", "opaque"):
            ack(f"{kind}:{step}", (await ctx.call(kind, n=step))["token"])
        await ctx.append("/work/log", f"{step}\n")
        ack(f"work:{step}")
        await ctx.append("/mem/working/log", f"{step}\n")
        ack(f"mem:{step}")
        noise = await ctx.gather(*(ctx.random(4) for _ in range(3)))
        ack(f"random:{step}", b"".join(noise).hex())
    return {"mem": await ctx.read("/mem/working/log"), "work": await ctx.read("/work/log", text=True)}


async def crowd(ctx: Context) -> Any:
    """Effects at the same time."""

    async def one(n: int) -> None:
        ack(f"idempotent:{n}", (await ctx.call("idempotent", n=n))["token"])

    await ctx.gather(*(one(n) for n in range(STEPS)))
    return STEPS


async def shuffled(ctx: Context) -> Any:
    """Fifty calls whose answers come in another order each time they are made; killed half-way, the first time."""
    order: list[int] = []

    async def one(n: int) -> None:
        wait = int.from_bytes(await ctx.random(1), "big") / 255 * 0.05
        await ctx.sleep(wait)
        order.append(n)
        ack(f"got:{n}", len(order))
        if len(order) == STEPS // 2 and ctx.incarnation == 1:
            os.kill(os.getpid(), 9)
        await ctx.write(f"/mem/working/{n}", str(len(order)))

    await ctx.gather(*(one(n) for n in range(STEPS)))
    return order


async def clock_of_its_own(ctx: Context) -> Any:
    """Time that does not come from the context ends in the body of a call."""
    await ctx.write("/mem/working/time", str(time.time()))
    await ctx.call("opaque", n=0)
    if ctx.incarnation == 1:
        os.kill(os.getpid(), 9)
    return "not reached"


async def changed_code(ctx: Context) -> Any:
    """As if the file had been edited between two lives."""
    await ctx.call("opaque", n=0)
    if ctx.incarnation == 1:
        await ctx.write("/mem/working/x", "1")
        os.kill(os.getpid(), 9)
    await ctx.remove("/mem/working/x")
    return "not reached"


async def shorter(ctx: Context) -> Any:
    await ctx.now()
    if ctx.incarnation == 1:
        await ctx.gather(ctx.write("/mem/working/x", "1"))
        os.kill(os.getpid(), 9)
    return "it does less than it did"


async def counting(ctx: Context) -> Any:
    """Call after call, for whoever stops and continues it; ends when told to."""
    done = False

    def stop(_: object) -> None:
        nonlocal done
        done = True

    ctx.on(AgentSignal.SIGUSR2, stop)
    count = 0
    while not done:
        got = await ctx.random(8)
        count += len(got) == 8
        await ctx.write("/mem/working/count", str(count))
        ack("count", count)
    return count


async def sleeper(ctx: Context) -> Any:
    began = await ctx.now()
    ack("asleep")
    await ctx.sleep(float(os.environ["SECONDS"]))
    ack("awake")
    return (await ctx.now() - began).total_seconds()


async def states(ctx: Context) -> Any:
    """Goes on from the state of its newest checkpoint; killed once after it was taken."""
    start = ctx.state["step"] if ctx.state else 0
    ack(f"began:{ctx.incarnation}", start)
    for step in range(start, STEPS):
        ack(f"opaque:{step}", (await ctx.call("opaque", n=step))["token"])
        if step == STEPS // 2 and ctx.incarnation == 1:
            os.kill(os.getpid(), 9)
        await ctx.checkpoint("step", {"step": step + 1})
    return STEPS


async def dies(ctx: Context) -> Any:
    """Killed in the middle of an effect, the first time."""
    if ctx.incarnation == 1:
        asyncio.get_running_loop().call_later(float(os.environ["AFTER"]), lambda: os.kill(os.getpid(), 9))
    told = await ctx.call(os.environ["KIND"], n=0, lasts=float(os.environ["LASTS"]))
    ack(f"{os.environ['KIND']}:0", told["token"])
    return told


async def remembers(ctx: Context) -> Any:
    """Gives its state when it is asked for one."""
    global remembered
    remembered = ctx.state or 0
    ack("began", remembered)
    while remembered < STEPS:
        await ctx.write("/mem/working/step", str(remembered))
        remembered += 1
        ack("step", remembered)
    return remembered


remembered = 0


async def rogue(ctx: Context) -> Any:
    """Sixty violations, one after the other."""
    for n in range(60):
        try:
            await ctx.read("/mem/episodic/x")
        except EPERM:
            ack("refused", n)
    await ctx.sleep(100)


async def always_dies(ctx: Context) -> Any:
    await ctx.now()
    os.kill(os.getpid(), 9)


async def dies_later(ctx: Context) -> Any:
    """Every life brings a few new calls, and no more."""
    for _ in range(5 * ctx.incarnation):
        await ctx.now()
    os.kill(os.getpid(), 9)


async def stays(ctx: Context) -> Any:
    """Hears SIGTERM, and does not mind."""
    ctx.on(AgentSignal.SIGTERM, lambda _: ack("asked", ctx.incarnation))
    ack("began", ctx.incarnation)
    while True:
        await ctx.sleep(0.02)


async def masks(ctx: Context) -> Any:
    await ctx.mask(AgentSignal.SIGUSR2)
    got: list[Any] = []
    ctx.on(AgentSignal.SIGUSR2, lambda signal: got.append(signal.value))
    ack("masked", ctx.incarnation)
    while True:
        try:
            await ctx.read("/mem/working/go")
            break
        except AgentOSError:
            await ctx.sleep(0.02)
    await ctx.unmask(AgentSignal.SIGUSR2)
    while not got:
        await ctx.sleep(0.02)
    return got


async def jitter(ctx: Context) -> Any:
    """The module `random` is the kernel's, too."""
    values = [random.random() for _ in range(3)]
    await ctx.write("/mem/working/random", str(values))
    if ctx.incarnation == 1:
        os.kill(os.getpid(), 9)
    return values


async def main() -> None:
    hook = (lambda _: remembered) if sys.argv[1] == "remembers" else None
    ctx = await Context.connect(socket.socket(fileno=int(sys.argv[2])), hook=hook)
    result = await ctx.run(globals()[sys.argv[1]](ctx))
    await ctx.leave(0, result)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except AgentOSError as error:
        sys.exit(f"{sys.argv[1]}: {error.name} {error.code}: {error.reason}" if "QUIET" not in os.environ else 1)
