"""Row 1 of the fault table: kill -9 of the kernel at every boundary of journal and gate, and at random instants.

The program goes on over all of it. In the end nothing acknowledged is lost, nothing ran twice that must not, whatever
was unknown was said to be, and the journal verifies. A build that records only outcomes does not pass.
"""

import os
import random
import signal
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EPERM
from faults.world import GATE_POINTS, JOURNAL_POINTS, SOAK, World, wait_until
from journals import opened

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]

INSTANTS, MOST_PER_WORLD = 1000 if SOAK else 25, 40
STEPS = 6
TIMES = (1, 2, 3, 5, 8, 13) if SOAK else (3, 7)
UNBORN = sum(at == 1 for at in TIMES) * len(("queued", "begun", "before_commit"))  # lives that ended before their BOOT


def expected(steps: int) -> dict[str, str]:
    lines = "".join(f"{n}\n" for n in range(steps))
    return {"mem": lines, "work": lines}


def at_every_boundary(world: World) -> list[str]:
    """One life after the other ends at a boundary, each a few steps further; the last one ends by itself."""
    for turn, at in enumerate(TIMES):
        for point in (*JOURNAL_POINTS, *GATE_POINTS):
            reached = at + turn if point in JOURNAL_POINTS else 1 + turn
            assert world.run(point, reached) == -signal.SIGKILL
    for turn in range(12):  # until one falls into an effect of which nobody knows the outcome
        if world.noted("parked"):
            break
        assert world.run("after_act", 1 + turn % 5) == -signal.SIGKILL
    assert world.run() == 0
    return world.problems()


def test_a_kernel_killed_at_every_boundary_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "home", STEPS=STEPS * 4)
    assert at_every_boundary(world) == []
    assert set(world.noted("hits")) == {*JOURNAL_POINTS, *GATE_POINTS}
    assert world.kills == len(world.noted("hits"))
    assert world.result() == expected(STEPS * 4)
    with opened(tmp_path / "home") as journal:
        kinds = [entry.kind for entry, _ in journal.scan()]
        assert kinds.count(Kind.BOOT) == world.kills + 1 - UNBORN
        assert kinds.count(Kind.PARK) >= 1, "no outcome was ever unknown, so nothing was shown about that"


def test_a_build_that_records_outcomes_only_repeats_effects(tmp_path: Path) -> None:
    world = World(tmp_path / "home", STEPS=STEPS * 4, broken="outcome only")
    for at in range(1, 6):  # whichever of the classes it is, sooner or later it is one that must not run twice
        assert world.run("after_act", at) == -signal.SIGKILL
    assert world.run() == 0
    assert any("ran 2 times" in problem for problem in world.problems())


def test_a_kernel_killed_at_any_instant_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    """As many worlds as it takes; each is struck until its program ends, at most so often that it can end."""
    rng, kills, seed = random.Random(int(os.environ.get("SEED", "1"))), 0, 0
    while kills < INSTANTS:
        world, seed = World(tmp_path / f"home{seed}", STEPS=40), seed + 1
        while world.kills < MOST_PER_WORLD and kills + world.kills < INSTANTS and world.strike(0.5, rng) != 0:
            pass
        if not world.noted("result"):
            assert world.run() == 0
        assert world.problems() == []
        assert world.result() == expected(40)
        kills += world.kills
    print(f"{kills} kills in {seed} worlds")


def test_sixty_violations_then_a_kill_are_sixty_on_disk(tmp_path: Path) -> None:
    world = World(tmp_path / "home", "rogue")
    with world.boot() as kernel:
        wait_until(lambda: len(world.noted("acks")) == 60, "the sixtieth refusal")
        kernel.kill()
    assert kernel.returncode == -signal.SIGKILL
    with opened(tmp_path / "home") as journal:
        refused = [entry for entry, _ in journal.scan("default/w") if entry.kind == Kind.DECISION]
        assert {(entry.verdict, entry.code) for entry in refused} == {(Verdict.REFUSE, EPERM.number)}
        assert len(refused) == 60
