"""Agents as authors write them, for faults: the programs beside this file, and some that start others."""

from typing import Any

import programs

from agent_os import agent
from agent_os.abi.errors import EINTR
from agent_os.userland.context import Context

effects = agent(programs.effects)
states = agent(programs.states)
counting = agent(programs.counting)
sleeper = agent(programs.sleeper)


@agent
async def child(ctx: Context, n: int) -> Any:
    """One effect that must not happen twice."""
    token = (await ctx.call("opaque", n=n))["token"]
    programs.ack(f"opaque:{n}", token)
    return token


@agent
async def parent(ctx: Context) -> Any:
    """Children one after the other. A spawn of which the kernel says that nothing of it happened is made again."""
    results: list[Any] = []
    for n in range(programs.STEPS):
        manifest = {"name": f"child-{n}", "program": {"runtime": "python", "entry": "authored.py:child"}}
        for _ in range(10):
            try:
                spawned = await ctx.spawn(manifest, {"n": n}, caps=["tool:opaque:call"])
                break
            except EINTR:
                programs.ack(f"again:{n}")
        ended = await ctx.wait(spawned)
        programs.ack(f"ended:{n}", ended.result)
        results.append(ended.result)
    return results


@agent
async def keeps(ctx: Context) -> Any:
    """Calls without effect, one with an effect, and a checkpoint of files, workspace and state, step by step."""
    start = ctx.state["step"] if ctx.state else 0
    for step in range(start, programs.STEPS):
        for _ in range(3):
            await ctx.random(8)
        programs.ack(f"opaque:{step}", (await ctx.call("opaque", n=step))["token"])
        await ctx.append("/work/log", f"{step}\n")
        await ctx.append("/mem/working/log", f"{step}\n")
        await ctx.checkpoint("step", {"step": step + 1})
    return {"mem": await ctx.read("/mem/working/log"), "work": await ctx.read("/work/log", text=True)}
