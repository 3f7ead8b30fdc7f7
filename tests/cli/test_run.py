"""`agentctl run` from outside: how a run ends, and who ends it."""

import signal
from pathlib import Path

import pytest

import leftovers
from cli.reading import lines_of
from guests.agentctl import SECONDS, Machine

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


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
    machine.nothing_is_left(others)


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
    machine.nothing_is_left(others)


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
    machine.nothing_is_left(others)


def test_somebody_in_a_hurry_need_not_read_what_the_guest_wrote(machine: Machine) -> None:
    """Two signals end agentctl although nobody takes its output."""
    with machine.start("yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        for number in (signal.SIGTERM, signal.SIGINT):  # of two alike, one may be lost in the other
            process.send_signal(number)
        assert process.wait(timeout=SECONDS) == 130
