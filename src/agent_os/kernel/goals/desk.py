"""What is asked about goals: SYS_TAKE and SYS_FINISH by agents, OP_SUBMIT and its like by operators.

Each is understood here as an `Act` for the gate; the doing is the scheduler's.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EINVAL, EMSGSIZE
from agent_os.abi.syscalls import BY_REQUEST, Effect
from agent_os.kernel.calls import Act, Asked, Done, Way
from agent_os.kernel.goals.kept import Kept
from agent_os.kernel.goals.scheduler import LARGEST
from agent_os.kernel.table import Actor, Agent

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Asked], Act]


# Agents.


def _take(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    wait_ms = cast("abi.Take", asked.request).wait_ms
    if wait_ms is not None and wait_ms < 0:
        raise EINVAL("body", "SYS_TAKE waits 0 ms or more - at `$.wait_ms`")

    async def do() -> Done:
        taken = await kernel.scheduler.take(agent, None if wait_ms is None else wait_ms / 1000)
        if taken is None:
            return Done()
        one, stored = taken
        return Done(_given(one), puts=[stored])

    return Act(do)


def _given(one: Kept) -> dict[str, Any]:
    wanted = one.goal
    facts = {"id": one.id, "text": wanted.text, "inputs": dict(wanted.inputs)}
    return {**facts, "priority": one.priority, "deadline": wanted.deadline}


def _finish(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Finish", asked.request)
    if len(asked.raw) > LARGEST:
        reason = f"the result of a goal has at most {LARGEST} bytes"
        raise EMSGSIZE("goal.result", reason, hint="write it to a file, and give its path")
    later: list[Callable[[], None]] = []

    def do() -> Done:
        puts, committed = kernel.scheduler.finish(agent, request.goal, request.result, request.failure)
        later.append(committed)
        return Done(puts=puts)

    def answered() -> None:
        for committed in later:
            committed()

    return Act(do, way=Way.STORE, effect=Effect.IDEMPOTENT, answered=answered)


# Operators.


def _submit(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    goal = cast("abi.Submit", asked.request).goal
    if not isinstance(goal, str | dict):
        raise EINVAL("goal", "a goal is text, or a map with `text`")

    async def do() -> Done:
        one = await kernel.scheduler.submit(cast("str | dict[str, Any]", goal), caller.id)
        return Done({"id": one.id, "agent": one.agent, "picked_by": one.picked_by})

    return Act(do, can_stop=False)


def _prioritize(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Prioritize", asked.request)

    async def do() -> Done:
        found = await kernel.scheduler.prioritize(request.target, request.priority, caller.id)
        return Done({"goals": [one.shown() for one in found]})

    return Act(do, can_stop=False)


def _queue(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    everything = cast("abi.Queue", asked.request).all

    def do() -> Done:
        scheduler = kernel.scheduler
        ended = [one.shown() for one in scheduler.ended()] if everything else []
        working = [one.shown() for one in scheduler.working()]
        return Done({"waiting": msgspec.to_builtins(scheduler.queue()), "working": working, "ended": ended})

    return Act(do)


def _look(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.LookAtGoal", asked.request)
    kernel.scheduler.find(request.goal)

    async def do() -> Done:
        scheduler = kernel.scheduler
        one = await scheduler.until_over(request.goal) if request.wait else scheduler.find(request.goal)
        return Done(one.shown())

    return Act(do)


def _withdraw(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Withdraw", asked.request)

    async def do() -> Done:
        return Done((await kernel.scheduler.withdraw(request.goal, caller.id, request.reason)).shown())

    return Act(do, can_stop=False)


_AGENTS: dict[type[abi.Body], Prepare] = {abi.Take: _take, abi.Finish: _finish}
_OPERATORS: dict[type[abi.Body], Prepare] = {
    abi.Submit: _submit,
    abi.Prioritize: _prioritize,
    abi.Queue: _queue,
    abi.LookAtGoal: _look,
    abi.Withdraw: _withdraw,
}
CALLS = {BY_REQUEST[kind].number: call for kind, call in _AGENTS.items()}
PREPARE = {BY_REQUEST[kind].number: call for kind, call in _OPERATORS.items()}
