"""cli/work: what a person and a program see of diff, commit and discard, and the exit codes."""

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_os.cli import main as cli
from agent_os.cli.changes import human_size
from agent_os.kernel.workspace import Workspace, Workspaces

AGENTCTL = [sys.executable, "-m", "agent_os.cli.main"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    top = tmp_path / "project"
    top.mkdir()
    (top / "main.py").write_text("old\n")
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(top)
    return top


@pytest.fixture
def workspace(project: Path, tmp_path: Path) -> Workspace:
    """A layer as an agent leaves it, without the mount that made it."""
    made = Workspaces(tmp_path / "state").create(project, name="fix-1", mode="overlay", agent_uid=None)
    (made.upper / "main.py").write_text("new\n")
    (made.upper / "new").write_bytes(b"x" * 1234)
    return made


@pytest.mark.integration
def test_diff_shows_each_change_and_what_to_do_next(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["diff"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["M  main.py  4 B", "A  new      1.2 kB"]
    assert "2 changes: 1 added, 1 modified" in err
    assert "agentctl commit fix-1" in err


@pytest.mark.integration
def test_diff_as_json_is_one_object_with_the_hashes(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    with open(os.fsencode(workspace.upper) + b"/\xff", "w") as file:
        file.write("raw")
    assert cli.main(["diff", "fix-1", "-o", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["api"] == "v1"
    assert value["workspace"] == "fix-1"
    assert not value["running"]
    change = value["changes"][0]
    assert (change["path"], change["kind"], change["size"]) == ("main.py", "modify", 4)
    assert len(change["sha256_old"]) == len(change["sha256_new"]) == 64
    assert os.fsencode(value["changes"][2]["path"]) == b"\xff"


@pytest.mark.integration
def test_a_patch_is_text_and_steers_no_terminal(workspace: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    (workspace.upper / "main.py").write_text("\x1b[2Jnew\n")
    (workspace.upper / "two\nlines\x1b[1m").write_text("x\n")
    assert cli.main(["diff", "--patch"]) == 0
    out, err = capsys.readouterr()
    assert "-old" in out
    assert r"+\x1b[2Jnew" in out
    assert "\x1b" not in out + err
    assert sum(line.startswith("A ") for line in out.splitlines()) == 2


@pytest.mark.integration
def test_commit_writes_removes_the_empty_workspace_and_says_so(
    workspace: Workspace, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["commit", "--dry-run"]) == 0
    assert (project / "main.py").read_text() == "old\n"
    assert "would commit 2 changes" in capsys.readouterr().err
    assert cli.main(["commit"]) == 0
    assert (project / "main.py").read_text() == "new\n"
    assert "removed" in capsys.readouterr().err
    assert not workspace.path.exists()


@pytest.mark.integration
def test_commit_without_a_person_withholds_protected_files_and_names_the_flag(
    workspace: Workspace, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workspace.upper / "Makefile").write_text("all:\n")
    assert cli.main(["commit"]) == 0
    err = capsys.readouterr().err
    assert "withheld  Makefile" in err
    assert "agentctl commit fix-1 --allow-protected" in err
    assert not (project / "Makefile").exists()
    assert (project / "main.py").read_text() == "new\n"
    assert cli.main(["commit", "--allow-protected", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["complete"]
    assert [change["path"] for change in value["committed"]] == ["Makefile"]
    assert (project / "Makefile").exists()


@pytest.mark.integration
def test_a_conflict_ends_with_nine_and_names_the_file(
    workspace: Workspace, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "main.py").write_text("edited by the host\n")
    assert cli.main(["commit"]) == 9
    assert "conflict  main.py" in capsys.readouterr().err
    assert (project / "main.py").read_text() == "edited by the host\n"
    assert (project / "new").exists()
    assert workspace.path.exists()


@pytest.mark.integration
def test_only_the_named_path_is_committed(workspace: Workspace, project: Path) -> None:
    assert cli.main(["commit", "--only", "new"]) == 0
    assert (project / "new").exists()
    assert (project / "main.py").read_text() == "old\n"
    assert workspace.path.exists()
    assert cli.main(["commit", "--only", "../x"]) == 2


@pytest.mark.integration
def test_discard_needs_a_yes_when_nobody_can_be_asked(
    workspace: Workspace, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["discard"]) == 2
    assert "agentctl discard fix-1 --yes" in capsys.readouterr().err
    assert workspace.path.exists()
    assert cli.main(["discard", "--yes"]) == 0
    assert not workspace.path.exists()
    assert (project / "main.py").read_text() == "old\n"


@pytest.mark.integration
def test_a_running_agent_keeps_its_workspace(workspace: Workspace) -> None:
    with workspace.hold():
        assert cli.main(["diff"]) == 0
        assert cli.main(["commit"]) == 9
        assert cli.main(["discard", "--yes"]) == 9


@pytest.mark.integration
def test_unknown_and_missing_workspaces_end_with_three(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["diff", "fix-2"]) == 3
    assert "did you mean fix-1" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert cli.main(["diff"]) == 3
    assert "agentctl run" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize(("answer", "arrives"), [("y", True), ("n", False), ("", False)])
def test_a_person_is_shown_the_protected_change_and_asked_once(
    workspace: Workspace, project: Path, answer: str, arrives: bool
) -> None:
    (workspace.upper / "Makefile").write_text("all:\n\techo shown\n")
    output, code = on_a_terminal(["commit"], "too?", answer)
    assert code == 0
    assert "echo shown" in output
    assert output.count("Commit them too?") == 1
    assert (project / "main.py").read_text() == "new\n"
    assert (project / "Makefile").exists() is arrives


@pytest.mark.integration
def test_a_person_can_keep_what_discard_would_throw_away(workspace: Workspace) -> None:
    output, code = on_a_terminal(["discard"], "?", "n")
    assert code == 130
    assert "Throw away 2 changes" in output
    assert workspace.path.exists()
    assert on_a_terminal(["discard"], "?", "y")[1] == 0
    assert not workspace.path.exists()


def on_a_terminal(words: list[str], question: str, answer: str) -> tuple[str, int]:
    """Run agentctl on a pseudo-terminal and answer when it asks."""
    master, slave = pty.openpty()
    env = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([*AGENTCTL, *words], stdin=slave, stdout=slave, stderr=slave, env=env) as running:
        os.close(slave)
        output, asked, deadline = "", False, time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                ready, _, _ = select.select([master], [], [], 0.2)
                output += os.read(master, 4096).decode(errors="replace") if ready else ""
            except OSError:  # the terminal closes with its last user
                break
            if question in output and not asked:
                os.write(master, f"{answer}\n".encode())
                asked = True
        os.close(master)
        return output, running.wait(timeout=60)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_999, "1.0 MB"),
        (4_200_000, "4.2 MB"),
        (8 << 40, "8.8 TB"),
        (10**18, "1000.0 PB"),
    ],
)
def test_sizes_are_short(size: int, shown: str) -> None:
    assert human_size(size) == shown
