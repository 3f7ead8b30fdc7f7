"""What dies under `agentctl run`, itself included: nothing survives, and the next run tidies up."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import leftovers
from cli.reading import lines_of
from guests.agentctl import SECONDS, Machine

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def started(machine: Machine, command: str = "echo x >file; echo ready; sleep 1000 & sleep 1000"):
    process = machine.start("sh", "-c", command)
    assert lines_of(process.stdout).readline() == b"ready\n"
    return process


def launchers(others: set[int]) -> list[int]:
    """Starter, holder, launcher, oldest first; then the agent's pid 1, a fork that kept the command line."""
    return [pid for pid, text in leftovers.processes().items() if pid not in others and "sandbox.launcher" in text]


@pytest.mark.parametrize("which", [0, 1, 2, 3], ids=["starter", "holder", "launcher", "the agent's pid 1"])
def test_whichever_of_our_helpers_is_killed_the_guest_dies_and_we_end(machine: Machine, which: int) -> None:
    others = set(leftovers.processes())
    with started(machine) as process:
        os.kill(launchers(others)[which], signal.SIGKILL)
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (137, b"")
    assert ("the launcher ended" in err.decode()) == (which < 3)
    machine.nothing_is_left(others)
    assert len(machine.workspaces()) == 1, "what it had written is still there to decide about"
    assert machine.run("true").code == 0


def test_when_agentctl_itself_is_killed_nothing_survives_and_the_next_run_tidies_up(machine: Machine) -> None:
    others = set(leftovers.processes())
    with started(machine, "trap '' TERM HUP INT; echo x >file; echo ready; setsid sleep 1000 & sleep 1000") as process:
        assert len(set(leftovers.processes()) - others) >= 6
        process.kill()
        process.wait()
        gone = leftovers.becomes_true(lambda: set(leftovers.processes()) <= others)
        assert gone, {pid: text for pid, text in leftovers.processes().items() if pid not in others}
    (kept,) = machine.workspaces()
    assert machine.run("true").code == 0
    machine.nothing_is_left(others)
    assert machine.agentctl("diff", kept).code == 0
    assert machine.agentctl("discard", kept, "--yes").code == 0
    assert machine.workspaces() == []


def test_root_of_a_user_namespace_of_its_own_can_run_guests(machine: Machine) -> None:
    """As in a rootless container: root there, but not on the host."""
    if shutil.which("unshare") is None:
        pytest.skip("unshare: util-linux is not installed")
    inside = ["unshare", "-Ur"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("unshare: cannot make the user namespace to try it in")
    ran = machine.run("sh", "-c", "echo x >file; cat file", before=inside)
    assert (ran.code, ran.lines, ran.changes) == (0, ["x"], {"file": "add"}), ran.err


def test_the_battery_of_leftovers_can_fail(machine: Machine) -> None:
    """The positive control: a process, a file and a half-made workspace of ours are found."""
    others = set(leftovers.processes())
    with subprocess.Popen(["sleep", "1000"]) as process:
        assert set(leftovers.processes()) - others == {process.pid}
        process.kill()
    (machine.state / "work" / ".new-0").mkdir(parents=True)
    (machine.state / "stray").touch()
    assert leftovers.files(machine.state) == ["stray", "work/.new-0"]
    with pytest.raises(AssertionError):
        machine.nothing_is_left(others)


def orphaned(command: list[str], until: Callable[[], bool]) -> None:
    """Start something whose parent is gone before it ends."""
    subprocess.run(
        [sys.executable, "-c", "import subprocess, sys; subprocess.Popen(sys.argv[1:])", *command], check=True
    )
    assert leftovers.becomes_true(until)


def test_an_orphan_is_still_found(machine: Machine) -> None:
    others = set(leftovers.processes())
    orphaned(["sleep", "1000"], lambda: bool(set(leftovers.processes()) - others))
    (left,) = set(leftovers.processes()) - others
    os.kill(left, signal.SIGKILL)
    os.waitpid(left, 0)
