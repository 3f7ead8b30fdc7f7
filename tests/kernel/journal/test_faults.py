"""A disk that fails, fills up, or loses power under the journal: rows 5, 6 and 7 of the fault table.

Each test proves that its fault took place, and is run again on a build that is broken on purpose, where it must fail.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import apsw
import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO, AgentOSError
from agent_os.abi.heads import parse_note
from agent_os.client.verify import verify
from agent_os.drivers.store import Blob, Put, Row
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.journal import Draft, Journal, Signer, check
from client.forger import Forger
from journals import RESERVE, database, make, opened, public_key, result, run
from shim_disk import ShimDisk, shim_disk

ROUNDS = 200 if os.environ.get("AGENT_OS_SOAK") else 20


class IgnoresErrors(SqliteStore):
    """Broken on purpose: a failed write or sync is taken for a good one."""

    def append(self, rows: Sequence[Row], puts: Sequence[Put], blobs: Sequence[Blob], *, sync: bool) -> None:
        with suppress(apsw.Error, AgentOSError):
            super().append(rows, puts, blobs, sync=sync)


class NeverSyncs(SqliteStore):
    """Broken on purpose: intents are committed with NORMAL."""

    def append(self, rows: Sequence[Row], puts: Sequence[Put], blobs: Sequence[Blob], *, sync: bool) -> None:
        super().append(rows, puts, blobs, sync=False)


@pytest.fixture
def disk() -> Iterator[ShimDisk]:
    with shim_disk() as made:
        yield made


def started(home: Path, disk: ShimDisk, kind: type[SqliteStore] = SqliteStore) -> tuple[Journal, SqliteStore]:
    store = kind(database(home), vfs=disk.vfs_name, reserve=RESERVE)
    return Journal.open(store, home=home), store


def acknowledged_under(home: Path, disk: ShimDisk, fault: Callable[[], None], kind: type[SqliteStore]) -> set[int]:
    """The synced entries that somebody was told of: three before the fault, and as many as get through after it."""
    journal, store = started(home, disk, kind)
    told: set[int] = set()
    for number in range(8):
        if number == 3:
            fault()
        try:
            told.add(journal.put_now(result()))
        except EIO:
            continue
    disk.fail.clear()
    journal.close_now()
    store.close()
    return told


def lost(home: Path, told: set[int]) -> set[int]:
    with opened(home) as journal:
        return told - {entry.seq for entry, _ in journal.scan()}


FAULTS = {
    "a full disk": ("write", apsw.FullError),
    "a failed write": ("write", apsw.IOError),
    "a failed sync": ("sync", apsw.IOError),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_disk_that_fails_loses_nothing_acknowledged(tmp_path: Path, disk: ShimDisk, name: str) -> None:
    operation, error = FAULTS[name]
    told = acknowledged_under(tmp_path, disk, lambda: disk.fail.update({operation: error}), SqliteStore)
    assert disk.refused > 0
    assert told == {2, 3, 4}
    assert lost(tmp_path, told) == set()


@pytest.mark.parametrize("operation", ["write", "sync"])
def test_a_build_that_ignores_the_error_loses_what_it_acknowledged(
    tmp_path: Path, disk: ShimDisk, operation: str
) -> None:
    told = acknowledged_under(tmp_path, disk, lambda: disk.fail.update({operation: apsw.IOError}), IgnoresErrors)
    assert disk.refused > 0
    with pytest.raises(EIO, match="damaged"):  # its anchor knows more than its disk
        lost(tmp_path, told)


def test_a_failed_sync_is_final_and_never_tried_again(tmp_path: Path, disk: ShimDisk) -> None:
    async def work(journal: Journal) -> None:
        told: list[AgentOSError] = []
        journal.on_failure = told.append
        await journal.record(result())
        disk.fail["sync"] = apsw.IOError
        waiting = [asyncio.create_task(journal.record(result())) for _ in range(10)]
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends} == {EIO}
        refused, disk.fail = disk.refused, {}
        for _ in range(3):
            with pytest.raises(EIO) as seen:
                await journal.record(result())
            assert seen.value.code == "journal"
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0)
        assert (disk.refused, len(told)) == (refused, 1) == (1, 1)
        assert journal.failed is told[0]
        assert not journal.closing([Draft("kernel", Kind.HALT)]), "only a full disk has room for last words"

    journal, store = started(tmp_path, disk)
    run(work(journal))
    syncs = disk.syncs
    journal.close_now()
    assert disk.syncs == syncs
    store.close()


def test_a_failed_write_on_the_loops_thread_is_final_for_what_follows_it(tmp_path: Path, disk: ShimDisk) -> None:
    async def work(journal: Journal) -> int:
        told: list[AgentOSError] = []
        journal.on_failure = told.append
        await journal.record(result())
        last = await journal.record(result(), sync=False)
        disk.fail["write"] = apsw.IOError
        waiting = [asyncio.create_task(journal.record(result(), sync=False)) for _ in range(3)]
        while not disk.refused:
            await asyncio.sleep(0)
        disk.fail.clear()  # a later group would get through
        later = asyncio.create_task(journal.record(result(), sync=False))
        ends = await asyncio.gather(*waiting, later, return_exceptions=True)
        assert {type(end) for end in ends} == {EIO}
        async with asyncio.timeout(10):
            while not told:
                await asyncio.sleep(0)
        assert journal.failed is told[0]
        assert len(told) == 1
        return last

    journal, store = started(tmp_path, disk)
    last = run(work(journal))
    journal.close_now()
    assert store.size() == last
    store.close()


def test_a_full_disk_leaves_room_for_the_last_words(tmp_path: Path, disk: ShimDisk) -> None:
    journal, store = started(tmp_path, disk)
    journal.put_now(result())
    reserve = tmp_path / "journal.db.reserve"
    assert reserve.stat().st_blocks * 512 >= RESERVE

    disk.fail["write"] = apsw.FullError
    with pytest.raises(EIO, match="full"):
        journal.put_now(result())
    assert disk.refused > 0
    disk.fail.clear()
    assert journal.closing([Draft("kernel", Kind.STATE), Draft("kernel", Kind.HALT)])
    assert not reserve.exists()
    with pytest.raises(EIO, match="full"):
        journal.put(result(), sync=False)
    journal.close_now()
    store.close()
    with opened(tmp_path) as again:
        assert [Kind(entry.kind).name for entry, _ in again.scan()] == ["KEY", "RESULT", "STATE", "HALT"]
    assert verify(database(tmp_path), key=public_key(tmp_path), anchor=tmp_path / "anchor/heads").ok


def put_until_it_fails(journal: Journal) -> None:
    for _ in range(100):
        journal.put_now(Draft("a", Kind.RESULT, body=os.urandom(2000)))


def test_a_full_file_system_really_fails_and_the_reserve_really_helps(tmp_path: Path) -> None:
    """The same without a shim: the store's own page limit makes SQLite say that the disk is full."""
    store = SqliteStore(database(tmp_path), reserve=RESERVE)
    journal = Journal.open(store, home=tmp_path)
    journal.put_now(result())
    pages = store._db.pragma("page_count")
    store._db.pragma("max_page_count", pages)
    with pytest.raises(EIO, match="full"):
        put_until_it_fails(journal)
    store._db.pragma("max_page_count", pages + 1000)
    assert journal.closing([Draft("kernel", Kind.HALT)])
    journal.close_now()
    store.close()
    assert verify(database(tmp_path), key=public_key(tmp_path)).ok


