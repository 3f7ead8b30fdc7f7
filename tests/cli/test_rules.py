"""`agentctl policy show`, `apply`, `rollback`, and what a broken policy looks like to whoever starts something."""

from pathlib import Path

import pytest

from cli.desk import Desk, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
GOOD = """version = 1
default = "capability"
[[rule]]
id = "no-env"
effect = "forbid"
what = ["file:/work/**/.env:read"]
"""
BROKEN = GOOD + 'colour = "red"\n'
TWO = """version = 1
default = "deny"
[[rule]]
id = "all-three"
effect = "allow"
what = ["file:/work/**:read", "http:api.example.com:post"]
agents = ["mailer"]
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    desk = Desk(tmp_path)
    desk.home.mkdir(mode=0o700)
    (desk.project / "good.toml").write_text(GOOD)
    (desk.project / "broken.toml").write_text(BROKEN)
    return desk


def test_without_a_kernel_rules_are_checked_and_lie_ready_for_the_next(desk: Desk) -> None:
    assert desk.ask("policy", "apply").code == 8  # nobody there to read anything again
    assert "lies ready" in desk.good("policy", "apply", "good.toml").out
    refused = desk.ask("policy", "apply", "broken.toml")
    assert refused.code == 2
    assert refused.out.startswith("broken.toml:7: ")  # the file that was given
    assert refused.err == "agentctl: 1 problem: nothing has changed\n"
    assert (desk.home / "policy.toml").read_text() == GOOD
    assert "no-env" in desk.good("policy", "show").out
    desk.good("policy", "apply", "-o", "json", desk.project / "good.toml")
    assert "no policy file" in desk.good("policy", "rollback").out  # as before the first; the second changed nothing
    assert not (desk.home / "policy.toml").exists()
    assert "no-env" in desk.good("policy", "rollback").out + desk.good("policy", "show").out


def test_an_agent_keeps_its_projects_rules_so_a_change_is_for_its_next_start(desk: Desk) -> None:
    (desk.project / ".agents").mkdir()
    (desk.project / ".agents" / "policy.toml").write_text(GOOD)
    desk.up()
    try:
        desk.start("w")
        assert ".agents/policy.toml:3, then: start w again" in desk.good("explain", "w", "file:/work/.env:read").out
        assert desk.good("ps").out.splitlines()[1].endswith("  worker.py:worker")
    finally:
        desk.down()


def test_without_an_apply_there_is_nothing_to_go_back_to(desk: Desk) -> None:
    assert desk.ask("policy", "rollback").code == 3


@pytest.mark.parametrize("verb", [("up", "--detach"), ("run", "--", "true")])
def test_on_a_broken_policy_nothing_starts_and_the_reason_has_file_and_line(desk: Desk, verb: tuple[str, ...]) -> None:
    (desk.home / "policy.toml").write_text(BROKEN)
    said = desk.ask(*verb)
    assert said.code == {"up": 2, "run": 125}[verb[0]]
    assert f"agentctl: {desk.home}/policy.toml:7: " in said.err
    assert "agentctl policy check" in said.err
    assert desk.ask("policy", "check").code == 2
    assert desk.ask("status").code == 8


def test_a_running_kernel_takes_new_rules_at_once_and_raises_an_alarm_over_broken_ones(desk: Desk) -> None:
    desk.up()
    try:
        assert "no rules" in desk.good("status").out
        assert "in force, version 2" in desk.good("policy", "apply", "good.toml").out
        assert "1 rule in 1 file" in desk.good("status").out
        assert desk.ask("policy", "apply", "broken.toml").code == 2
        assert "ALARM" not in desk.good("status").out  # what was refused was not put in place
        (desk.home / "policy.toml").write_text(BROKEN)
        until(lambda: "ALARM" in desk.ask("status").out)
        assert f"{desk.home}/policy.toml:7: " in desk.good("status").out
        shown = desk.ask("policy", "show", "-o", "json")
        assert (shown.code, shown.json["version"], [one["rule"] for one in shown.json["rules"]]) == (1, 2, ["no-env"])
        desk.good("policy", "rollback")
        assert "ALARM" not in desk.good("status").out
        assert (desk.home / "policy.toml").read_text() == GOOD
        assert "no policy file" in desk.good("policy", "rollback").out
        assert "no rules" in desk.good("status").out
    finally:
        desk.down()


def test_a_call_is_explained_by_the_rules_in_force(desk: Desk) -> None:
    desk.up()
    try:
        desk.good("policy", "apply", "good.toml")
        desk.start("worker")
        said = desk.good("policy", "explain", "worker", "file:/work/sub/.env:read").out
        assert "REFUSED" in said
        assert f"{desk.home}/policy.toml:3" in said
        assert "no-env" in desk.good("policy", "show", "worker").out
    finally:
        desk.down()


def test_check_finds_who_can_hold_all_three_of_the_rule_of_two(desk: Desk) -> None:
    (desk.project / "two.toml").write_text(TWO)
    found = desk.good("policy", "check", "two.toml", "-o", "json").json["findings"]
    assert [(one["kind"], one["rule"], one["line"]) for one in found] == [("rule-of-two", "all-three", 3)]
    (desk.project / "two.toml").write_text(TWO.replace(":post", ":get"))
    assert desk.good("policy", "check", "two.toml", "-o", "json").json["findings"] == []
    desk.up()
    try:
        desk.start("worker")
        assert desk.good("policy", "check", "good.toml", "-o", "json").json["findings"] == []
        desk.good("cap", "grant", "worker", "http:api.example.com:post")
        [odd] = desk.good("policy", "check", "good.toml", "-o", "json").json["findings"]
        assert (odd["kind"], odd["rule"]) == ("rule-of-two", "worker")
    finally:
        desk.down()
