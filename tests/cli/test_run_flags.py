"""The flags of `agentctl run`: environment, mounts, workspaces, and what becomes of the changes."""

import os
import subprocess
from pathlib import Path

import pytest

from cli.reading import lines_of
from guests.agentctl import AGENTCTL, SECONDS, Machine
from overlay import tree

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_env_sets_passes_on_and_shows_nothing_else_of_ours(machine: Machine) -> None:
    ran = machine.run(
        "env",
        flags=["--env", "SET=a b=c", "--env", "PASSED", "--env", "PATH=/usr/bin:/bin"],
        PASSED="on",
        API_KEY="secret",
    )
    inside = dict(line.split("=", 1) for line in ran.lines)
    assert (inside["SET"], inside["PASSED"], inside["PATH"]) == ("a b=c", "on", "/usr/bin:/bin")
    assert (inside["HOME"], inside["USER"], inside["PWD"]) == ("/home/agent", "agent", str(machine.project))
    assert "API_KEY" not in inside
    assert not [name for name in inside if name.startswith(("AGENT_OS_", "PYTHON"))]


def test_a_mount_is_read_only_unless_it_says_otherwise(machine: Machine) -> None:
    for name in ("shown", "given"):
        (machine.home / name).mkdir()
        (machine.home / name / "file").write_text(name)
    shown, given = machine.home / "shown", machine.home / "given"
    script = f"cat {shown}/file /given/file; echo x >{shown}/new || echo refused; echo x >/given/new; rm /given/file"
    flags = ["--mount", shown, "--mount", f"rw:{given}:/given"]
    ran = machine.run("sh", "-c", f"{{ {script}; }} 2>/dev/null", flags=flags)
    assert (ran.code, ran.lines) == (0, ["showngivenrefused"]), ran.err
    assert (tree(shown), tree(given)) == ({"file": "shown"}, {"new": "x\n"})
    assert (given / "new").stat().st_uid == os.geteuid()
    assert ran.changes == {}


def test_a_single_file_can_be_mounted(machine: Machine) -> None:
    (machine.home / "settings").write_text("on")
    (machine.home / "settings.secret").write_text(machine.canary)
    script = f"cat {machine.home}/settings; cat {machine.home}/settings.secret; true"
    ran = machine.run("sh", "-c", script, flags=["--mount", machine.home / "settings"])
    assert ran.out == b"on"


def test_the_workspace_is_the_current_directory_or_the_one_named(machine: Machine) -> None:
    other = machine.home / "other"
    (other / "below").mkdir(parents=True)
    ran = machine.run("sh", "-c", "pwd; echo x >new; ls /work", flags=["--workspace", other])
    assert (ran.lines, ran.changes) == ([str(other), "below", "new"], {"new": "add"})
    inside = machine.run("sh", "-c", "pwd; echo x >new", cwd=other / "below", flags=["--workspace", ".."])
    assert (inside.lines, inside.changes) == ([str(other / "below")], {"below/new": "add"})
    assert tree(other) == {"below": "directory"}
    assert tree(machine.project) == {}


def test_a_bound_workspace_writes_through_at_once(machine: Machine) -> None:
    (machine.project / "old").write_text("old")
    ran = machine.run("sh", "-c", "rm old; echo new >new", flags=["--workspace", f"bind:{machine.project}"])
    assert (ran.code, ran.name) == (0, None), ran.err
    assert tree(machine.project) == {"new": "new\n"}
    assert (machine.project / "new").stat().st_uid == os.geteuid()
    assert machine.workspaces() == []


def test_a_tmpfs_workspace_is_empty_and_gone_at_the_end(machine: Machine) -> None:
    (machine.project / "old").write_text("old")
    ran = machine.run("sh", "-c", "pwd; ls; echo new >new; cat new", flags=["--workspace", "tmpfs"])
    assert (ran.code, ran.lines, ran.name) == (0, ["/work", "new"], None), ran.err
    assert tree(machine.project) == {"old": "old"}


