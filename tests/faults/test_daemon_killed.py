"""Rows 1 and 2 of the fault table on the real thing: kill -9 of the daemon under agents in their sandboxes, at points
of a spawn and of a checkpoint, and at random instants.

Whatever it was in the middle of, no process outlives it, its agents go on where they were, nothing ran twice, and
nothing lies about when the next kernel has come and gone. A build that records only outcomes does not pass.
"""

import os
import random
import signal
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from faults.machine import Machine, lines
from faults.world import SOAK
from journals import opened

pytestmark = pytest.mark.integration

INSTANTS = 200 if SOAK else 4
SPAWN_POINTS = (
    "spawn_admitted",
    "spawn_planned",
    "spawn_recorded",
    "spawn_made",
    "spawn_running",
    "spawn_started",
)
CHECKPOINT_POINTS = ("checkpoint_still", "checkpoint_hashed", "checkpoint_kept", "checkpoint_known")


def died_at(machine: Machine, *points: tuple[str, int]) -> None:
    """One life after the other ends at its point; the last one by itself."""
    for point, at in points:
        assert machine.live(point, at) == -signal.SIGKILL, machine.noted("daemon.log")
    assert machine.noted("hits") == [point for point, _ in points]
    assert machine.live() == 0, machine.noted("daemon.log")


def test_a_daemon_killed_inside_a_spawn_leaves_no_process_and_no_second_child(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "parent", STEPS=3)
    died_at(machine, *((point, 2) for point in SPAWN_POINTS))  # the second spawn of each life is a child's
    assert machine.problems() == []
    told = machine.acks()
    assert machine.result() == [value for n in range(3) for value in told[f"ended:{n}"]]
    assert machine.ledger.counts() == {f"opaque:{n}": 1 for n in range(3)}
    assert machine.left_behind() == []


def test_a_child_that_is_over_before_its_parent_was_told_is_not_started_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "parent", STEPS=1)
    machine.more = {"child_first": True}
    died_at(machine, ("child_over", 1))
    assert machine.problems() == []
    assert machine.ledger.counts() == {"opaque:0": 1}


def test_a_daemon_killed_inside_a_checkpoint_loses_neither_it_nor_the_one_before(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "keeps", STEPS=6)
    died_at(machine, *((point, 2) for point in CHECKPOINT_POINTS))
    assert machine.problems() == []
    assert machine.result() == lines(6)
    assert machine.ledger.counts() == {f"opaque:{n}": 1 for n in range(6)}
    assert machine.left_behind() == []


def test_a_daemon_killed_at_any_instant_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    rng, kills, number = random.Random(int(os.environ.get("SEED", "1"))), 0, 0
    while kills < INSTANTS:
        (tmp_path / f"m{number}").mkdir()
        machine, number = Machine(tmp_path / f"m{number}", STEPS=30), number + 1
        while machine.kills < 20 and kills + machine.kills < INSTANTS and not machine.noted("result"):
            machine.live(after=rng.uniform(0, 2.0))
        if not machine.noted("result"):
            assert machine.live() == 0
        assert machine.problems() == []
        assert machine.result() == lines(30)
        assert machine.left_behind() == []
        with opened(machine.home) as journal:
            boots = [entry.kind for entry, _ in journal.scan()].count(Kind.BOOT)
            assert machine.kills <= boots
        kills += machine.kills
    print(f"{kills} kills on {number} machines")


def test_a_daemon_that_records_outcomes_only_repeats_what_its_agents_do(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "keeps", STEPS=4, broken="outcome only")
    machine.lasts = 60
    assert machine.live("after_act", 1) == -signal.SIGKILL
    machine.lasts = 0.001
    assert machine.live() == 0
    assert "opaque:0 ran 2 times" in machine.problems()
