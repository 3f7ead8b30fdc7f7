"""drivers/store/memory.py: the same answers as the store on disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.drivers.store import Blob, Put, Row, Store
from agent_os.drivers.store.memory import MemoryStore
from agent_os.drivers.store.sqlite import SqliteStore

NAMES = st.text(st.sampled_from("ab/\0é€𝄞"), max_size=3)
PUTS = st.lists(st.tuples(st.sampled_from(["x", "y"]), NAMES, st.none() | st.binary(max_size=3)), max_size=6)


@pytest.fixture
def stores() -> Iterator[tuple[MemoryStore, SqliteStore]]:
    memory, disk = MemoryStore(), SqliteStore(None)
    yield memory, disk
    disk.close()


def told(store: Store) -> object:
    facts = [list(store.items(bucket, prefix)) for bucket in "xyz" for prefix in ("", "a", "a/", "é")]
    rows = [list(store.rows(1)), list(store.rows(2, 3)), list(store.rows_of("a")), list(store.rows_of("b", 2, 2))]
    facts += [store.before(bucket, key, most) for bucket in "xy" for key in ("", "a/", "zz") for most in (1, 9)]
    return facts, rows, store.size(), store.row(2), store.row(99), store.aseq("a"), store.aseq("c"), store.blob(b"d")


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.lists(st.sampled_from("ab"), max_size=3), PUTS), max_size=5))
def test_it_answers_as_the_store_on_disk(groups: list[tuple[list[str], list[tuple[str, str, bytes | None]]]]) -> None:
    memory, disk = MemoryStore(), SqliteStore(None)
    for agents, puts in groups:
        rows: list[Row] = []
        for agent in agents:
            seq, aseq = memory.size() + len(rows) + 1, memory.aseq(agent) + 1 + sum(one[1] == agent for one in rows)
            rows.append(Row(seq, agent, aseq, b"e%d" % seq, None))
        for store in (memory, disk):
            store.append(rows, [Put(*one) for one in puts], [Blob(b"d", b"data")], sync=True)
        assert told(memory) == told(disk)
    disk.close()


def test_a_number_is_given_once(stores: tuple[MemoryStore, SqliteStore]) -> None:
    memory, _ = stores
    memory.append([Row(1, "a", 1, b"", None)], [], [], sync=True)
    with pytest.raises(EINVAL, match="entry 1 does not follow entry 1"):
        memory.append([Row(1, "a", 2, b"", None)], [Put("x", "k", b"v")], [], sync=True)
    assert (memory.size(), memory.get("x", "k")) == (1, None)


def test_reading_goes_on_while_others_write(stores: tuple[MemoryStore, SqliteStore]) -> None:
    memory, _ = stores
    memory.append([], [Put("x", f"{n}", b"v") for n in range(5)], [], sync=True)
    reading = memory.items("x")
    next(reading)
    memory.append([], [Put("x", "3", None), Put("x", "9", b"v")], [], sync=True)
    assert [key for key, _ in reading] == ["1", "2", "3", "4"]


def test_a_body_is_erased_and_a_backup_is_a_file(stores: tuple[MemoryStore, SqliteStore], tmp_path: Path) -> None:
    memory, _ = stores
    memory.append([Row(1, "a", 1, b"e", b"b")], [Put("x", "k", b"v")], [Blob(b"d", b"1"), Blob(b"e", b"2")], sync=True)
    memory.erase([b"d"])
    memory.backup(str(tmp_path / "copy.db"))
    copy = SqliteStore(tmp_path / "copy.db", reserve=0)
    assert (list(copy.rows(1)), copy.get("x", "k")) == (list(memory.rows(1)), b"v")
    assert (copy.blob(b"d"), copy.blob(b"e")) == (None, b"2")
    copy.close()


def test_a_body_beside_an_entry_is_erased_and_one_that_a_fact_names_stays(
    stores: tuple[MemoryStore, SqliteStore],
) -> None:
    for store in stores:
        rows = [Row(1, "a", 1, b"e", b"b"), Row(2, "a", 2, b"f", b"c")]
        blobs = [Blob(b"digest-1", b"1"), Blob(b"digest-2", b"2")]
        store.append(rows, [Put("x", "k", b"names digest-1")], blobs, sync=True)
        store.erase([], [1], [b"digest-1", b"digest-2"])
        assert [(one.entry, one.body) for one in store.rows(1)] == [(b"e", None), (b"f", b"c")]
        assert (store.blob(b"digest-1"), store.blob(b"digest-2"), store.scrub()) == (b"1", None, True)
