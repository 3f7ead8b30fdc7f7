"""What a violation costs an agent, and how an operator ends it: SIGPOLICY, quarantine, `agentctl release`."""

from pathlib import Path

import pytest

from cli.desk import Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]

RULES = """
version = 1
default = "capability"

[[rule]]
id = "no-env"
effect = "forbid"
what = ["file:/work/**/.env:read"]
reason = "Secrets live in the secret store."
"""
AGENT = """
from agent_os import agent

@agent
async def thief(ctx):
    try:
        await ctx.read("/work/.env")
    finally:
        await ctx.sleep(60)  # it would stay, were it not killed
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_a_violation_kills_and_quarantines_until_an_operator_releases(desk: Desk) -> None:
    (desk.project / ".agents").mkdir()
    (desk.project / ".agents" / "policy.toml").write_text(RULES)
    (desk.project / ".env").write_text("TOKEN=1")
    (desk.project / "thief.py").write_text(AGENT)
    killed = desk.ask("run", "--name", "thief", "thief.py:thief")
    assert killed.code == 137
    assert "killed by SIGPOLICY" in killed.err
    assert "no-env: Secrets live in the secret store." in killed.err

    again = desk.ask("run", "--name", "thief", "--", "true")
    assert again.code == 125
    assert "quarantined" in again.err
    assert "agentctl release thief" in again.err
    assert "thief" in desk.ask("release", "theif").err
    desk.up()
    assert "in quarantine: thief   agentctl release NAME" in desk.good("ps").err
    assert "quarantine  thief" in desk.good("status").out
    desk.down()

    assert desk.ask("release", "thief", "--reason", "looked into").code == 0
    assert desk.ask("run", "--name", "thief", "--", "true").code == 0


def test_whoever_is_not_in_quarantine_cannot_be_released(desk: Desk) -> None:
    said = desk.ask("release", "nobody")
    assert said.code == 3
    assert "not in quarantine" in said.err
