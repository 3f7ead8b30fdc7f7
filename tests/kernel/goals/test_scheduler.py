"""Goals on a running kernel: stored before anything happens, handed to whoever asks, and never lost or done twice."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EBUSY, EDQUOT, EINVAL, EMSGSIZE, ENOENT, ESRCH
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Finish, Take
from agent_os.kernel.goals import scheduler as goals
from agent_os.kernel.goals.kept import stored
from agent_os.kernel.goals.scheduler import LARGEST
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Ended
from peer import greeted, running, until, with_kernel

CRASHED = Ended(ExitClass.SIGNAL, -9, "struck")
DONE = Ended(ExitClass.NORMAL, 0, result=7)
STOPPED = Ended(ExitClass.REQUESTED, -1, "killed by somebody")
BY = "local:0"


async def submit(kernel: Kernel, text: str = "do it", agent: str = "a", **more: Any) -> str:
    return (await kernel.scheduler.submit({"text": text, "agent": agent, **more}, BY)).id


def state(kernel: Kernel, goal: str) -> str:
    return kernel.scheduler.find(goal).state


def test_a_goal_is_handed_to_the_agent_that_asks_and_over_when_it_says_so() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        goal = await submit(kernel, "sum it up", inputs={"n": 3}, priority="high")
        assert state(kernel, goal) == "waiting"
        given = await peer.ask(Take())
        assert given == {"id": goal, "text": "sum it up", "inputs": {"n": 3}, "priority": "high", "deadline": None}
        assert state(kernel, goal) == "working"
        await peer.ask(Finish(goal=goal, result={"sum": 6}))
        one = await kernel.scheduler.until_over(goal)
        assert (one.state, one.result) == ("done", {"sum": 6})
        with pytest.raises(ESRCH):
            await peer.ask(Finish(goal=goal))
        (kept,) = stored(kernel.store)
        assert (kept.state, kept.result) == ("done", {"sum": 6}), "the store says so, too"

    with_kernel(test)


def test_who_asks_before_there_is_a_goal_waits_for_it_and_no_longer_than_it_said() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        assert await peer.ask(Take(wait_ms=0)) is None
        assert await peer.ask(Take(wait_ms=20)) is None
        waiting = asyncio.create_task(peer.ask(Take()))
        await until(lambda: kernel.scheduler._asking["default/a"] == 1)  # pyright: ignore[reportPrivateUsage]
        goal = await submit(kernel)
        assert (await waiting)["id"] == goal

    with_kernel(test)


def test_an_agent_is_at_as_many_goals_as_it_asks_for_and_the_rest_wait_for_it() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        first, second, third = [await submit(kernel, f"number {n}") for n in range(3)]
        assert [one.waiting_for for one in kernel.scheduler.queue()] == ["agent"] * 3
        assert (await peer.ask(Take()))["id"] == first
        assert (await peer.ask(Take()))["id"] == second
        assert [(one.id, one.waiting_for) for one in kernel.scheduler.queue()] == [(third, "agent")]
        await peer.ask(Finish(goal=second, failure="no way"))
        assert (kernel.scheduler.find(second).state, kernel.scheduler.find(second).reason) == ("failed", "no way")
        assert (await peer.ask(Take()))["id"] == third

    with_kernel(test)


def test_the_more_urgent_goal_is_given_out_first_and_urgency_can_be_changed() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        low, normal = await submit(kernel, "a", priority="low"), await submit(kernel, "b")
        assert [one.id for one in kernel.scheduler.queue()] == [normal, low]
        changed = await kernel.scheduler.prioritize(low, "critical", BY)
        assert [one.id for one in changed] == [low]
        assert (await peer.ask(Take()))["id"] == low
        both = await kernel.scheduler.prioritize("a", "high", BY)
        assert {one.id for one in both} == {low, normal}
        assert {one.priority for one in stored(kernel.store)} == {"high"}
        with pytest.raises(EINVAL, match="no priority"):
            await kernel.scheduler.prioritize(low, "urgent", BY)
        with pytest.raises(ESRCH):
            await kernel.scheduler.prioritize("nobody", "high", BY)

    with_kernel(test)


def test_nobody_is_done_with_anothers_goal_nor_with_one_it_has_not_taken() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        _, other = await greeted(kernel, "b")
        goal = await submit(kernel)
        with pytest.raises(ESRCH):
            await peer.ask(Finish(goal=goal))
        await peer.ask(Take())
        with pytest.raises(ESRCH):
            await other.ask(Finish(goal=goal))
        assert await other.ask(Take(wait_ms=0)) is None
        assert state(kernel, goal) == "working"

    with_kernel(test)


@pytest.mark.long
def test_a_goal_ends_with_its_agent_as_the_agent_ends() -> None:
    async def test(kernel: Kernel) -> None:
        for name, ended, expected in (("n", DONE, "done"), ("r", STOPPED, "withdrawn")):
            agent, peer = await greeted(kernel, name)
            goal = await submit(kernel, agent=name)
            await peer.ask(Take())
            await kernel.end(agent, ended)
            assert state(kernel, goal) == expected
        agent, peer = await greeted(kernel, "failed")
        goal = await submit(kernel, agent="failed")
        await peer.ask(Take())
        await kernel.end(agent, Ended(ExitClass.ERROR, 1, "it broke"))
        assert (state(kernel, goal), kernel.scheduler.find(goal).reason) == ("failed", "it broke")

    with_kernel(test)


def test_a_goal_that_its_agent_never_saw_waits_again_when_that_ends() -> None:
    async def test(kernel: Kernel) -> None:
        agent, _ = await greeted(kernel)
        goal = await submit(kernel)
        await kernel.end(agent, DONE)
        assert state(kernel, goal) == "waiting"
        _, later = await greeted(kernel)
        assert (await later.ask(Take()))["id"] == goal

    with_kernel(test)


def test_what_a_kernel_that_stops_takes_down_waits_in_the_next_one(tmp_path: Path) -> None:
    async def first() -> str:
        async with running(tmp_path) as kernel:
            _, peer = await greeted(kernel)
            goal, other = await submit(kernel, "one"), await submit(kernel, "two")
            assert (await peer.ask(Take()))["id"] == goal
            await kernel.stop(0)
            assert (state(kernel, goal), state(kernel, other)) == ("waiting", "waiting")
            return goal

    async def second(goal: str) -> None:
        async with running(tmp_path) as kernel:
            assert [one.goal for one in kernel.scheduler.queue()] == ["one", "two"]
            _, peer = await greeted(kernel)
            assert (await peer.ask(Take()))["id"] == goal

    goal = asyncio.run(first())
    asyncio.run(second(goal))


def test_a_goal_whose_deadline_passes_while_it_waits_is_never_given_out() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        goal = await submit(kernel, deadline=time.time() + 0.05)
        await until(lambda: state(kernel, goal) == "late")
        assert await peer.ask(Take(wait_ms=0)) is None
        with pytest.raises(EINVAL, match="deadline"):
            await submit(kernel, deadline=time.time() - 1)

    with_kernel(test)


def test_a_goal_that_waits_can_be_withdrawn_and_one_at_work_cannot() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        working, waiting = await submit(kernel), await submit(kernel)
        await peer.ask(Take())
        await kernel.scheduler.withdraw(waiting, BY, "")
        assert state(kernel, waiting) == "withdrawn"
        with pytest.raises(EBUSY, match="already"):
            await kernel.scheduler.withdraw(working, BY, "")
        with pytest.raises(ESRCH):
            await kernel.scheduler.withdraw("g-0", BY, "")

    with_kernel(test)


def test_what_cannot_be_a_goal_is_refused_and_nothing_is_stored() -> None:
    async def test(kernel: Kernel) -> None:
        await greeted(kernel)
        kernel.budgets.limit("default/a", {"cost": 1000})
        with pytest.raises(ESRCH, match="no agent 'b'"):
            await submit(kernel, agent="b")
        with pytest.raises(ENOENT):
            await kernel.scheduler.submit("for nobody in particular", BY)
        with pytest.raises(EINVAL, match="did you mean `priority`"):
            await submit(kernel, prority="high")
        with pytest.raises(EDQUOT, match="may spend 1000"):
            await submit(kernel, budget={"cost": 1001})
        with pytest.raises(EINVAL, match="no budget counts 'euros'"):
            await submit(kernel, budget={"euros": 1})
        with pytest.raises(EDQUOT, match="MiB"):
            await submit(kernel, memory_mb=1 << 40)
        assert stored(kernel.store) == []
        assert kernel.scheduler.queue() == []

    with_kernel(test)


def test_a_goal_waits_for_a_budget_that_is_spent_and_goes_on_when_there_is_more() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        kernel.budgets.limit("default/a", {"cost": 0})
        goal = await submit(kernel)
        taking = asyncio.create_task(peer.ask(Take()))
        await until(lambda: kernel.scheduler._asking["default/a"] == 1)  # pyright: ignore[reportPrivateUsage]
        assert [one.waiting_for for one in kernel.scheduler.queue()] == ["budget"]
        kernel.budgets.limit("default/a", {"cost": 5})
        assert (await taking)["id"] == goal

    with_kernel(test)


def test_more_than_is_kept_of_goals_that_ended_is_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "MOST_ENDED", 2)

    async def test(kernel: Kernel) -> None:
        await greeted(kernel)
        ended = [await submit(kernel, f"{n}") for n in range(4)]
        for goal in ended:
            await kernel.scheduler.withdraw(goal, BY, "")
        assert [one.id for one in kernel.scheduler.ended()] == ended[2:]
        assert [one.id for one in stored(kernel.store)] == ended[2:]

    with_kernel(test)


def test_what_is_given_with_a_goal_or_comes_of_it_is_bounded() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        with pytest.raises(EMSGSIZE, match="inputs"):
            await submit(kernel, inputs={"x": "y" * LARGEST})
        with pytest.raises(EINVAL, match="inputs"):
            await submit(kernel, inputs={"x": object()})
        goal = await submit(kernel)
        await peer.ask(Take())
        with pytest.raises(EMSGSIZE, match="result"):
            await peer.ask(Finish(goal=goal, result="y" * LARGEST))
        await peer.ask(Finish(goal=goal, result="y" * (LARGEST - 100)))
        assert state(kernel, goal) == "done"

    with_kernel(test)


def test_a_life_that_begins_a_run_of_its_own_is_given_the_goal_again() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        goal = await submit(kernel)
        await peer.ask(Take())
        assert await peer.ask(Take(wait_ms=0)) is None, "this life has it"
        agent.first_aseq += 100  # what a fresh run of the same agent has
        assert (await peer.ask(Take(wait_ms=0)))["id"] == goal

    with_kernel(test)


@pytest.mark.long
def test_many_goals_and_many_agents_are_matched_without_looking_at_all_of_each() -> None:
    async def test(kernel: Kernel) -> None:
        peers = [await greeted(kernel, f"w{n}") for n in range(8)]
        goals = [await submit(kernel, f"{n}", agent=f"w{n % 8}") for n in range(80)]

        async def work(peer: Any) -> None:
            while given := await peer.ask(Take(wait_ms=2000 if len(done) < 80 else 0)):
                await peer.ask(Finish(goal=given["id"], result=given["text"]))
                done.append(given["id"])

        done: list[str] = []
        async with asyncio.timeout(60):
            await asyncio.gather(*(work(peer) for _, peer in peers))
        assert sorted(done) == sorted(goals)
        assert [one.result for one in kernel.scheduler.ended()].count("7") == 1

    with_kernel(test)
