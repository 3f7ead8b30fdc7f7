"""Two isolated agents and a check between them: the kernel holds what passes to its type."""

import msgspec

from agent_os import Context, PolicyCheckPipe, agent


class Facts(msgspec.Struct):
    words: int
    longest: str


@agent
async def reader(ctx: Context, text: str) -> Facts:
    """May read what is untrusted, and can give facts and nothing else."""
    words = text.split()
    return Facts(len(words), max(words, key=len, default=""))


@agent
async def writer(ctx: Context, facts: Facts) -> str:
    """Never sees the text."""
    return f"{facts.words} words, the longest of which is {facts.longest!r}"


@agent
async def pipeline(ctx: Context, text: str = "what goes in is not what comes out") -> str:
    return await (reader | PolicyCheckPipe(allowed_types=["Facts"]) | writer).execute(text)
