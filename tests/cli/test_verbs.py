"""Each verb once by its true command line: the installed `agentctl`, exec'd, and a kernel that it starts so too. What a
verb does, the other files of this folder test; most of their programs are forked (`forkserver`)."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.cli.main import VERBS
from cli.desk import SECONDS, Desk, Said

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("how a program starts is the same for every user")]

AGENTCTL = Path(sys.executable).parent / "agentctl"
NOT_FOUND, NOT_RUNNING = 3, 8
CLOCK = 'name = "clock"\nrole = "service"\n[program]\nargv = ["sleep", "1000"]\n'
# The words after `agentctl`, and what it then says, in this order: each finds what those before it made. A number is
# the exit code of a refusal.
TOLD: dict[str, tuple[list[str], str | int]] = {
    "version": (["version", "--json"], '"version"'),
    "completion": (["completion", "bash"], "agentctl"),
    "config": (["config", "view"], "idle_exit"),
    "init": (["init", "made"], "made"),
    "new": (["new", "loop", "other"], "other"),
    "manifest": (["manifest", "lint", "clock.agent.toml"], "0 problems"),
    "up": (["up", "--detach", "--no-ui"], "kernel"),
    "status": (["status"], "kernel"),
    "run": (["run", "--name", "first", "--", "sh", "-c", "echo ran; echo x > made.txt"], "ran"),
    "ps": (["ps"], "NAME"),
    "diff": (["diff", "first"], "made.txt"),
    "work": (["work", "diff", "first"], "made.txt"),
    "snapshot": (["snapshot", "first", "kept"], "kept"),
    "commit": (["commit", "first"], "made.txt"),
    "discard": (["discard", "kept", "--yes"], "kept"),
    "apply": (["apply", "-f", "clock.agent.toml", "--wait", "--yes"], "clock"),
    "tree": (["tree"], "clock"),
    "top": (["top", "--once"], "clock"),
    "inspect": (["inspect", "clock"], "sleep"),
    "history": (["history", "clock"], "LIFE"),
    "exec": (["exec", "clock", "--", "echo", "inside"], "inside"),
    "pause": (["pause", "clock"], "paused"),
    "resume": (["resume", "clock"], "resumed"),
    "signal": (["signal", "clock", "SIGUSR2"], "clock"),
    "logs": (["logs", "first"], "ran"),
    "events": (["events", "--agent", "first"], "first"),
    "trace": (["trace", "first"], "exit"),
    "memory": (["memory", "ls", "clock"], ""),
    "send": (["send", "nobody", "{}"], NOT_FOUND),
    "bus": (["bus", "topics"], ""),
    "submit": (["submit", "--agent", "nobody", "a goal"], NOT_FOUND),
    "queue": (["queue"], ""),
    "cap": (["cap", "ls", "clock"], "clock"),
    "can": (["can", "clock", "file:/work/x:read"], "yes"),
    "explain": (["explain", "d-999999"], NOT_FOUND),
    "budget": (["budget", "ls"], "clock"),
    "cost": (["cost"], ""),
    "policy": (["policy", "check"], NOT_FOUND),
    "approvals": (["approvals"], ""),
    "approve": (["approve", "q-999"], NOT_FOUND),
    "answer": (["answer", "q-999", "yes"], NOT_FOUND),
    "deny": (["deny", "q-999"], NOT_FOUND),
    "secrets": (["secrets", "ls"], ""),
    "token": (["token", "ls"], ""),
    "model": (["model", "ls"], ""),
    "tool": (["tool", "ls"], "file.read"),
    "mcp": (["mcp", "ls"], ""),
    "ui": (["ui"], NOT_RUNNING),
    "checkpoint": (["checkpoint", "nobody"], NOT_FOUND),
    "replay": (["replay", "nobody"], NOT_FOUND),
    "resolve": (["resolve", "nobody", "1", "--done"], NOT_FOUND),
    "release": (["release", "nobody"], NOT_FOUND),
    "restart": (["restart", "clock"], "clock"),
    "stop": (["stop", "clock"], "clock"),
    "start": (["start", "clock"], "clock"),
    "kill": (["kill", "clock"], "clock"),
    "wait": (["wait", "first"], ""),
    "delete": (["delete", "clock", "--yes"], "clock"),
    "audit": (["audit", "verify"], "OK"),
    "backup": (["backup", "../copy"], "integrity OK"),
    "down": (["down"], ""),
    "restore": (["restore", "../copy", "--yes"], "integrity OK"),
    "doctor": (["doctor"], "isolation"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Said]]:
    desk = Desk(tmp_path_factory.mktemp("verbs"))
    (desk.project / "clock.agent.toml").write_text(CLOCK)
    answers: dict[str, Said] = {}
    try:
        for verb, (words, _) in TOLD.items():
            command = [str(AGENTCTL), *words]
            ran = subprocess.run(
                command, env=desk.env, cwd=desk.project, capture_output=True, text=True, timeout=SECONDS
            )
            answers[verb] = Said(ran.returncode, ran.stdout, ran.stderr)
        yield answers
    finally:
        desk.ask("down")


def test_every_verb_is_here() -> None:
    assert set(TOLD) == set(VERBS)


@pytest.mark.parametrize("verb", TOLD)
def test_a_verb_by_its_true_command_line(told: dict[str, Said], verb: str) -> None:
    expected, said = TOLD[verb][1], told[verb]
    if isinstance(expected, int):
        assert (said.code, said.out) == (expected, ""), said
    else:
        assert said.code == 0, said
        assert expected in said.out + said.err
