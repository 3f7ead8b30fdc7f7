"""Writes numbered lines, one effect each, as fast as it can. Nothing in it deals with being killed."""

from itertools import count

from agent_os import Context, agent


@agent
async def crasher(ctx: Context) -> None:
    for number in count(1):
        await ctx.append("/work/ledger.txt", f"{number}\n")
        print(number, flush=True)