def test_changes_are_kept_and_told_with_what_to_do_about_them(machine: Machine) -> None:
    (machine.project / "old").write_text("old")
    ran = machine.run("sh", "-c", "rm old; echo new >new; mkdir d; ln -s new link")
    assert ran.changes.keys() == {"old", "new", "d", "link"}
    assert tree(machine.project) == {"old": "old"}
    for told in ("D  old", "A  new", f"agentctl commit {ran.name}", f"agentctl discard {ran.name}"):
        assert told in ran.err
    assert machine.agentctl("commit", str(ran.name), "--yes").code == 0
    assert tree(machine.project) == {"new": "new\n", "d": "directory", "link": "-> new"}
    assert machine.workspaces() == []


@pytest.mark.parametrize("flags", [[], ["--keep"], ["--commit"]], ids=["default", "keep", "commit"])
def test_without_changes_no_workspace_is_left(machine: Machine, flags: list[str]) -> None:
    (machine.project / "old").write_text("old")
    ran = machine.run("sh", "-c", "cat old; echo x >/tmp/x; echo x >$HOME/x", flags=flags)
    assert (ran.code, ran.name, machine.workspaces()) == (0, None, [])
    assert "agentctl commit" not in ran.err


def test_commit_writes_ordinary_changes_and_withholds_what_tools_obey(machine: Machine) -> None:
    files = "code.py .github/workflows/ci.yml Makefile .envrc"
    script = f"mkdir -p .github/workflows; for name in {files}; do echo code >$name; done"
    ran = machine.run("sh", "-c", script, flags=["--commit"])
    assert ran.code == 0
    assert (machine.project / "code.py").read_text() == "code\n"
    assert not any((machine.project / name).exists() for name in ("Makefile", ".envrc", ".github/workflows/ci.yml"))
    assert {path for path in ran.changes if not path.startswith(".github")} == {"Makefile", ".envrc"}
    assert ".github/workflows/ci.yml" in ran.changes
    assert "committed " in ran.err
    assert f"agentctl commit {ran.name}" in ran.err
    assert (machine.project / "code.py").stat().st_uid == os.geteuid()


def test_commit_with_allow_protected_writes_all_and_leaves_no_workspace(machine: Machine) -> None:
    ran = machine.run("sh", "-c", "echo x >Makefile; echo y >code", flags=["--commit", "--allow-protected"])
    assert (ran.code, ran.name) == (0, None)
    assert tree(machine.project) == {"Makefile": "x\n", "code": "y\n"}


def test_a_guest_that_failed_is_not_committed(machine: Machine) -> None:
    ran = machine.run("sh", "-c", "echo half >code; exit 3", flags=["--commit"])
    assert (ran.code, ran.changes) == (3, {"code": "add"})
    assert tree(machine.project) == {}


def test_discard_throws_the_changes_away(machine: Machine) -> None:
    ran = machine.run("sh", "-c", "echo x >code", flags=["--discard"])
    assert (ran.code, ran.name, tree(machine.project), machine.workspaces()) == (0, None, {}, [])


def test_two_runs_at_once_do_not_see_each_other(machine: Machine) -> None:
    wait = "echo $0 >$0; echo ready; read line; ls; set -- /proc/[0-9]*; echo $#"
    pipe = subprocess.PIPE
    with (
        machine.start("sh", "-c", wait, "one", stdin=pipe) as one,
        machine.start("sh", "-c", wait, "two", stdin=pipe) as two,
    ):
        for process in (one, two):
            assert lines_of(process.stdout).readline() == b"ready\n"
        first, second = (process.communicate(b"\n", timeout=SECONDS)[0].split() for process in (one, two))
    assert (first[0], second[0]) == (b"one", b"two")
    assert first[1:] == second[1:]
    assert len(machine.workspaces()) == 2


def test_help_tells_every_flag(machine: Machine) -> None:
    done = subprocess.run(
        [*AGENTCTL, "run", "--help"], capture_output=True, text=True, env=machine.environment(), check=True
    )
    flags = (
        "--workspace --mount --net --env --timeout --min-isolation --commit --discard --keep --allow-protected --quiet"
    )
    assert [flag for flag in flags.split() if flag not in done.stdout] == []
