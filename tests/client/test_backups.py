"""The file of a backup, the home that it goes into, and what happens when a restore is cut off."""

import io
import os
import tarfile
from pathlib import Path

import pytest

import journals
from agent_os.abi.errors import EBUSY, ECONFLICT, EINVAL, EIO
from agent_os.client import backups
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.journal import Journal


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a journal, its kernel down."""
    place = tmp_path / "home"
    place.mkdir()
    with journals.opened(place) as journal:
        journals.fill(journal, 300)
    return place


def kept(home: Path, path: Path) -> Path:
    with backups.new_file(path) as file:
        backups.copy_home(home, file)
    return path


def grow(home: Path) -> None:
    with journals.opened(home) as journal:
        journals.fill(journal, 10)


def size(home: Path) -> int:
    with journals.opened(home) as journal:
        return journal.size


def test_a_backup_is_an_ordinary_tar_file(home: Path, tmp_path: Path) -> None:
    file = kept(home, tmp_path / "kept.tar")
    with tarfile.open(file) as archive:
        assert archive.getnames() == list(backups.NAMES)
        key = archive.extractfile("keys/journal.key")
        assert key
        assert key.read() == (home / "keys" / "journal.key").read_bytes()
    with backups.unpacked(file, tmp_path) as (_, report):
        assert (report.ok, report.pinned, report.entries) == (True, True, size(home))


def test_what_is_not_yet_in_the_database_file_is_in_the_backup(home: Path, tmp_path: Path) -> None:
    store = SqliteStore(home / "journal.db", reserve=journals.RESERVE)
    journal = Journal.open(store, home=home)
    journals.fill(journal, 50)
    before = journal.size
    journal.close_now()
    assert (home / "journal.db-wal").stat().st_size > 0
    with backups.unpacked(kept(home, tmp_path / "kept.tar"), tmp_path) as (_, report):
        assert (report.ok, report.entries) == (True, before)
    store.close()


def test_a_file_that_ends_early_or_holds_too_much_is_no_backup() -> None:
    writer = backups.Writer(io.BytesIO())
    writer.begin("journal.db", 10)
    writer.add(b"12345")
    with pytest.raises(EIO, match="5 bytes are missing"):
        writer.finish()
    with pytest.raises(EIO, match="more than was announced"):
        writer.add(b"1234567")
    with pytest.raises(EIO, match="does not belong"):
        backups.Writer(io.BytesIO()).begin("../evil", 1)


def test_a_backup_that_is_cut_off_is_told(home: Path, tmp_path: Path) -> None:
    file = kept(home, tmp_path / "kept.tar")
    whole = file.read_bytes()
    for length in (100, 5_000, len(whole) // 2):
        file.write_bytes(whole[:length])
        with pytest.raises(EINVAL), backups.unpacked(file, tmp_path):
            pass


def test_a_failure_leaves_no_file_behind(tmp_path: Path) -> None:
    def half() -> None:
        with backups.new_file(tmp_path / "kept.tar") as file:
            file.write(b"half of it")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        half()
    assert list(tmp_path.iterdir()) == []


def test_an_existing_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "kept.tar").write_text("precious")
    with pytest.raises(ECONFLICT), backups.new_file(tmp_path / "kept.tar"):
        pass
    assert (tmp_path / "kept.tar").read_text() == "precious"


def test_one_home_has_one_holder(tmp_path: Path) -> None:
    with backups.locked(tmp_path), pytest.raises(EBUSY), backups.locked(tmp_path):
        pass
    with backups.locked(tmp_path):
        pass


def test_an_older_or_equal_home_may_be_replaced_and_a_newer_one_not(home: Path, tmp_path: Path) -> None:
    file = kept(home, tmp_path / "kept.tar")
    with backups.unpacked(file, tmp_path) as (place, _):
        backups.require_older(home, place)
        backups.require_older(tmp_path / "nothing", place)
        grow(home)
        with pytest.raises(ECONFLICT, match="would go"):
            backups.require_older(home, place)


def test_the_anchor_tells_how_far_a_lost_database_went(home: Path, tmp_path: Path) -> None:
    file = kept(home, tmp_path / "kept.tar")
    grow(home)
    (home / "journal.db").write_bytes(b"gone")
    with backups.unpacked(file, tmp_path) as (place, _), pytest.raises(ECONFLICT, match="would go"):
        backups.require_older(home, place)


def test_a_restored_home_goes_on_and_the_old_one_is_aside(home: Path, tmp_path: Path) -> None:
    file, before = kept(home, tmp_path / "kept.tar"), size(home)
    grow(home)
    newer = size(home)
    with backups.unpacked(file, home) as (place, _):
        aside = backups.put_in_place(place, home)
    assert size(home) == before
    assert aside
    assert size(aside) == newer
    assert sorted(path.name for path in home.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_restore_that_was_cut_off_keeps_a_kernel_from_booting(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    file, before = kept(home, tmp_path / "kept.tar"), size(home)
    moves: list[Path] = []

    def replace(self: Path, target: Path) -> Path:
        moves.append(target)
        if len(moves) == cut:
            raise KeyboardInterrupt
        os.replace(self, target)
        return target

    with monkeypatch.context() as patched, backups.unpacked(file, home) as (place, _):
        patched.setattr(Path, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            backups.put_in_place(place, home)
    assert not (home / "journal.db").exists()
    with pytest.raises(EIO, match="damaged"), journals.opened(home):
        pass
    with backups.unpacked(file, home) as (place, _):  # and once more, to its end
        backups.put_in_place(place, home)
    assert size(home) == before
