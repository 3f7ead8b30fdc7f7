"""client/sources.py: exports hold what the journal holds, with or without bodies, and show when they were changed."""

import random
from pathlib import Path

import pytest

import journals
from agent_os.abi.errors import EIO
from agent_os.client.sources import export, open_source
from agent_os.client.verify import verify
from journals import database, public_key


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("journal")
    journals.make(made, 600)
    return made


@pytest.mark.parametrize("bodies", [True, False])
def test_an_export_verifies_without_the_database(home: Path, tmp_path: Path, bodies: bool) -> None:
    target = tmp_path / "journal.export"
    count = export(database(home), target, bodies=bodies)
    report = verify(target, key=public_key(home), anchor=home / "anchor/heads")
    assert report.findings == []
    assert (report.entries, report.signed, report.pinned) == (count, count, True)
    assert (b"x" * 2000 in target.read_bytes()) is bodies


def test_an_export_holds_the_same_rows_heads_and_bodies(home: Path, tmp_path: Path) -> None:
    export(database(home), tmp_path / "export")
    one, other = open_source(database(home)), open_source(tmp_path / "export")
    size = one.facts().size
    assert other.facts()[:2] == one.facts()[:2]
    rows = [[row for run in source.runs(1, size) for row in run] for source in (one, other)]
    assert rows[0] == rows[1]
    assert set(one.heads()) == set(other.heads())
    assert sorted(one.bodies()) == sorted(other.bodies())
    one.close()
    other.close()


def test_an_export_does_not_overwrite(home: Path, tmp_path: Path) -> None:
    (tmp_path / "export").write_text("mine")
    with pytest.raises(FileExistsError):
        export(database(home), tmp_path / "export")
    assert (tmp_path / "export").read_text() == "mine"


def test_a_changed_export_is_found_wherever_it_was_changed(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "export"
    export(database(home), target)
    whole = target.read_bytes()
    missed: list[int] = []
    for seed in range(60):
        chance = random.Random(seed)
        data = bytearray(whole)
        at = chance.randrange(30, len(data))
        data[at] ^= 1 << chance.randrange(8)
        target.write_bytes(data)
        try:
            if verify(target, key=public_key(home), anchor=home / "anchor/heads").ok:
                missed.append(at)
        except EIO:
            continue
    # A header's size and a copy of a head in the anchor are all that may change without harm.
    assert all(whole[at - 20 : at + 20].find(b"size") >= 0 for at in missed), missed


def test_a_cut_off_export_is_found(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "export"
    export(database(home), target)
    whole = target.read_bytes()
    for kept in (40, len(whole) // 2, len(whole) - 1):
        target.write_bytes(whole[:kept])
        with pytest.raises(EIO):
            raise_if_bad(target, home)


def raise_if_bad(target: Path, home: Path) -> None:
    report = verify(target, key=public_key(home), anchor=home / "anchor/heads")
    if not report.ok:
        raise EIO("test", report.findings[0].what)
