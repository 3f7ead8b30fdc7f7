"""The journal's tree, kept as tiles: whole ones in the store, the open one of each level in memory.

Goes in: leaf hashes, from the writer. Comes out: puts for the tiles they completed, and any hash of the tree for roots
and proofs, from any thread. A tile is written once and never changes.
"""

import threading
from collections.abc import Sequence
from itertools import pairwise

from agent_os.abi.tree import (
    HASH,
    HEIGHT,
    TILE,
    WIDTH,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    parents,
    place_of,
    root_at,
    tile_key,
    tile_root,
)
from agent_os.drivers.store import Put, Store

BUCKET = "tree"
TAIL = "tail"  # index and leaves of the open tile, as of the newest head: they name the first bad entry
_KEPT = 64, 256  # tiles read lately: of leaves, and those above, which every proof needs again


class Missing(Exception):
    """A tile that must be there is not, or is not whole. `first` is the first leaf below it."""

    def __init__(self, level: int, index: int) -> None:
        super().__init__(tile_key(level, index))
        self.first = index << (HEIGHT * (level + 1))


class Tiles:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self.size = 0
        self._open: list[list[list[bytes]]] = []  # by tile level: the rows of the tile that is not whole yet
        self._whole: list[int] = []  # by tile level: how many are whole
        self._fresh: dict[str, bytes] = {}  # whole, and not yet known to be committed
        self._read: tuple[dict[str, bytes], dict[str, bytes]] = {}, {}

    def load(self, size: int) -> None:
        """Take up the tree of the first `size` entries from the store's tiles, and its last leaves from its rows."""
        with self._lock:
            self.size, self._open, self._whole = size, [], []
            self._fresh.clear()
            for kept in self._read:
                kept.clear()
            whole = size // WIDTH
            leaves = [leaf_hash(row.entry) for row in self._store.rows(whole * WIDTH + 1, size)]
            if len(leaves) != size % WIDTH:
                raise Missing(0, whole)
            self._extend(0, leaves)
            self._whole[0] = whole
            while whole:
                level = len(self._whole)
                start = whole // WIDTH * WIDTH
                self._extend(level, [tile_root(self._tile(level - 1, index)) for index in range(start, whole)])
                whole //= WIDTH
                self._whole[level] = whole

    def extend(self, leaves: Sequence[bytes]) -> list[Put]:
        """Append leaves; the tiles they made whole are to be stored in the same transaction as their entries."""
        with self._lock:
            self.size += len(leaves)
            whole = self._extend(0, leaves)
            self._fresh.update(whole)
        return [Put(BUCKET, key, tile) for key, tile in whole.items()]

    def committed(self) -> None:
        with self._lock:
            self._fresh.clear()

    def root(self, size: int | None = None) -> bytes:
        with self._lock:
            return root_at(self.size if size is None else size, self._node)

    def tail(self) -> Put:
        with self._lock:
            return Put(BUCKET, TAIL, self._whole[0].to_bytes(8) + b"".join(self._open[0][0]))

    def inclusion(self, index: int, size: int) -> list[bytes]:
        with self._lock:
            return inclusion_proof(index, size, self._node)

    def consistency(self, old: int, new: int) -> list[bytes]:
        with self._lock:
            return consistency_proof(old, new, self._node)

    def leaves(self, tile: int) -> list[bytes]:
        """The 256 leaf hashes of a whole tile, as stored."""
        with self._lock:
            data = self._tile(0, tile)
            return [data[at : at + HASH] for at in range(0, WIDTH * HASH, HASH)]

    def _extend(self, level: int, hashes: Sequence[bytes]) -> dict[str, bytes]:
        if len(self._open) == level:
            self._open.append([[] for _ in range(HEIGHT)])
            self._whole.append(0)
        rows = self._open[level]
        whole: dict[str, bytes] = {}
        at, roots = 0, list[bytes]()
        while at < len(hashes):
            room = WIDTH - len(rows[0])
            rows[0].extend(hashes[at : at + room])
            at += room
            for lower, upper in pairwise(rows):
                if len(lower) < 2 * len(upper) + 2:
                    break  # no new pair here, so none above
                upper.extend(parents(lower[2 * len(upper) :]))
            if len(rows[0]) == WIDTH:
                whole[tile_key(level, self._whole[level])] = b"".join(value for row in rows for value in row)
                self._whole[level] += 1
                roots.append(node_hash(*rows[-1]))
                for row in rows:
                    row.clear()
        if roots:
            whole |= self._extend(level + 1, roots)
        return whole

    def _node(self, level: int, index: int) -> bytes:
        tile_level, tile, at = place_of(level, index)
        if tile_level < len(self._whole) and tile == self._whole[tile_level]:
            row = level % HEIGHT
            return self._open[tile_level][row][index & ((WIDTH >> row) - 1)]
        return self._tile(tile_level, tile)[at : at + HASH]

    def _tile(self, level: int, index: int) -> bytes:
        key = tile_key(level, index)
        tile = self._fresh.get(key) or self._read[level > 0].get(key)
        if tile is None:
            tile = self._store.get(BUCKET, key)
            if tile is None or len(tile) != TILE:
                raise Missing(level, index)
            kept = self._read[level > 0]
            if len(kept) >= _KEPT[level > 0]:
                kept.pop(next(iter(kept)))
            kept[key] = tile
        return tile
