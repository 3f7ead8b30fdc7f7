"""What agentctl prints, held against files: a fixed small fleet, every format, three widths of a terminal.

`AGENT_OS_GOLDEN=write` writes the files of `golden/` anew; then read the difference. What differs between machines
(times, numbers of processes, levels, paths) is put into one form first.
"""

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.desk import AGENTCTL, SECONDS, Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]

GOLDEN = Path(__file__).parent / "golden"
CLOCK = 'name = "clock"\nrole = "service"\n[program]\nargv = ["sleep", "1000"]\n[labels]\nteam = "time"\n'
READER = 'name = "reader"\nrole = "worker"\n[program]\nargv = ["sleep", "1000"]\n[dependencies]\nrequires = ["clock"]\n'
TEAM = 'name = "team"\nrole = "supervisor"\nagency = "role"\n[supervision]\nchildren = ["clock", "reader"]\n'
VERBS = {
    "ps": ["ps"],
    "tree": ["tree"],
    "tool-ls": ["tool", "ls"],
    "budget-ls": ["budget", "ls"],
    "model-ls": ["model", "ls"],
    "approvals": ["approvals"],
    "queue": ["queue"],
    "secrets-ls": ["secrets", "ls"],
    "bus-ls": ["bus", "ls"],
    "mcp-ls": ["mcp", "ls"],
    "history": ["history", "clock"],
    "config-view": ["config", "view"],
}
# What depends on the machine, or the moment.
VOLATILE = set("pid kernel age memory processes level isolation limits began_ns ready_ns number until where".split())
_SPACES = re.compile(r" {2,}")
_NUMBERS = [
    (re.compile(r"\b\d+\.\d+ [kMG]?B\b"), "SIZE"),
    (re.compile(r"\b\d{2}:\d{2}:\d{2}\b"), "TIME"),
    (re.compile(r"\b\d+\.\d\d s\b"), "SECONDS"),
    (re.compile(r"(?<=  )\d+[smhd](?=  )"), "AGE"),
    (re.compile(r"(?<=  )S[0-4](?=  )"), "ISO"),
    (re.compile(r"(?<=  )(v1|v2|rlimits)(?=  )"), "LIMITS"),
    (re.compile(r"(?<=  LIMITS  )\d+(?=  )"), "COUNT"),
    (re.compile(r"(?<=  )\d{2,7}(?=  )"), "PID"),
]


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("golden"))
    desk.env["XDG_CONFIG_HOME"] = str(desk.project / "xdg")
    del desk.env["AGENT_OS_IDLE_EXIT"]  # as it is by default
    for text in (CLOCK, READER, TEAM):
        name = text.split('"')[1]
        (desk.project / f"{name}.agent.toml").write_text(text)
    desk.good("up", "--detach", "--no-ui")
    desk.good("apply", "-f", desk.project, "--wait")
    desk.good("budget", "set", "clock", "cost=2usd", "tokens=10k")
    subprocess.run(
        [*AGENTCTL, "secrets", "set", "key"],
        env=desk.env,
        input=b"a-value-of-some-length",
        check=True,
        capture_output=True,
    )
    yield desk
    desk.down()


def text_of(desk: Desk, out: str) -> str:
    """In one form: columns two blanks apart, and what differs under the name of what it is."""
    out = out.replace(str(desk.home), "HOME").replace(str(desk.project), "PROJECT")
    lines = [_SPACES.sub("  ", line) for line in out.splitlines()]
    for pattern, word in _NUMBERS:
        lines = [pattern.sub(word, f"{line}  ").rstrip() for line in lines]
    return "\n".join(lines) + "\n" if lines else ""


def data_of(desk: Desk, value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: f"<{type(each).__name__}>" if key in VOLATILE and each is not None else data_of(desk, each)
            for key, each in value.items()
            if not key.endswith("_s")
        }
    if isinstance(value, list):
        return [data_of(desk, each) for each in value]
    if isinstance(value, str):
        return value.replace(str(desk.home), "HOME").replace(str(desk.project), "PROJECT")
    return value


