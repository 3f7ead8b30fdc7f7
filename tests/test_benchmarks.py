"""Benchmarks are no tests, but they can be started: nothing that they measure has moved away under them."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("only loads the benchmarks")]

RUN = Path(__file__).resolve().parent.parent / "benchmarks" / "run.py"


def test_every_benchmark_can_be_loaded() -> None:
    ran = subprocess.run([sys.executable, RUN, "--help"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