def test_a_failed_anchor_is_a_failed_journal(tmp_path: Path) -> None:
    with opened(tmp_path) as journal:
        journal.put_now(result())
        real, journal._heads._mark = journal._heads._mark, os.open(os.devnull, os.O_RDONLY)
        with pytest.raises(EIO):
            put_until_it_fails(journal)
        os.close(journal._heads._mark)
        journal._heads._mark = real


@pytest.fixture
def no_head_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock. On a slow machine one is, before the power is lost, and what it signs is synced."""
    monkeypatch.setattr("agent_os.kernel.journal.heads.EVERY_SECONDS", 1e9)


def power_loss(tmp_path: Path, disk: ShimDisk, kind: type[SqliteStore]) -> tuple[int, set[int], Path]:
    """Effects that were begun because their intent was acknowledged, then a power loss. Bytes lost, intents, image."""
    home, image = tmp_path / "home", tmp_path / "image"
    home.mkdir()
    journal, store = started(home, disk, kind)
    begun: set[int] = set()
    for number in range(12):
        begun.add(journal.put_now(Draft("a", Kind.INTENT, effect="o")))
        for _ in range(number):
            journal.put_now(result(), sync=False)
    dropped = disk.image(home, image)
    journal.close_now()
    store.close()
    return dropped, begun, image


@pytest.mark.usefixtures("no_head_is_due")
def test_a_power_loss_takes_no_acknowledged_intent(tmp_path: Path, disk: ShimDisk) -> None:
    dropped, begun, image = power_loss(tmp_path, disk, SqliteStore)
    assert dropped > 0
    with opened(image) as journal:
        assert begun == {entry.seq for entry, _ in journal.open_intents()}
        assert journal.damage is None
    assert verify(database(image), key=public_key(image), anchor=image / "anchor/heads").ok


@pytest.mark.usefixtures("no_head_is_due")
def test_a_build_that_does_not_sync_intents_loses_them(tmp_path: Path, disk: ShimDisk) -> None:
    dropped, _, image = power_loss(tmp_path, disk, NeverSyncs)
    assert dropped > 0
    with pytest.raises(EIO, match="damaged"), opened(image):
        pass


def test_a_torn_tail_is_dropped_and_named(tmp_path: Path) -> None:
    """Cut anywhere in the last group, which nobody was told of: all before it is there, and the loss is named."""
    home = tmp_path / "home"
    home.mkdir()
    store = SqliteStore(database(home), reserve=0)
    journal = Journal.open(store, home=home)
    for _ in range(5):
        journal.put_now(result())
    wal = Path(f"{database(home)}-wal")
    whole = wal.stat().st_size
    taken: list[bytes] = []
    store.failpoints["after_commit"] = lambda: taken.append(wal.read_bytes())
    files = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    journal.put_now(result())
    store.failpoints.clear()
    journal.close_now()
    store.close()
    assert len(taken[0]) > whole
    torn = 0
    for number in range(ROUNDS):
        image = tmp_path / f"image{number}"
        for path, data in files.items():
            copy = image / path.relative_to(home)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
            copy.chmod(path.stat().st_mode if path.exists() else 0o600)
        cut = random.Random(number).randrange(whole + 24, len(taken[0]))
        Path(f"{database(image)}-wal").write_bytes(taken[0][:cut])
        Path(f"{database(image)}-shm").unlink(missing_ok=True)
        with opened(image) as again:
            assert [entry.seq for entry, _ in again.scan()] == [1, 2, 3, 4, 5, 6]
            torn += again.torn > 0
    assert torn == ROUNDS


def damaged_copy(home: Path, image: Path, seed: int) -> str:
    """A copy with one bit flipped in a stored entry, or with the file cut short. Says which."""
    chance = random.Random(seed)
    data = bytearray(database(home).read_bytes())
    if chance.random() < 0.3:
        kept = chance.randrange(4096, len(data))
        what, data = f"cut to {kept} bytes", data[:kept]
    else:
        at = chance.randrange(4096, len(data))
        data[at] ^= 1 << chance.randrange(8)
        what = f"bit flipped at {at}"
    for path in home.rglob("*"):
        if path.is_file() and not path.name.endswith(("-wal", "-shm")):
            copy = image / path.relative_to(home)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(bytes(data) if path == database(home) else path.read_bytes())
            copy.chmod(path.stat().st_mode)
    return what


def content(path: Path) -> object:
    """The journal's part of a database, read without any index; an error counts as another content."""
    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return (
                db.execute("select * from entries not indexed order by seq").fetchall(),
                db.execute("select * from bodies not indexed").fetchall(),
                db.execute("select * from kv where bucket in ('tree', 'heads', 'meta')").fetchall(),
            )
        finally:
            db.close()
    except (apsw.Error, UnicodeDecodeError) as problem:
        return type(problem)