def hold(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("AGENT_OS_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text(), f"{path} has something else"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("shape", ["table", "wide", "name"])
def test_what_people_read(desk: Desk, verb: str, shape: str) -> None:
    said = desk.good(*VERBS[verb], "-o", shape)
    assert "\x1b" not in said.out + said.err
    hold(f"{verb}.{shape}.txt", text_of(desk, said.out))


@pytest.mark.parametrize("verb", VERBS)
def test_what_programs_read(desk: Desk, verb: str) -> None:
    """JSON is one line with its version; YAML is the same value."""
    said = desk.good(*VERBS[verb], "-o", "json").out
    assert said.count("\n") == 1
    assert said.startswith('{"api": "v1"')
    told = data_of(desk, json.loads(said))
    hold(f"{verb}.json", json.dumps(told, indent=1) + "\n")
    assert data_of(desk, yaml.safe_load(desk.good(*VERBS[verb], "-o", "yaml").out)) == told


def drawn(desk: Desk, columns: int, *words: str, **env: str) -> str:
    """As a terminal of so many columns is told it."""
    ours, theirs = pty.openpty()
    around = {key: value for key, value in desk.env.items() if key != "NO_COLOR"}
    with subprocess.Popen(
        [*AGENTCTL, *words],
        env={**around, "COLUMNS": str(columns), "TERM": "xterm", **env},
        cwd=desk.project,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    ) as process:
        os.close(theirs)
        text = b""
        try:
            while piece := os.read(ours, 65536):
                text += piece
        except OSError:  # its other end is closed
            pass
        assert process.wait(SECONDS) == 0
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [50, 80, 160])
def test_a_list_fits_its_terminal(desk: Desk, columns: int) -> None:
    text = drawn(desk, columns, "tool", "ls", NO_COLOR="1")
    assert all(len(line) <= columns for line in text.splitlines())
    hold(f"tool-ls.{columns}.txt", text)
    tree = drawn(desk, columns, "tree", NO_COLOR="1")
    assert all(len(line) <= columns for line in tree.splitlines())
    hold(f"tree.{columns}.txt", text_of(desk, tree.splitlines()[0]))


def test_colour_is_for_terminals_that_want_it(desk: Desk) -> None:
    assert "\x1b[32m" in drawn(desk, 160, "tree")
    assert "\x1b" not in drawn(desk, 160, "tree", NO_COLOR="1")
    assert "\x1b" not in drawn(desk, 160, "tree", TERM="dumb")


# Every kind of failure that a verb of a desk can be brought to, with the code that the table of §2.4 gives it.
FAILURES = {
    "usage": (["ps", "--wat"], 2, "EINVAL"),
    "no verb": (["wat"], 2, "EINVAL"),
    "bad value": (["budget", "set", "clock", "cost=x"], 2, "EINVAL"),
    "no agent": (["inspect", "nobody"], 3, "ESRCH"),
    "no file": (["audit", "verify", "nothing.db"], 3, "ENOENT"),
    "no approval": (["approve", "q-999"], 3, "ENOENT"),
    "needs a yes": (["delete", "clock"], 2, "EINVAL"),
    "time is up": (["wait", "clock", "--timeout", "0.1"], 124, "ETIMEDOUT"),
}


@pytest.mark.parametrize("case", [name for name, (_, code, _) in FAILURES.items() if code is not None])
def test_an_error_is_one_object_with_the_promised_fields_and_code(desk: Desk, case: str) -> None:
    words, code, name = FAILURES[case]
    said = desk.ask(*words, "-o", "json")
    assert (said.code, said.out) == (code, ""), said
    error = said.error
    fields = ("code", "detail_code", "severity", "reason", "rule", "decision", "hint", "retryable", "trace")
    assert tuple(error) == fields
    assert error["code"] == name
    plain = desk.ask(*words)
    assert plain.code == code
    assert plain.err.startswith("agentctl: ")


def test_without_a_kernel_a_door_that_needs_one_ends_with_8(desk: Desk, tmp_path: Path) -> None:
    env = {**desk.env, "AGENT_OS_HOME": str(tmp_path / "none")}
    ran = subprocess.run([*AGENTCTL, "status", "--json"], env=env, capture_output=True, text=True, timeout=SECONDS)
    assert ran.returncode == 8
    assert json.loads(ran.stderr)["error"]["code"] == "EHOSTUNREACH"


def test_a_watched_list_is_one_object_a_line_and_ends_with_its_reader(desk: Desk) -> None:
    command = [*AGENTCTL, "ps", "--watch", "--json"]
    with subprocess.Popen(command, env=desk.env, cwd=desk.project, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        for _ in range(2):
            assert json.loads(watching.stdout.readline())["api"] == "v1"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(SECONDS) == 0  # leaving a view is no failure
