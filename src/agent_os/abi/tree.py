"""The RFC 6962 tree over SHA-256: hashes, roots, proofs and their checks, and how its hashes are laid out in tiles.

Pure: hashes go in, hashes come out. Whoever holds the hashes gives them as a function `node(level, index)`: the hash of
the complete subtree over the leaves `index << level` up to `(index + 1) << level`. Leaves count from 0 here; sequence
numbers of a journal count from 1. It never reads a store and never decodes an entry.

A tile holds 256 hashes of one level and everything above them but their root: eight rows, the widest first. So any
hash of the tree is one slice of one tile, and a proof over a million leaves reads three of them.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

Node = Callable[[int, int], bytes]

EMPTY_ROOT = sha256(b"").digest()
HEIGHT = 8  # levels in a tile
WIDTH = 1 << HEIGHT
HASH = 32  # bytes
TILE = (2 * WIDTH - 2) * HASH  # bytes of a whole tile


def leaf_hash(entry: bytes) -> bytes:
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


# Many hashes at once: copying a state that has begun costs two thirds of beginning anew.
_LEAF, _NODE = sha256(b"\x00"), sha256(b"\x01")
_update, _digest = type(_NODE).update, type(_NODE).digest


def leaf_hashes(entries: Iterable[bytes]) -> list[bytes]:
    hashes: list[bytes] = []
    begin, keep = _LEAF.copy, hashes.append
    for entry in entries:
        state = begin()
        state.update(entry)
        keep(state.digest())
    return hashes


def parents(row: Sequence[bytes]) -> list[bytes]:
    """The row above; a last one without a sibling has no parent yet."""
    states = [_NODE.copy() for _ in range(len(row) // 2)]
    # A step for all of them at a time runs in C throughout.
    deque(map(_update, states, row[::2]), maxlen=0)
    deque(map(_update, states, row[1::2]), maxlen=0)
    return list(map(_digest, states))


class Tree:
    """A tree that only grows at its right edge, in memory of its frontier: one hash per bit of its size."""

    __slots__ = ("_edge", "size")

    def __init__(self, size: int = 0, frontier: Iterable[bytes] = ()) -> None:
        self.size = size
        self._edge = list(frontier)  # roots of the complete subtrees, the largest first
        if len(self._edge) != size.bit_count():
            raise ValueError(
                f"a tree of {size} leaves has {size.bit_count()} hashes at its edge, not {len(self._edge)}"
            )

    @property
    def frontier(self) -> tuple[bytes, ...]:
        return tuple(self._edge)

    def append(self, leaf: bytes) -> None:
        self.graft(leaf, 0)

    def graft(self, subtree: bytes, level: int) -> None:
        """Append a complete subtree of `1 << level` leaves. The size must be a multiple of that."""
        if self.size & ((1 << level) - 1):
            raise ValueError(f"a subtree of level {level} does not fit at {self.size}")
        rest = self.size >> level
        while rest & 1:
            subtree = node_hash(self._edge.pop(), subtree)
            rest >>= 1
        self._edge.append(subtree)
        self.size += 1 << level

    def root(self) -> bytes:
        if not self._edge:
            return EMPTY_ROOT
        root = self._edge[-1]
        for left in reversed(self._edge[:-1]):
            root = node_hash(left, root)
        return root


def root_of(leaves: Iterable[bytes]) -> bytes:
    tree = Tree()
    for leaf in leaves:
        tree.append(leaf)
    return tree.root()


def root_at(size: int, node: Node) -> bytes:
    return _range_root(0, size, node) if size else EMPTY_ROOT


def inclusion_proof(index: int, size: int, node: Node) -> list[bytes]:
    """The hashes that lead from the leaf to the root of the tree of `size` leaves, the lowest first."""
    if not 0 <= index < size:
        raise ValueError(f"there is no leaf {index} in a tree of {size}")
    first, last, proof = 0, size, list[bytes]()
    while last - first > 1:
        middle = first + _split(last - first)
        if index < middle:
            proof.append(_range_root(middle, last, node))
            last = middle
        else:
            proof.append(_range_root(first, middle, node))
            first = middle
    proof.reverse()
    return proof


def consistency_proof(old: int, new: int, node: Node) -> list[bytes]:
    """The hashes that show the tree of `old` leaves to be the beginning of the tree of `new`."""
    if not 0 < old <= new:
        raise ValueError(f"no proof leads from a tree of {old} to one of {new}")
    first, last, whole, proof = 0, new, True, list[bytes]()
    while old != last:
        middle = first + _split(last - first)
        if old <= middle:
            proof.append(_range_root(middle, last, node))
            last = middle
        else:
            proof.append(_range_root(first, middle, node))
            first, whole = middle, False
    if not whole:
        proof.append(_range_root(first, last, node))
    proof.reverse()
    return proof


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """RFC 9162 §2.1.3.2."""
    if not 0 <= index < size:
        return False
    place, last, seen = index, size - 1, leaf
    for other in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            seen = node_hash(other, seen)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            seen = node_hash(seen, other)
        place, last = place >> 1, last >> 1
    return last == 0 and seen == root


def verify_consistency(old: int, new: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> bool:
    """RFC 9162 §2.1.4.2."""
    if not 0 < old <= new:
        return False
    if old == new:
        return not proof and old_root == new_root
    path = list(proof)
    if old & (old - 1) == 0:
        path.insert(0, old_root)
    if not path:
        return False
    place, last = old - 1, new - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    seen_old = seen_new = path[0]
    for other in path[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            seen_old, seen_new = node_hash(other, seen_old), node_hash(other, seen_new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            seen_new = node_hash(seen_new, other)
        place, last = place >> 1, last >> 1
    return last == 0 and seen_old == old_root and seen_new == new_root


def tile_key(level: int, index: int) -> str:
    """The name of a tile; its level counts tiles, so tile level 1 begins at tree level 8."""
    return f"{level}/{index:015}"


def pack_tile(row: Sequence[bytes]) -> tuple[bytes, bytes]:
    """The tile over 256 hashes, and its root."""
    rows: list[bytes] = []
    while len(row) > 1:
        rows.extend(row)
        row = parents(row)
    return b"".join(rows), row[0]


def tile_root(tile: bytes) -> bytes:
    return node_hash(tile[-2 * HASH : -HASH], tile[-HASH:])


def place_of(level: int, index: int) -> tuple[int, int, int]:
    """Where the hash of a complete subtree lies: tile level, tile index, and its offset in the tile in bytes."""
    tile_level, row = divmod(level, HEIGHT)
    across = HEIGHT - row  # bits of the index within the tile
    before = 2 * WIDTH - (2 * WIDTH >> row)  # hashes in the rows before
    return tile_level, index >> across, (before + (index & ((1 << across) - 1))) * HASH


def _split(count: int) -> int:
    """The largest power of two below `count`."""
    return 1 << ((count - 1).bit_length() - 1)


def _range_root(first: int, last: int, node: Node) -> bytes:
    """The root over a range that begins where a subtree of its size may begin."""
    pieces: list[bytes] = []
    while first < last:
        level = (last - first).bit_length() - 1
        pieces.append(node(level, first >> level))
        first += 1 << level
    root = pieces.pop()
    while pieces:
        root = node_hash(pieces.pop(), root)
    return root
