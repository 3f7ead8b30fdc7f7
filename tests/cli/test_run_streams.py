"""What `agentctl run` carries between a guest and whoever started it: input, output, a terminal."""

import contextlib
import hashlib
import os
import pty
import signal
import subprocess
from pathlib import Path

import pytest

import leftovers
from cli.reading import lines_of
from guests.agentctl import SECONDS, Machine

pytestmark = pytest.mark.integration


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


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
        machine.nothing_is_left(others)


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
    machine.nothing_is_left(others)


def test_a_full_disk_behind_our_output_ends_the_guest_and_not_us(machine: Machine) -> None:
    others = set(leftovers.processes())
    with open("/dev/full", "wb") as full, machine.start("yes", stdout=full) as process:
        _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 128 + signal.SIGPIPE, err
    assert b"agentctl: its output could not be written: No space left on device\n" in err
    assert b"Traceback" not in err
    machine.nothing_is_left(others)


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
    machine.nothing_is_left(others)
    return code, shown.replace(b"\r\n", b"\n")
