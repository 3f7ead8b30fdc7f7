"""`agentctl ps`, `kill`, `pause`, `resume` from outside, on real agents that other agentctl processes run."""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import leftovers
from agent_os.cli import agents
from guests.agentctl import AGENTCTL, SECONDS, Machine

pytestmark = pytest.mark.integration
# Ignores every polite signal and leaves a daemon in a session of its own.
STUBBORN = (
    "trap '' TERM INT HUP; (setsid sh -c \"trap '' TERM; sleep 1003.5\" &); echo ready; while :; do sleep 1003.5; done"
)
TICKER = "while :; do echo tick; sleep 0.02; done"


@dataclass
class Run:
    """A foreground `agentctl run` of somebody else, and what it wrote so far."""

    process: "subprocess.Popen[bytes]"
    name: str = ""
    out: list[str] = field(default_factory=list[str])
    err: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._readers = [
            threading.Thread(target=self._read, args=(stream, lines))
            for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, lines: list[str]) -> None:
        for line in stream:
            if not line.startswith(b"kernel  started"):  # whoever comes first has to say so
                lines.append(line.decode().rstrip("\n"))

    def end(self) -> int:
        code = self.process.wait(SECONDS)
        for reader in self._readers:
            reader.join(SECONDS)
        return code


class Operator:
    """Somebody at a machine who starts agents at one terminal and commands them from another."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.runs: list[Run] = []

    def start(self, script: str, *flags: str) -> Run:
        known = set(self.names())
        run = Run(self.machine.start("sh", "-c", script, flags=flags))
        self.runs.append(run)
        assert leftovers.becomes_true(lambda: bool(run.out) and bool(set(self.names()) - known), SECONDS), run.err
        run.name = (set(self.names()) - known).pop()
        return run

    def names(self) -> list[str]:
        return self.machine.agents()

    def ctl(self, *words: str, expect: int = 0) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [*AGENTCTL, *words],
            env=self.machine.environment(),
            cwd=self.machine.project,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == expect, (done.returncode, done.stdout, done.stderr)
        return done

    def listed(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.ctl("ps", "-o", "json").stdout)["agents"]}

    def close(self) -> None:
        for run in self.runs:
            run.process.send_signal(signal.SIGCONT)
            run.process.kill()
            run.end()
            for stream in (run.process.stdout, run.process.stderr):
                if stream:
                    stream.close()


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[Operator]:
    known = set(leftovers.processes())
    operator = Operator(Machine(tmp_path))
    yield operator
    operator.close()
    assert leftovers.becomes_true(lambda: not set(leftovers.processes()) - known)


def sleepers() -> list[int]:
    return [pid for pid, command in leftovers.processes().items() if "1003.5" in command and "agent_os" not in command]


# --- ps


def test_nothing_runs_and_that_is_said_where_it_disturbs_no_program(operator: Operator) -> None:
    done = operator.ctl("ps")
    assert done.stdout == ""
    assert "no agent is running" in done.stderr
    assert "agentctl diff NAME" in done.stderr
    assert json.loads(operator.ctl("ps", "--json").stdout) == {"api": "v1", "agents": []}
    assert operator.ctl("ps", "-o", "name").stdout == ""


def test_running_agents_are_listed(operator: Operator) -> None:
    first = operator.start("echo ready; sleep 1003.5")
    second = operator.start(TICKER)
    lines = operator.ctl("ps").stdout.splitlines()
    assert lines[0].split() == ["NAME", "ROLE", "STATE", "ISO", "PARENT", "PID", "AGE", "MEMORY", "NOW"]
    assert [line.split()[0] for line in lines[1:]] == [first.name, second.name]
    assert lines[1].endswith("sh -c echo ready; sleep 1003.5")
    row = operator.listed()[first.name]
    assert (row["state"], row["kernel"]) == ("running", operator.machine.kernel)
    assert row["limits"] in ("v2", "v1", "rlimits")
    assert row["pid"] in leftovers.processes()
    assert row["project"] == str(operator.machine.project)
    assert str(operator.machine.project) in operator.ctl("ps", "-o", "wide").stdout
    assert operator.ctl("ps", "-o", "name").stdout.split() == [first.name, second.name]


def test_an_agents_command_cannot_steer_the_terminal(operator: Operator) -> None:
    operator.start("echo ready; sleep 1003.5 # \x1b[2J\nforged-1  running  S4")
    out = operator.ctl("ps").stdout
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


def test_what_ended_is_not_listed(operator: Operator) -> None:
    run = operator.start("echo x > made; echo ready; sleep 1003.5")
    run.process.send_signal(signal.SIGTERM)
    run.end()
    assert operator.listed() == {}


def test_a_watched_list_is_shown_again_until_somebody_leaves(operator: Operator) -> None:
    command = [*AGENTCTL, "ps", "--watch", "--json"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=operator.machine.environment()
    ) as watching:
        assert watching.stdout
        lines = [watching.stdout.readline() for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=SECONDS)
    assert [json.loads(line)["agents"] for line in lines] == [[], []]
    assert (watching.returncode, err) == (0, b"")


def test_a_kernel_that_was_killed_takes_its_agents_along_and_is_forgotten(operator: Operator) -> None:
    run = operator.start("echo x > made; echo ready; sleep 1003.5")
    socket = operator.machine.state / "run" / "kernel.sock"
    os.kill(operator.machine.kernel, signal.SIGKILL)
    assert run.end() == 137
    assert "the kernel has ended" in run.err[0]
    assert leftovers.becomes_true(lambda: sleepers() == [])
    assert socket.exists()  # nobody was there to remove it
    assert operator.listed() == {}
    assert "made" in operator.ctl("diff", run.name).stdout  # the next kernel finds everything in order
    assert not socket.exists()


def test_a_kernel_that_stands_still_is_told_with_the_way_out(operator: Operator) -> None:
    operator.start("echo ready; sleep 1003.5")
    kernel = operator.machine.kernel
    os.kill(kernel, signal.SIGSTOP)
    done = operator.ctl("ps", expect=124)
    assert f"process {kernel}, does not answer" in done.stderr
    assert f"kill -9 {kernel}" in done.stderr
    os.kill(kernel, signal.SIGCONT)
    assert len(operator.listed()) == 1


# --- kill


def test_a_killed_agent_leaves_no_process(operator: Operator) -> None:
    run = operator.start(STUBBORN)
    assert leftovers.becomes_true(lambda: len(sleepers()) >= 2)
    done = operator.ctl("kill", run.name)
    assert sleepers() == []
    number = int(done.stdout.split("(")[1].split()[0])
    assert number >= 4
    assert done.stdout.startswith(f"killed  {run.name} ({number} processes), ")
    assert done.stdout.endswith(" ms; nothing left\n")
    assert run.end() == 137
    assert "killed by process" in run.err[0]
    assert "killed by agentctl kill" in "\n".join(run.err)
    assert operator.listed() == {}


def test_a_paused_agent_can_be_killed(operator: Operator) -> None:
    run = operator.start(STUBBORN)
    assert leftovers.becomes_true(lambda: len(sleepers()) >= 2)
    operator.ctl("pause", run.name)
    value = json.loads(operator.ctl("kill", run.name, "-o", "json").stdout)
    assert sleepers() == []
    assert (value["api"], value["kill"][0]["name"], value["kill"][0]["survivors"]) == ("v1", run.name, 0)
    assert value["kill"][0]["seconds"] < 10
    assert run.end() == 137


def test_all_agents_are_killed_at_once(operator: Operator) -> None:
    runs = [operator.start(STUBBORN) for _ in range(3)]
    done = operator.ctl("kill", "--all")
    assert sleepers() == []
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == sorted(run.name for run in runs)
    assert [run.end() for run in runs] == [137] * 3
    assert "no agent is running" in operator.ctl("kill", "--all").stderr


def test_what_a_killed_agent_changed_is_kept(operator: Operator) -> None:
    run = operator.start("echo x > made; echo ready; sleep 1003.5")
    operator.ctl("kill", run.name)
    run.end()
    assert "made" in operator.ctl("diff", run.name).stdout


def test_an_unknown_name_ends_with_3_and_a_suggestion_and_stops_nobody_else(operator: Operator) -> None:
    run = operator.start("echo ready; echo x > made; sleep 1003.5")
    done = operator.ctl("kill", f"{run.name}x", expect=3)
    assert f"did you mean {run.name}?" in done.stderr
    assert operator.listed()[run.name]
    error = json.loads(operator.ctl("pause", f"{run.name}x", "-o", "json", expect=3).stderr)["error"]
    assert (error["code"], error["detail_code"]) == ("ESRCH", "agent.unknown")
    done = operator.ctl("kill", "nobody", run.name, expect=3)
    assert f"killed  {run.name}" in done.stdout
    run.end()
    assert f"agentctl diff {run.name}" in operator.ctl("kill", run.name, expect=3).stderr


@pytest.mark.parametrize("verb", ["kill", "pause", "resume"])
def test_nobody_and_everybody_at_once_are_no_choice(operator: Operator, verb: str) -> None:
    assert f"agentctl {verb} NAME" in operator.ctl(verb, expect=2).stderr
    operator.ctl(verb, "somebody", "--all", expect=2)


def test_a_survivor_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Cannot be had by honest means: Linux would have to break its word."""
    from agent_os.cli import main as cli

    async def tell(*_: object, **__: object) -> list[tuple[str, dict[str, Any]]]:
        return [("x", {"processes": 3, "survivors": 1, "seconds": 0.1})]

    monkeypatch.setattr(agents, "tell", tell)
    assert cli.main(["kill", "x"]) == 1
    assert "killed  x (3 processes), 100 ms; 1 of them LEFT" in capsys.readouterr().out


