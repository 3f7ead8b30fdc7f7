"""What the clock does to a fleet: schedules, runs that were missed, and budgets that are filled again."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from agent_os.abi.entries import Kind
from agent_os.abi.syscalls import Start, Stop
from agent_os.kernel.journal import Draft
from agent_os.kernel.supervisor.fleet import Windows
from agent_os.kernel.supervisor.schedule import Schedule
from kernel.serving import until
from kernel.supervisor.declared import World, health, in_world, sh

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]
MINUTES = "[lifecycle]\nactivation = 'on_schedule'\nschedule = '* * * * *'\n"
DAY = 86_400.0


def schedules(world: World, name: str) -> list[dict[str, Any]]:
    return [one for one in world.told(name, Kind.STATE) if str(one.get("event", "")).startswith("schedule")]


def test_a_scheduled_agent_waits_and_a_due_time_starts_it_once(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest(
            "s", sh("exit 0") + health() + "[lifecycle]\nactivation = 'on_schedule'\nschedule = '0 0 1 1 *'\n"
        )
        await world.apply()
        assert str(world.record("s")) == "completed"
        assert world.kernel.fleet.busy, "a kernel that somebody's command started stays for it"
        fleet = world.kernel.fleet
        fleet.kept.settle("default/s", time.time() - 366 * DAY)
        fleet.stir()
        await until(lambda: len(world.exits("s")) == 1)
        await world.state("s", "completed")
        assert [(one["event"], one["missed"]) for one in schedules(world, "s")] == [("schedule start", 0)]
        assert world.record("s").incarnation == 1

    in_world(tmp_path, test)


def test_a_schedule_is_not_worked_out_at_every_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(world: World) -> None:
        world.manifest("s", "[lifecycle]\nactivation = 'on_schedule'\nschedule = '0 0 * 2 MON#5'\n")
        await world.apply()
        looks: list[float] = []
        look = Schedule.look
        monkeypatch.setattr(Schedule, "look", lambda *of, **how: looks.append(of[2]) or look(*of, **how))
        for _ in range(20):
            world.kernel.fleet.stir()
            await asyncio.sleep(0.01)
        assert len(looks) <= 1
        world.manifest("s", MINUTES)
        await world.apply()
        await until(lambda: len(looks) > 1)

    in_world(tmp_path, test)


def test_a_time_zone_that_the_host_does_not_know_any_more_keeps_nobody_else_from_starting(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("s", MINUTES)
        await world.apply()
        spec = world.kernel.fleet.kept.specs["default/s"]
        elsewhere = {**spec.tree, "lifecycle": {**spec.tree["lifecycle"], "timezone": "No/Where"}}
        world.kernel.fleet.kept.declare(replace(spec, tree=elsewhere))
        world.manifest("other")
        await world.apply("other")
        await world.ready("other")
        assert world.kernel.fleet.folder.left_out == [f"{spec.file}: the time zone 'No/Where' is not known here"]

    in_world(tmp_path, test)


def test_runs_that_were_missed_while_the_kernel_was_down_start_once_together(tmp_path: Path) -> None:
    async def first(world: World) -> None:
        world.manifest("s", MINUTES)
        await world.apply()
        put = world.kernel.fleet.kept.settle("default/s", time.time() - 600)
        await world.kernel.journal.record(Draft("kernel", Kind.CHANGE), puts=[put])
        await world.kernel.stop(0)

    async def second(world: World) -> None:
        await world.ready("s")
        told = schedules(world, "s")
        assert [one["event"] for one in told] == ["schedule start"]
        assert told[0]["missed"] in (8, 9, 10)
        assert world.record("s").incarnation == 1

    in_world(tmp_path, first)
    in_world(tmp_path, second)


def test_a_run_that_is_due_while_the_last_still_lives_is_skipped_and_recorded(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("s", MINUTES)
        await world.apply()
        await world.call(Start(agent="s"))
        world.kernel.fleet.kept.settle("default/s", time.time() - 300)
        world.kernel.fleet.stir()
        await until(lambda: len(schedules(world, "s")) == 1)
        assert schedules(world, "s")[0]["event"] == "schedule skip"
        assert world.record("s").incarnation == 1
        await world.call(Stop(agent="s"))
        world.kernel.fleet.kept.settle("default/s", time.time() - 300)
        world.kernel.fleet.stir()
        await until(lambda: not world.kernel.fleet.busy)
        assert world.alive() == set(), "whoever was stopped by hand is started by no clock"

    in_world(tmp_path, test)


def test_a_window_leaves_all_of_the_allowance_over_what_was_spent_and_a_restart_does_not(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", health() + "[budget]\ntool_calls = 10\nper = 'day'\n")
        await world.apply()
        await world.ready("a")
        budgets, fleet = world.kernel.budgets, world.kernel.fleet
        spec = fleet.spec("default/a")
        assert spec is not None
        budgets.settle(budgets.reserve("default/a", {"calls": 4}))
        world.strike("a")
        await world.lives("a", 2)
        assert budgets.account("default/a").room("calls") == 6
        windows = Windows(fleet)
        windows.fill(spec, time.time())
        assert budgets.account("default/a").room("calls") == 6, "the same day"
        windows.fill(spec, time.time() + DAY)
        assert budgets.account("default/a").room("calls") == 10

    in_world(tmp_path, test)


def test_each_run_has_its_own_budget_where_the_manifest_says_so(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        world.manifest("a", sh("exit 0") + health() + "[budget]\ntool_calls = 10\nper = 'run'\n")
        await world.apply()
        await world.state("a", "completed")
        budgets = world.kernel.budgets
        budgets.settle(budgets.reserve("default/a", {"calls": 4}))
        await world.call(Start(agent="a"))
        assert budgets.account("default/a").room("calls") == 10

    in_world(tmp_path, test)
