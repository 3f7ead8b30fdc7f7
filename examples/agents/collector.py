"""Several things at once, a handler, and a state to resume from, for programs whose record would grow too long.

`SIGUSR2` asks it how far it is. A checkpoint (`SIGUSR1`, or one that the kernel asks for by itself) keeps `ctx.state`
where the program says that it is at rest; a later run begins with that state instead of with the whole record.
"""

from agent_os import Context, agent
from agent_os.abi.signals import AgentSignal


@agent
async def collector(ctx: Context, rounds: int = 3, width: int = 4) -> int:
    ctx.state = ctx.state or {"round": 0, "sum": 0}
    ctx.on(AgentSignal.SIGUSR2, lambda _: ctx.log(f"in round {ctx.state['round']}"))
    while ctx.state["round"] < rounds:
        await ctx.at_rest()
        rolls = await ctx.gather(*(one_roll(ctx) for _ in range(width)))
        await ctx.write(f"/mem/working/round-{ctx.state['round'] + 1}", str(rolls))
        ctx.state = {"round": ctx.state["round"] + 1, "sum": ctx.state["sum"] + sum(rolls)}
    return ctx.state["sum"]


async def one_roll(ctx: Context) -> int:
    """A die whose throws are the same again in a replay."""
    return (await ctx.random(1))[0] % 6 + 1


@collector.on_checkpoint
def state(ctx: Context) -> dict[str, int]:
    return ctx.state
