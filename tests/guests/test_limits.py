"""`agentctl run --limit`, as a user meets it: bounds that hold, and an ending that says why."""

import os
import signal
import subprocess

import pytest

import leftovers
from agent_os.sandbox import hierarchies
from guests.agentctl import AGENTCTL, Machine

pytestmark = pytest.mark.integration

EATER = "kept = []\nwhile True: kept.append(bytearray(b'x' * (1 << 20)))"


@pytest.fixture
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("limits"))


def capped(controller: str) -> bool:
    return controller in hierarchies.detect().controllers


def test_a_guest_beyond_its_memory_is_killed_and_told_what_to_do(machine: Machine) -> None:
    if not capped("memory"):
        pytest.skip("cgroup: no memory controller this user may use")
    # the eater is not the first process: what started it would go on and hide the cause
    eat = f'python3 -c "{EATER}"; sleep 30; echo went on'
    ran = machine.run("sh", "-c", eat, flags=["--limit", "memory_mb=64"])
    assert (ran.code, ran.lines) == (137, [])
    assert "killed: it used more than its memory limit of 64 MB (more: --limit memory_mb=128)" in ran.err
    assert [entry["ending"] for entry in machine.records("exit")] == ["memory"]


def test_a_guest_within_its_memory_ends_as_it_likes(machine: Machine) -> None:
    """The control of the one above."""
    ran = machine.run("python3", "-c", "kept = bytearray(b'x') * (20 << 20)", flags=["--limit", "memory_mb=64"])
    assert ran.code == 0
    assert "ended 0" in ran.err
    assert ("memory_mb is not enforced here" in ran.err) != capped("memory")


def test_a_fork_bomb_stops_at_its_limit(machine: Machine) -> None:
    count = (
        "import os, signal\nmade = 0\ntry:\n while made < 100:\n  if not os.fork(): signal.pause()\n  made += 1\n"
        "except BlockingIOError: pass\nprint(made)"
    )
    few = machine.run("python3", "-c", count, flags=["--limit", "pids=20"])
    many = machine.run("python3", "-c", count)
    assert 10 < int(few.lines[0]) < 20
    assert many.lines == ["100"]


def test_other_limits_reach_the_guest(machine: Machine) -> None:
    flags = ["--limit", "nofile=77", "--limit", "as_mb=3000", "--limit", "cpu_s=9", "--limit", "fsize_mb=5"]
    ran = machine.run(
        "sh", "-c", "ulimit -n; ulimit -v; ulimit -t; df -m ~ | tail -1", flags=[*flags, "--limit", "tmp_mb=33"]
    )
    assert ran.lines[:3] == ["77", str(3000 * 1024), "9"]
    assert " 33 " in ran.lines[3]


def test_tmp_is_on_disk_private_and_open_to_all_inside(machine: Machine) -> None:
    look = "stat -f -c %T /tmp; stat -c '%a %U' /tmp; ls -A /tmp; grep -o ' /tmp [a-z,]*' /proc/self/mountinfo; "
    use = "cp /bin/true /tmp/t && /tmp/t && mkdir /tmp/d && chmod 0 /tmp/d && echo used"
    ran = machine.run("sh", "-c", look + use, flags=["--workspace", "tmpfs"])
    kind, owner, *shown, flags, used = ran.lines
    disk = subprocess.run(["stat", "-f", "-c", "%T", machine.state], capture_output=True, text=True).stdout.strip()
    assert (kind, owner, shown, used) == (disk, "1777 agent", [], "used")
    assert {"nosuid", "nodev"} <= set(flags.split()[-1].split(","))


def test_a_project_and_mounts_below_tmp_are_seen_where_they_are(machine: Machine) -> None:
    data = machine.top / "data"
    data.mkdir()
    (data / "file").write_text("data\n")
    flags = ["--mount", f"{data}:/tmp/shown/data", "--mount", f"{data}/file:/tmp/shown/file"]
    ran = machine.run(
        "sh", "-c", "pwd; cat /tmp/shown/data/file /tmp/shown/file; echo > new; rm -r /tmp/shown", flags=flags
    )
    assert ran.lines == [str(machine.project), "data", "data"]
    assert ran.changes == {"new": "add"}
    assert (data / "file").read_text() == "data\n"


def test_the_tmp_of_a_killed_kernel_is_gone_after_the_next_run(machine: Machine) -> None:
    others = set(leftovers.processes())
    with machine.start("sh", "-c", "echo > /tmp/left; echo up; sleep 600") as first:
        assert first.stdout
        assert first.stdout.readline() == b"up\n"
        os.kill(machine.kernel, signal.SIGKILL)
        first.communicate(timeout=30)
    assert leftovers.becomes_true(lambda: not set(leftovers.processes()) - others)
    assert list((machine.state / "tmp").glob("*/files/left"))  # the control
    machine.run("true")  # checks that nothing is left


def test_the_record_says_who_enforces_each_limit(machine: Machine) -> None:
    machine.run("true", flags=["--limit", "cpu_pct=50"])
    (spawned,) = machine.records("spawned")
    every = all(capped(name) for name in hierarchies.CONTROLLERS)
    assert spawned["level"] == ("S3" if every else "S2")
    assert spawned["limits"]["cpu_pct"] == 50
    for limit, controller in (("pids", "pids"), ("cpu_pct", "cpu")):
        assert spawned["enforced_by"][limit].startswith("cgroup v") == capped(controller)


def test_a_wrong_limit_is_refused_before_anything_is_made(machine: Machine) -> None:
    ran = machine.run("true", flags=["--limit", "memory=1"])
    assert ran.code != 0
    assert "Did you mean memory_mb?" in ran.err
    assert machine.workspaces() == []


def test_the_groups_of_a_killed_kernel_are_gone_after_the_next_run(machine: Machine) -> None:
    others = set(leftovers.processes())
    first = machine.start("sh", "-c", "echo up; sleep 600")
    with first:
        assert first.stdout
        assert first.stdout.readline() == b"up\n"
        kernel = machine.kernel
        assert bool(leftovers.cgroups(kernel)) == bool(hierarchies.detect().hierarchies)
        os.kill(kernel, signal.SIGKILL)
        first.communicate(timeout=30)
    assert leftovers.becomes_true(lambda: not set(leftovers.processes()) - others)
    machine.run("true")
    assert leftovers.cgroups(kernel) == []


def test_help_names_every_limit(machine: Machine) -> None:
    from agent_os.kernel.guest import NAMES

    shown = machine.finished([*AGENTCTL, "run", "--help"], None, machine.project, machine.environment())
    text = shown.out.decode()
    assert "--limit" in text
    assert [name for name in NAMES if name not in text] == []
