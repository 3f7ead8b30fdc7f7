"""`agentctl run` at a terminal: the guest has one of its own, and the operator's comes back as it was."""

import contextlib
import fcntl
import os
import pty
import select
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from guests.agentctl import Machine

pytestmark = pytest.mark.integration
SECONDS = 120.0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class Operator:
    """Somebody at a terminal: types, reads the screen, changes the window's size."""

    def __init__(self, machine: Machine, *command: str, flags: tuple[str, ...] = ("-q",)) -> None:
        self.keyboard, inner = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(inner)
        self.screen = b""
        self.process: subprocess.Popen[bytes] = machine.start(
            *command,
            flags=list(flags),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env=machine.environment(TERM="xterm-256color"),
        )
        self._inner = inner  # held open, so that its settings can be read at the end

    def type(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def sees(self, text: str, count: int = 1) -> None:
        """Wait until a text has been on the screen so many times."""
        deadline = time.monotonic() + SECONDS
        while self.screen.count(text.encode()) < count:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self.keyboard], [], [], max(left, 0))
            assert ready, f"{text!r} did not appear; the screen got {self.screen!r}"
            self.screen += os.read(self.keyboard, 65536)

    def insists(self, keys: str, text: str) -> None:
        """Type it, and see whatever comes until nothing does for a second; again, until a text is on the screen."""
        deadline = time.monotonic() + SECONDS
        while text.encode() not in self.screen:
            assert time.monotonic() < deadline, f"{text!r} did not appear; the screen got {self.screen!r}"
            self.type(keys)
            while select.select([self.keyboard], [], [], 1)[0]:
                self.screen += os.read(self.keyboard, 65536)

    def ends(self) -> int:
        """The exit code; the terminal must be as it was."""
        deadline = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end; the screen got {self.screen!r}"
            ready, _, _ = select.select([self.keyboard], [], [], 0.05)
            if ready:
                self.screen += os.read(self.keyboard, 65536)
        while select.select([self.keyboard], [], [], 0)[0]:
            self.screen += os.read(self.keyboard, 65536)
        assert termios.tcgetattr(self._inner) == self.before
        return self.process.returncode


@contextlib.contextmanager
def operator(machine: Machine, *command: str, flags: tuple[str, ...] = ("-q",)) -> Iterator[Operator]:
    somebody = Operator(machine, *command, flags=flags)
    try:
        yield somebody
    finally:
        somebody.process.kill()
        somebody.process.wait()
        os.close(somebody.keyboard)
        os.close(somebody._inner)


def shell(machine: Machine) -> contextlib.AbstractContextManager[Operator]:
    return operator(machine, "bash", "--norc", "--noprofile", "-i")


def test_a_shell_is_interactive(machine: Machine) -> None:
    with shell(machine) as somebody:
        somebody.type("tty; stty size; echo $(( 6 * 7 ))\n")
        somebody.sees("/dev/pts/0")
        somebody.sees("30 100")
        somebody.sees("42")
        somebody.type("exit 7\n")
        assert somebody.ends() == 7


def test_the_window_keeps_its_size(machine: Machine) -> None:
    with shell(machine) as somebody:
        # A shell that waits for a line hears of it with the next one, which may overtake the size.
        somebody.type("trap 'echo now $(stty size); exit' WINCH; echo set $((1+1)); while :; do read -t 0.1; done\n")
        somebody.sees("set 2")
        somebody.resize(40, 132)
        somebody.sees("now 40 132")
        assert somebody.ends() == 0


def test_jobs_stop_and_go_on(machine: Machine) -> None:
    with shell(machine) as somebody:
        # exec: a shell that stops in the middle of starting a program is never seen to have stopped, at any terminal
        somebody.type("sh -c 'echo in front $((40 + 2)); exec sleep 600'\n")
        somebody.sees("in front 42")
        somebody.type("\x1a")
        somebody.sees("Stopped")
        # A shell does not leave a job that may be stopped, and learns of its end a moment later.
        somebody.type("kill -9 %1; while jobs -s | grep -q .; do sleep 0.05; done; echo over $((1+1))\n")
        somebody.sees("over 2")
        somebody.type("exit\n")
        assert somebody.ends() == 0


