"""`agentctl top --once` and `agentctl tree`, letter by letter, on terminals of several widths; and when top refuses."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from agent_os.cli.main import main
from agent_os.cli.members import in_tree
from agent_os.cli.top import picture
from agent_os.cli.tree import drawn
from cli.desk import AGENTCTL, SECONDS
from cli.test_glance import Glance, glance
from cli.test_members import declared, process

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]

TESTS = Path(__file__).resolve().parent.parent


def fleet() -> Glance:
    below = {"parent": "default/observatory"}
    records = [
        declared("observatory", role="supervisor"),
        declared("clock", role="service", consecutive=1, **below),
        declared("tally", ready=False, needs=["default/clock"], **below),
        declared("flaky", "failed", why="max_restarts", consecutive=2, max_restarts=2),
        declared("nightly", "completed", activation="on_schedule"),
    ]
    clock = process("clock", command=["python3", "clock.py", "--verbose", "--loudly"])
    tally = process("tally", memory=42_000_000, pid=4712, age=4000.0)
    return glance(records, [clock, tally, process("plain", level="S1", isolation="S1")])


WIDE = """\
kernel 0.1.0  pid 4121  up 2h  12,345 entries  load 0.50  isolation S1–S3
agents 6: 4 running, 1 completed, 1 failed   42.0 MB in 3 processes

NAME         ROLE        STATE      ISO  PARENT       PID   AGE  MEMORY   RESTARTS  NOW
flaky        worker      failed     -    root         -     -    -        2/2       max_restarts
nightly      worker      completed  -    root         -     -    -        0/5       waits for its time
clock        service     running    S3   observatory  4711  2s   1.0 kB   1/5       python3 clock.py --verbose --loudly
observatory  supervisor  running    -    root         -     -    -        0/5       -
plain        worker      running    S1   root         4711  2s   1.0 kB   -         sleep 9
tally        worker      running    S3   observatory  4712  1h   42.0 MB  0/5       not ready: needs clock
"""
USUAL = """\
kernel 0.1.0  pid 4121  up 2h  12,345 entries  load 0.50  isolation S1–S3
agents 6: 4 running, 1 completed, 1 failed   42.0 MB in 3 processes

NAME         ROLE        STATE      AGE  MEMORY   RESTARTS  NOW
flaky        worker      failed     -    -        2/2       max_restarts
nightly      worker      completed  -    -        0/5       waits for its time
clock        service     running    2s   1.0 kB   1/5       python3 clock.py --…
observatory  supervisor  running    -    -        0/5       -
plain        worker      running    2s   1.0 kB   -         sleep 9
tally        worker      running    1h   42.0 MB  0/5       not ready: needs cl…
"""
NARROW = """\
kernel 0.1.0  pid 4121  up 2h  12,345 entries  load 0.50  i…
agents 6: 4 running, 1 completed, 1 failed   42.0 MB in 3 p…

