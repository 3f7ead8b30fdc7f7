"""`agentctl run` from outside: its flags, how it ends, what it carries, and that no failure leaves anything behind."""

import asyncio
import contextlib
import hashlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

import leftovers
from guests.agentctl import AGENTCTL, SECONDS, Machine, program
from overlay import tree

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def lines_of(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None
    return stream


# --- how a run ends


@pytest.mark.parametrize("code", [0, 1, 42, 124, 255])
def test_the_guests_exit_code_is_passed_on(machine: Machine, code: int) -> None:
    ran = machine.run("sh", "-c", f"exit {code}")
    assert ran.code == code
    assert f"ended {code} " in ran.err


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGHUP], ids=lambda n: n.name
)
def test_a_guest_ended_by_a_signal_gives_128_and_its_number(machine: Machine, number: signal.Signals) -> None:
    assert machine.run("sh", "-c", f"kill -{number.value} $$").code == 128 + number


def test_what_outlives_the_command_ends_with_it(machine: Machine) -> None:
    ran = machine.run("sh", "-c", "setsid sleep 1000 </dev/null >/dev/null 2>&1 & (sleep 1000 &) ; echo started")
    assert (ran.code, ran.lines) == (0, ["started"])  # `run` has checked that no process is left


def test_a_timeout_kills_everything_and_ends_with_124(machine: Machine) -> None:
    ran = machine.run(
        "sh", "-c", "trap '' TERM; setsid sleep 1000 & echo x >file; sleep 1000", flags=["--timeout", "1s"]
    )
    assert ran.code == 124
    assert "killed by its --timeout" in ran.err
    assert ran.changes == {"file": "add"}


def test_an_unhurried_timeout_changes_nothing(machine: Machine) -> None:
    assert machine.run("true", flags=["--timeout", "1h"]).code == 0


STUBBORN = "trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done"
OBEDIENT = "trap 'echo asked; exit 7' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name)
def test_one_interrupt_asks_the_guest_to_end(machine: Machine, number: signal.Signals) -> None:
    others = set(leftovers.processes())
    with machine.start("sh", "-c", OBEDIENT) as process:
        assert lines_of(process.stdout).readline() == b"ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=SECONDS)
    assert (process.returncode, out) == (130, b"asked\n")
    assert b"stopped by you" in err
    machine.nothing_is_left(process.pid, others)


def test_a_second_interrupt_kills_a_guest_that_does_not_listen(machine: Machine) -> None:
    others = set(leftovers.processes())
    with machine.start("sh", "-c", STUBBORN) as process:
        out = lines_of(process.stdout)
        assert out.readline() == b"ready\n"
        process.send_signal(signal.SIGINT)
        assert out.readline() == b"asked\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    machine.nothing_is_left(process.pid, others)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_while_the_sandbox_is_built_leaves_nothing(machine: Machine, times: int) -> None:
    others = set(leftovers.processes())
    with machine.start("sleep", "1000") as process:
        booting = lambda: any("sandbox.launcher" in text for text in leftovers.processes().values())  # noqa: E731
        assert leftovers.becomes_true(booting, SECONDS)
        for _ in range(times):
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err.decode()
    machine.nothing_is_left(process.pid, others)


# --- what it carries


def test_input_of_any_size_and_content_reaches_the_guest(machine: Machine) -> None:
    data = os.urandom(20 << 20)
    ran = machine.run("sha256sum", stdin=data)
    assert ran.lines == [f"{hashlib.sha256(data).hexdigest()}  -"]


def test_a_guest_that_stops_reading_does_not_hold_us(machine: Machine) -> None:
    ran = machine.run("head", "-c", "5", stdin=b"first" + bytes(20 << 20))
    assert (ran.code, ran.out) == (0, b"first")


def test_no_input_at_all_is_an_empty_one(machine: Machine) -> None:
    closed = ["sh", "-c", 'exec "$@" <&-', "sh"]
    assert machine.run("sh", "-c", "cat; echo end", before=closed).out == b"end\n"


def test_an_input_that_stays_open_does_not_outlast_the_guest(machine: Machine) -> None:
    others = set(leftovers.processes())
    with machine.start("true", stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=SECONDS) == 0
        machine.nothing_is_left(process.pid, others)


def test_100_mb_of_bytes_come_out_as_they_went_in(machine: Machine) -> None:
    (machine.project / "big").write_bytes(os.urandom(10_000_000) * 10)
    ran = machine.run("cat", "big", flags=["-q"])
    assert hashlib.sha256(ran.out).digest() == hashlib.sha256((machine.project / "big").read_bytes()).digest()
    assert (ran.code, ran.err) == (0, "")


