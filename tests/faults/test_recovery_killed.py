"""Row 4 of the fault table: a crash in recovery, and again in that one.

Each step of recovery is on the record before the next, so none of them is made again after a crash. A build that keeps
what it found out in memory until all of it is done makes them again.
"""

import signal
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from faults.world import World
from journals import opened

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]

OPEN = 4  # effects under way when the kernel first dies


def died_three_times(home: Path, broken: str | None = None) -> World:
    """All effects have happened and none is recorded; then two recoveries die with one more of them settled each."""
    world = World(home, "crowd", broken=broken, STEPS=OPEN)
    world.lasts = 60
    assert world.run("after_act", OPEN) == -signal.SIGKILL
    with opened(home) as journal:
        assert len(journal.open_intents()) == OPEN
    world.lasts = 0
    assert world.run("settled", 1) == -signal.SIGKILL
    assert world.run("settled", 1) == -signal.SIGKILL
    return world


def most_runs(world: World) -> int:
    return max(world.ledger.counts().values())


def test_a_crash_in_recovery_is_recovered_from_like_any_other(tmp_path: Path) -> None:
    world = died_three_times(tmp_path / "home")
    assert world.run() == 0
    assert world.problems() == []
    assert world.result() == OPEN
    assert world.noted("hits") == ["after_act", "settled", "settled"]
    assert most_runs(world) == 2, "each ran once, and once again in the recovery that came to it"
    with opened(tmp_path / "home") as journal:
        assert [entry.kind for entry, _ in journal.scan()].count(Kind.BOOT) == 4


def test_a_build_that_does_not_record_its_steps_makes_them_again(tmp_path: Path) -> None:
    world = died_three_times(tmp_path / "home", broken="recovery not logged")
    assert world.run() == 0
    assert most_runs(world) > 2
