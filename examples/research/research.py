"""A research agent in two halves. The reader opens pages, which may say anything, also "ignore your instructions"; it
can write nothing and tell nobody, and what it gives is held to one type. The planner asks it and writes the answer; it
never sees a page. What is cited is what was really opened: the program knows, whatever the model says.
"""

import msgspec

from agent_os import Context, PolicyCheckPipe, agent, tool

LIBRARY = "/work/library"


class Finding(msgspec.Struct):
    claim: str
    source: str  # a page of the library
    quote: str  # its words


class Findings(msgspec.Struct):
    question: str
    found: list[Finding]


class Report(msgspec.Struct):
    answer: str
    sources: list[str]


@agent(model="scripted/reader", files=["ro:/work"], tools=["file.list", "file.read"])
async def reader(ctx: Context, question: str) -> Findings:
    """Reads, and gives claims with their source and the very words."""
    pages: dict[str, str] = {}

    @tool(effect="pure")
    async def open_page(path: str) -> str:
        "The text of a page of the library."
        pages[path] = (await ctx.call("file.read", path=path)).text
        return pages[path]

    goal = f"Find what the pages in {LIBRARY} say about inputs.question. Quote the very words."
    outcome = await ctx.loop(goal, inputs={"question": question}, tools=["file.list", open_page], output=Findings)
    claimed = outcome.result.found if outcome.result else []
    return Findings(question, [one for one in claimed if one.quote and one.quote in pages.get(one.source, "")])


@agent(model="scripted/planner")
async def planner(ctx: Context, findings: Findings) -> Report:
    """Answers from findings alone."""
    goal = "Answer inputs.question from inputs.found and from nothing else. Say so if they do not answer it."
    outcome = await ctx.loop(goal, inputs=msgspec.to_builtins(findings), output=Report)
    opened = {one.source for one in findings.found}
    if not outcome.result:
        return Report(outcome.text or outcome.why, [])
    return Report(outcome.result.answer, [one for one in outcome.result.sources if one in opened])


@agent
async def research(ctx: Context, question: str = "How long does a heap of compost need?") -> Report:
    return await (reader | PolicyCheckPipe(allowed_types=["Findings"]) | planner).execute(question)
