"""Every process of an agent is found, and held, by /proc and signals alone."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import leftovers
from agent_os.kernel import members

pytestmark = pytest.mark.integration

FAMILY = """
import os, signal, sys, time
for _ in range(int(sys.argv[1])):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            while True: time.sleep(0.01)
        if sys.argv[2] == "orphans": os._exit(0)
        while True: time.sleep(0.01)
print("ready", flush=True)
while True: time.sleep(0.01)
"""


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """A parent, two children, and a grandchild of each that left its session."""
    with started("2", "stay") as parent:
        yield parent
        end(parent)


def started(number: str, orphans: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", FAMILY, number, orphans], stdout=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    assert leftovers.becomes_true(lambda: len(members.members(process.pid)) == 1 + 2 * int(number))
    return process


def end(parent: subprocess.Popen[bytes]) -> None:
    for one in members.members(parent.pid):
        os.kill(one.pid, signal.SIGKILL)


def states(pid: int) -> set[str]:
    return {one.state for one in members.members(pid)}


def test_all_descendants_are_members_and_nobody_else(family: subprocess.Popen[bytes]) -> None:
    found = members.members(family.pid)
    assert found[0].pid == family.pid
    assert os.getpid() not in {one.pid for one in found}
    assert len(found) == 5
    assert all(one.memory > 100_000 for one in found)


def test_a_process_that_ended_has_no_members(family: subprocess.Popen[bytes]) -> None:
    known = members.members(family.pid)
    end(family)
    family.wait()
    assert members.members(family.pid) == []
    assert leftovers.becomes_true(lambda: members.alive(known) == [])


def test_another_process_under_a_known_pid_does_not_count() -> None:
    me = members.members(os.getpid())[0]
    assert members.alive([me]) == [me]
    assert members.alive([members.Member(me.pid, me.started + 1, me.parent, me.state, 0)]) == []


def test_stopped_processes_stand_still_and_go_on(family: subprocess.Popen[bytes]) -> None:
    stopped = members.stop(family.pid)
    assert stopped is not None
    assert len(stopped) == 5
    assert states(family.pid) == {"T"}
    members.resume(stopped)
    assert leftovers.becomes_true(lambda: "T" not in states(family.pid))


def test_what_was_stopped_before_stays_stopped_afterwards(family: subprocess.Popen[bytes]) -> None:
    """Somebody's suspended job inside is none of our business."""
    suspended = members.members(family.pid)[-1]
    os.kill(suspended.pid, signal.SIGSTOP)
    assert leftovers.becomes_true(lambda: "T" in states(family.pid))
    stopped = members.stop(family.pid)
    assert stopped is not None
    assert suspended.pid not in {one.pid for one in stopped}
    members.resume(stopped)
    assert leftovers.becomes_true(lambda: states(family.pid) == {"T", "S"})


def test_processes_that_keep_forking_are_held_too() -> None:
    """Each child ends at once, and there is always another; stopping has to catch the one that makes them."""
    code = "import os\nprint('ready', flush=True)\nwhile True:\n pid = os.fork()\n if not pid: os._exit(0)\n os.wait()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline()
        try:
            assert members.stop(parent.pid)
            assert states(parent.pid) == {"T"}
        finally:
            end(parent)


# Collects nobody's end, and has a descendant that is never twice the same: it forks, and the parent ends. It gives up
# after a while: one that outlived its test would use up all pids of the machine.
HOPPER = """
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if os.fork():
    print("ready", flush=True)
    while True: time.sleep(1)
end = time.monotonic() + 15
while time.monotonic() < end:
    os.write(2, b"x")
    if os.fork(): os._exit(0)
    time.sleep(0.0005)
"""
# Its first thread ends, another one goes on: to ps it is a zombie.
HEADLESS = """
import ctypes, os, threading, time
def work():
    time.sleep(0.2)
    print("ready", flush=True)
    while True: os.write(2, b"x"); time.sleep(0.005)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall(int(os.environ["EXIT"]), 0)
"""
_EXIT = {"x86_64": "60", "aarch64": "93"}


@pytest.mark.parametrize("code", [HOPPER, HEADLESS], ids=["hopper", "headless"])
def test_who_cannot_be_seen_is_not_taken_for_stopped(tmp_path: Path, code: str) -> None:
    """Either it is held, and then it is still, or it is said that it could not be."""
    environment = os.environ | {"EXIT": _EXIT[os.uname().machine]}
    ticks = tmp_path / "ticks"
    with (
        ticks.open("wb") as file,
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=file, env=environment) as parent,
    ):
        assert parent.stdout
        assert parent.stdout.readline() == b"ready\n"
        try:
            assert leftovers.becomes_true(lambda: ticks.stat().st_size > 5)
            stopped = members.stop(parent.pid, seconds=2)
            size = ticks.stat().st_size
            moved = leftovers.becomes_true(lambda: ticks.stat().st_size > size, 0.3)
            assert moved == (stopped is None)
            if code == HEADLESS:
                assert stopped
            if stopped:
                members.resume(stopped)
                assert leftovers.becomes_true(lambda: ticks.stat().st_size > size)
        finally:
            signal.pidfd_send_signal(parent_fd := os.pidfd_open(parent.pid), signal.SIGSTOP)  # nobody is born meanwhile
            os.close(parent_fd)
            leftovers.becomes_true(lambda: not _killed(parent.pid))
            parent.kill()


def _killed(pid: int) -> list[members.Member]:
    """Kill whoever is found below, last-born first; who was found."""
    below = [one for one in members.members(pid) if one.pid != pid]
    for one in reversed(below):
        with contextlib.suppress(ProcessLookupError):
            os.kill(one.pid, signal.SIGKILL)
    return below


def test_everybodys_parents_tell_the_same_as_lists_of_children(
    family: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    by_children = {one.key for one in members.members(family.pid)}
    monkeypatch.setattr(members, "_lists_children", lambda: False)
    assert {one.key for one in members.members(family.pid)} == by_children
    assert members.stop(family.pid, seconds=20)
    assert states(family.pid) == {"T"}


def test_one_that_cannot_be_caught_is_reported_and_left_running(family: subprocess.Popen[bytes]) -> None:
    assert members.stop(family.pid, seconds=0) is None
    assert "T" not in states(family.pid)


def test_the_pid_behind_a_pidfd_is_known_until_it_was_collected() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        pidfd = os.pidfd_open(process.pid)
        assert members.pid_of(pidfd) == process.pid
        process.kill()
        process.wait()
        assert members.pid_of(pidfd) is None
        os.close(pidfd)
