"""Where a verifier reads a journal from: the database itself, read-only, or an export of it. And how an export is made.

Goes in: a file. Comes out: rows, bodies, heads and tiles as they are stored, unjudged: any of it may be forged, so
nothing is assumed of a value but that it came out of the file. It never writes to what it reads, and needs no kernel.

An export is one file: the magic line, then frames of a 4-byte length and a msgpack array whose first element says what
it is (docs/journal.md). Rows come in runs of one tile, with the stored leaf hashes, so that a reader can take any part.
"""

# apsw's types name a class that the standard library has only since 3.12.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import apsw
import msgspec

from agent_os.abi import exports
from agent_os.abi.errors import EINVAL, EIO
from agent_os.abi.exports import BODIES, HEADER, HEADS, MAGIC, ROWS, RawRow
from agent_os.abi.tree import HASH, WIDTH, tile_key

RUN = 4 * WIDTH  # rows read at once


class Facts(NamedTuple):
    log_id: bytes | None
    size: int  # the highest number, wherever the rows below it are
    bodies: bool  # False: left out on purpose
    tiles: bool  # False: only leaf hashes are there


class Source(Protocol):
    def facts(self) -> Facts: ...
    def runs(self, first: int, last: int) -> Iterator[list[RawRow]]:
        """The rows from `first`, which begins a tile, to `last`, in order, in runs that begin with a tile."""
        ...

    def tile(self, level: int, index: int) -> Any: ...
    def leaves(self, index: int) -> Any:
        """The stored leaf hashes of one tile, whole or not; None if there are none."""
        ...

    def tail(self) -> Any:
        """Index and leaf hashes of the tile that was not whole at the newest head."""
        ...

    def heads(self) -> Iterator[Any]: ...
    def bodies(self) -> Iterator[tuple[Any, Any]]: ...
    def close(self) -> None: ...


def open_source(path: Path) -> Source:
    try:
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except OSError as problem:
        raise EINVAL("journal.file", f"cannot read {path}: {problem.strerror}") from problem
    if begin == MAGIC:
        return Export(path)
    if begin.startswith(b"SQLite format 3\0"):
        return Database(path)
    raise EIO("journal.file", f"{path} is neither a journal nor an export of one: its first bytes are others")


class Database:
    """A journal's database. Reads one state of it, even while a kernel writes."""

    def __init__(self, path: Path) -> None:
        # Without a write-ahead file nobody writes: then the file may lie on a medium that cannot be written.
        alone = not path.with_name(path.name + "-wal").exists()
        uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
        try:
            self._db = apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
            self._db.set_busy_timeout(10_000)
            self._db.execute("begin")
        except apsw.Error as problem:
            raise EIO("journal.file", f"cannot open {path}: {problem}") from problem

    def _ask(self, sql: str, *values: Any) -> list[Any]:
        try:
            return cast(list[Any], self._db.execute(sql, values).fetchall())
        except (apsw.Error, UnicodeDecodeError) as problem:
            raise EIO("journal.file", f"the database cannot be read: {problem}") from problem

    def _value(self, bucket: str, key: str) -> Any:
        found = self._ask("select value from kv where bucket = ? and key = ?", bucket, key)
        return found[0][0] if found else None

    def facts(self) -> Facts:
        size = self._ask("select coalesce(max(seq), 0) from entries")[0][0]
        return Facts(self._value("meta", "log_id"), size, True, True)

    def runs(self, first: int, last: int) -> Iterator[list[RawRow]]:
        sql = "select seq, agent, aseq, entry, body from entries where seq between ? and ? order by seq"
        for start in range(first, last + 1, RUN):
            yield self._ask(sql, start, min(last, start + RUN - 1))

    def tile(self, level: int, index: int) -> Any:
        return self._value("tree", tile_key(level, index))

    def leaves(self, index: int) -> Any:
        tile = self.tile(0, index)
        if tile is None:
            tail = self.tail()
            return tail[8:] if isinstance(tail, bytes) and tail[:8] == index.to_bytes(8) else None
        return tile[: WIDTH * HASH] if isinstance(tile, bytes) else tile

    def tail(self) -> Any:
        return self._value("tree", "tail")

    def heads(self) -> Iterator[Any]:
        for (note,) in self._ask("select value from kv where bucket = 'heads' order by key"):
            yield note
        yield from (note for (note,) in self._ask("select value from kv where bucket = 'meta' and key = 'head'"))

    def bodies(self) -> Iterator[tuple[Any, Any]]:
        try:
            yield from cast(Iterator[tuple[Any, Any]], self._db.execute("select digest, data from bodies"))
        except (apsw.Error, UnicodeDecodeError) as problem:
            raise EIO("journal.file", f"the bodies cannot be read: {problem}") from problem

    def close(self) -> None:
        self._db.close()


