"""Attempts on the operator's terminal by a guest that has one of its own: keys typed, sequences, other devices.

Through the real product: `agentctl run` at a pseudo-terminal whose other end we read. The control of each is the same
program at the same kind of terminal without agentctl.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from guests.agentctl import Machine
from hostile.report import note

pytestmark = pytest.mark.hostile
SECONDS = 120.0
_TIOCGEXCL = 0x80045440

# What must never reach a terminal from a guest: its name, and bytes that would show that it did.
SEQUENCES = {
    "title": b"\x1b]0;battery\x07",
    "title, ended by ST": b"\x1b]2;battery\x1b\\",
    "clipboard": b"\x1b]52;c;YmF0dGVyeQ==\x07",
    "link": b"\x1b]8;;file:///battery\x07",
    "working directory": b"\x1b]7;file://battery/\x07",
    "palette": b"\x1b]4;1;?\x07",
    "notification": b"\x1b]777;notify;battery;x\x07",
    "title report": b"\x1b[21t",
    "window moved": b"\x1b[3;0;0t",
    "window minimised": b"\x1b[2t",
    "device control": b"\x1bP$qbattery\x1b\\",
    "application command": b"\x1b_battery\x1b\\",
    "privacy message": b"\x1b^battery\x1b\\",
    "start of string": b"\x1bXbattery\x1b\\",
    "screen's title": b"\x1bkbattery\x1b\\",
    "printer on": b"\x1b[5i",
    "answerback": b"\x05",
    "terminal's version": b"\x1b[>0q",
    "third attributes": b"\x1b[=c",
    "mode request": b"\x1b[?1$p",
    "keyboard query": b"\x1b[?u",
    "function keys": b"\x1bP1;1|17/41\x1b\\",
    "8-bit string": "\x9d0;battery\x9c".encode(),
    "8-bit control": "\x9b21t".encode(),
    "cut by a bell": b"\x1b\x07]0;battery\x07",
    "nested": b"\x1b]0;a\x1b]0;battery\x07\x07",
    "cancelled": b"\x1b]0;a\x18\x1b]0;battery\x07",
    "character set": b"\x1b%@",
    "unending": b"\x1b]0;" + b"battery" * 800 + b"\x07",
}
_INTRODUCERS = re.compile(rb"\x1b[\]PX^_k%]|\x1b\[[0-9;]*[ti]|\x1b\[[>=?][0-9;]*[$]?[qpu]|\x1b\[=|\x05|\xc2[\x80-\x9f]")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@contextlib.contextmanager
def at_terminal(command: list[str], **options: object) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """A command whose terminal is ours: the process, our end, and the device's path."""
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs)
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        **options,  # type: ignore[call-overload]
    ) as process:
        os.close(theirs)
        try:
            yield process, ours, name
        finally:
            process.kill()
            os.close(ours)


def screen_of(command: list[str], typed: bytes = b"", **options: object) -> bytes:
    """Everything that a command wrote to its terminal until its end."""
    with at_terminal(command, **options) as (process, ours, _):
        os.write(ours, typed)
        shown, deadline = b"", time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            ended = process.poll() is not None
            while select.select([ours], [], [], 0 if ended else 0.05)[0]:
                try:
                    data = os.read(ours, 65536)
                except OSError:  # nobody has it open any more
                    return shown
                shown += data
            if ended:
                return shown
    raise AssertionError(f"no end within {SECONDS:.0f} s: {shown!r}")


def inside(machine: Machine, script: str, *words: str, flags: tuple[str, ...] = ()) -> bytes:
    command = machine.command("python3", "-Ic", script, *words, flags=["-q", *flags])
    return screen_of(command, cwd=machine.project, env=machine.environment(TERM="xterm-256color"))


def outside(script: str, *words: str) -> bytes:
    return screen_of([sys.executable, "-Ic", script, *words], env={"TERM": "xterm-256color"})


def answer(shown: bytes) -> dict[str, object]:
    """The one JSON object that a script printed."""
    return json.loads(re.findall(rb"\{.*\}", shown)[-1])


