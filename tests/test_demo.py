"""The demo shows what it says; its rules load as a project's, its fleet as one, and none is odd."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_os import rulebook
from agent_os.manifest.fleet import read_fleet

FLEET = Path(__file__).resolve().parent.parent / "examples" / "fleet"
DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo"
RULES = sorted(DEMO.glob("*/.agents/policy.toml"))


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.parent.parent.name)
def test_the_rules_load_as_a_projects(file: Path) -> None:
    policy = rulebook.opened([file], "project")
    assert rulebook.described(policy, {}, None)["findings"] == []


def test_every_agent_with_rules_is_there() -> None:
    assert [file.parent.parent.name for file in RULES] == ["burglar", "deployer"]


def test_the_fleet_has_no_flaw_and_nothing_odd() -> None:
    fleet = read_fleet([DEMO, *(one for one in DEMO.iterdir() if one.is_dir() and one.name != "__pycache__"), FLEET])
    assert (fleet.problems, fleet.warnings) == ([], [])
    assert len(fleet.read) == 13
    for file, read in fleet.by_file.items():
        program = read.manifest.program.entry.partition(":")[0] or (read.manifest.program.argv or [""])[-1]
        assert not program or (Path(file).parent / program).is_file()


@pytest.mark.integration
def test_every_agent_shows_what_it_must(tmp_path: Path) -> None:
    env = os.environ | {"AGENT_OS_HOME": str(tmp_path)}
    ran = subprocess.run([sys.executable, DEMO / "run.py"], env=env, capture_output=True, text=True, timeout=600)
    results = ran.stdout.rpartition("\n\n")[2].splitlines()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line.split()[1] for line in results] == ["shown"] * 12
    agentctl = [sys.executable, "-m", "agent_os.cli.main"]
    subprocess.run([*agentctl, "up", "--detach"], env=env, check=True, timeout=60)
    left = subprocess.run([*agentctl, "ps", "--all"], env=env, check=True, capture_output=True, text=True, timeout=60)
    subprocess.run([*agentctl, "down"], env=env, check=True, timeout=60)
    assert "no agent" in left.stderr, f"left behind:\n{left.stdout}"
