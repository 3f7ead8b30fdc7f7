"""The program of a manifest without code: one goal and out, or goals one after the other."""

import asyncio
from typing import Any

import msgspec
import pytest

from agent_os.abi.errors import EUNKNOWN
from agent_os.manifest.settling import STOPPED as DECLARED
from agent_os.userland.loop_terms import Terms
from agent_os.userland.model_agent import STOPPED, Stopped, model_agent, save
from agent_os.userland.results import Goal
from userland.loop_host import FakeHost, call, step

TERMS = {"model": "scripted/x", "tools": ["*"]}


class Agent(FakeHost):
    """A context with goals."""

    state: Any = None

    def with_goals(self, *goals: Goal) -> "Agent":
        self.goals, self.finished, self.kept = [*goals], [], []
        return self

    async def goal(self) -> Goal | None:
        return self.goals.pop(0) if self.goals else None

    async def finish(self, goal: Goal, result: Any = None, *, failure: str | None = None) -> None:
        self.finished.append((goal.id, result, failure))

    async def checkpoint(self, name: str, state: Any = None) -> str:
        if hasattr(self, "kept"):
            self.kept.append(state)
        return await super().checkpoint(name, state)


def test_the_result_of_one_goal_is_the_agents_result() -> None:
    assert asyncio.run(model_agent(Agent([step("42")]), TERMS, goal="What?")) == "42"
    assert asyncio.run(model_agent(Agent([step("42")]), {**TERMS, "goal": "What?"})) == "42"


def test_a_run_that_was_stopped_ends_with_its_own_code_and_what_there_is() -> None:
    host = Agent([step("so far", call("x")), step("I will not", stop="refused")], {"x": ("pure", lambda: 1)})
    with pytest.raises(Stopped) as stopped:
        asyncio.run(model_agent(host, TERMS, goal="What?"))
    assert stopped.value.code == STOPPED == DECLARED
    assert "refused" in stopped.value.failure
    assert stopped.value.result["text"] == "I will not"


def test_goals_are_worked_on_one_after_the_other_and_failures_are_told() -> None:
    host = Agent([step("the first"), step("no", stop="refused"), step("three")])
    host.with_goals(Goal("g1", "a"), Goal("g2", "b"), Goal("g3", "c", {"n": 1}))
    asyncio.run(model_agent(host, TERMS))
    assert [(id_, failure and failure[:17]) for id_, _, failure in host.finished] == [
        ("g1", None),
        ("g2", "stopped (refused)"),
        ("g3", None),
    ]
    assert host.finished[0][1] == "the first"
    assert "the first" not in host.told(1), "what one run said is nothing to the next"
    assert host.kept == [{"goal": None, "loop": None}] * 3


def test_a_goals_own_deadline_holds_where_it_is_nearer() -> None:
    host = Agent(lambda _: step("", call("x")), {"x": ("pure", lambda: 1)}, think_secs=40)
    host.with_goals(Goal("g1", "a", deadline=1_000_000.0 + 100))
    asyncio.run(model_agent(host, {**TERMS, "wall_secs": 10_000}))
    assert host.finished[0][2] == "stopped (deadline): its 100 seconds are over (program.loop.wall_secs)"


def test_a_failure_of_the_machinery_is_told_and_ends_the_agent() -> None:
    def unknown() -> None:
        raise EUNKNOWN("effect", "nobody knows")

    host = Agent([step("", call("x"))], {"x": ("opaque", unknown)}).with_goals(Goal("g1", "a"))
    with pytest.raises(EUNKNOWN):
        asyncio.run(model_agent(host, TERMS))
    assert "nobody knows" in host.finished[0][2]


def test_a_goal_is_gone_on_with_from_a_checkpoint() -> None:
    def think(request: Any) -> Any:
        turn = sum(message.role == "assistant" for message in request.messages)
        return step("done") if turn == 24 else step("", call("x", f"id{turn}", n=turn))

    first = Agent(think, {"x": ("opaque", lambda n: n)}).with_goals(Goal("g1", "the goal"))
    asyncio.run(model_agent(first, TERMS))
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(first.kept[0]))
    assert kept["goal"]["id"] == "g1"
    later = Agent(think, {"x": ("opaque", lambda n: n)}).with_goals()
    later.state = kept
    asyncio.run(model_agent(later, TERMS))
    assert later.finished == first.finished == [("g1", "done", None)]
    assert later.effects == first.effects[20:]


def test_a_checkpoint_that_is_asked_for_holds_the_run() -> None:
    seen: list[Any] = []

    class Looking(Agent):
        async def at_rest(self) -> None:
            seen.append(save(self))

    host = Looking([step("", call("x")), step("done")], {"x": ("pure", lambda: 1)})
    asyncio.run(model_agent(host, TERMS, goal="g"))
    assert [one["loop"]["turn"] for one in seen] == [0, 1]
    assert save(host) == {"goal": None, "loop": None}


def test_terms_that_the_kernel_does_not_know_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="turn"):
        asyncio.run(model_agent(Agent(), {**TERMS, "turn": 3}, goal="g"))
    assert Terms(model="a/b").turns == 50
