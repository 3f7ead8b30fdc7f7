"""Puts a question to a person, which waits in the inbox, over restarts too; the answer is its result."""

from agent_os import Context, agent

DAY = 24 * 3600


@agent
async def asker(ctx: Context) -> str:
    answer = await ctx.ask("Shall the release go out?", timeout_s=DAY)
    said = f"answered: {answer.value}" if answer.state == "value" else answer.state
    print(said, flush=True)
    return said
