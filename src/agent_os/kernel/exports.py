"""The journal leaving the house: as an export for auditors, as a backup for the operator.

In: the store, and the home's key and anchor. Out: bytes, read in a thread while everybody goes on writing. Both show
one state: what is committed after they began is not in them.
"""

import os
import tempfile
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

from agent_os.abi import exports
from agent_os.abi.entries import decode
from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.abi.heads import parse_note
from agent_os.abi.tree import HASH, WIDTH, tile_key
from agent_os.drivers.store import Row, Store
from agent_os.kernel.journal.heads import ANCHOR, KEY, MARK, PUBLIC

PIECE = 64 << 10
DATABASE = "journal.db"
# The anchor first: it must not know more than the database beside it.
_BESIDE = (ANCHOR, MARK, KEY, PUBLIC)


def export(store: Store, end: int | None, *, bodies: bool) -> Iterator[bytes]:
    """The file that the offline verifier reads, with the first `end` entries and the heads that cover no more."""
    size = store.size()
    if end is not None and not 1 <= end <= size:
        raise ENOENT("journal.entry", f"there is no entry {end}; the newest is {size}")
    size = end or size
    yield exports.opening(store.get("meta", "log_id"), size, bodies=bodies)
    elsewhere: dict[bytes, None] = {}  # digests of bodies that do not lie beside their entry
    for tile, part in groupby(store.rows(1, size), key=_tile):
        rows = list(part)
        for row in rows:
            if bodies and row.body is None and (digest := decode(row.entry).body):
                elsewhere[digest] = None
        yield exports.rows(tile, rows, _leaves(store, tile), bodies=bodies)
    for digest in elsewhere:
        if (data := store.blob(digest)) is not None:  # else it was erased, and an entry says so
            yield exports.body(digest, data)
    notes = dict.fromkeys(note for _, note in store.items("heads"))
    yield exports.heads([note for note in notes if parse_note(note).head.size <= size])


def _tile(row: Row) -> int:
    return (row.seq - 1) // WIDTH


def _leaves(store: Store, tile: int) -> bytes | None:
    """The stored leaf hashes of a tile: they tell a verifier which entry is the bad one."""
    if whole := store.get("tree", tile_key(0, tile)):
        return whole[: WIDTH * HASH]
    tail = store.get("tree", "tail") or b""
    return tail[8:] if tail[:8] == tile.to_bytes(8) else None


class Backup:
    """A copy of journal and store, and what a home needs beside them to go on with it: the signing key among it, so
    whoever holds a backup can sign as this journal."""

    def __init__(self, store: Store, home: Path | None) -> None:
        if home is None:
            raise EINVAL("home.none", "a kernel without a home has nothing to keep", hint="KernelSpace(home=…)")
        self._beside = [(name, (home / name).read_bytes()) for name in _BESIDE if (home / name).exists()]
        with tempfile.TemporaryDirectory(prefix=".backup-", dir=home) as place:
            copy = Path(place) / DATABASE
            store.backup(os.fspath(copy))
            self._copy: BinaryIO = copy.open("rb")  # nameless from here on, so that nothing of it can stay behind
        self._size = os.fstat(self._copy.fileno()).st_size

    def pieces(self) -> Iterator[bytes | tuple[str, int]]:
        """Name and size of a file, then its bytes, for each."""
        for name, data in self._beside:
            yield name, len(data)
            yield from (data[at : at + PIECE] for at in range(0, len(data), PIECE))
        yield DATABASE, self._size
        while data := self._copy.read(PIECE):
            yield data

    def close(self) -> None:
        self._copy.close()