def test_a_reader_that_goes_away_ends_the_guest(machine: Machine) -> None:
    others = set(leftovers.processes())
    with machine.start("yes", flags=["-q"]) as process:
        out = lines_of(process.stdout)
        assert out.readline() == b"y\n"
        out.close()
        assert process.wait(timeout=SECONDS) == 128 + signal.SIGPIPE
        assert lines_of(process.stderr).read() == b""
    machine.nothing_is_left(process.pid, others)


def test_a_full_disk_behind_our_output_ends_the_guest_and_not_us(machine: Machine) -> None:
    others = set(leftovers.processes())
    with open("/dev/full", "wb") as full, machine.start("yes", stdout=full) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGPIPE, err
    assert b"agentctl: its output could not be written: No space left on device\n" in err
    assert b"Traceback" not in err
    machine.nothing_is_left(process.pid, others)


def test_output_and_errors_stay_apart(machine: Machine) -> None:
    ran = machine.run("sh", "-c", "echo out; echo err >&2; printf '\\033]0;t\\007\\000'", flags=["-q"])
    assert (ran.out, ran.err) == (b"out\n\x1b]0;t\x07\0", "err\n")


def test_output_is_there_as_it_is_written_and_not_at_the_end(machine: Machine) -> None:
    with machine.start("sh", "-c", "echo first; read line; echo $line", stdin=subprocess.PIPE) as process:
        assert lines_of(process.stdout).readline() == b"first\n"
        out, _ = process.communicate(b"second\n", timeout=SECONDS)
    assert (process.returncode, out) == (0, b"second\n")


def test_the_guest_has_no_terminal_even_if_we_have_one(machine: Machine) -> None:
    script = "for n in 0 1 2; do test -t $n && echo terminal $n; done; (: </dev/tty) 2>/dev/null && echo tty; echo none"
    assert on_terminal(machine, "sh", "-c", script, flags=["-q"]) == (0, b"none\n")


HOSTILE = (
    r"\033[31mred\033[0m \033]52;c;cHduZWQ=\007 \033]0;title\007 \033[2J\033[H \033]8;;http://e.example\033\\link\033]8;;\033\\"
    r" \033P+q\033\\ \302\2332J end\n"
)


def test_on_a_terminal_colours_stay_and_everything_else_that_steers_it_goes(machine: Machine) -> None:
    for redirection in ("", " >&2"):
        code, shown = on_terminal(machine, "sh", "-c", f"printf '{HOSTILE}'{redirection}", flags=["-q"])
        assert code == 0
        assert shown == b"\x1b[31mred\x1b[0m    link  2J end\n"


def test_a_hostile_file_name_cannot_steer_the_terminal_or_forge_a_line(machine: Machine) -> None:
    name = "a\x1b]0;t\x07\x1b[2Jb\nrefused  nothing"
    script = f"import os; open({name!r}, 'w').close()"
    code, shown = on_terminal(machine, "/usr/bin/python3", "-c", script)
    assert code == 0
    assert b"\x1b" not in shown.replace(b"\x1b[32mA\x1b[0m", b"A")  # our own colour
    assert not any(line.startswith(b"refused") for line in shown.splitlines())
    assert b"refused  nothing" in shown


def on_terminal(machine: Machine, *words: str, flags: list[str] | None = None) -> tuple[int, bytes]:
    """Run with a terminal as all three streams, plain ones for the guest; the code and what the terminal was sent."""
    others = set(leftovers.processes())
    ours, theirs = pty.openpty()
    shown = b""
    try:
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        with machine.start(*words, flags=["-T", *(flags or [])], start_new_session=True, **streams) as process:
            os.close(theirs)
            with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
                while data := os.read(ours, 65536):
                    shown += data
            code = process.wait(timeout=SECONDS)
    finally:
        os.close(ours)
    machine.nothing_is_left(process.pid, others)
    return code, shown.replace(b"\r\n", b"\n")


# --- flags


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
    wait = "echo $0 >$0; echo ready; read line; ls; ls /proc | grep -c '^[0-9]'"
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


# --- what cannot be done: said with its reason and the next step, and nothing is left


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
        before = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o ro tmpfs {machine.state} && exec "$@"', "sh"]
        ran = machine.run("true", before=before)
    else:
        machine.state.chmod(0o500)
        ran = machine.run("true")
        machine.state.chmod(0o700)
    refused_with(machine, ran.code, ran.out, ran.err, [str(machine.state), "cannot be written"], "AGENT_OS_HOME=")


