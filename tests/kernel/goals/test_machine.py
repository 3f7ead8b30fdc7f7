"""The least of all limits above us counts, in either kind of cgroup."""

import os
from pathlib import Path

import pytest

from agent_os.kernel.goals.workers import memory_mb

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20


def limited(path: Path, file: str, text: str) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / file).write_text(text + "\n")


@pytest.mark.parametrize(
    ("line", "top", "file"),
    [
        ("0::/a/b", "", "memory.max"),
        ("0::/a/b", "unified", "memory.max"),
        ("4:cpu,memory:/a/b", "memory", "memory.limit_in_bytes"),
    ],
)
def test_a_cgroup_may_have_less_than_the_machine(tmp_path: Path, line: str, top: str, file: str) -> None:
    own, place = tmp_path / "cgroup", tmp_path / "fs" / top / "a"
    own.write_text(line + "\n")
    limited(place, file, str(64 << 20))
    assert memory_mb(tmp_path / "fs", own) == 64
    limited(place / "b", file, str(32 << 20))
    assert memory_mb(tmp_path / "fs", own) == 32
    limited(place / "b", file, "max")
    limited(place, file, str(1 << 60))
    assert memory_mb(tmp_path / "fs", own) == MACHINE


def test_where_nothing_is_told_the_machine_counts(tmp_path: Path) -> None:
    assert memory_mb(tmp_path, tmp_path / "nothing") == MACHINE
