"""Work, for an author: people who are asked and told, what is left to spend, and the agent loop inside a program.

Every method that waits is one syscall, but `loop`, which is as many as it takes. What a person said, or that nobody
did, is an `Answer` and never an exception: all four are ways in which a question ends.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from agent_os.abi import syscalls
from agent_os.abi.errors import EAPPROVAL, EINVAL
from agent_os.userland.loop_terms import Answer, Host, Left, Outcome, OwnTool
from agent_os.userland.messages import Messages
from agent_os.userland.results import read_as
from agent_os.userland.thinking import Models

_MOST_FACT = 2000  # characters of a text in an event: the record of the call itself has all of it
_ENDS = ("refused", "expired", "cancelled")


class Working(Messages, Models):
    """`Context` as far as it is about the work itself."""

    async def ask(self, question: str, *, schema: dict[str, Any] | None = None, timeout_s: float = 900) -> Answer:
        """Ask whoever runs this agent: `agentctl answer` is how they reply. Waits, also over crashes and restarts.
        `schema`: of the value; without one it is text."""
        request = syscalls.Ask(question=question, schema=schema, timeout_ms=max(1, round(timeout_s * 1000)))
        try:
            return Answer(state="value", value=(await self.syscall(request))["value"])
        except EAPPROVAL as problem:
            outcome = str(problem.detail.get("outcome", ""))
            if outcome not in _ENDS:
                raise
            return Answer(state=cast(Any, outcome), reason=problem.reason)

    async def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """`agent.WORD` for whoever follows this agent; long texts are cut."""
        await self.syscall(syscalls.Event(kind=kind, facts=cast("dict[str, Any]", _short(facts))))

    async def progress(self, text: str, *, done: float | None = None) -> None:
        """How far it is. `done`: from 0 to 1."""
        if done is not None and not 0 <= done <= 1:
            raise EINVAL("progress", "done is a part of the whole, from 0 to 1")
        await self.event("agent.progress", {"text": text, **({} if done is None else {"done": done})})

    async def budget(self) -> Left:
        """Of the budget that is tightest, its own or of somebody above."""
        return read_as(Left, await self.syscall(syscalls.Left()))

    async def loop(
        self,
        goal: str,
        *,
        model: str = "",
        tools: Iterable[str | OwnTool] = (),
        output: Any = None,
        inputs: Mapping[str, Any] | None = None,
        **bounds: Any,
    ) -> Outcome:
        """A model works towards a goal with these tools, until it has a result or a reason to stop. `output`: the type
        of the result. `bounds`: `turns`, `tool_calls`, `wall_secs`, `max_output`, `fallback`, `instructions`."""
        from agent_os.userland.loop import work  # programs without it start sooner

        named = model or self.usual_model
        if not named:
            hint = 'ctx.loop(goal, model="provider/name"), or @agent(model="provider/name")'
            raise EINVAL("loop.model", "no model is named", hint=hint)
        return await work(cast(Host, self), goal, model=named, tools=tools, output=output, inputs=inputs, **bounds)


def _short(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MOST_FACT:
        return f"{value[:_MOST_FACT]}… ({len(value)} characters)"
    if isinstance(value, Mapping):
        return {str(key): _short(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        few = cast("list[Any]", value)[:64]
        return [_short(one) for one in few]
    return value