class Export:
    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._places: dict[int, list[int]] = {HEADER: [], ROWS: [], BODIES: [], HEADS: []}
        self._runs: dict[int, int] = {}  # tile index: place of its frame
        try:
            self._index()
            if len(self._places[HEADER]) != 1:
                raise EIO("journal.file", f"{path} has no header, or several")
            self._header: dict[str, Any] = msgspec.convert(self._frame(self._places[HEADER][0])[1], dict[str, Any])
        except (IndexError, msgspec.MsgspecError) as problem:
            self._file.close()
            raise EIO("journal.file", f"{path} is cut off or changed: {problem}") from problem
        except EIO:
            self._file.close()
            raise

    def _index(self) -> None:
        """Where each frame lies; only its first bytes are read."""
        place = len(MAGIC)
        while True:
            self._file.seek(place)
            begin = self._file.read(4 + 2 + 9)  # length; array and kind; an integer
            if not begin:
                return
            size = int.from_bytes(begin[:4])
            kind = begin[5] if len(begin) > 5 else -1
            if kind not in self._places or len(begin) < 6:
                raise EIO("journal.file", f"the export is cut off or changed at byte {place}")
            self._places[kind].append(place)
            if kind == ROWS:
                self._runs[(_integer(begin[6:]) - 1) // WIDTH] = place
            place += 4 + size

    def _frame(self, place: int) -> list[Any]:
        self._file.seek(place)
        size = int.from_bytes(self._file.read(4))
        data = self._file.read(size)
        try:
            if len(data) != size:
                raise ValueError("it is cut off")
            return msgspec.msgpack.decode(data)
        except (ValueError, msgspec.MsgspecError) as problem:
            raise EIO("journal.file", f"the export cannot be read at byte {place}: {problem}") from problem

    def facts(self) -> Facts:
        last = max(self._runs, default=None)
        size = 0 if last is None else self._frame(self._runs[last])[2][-1][0]
        return Facts(self._header.get("log_id"), size, bool(self._header.get("bodies")), False)

    def runs(self, first: int, last: int) -> Iterator[list[RawRow]]:
        for index in range((first - 1) // WIDTH, (last - 1) // WIDTH + 1):
            place = self._runs.get(index)
            yield [] if place is None else [tuple(row) for row in self._frame(place)[2]]

    def tile(self, level: int, index: int) -> Any:
        return None

    def leaves(self, index: int) -> Any:
        place = self._runs.get(index)
        return None if place is None else self._frame(place)[3]

    def tail(self) -> Any:
        return None

    def heads(self) -> Iterator[Any]:
        for place in self._places[HEADS]:
            yield from self._frame(place)[1]

    def bodies(self) -> Iterator[tuple[Any, Any]]:
        for place in self._places[BODIES]:
            yield from (tuple(pair) for pair in self._frame(place)[1])

    def close(self) -> None:
        self._file.close()


def export(path: Path, target: Path, *, bodies: bool = True) -> int:
    """Write an export of a journal; returns how many entries it holds. The target must not exist."""
    source = open_source(path)
    try:
        with target.open("xb") as file:
            facts = source.facts()
            file.write(exports.opening(facts.log_id, facts.size, bodies=bodies))
            for rows in source.runs(1, facts.size):
                for tile, part in groupby(rows, key=lambda row: (row[0] - 1) // WIDTH):
                    file.write(exports.rows(tile, list(part), source.leaves(tile), bodies=bodies))
            if bodies:
                for digest, data in source.bodies():
                    file.write(exports.body(digest, data))
            file.write(exports.heads(list(dict.fromkeys(source.heads()))))
            return facts.size
    finally:
        source.close()


def _integer(data: bytes) -> int:
    """A msgpack integer at the beginning of some bytes."""
    wide = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}.get(data[0], 0)
    return int.from_bytes(data[1 : 1 + wide]) if wide else data[0]