def opens(home: Path) -> bool:
    try:
        with opened(home):
            return True
    except EIO as refused:
        if refused.code not in {"journal.damaged", "store.version", "store.read"}:
            raise
        return False


def flips(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    home = tmp_path / "home"
    home.mkdir()
    make(home, 700)
    before = content(database(home))
    for seed in range(ROUNDS):
        image = tmp_path / f"flip{seed}"
        what = damaged_copy(home, image, seed)
        now = content(database(image))
        if now != before and entries_of(now) != entries_of(before):
            yield what, image


def entries_of(found: object) -> object:
    return found[0] if isinstance(found, tuple) else found


def test_a_changed_or_cut_file_refuses_to_boot(tmp_path: Path) -> None:
    changed = list(flips(tmp_path))
    assert len(changed) >= ROUNDS // 4, "the faults did not take place"
    assert [what for what, image in changed if opens(image)] == []


def test_a_build_that_does_not_check_the_tree_boots_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = list(flips(tmp_path))
    monkeypatch.setattr(check, "damage", lambda _store, tiles, *_: tiles.load(_store.size()))
    assert any(opens(image) for _, image in changed)


def forged_copy(home: Path, image: Path, how: str) -> Path:
    forger = Forger(home, image, seed=1)
    try:
        if how == "entries with all their hashes":
            forger.change_field(forger.pick())
            forger.rebuild_tree()
        elif how == "the signature of the newest head":
            newest = parse_note(forger.ask("select value from kv where bucket = 'meta' and key = 'head'"))
            forger.fact("meta", "head", Signer.new().note(newest.head))
    finally:
        forger.close()
    return image


def test_a_careful_forgery_refuses_to_boot(tmp_path: Path) -> None:
    """Where every hash fits, only the signed head tells; where only the signature is another's, that alone."""
    home = tmp_path / "home"
    home.mkdir()
    make(home, 700)
    assert opens(forged_copy(home, tmp_path / "untouched", ""))
    for number, how in enumerate(("entries with all their hashes", "the signature of the newest head")):
        assert not opens(forged_copy(home, tmp_path / f"forged{number}", how)), how