TYPE = """
import fcntl, json, os, select, sys, termios, tty
said = {}
tty.setcbreak(0)
for name, request, argument in (("TIOCSTI", 0x5412, b"z"), ("TIOCLINUX", 0x541C, bytes([3])), ("TIOCCONS", 0x541D, 0)):
    try:
        fcntl.ioctl(0, request, argument)
        said[name] = "typed" if name == "TIOCSTI" and select.select([0], [], [], 1)[0] else "done"
    except OSError as problem:
        said[name] = problem.errno
print(json.dumps(said))
"""


def test_62_63_nothing_is_typed_into_a_terminal(machine: Machine) -> None:
    switched_off = Path("/proc/sys/dev/tty/legacy_tiocsti")
    if switched_off.exists() and switched_off.read_text().strip() == "0":
        pytest.skip("tiocsti: switched off on this host (dev.tty.legacy_tiocsti)")
    assert answer(outside(TYPE))["TIOCSTI"] == "typed"  # the control
    assert answer(inside(machine, TYPE)) == {"TIOCSTI": 1, "TIOCLINUX": 1, "TIOCCONS": 1}
    note("62b", "TIOCSTI, TIOCLINUX and TIOCCONS at a terminal of one's own")


WRITE = "import os, sys; os.write(1, b'[' + bytes.fromhex(sys.argv[1]) + b']end\\n')"


@pytest.mark.parametrize("terminal", ["terminal", "streams"])
def test_63_no_sequence_reaches_the_operators_terminal(machine: Machine, terminal: str) -> None:
    every = b"".join(SEQUENCES.values())
    flags = ("-T",) if terminal == "streams" else ()
    shown = inside(machine, WRITE, every.hex(), flags=flags)
    assert b"]end" in shown
    body = shown.split(b"]end")[0]
    assert not _INTRODUCERS.search(body), _INTRODUCERS.findall(body)
    assert len(_INTRODUCERS.findall(outside(WRITE, every.hex()))) > len(SEQUENCES)  # the control
    note("63b", f"{len(SEQUENCES)} sequences to the operator's terminal, by {terminal}")


PIECES = """
import os, sys, time
for byte in bytes.fromhex(sys.argv[1]):
    os.write(1, bytes([byte]))
    time.sleep(0.0005)
print("end")
"""


def test_63_no_sequence_gets_through_in_pieces(machine: Machine) -> None:
    chosen = b"x".join(SEQUENCES[name] for name in ("title", "clipboard", "device control", "8-bit string", "nested"))
    shown = inside(machine, PIECES, chosen.hex())
    assert b"end" in shown
    assert not _INTRODUCERS.search(shown.split(b"end")[0])
    assert _INTRODUCERS.search(outside(PIECES, chosen.hex()))  # the control: the terminal puts the pieces together,
    piecemeal = b"".join(_INTRODUCERS.sub(b"", bytes([byte])) for byte in chosen)
    assert len(_INTRODUCERS.findall(piecemeal)) > 5  # and who looks at each piece alone takes nothing out
    note("63c", "sequences to the operator's terminal, byte by byte")


STEAL = """
import fcntl, glob, json, os, sys, termios
mark, said = b"\\x1b]0;stolen\\x07", {}
places = [sys.argv[1], "/dev/tty", "/dev/console", "/dev/tty0", "/dev/ptmx", *sorted(glob.glob("/dev/pts/*"))]
places += [f"/proc/{pid}/fd/{fd}" for pid in (1, os.getppid()) for fd in (0, 1, 2)]
for place in places:
    try:
        fd = os.open(place, os.O_RDWR | os.O_NOCTTY)
        said[place] = "opened"
        os.write(fd, mark)
        fcntl.ioctl(fd, termios.TIOCSCTTY, 1)
        said[place] = "taken"
    except OSError as problem:
        said.setdefault(place, problem.errno)
said["devpts"] = os.stat("/dev/pts").st_dev
print(json.dumps(said))
"""


def test_63_no_other_terminal_is_reached(machine: Machine) -> None:
    """The operator's second window: its path is known, and nothing may be written to it or taken from it."""
    with at_terminal(["sleep", "60"]) as (_, screen, path):
        assert answer(outside(STEAL, path))[path] == "opened"  # the control
        assert b"stolen" in os.read(screen, 999)
        said = answer(inside(machine, STEAL, path))
        assert not select.select([screen], [], [], 0.2)[0]
    assert said["devpts"] != os.stat("/dev/pts").st_dev
    assert [place for place in ("/dev/console", "/dev/tty0") if said[place] in ("opened", "taken")] == []
    # /dev/tty, a new terminal and /dev/pts/N are the guest's own: what it writes there goes through the tamer
    note("63d", "terminals of the host: by path, /dev/tty, console, ptmx, descriptors of others")


