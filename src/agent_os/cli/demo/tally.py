"""Counts, and keeps the number in its own memory. Nothing in it deals with being killed: it goes on from its record."""

from agent_os import Context, agent


@agent
async def tally(ctx: Context) -> None:
    number = 0
    while True:
        number += 1
        await ctx.write("/mem/working/number", str(number))
        print(f"tally: {number}", flush=True)
        await ctx.sleep(1)
