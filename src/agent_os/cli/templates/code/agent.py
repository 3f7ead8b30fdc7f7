"""An agent: one function, isolated, whose every call is decided and recorded by the kernel."""

from agent_os import Context, agent


@agent
async def count(ctx: Context, text: str = "to begin with") -> int:
    """How many words a text has. The text is kept where the next run finds it."""
    await ctx.write("/mem/working/text", text)
    ctx.log("counting")
    return len(text.split())
