"""What `agentctl run` cannot do is told with its reason and the next step, and nothing is left of it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from guests.agentctl import Machine, program
from overlay import tree

pytestmark = pytest.mark.integration

TMPFS = "mount -t tmpfs -o mode=0700"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


BAD = {
    "unknown flag": (["--wat"], ["--wat"], "agentctl run --help"),
    "workspace is the machine": (["--workspace", "/"], ["whole machine"], "use a folder such as"),
    "workspace is the home": (["--workspace", "{home}"], ["whole home directory"], "use a folder such as"),
    "workspace holds our state": (["--workspace", "{top}"], ["state directory"], "use a folder such as"),
    "workspace is our state": (["--workspace", "{state}"], ["state directory"], "use a folder such as"),
    "bound workspace is the home": (["--workspace", "bind:{home}"], ["whole home directory"], "use a folder such as"),
    "workspace holds credentials": (["--workspace", "{home}/.ssh"], ["credentials"], "use a folder such as"),
    "workspace is missing": (["--workspace", "{home}/nowhere"], ["does not exist"], "existing directory"),
    "workspace is a file": (["--workspace", "{home}/diary.txt"], ["not a directory"], "use "),
    "workspace is empty text": (["--workspace", ""], ["workspace"], ""),
    "mount is empty text": (["--mount", ""], ["--mount ''"], "--mount rw:"),
    "mount has three parts": (["--mount", "a:b:c"], ["[rw:]SRC[:DST]"], "--mount rw:"),
    "mount is missing": (["--mount", "{home}/nowhere"], ["is not there"], ""),
    "mount is the home": (["--mount", "{home}"], ["whole home directory"], "use a folder such as"),
    "mount holds our state": (["--mount", "rw:{top}:/x"], ["state directory"], "use a folder such as"),
    "mount at a relative place": (["--mount", "{project}:data"], ["absolute path"], "--mount SRC:/data"),
    "mount over the sandbox's own": (["--mount", "{project}:/proc/x"], ["sandbox's own"], "--mount SRC:/data"),
    "net is a url": (["--net", "https://example.org/x"], ["not a host"], "--net example.org"),
    "net is everything": (["--net", "*"], ["'*'"], "--net"),
    "net has a space": (["--net", "a b"], ["not a host name"], "example.com"),
    "net has no such port": (["--net", "example.org:99999"], ["not a port"], "example.com:8443"),
    "net is empty text": (["--net", ""], ["empty"], "example.com"),
    "cap is the host's own": (["--cap", "http:127.0.0.1:get"], ["port by port"], "--net 127.0.0.1:PORT"),
    "env without a name": (["--env", "=x"], ["no name of a variable"], "--env NAME=VALUE"),
    "env with a bad name": (["--env", "1X=2"], ["'1X'"], "--env NAME=VALUE"),
    "env that is not set": (["--env", "NOT_SET_AT_ALL"], ["not set here"], "--env NOT_SET_AT_ALL=VALUE"),
    "timeout in words": (["--timeout", "soon"], ["'soon'"], "10s"),
    "timeout of nothing": (["--timeout", "0"], ["above zero"], "10s"),
    "no such level": (["--min-isolation", "S9"], ["'S9'"], "S0, S1, S2, S3, S4"),
    "level below the minimum": (
        ["--min-isolation", "S4"],
        ["reaches isolation S", "S4 was asked for"],
        "agentctl doctor",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_told_with_its_reason_and_the_next_step(machine: Machine, case: str) -> None:
    flags, words, step = BAD[case]
    places = {"home": machine.home, "top": machine.top, "state": machine.state, "project": machine.project}
    ran = machine.run("touch", "ran", flags=[flag.format(**places) for flag in flags])
    refused_with(machine, ran.code, ran.out, ran.err, words, step)
    assert "[Errno" not in ran.err


def refused_with(machine: Machine, code: int, out: bytes, err: str, words: list[str], step: str) -> None:
    assert (code, out) == (125, b""), err
    first, *rest = err.splitlines()
    assert first.startswith("agentctl: ")
    assert len(rest) == 1, f"one line for what and why, one for the next step: {err}"
    assert rest[0].startswith("  try: ")
    assert step in rest[0]
    for word in words:
        assert word in first
    assert "Traceback" not in err
    assert "internal error" not in err
    assert machine.workspaces() == []
    assert tree(machine.project).keys() <= {"plain"}


def test_a_missing_command_is_told_with_an_example(machine: Machine) -> None:
    for words in (["run"], ["run", "--"], ["run", "--timeout", "1s", "--"]):
        ran = machine.agentctl(*words)
        refused_with(
            machine, ran.code, ran.out, ran.err, ["no command", "agentctl run -- python"], "agentctl run --help"
        )


@pytest.mark.parametrize(
    ("command", "words", "step"),
    [
        ("no-such-program-here", ["no-such-program-here", "on PATH"], ""),
        ("./nowhere", ["./nowhere"], ""),
        ("nowhere.py:main", ["there is no file nowhere.py"], "agentctl run FILE.py:NAME"),
        ("./plain", ["not executable"], "chmod +x"),
        ("/", ["directory"], ""),
        ("echo a && echo b", ["shell"], "bash -c"),
    ],
)
def test_a_command_that_cannot_run_is_told_with_the_next_step(
    machine: Machine, command: str, words: list[str], step: str
) -> None:
    (machine.project / "plain").write_text("text")
    ran = machine.run(command)
    refused_with(machine, ran.code, ran.out, ran.err, words, step)


def test_a_file_that_is_executable_but_no_program_is_told(machine: Machine) -> None:
    program(machine.project / "plain", "\x00\x01 neither ELF nor script")
    ran = machine.run("./plain")
    refused_with(machine, ran.code, ran.out, ran.err, ["./plain", "could not be executed", "format"], "")


def test_the_minimum_of_the_environment_holds_where_no_flag_says_otherwise(machine: Machine) -> None:
    assert machine.run("true", AGENT_OS_MIN_ISOLATION="S4").code == 125
    assert machine.run("true", AGENT_OS_MIN_ISOLATION="S4", flags=["--min-isolation", "S2"]).code == 0


def test_an_unreadable_workspace_is_told(machine: Machine) -> None:
    if os.geteuid() == 0:
        pytest.skip("workspace: root can read everything")
    closed = machine.home / "closed"
    (closed / "below").mkdir(parents=True)
    closed.chmod(0)
    try:
        for place in (closed, closed / "below"):
            ran = machine.run("true", flags=["--workspace", place])
            refused_with(machine, ran.code, ran.out, ran.err, [str(place)], "")
    finally:
        closed.chmod(0o700)


def test_a_state_directory_that_cannot_be_made_is_told(machine: Machine) -> None:
    for place in (machine.home / "diary.txt", machine.home / "diary.txt" / "below"):
        ran = machine.run("true", AGENT_OS_HOME=str(place))
        refused_with(machine, ran.code, ran.out, ran.err, ["state directory", str(place)], "AGENT_OS_HOME=")


def test_a_state_directory_that_cannot_be_written_is_told(machine: Machine) -> None:
    if os.geteuid() == 0:
        before = ["unshare", "-m", "sh", "-c", f'{TMPFS},ro tmpfs {machine.state} && exec "$@"', "sh"]
        ran = machine.run("true", before=before)
    else:
        machine.state.chmod(0o500)
        ran = machine.run("true")
        machine.state.chmod(0o700)
    refused_with(machine, ran.code, ran.out, ran.err, [str(machine.state), "cannot be written"], "AGENT_OS_HOME=")


def test_a_full_state_directory_shows_the_guest_a_full_disk(machine: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("state: only root can mount a small file system for it")
    small = ["unshare", "-m", "sh", "-c", f'{TMPFS},size=32m tmpfs {machine.state} && exec "$@"', "sh"]
    script = "head -c 64M /dev/zero >big 2>/dev/null || echo full; rm big; echo small >small && cat small"
    ran = machine.run("sh", "-c", script, before=small)
    assert (ran.code, ran.lines) == (0, ["full", "small"]), ran.err
    assert "A  small" in ran.err


def test_a_state_directory_without_any_room_is_told(machine: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("state: only root can mount a small file system for it")
    fill = f"{TMPFS},size=64k tmpfs {machine.state} && head -c 1M /dev/zero >{machine.state}/x 2>/dev/null"
    ran = machine.run("true", before=["unshare", "-m", "sh", "-c", f'{fill}; exec "$@"', "sh"])
    refused_with(machine, ran.code, ran.out, ran.err, [str(machine.state)], "")


def test_a_guest_that_outgrows_its_disk_is_killed_and_its_changes_are_kept(machine: Machine) -> None:
    script = "for n in 1 2 3 4 5 6; do head -c 4M /dev/urandom >file$n; done; sleep 1000"
    ran = machine.run("sh", "-c", script, flags=["--limit", "disk_mb=16"])
    assert ran.code == 137
    assert "outgrew its disk limit of 16 MB" in ran.err
    assert ran.changes.keys() == {f"file{n}" for n in range(1, 7)}
    assert machine.records("disk")[0]["limit_mb"] == 16
    assert machine.records("exit")[0]["ending"] == "disk"


def no_namespaces(*mapping: str) -> list[str]:
    """A shell in a user namespace of its own in which no further one can be made. The host's own limit is not ours."""
    return ["unshare", "-U", *mapping, "sh", "-c", 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"', "sh"]


HOST_LIMIT = Path("/proc/sys/user/max_user_namespaces")


@pytest.mark.parametrize(
    "mapping", [("-r",), ("--map-user=1000", "--map-group=1000", "--keep-caps")], ids=["root", "user"]
)
def test_without_user_namespaces_the_run_is_refused_with_the_reason(machine: Machine, mapping: tuple[str, ...]) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare: util-linux is not installed")
    without = no_namespaces(*mapping)
    if subprocess.run([*without, "true"], capture_output=True).returncode:
        pytest.skip("unshare: cannot make the user namespace to try it in")
    allowed = HOST_LIMIT.read_text()
    ran = machine.run("true", before=without)
    assert HOST_LIMIT.read_text() == allowed
    refused_with(machine, ran.code, ran.out, ran.err, ["no user namespace"], "agentctl doctor")
