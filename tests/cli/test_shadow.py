"""`agentctl run --shadow`: a project's rules are tried, in one run. Beside each claim stands the same without it."""

from collections.abc import Iterator

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
RULES = """version = 1
default = "capability"

[[rule]]
id = "no-env"
effect = "forbid"
what = ["file:/work/**/.env:read"]

[[rule]]
id = "no-out"
effect = "forbid"
what = ["file:/work/out.txt:write"]

[[rule]]
id = "no-host"
effect = "forbid"
what = ["http:one.example.invalid/**:*"]
"""
ABOVE = RULES.replace("no-out", "not-even-tried")
AGENT = """
from agent_os import agent

@agent
async def writer(ctx):
    await ctx.write("/work/out.txt", "x")
    return "wrote"

@agent
async def boss(ctx):
    child = await ctx.spawn({"name": "x", "program": {"entry": "agent.py:writer"}})
    return (await ctx.wait(child)).result

@agent
async def grasping(ctx):
    try:
        await ctx.write("/mem/episodic/note", "no")
    except Exception as refused:
        return type(refused).__name__

@agent
async def sleeper(ctx):
    await ctx.write("/work/out.txt", "x")
    await ctx.sleep(3600)
"""
VISIT = "import urllib.request as u; print(u.urlopen('http://one.example.invalid/').status)"


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    (desk.project / ".agents").mkdir()
    (desk.project / ".agents/policy.toml").write_text(RULES)
    (desk.project / "above.toml").write_text(ABOVE)
    (desk.project / "agent.py").write_text(AGENT)
    (desk.project / ".env").write_text("SECRET\n")
    desk.up()
    yield desk
    desk.down()


def at(desk: Desk, line: int) -> str:
    return f"{desk.project}/.agents/policy.toml:{line}"


def test_what_a_rule_forbids_happens_and_is_told_with_rule_and_line(desk: Desk) -> None:
    refused = desk.ask("run", "--rm", "--name", "bound", "agent.py:writer")
    assert (refused.code, "SIGPOLICY: no-out" in refused.err) == (137, True)
    ran = desk.good("run", "--rm", "--name", "tries", "--shadow", "agent.py:writer")
    assert ran.out == "wrote\n"
    assert "shadow  this project's rules are tried" in ran.err
    assert f"would refuse  file:/work/out.txt:write  no-out  {at(desk, 9)}  1×" in ran.err
    assert "violation" not in ran.err
    assert "would forbid: no-out" in desk.good("events", "--agent", "tries", "-o", "json").out


def test_what_a_rule_would_have_covered_lies_open_and_is_told(desk: Desk) -> None:
    assert desk.good("run", "--rm", "--", "cat", ".env").out == ""
    ran = desk.good("run", "--rm", "--shadow", "--", "cat", ".env")
    assert ran.out == "SECRET\n"
    assert f"would cover  file:/work/.env:read  no-env  {at(desk, 4)}" in ran.err


def test_the_network_stays_closed_but_for_what_the_run_holds(desk: Desk) -> None:
    """The rule about a host is tried; that nobody named the host is no rule."""
    closed = desk.ask("run", "--rm", "--shadow", "--", "python3", "-c", VISIT)
    assert closed.code != 0
    assert "refused  connect one.example.invalid:80" in closed.err
    opened = desk.ask("run", "--rm", "--shadow", "--net", "one.example.invalid", "--", "python3", "-c", VISIT)
    assert "refused  connect" not in opened.err  # it was let through, and there is no such host
    assert f"no-host  {at(desk, 14)}  1×" in opened.err
    bound = desk.ask("run", "--rm", "--net", "one.example.invalid", "--", "python3", "-c", VISIT)
    assert "no-host" in bound.err
    assert "would" not in bound.err


def test_capabilities_hold_in_every_mode(desk: Desk) -> None:
    assert desk.good("run", "--rm", "--shadow", "agent.py:grasping").out == "EPERM\n"


def test_rules_above_the_project_hold(desk: Desk) -> None:
    assert desk.good("run", "--rm", "--shadow", "agent.py:writer").out == "wrote\n"
    desk.good("policy", "apply", "above.toml")
    try:
        ran = desk.ask("run", "--rm", "--name", "held", "--shadow", "agent.py:writer")
        assert (ran.code, "SIGPOLICY: not-even-tried" in ran.err) == (137, True)
        assert desk.good("run", "--rm", "--shadow", "--", "cat", ".env").out == ""
    finally:
        desk.good("policy", "rollback")


def test_a_child_is_tried_with_its_parent_and_whoever_follows_hears_of_it(desk: Desk) -> None:
    ran = desk.good("run", "--rm", "--shadow", "--cap", "agent:*:spawn", "agent.py:boss")
    assert ran.out == "wrote\n"
    assert "would refuse  file:/work/out.txt:write  no-out" in ran.err


def test_what_it_changed_is_weighed_by_the_rules_as_they_are_before_it_is_committed(desk: Desk) -> None:
    script = "echo x >out.txt; echo y >free"
    ran = desk.good("run", "--commit", "--shadow", "--name", "commits", "--", "sh", "-c", script)
    assert (desk.project / "free").read_text() == "y\n"
    assert not (desk.project / "out.txt").exists()
    assert "no-out" in ran.err
    desk.good("work", "rollback", "commits", "--yes")


def test_it_lasts_over_the_kernels_death_and_everybody_sees_it_as_long_as_it_does(desk: Desk) -> None:
    before = desk.good("status", "-o", "json").json["policy"]
    assert (before["mode"], before["shadow"]) == ("strict", [])
    desk.good("run", "--detach", "--name", "lasting", "--shadow", "agent.py:sleeper")
    until(lambda: "SYS_SLEEP" in desk.ask("events", "--agent", "lasting").out)
    for _ in range(2):
        now = desk.good("status", "-o", "json").json["policy"]
        assert (now["mode"], now["shadow"]) == ("shadow", ["lasting"])
        assert "shadow for what the projects of lasting say" in desk.good("status").out
        desk.kill_kernel()
        desk.up()
        until(lambda: "lasting" in desk.ask("ps", "-o", "name").out)
    desk.good("kill", "lasting")
    assert desk.good("status", "-o", "json").json["policy"]["shadow"] == []


def test_no_manifest_can(desk: Desk) -> None:
    (desk.project / "x.agent.toml").write_text('name = "x"\n')
    assert "--shadow has no place beside it" in desk.ask("run", "--shadow", "x.agent.toml").err
    (desk.project / "y.agent.toml").write_text('name = "y"\nshadow = true\n[program]\ncommand = ["true"]\n')
    assert desk.ask("apply", "-f", "y.agent.toml").code == 2


def test_a_run_that_no_rule_concerns_says_so(desk: Desk) -> None:
    (desk.project / ".env").rename(desk.project / "env")
    try:
        ran = desk.good("run", "--rm", "--shadow", "--", "true")
    finally:
        (desk.project / "env").rename(desk.project / ".env")
    assert "no rule of its project would have refused anything" in ran.err
