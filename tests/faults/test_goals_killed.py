"""The kernel is killed while goals wait and are worked at: none is lost, and none is worked at twice."""

import time
from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = pytest.mark.uid_free("a crash is recovered the same way for every user")

PROGRAM = """
from agent_os import agent

@agent
async def clerk(ctx):
    while goal := await ctx.goal():
        if goal.text == "report":
            await ctx.finish(goal, await ctx.read("/mem/working/log"))
            continue
        await ctx.append("/mem/working/log", goal.text + "\\n")
        await ctx.sleep(0.05)
        await ctx.finish(goal, goal.text)
"""
MANIFEST = """
name = "clerk"
role = "worker"
skills = ["write"]
[program]
entry = "clerk.py:clerk"
"""
GOALS, KILLS = 12, 3


@pytest.mark.integration
def test_every_goal_is_done_once_over_kills_of_the_kernel(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (desk.project / "clerk.py").write_text(PROGRAM)
    (desk.project / "clerk.agent.toml").write_text(MANIFEST)
    desk.up()
    try:
        desk.good("apply", "-f", "clerk.agent.toml")
        for number in range(GOALS):
            desk.good("submit", f"write {number}", "--agent", "clerk")
            if number % (GOALS // KILLS) == GOALS // KILLS - 1:
                desk.kill_kernel()
                desk.up()
        until(lambda: not _open(desk))
        ended = desk.good("queue", "--all", "--json").json["ended"]
        assert sorted(one["goal"] for one in ended) == sorted(f"write {number}" for number in range(GOALS))
        assert {one["state"] for one in ended} == {"done"}
        report = desk.good("submit", "report", "--agent", "clerk", "--wait", "--json").json
        assert sorted(report["result"].split("\n")[:-1]) == sorted(f"write {number}" for number in range(GOALS))
    finally:
        desk.down()


def _open(desk: Desk) -> int:
    found = desk.good("queue", "--json").json
    return len(found["waiting"]) + len(found["working"])


@pytest.mark.integration
def test_an_agent_that_is_started_for_its_goal_goes_on_with_it_in_the_next_kernel(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (desk.project / "once.py").write_text(
        "from agent_os import agent\n\n\n@agent\nasync def once(ctx):\n    goal = await ctx.goal()\n"
        "    await ctx.append('/mem/working/times', 'x')\n    await ctx.sleep(2)\n"
        "    return [goal.text, await ctx.read('/mem/working/times')]\n"
    )
    (desk.project / "once.agent.toml").write_text(
        'name = "once"\nrole = "worker"\n[program]\nentry = "once.py:once"\n[lifecycle]\nactivation = "manual"\n'
    )
    desk.up()
    try:
        desk.good("apply", "-f", "once.agent.toml")
        goal = desk.good("submit", "only this", "--agent", "once", "--json").json["id"]
        until(lambda: "SYS_WRITE" in desk.ask("events", "--agent", "once").out)
        desk.kill_kernel()
        desk.up()
        until(lambda: desk.good("queue", "show", goal, "--json").json["state"] not in ("waiting", "working"))
        over = desk.good("queue", "show", goal, "--json").json
        assert (over["state"], over["result"]) == ("done", ["only this", "x"]), "its one effect happened once"
    finally:
        desk.down()


@pytest.mark.integration
def test_a_goal_that_kills_whoever_takes_it_is_given_up_and_the_next_is_served(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    (desk.project / "clerk.py").write_text(
        PROGRAM.replace('goal.text == "report"', 'goal.text == "die"').replace(
            'await ctx.finish(goal, await ctx.read("/mem/working/log"))', "raise RuntimeError(goal.text)"
        )
    )
    (desk.project / "clerk.agent.toml").write_text(MANIFEST + '[health.backoff]\njitter = "none"\n')
    desk.up()
    try:
        desk.good("apply", "-f", "clerk.agent.toml")
        began = time.monotonic()
        poison = desk.ask("submit", "die", "--agent", "clerk", "--wait", "--json")
        assert (poison.code, poison.json["state"], poison.json["deaths"]) == (1, "failed", 3), poison
        assert desk.good("submit", "write on", "--agent", "clerk", "--wait", "--json").json["state"] == "done"
        lives = desk.good("history", "clerk", "--json").json["lives"]
        assert len(lives) == 4, (lives, time.monotonic() - began)
    finally:
        desk.down()
