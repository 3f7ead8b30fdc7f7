"""Words that nobody knows get the nearest one suggested; a shell completes verbs, flags, and the names of agents."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent_os.cli import main as cli
from agent_os.cli.naming import WITHIN_S, nearest
from cli.desk import SECONDS, Desk

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a terminal shows the same to every user")]

SHELLS = ("bash", "zsh", "fish")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["inbx"], "inbox"),
        (["cap", "lss"], "ls"),
        (["work", "rollbak"], "rollback"),
        (["ps", "-o", "jsn"], "json"),
        (["ps", "--statte", "x"], "--state"),
        (["new", "lopp"], "loop"),
        (["signal", "x", "SIGKIL"], "SIGKILL"),
        (["budget", "set", "x", "tokns=1"], "tokens"),
        (["cost", "--by", "agnet"], "agent"),
    ],
)
def test_what_was_meant_is_suggested(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert "id you mean" in said
    assert meant in said.split("id you mean")[1]


def test_a_word_like_none_of_a_group_is_told_them_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cap", "zzz"]) == 2
    said = capsys.readouterr().err
    assert "did you mean" not in said
    assert "grant, ls, revoke, tree" in said


def test_an_agent_that_nobody_knows_gets_the_nearest_name(desk: Desk) -> None:
    for words in (["kill", "wroker"], ["inspect", "wroker"], ["logs", "wroker"]):
        said = desk.ask(*words)
        assert said.code == 3, said
    assert "did you mean worker?" in desk.ask("kill", "wroker").err


def test_case_does_not_matter_and_nothing_is_like_everything() -> None:
    assert nearest("sigkil", ["SIGKILL", "SIGTERM"]) == "SIGKILL"
    assert nearest("x", ["SIGKILL"]) == ""


def test_an_alias_is_the_verb_itself(desk: Desk) -> None:
    for alias, verb in (("inbox", "approvals"), ("secret", "secrets")):
        words = ["ls"] if verb == "secrets" else []
        assert desk.good(alias, *words, "--json").json == desk.good(verb, *words, "--json").json
    assert set(cli.ALIASES) == {"inbox", "mem", "secret", "suspend"}


def completed(desk: Desk, line: str, **env: str) -> list[str]:
    """What a shell would be told for this line, the last word of which is being typed."""
    words = line.split(" ")
    asked = {"_AGENTCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    ran = subprocess.run(
        [sys.executable, "-m", "agent_os.cli.main"],
        env={**desk.env, **asked, **env},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    assert ran.stderr == ""
    return [one.partition(",")[2] for one in ran.stdout.split()]


def test_verbs_flags_values_and_agents_are_completed(desk: Desk) -> None:
    assert completed(desk, "agentctl comp") == ["completion"]
    assert completed(desk, "agentctl cap gr") == ["grant"]
    assert "--state" in completed(desk, "agentctl ps --")
    assert completed(desk, "agentctl ps -o y") == ["yaml"]
    assert completed(desk, "agentctl kill wo") == ["worker"]
    assert completed(desk, "agentctl events --agent wo") == ["worker"]
    assert completed(desk, "agentctl kill worker wo") == []  # it is named already


def test_without_a_kernel_no_name_is_completed_and_none_is_started(desk: Desk, tmp_path: Path) -> None:
    assert completed(desk, "agentctl kill wo", AGENT_OS_HOME=str(tmp_path / "none")) == []
    assert not (tmp_path / "none").exists()


def test_a_kernel_that_does_not_answer_holds_nobody_up(desk: Desk, tmp_path: Path) -> None:
    """It takes the connection, and then says nothing."""
    path = tmp_path / "deaf.sock"
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(path))
        deaf.listen()
        path.chmod(0o600)
        began = time.monotonic()
        assert completed(desk, "agentctl kill wo", AGENT_OS_SOCKET=str(path)) == []
        assert WITHIN_S == 0.2
        assert time.monotonic() - began < 20


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_that_its_shell_can_read(desk: Desk, tmp_path: Path, shell: str) -> None:
    script = desk.good("completion", shell).out
    assert "_AGENTCTL_COMPLETE" in script
    assert script.rstrip().splitlines()[-1]
    if found := shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([found, "-n", str(tmp_path / "script")], check=True, timeout=SECONDS)


def test_bash_itself_completes_the_name_of_an_agent(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "agentctl").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m agent_os.cli.main "$@"\n')
    (tmp_path / "agentctl").chmod(0o755)
    typed = """
source <(agentctl completion bash)
COMP_WORDS=(agentctl pause wor); COMP_CWORD=2
_agentctl_completion agentctl wor pause
printf '%s\\n' "${COMPREPLY[@]}"
"""
    env = {**desk.env, "PATH": f"{tmp_path}{os.pathsep}{desk.env['PATH']}"}
    ran = subprocess.run(["bash", "-c", typed], env=env, capture_output=True, text=True, timeout=SECONDS, check=True)
    assert ran.stdout.split() == ["worker"], ran
