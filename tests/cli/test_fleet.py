"""Declared agents from an operator's desk: apply, diff, tree, start, stop, restart, history, wait, delete, run."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.cli.main import main
from cli.desk import AGENTCTL, SECONDS, Desk, ended, until

pytestmark = pytest.mark.uid_free("a terminal shows the same to every user")

CLOCK = 'name = "clock"\nrole = "service"\n[program]\nargv = ["sh", "-c", "echo tick; sleep 1000"]\n'
READER = 'name = "reader"\nrole = "worker"\n[program]\nargv = ["sleep", "1000"]\n[dependencies]\nrequires = ["clock"]\n'
TEAM = 'name = "team"\nrole = "supervisor"\nagency = "role"\n[supervision]\nchildren = ["clock", "reader"]\n'
FLAKY = (
    'name = "flaky"\nrole = "worker"\n[program]\nargv = ["sh", "-c", "echo oh; exit 3"]\n[health]\nmax_restarts = 1\n'
)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    desk = Desk(tmp_path)
    desk.env["AGENT_OS_IDLE_EXIT"] = "10m"  # a fleet that is stopped is looked at
    yield desk
    desk.ask("down")


def write(desk: Desk, **manifests: str) -> None:
    for name, text in manifests.items():
        (desk.project / f"{name}.agent.toml").write_text(text)


def rows(desk: Desk) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in desk.good("ps", "--all", "--json").json["agents"] if row["declared"]}


def test_every_problem_of_every_file_is_told_and_no_kernel_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.agent.toml").write_text(CLOCK.replace("clock", "a") + "[health]\nmax_restart = 5\n")
    (tmp_path / "b.agent.toml").write_text(READER.replace("reader", "b"))
    assert main(["apply", "-f", "."]) == 2
    told = capsys.readouterr().err
    assert "a.agent.toml:6: health.max_restart: `max_restart` unknown, did you mean `max_restarts`?" in told
    assert "b.agent.toml:6: dependencies.requires.0: there is no agent clock" in told
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("words", [["apply"], ["delete"], ["start"], ["stop"], ["delete", "a", "-f", "b"]])
def test_a_verb_without_its_object_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "try: agentctl" in capsys.readouterr().err


def test_flags_beside_a_manifest_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clock.agent.toml").write_text(CLOCK)
    assert main(["run", "--net", "example.org", str(tmp_path / "clock.agent.toml")]) == 125
    assert "--net has no place beside it" in capsys.readouterr().err


def test_a_goal_without_quotes_is_shown_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clock.agent.toml").write_text(CLOCK)
    assert main(["run", str(tmp_path / "clock.agent.toml"), "What", "is", "it?"]) == 125
    assert 'clock.agent.toml "What is it?"' in capsys.readouterr().err


def test_a_manifest_that_is_not_there_is_no_program_to_look_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "clok.agent.toml"]) == 125
    assert "there is no file clok.agent.toml" in capsys.readouterr().err


@pytest.mark.integration
def test_a_fleet_is_applied_compared_changed_and_deleted(desk: Desk) -> None:
    write(desk, clock=CLOCK, reader=READER, team=TEAM)
    assert "new" in desk.good("apply", "-f", ".", "--dry-run").out
    assert desk.good("apply", "-f", ".", "--wait", "--json").json["applied"] is True
    assert desk.good("tree", "-o", "name").out.split() == ["root", "team", "clock", "reader"]
    found = rows(desk)
    assert {name: (row["role"], row["parent"]) for name, row in found.items()} == {
        "team": ("supervisor", "system/root"),
        "clock": ("service", "default/team"),
        "reader": ("worker", "default/team"),
    }
    assert all(row["state"] == "running" for row in found.values())
    assert "3 unchanged" in desk.good("diff", "-f", ".").err

    write(desk, clock=CLOCK + "[health]\nmax_restarts = 3\n")
    assert "health.max_restarts  5  →  3" in " ".join(desk.good("diff", "-f", "clock.agent.toml").out.split("\n"))
    before = found["clock"]["incarnation"]
    desk.good("apply", "-f", ".")
    until(lambda: rows(desk)["clock"]["incarnation"] == before + 1 and rows(desk)["clock"]["state"] == "running")  # type: ignore[operator]

    (desk.project / "reader.agent.toml").unlink()
    write(desk, team=TEAM.replace(', "reader"', ""))
    refused = desk.ask("apply", "-f", ".", "--prune")
    assert (refused.code, "stops and forgets reader" in refused.err) == (2, True)
    desk.good("apply", "-f", ".", "--prune", "--yes")
    assert "reader" not in rows(desk)

    pid = rows(desk)["clock"]["pid"]
    assert isinstance(pid, int)
    assert desk.ask("delete", "-f", ".").code == 2  # nobody is there to be asked
    desk.good("delete", "-f", ".", "--yes")
    assert rows(desk) == {}
    assert ended(pid)


@pytest.mark.integration
def test_what_the_kernel_refuses_leaves_no_kernel_behind(desk: Desk) -> None:
    desk.env["AGENT_OS_IDLE_EXIT"] = "0"
    write(desk, clock='name = "clock"\nrole = "worker"\n')  # a manifest may be without a program; nothing can run it
    refused = desk.ask("apply", "-f", ".")
    assert (refused.code, "clock.agent.toml:1: program: there is no program" in refused.err) == (2, True)
    assert desk.ask("status").code == 8


def test_a_path_that_is_no_text_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "home"))
    folder = tmp_path / os.fsdecode(b"bad\xff")
    folder.mkdir()
    (folder / "clock.agent.toml").write_text(CLOCK)
    assert main(["apply", "-f", str(folder)]) == 2
    assert "this path is no plain text" in capsys.readouterr().err


@pytest.mark.integration
def test_a_stopped_agent_stays_so_until_it_is_started(desk: Desk) -> None:
    write(desk, clock=CLOCK)
    desk.good("apply", "-f", ".", "--wait")
    pid = rows(desk)["clock"]["pid"]
    assert isinstance(pid, int)
    assert desk.good("stop", "clock").out.startswith("stopped  clock, ")
    assert ended(pid)  # when stop returns, nothing of it lives
    assert desk.good("stop", "clock").out == "stopped  clock (it was stopped)\n"
    assert rows(desk)["clock"]["state"] == "stopped"
    assert desk.good("start", "clock").out == "started  clock, life 2\n"
    assert desk.good("restart", "clock").out == "restarted  clock, life 3\n"
    lives = desk.good("history", "clock", "--json").json["lives"]
    assert [(one["incarnation"], one["class"]) for one in lives] == [(1, "requested"), (2, "requested"), (3, None)]
    assert desk.ask("stop", "nobody").code == 3
    assert desk.ask("restart", "nobody").code == 3


@pytest.mark.integration
def test_a_crash_loop_is_given_up_and_history_says_why(desk: Desk) -> None:
    write(desk, flaky=FLAKY)
    desk.good("apply", "-f", ".")
    waited = desk.ask("wait", "flaky", "--for", "over", "--timeout", str(SECONDS))
    assert (waited.code, waited.out.split()[0]) == (3, "flaky")
    lives = desk.good("history", "flaky", "--json").json["lives"]
    assert [(one["class"], one["code"], one["decision"]) for one in lives] == [
        ("error", 3, "restart"),
        ("error", 3, "fail"),
    ]
    told = desk.good("history", "flaky", "-n", "1").out
    assert "fail: max_restarts" in told
    assert len(told.splitlines()) == 2
    shown = desk.good("inspect", "flaky").out
    assert "failed" in shown
    assert "max_restarts = 1" in shown
    assert desk.ask("wait", "flaky", "--for", "ready").code == 9
    assert desk.ask("history", "nobody").code == 3


@pytest.mark.integration
def test_waiting_ends_with_its_time(desk: Desk) -> None:
    write(desk, clock=CLOCK)
    desk.good("apply", "-f", ".")
    assert desk.good("wait", "clock", "--for", "ready").out == "clock  ready\n"
    assert desk.ask("wait", "clock", "--for", "over", "--timeout", "0.2").code == 124


@pytest.mark.integration
def test_running_a_manifest_shows_all_lives_and_ends_with_the_code_of_the_last(desk: Desk) -> None:
    write(desk, flaky=FLAKY)
    ran = desk.ask("run", "flaky.agent.toml")
    assert (ran.code, ran.out) == (3, "oh\noh\n")
    assert "flaky  failed: max_restarts" in ran.err
    again = desk.ask("run", "-q", "flaky.agent.toml")  # counters are cleared, and old output is not shown
    assert (again.code, again.out, again.err) == (3, "oh\noh\n", "")


@pytest.mark.integration
def test_ctrl_c_stops_the_agent_of_a_run_manifest(desk: Desk) -> None:
    write(desk, clock=CLOCK)
    command = [*AGENTCTL, "run", "clock.agent.toml"]
    with subprocess.Popen(command, env=desk.env, cwd=desk.project, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout
        assert run.stdout.readline() == "tick\n"
        pid = rows(desk)["clock"]["pid"]
        run.send_signal(signal.SIGINT)
        run.wait(SECONDS)
    assert isinstance(pid, int)
    assert ended(pid)
    assert rows(desk)["clock"]["state"] == "stopped"


@pytest.mark.integration
def test_what_a_manifest_says_is_shown_harmless(desk: Desk) -> None:
    write(desk, clock=CLOCK.replace('"service"\n', '"service"\ndescription = "\\u001b[2J\\u202e"\n'))
    desk.good("apply", "-f", ".")
    for words in (("inspect", "clock"), ("tree",), ("ps",), ("top", "--once")):
        shown = desk.good(*words).out
        assert "\x1b" not in shown
        assert "\u202e" not in shown
