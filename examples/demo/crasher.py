"""Writes numbered lines, one effect each, as fast as it can. Nothing in it deals with being killed."""

from agent_os import Context, agent

LINES = 300


@agent
async def crasher(ctx: Context) -> dict[str, int]:
    for number in range(1, LINES + 1):
        await ctx.append("/work/ledger.txt", f"{number}\n")
        print(number, flush=True)
    return {"lines": LINES}
