"""An agent that can be killed at any moment: run again, it goes on where it was, and no line is written twice.

Nothing in it deals with that. Every call it makes is recorded; after a crash the program is run from its beginning and
the calls it had made are answered from the record, until it makes one that is new.
"""

from agent_os import Context, agent


@agent
async def counter(ctx: Context, steps: int = 10, pause: float = 1.0) -> str:
    for number in range(1, steps + 1):
        await ctx.append("/mem/working/lines", f"{number}\n")
        ctx.log(f"step {number} of {steps}")
        await ctx.sleep(pause)
    return await ctx.read("/mem/working/lines")
