"""Agents written for us, over lives: what is on the record is not done again, and a finished run begins anew."""

from pathlib import Path

import pytest

from agent_os.abi.syscalls import Restart, Start, Stop, Submit
from kernel.serving import until
from kernel.supervisor.declared import World, health, in_world

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]

PROGRAM = """
import os, signal
from agent_os import agent

@agent
async def main(ctx):
    number = await ctx.random(4)
    with open("/out/lives", "a") as file:
        print(number.hex(), file=file)
    lives = len(open("/out/lives").readlines())
    STEP
    await ctx.sleep(1000)
"""


def declare(world: World, step: str, **words: object) -> None:
    (world.project / "n.py").write_text(PROGRAM.replace("STEP", step))
    out = world.project.parent / "out"
    out.mkdir()
    mount = f"[[mounts]]\npath = '/out'\nsource = '{out}'\nrights = 'rw'\n"
    world.manifest("n", "[program]\nentry = 'n.py:main'\n" + health(**words) + mount)


def numbers(world: World) -> list[str]:
    return (world.project.parent / "out/lives").read_text().split()


def test_whoever_crashes_goes_on_with_its_record_however_it_crashed(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        ends = "raise RuntimeError('first')", "os._exit(5)", "os.kill(os.getpid(), signal.SIGKILL)"
        lines = [f"if lives == {count}: {end}" for count, end in enumerate(ends, 1)]
        declare(world, "\n    ".join(lines))
        await world.apply()
        await world.lives("n", 4)
        await until(lambda: len(numbers(world)) == 4)
        assert len(set(numbers(world))) == 1, "what was random in the first life is the same in all"
        assert [(one["class"], one["code"]) for one in world.exits("n")] == [("error", 1), ("error", 5), ("signal", -9)]
        assert world.record("n").consecutive == 3

    in_world(tmp_path, test)


def test_a_call_that_failed_and_was_not_survived_is_asked_again(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        (world.project / "n.py").write_text(
            "from agent_os import agent\n"
            "@agent\n"
            "async def main(ctx):\n"
            "    await ctx.write('/mem/working/first', 'x')\n"
            "    await ctx.read('/mem/working/later')\n"
            "    await ctx.sleep(1000)\n"
        )
        world.manifest("n", "[program]\nentry = 'n.py:main'\n" + health(max_restarts=50))
        await world.apply()
        await until(lambda: len(world.exits("n")) >= 1)
        reads = [1 for entry, _ in world.kernel.journal.scan("default/n") if entry.op == 1]
        await until(lambda: len(world.exits("n")) >= 2)
        again = [1 for entry, _ in world.kernel.journal.scan("default/n") if entry.op == 1]
        writes = [1 for entry, _ in world.kernel.journal.scan("default/n") if entry.op == 2]
        assert len(again) > len(reads), "the read was answered from the record, and could never succeed"
        assert len(writes) == 1, "what had been done was done again"

    in_world(tmp_path, test)


def test_a_run_that_ended_well_is_followed_by_a_new_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        declare(world, "if lives == 1: return 'done'", restart_policy="always")
        await world.apply()
        await world.lives("n", 2)
        await until(lambda: len(numbers(world)) == 2)
        assert len(set(numbers(world))) == 2

    in_world(tmp_path, test)


@pytest.mark.parametrize("force", [False, True])
def test_whoever_is_stopped_and_started_goes_on_and_hears_no_old_signal(tmp_path: Path, force: bool) -> None:
    async def test(world: World) -> None:
        declare(world, "pass")
        await world.apply()
        await until(lambda: (world.project.parent / "out/lives").exists() and len(numbers(world)) == 1)
        await world.call(Stop(agent="n", force=force))
        await world.call(Start(agent="n"))
        await until(lambda: len(numbers(world)) == 2)
        await world.call(Restart(agent="n"))
        await until(lambda: len(numbers(world)) == 3)
        assert len(set(numbers(world))) == 1
        assert {one["class"] for one in world.exits("n")} == {"requested"}
        assert world.record("n").incarnation == 3
        assert world.alive() == {"n"}

    in_world(tmp_path, test)


def test_a_fleet_over_an_orderly_end_of_the_kernel_goes_on_where_it_was(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        declare(world, "pass")
        world.manifest("after", "[dependencies]\nrequires = ['n']\n")
        await world.apply()
        await world.ready("after")
        await until(lambda: (world.project.parent / "out/lives").exists() and len(numbers(world)) == 1)
        await world.kernel.stop(5)
        ends = [entry.agent for entry, _ in world.kernel.journal.scan() if entry.kind == 5]
        assert ends == ["default/after", "default/n"], "whoever needs somebody goes before that one"

    async def second(world: World) -> None:
        await world.ready("after", "n")
        await until(lambda: len(numbers(world)) == 2)
        assert len(set(numbers(world))) == 1
        assert [one["class"] for one in world.exits("n")] == ["lost"]
        assert (world.record("n").consecutive, world.record("n").incarnation) == (0, 2)
        assert world.alive() == {"after", "n"}

    in_world(tmp_path, first)
    in_world(tmp_path, second)


def test_a_goal_that_an_earlier_run_took_forgives_no_crash_of_this_one(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        declare(world, "for _ in range(2 if lives < 3 else 0):\n        await ctx.goal()", max_restarts=2)
        with open(world.project / "n.agent.toml", "a") as manifest:
            manifest.write("[interface]\nmax_deaths = 2\n")
        await world.apply()
        await world.ready("n")

        async def takes(text: str) -> None:
            await world.call(Submit(goal={"text": text, "agent": "n"}))
            await until(lambda: text in [one.goal.text for one in world.kernel.scheduler.of("default/n") if one.taken])

        for number, text in enumerate(["kills it", "is there when that does"], 2):
            await takes(text)
            world.strike("n")
            await world.lives("n", number)
        world.strike("n")
        await world.lives("n", 4)
        world.strike("n")
        await world.state("n", "failed")
        assert [one["decision"]["why"] for one in world.exits("n")] == ["signal", "message", "signal", "max_restarts"]

    in_world(tmp_path, test)
