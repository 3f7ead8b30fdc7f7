"""Named states from outside: kept at the end of a run or in the middle, restored, looked at, committed, dropped."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from agent_os.kernel.workspace import Workspaces
from guests.agentctl import AGENTCTL, SECONDS, Machine

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    (made.project / "kept").write_text("kept\n")
    (made.project / "gone").write_text("gone\n")
    return made


def sh(machine: Machine, script: str, *flags: str, code: int = 0) -> list[str]:
    ran = machine.run("sh", "-c", script, flags=flags)
    assert ran.code == code, ran.err
    return ran.lines


def ctl(machine: Machine, *words: str, code: int = 0) -> tuple[str, str]:
    ran = machine.agentctl(*words)
    assert ran.code == code, ran.err
    return ran.out.decode(), ran.err


def test_a_state_is_named_restored_and_stays_as_it_was(machine: Machine) -> None:
    ran = machine.run("sh", "-c", "echo one > one; rm gone", flags=["--snapshot", "first"])
    assert ran.name == "first"
    assert "agentctl run --restore first" in ran.err
    assert sh(machine, "ls; echo two > two; rm one", "--from", "first", "--snapshot", "second") == ["kept", "one"]
    assert sh(machine, "ls", "--restore", "first", "--discard") == ["kept", "one"]
    assert sh(machine, "ls", "--from", "second", "--discard") == ["kept", "two"]
    assert ctl(machine, "diff", "first")[0].split() == ["D", "gone", "A", "one", "4", "B"]
    assert sorted(os.listdir(machine.project)) == ["gone", "kept"]


def test_a_state_is_committed_by_its_name(machine: Machine) -> None:
    sh(machine, "echo one > one; rm gone", "--snapshot", "first")
    sh(machine, "echo two > two", "--from", "first", "--snapshot", "second")
    ctl(machine, "commit", "second", "--yes")
    assert sorted(os.listdir(machine.project)) == ["kept", "one", "two"]
    assert machine.workspaces() == ["first"]
    ctl(machine, "discard", "first", "--yes")
    assert machine.workspaces() == []


def test_a_state_is_kept_however_the_run_ended_and_even_if_nothing_changed(machine: Machine) -> None:
    sh(machine, "echo half > half; exit 7", "--snapshot", "failed", code=7)
    sh(machine, "true", "--snapshot", "empty")
    sh(machine, "echo x > late; sleep 1000", "--snapshot", "late", "--timeout", "1s", code=124)
    assert machine.workspaces() == ["failed", "empty", "late"]
    assert sh(machine, "cat half", "--from", "failed", "--discard") == ["half"]
    assert sh(machine, "ls", "--from", "empty", "--discard") == ["gone", "kept"]


def test_a_program_that_only_the_state_has_can_be_run(machine: Machine) -> None:
    make = "mkdir -p bin; printf '#!/bin/sh\\necho made: $1\\n' > bin/tool; chmod +x bin/tool"
    sh(machine, make, "--snapshot", "tools")
    ran = machine.run("bin/tool", "it", flags=["--from", "tools", "--discard"])
    assert (ran.code, ran.lines) == (0, ["made: it"])
    assert machine.run("bin/none", flags=["--from", "tools"]).code == 125


def test_a_state_cannot_choose_what_of_the_host_is_shown(machine: Machine) -> None:
    """A link that an agent left where the operator's next command is looked for must not open the place it names."""
    secret = machine.home / "opt" / "bin"
    secret.mkdir(parents=True)
    (secret / "tool").write_text("#!/bin/sh\necho reached\n")
    (secret / "tool").chmod(0o755)
    sh(machine, f"ln -s {secret}/tool tool", "--snapshot", "trap")
    ran = machine.run("./tool", flags=["--from", "trap", "--discard"])
    assert ran.code != 0
    assert ran.lines == []


def test_what_the_project_changed_meanwhile_is_a_conflict(machine: Machine) -> None:
    sh(machine, "echo agent > kept", "--snapshot", "first")
    (machine.project / "kept").write_text("operator\n")
    sh(machine, "echo more > more", "--from", "first", "--snapshot", "second")
    ctl(machine, "commit", "second", "--yes", code=9)
    assert (machine.project / "kept").read_text() == "operator\n"
    assert (machine.project / "more").read_text() == "more\n"


