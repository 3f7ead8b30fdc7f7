"""client/verify.py: in one process or several, of a live journal, of what is none; and what it does not import."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

import journals
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, EIO
from agent_os.abi.heads import parse_note
from agent_os.client import verify as module
from agent_os.client.verify import verify
from agent_os.kernel.journal import Draft, Signer
from client.forger import Forger
from journals import database, opened, public_key, result, run

pytestmark = pytest.mark.uid_free("a record is checked the same way for every user")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("journal")
    journals.make(made, 1500)
    return made


@pytest.fixture
def in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALONE", 256)


@pytest.mark.integration
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_several_processes_come_to_the_same_report(home: Path, workers: int) -> None:
    report = verify(database(home), key=public_key(home), anchor=home / "anchor/heads", workers=workers)
    assert report.findings == []
    assert report == verify(database(home), key=public_key(home), anchor=home / "anchor/heads", workers=1)


@pytest.mark.integration
@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("seq", [2, 300, 770, 1400])
def test_several_processes_name_the_same_bad_entry(home: Path, tmp_path: Path, seq: int) -> None:
    forger = Forger(home, tmp_path / "copy", seq)
    forger.change_field(seq)
    forger.close()
    for workers in (1, 3):
        assert verify(forger.path, key=public_key(home), workers=workers).first_bad == seq


@pytest.mark.integration
@pytest.mark.usefixtures("in_parts")
def test_an_intent_may_be_answered_in_another_part(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        intent = journal.put_now(Draft("a", Kind.INTENT))
        for _ in range(1000):
            journal.put(result(), sync=False)
        journal.put_now(Draft("a", Kind.OUTCOME, ref=intent))
        for _ in range(300):
            journal.put(result(), sync=False)
        again = journal.put(Draft("a", Kind.OUTCOME, ref=intent), sync=False)
    assert [finding.seq for finding in verify(database(tmp_path), workers=4).findings] == [again]


def test_a_journal_is_verified_while_a_kernel_writes_it(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        for _ in range(5):
            for _ in range(400):
                journal.put(result(), sync=False)
            report = verify(database(tmp_path), key=public_key(tmp_path), anchor=tmp_path / "anchor/heads")
            assert report.findings == []


def test_entries_after_the_last_head_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a kill: they are whole, and nobody has signed them."""
    with opened(tmp_path) as journal:
        journal.put_now(result())
        monkeypatch.setattr("agent_os.kernel.journal.heads.EVERY_SECONDS", 1e9)
        monkeypatch.setattr(module, "GAP_NS", -1)
        journal.put_now(result())
        report = verify(database(tmp_path))
        assert report.ok
        assert report.gaps[-1].through == 3
        assert report.gaps[-1].seq == report.signed + 1


STEP_NS = 400_000_000


@pytest.fixture(scope="module")
def two_boots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two boots that each say so, whose entries come every 0.4 seconds, by their clock, and are signed every few."""
    made = tmp_path_factory.mktemp("two")
    clock = iter(range(1_700_000_000_000_000_000, 1_800_000_000_000_000_000, STEP_NS))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("agent_os.kernel.journal.heads.EVERY_ENTRIES", 2)
        patched.setattr(time, "time_ns", lambda: next(clock))
        for _ in range(2):
            for _ in range(100):  # it was down for a while
                next(clock)
            with opened(made) as journal:
                journal.put_now(Draft("kernel", Kind.BOOT))
                for _ in range(40):
                    journal.put_now(result())
    return made


def gaps_without(home: Path, copy: Path, boot: int, heads: slice) -> list[tuple[int, int]]:
    """What is reported as a gap when some heads of a boot were never made."""
    forger = Forger(home, copy, 1)
    rows = forger.db.execute("select key, value from kv where bucket = 'heads' order by key").fetchall()
    anchor = copy / "anchor/heads"
    for key, note in [row for row in rows if parse_note(row[1]).head.boot == boot][heads]:
        forger.do("delete from kv where bucket = 'heads' and key = ?", key)
        anchor.write_bytes(anchor.read_bytes().replace(note, b""))
    forger.close()
    report = verify(database(copy), key=public_key(home), anchor=anchor)
    assert report.ok
    return [(gap.seq, gap.through) for gap in report.gaps]


def test_a_kernel_killed_just_after_a_head_leaves_no_gap(two_boots: Path, tmp_path: Path) -> None:
    assert gaps_without(two_boots, tmp_path / "whole", 1, slice(0, 0)) == []
    assert gaps_without(two_boots, tmp_path / "killed", 1, slice(-2, None)) == []


def test_a_boot_that_went_unsigned_to_its_end_is_a_gap(two_boots: Path, tmp_path: Path) -> None:
    ((first, last),) = gaps_without(two_boots, tmp_path / "copy", 1, slice(-10, None))
    boot = verify(database(two_boots)).entries - 40
    assert last == boot - 1
    assert first > 1


def test_a_boot_that_was_not_signed_at_its_beginning_is_a_gap(two_boots: Path, tmp_path: Path) -> None:
    boot = verify(database(two_boots)).entries - 40
    ((first, last),) = gaps_without(two_boots, tmp_path / "copy", 2, slice(0, 10))
    assert first == boot
    assert last > first


@pytest.mark.parametrize("many", [1, 100])
def test_erased_bodies_are_told_and_not_a_fault(tmp_path: Path, many: int) -> None:
    with opened(tmp_path) as journal:
        kept = [journal.put_now(Draft("a", Kind.RESULT, body=b"%d" % n * 9000)) for n in range(many)]
        run(journal.erase([journal.read(seq)[0].body for seq in kept], agent="local:0", why="asked for" * 100))
    report = verify(database(tmp_path))
    assert (report.findings, report.erased) == ([], many)


def test_either_key_of_a_rotation_vouches_for_the_whole(tmp_path: Path) -> None:
    keys: list[str] = []
    with opened(tmp_path) as journal:
        run(journal.record(result()))
        keys.append(public_key(tmp_path))
        run(journal.rotate(Signer.new()))
        keys.append(public_key(tmp_path))
        run(journal.record(result()))
    for key in keys:
        assert verify(database(tmp_path), key=key).pinned
    assert keys[0] != keys[1]


@pytest.mark.parametrize("content", [b"", b"something else", b"SQLite format 3\0" + bytes(5000)])
def test_what_is_no_journal_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    try:
        assert not verify(path).ok
    except EIO as refused:
        assert refused.code == "journal.file"  # noqa: PT017 (either is a clear answer)


def test_a_wrong_argument_is_explained(home: Path, tmp_path: Path) -> None:
    with pytest.raises(EINVAL, match="cannot read"):
        verify(tmp_path / "none")
    with pytest.raises(EINVAL, match="cannot read"):
        verify(database(home), anchor=tmp_path / "none")
    with pytest.raises(EINVAL, match="no key of a journal"):
        verify(database(home), key="nonsense")


@pytest.mark.integration
def test_the_verifier_imports_nothing_of_the_kernel() -> None:
    code = (
        "import sys, agent_os.client.verify; "
        "sys.exit(any(name.startswith(('agent_os.kernel', 'agent_os.drivers')) for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