# --- pause, resume


def test_a_paused_agent_stands_still_until_it_is_resumed(operator: Operator) -> None:
    run = operator.start(TICKER)
    assert operator.ctl("pause", run.name).stdout == f"paused  {run.name}\n"
    assert leftovers.becomes_true(lambda: not advances(run, 0.2))  # what was in the pipe is through
    assert not advances(run, 0.5)
    assert operator.listed()[run.name]["state"] == "paused"
    assert "(it was)" in operator.ctl("pause", run.name).stdout
    assert operator.ctl("resume", "--all").stdout == f"resumed  {run.name}\n"
    assert advances(run, 5)
    assert operator.listed()[run.name]["state"] == "running"
    assert "(it ran)" in operator.ctl("resume", run.name).stdout
    heard = [line.split("  ")[1].split(" by ")[0] for line in run.err]
    assert heard == ["paused", "resumed"]
    assert f"agentctl resume {run.name}" in run.err[0]


def advances(run: Run, seconds: float) -> bool:
    before = len(run.out)
    return leftovers.becomes_true(lambda: len(run.out) > before, seconds)


def test_a_timeout_does_not_run_while_its_agent_is_paused(operator: Operator) -> None:
    run = operator.start("echo ready; sleep 1003.5", "--timeout", "10s")
    operator.ctl("pause", run.name)
    time.sleep(10.5)  # the whole of its time passes
    assert operator.listed()[run.name]["state"] == "paused"
    operator.ctl("resume", run.name)
    assert run.end() == 124


def test_a_paused_agent_still_obeys_its_own_terminal(operator: Operator) -> None:
    run = operator.start(STUBBORN)
    operator.ctl("pause", run.name)
    for _ in range(2):  # the first asks, the second kills
        run.process.send_signal(signal.SIGINT)
        leftovers.becomes_true(lambda: run.process.poll() is not None, 0.3)
    assert run.end() == 130
    assert sleepers() == []


def test_agents_of_another_state_directory_are_out_of_reach(operator: Operator, tmp_path: Path) -> None:
    run = operator.start("echo ready; sleep 1003.5")
    (tmp_path / "other").mkdir()
    environment = operator.machine.environment(AGENT_OS_HOME=str(tmp_path / "other"))
    done = subprocess.run([*AGENTCTL, "kill", run.name], env=environment, capture_output=True, timeout=SECONDS)
    assert done.returncode == 3
    assert operator.listed()[run.name]["state"] == "running"


def test_an_agent_cannot_reach_the_control_socket(operator: Operator) -> None:
    """The state directory does not exist inside."""
    run = operator.start(f"ls {operator.machine.state}/run 2>&1 || echo none; sleep 1003.5")
    assert run.out[-1] == "none"
    assert (operator.machine.state / "run" / "kernel.sock").exists()
