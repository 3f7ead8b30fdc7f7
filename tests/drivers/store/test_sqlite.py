"""drivers/store/sqlite.py on real files: transactions, order, readers beside a writer, the reserve, torn tails."""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import apsw
import pytest

from agent_os.abi.errors import EBUSY, EIO
from agent_os.drivers.store import Blob, Put, Row, Store
from agent_os.drivers.store.sqlite import INDEXED, PAGE, SqliteStore


@pytest.fixture(params=["disk", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "store.db" if request.param == "disk" else None, reserve=4096)
    yield opened
    opened.close()


def row(seq: int, agent: str = "a", aseq: int | None = None) -> Row:
    return Row(seq, agent, aseq or seq, b"entry %d" % seq, None if seq % 2 else b"body")


def append(store: Store, rows: list[Row], puts: list[Put] | None = None, blobs: list[Blob] | None = None) -> None:
    store.append(rows, puts or [], blobs or [], sync=True)


def test_rows_come_back_in_order_and_in_pages(store: SqliteStore) -> None:
    rows = [row(seq) for seq in range(1, 2 * PAGE + 300)]
    append(store, rows)
    assert list(store.rows(1)) == rows
    assert list(store.rows(5, 9)) == rows[4:9]
    assert store.size() == len(rows)
    assert (store.row(7), store.row(len(rows) + 1)) == (rows[6], None)


def test_an_agents_rows_come_by_its_own_numbers(store: SqliteStore) -> None:
    append(store, [row(1, "a", 1), row(2, "b", 1), row(3, "a", 2), row(4, "a", 3)])
    assert [each.seq for each in store.rows_of("a")] == [1, 3, 4]
    assert [each.seq for each in store.rows_of("a", 2, 2)] == [3]
    assert (store.aseq("a"), store.aseq("b"), store.aseq("c")) == (3, 1, 0)


def test_reading_ends_where_the_journal_ended_when_it_began(store: SqliteStore) -> None:
    append(store, [row(seq) for seq in range(1, PAGE + 10)])
    reading = store.rows(1)
    next(reading)
    append(store, [row(PAGE + 10)])
    assert [each.seq for each in reading][-1] == PAGE + 9


def test_a_number_is_given_once_and_a_refused_group_leaves_nothing(store: SqliteStore) -> None:
    append(store, [row(1)])
    with pytest.raises(apsw.ConstraintError):
        append(store, [row(2), row(1)], [Put("b", "k", b"v")], [Blob(b"d", b"data")])
    assert (store.size(), store.get("b", "k"), store.blob(b"d")) == (1, None, None)
    append(store, [row(2)])


def test_an_agents_number_given_twice_is_found_when_the_index_is_brought_up_to_date(store: SqliteStore) -> None:
    append(store, [Row(1, "a", 1, b"", None), Row(2, "a", 1, b"", None)])
    with pytest.raises(apsw.ConstraintError):
        append(store, [Row(seq, "b", seq, b"", None) for seq in range(3, INDEXED + 1)])
    assert store.size() == 2


def test_small_facts_are_set_replaced_removed_and_listed(store: SqliteStore) -> None:
    append(store, [], [Put("b", "k2", b"2"), Put("b", "k1", b"1"), Put("c", "k1", b"other"), Put("b", "z", b"")])
    append(store, [], [Put("b", "k2", b"3"), Put("b", "k2", b"4"), Put("b", "gone", None)])
    assert list(store.items("b", "k")) == [("k1", b"1"), ("k2", b"4")]
    assert (store.get("b", "z"), store.get("b", "none")) == (b"", None)
    append(store, [], [Put("b", "k1", None)])
    assert list(store.items("b")) == [("k2", b"4"), ("z", b"")]


def test_facts_are_listed_in_pages_without_loss(store: SqliteStore) -> None:
    names = [f"{number:06}" for number in range(2 * PAGE + 5)]
    append(store, [], [Put("b", name, b"") for name in names])
    assert [name for name, _ in store.items("b")] == names


def test_a_body_is_stored_once_and_erased_for_good(store: SqliteStore, tmp_path: Path) -> None:
    data = b"a secret of some length" * 100
    digest = sha256(data).digest()
    append(store, [], [], [Blob(digest, data)])
    append(store, [], [], [Blob(digest, b"never taken")])
    assert store.blob(digest) == data
    store.erase([digest])
    assert store.blob(digest) is None
    assert all(data not in path.read_bytes() for path in tmp_path.iterdir())


def test_what_was_replaced_removed_or_erased_is_in_no_byte_once_it_is_scrubbed(
    store: SqliteStore, tmp_path: Path
) -> None:
    words = [f"CANARY-{number}-".encode() * 20 for number in range(4)]
    blobs = [Blob(b"digest-1", words[2]), Blob(b"digest-2", words[3])]
    append(store, [row(1)._replace(body=words[0])], [Put("b", "k", words[1])], blobs)
    append(store, [], [Put("b", "k", b"names digest-1")])  # replaced
    append(store, [], [Put("b", "gone", words[1])])
    append(store, [], [Put("b", "gone", None)])
    store.erase([], [1], [b"digest-1", b"digest-2"])
    assert store.scrub()
    kept = store.row(1)
    assert kept is not None
    assert (kept.entry, kept.body) == (row(1).entry, None)
    assert (store.blob(b"digest-1"), store.blob(b"digest-2")) == (words[2], None)  # a fact names the first
    found = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert [word for word in words if word in found] == ([words[2]] if store.path else [])


def test_a_backup_is_whole_while_others_write(store: SqliteStore, tmp_path: Path) -> None:
    append(store, [row(seq) for seq in range(1, 500)])
    store.backup(str(tmp_path / "copy.db"))
    append(store, [row(500)])
    copy = SqliteStore(tmp_path / "copy.db", reserve=0)
    assert (copy.size(), store.size()) == (499, 500)
    copy.close()


def test_everything_is_there_after_opening_again(tmp_path: Path) -> None:
    for boot in (1, 2, 3):
        store = SqliteStore(tmp_path / "store.db", reserve=4096)
        assert (store.size(), store.torn) == (boot - 1, 0)
        append(store, [row(boot)])
        store.close()


def test_a_torn_last_commit_is_dropped_and_its_bytes_are_told(tmp_path: Path) -> None:
    path, copy = tmp_path / "store.db", tmp_path / "copy.db"
    store = SqliteStore(path, reserve=0)
    append(store, [row(1)])
    append(store, [row(2)])
    whole = Path(f"{path}-wal").read_bytes()
    copy.write_bytes(path.read_bytes())
    store.close()
    Path(f"{copy}-wal").write_bytes(whole[:-100])
    torn = SqliteStore(copy, reserve=0)
    assert torn.size() == 1
    assert torn.torn > 0
    torn.close()


def test_the_write_ahead_file_is_worked_off(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", reserve=0)
    for number in range(40):
        store.append([], [], [Blob(b"%d" % number, os.urandom(1 << 20))], sync=False)
    assert (tmp_path / "store.db-wal").stat().st_size < 25 << 20
    store.close()


def test_the_reserve_takes_real_room_and_gives_it_back(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db", reserve=1 << 20)
    reserve = tmp_path / "store.db.reserve"
    assert reserve.stat().st_blocks * 512 >= 1 << 20
    store.free_reserve()
    assert not reserve.exists()
    store.close()
    SqliteStore(tmp_path / "store.db", reserve=1 << 20).close()
    assert reserve.exists()


def test_a_store_opened_to_read_writes_nothing(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "store.db", reserve=0).close()
    store = SqliteStore(tmp_path / "store.db", read_only=True)
    with pytest.raises(apsw.ReadOnlyError):
        append(store, [row(1)])
    store.close()


@pytest.mark.parametrize("content", [b"this is no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4000])
def test_a_file_that_is_no_database_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(EIO) as refused:
        SqliteStore(path, reserve=0)
    assert refused.value.code == "journal.damaged"
    assert str(path) in refused.value.reason
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(EIO, match="cannot open"):
        SqliteStore(tmp_path / "missing" / "store.db")


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "store.db", reserve=0).close()
    apsw.Connection(str(tmp_path / "store.db")).pragma("user_version", 99)
    with pytest.raises(EIO, match="format 99"):
        SqliteStore(tmp_path / "store.db", reserve=0)


def test_a_store_that_another_holds_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent_os.drivers.store.sqlite.BUSY_MS", 10)
    SqliteStore(tmp_path / "store.db", reserve=0).close()
    other = apsw.Connection(str(tmp_path / "store.db"))
    other.pragma("locking_mode", "exclusive")
    other.execute("begin exclusive")
    with pytest.raises(EBUSY):
        SqliteStore(tmp_path / "store.db", reserve=0)
    other.close()