def test_a_full_state_directory_shows_the_guest_a_full_disk(machine: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("state: only root can mount a small file system for it")
    small = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size=2m tmpfs {machine.state} && exec "$@"', "sh"]
    script = "head -c 8M /dev/zero >big 2>/dev/null || echo full; rm big; echo small >small && cat small"
    ran = machine.run("sh", "-c", script, before=small)
    assert (ran.code, ran.lines) == (0, ["full", "small"]), ran.err
    assert "A  small" in ran.err


def test_a_state_directory_without_any_room_is_told(machine: Machine) -> None:
    if os.geteuid() != 0:
        pytest.skip("state: only root can mount a small file system for it")
    fill = f"mount -t tmpfs -o size=64k tmpfs {machine.state} && head -c 1M /dev/zero >{machine.state}/x 2>/dev/null"
    ran = machine.run("true", before=["unshare", "-m", "sh", "-c", f'{fill}; exec "$@"', "sh"])
    refused_with(machine, ran.code, ran.out, ran.err, [str(machine.state)], "")


def test_a_guest_that_outgrows_its_disk_is_killed_and_its_changes_are_kept(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agent_os import daemon

    for name, value in machine.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(machine.project)
    others, descriptors = set(leftovers.processes()), leftovers.descriptors()
    script = "for n in 1 2 3 4 5 6; do head -c 4M /dev/urandom >file$n; done; sleep 1000"
    wanted = daemon.order(["sh", "-c", script])
    wanted = replace(wanted, limits=replace(wanted.limits, disk_mb=16))

    async def run():
        with open("/dev/null", "r+b") as null:
            async with daemon.running(wanted, (null.fileno(), null.fileno(), null.fileno())) as guest:
                return await asyncio.wait_for(guest.finish(), SECONDS)

    outcome = asyncio.run(run())
    assert (outcome.ending, outcome.code) == ("disk", 137)
    assert {change.path for change in outcome.changes} == {f"file{n}" for n in range(1, 7)}
    assert outcome.workspace is not None
    outcome.workspace.discard()
    assert machine.records("disk")[0]["limit_mb"] == 16
    machine.nothing_is_left(os.getpid(), others)
    assert leftovers.descriptors() == descriptors


# --- what dies under our hands


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
    machine.nothing_is_left(process.pid, others)
    assert len(machine.workspaces()) == 1, "what it had written is still there to decide about"
    assert machine.run("true").code == 0


def test_when_agentctl_itself_is_killed_nothing_survives_and_the_next_run_tidies_up(machine: Machine) -> None:
    others = set(leftovers.processes())
    with started(machine, "trap '' TERM HUP INT; echo x >file; echo ready; setsid sleep 1000 & sleep 1000") as process:
        assert len(set(leftovers.processes()) - others) >= 6
        process.kill()
        process.wait()
        gone = leftovers.becomes_true(lambda: set(leftovers.processes()) <= others, 1.0)
        assert gone, {pid: text for pid, text in leftovers.processes().items() if pid not in others}
    (kept,) = machine.workspaces()
    assert machine.run("true").code == 0
    machine.nothing_is_left(process.pid, others)
    assert machine.agentctl("diff", kept).code == 0
    assert machine.agentctl("discard", kept, "--yes").code == 0
    assert machine.workspaces() == []


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
        machine.nothing_is_left(0, others)


def test_help_tells_every_flag(machine: Machine) -> None:
    done = subprocess.run(
        [*AGENTCTL, "run", "--help"], capture_output=True, text=True, env=machine.environment(), check=True
    )
    flags = (
        "--workspace --mount --net --env --timeout --min-isolation --commit --discard --keep --allow-protected --quiet"
    )
    assert [flag for flag in flags.split() if flag not in done.stdout] == []


def orphaned(command: list[str], until: Callable[[], bool]) -> None:
    """Start something whose parent is gone before it ends."""
    subprocess.run(
        [sys.executable, "-c", "import subprocess, sys; subprocess.Popen(sys.argv[1:])", *command], check=True
    )
    assert leftovers.becomes_true(until, 5)


def test_an_orphan_is_still_found(machine: Machine) -> None:
    others = set(leftovers.processes())
    orphaned(["sleep", "1000"], lambda: bool(set(leftovers.processes()) - others))
    (left,) = set(leftovers.processes()) - others
    os.kill(left, signal.SIGKILL)
    os.waitpid(left, 0)


def test_somebody_in_a_hurry_need_not_read_what_the_guest_wrote(machine: Machine) -> None:
    """Two signals end agentctl although nobody takes its output."""
    with machine.start("yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert process.returncode == 130
