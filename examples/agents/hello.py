"""The smallest agent: it remembers a text and says how long it is.   agentctl run hello.py:hello text="some words" """

from agent_os import Context, agent


@agent
async def hello(ctx: Context, text: str = "hello, world") -> int:
    await ctx.write("/mem/working/text", text)
    words = (await ctx.read("/mem/working/text")).split()
    ctx.log(f"{len(words)} words, said by {ctx.agent}")
    return len(words)
