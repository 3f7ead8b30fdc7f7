"""The demo shows what it says; its rules load as a project's, and none is odd."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_os import rulebook

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo"
RULES = sorted(DEMO.glob("*.toml"))


@pytest.mark.parametrize("file", RULES, ids=lambda file: file.stem)
def test_the_rules_load_as_a_projects(file: Path) -> None:
    policy = rulebook.opened([file], "project")
    assert rulebook.described(policy, {}, None)["findings"] == []


def test_every_agent_with_rules_is_there() -> None:
    assert [file.stem for file in RULES] == ["burglar", "deployer"]
    assert all((DEMO / f"{file.stem}.py").is_file() for file in RULES)


@pytest.mark.integration
def test_every_agent_shows_what_it_must(tmp_path: Path) -> None:
    env = os.environ | {"AGENT_OS_HOME": str(tmp_path)}
    ran = subprocess.run([sys.executable, DEMO / "run.py"], env=env, capture_output=True, text=True, timeout=600)
    results = ran.stdout.rpartition("\n\n")[2].splitlines()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert [line.split()[1] for line in results] == ["shown"] * 6
