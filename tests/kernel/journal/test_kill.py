"""A process that is killed with the journal open: what it was told is done is on disk, whatever the moment."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent_os.abi.entries import Kind
from agent_os.client.verify import verify
from journals import database, opened, public_key, result

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a record is written the same way for every user")]

REFUSALS = 60
CHILD = """
import os, signal, sys
from pathlib import Path
from agent_os.abi.entries import Kind
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.journal import Draft, Journal

home, failpoint, at = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
journal = Journal.open(SqliteStore(home / "journal.db", reserve=0), home=home)
met = 0
def die():
    global met
    met += 1
    if met == at:
        os.kill(os.getpid(), signal.SIGKILL)
if failpoint:
    journal.failpoints[failpoint] = die
for number in range(60):
    seq = journal.put_now(Draft("default/rogue", Kind.DECISION, verdict=4, code=1))
    os.write(1, b"%d\\n" % seq)
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(home: Path, failpoint: str = "", at: int = 1) -> list[int]:
    """The numbers that the child was told are committed before it was killed."""
    command = [sys.executable, "-c", CHILD, str(home), failpoint, str(at)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert ended.returncode == -signal.SIGKILL
    return [int(line) for line in ended.stdout.split()]


def test_sixty_violations_then_a_kill_leave_sixty_on_disk(tmp_path: Path) -> None:
    told = killed(tmp_path)
    assert len(told) == REFUSALS
    with opened(tmp_path) as journal:
        assert [entry.kind for entry, _ in journal.scan("default/rogue")] == [Kind.DECISION] * REFUSALS
    assert verify(database(tmp_path), key=public_key(tmp_path), anchor=tmp_path / "anchor/heads").findings == []


@pytest.mark.parametrize("at", [1, 7, 31])
@pytest.mark.parametrize("failpoint", ["queued", "begun", "before_commit", "after_commit", "before_callbacks"])
def test_a_kill_at_every_boundary_loses_nothing_that_was_told(tmp_path: Path, failpoint: str, at: int) -> None:
    told = killed(tmp_path, failpoint, at)
    with opened(tmp_path) as journal:
        kept = [entry.seq for entry, _ in journal.scan()]
        assert kept == list(range(1, len(kept) + 1))
        assert set(told) <= set(kept)
        assert len(kept) <= 1 + len(told) + 1, "at most the one in flight"
        # Going on after it is the same journal.
        journal.put_now(result())
    report = verify(database(tmp_path), key=public_key(tmp_path), anchor=tmp_path / "anchor/heads")
    assert (report.findings, report.gaps) == ([], [])
