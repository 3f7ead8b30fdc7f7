"""The store on SQLite: the journal's rows, bodies by hash, small facts; in one file, or in memory (`path` None).

Owns the database, its write-ahead file and the reserve beside it. One connection writes and, on disk, another reads:
readers never wait for a commit. All SQL is here, by hand. It never decodes an entry and knows no hash tree.

A commit is real when SQLite has written its frames; it survives a power loss when they are synced (`sync`). SQLite's
own checkpoints are turned off, because it swallows their errors: we run them after a commit, and their errors count.
"""
# apsw's types name a class that the standard library has only since 3.12.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Any, cast

import apsw

from agent_os.abi.errors import EBUSY, EIO, ENOSPC
from agent_os.drivers.store import Blob, Put, Row

SCHEMA_VERSION = 1
# Rowid tables: clustering entries by agent was several times slower, and facts by name twice. Entries by agent are in a
# table of their own that is brought up to date every INDEXED entries: a crowd of agents would else change a page of the
# index for each entry, and a commit writes whole pages.
SCHEMA = """
create table entries (
    seq integer primary key, agent text not null, aseq integer not null, entry blob not null, body blob) strict;
create table by_agent (
    agent text not null, aseq integer not null, seq integer not null, primary key (agent, aseq)) strict, without rowid;
create table bodies (digest blob primary key, data blob not null) strict;
create table kv (
    id integer primary key, bucket text not null, key text not null, value blob not null, unique (bucket, key)) strict;
"""
RESERVE = 16 << 20  # bytes kept back for the last entries on a full disk
PAGE = 1000  # rows read at once
INDEXED = 1024  # `by_agent` holds all entries up to the last multiple of it; the few after it are looked through
WAL_PAGES = 4000  # pages of the write-ahead file before it is worked into the database
BUSY_MS = 10_000
AT_ONCE = (32, 4, 1)  # rows of one statement: each lets go of the interpreter and must get it back from the loop


def _of_sizes(sql: str, row: str) -> dict[int, str]:
    return {count: sql.format(",".join([row] * count)) for count in AT_ONCE}


_ADD = _of_sizes("insert into entries values {}", "(?,?,?,?,?)")
_PUT = _of_sizes(
    "insert into kv (bucket, key, value) values {} on conflict do update set value = excluded.value", "(?,?,?)"
)
_DROP = _of_sizes("delete from kv where (bucket, key) in (values {})", "(?,?)")
_ERASE_UNNAMED = "delete from bodies where digest = ?1 and not exists (select 1 from kv where instr(value, ?1))"
_INDEX = "insert into by_agent select agent, aseq, seq from entries where seq > ? and seq <= ? order by agent, aseq"
_WAL_HEADER, _FRAME_HEADER = 32, 24


