"""A group that needs no disk is committed where it is made, but only in its place."""

from collections.abc import Iterator

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.tree import EMPTY_ROOT
from agent_os.drivers.store import Row
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.journal.draft import Item
from agent_os.kernel.journal.heads import Heads, Signer
from agent_os.kernel.journal.tiles import Tiles
from agent_os.kernel.journal.writer import Writer


def group(*numbers: int, sync: bool = False) -> list[Item]:
    rows = [Row(number, "default/a", number, b"%d" % number, None) for number in numbers]
    return [(row, Kind.RESULT, 0, (), (), sync, None, None) for row in rows]


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(None)
    yield store
    store.close()


@pytest.fixture
def writer(store: SqliteStore) -> Writer:
    """Its thread is not started: it stays before whatever it would do."""
    tiles, heads = Tiles(store), Heads(bytes(16), 1, Signer.new())
    tiles.load(0)
    heads.make(0, EMPTY_ROOT)  # so that none is due for a second
    return Writer(store, tiles, heads, lambda _: None, lambda *_: None, store.failpoints)


def test_the_next_group_is_committed_here(writer: Writer, store: SqliteStore) -> None:
    assert writer.commit_here(group(1, 2))
    assert writer.commit_here(group(3))
    assert [row.seq for row in store.rows(1)] == [1, 2, 3]


def test_a_group_behind_one_that_is_queued_is_not(writer: Writer, store: SqliteStore) -> None:
    writer.queue.put(group(1, sync=True))
    assert not writer.commit_here(group(2))
    assert store.size() == 0


def test_a_group_that_waits_for_the_disk_is_not(writer: Writer, store: SqliteStore) -> None:
    assert not writer.commit_here(group(1) + group(2, sync=True))
    assert store.size() == 0


def test_nothing_is_committed_behind_a_group_that_failed(writer: Writer, store: SqliteStore) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    store.failpoints["before_commit"] = fail
    assert not writer.commit_here(group(1))
    store.failpoints.clear()
    assert not writer.commit_here(group(2))
    assert store.size() == 0
