"""Links and monitors of real processes, also over an end of the kernel between their making and the exit."""

import os
import signal
from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("the kernel decides the same for every user")]
PROGRAMS = """
import asyncio
from agent_os import agent

@agent
async def target(ctx):
    await ctx.sleep(3600)

@agent
async def watcher(ctx):
    seen, told = [], asyncio.Event()

    def down(delivered):
        seen.append(delivered.value)
        told.set()

    ctx.on("monitor_down", down)
    ref = await ctx.monitor("target")
    await told.wait()
    return {"mine": seen[0]["ref"] == ref, "class": seen[0]["class"], "agent": seen[0]["agent"]}

@agent
async def linked(ctx):
    await ctx.link("target")
    await ctx.sleep(3600)

@agent
async def trapper(ctx):
    seen, told = [], asyncio.Event()

    def exited(delivered):
        seen.append(delivered.value)
        told.set()

    ctx.on("link_exit", exited)
    await ctx.trap_exit()
    await ctx.link("target")
    await told.wait()
    return seen[0]["class"]
"""


@pytest.fixture
def desk(tmp_path: Path) -> "Desk":
    desk = Desk(tmp_path)
    (desk.project / "programs.py").write_text(PROGRAMS)
    desk.up()
    run(desk, "target", "SYS_SLEEP")
    return desk


def run(desk: Desk, name: str, until_it_called: str) -> None:
    cap = ("--cap", "agent:target:signal,inspect") if name != "target" else ()
    desk.good("run", "--detach", "--name", name, *cap, f"programs.py:{name}")
    # A sleep is on the record when it begins; the others when they are answered.
    until(lambda: until_it_called in desk.ask("events", "--agent", name).out)


def strike(desk: Desk, name: str) -> None:
    """From outside, as by the host's own hand."""
    (row,) = [one for one in desk.good("ps", "--json").json["agents"] if one["name"] == name]
    os.kill(row["pid"], signal.SIGKILL)


def ended(desk: Desk, name: str) -> dict[str, object]:
    return desk.ask("wait", name, "--json").json


def test_a_monitor_hears_of_a_death_that_the_target_itself_survives(desk: Desk) -> None:
    try:
        run(desk, "watcher", "SYS_MONITOR")
        strike(desk, "target")
        assert ended(desk, "watcher")["result"] == {"mine": True, "class": "signal", "agent": "default/target"}
    finally:
        desk.down()


def test_a_monitor_hears_after_a_restart_of_the_kernel_that_its_target_was_lost(desk: Desk) -> None:
    try:
        run(desk, "watcher", "SYS_MONITOR")
        desk.kill_kernel()
        desk.up()
        assert ended(desk, "watcher")["result"] == {"mine": True, "class": "lost", "agent": "default/target"}
    finally:
        desk.down()


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart of the kernel"])
def test_a_linked_agent_goes_along_and_one_that_traps_is_told(desk: Desk, restarted: bool) -> None:
    try:
        run(desk, "linked", "SYS_LINK")
        run(desk, "trapper", "SYS_LINK")
        if restarted:
            desk.kill_kernel()
            desk.up()
            until(lambda: desk.good("ps", "--json").out.count('"state": "running"') == 3)
        strike(desk, "target")
        assert ended(desk, "linked")["reason"] == "linked: target ended (signal)"
        assert ended(desk, "trapper")["result"] == "signal"
    finally:
        desk.down()