def test_the_place_of_a_state_is_its_own_project(machine: Machine) -> None:
    sh(machine, "echo one > one", "--snapshot", "first")
    elsewhere = machine.home / "elsewhere"
    elsewhere.mkdir()
    ran = machine.run("sh", "-c", "pwd; cat one", flags=["--from", "first", "--discard"], cwd=elsewhere)
    assert ran.lines == [str(machine.project), "one"]
    ran = machine.run("true", flags=["--from", "first", "--workspace", elsewhere])
    assert ran.code == 125
    assert "first is a state of" in ran.err
    assert machine.run("true", flags=["--from", "first", "--workspace", f"bind:{machine.project}"]).code == 125


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--snapshot", "taken"], "already a workspace taken"),
        (["--snapshot", "No Name"], "no workspace name"),
        (["--snapshot", "new", "--workspace", "tmpfs"], "leaves no state"),
        (["--snapshot", "new", "--commit"], "exclude each other"),
        (["--snapshot", "new", "--discard"], "exclude each other"),
        (["--from", "takem"], "did you mean taken?"),
        (["--from", "../state"], "there is no workspace"),
    ],
)
def test_what_cannot_be_is_said_before_anything_runs(machine: Machine, flags: list[str], words: str) -> None:
    sh(machine, "echo one > one", "--snapshot", "taken")
    ran = machine.run("sh", "-c", "echo ran", flags=flags)
    assert (ran.code, ran.lines) == (125, [])
    assert words in ran.err
    assert machine.workspaces() == ["taken"]


def test_a_running_agents_state_is_kept_while_it_goes_on(machine: Machine) -> None:
    script = "echo one > one; echo ready; read line; echo two > two; echo done"
    with machine.start("sh", "-c", script, stdin=subprocess.PIPE) as run:
        assert run.stdin
        assert run.stdout
        assert run.stdout.readline() == b"ready\n"
        (name,) = machine.agents()
        words = ["snapshot", name, "middle"]
        done = subprocess.run([*AGENTCTL, *words], env=machine.env, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr
        assert f"kept {name} as middle: 1 change" in done.stderr
        busy = subprocess.run(
            [*AGENTCTL, "run", "--from", name, "--", "true"],
            env=machine.env,
            cwd=machine.project,
            capture_output=True,
            timeout=SECONDS,
        )
        assert busy.returncode == 125
        out, err = run.communicate(b"go\n", timeout=SECONDS)
    assert out == b"done\n"
    assert b"snapshot middle was taken by process" in err
    assert sh(machine, "ls", "--from", "middle", "--discard") == ["gone", "kept", "one"]
    assert sh(machine, "ls", "--from", name, "--discard") == ["gone", "kept", "one", "two"]


def test_an_ended_runs_state_gets_a_name_and_all_are_listed(machine: Machine) -> None:
    assert "nothing is kept" in ctl(machine, "snapshot")[1]
    ran = machine.run("sh", "-c", "echo one > one")
    assert ran.name
    out, err = ctl(machine, "snapshot", ran.name, "named")
    assert "agentctl run --restore named" in err
    ctl(machine, "discard", ran.name, "--yes")
    out, _ = ctl(machine, "snapshot")
    assert [line.split()[:2] for line in out.splitlines()] == [["NAME", "KIND"], ["named", "snapshot"]]
    listed = json.loads(ctl(machine, "snapshot", "--json")[0])["kept"]
    assert [(one["workspace"], one["kind"], one["project"]) for one in listed] == [
        ("named", "snapshot", str(machine.project))
    ]
    ctl(machine, "snapshot", "nobody", "x", code=3)
    ctl(machine, "snapshot", "named", code=2)
    ctl(machine, "snapshot", "named", "named", code=9)


def test_many_agents_start_from_one_state_at_once(machine: Machine) -> None:
    sh(machine, "echo one > one", "--snapshot", "base")
    runs = [
        machine.start(
            "sh", "-c", f"cat one; echo {index} > mine", flags=["--from", "base", "--snapshot", f"fork-{index}"]
        )
        for index in range(4)
    ]
    for run in runs:
        out, err = run.communicate(timeout=SECONDS)
        assert (run.returncode, out) == (0, b"one\n"), err
    for index in range(4):
        assert (Workspaces(machine.state).open(f"fork-{index}").upper / "mine").read_text() == f"{index}\n"


def test_an_interrupted_run_keeps_its_state_too(machine: Machine) -> None:
    with machine.start("sh", "-c", "echo one > one; echo ready; sleep 1000", flags=["--snapshot", "cut"]) as run:
        assert run.stdout
        assert run.stdout.readline() == b"ready\n"
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=SECONDS)
    assert run.returncode == 130
    assert [change.path for change in Workspaces(machine.state).open("cut").diff()] == ["one"]
