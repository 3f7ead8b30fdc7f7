"""A service: it answers requests, one at a time, for ever. What a handler raises is told to whoever asked."""

from typing import Any

from agent_os import Context, agent


@agent
async def serve(ctx: Context) -> None:
    async def answer(message: Any) -> dict[str, Any]:
        words = str(message.payload).split()
        ctx.log(f"{message.sender} asked")
        return {"words": len(words), "longest": max(words, key=len, default="")}

    await ctx.serve(answer)