class SqliteStore:
    def __init__(
        self, path: Path | None, *, read_only: bool = False, vfs: str | None = None, reserve: int = RESERVE
    ) -> None:
        self.path = path
        self.torn = 0  # bytes of a last group that was never committed whole, found and dropped at opening
        self.failpoints: dict[str, Callable[[], None]] = {}  # set by tests only
        self._reserve = None if path is None or read_only or not reserve else path.with_name(path.name + ".reserve")
        self._synced: bool | None = None  # the connection's present setting
        self._wal_pages = 0
        self._lock = threading.Lock()  # of the writer
        with _reported(path):
            written = _frames_written(path) if path else 0
            if path and not read_only:
                _make_private(path)
            self._db = _connect(path, read_only, vfs)
            if not read_only:
                self._prepare()
            if path is not None:
                self.torn = self._bytes_dropped(written)
            # In memory there is one connection, and a Python VFS has no shared memory for two.
            alone = path is None or vfs is not None
            self._reader = self._db if alone else _connect(path, True, None)
            self._reading = self._lock if alone else threading.Lock()
            if self._reserve is not None:
                _allocate(self._reserve, reserve)

    def _prepare(self) -> None:
        if self.path is not None:
            self._db.pragma("journal_mode", "wal")
            self._db.wal_autocheckpoint(0)
            self._db.set_wal_hook(self._count_wal)
        version = self._db.pragma("user_version")
        if version == 0:
            with self._db:
                self._db.execute(SCHEMA)
                self._db.pragma("user_version", SCHEMA_VERSION)
        elif version != SCHEMA_VERSION:
            raise EIO(
                "store.version",
                f"the store has format {version}; this release reads format {SCHEMA_VERSION}",
                hint="use the release that wrote it, or a newer one",
            )

    def _count_wal(self, _db: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return 0

    def append(self, rows: Sequence[Row], puts: Sequence[Put], blobs: Sequence[Blob], *, sync: bool) -> None:
        with self._lock:
            self._want_sync(sync)
            db = self._db
            db.execute("begin immediate")
            try:
                if rows:
                    self._add(rows)
                if blobs:
                    db.executemany("insert or ignore into bodies values (?,?)", blobs)
                if puts:
                    self._put(puts)
                if self.failpoints:
                    self._fail("before_commit")
                # The true point at which everything in this group has happened.
                db.execute("commit")
            except BaseException as problem:
                if db.in_transaction:
                    with suppress(apsw.Error):  # the first error is the one to tell
                        db.execute("rollback")
                if isinstance(problem, apsw.FullError):
                    raise ENOSPC("store.full", f"no room left for {self.path}", hint="make room") from problem
                raise
            # That waits for the disk, as does a sync or a large body; who brings neither should not wait. (He does wait
            # if his commit is the first one after it: SQLite then syncs the new header of its file.)
            if (sync or blobs) and self._wal_pages >= WAL_PAGES:
                self._wal_pages = 0
                with suppress(apsw.BusyError):  # somebody else is at it; the next commit asks again
                    db.wal_checkpoint()

    def _add(self, rows: Sequence[Row]) -> None:
        self._change(_ADD, rows)
        before, now = _indexed(rows[0][0] - 1), _indexed(rows[-1][0])
        if now > before:
            self._db.execute(_INDEX, (before, now))

    def _want_sync(self, sync: bool) -> None:
        if sync is not self._synced:
            self._db.pragma("synchronous", "full" if sync else "normal")
            self._synced = sync

    def _put(self, puts: Sequence[Put]) -> None:
        latest = {(put.bucket, put.key): put.value for put in puts}
        self._change(_DROP, [name for name, value in latest.items() if value is None])
        self._change(_PUT, [(*name, value) for name, value in latest.items() if value is not None])

    def _change(self, statements: dict[int, str], rows: Sequence[tuple[Any, ...]]) -> None:
        at = 0
        for count, sql in statements.items():
            while len(rows) - at >= count:
                self._db.execute(sql, tuple(chain.from_iterable(rows[at : at + count])))
                at += count

    def _fail(self, name: str) -> None:
        if point := self.failpoints.get(name):
            point()

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        try:
            with self._reading:
                return cast(list[Any], self._reader.execute(sql, values).fetchall())
        except (apsw.Error, UnicodeDecodeError) as problem:
            raise EIO("store.read", f"{self.path or 'the store in memory'} cannot be read: {problem}") from problem

    def size(self) -> int:
        return self._ask("select coalesce(max(seq), 0) from entries")[0][0]

    def row(self, seq: int) -> Row | None:
        return next((Row(*row) for row in self._ask("select * from entries where seq = ?", seq)), None)

    def rows(self, first: int, last: int | None = None) -> Iterator[Row]:
        # Page by page up to where the journal ends now: rows never change, so this is one state without holding a
        # transaction, which would keep the write-ahead file from being worked off.
        last = self.size() if last is None else last
        sql = f"select * from entries where seq between ? and ? order by seq limit {PAGE}"
        while page := self._ask(sql, first, last):
            yield from (Row(*row) for row in page)
            first = page[-1][0] + 1

    def rows_of(self, agent: str, first: int = 1, last: int | None = None) -> Iterator[Row]:
        last = self.aseq(agent) if last is None else last
        end = _indexed(self.size())  # before anything is looked up: the table may only come to hold more
        indexed = f"""
            select entries.* from by_agent join entries using (seq, agent, aseq)
            where agent = ? and aseq between ? and ? order by aseq limit {PAGE}"""
        while page := self._ask(indexed, agent, first, last):
            yield from (Row(*row) for row in page)
            first = page[-1][2] + 1
        newest = "select * from entries where seq > ? and agent = ? and aseq between ? and ? order by seq"
        yield from (Row(*row) for row in self._ask(newest, end, agent, first, last))

    def aseq(self, agent: str) -> int:
        newest = self._ask("select max(aseq) from entries where seq > ? and agent = ?", _indexed(self.size()), agent)
        indexed = newest[0][0] or self._ask("select max(aseq) from by_agent where agent = ?", agent)[0][0]
        return indexed or 0

    def blob(self, digest: bytes) -> bytes | None:
        return next((data for (data,) in self._ask("select data from bodies where digest = ?", digest)), None)

    def get(self, bucket: str, key: str) -> bytes | None:
        found = self._ask("select value from kv where bucket = ? and key = ?", bucket, key)
        return found[0][0] if found else None

    def items(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        sql = f"select key, value from kv where bucket = ? and key {{}} ? order by key limit {PAGE}"
        page = self._ask(sql.format(">="), bucket, prefix)
        while page:
            for key, value in page:
                if not key.startswith(prefix):
                    return
                yield key, value
            page = self._ask(sql.format(">"), bucket, page[-1][0])

    def before(self, bucket: str, key: str, most: int) -> list[tuple[str, bytes]]:
        sql = "select key, value from kv where bucket = ? and key < ? order by key desc limit ?"
        return self._ask(sql, bucket, key, most)

    def erase(self, digests: Sequence[bytes], seqs: Sequence[int] = (), unnamed: Sequence[bytes] = ()) -> None:
        with self._lock:
            self._want_sync(True)
            # Zeroed, not only unlinked: what is erased must not be found in the file's free pages.
            self._db.pragma("secure_delete", True)
            with self._db:
                self._db.executemany("delete from bodies where digest = ?", [(digest,) for digest in digests])
                self._db.executemany(_ERASE_UNNAMED, [(digest,) for digest in unnamed])
                self._db.executemany("update entries set body = null where seq = ?", [(seq,) for seq in seqs])
            with suppress(apsw.BusyError):  # somebody reads: then the write-ahead file forgets it a little later
                self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def scrub(self) -> bool:
        with self._lock:
            self._want_sync(True)
            try:
                self._db.execute("vacuum")  # what lies in free pages and in the gaps of others is not copied
                if self.path is not None:
                    self._db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            except (apsw.BusyError, apsw.FullError):
                return False
            return True

    def backup(self, path: str) -> None:
        # In one step, so in one read transaction: between two, every commit would make it begin anew. And over a
        # connection of its own, since a copy takes long and readers must not wait for it.
        source = self._db if self._reader is self._db else _connect(self.path, True, None)
        target = apsw.Connection(path)
        try:
            with self._lock if source is self._db else nullcontext(), target.backup("main", source, "main") as copy:
                copy.step(-1)
        finally:
            target.close()
            if source is not self._db:
                source.close()

    def free_reserve(self) -> None:
        """Give the last entries of a full disk a place."""
        if self._reserve is not None:
            self._reserve.unlink(missing_ok=True)

    def close(self) -> None:
        with self._reading:
            if self._reader is not self._db:
                self._reader.close()
        with self._lock:
            self._db.close()

    def _bytes_dropped(self, written: int) -> int:
        """Frames that SQLite did not take: a commit was cut off in the middle of them."""
        if not written or self._db.readonly("main"):
            return 0
        valid, _ = self._db.wal_checkpoint()
        return max(0, written - valid) * (_FRAME_HEADER + self._db.pragma("page_size"))


@contextmanager
def _reported(path: Path | None) -> Generator[None]:
    try:
        yield
    except apsw.BusyError as problem:
        raise EBUSY("store.busy", f"{path} is used by another process", hint="stop it first") from problem
    except (apsw.CorruptError, apsw.NotADBError) as problem:
        raise damaged(path, problem) from problem
    except (apsw.Error, OSError) as problem:
        raise EIO("store.open", f"cannot open {path}: {problem}", hint="check that it exists and may be written") from (
            problem
        )


def damaged(path: Path | None, problem: Exception) -> EIO:
    return EIO(
        "journal.damaged",
        f"{path} is not a whole database: {problem}",
        hint="restore a backup, or read what is left with `agentctl audit verify` or a kernel that is --read-only",
    )


def _indexed(size: int) -> int:
    return size - size % INDEXED


def _frames_written(path: Path) -> int:
    """How many frames of the present generation lie in the write-ahead file, whole or not. Read before SQLite does."""
    try:
        with path.with_name(path.name + "-wal").open("rb") as file:
            header = file.read(_WAL_HEADER)
            if len(header) < _WAL_HEADER:
                return 0
            page_size, salts = int.from_bytes(header[8:12]), header[16:24]
            count = 0
            while len(frame := file.read(_FRAME_HEADER)) == _FRAME_HEADER and frame[8:16] == salts:
                file.seek(page_size, os.SEEK_CUR)
                count += 1
            return count
    except FileNotFoundError:
        return 0


def _connect(path: Path | None, read_only: bool, vfs: str | None) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(str(path) if path else ":memory:", flags=flags, vfs=vfs)
    db.set_busy_timeout(BUSY_MS)
    if vfs is not None:
        db.pragma("locking_mode", "exclusive")
    return db


def _make_private(path: Path) -> None:
    """For its owner alone, wherever it lies; SQLite gives the files beside it the same mode."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_mode & 0o077:
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


def _allocate(path: Path, size: int) -> None:
    """Really taken from the disk: a sparse file would reserve nothing."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size < size:
            os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)
