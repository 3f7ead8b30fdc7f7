"""The program of an agent that has none: a manifest's model, tools and goal, run by the loop.

In: `terms` (see `loop_terms`) with a goal, or without one; then goals that are submitted are worked on one after the
other, for ever. Out: the result. A run that was stopped without one ends the agent with the exit code `STOPPED`, and
what there is of it goes along: another start would pay for the same again. The kernel starts this file as it starts any
author's; it has nothing that theirs have not.
"""

from collections.abc import Callable
from typing import Any, cast

import msgspec

from agent_os.abi.errors import AgentOSError
from agent_os.userland.agent import agent
from agent_os.userland.loop import Loop, kept_state, state_from
from agent_os.userland.loop_terms import Host, Outcome, Terms
from agent_os.userland.results import Goal

STOPPED = 20
_LONGEST_FAILURE = 400


class Stopped(SystemExit):
    """A run that ended without a result."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(STOPPED)
        self.failure = _failure(outcome)
        self.result = msgspec.to_builtins(outcome)


class _Work:
    """What is being worked on, for checkpoints that somebody asks for."""

    def __init__(self) -> None:
        self.goal: Goal | None = None
        self.loop: Loop | None = None

    def kept(self, loop: Any = None) -> dict[str, Any]:
        if loop is None and self.loop and self.loop.state:
            loop = kept_state(self.loop.state)
        return {"goal": msgspec.to_builtins(self.goal), "loop": loop}


_WORK = _Work()


@agent
async def model_agent(ctx: Any, terms: dict[str, Any], goal: str = "", inputs: dict[str, Any] | None = None) -> Any:
    bound = msgspec.convert(terms, Terms)
    before: dict[str, Any] = ctx.state or {}
    if goal or bound.goal:
        outcome = await _run(ctx, bound, before.get("loop"), lambda loop: loop.run(goal, inputs))
        if outcome.stop != "done":
            raise Stopped(outcome)
        return outcome.result
    await _serve(ctx, bound, before)


@model_agent.on_checkpoint
def save(ctx: Any) -> Any:
    return _WORK.kept()


async def _serve(ctx: Any, terms: Terms, before: dict[str, Any]) -> None:
    """Goals, one after the other. What one run said is nothing to the next."""
    state = before.get("loop")
    goal = msgspec.convert(before["goal"], Goal) if before.get("goal") else None
    while True:
        if goal is None:
            await ctx.at_rest()
            goal = await ctx.goal()
        _WORK.goal = goal
        if goal is None:
            return
        await _work_on(ctx, goal, await _in_time(ctx, terms, goal) if state is None else terms, state)
        _WORK.goal = goal = state = None
        await ctx.checkpoint("between-goals", _WORK.kept())


async def _work_on(ctx: Any, goal: Goal, terms: Terms, state: Any) -> None:
    try:
        outcome = await _run(ctx, terms, state, lambda loop: loop.run(goal.text, goal.inputs))
    except AgentOSError as problem:  # of the machinery; whoever submitted the goal hears of it, and the agent ends
        await ctx.finish(goal, failure=str(problem)[:_LONGEST_FAILURE])
        raise
    failure = None if outcome.stop == "done" else _failure(outcome)
    await ctx.finish(goal, outcome.result if failure is None else msgspec.to_builtins(outcome), failure=failure)


async def _run(ctx: Any, terms: Terms, state: Any, start: Callable[[Loop], Any]) -> Outcome:
    loop = Loop(cast(Host, ctx), terms, state=state_from(state) if state else None, wrap=_WORK.kept)
    _WORK.loop = loop
    try:
        return await start(loop)
    finally:
        _WORK.loop = None


async def _in_time(ctx: Any, terms: Terms, goal: Goal) -> Terms:
    """A goal's own deadline holds where it is nearer."""
    if goal.deadline is None:
        return terms
    left = goal.deadline - (await ctx.now()).timestamp()
    return msgspec.structs.replace(terms, wall_secs=max(0.0, min(terms.wall_secs, left)))


def _failure(outcome: Outcome) -> str:
    return f"stopped ({outcome.stop}): {outcome.why or 'no result'}"[:_LONGEST_FAILURE]
