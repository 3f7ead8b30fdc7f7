"""What the flags of the verb table do, seen from what they leave behind."""

import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.desk import Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]
NO_WRITE = """version = 1
default = "capability"
[[rule]]
id = "no-write"
effect = "forbid"
what = ["file:/work/**:write"]
"""
NO_READ = NO_WRITE.replace("no-write", "no-read").replace("/work/**:write", "/work/**/.env:read")


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"))
    (desk.project / "no-write.toml").write_text(NO_WRITE)
    (desk.project / "no-read.toml").write_text(NO_READ)
    (desk.project / "broken.toml").write_text(f"{NO_WRITE}colour = 'red'\n")
    desk.good("up", "-d", "--no-ui")
    desk.start("worker")
    yield desk
    desk.down()


def test_policy_diff_against_decides_the_calls_on_record_since_then_again(desk: Desk) -> None:
    found = desk.good("policy", "diff", "no-write.toml", "--against", "1d", "-o", "json").json
    assert found["calls"] >= 3
    assert {(one["agent"], one["call"]) for one in found["changes"]} == {("worker", "file:/work/out.txt:write")}
    shown = desk.good("policy", "diff", "no-write.toml", "--against", "1d")
    assert "no-write" in shown.out
    assert "calls decided again, 1 otherwise" in shown.err
    later = desk.good("policy", "diff", "no-write.toml", "--against", "2999-01-01", "-o", "json").json
    assert (later["calls"], later["changes"]) == (0, [])
    assert desk.good("policy", "diff", "no-read.toml", "--against", "1d", "-o", "json").json["changes"] == []
    assert desk.ask("policy", "diff", "no-write.toml", "--against", "yesterday").code == 2
    assert desk.ask("policy", "diff", "no-write.toml").code == 2


def test_a_dry_run_of_apply_and_rollback_says_what_would_be_and_changes_nothing(desk: Desk) -> None:
    file = desk.home / "policy.toml"
    before = desk.good("policy", "show", "-o", "json").json["digest"]
    tried = desk.good("policy", "apply", "no-read.toml", "--dry-run", "-o", "json").json
    assert (tried["dry_run"], tried["digest"] == before) == (True, False)
    assert "would be in force" in desk.good("policy", "apply", "no-read.toml", "--dry-run").out
    assert desk.ask("policy", "apply", "broken.toml", "--dry-run").code == 2
    assert desk.ask("policy", "apply", "--dry-run").code == 2
    assert desk.good("policy", "show", "-o", "json").json["digest"] == before
    assert not file.exists()
    applied = desk.good("policy", "apply", "no-read.toml", "-o", "json").json
    assert (applied["dry_run"], applied["digest"]) == (False, tried["digest"])  # it would have been exactly that
    back = desk.good("policy", "rollback", "--dry-run", "-o", "json").json
    assert (back["dry_run"], back["digest"]) == (True, before)
    assert desk.good("policy", "show", "-o", "json").json["digest"] == tried["digest"]
    assert file.read_text() == NO_READ
    assert desk.good("policy", "rollback", "-o", "json").json["digest"] == before


def test_cap_grant_actions_gives_these_and_no_other(desk: Desk) -> None:
    assert desk.ask("can", "worker", "http:api.example.com:get").code != 0
    given = desk.good("cap", "grant", "worker", "http:api.example.com", "--actions", "get,head", "-o", "json").json
    try:
        assert desk.good("can", "worker", "http:api.example.com:get").code == 0
        assert desk.good("can", "worker", "http:api.example.com:head").code == 0
        assert desk.ask("can", "worker", "http:api.example.com:post").code != 0
    finally:
        desk.good("cap", "revoke", given["handle"])
    assert desk.ask("cap", "grant", "worker", "http:api.example.com", "--actions", "wave").code == 2


def test_run_rm_leaves_no_changes_and_a_run_without_it_does(desk: Desk) -> None:
    desk.good("run", "--name", "kept", "--", "sh", "-c", "echo x >made")
    assert [one["path"] for one in desk.good("work", "diff", "kept", "-o", "json").json["changes"]] == ["made"]
    ran = desk.good("run", "--rm", "--name", "gone", "--", "sh", "-c", "echo x >made; cat made")
    assert ran.out == "x\n"
    assert desk.ask("work", "diff", "gone").code == 3
    assert not (desk.project / "made").exists()
    desk.good("work", "rollback", "kept", "--yes")


def test_logs_since_shows_what_was_written_since_then(desk: Desk) -> None:
    desk.good("run", "--rm", "--name", "talks", "--", "echo", "hello")
    whole = desk.good("logs", "talks").out
    assert whole == "hello\n"
    assert desk.good("logs", "talks", "--since", "1h").out == whole
    assert desk.good("logs", "talks", "--since", "2999-01-01").out == ""
    assert desk.ask("logs", "talks", "--since", "lately").code == 2


def test_up_makes_its_home_where_it_is_told_and_starts_nothing_below_its_minimum(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    other = tmp_path / "other"
    said = desk.good("up", "-d", "--no-ui", "--home", other, "--min-isolation", "s4")
    try:
        assert f"  {other}/run/kernel.sock" in said.out
        assert not desk.home.exists()
        assert stat.S_IMODE(other.stat().st_mode) == 0o700
        assert desk.ask("status").code == 8  # in the home of the environment there is none
        desk.env["AGENT_OS_HOME"] = str(other)
        facts = desk.good("status", "-o", "json").json
        assert facts["home"] == str(other)
        assert facts["isolation"]["minimum"] == "S4"
        below = desk.ask("run", "--", "true")
        assert (below.code, "S4" in below.err) == (125, True)  # could not start it
        assert desk.good("run", "--min-isolation", "S2", "--", "echo", "a person's flag counts more").code == 0
        assert desk.ask("up", "-d", "--min-isolation", "S9").code == 2
    finally:
        desk.env["AGENT_OS_HOME"] = str(other)
        desk.down()
