"""Rows 6 and 7 of the fault table at the real daemon: its record is torn, changed, cut short, or loses what was not
synced when the power goes, under agents in their sandboxes.

What nobody was told of may be gone, and nothing else is; a record that is not what was written is not booted on, and
the daemon says what is damaged. Builds without the check of the tree and without synced intents do not pass.
"""

import random
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.machine import Machine, lines
from faults.world import SOAK
from journals import database
from kernel.journal.test_faults import content, damaged_copy, entries_of

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]

POWER_POINTS = [("after_act", 2), ("after_commit", 9), ("begun", 11), ("begun", 14)]
TEARS = [7, 12, 20]
ROUNDS = 80 if SOAK else 6
WORD = b"opaque"  # in the request of every effect
if SOAK:
    POWER_POINTS += [(point, at) for point in ("begun", "after_commit", "after_act") for at in (1, 3, 4, 6, 11, 17)]
    TEARS += [3, 5, 9, 15, 18, 22]


def struck(top: Path, kind: str, points: list[tuple[str, int]], broken: str | None = None) -> Machine:
    """A machine that stops at one point after the other, each time with a worse disk than it wrote to."""
    machine = Machine(top, "keeps", STEPS=6, broken=broken)
    for point, at in points:
        machine.more = {kind: True}
        if machine.noted("result"):
            break
        assert machine.live(point, at) in (-signal.SIGKILL, 0), machine.noted("daemon.log")
    machine.more = {}
    return machine


@pytest.mark.parametrize("kind", ["power", "tear"])
def test_what_the_disk_lost_was_promised_to_nobody(tmp_path: Path, kind: str) -> None:
    """Whether anything was on its way to the disk at the moment of a stop is chance: tried until something was."""
    points = POWER_POINTS if kind == "power" else [("after_commit", at) for at in TEARS]
    lost = 0
    for attempt in range(10):
        top = tmp_path / str(attempt) if attempt else tmp_path  # short: a socket's name has at most 107 bytes
        top.mkdir(exist_ok=True)
        machine = struck(top, kind, points)
        assert machine.kills >= 3
        if not machine.noted("result"):
            assert machine.live() == 0, machine.noted("daemon.log")
        assert machine.problems() == []
        assert machine.result() == lines(6)
        assert machine.ledger.counts() == {f"opaque:{n}": 1 for n in range(6)}
        lost += sum(map(int, machine.noted("lost")))
        if lost:
            return
    pytest.fail("nothing was lost, so nothing was shown")


def test_a_daemon_that_does_not_sync_its_intents_cannot_go_on_from_what_is_left(tmp_path: Path) -> None:
    machine = struck(tmp_path, "power", [("after_act", 2)], broken="no sync")
    assert sum(map(int, machine.noted("lost"))) > 0
    machine.broken = None
    with machine.boot() as daemon:
        assert daemon.wait(60) == 1
    assert machine.said["error"]["code"] == "journal.damaged"


def changed_word(home: Path, image: Path, seed: int) -> str:
    """A copy in which one letter of what an agent asked for is another one."""
    data = bytearray(database(home).read_bytes())
    places = [found.start() for found in re.finditer(WORD, data)]
    at = random.Random(seed).choice(places)
    data[at] ^= 1
    database(image).write_bytes(data)
    return f"another letter at {at}"


def damaged(top: Path) -> Iterator[tuple[str, Machine]]:
    """Homes of a daemon that did its work, each with a change in its record or a part of it missing."""
    machine = Machine(top, "keeps", STEPS=6)
    assert machine.live() == 0
    before = content(database(machine.home))
    for seed in range(ROUNDS):
        image = top / f"image{seed}"
        shutil.copytree(machine.home, image / "home", ignore=shutil.ignore_patterns("work", "run", "journal.db*"))
        damage = changed_word if seed % 2 else damaged_copy
        what = damage(machine.home, image / "home", seed)
        now = content(database(image / "home"))
        if entries_of(now) != entries_of(before):
            yield what, Machine(image, "keeps", STEPS=6)


def boots(machine: Machine) -> bool:
    with machine.boot() as daemon:
        if "ready" in machine.said:
            daemon.terminate()
            daemon.wait(60)
            return True
        assert daemon.wait(60) == 1
    error = machine.said["error"]
    assert error["code"] in {"journal.damaged", "store.version", "store.read"}, error
    assert error["reason"]
    assert error["hint"]
    return False


def test_a_daemon_refuses_a_record_that_is_not_what_was_written(tmp_path: Path) -> None:
    found = list(damaged(tmp_path))
    assert len(found) >= ROUNDS // 4, "the faults did not take place"
    assert [what for what, machine in found if boots(machine)] == []


def test_a_daemon_that_does_not_check_the_tree_boots_on_anything(tmp_path: Path) -> None:
    booted = 0
    for _, machine in damaged(tmp_path):
        machine.broken = "no check"
        booted += boots(machine)
    assert booted