HANG = """
import fcntl, os, signal, struct, termios
for number in (signal.SIGHUP, signal.SIGCONT, signal.SIGTTOU):
    signal.signal(number, signal.SIG_IGN)
settings = termios.tcgetattr(0)
settings[0] = settings[1] = settings[2] = settings[3] = 0
termios.tcsetattr(0, termios.TCSANOW, settings)
fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", 1, 1, 0, 0))
fcntl.ioctl(0, termios.TIOCEXCL)
os.write(1, b"\\x1b[?1049h\\x1b[?25l\\x1b[?1003h\\x1b[?5h\\x1b(0")
"""


def test_63_settings_of_the_operators_terminal_stay(machine: Machine) -> None:
    command = machine.command("python3", "-Ic", HANG, flags=["-q"])
    before, after = _settings_around(
        command, cwd=machine.project, env=machine.environment(TERM="xterm-256color"), start_new_session=True
    )
    assert after == before
    before, after = _settings_around([sys.executable, "-Ic", HANG], start_new_session=True)
    assert [old for old, new in zip(before, after, strict=True) if old == new] == []  # the control: all are others
    note("63e", "settings, size and exclusiveness of the operator's terminal")


def _settings_around(command: list[str], **given: Any) -> tuple[tuple[object, ...], tuple[object, ...]]:
    """Settings, size and exclusiveness of a terminal, before and after a command had it."""
    ours, theirs = pty.openpty()

    def settings() -> tuple[object, ...]:
        size, exclusive = (fcntl.ioctl(theirs, request, bytes(8)) for request in (termios.TIOCGWINSZ, _TIOCGEXCL))
        return termios.tcgetattr(theirs), size, exclusive

    before = settings()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, **given) as run:
        deadline = time.monotonic() + SECONDS
        while run.poll() is None and time.monotonic() < deadline:
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 65536)
    assert run.returncode == 0
    after = settings()
    os.close(ours)
    os.close(theirs)
    return before, after


QUESTIONS = """
import os, time, tty
tty.setraw(0)
for _ in range(400):
    os.write(1, b"\\x1b[6n" * 100)
time.sleep(60)
"""


def test_63_a_flood_of_questions_to_the_terminal_does_not_lock_the_operator_out(machine: Machine) -> None:
    """The terminal answers each by typing; the guest never reads. Whoever passes keys on must not wait for it."""
    command = machine.command("python3", "-Ic", QUESTIONS, flags=["-q"])
    given = {"cwd": machine.project, "env": machine.environment(TERM="xterm-256color")}
    with at_terminal(command, **given) as (process, screen, _):
        os.set_blocking(screen, False)
        asked, deadline = 0, time.monotonic() + SECONDS
        while asked <= 1000 and time.monotonic() < deadline:
            asked += _answer_all(screen, seconds=1)
        assert asked > 1000  # the control: the questions do arrive
        process.terminate()
        _answer_all(screen, seconds=1)
        process.terminate()
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            _answer_all(screen, seconds=0.1)
        assert process.poll() is not None, "agentctl waits for a guest that is gone"
    ours, theirs = pty.openpty()  # the control: who types on until everything is taken waits for ever
    tty.setraw(theirs)
    os.set_blocking(ours, False)
    with pytest.raises(BlockingIOError):
        _ = [os.write(ours, b"\x1b[24;80R") for _ in range(asked)]
    os.close(ours)
    os.close(theirs)
    note("63f", "a flood of questions to the operator's terminal")


def _answer_all(screen: int, seconds: float) -> int:
    """Be a terminal for a while: read, and type an answer to every question. How many there were."""
    asked, waiting, deadline = 0, b"", time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # nothing to read, no room to type, or nobody there any more
            shown = os.read(screen, 65536)
            asked += shown.count(b"\x1b[6n")
            waiting += b"\x1b[24;80R" * shown.count(b"\x1b[6n")
        with contextlib.suppress(OSError):
            waiting = waiting[os.write(screen, waiting[:1024]) :] if waiting else b""
        select.select([screen], [], [], 0.01)
    return asked
