"""`agentctl manifest` reads manifests without a daemon and tells all that is wrong with them."""

import json
from pathlib import Path

import pytest

from agent_os import AgentManifest
from agent_os.cli.main import main

GOOD = 'name = "a"\nrole = "worker"\ntools = ["x"]\n[program]\nargv = ["true"]\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.agent.toml").write_text(GOOD)
    return tmp_path


def test_lint_of_a_good_manifest_is_silent_on_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "lint", "a.agent.toml"]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "1 manifest read, 0 problems, 0 odd\n"
    assert main(["manifest", "lint"]) == 0
    assert not (folder / "home").exists()  # nothing was started


def test_lint_tells_every_problem_with_file_line_key_and_hint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "b.agent.toml").write_text('name = "b"\nrole = "worker"\n[health]\nmax_restart = 5\ntimeout = -1\n')
    (folder / "c.agent.toml").write_text('name = "c"\nrole = "worker"\n[dependencies]\nrequires = ["b2"]\n')
    assert main(["manifest", "lint", "."]) == 2
    said = capsys.readouterr()
    assert said.out.splitlines()[:3] == [
        "error  b.agent.toml:4: health.max_restart: `max_restart` unknown, did you mean `max_restarts`?",
        "error  b.agent.toml:5: health.timeout: is at least 0, not -1",
        "error  c.agent.toml:4: dependencies.requires.0: there is no agent b2",
    ]
    assert main(["manifest", "lint", ".", "-o", "json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert (answer["ok"], len(answer["problems"])) == (False, 3)
    assert set(answer["problems"][0]) == {"file", "line", "key", "message", "hint"}


def test_lint_can_be_strict_about_what_is_odd(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.agent.toml").write_text(GOOD + "[capabilities]\ncan_network = true\n")
    assert main(["manifest", "lint", "a.agent.toml"]) == 0
    assert "odd  a.agent.toml:7: capabilities.can_network: is true and grants nothing" in capsys.readouterr().out
    assert main(["manifest", "lint", "a.agent.toml", "--strict"]) == 1


def test_show_writes_a_complete_manifest(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "show", "a.agent.toml"]) == 0
    shown = capsys.readouterr().out
    assert "max_restarts = 5" in shown
    assert AgentManifest.from_toml(shown) == AgentManifest.load(folder / "a.agent.toml")
    assert main(["manifest", "show", "a.agent.toml", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["manifest"]["role"] == "Worker"


def test_explain_says_what_a_file_asks_for(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "explain", "a.agent.toml"]) == 0
    shown = capsys.readouterr().out
    assert "capability://tool/x?action=call" in shown
    assert "capabilities.can_exec_tools" in shown
    assert main(["manifest", "explain", "a.agent.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["grants"][0]["key"] == "tools"


def test_explain_says_what_a_key_means(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifest", "explain", "health.max_restarts"]) == 0
    assert "restarts without becoming stable" in capsys.readouterr().out
    assert main(["manifest", "explain", "helth"]) == 2
    assert "did you mean `health`?" in capsys.readouterr().err
    assert main(["manifest", "explain"]) == 0
    assert "lifecycle.grace_secs" in capsys.readouterr().out


def test_a_broken_file_is_told_whole_by_every_verb(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.agent.toml").write_text('name = "\\u001b[2J"\nrole = "boss"\n')
    for verb in ("show", "explain"):
        assert main(["manifest", verb, "a.agent.toml"]) == 2
        said = capsys.readouterr().err
        assert "a.agent.toml:1: name" in said
        assert "a.agent.toml:2: role" in said
        assert "\x1b" not in said
    assert main(["manifest", "show", "none.agent.toml"]) == 2
    assert main(["manifest", "explain", "none.agent.toml"]) == 3
