"""Attempts to use up what Linux counts for a whole user: without root, agents share these numbers with the operator.

The control of each: two programs of one user, without anything between them, where the first leaves the second none.
"""

import errno
import subprocess
from pathlib import Path

import pytest

from guests.agentctl import Machine
from hostile import ordinary
from hostile.report import note

pytestmark = pytest.mark.hostile


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


# The first program takes what it can and goes on, the second wants one; both are of one user. What each of them says.
BESIDE = """
import subprocess, sys
greedy = subprocess.Popen([sys.executable, "-Ic", sys.argv[1]], stdout=subprocess.PIPE)
print(int(greedy.stdout.readline()), flush=True)
subprocess.run([sys.executable, "-Ic", sys.argv[2]])
greedy.kill()
greedy.wait()
"""
SIXTEEN = """
with open("/proc/sys/user/max_inotify_instances", "w") as file:
    file.write("16")
"""


def _bounded(limit: str, value: int) -> str:
    return f"import resource; resource.setrlimit(resource.RLIMIT_{limit}, ({value}, {value}))\n"


WATCHES = """
import ctypes, time
libc, count = ctypes.CDLL(None), 0
while libc.inotify_init() >= 0:
    count += 1
print(count, flush=True)
time.sleep(20)
"""


def test_115_an_agent_does_not_take_all_of_the_operators_watches(machine: Machine) -> None:
    """Linux counts them for each user; without root an agent is the operator's user."""
    running = machine.start(ordinary.python(), "-Ic", WATCHES, flags=["-q"])
    assert running.stdout is not None
    taken = int(running.stdout.readline())
    probe = "import ctypes; print(ctypes.CDLL(None).inotify_init())"
    left = subprocess.run([ordinary.python(), "-Ic", probe], capture_output=True, text=True).stdout.strip()
    running.terminate()
    running.communicate(timeout=30)
    assert taken > 8  # it took what it could get
    assert left != "-1"
    # the control: where a user has 16, and nobody keeps half of them back
    assert ordinary.run(ordinary.IN_BOX + SIXTEEN + BESIDE, WATCHES, probe).split() == ["16", "-1"]
    note("115", f"all of the operator's inotify instances; {taken} were to be had")


IN_FLIGHT = """
import os, socket, time
null, held, sent = os.open("/dev/null", os.O_RDONLY), [], 0
try:
    while sent < 20000:
        one, other = socket.socketpair()
        held += [one, other]
        one.setblocking(False)
        try:
            while True:
                socket.send_fds(one, [b"x"], [null] * 200)
                sent += 200
        except BlockingIOError:
            pass
except OSError:
    pass
print(sent, flush=True)
time.sleep(20)
"""
QUEUED = """
import ctypes, os, signal, time
libc, sent = ctypes.CDLL(None), 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
while sent < 200000 and libc.sigqueue(os.getpid(), signal.SIGRTMIN + 1, None) == 0:
    sent += 1
print(sent, flush=True)
time.sleep(20)
"""
SEND = """
import os, socket
one, other = socket.socketpair()
try:
    socket.send_fds(one, [b"x"], [one.fileno()])
    print(0)
except OSError as problem:
    print(problem.errno)
"""
TIMER = "import ctypes; t = ctypes.c_void_p(); print(ctypes.CDLL('librt.so.1').timer_create(1, None, ctypes.byref(t)))"


def test_116_descriptors_in_flight_do_not_stop_other_agents(machine: Machine) -> None:
    running = machine.start(ordinary.python(), "-Ic", IN_FLIGHT, flags=["-q"])
    assert running.stdout is not None
    sent = int(running.stdout.readline())
    command = machine.command("echo", "here", flags=["-q"])
    other = subprocess.run(command, env=machine.environment(), cwd=machine.project, capture_output=True)
    running.terminate()
    running.communicate(timeout=30)
    assert sent > 100  # they are in flight
    assert other.stdout == b"here\n", other.stderr
    # the control: where the others have no higher limit than the one who sends
    assert ordinary.run(_bounded("NOFILE", 300) + BESIDE, IN_FLIGHT, SEND).split()[-1] == str(errno.ETOOMANYREFS)
    note("116", f"{sent} descriptors in flight; another agent starts")


def test_117_queued_signals_do_not_use_up_the_operators(machine: Machine) -> None:
    running = machine.start(ordinary.python(), "-Ic", QUEUED, flags=["-q"])
    assert running.stdout is not None
    sent = int(running.stdout.readline())
    timer = subprocess.run([ordinary.python(), "-Ic", TIMER], capture_output=True, text=True).stdout.strip()
    running.terminate()
    running.communicate(timeout=30)
    assert sent > 100  # they are queued
    assert timer == "0"
    # the control: where the others have no higher limit than the one who queues
    assert ordinary.run(_bounded("SIGPENDING", 300) + BESIDE, QUEUED, TIMER).split()[-1] == "-1"
    note("117", f"{sent} queued signals; the operator still has timers")
