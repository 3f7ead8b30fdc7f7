"""Who can be given a goal, as the fleet stands; and what becomes of a goal whose agent cannot be started."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import ENOENT
from agent_os.kernel.goals.workers import Workers
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.running import Run
from agent_os.kernel.supervisor.terms import State
from agent_os.manifest.model import AgentManifest
from agent_os.sandbox.hierarchies import detect
from kernel.serving import serving, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]
BY = "local:0"
PROGRAM = """
from agent_os import agent

@agent
async def works(ctx):
    await ctx.goal()
    await ctx.sleep(600)
"""
MANUAL = {"activation": "manual"}
COMMAND = {"argv": ["sleep", "600"]}


def drive(top: Path, body: Callable[[Kernel], Awaitable[None]]) -> None:
    async def test() -> None:
        (top / "project").mkdir()
        (top / "project" / "works.py").write_text(PROGRAM)
        async with serving(top / "home") as (kernel, _), asyncio.timeout(120):
            await body(kernel)

    asyncio.run(test())


async def declare(kernel: Kernel, top: Path, name: str, **sections: Any) -> None:
    tree = {"name": name, "role": "worker", "program": {"entry": "works.py:works"}, "lifecycle": MANUAL, **sections}
    await kernel.fleet.apply([AgentManifest.from_dict(tree)], base=str(top / "project"), by="test")


def able(kernel: Kernel) -> dict[str, bool]:
    return {one.id: one.ready for one in Workers(kernel).candidates(lambda _: 0, ())}


def state(kernel: Kernel, name: str) -> State:
    record = kernel.fleet.record(f"default/{name}")
    assert record
    return record.state


def test_candidates_are_declared_agents_with_a_program_and_what_they_say_of_themselves(tmp_path: Path) -> None:
    async def body(kernel: Kernel) -> None:
        words = {"skills": ["read"], "labels": {"team": "red"}, "resources": {"max_memory_mb": 64}}
        await declare(kernel, tmp_path, "one", **words)
        await declare(kernel, tmp_path, "above", role="supervisor", program={})
        (one,) = Workers(kernel).candidates({"default/one": 3}.__getitem__, ())
        assert (one.id, one.skills, one.labels, one.memory_mb, one.load, one.ready) == (
            *("default/one", ["read"], {"team": "red"}, 64, 3, True),
        )

    drive(tmp_path, body)


def test_who_was_stopped_or_has_failed_and_a_command_that_is_always_there_take_no_goal(tmp_path: Path) -> None:
    async def body(kernel: Kernel) -> None:
        await declare(kernel, tmp_path, "manual")
        await declare(kernel, tmp_path, "stopped")
        await declare(kernel, tmp_path, "command", program=COMMAND, lifecycle={})
        await declare(kernel, tmp_path, "broken", program={"argv": ["/nowhere/at-all"]}, lifecycle={})
        await kernel.fleet.start("default/stopped", BY)
        await kernel.fleet.stop("default/stopped", BY, force=True)
        await until(lambda: state(kernel, "broken") is State.FAILED)
        expected = {"manual": True, "stopped": False, "command": False, "broken": False}
        assert able(kernel) == {f"default/{name}": can for name, can in expected.items()}
        with pytest.raises(ENOENT):
            await kernel.scheduler.submit("whatever", BY)

    drive(tmp_path, body)


def test_an_agent_is_started_for_its_goal_and_goes_with_its_own_counters(tmp_path: Path) -> None:
    async def body(kernel: Kernel) -> None:
        await declare(kernel, tmp_path, "one", skills=["work"])
        goal = (await kernel.scheduler.submit("work", BY)).id
        await until(lambda: kernel.scheduler.find(goal).taken != 0)
        assert state(kernel, "one") is State.ACTIVE
        assert able(kernel) == {"default/one": True}
        await kernel.fleet.stop("default/one", BY, force=True)
        assert kernel.scheduler.find(goal).state == "withdrawn"
        later = (await kernel.scheduler.submit({"text": "work", "agent": "one"}, BY)).id
        await until(lambda: kernel.scheduler.queue()[0].waiting_for == "agent")
        assert kernel.scheduler.find(later).state == "waiting", "an operator's stop stands"
        await kernel.fleet.start("default/one", BY)
        await until(lambda: kernel.scheduler.find(later).state == "working")

    drive(tmp_path, body)


def test_a_goal_whose_agent_cannot_be_started_fails_with_it_or_waits_and_holds_nothing(tmp_path: Path) -> None:
    async def body(kernel: Kernel) -> None:
        await declare(kernel, tmp_path, "one", health={"restart_policy": "never"})
        (tmp_path / "project" / "works.py").write_text("nonsense(")
        goal = (await kernel.scheduler.submit({"text": "work", "agent": "one"}, BY)).id
        await until(lambda: kernel.scheduler.find(goal).over)
        assert kernel.scheduler.find(goal).state == "failed"
        assert "SyntaxError" in kernel.scheduler.find(goal).reason
        (tmp_path / "project" / "works.py").unlink()
        await declare(kernel, tmp_path, "two", program=COMMAND)
        lost = (await kernel.scheduler.submit({"text": "work", "agent": "one"}, BY)).id
        await until(lambda: kernel.scheduler.queue()[0].waiting_for == "agent")
        assert kernel.scheduler.find(lost).state == "waiting"
        assert kernel.scheduler.working() == []

    drive(tmp_path, body)


def test_an_agent_has_a_larger_share_while_its_goal_is_urgent(tmp_path: Path) -> None:
    if "cpu" not in detect().controllers:
        pytest.skip("no cpu controller that we may use")

    def share(kernel: Kernel) -> int:
        run = kernel.table.find("one").running
        assert isinstance(run, Run)
        assert run.guest.process.group
        place = next(path for each, path in run.guest.process.group.places if "cpu" in each.controllers)
        weight = place / "cpu.weight"
        return int(weight.read_text()) if weight.exists() else int((place / "cpu.shares").read_text()) * 100 // 1024

    async def body(kernel: Kernel) -> None:
        await declare(kernel, tmp_path, "one", resources={"priority": "low"})
        goal = (await kernel.scheduler.submit({"text": "work", "agent": "one"}, BY)).id
        await until(lambda: kernel.scheduler.find(goal).taken != 0)
        assert share(kernel) == 25
        await kernel.scheduler.prioritize("one", "critical", BY)
        assert share(kernel) == 800

    drive(tmp_path, body)