def test_ctrl_c_is_the_programs_and_a_shell_outlives_many(machine: Machine) -> None:
    with shell(machine) as somebody:
        somebody.type("echo ready $((1+1))\n")
        somebody.sees("ready 2")
        somebody.sees("$ ", 2)
        for count in range(1, 5):
            somebody.type("\x03")
            somebody.sees("^C", count)
            # What is typed before the shell asks again, it throws away; of its asking the screen does not always tell.
            somebody.insists(f"echo after {count}$((0))\n", f"after {count}0")
        somebody.type("exit 3\n")
        assert somebody.ends() == 3


def test_a_program_that_does_not_react_to_ctrl_c_is_killed_by_the_second(machine: Machine) -> None:
    with operator(machine, "sh", "-c", "trap '' INT TERM; echo deaf; sleep 600; sleep 600") as somebody:
        somebody.sees("deaf")
        somebody.type("\x03")
        somebody.sees("^C")
        assert somebody.process.poll() is None
        somebody.type("\x03")
        assert somebody.ends() == 130


def test_a_signal_to_agentctl_asks_then_kills_on_a_terminal_too(machine: Machine) -> None:
    with operator(machine, "sh", "-c", "trap 'echo asked' TERM; echo up; while :; do sleep 0.1; done") as somebody:
        somebody.sees("up")
        somebody.process.send_signal(signal.SIGTERM)
        somebody.sees("asked")
        somebody.process.send_signal(signal.SIGTERM)
        assert somebody.ends() == 130


@pytest.mark.skipif(not shutil.which("vim"), reason="vim: not installed")
def test_vim_edits_a_file(machine: Machine) -> None:
    (machine.project / "note.txt").write_text("old line\n")
    with operator(machine, "vim", "-u", "NONE", "note.txt", flags=("-q", "--commit")) as somebody:
        somebody.sees("old line")
        somebody.type("Onew line\x1b:wq\r")
        assert somebody.ends() == 0
    assert (machine.project / "note.txt").read_text() == "new line\nold line\n"


@pytest.mark.skipif(not shutil.which("htop"), reason="htop: not installed")
def test_htop_shows_the_guests_own_processes(machine: Machine) -> None:
    with operator(machine, "htop") as somebody:
        somebody.sees("Tasks")
        somebody.sees("agent")
        somebody.type("q")
        assert somebody.ends() == 0


def test_no_escape_trick_reaches_the_terminal(machine: Machine) -> None:
    tricks = r"\033]52;c;cHduZWQ=\007\033]0;title\007\033[21t\033P$qm\033\\\005\033[31mred\033[5;5Hthere\033[0m"
    with operator(machine, "printf", tricks + " end") as somebody:
        somebody.sees("end")
        assert somebody.ends() == 0
        for trick in (b"\x1b]", b"21t", b"\x1bP", b"\x05"):
            assert trick not in somebody.screen
        assert b"\x1b[31mred\x1b[5;5Hthere" in somebody.screen


def test_what_a_program_leaves_behind_is_put_right(machine: Machine) -> None:
    with operator(machine, "printf", r"\033[?1049h\033[?25l\033[?1003h\033[?2004h") as somebody:
        assert somebody.ends() == 0
        for reset in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1003l", b"\x1b[?2004l"):
            assert reset in somebody.screen


def test_a_guest_cannot_type_into_a_terminal(machine: Machine) -> None:
    push = "import fcntl\ntry: fcntl.ioctl(0, 0x5412, b'x')\nexcept OSError as e: print('refused', e.errno)"
    with operator(machine, "python3", "-c", push) as somebody:
        somebody.sees("refused 1")
        assert somebody.ends() == 0


def test_the_hosts_terminals_are_not_there(machine: Machine) -> None:
    look = "ls -1 /dev/pts; readlink /proc/self/fd/0; ls /dev/console /dev/tty0 2>&1"
    with operator(machine, "sh", "-c", look) as somebody:
        somebody.sees("/dev/pts/0")
        assert somebody.ends() == 2
        assert b"0\r\nptmx\r\n" in somebody.screen


@pytest.mark.parametrize("flags", [("-q", "-T")])
def test_without_a_terminal_there_is_none(machine: Machine, flags: tuple[str, ...]) -> None:
    with operator(machine, "sh", "-c", "tty; echo code $?", flags=flags) as somebody:
        somebody.sees("not a tty")
        assert somebody.ends() == 0


def test_a_pipe_gets_plain_streams(machine: Machine) -> None:
    assert machine.run("sh", "-c", "tty; test -t 1 || echo plain").lines == ["not a tty", "plain"]
