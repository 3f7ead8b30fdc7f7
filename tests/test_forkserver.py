"""What the fork server copies is imports and nothing else, and a copy is what an exec would have made."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

import forkserver
from cli.desk import Desk

_REASON = "a copy has the user of its template, whoever that is"
pytestmark = [pytest.mark.integration, pytest.mark.true_start, pytest.mark.uid_free(_REASON)]

# Before everything is loaded: whoever asks who and where we are, or for a variable, is written down.
_WATCH = """
import gc, os, socket, sys
sys.path.insert(0, sys.argv[1])
import forkserver

asked = set()

def watch(name):
    real = getattr(os, name)
    def ask(*args):
        asked.add(name)
        return real(*args)
    setattr(os, name, ask)

for name in "getuid geteuid getgid getegid getgroups getcwd getlogin umask".split():
    watch(name)
real = type(os.environ).__getitem__

def look_up(self, name):
    if not name.startswith(forkserver.START_UP):
        asked.add(f"the variable {name}")
    return real(self, name)

type(os.environ).__getitem__ = look_up
"""
_TELL = """
forkserver.load()
import apsw, asyncio
print(*asked, sep="\\n")
print(*(f"a {type(one).__name__}" for one in gc.get_objects()
        if isinstance(one, (socket.socket, asyncio.AbstractEventLoop, asyncio.Future))), sep="\\n")
print(*("a connection of SQLite" for one in apsw.connections()), sep="\\n")
print(*forkserver.surplus(), sep="\\n")
"""
# `sysconfig` looks for itself and for packages of the user, whose home is HOME or what the user id says; nobody of ours
# asks it for either.
_HARMLESS = {"the variable HOME", "the variable _PYTHON_PROJECT_BASE", "the variable _PYTHON_SYSCONFIGDATA_NAME"}
_MORE = {
    "os.getuid()": "getuid",
    "os.getcwd()": "getcwd",
    "os.environ.get('AGENT_OS_HOME')": "the variable AGENT_OS_HOME",
    "list(os.environ.items())": "the variable PATH",
    "import threading, time; threading.Thread(target=time.sleep, args=[60], daemon=True, name='more').start()": "more",
    "kept = socket.socket()": "a socket",
    "import asyncio; kept = asyncio.new_event_loop()": "a _UnixSelectorEventLoop",
    "import apsw; kept = apsw.Connection(':memory:')": "a connection of SQLite",
    "kept = open('/etc/hostname')": "descriptor 3: /etc/hostname",
    "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)": "handler of 10",
}


def found(more: str) -> set[str]:
    script, tests = f"{_WATCH}\n{more}\n{_TELL}", Path(forkserver.__file__).parent
    env = forkserver.start_up_of(os.environ) | {"PATH": os.defpath, "HOME": "/"}
    done = subprocess.run([sys.executable, "-P", "-c", script, tests], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return set(filter(None, done.stdout.splitlines()))


def test_what_is_copied_has_only_imports() -> None:
    assert found("") - _HARMLESS == set()


def test_anything_more_would_be_seen() -> None:
    """The control."""
    missed = [code for code, seen in _MORE.items() if seen not in found(code)]
    assert missed == []


def test_a_template_that_is_more_than_imports_does_not_start(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(Path(forkserver.__file__).parent)!r})\n"
        "import forkserver, socket; kept = socket.socket(); forkserver.main(sys.argv[1])"
    )
    command = [sys.executable, "-P", "-c", script, tmp_path / "s"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 1
    assert "more than imports: descriptor 3: socket:" in done.stderr


def facts(pid: int) -> dict[str, object]:
    """What a kernel is to others, without what differs between any two."""
    place = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (place / "status").read_text().splitlines())
    stat = (place / "stat").read_text().rpartition(")")[2].split()
    return {
        "words": (place / "cmdline").read_bytes().split(b"\0"),
        "variables": sorted((place / "environ").read_bytes().split(b"\0")),
        "directory": os.readlink(place / "cwd"),
        "limits": (place / "limits").read_text(),
        "name": status["Name"],
        "uid and groups": [status[name] for name in ("Uid", "Gid", "Groups")],
        "umask": status["Umask"],
        "signals": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt")],
        "capabilities": [status[name] for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp")],
        "leads its session": [stat[2] == str(pid), stat[3] == str(pid)],
        "kinds of descriptors": set(descriptors(place)),  # how many of each kind, changes with what it does
    }


def descriptors(place: Path) -> Iterator[str]:
    for one in (place / "fd").iterdir():
        with suppress(FileNotFoundError):
            target = os.readlink(one)
            yield "a file of its home" if "/home/" in target else target.split(":")[0]


def test_a_forked_kernel_is_to_others_what_an_executed_one_is(tmp_path: Path) -> None:
    seen = []
    desk = Desk(tmp_path)
    for way in (forkserver.used(), nullcontext()):
        with way:
            desk.up()
            seen.append(facts(desk.good("status", "--json").json["pid"]))
            desk.down()
    assert seen[0] == seen[1]


def test_it_was_forked(tmp_path: Path) -> None:
    """The control of the test before: of the two, one has the template's code in its memory."""
    desk = Desk(tmp_path)
    with forkserver.used():
        desk.up()
    pid = desk.good("status", "--json").json["pid"]
    parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    assert parent in forkserver.server.processes()
    desk.down()