NAME         STATE      AGE  RESTARTS  NOW
flaky        failed     -    2/2       max_restarts
nightly      completed  -    0/5       waits for its time
clock        running    2s   1/5       python3 clock.py --v…
observatory  running    -    0/5       -
plain        running    2s   -         sleep 9
tally        running    1h   0/5       not ready: needs clo…
"""
TREE = """\
NAME           ROLE        STATE      AGE  MEMORY   RESTARTS  NOW
root           root        running    -    -        -         -
├ observatory  supervisor  running    -    -        0/5       -
│ ├ clock      service     running    2s   1.0 kB   1/5       python3 clock.py …
│ └ tally      worker      running    1h   42.0 MB  0/5       not ready: needs …
├ flaky        worker      failed     -    -        2/2       max_restarts
├ nightly      worker      completed  -    -        0/5       waits for its time
└ plain        worker      running    2s   1.0 kB   -         sleep 9
"""
NARROW_TREE = """\
NAME           STATE      AGE  RESTARTS  NOW
root           running    -    -         -
├ observatory  running    -    0/5       -
│ ├ clock      running    2s   1/5       python3 clock.py -…
│ └ tally      running    1h   0/5       not ready: needs c…
├ flaky        failed     -    2/2       max_restarts
├ nightly      completed  -    0/5       waits for its time
└ plain        running    2s   -         sleep 9
"""


def once() -> str:
    return picture(fleet(), "state")


def tree() -> str:
    return drawn(list(in_tree(fleet().rows)))


def on_terminal(what: str, columns: int, **env: str) -> str:
    """What a function of this file says on a terminal of that width."""
    ours, theirs = pty.openpty()
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\nfrom cli.test_top import *\nprint({what}())"
    clean = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    words = {**clean, "COLUMNS": str(columns), "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **env}
    with subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, env=words) as process:
        assert process.wait(SECONDS) == 0
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 65536):
            said += piece
    except OSError:  # the other end is closed, and all is read
        pass
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("what", "columns", "said"),
    [
        ("once", 140, WIDE),
        ("once", 200, WIDE),
        ("once", 80, USUAL),
        ("once", 60, NARROW),
        ("tree", 80, TREE),
        ("tree", 60, NARROW_TREE),
    ],
)
def test_a_picture_letter_by_letter(what: str, columns: int, said: str) -> None:
    assert on_terminal(what, columns, NO_COLOR="1") == said


def test_only_states_have_colours_and_a_name_that_is_a_state_has_none() -> None:
    told = on_terminal("once", 140)
    assert "\x1b[31mfailed\x1b[0m" in told
    assert told.count("\x1b[32mrunning\x1b[0m") == 4
    named = picture(glance([declared("failed", "failed")]), "name")
    assert named.splitlines()[-1].split()[:3] == ["failed", "worker", "failed"]


def test_without_a_terminal_nothing_is_cut_and_everybody_is_there() -> None:
    many = picture(glance([declared(f"a{number:03}") for number in range(200)]), "name")
    assert len(many.splitlines()) == 204
    assert "\x1b" not in many
    assert once() == WIDE.rstrip("\n")


def test_nobody_and_nobody_like_that() -> None:
    assert picture(glance([]), "state").endswith("\n\nno agent yet: agentctl run -- CMD, agentctl apply -f DIR")
    assert picture(fleet(), "state", "nosuch").endswith("\n\nnone of 6 is like that")


def test_what_an_agent_chose_cannot_steer_the_terminal() -> None:
    told = picture(glance([], [process("a", command=["\x1b[2J\n", "x\u202ey"])]), "state")
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert len(told.splitlines()) == 5


def test_without_a_kernel_it_says_so_and_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AGENT_OS_HOME", str(tmp_path / "home"))
    assert main(["top", "--once"]) == 0
    assert "no kernel is running" in capsys.readouterr().out
    assert main(["top", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"api": "v1", "kernel": None, "agents": []}
    assert not (tmp_path / "home").exists()


def test_without_a_terminal_it_needs_once() -> None:
    ran = subprocess.run([*AGENTCTL, "top"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "agentctl: top needs a terminal to draw on\n  try: agentctl top --once\n"


WITHOUT_TEXTUAL = """
import sys
sys.modules["textual"] = None
from agent_os.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_without_textual_once_works_and_live_says_what_to_install(tmp_path: Path) -> None:
    env = {**os.environ, "AGENT_OS_HOME": str(tmp_path / "home"), "NO_COLOR": "1"}
    command = [sys.executable, "-c", WITHOUT_TEXTUAL, "top"]
    plain = subprocess.run([*command, "--once"], env=env, capture_output=True, text=True, timeout=SECONDS)
    assert (plain.returncode, plain.stdout[:20]) == (0, "no kernel is running")
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as live:
        assert live.wait(SECONDS) == 2
    said = os.read(ours, 4096).decode()
    assert said.splitlines() == [
        "agentctl: top needs textual: pip install 'agent-os[tui]'; agentctl top --once does without"
    ]


@pytest.mark.parametrize("words", [["top", "--once"], ["top", "--json"], ["top", "--help"]])
def test_one_picture_loads_no_drawing_library(words: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "agent_os.cli.main", *words]
    env = {**os.environ, "AGENT_OS_HOME": str(tmp_path / "home")}
    trace = subprocess.run(command, env=env, capture_output=True, text=True, timeout=SECONDS, check=True).stderr
    loaded = {line.rpartition("|")[2].strip().split(".")[0] for line in trace.splitlines()}
    assert "agent_os" in loaded
    assert not loaded & {"textual", "rich"}
