"""What is checked before a journal is gone on with: nothing missing, nothing changed, as far as a boot can afford.

Goes in: the store, and the anchor and mark of the home. Comes out: the first damage, or None. It never writes.

Every stored tile that the root depends on is compared, through the root, with the newest signed head, the newest
anchored heads and the mark; the newest entries are hashed again and compared with their tiles. Older entries are
trusted to their tiles here: hashing all of them again is `agentctl audit verify`, which takes seconds per million.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct

from agent_os.abi import entries
from agent_os.abi.entries import Head
from agent_os.abi.errors import EIO, AgentOSError, FailureSeverity
from agent_os.abi.heads import Note, parse_note
from agent_os.abi.tree import HASH, WIDTH, leaf_hash
from agent_os.drivers.store import Row, Store
from agent_os.kernel.journal.heads import read_anchor, read_mark
from agent_os.kernel.journal.tiles import BUCKET, TAIL, Missing, Tiles
from agent_os.kernel.journal.writer import META

RECENT = 1 << 16  # entries hashed again at every opening, about a quarter of a second


class Damage(Struct, frozen=True):
    seq: int  # the first bad entry, or the first that may be: up to `through` they cannot be told apart
    through: int
    what: str

    def error(self) -> EIO:
        which = f"entry {self.seq}" if self.through == self.seq else f"entries {self.seq} to {self.through}"
        error = EIO(
            "journal.damaged",
            f"the journal is damaged at {which}: {self.what}",
            hint="read it with `agentctl audit verify` or a kernel that is --read-only; restore a backup to go on",
            seq=self.seq,
            through=self.through,
        )
        error.severity = FailureSeverity.CRITICAL
        return error


class _Found(Exception):
    def __init__(self, seq: int, what: str, through: int | None = None) -> None:
        super().__init__(what)
        self.damage = Damage(seq, through or seq, what)


def damage(store: Store, tiles: Tiles, home: Path | None, log_id: bytes | None, key: bytes | None) -> Damage | None:
    """`log_id` and `key` as stored, None if the store knows none. Loads the tree into `tiles` on its way."""
    try:
        size = store.size()
        heads = _heads(store, home, log_id, key)
        mark = read_mark(home) if home else None
        known = sorted({(head.size, head.root) for head in heads} | ({mark} if mark else set()))
        if known and known[-1][0] > size:
            raise _Found(size + 1, "they were on disk and are gone, or an old copy was put back", known[-1][0])
        _check_recent(store, tiles, size)
        _check_roots(tiles, known)
    except _Found as found:
        return found.damage
    except Missing as missing:
        return Damage(missing.first + 1, missing.first + WIDTH, "its part of the tree is missing or changed")
    except AgentOSError as problem:
        return Damage(*_unreadable(store), what=f"the store cannot read it: {problem.reason}")
    except (TypeError, ValueError) as problem:  # a value of another kind than was ever stored
        return Damage(1, 1, f"a fact beside it cannot be read: {problem}")
    return None


class Identity(NamedTuple):
    """What the store says of its journal; None and 0 in a new one."""

    size: int
    log_id: bytes | None
    boot: int
    key: bytes | None


def identity(store: Store) -> Identity:
    try:
        boot = int(store.get(META, "boot") or 0)
        return Identity(store.size(), store.get(META, "log_id"), boot, store.get(META, "key"))
    except (AgentOSError, TypeError, ValueError) as problem:
        raise Damage(1, 1, f"the journal's own facts cannot be read: {problem}").error() from problem


def _heads(store: Store, home: Path | None, log_id: bytes | None, key: bytes | None) -> list[Head]:
    try:
        heads = read_anchor(home) if home else []
        stored = store.get(META, "head")
        note = parse_note(stored) if stored else None
    except (ValueError, KeyError) as problem:
        raise _Found(1, f"a signed head cannot be read: {problem}") from problem
    if heads and log_id is None:
        raise _Found(1, "the store is empty and the anchor is not", heads[-1].size)
    if note is not None:
        if key is None or not _signed(note, key):
            raise _Found(1, "the newest head is not signed by the journal's key", note.head.size)
        heads.append(note.head)
    if any(head.log_id != log_id for head in heads):
        raise _Found(1, "its heads are another journal's", heads[-1].size)
    return heads


def _signed(note: Note, key: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(note.signatures[0].signature, note.text)
    except (InvalidSignature, ValueError, IndexError):
        return False
    return True


def _check_recent(store: Store, tiles: Tiles, size: int) -> None:
    """Rows against the leaves of their tiles, and against themselves."""
    first = max(0, size - RECENT) // WIDTH * WIDTH
    expected = first + 1
    aseqs: dict[str, int] = {}
    leaves = _leaves(store, tiles, first // WIDTH, size)
    for row in store.rows(first + 1, size):
        if row.seq != expected:
            raise _Found(expected, "it is missing")
        _check_row(row, aseqs, next(leaves))
        expected += 1
    if expected != size + 1:
        raise _Found(expected, "it is missing")
    tiles.load(size)


def _leaves(store: Store, tiles: Tiles, tile: int, size: int) -> Iterator[bytes | None]:
    """The stored leaf hashes from a tile on; None after the newest head, where none is stored yet."""
    for index in range(tile, size // WIDTH):
        yield from tiles.leaves(index)
    tail = store.get(BUCKET, TAIL) or b""
    if tail[:8] == (size // WIDTH).to_bytes(8):
        yield from (tail[at : at + HASH] for at in range(8, len(tail), HASH))
    while True:
        yield None


def _check_row(row: Row, aseqs: dict[str, int], leaf: bytes | None) -> None:
    try:
        if leaf is not None and leaf_hash(row.entry) != leaf:
            raise _Found(row.seq, "its bytes were changed")
        entry = entries.decode(row.entry)
    except (msgspec.MsgspecError, TypeError) as problem:
        raise _Found(row.seq, f"its bytes are no entry: {problem}") from problem
    if (entry.seq, entry.agent, entry.aseq) != row[:3]:
        raise _Found(row.seq, "its row says something else than its bytes")
    if entry.agent in aseqs and aseqs[entry.agent] + 1 != entry.aseq:
        raise _Found(row.seq, f"an entry of {entry.agent} before it is missing")
    aseqs[entry.agent] = entry.aseq
    if row.body is not None and sha256(row.body).digest() != entry.body:
        raise _Found(row.seq, "its body was changed")


def _check_roots(tiles: Tiles, known: list[tuple[int, bytes]]) -> None:
    good = 0
    for size, root in known:
        if tiles.root(size) != root:
            raise _Found(good + 1, "the tree is not the one that was signed", size)
        good = size


def _unreadable(store: Store) -> tuple[int, int]:
    """The first row that the store cannot give; the pages after it may be as bad."""
    seq = 1
    try:
        for row in store.rows(1):
            seq = row.seq + 1
    except AgentOSError:
        pass
    return seq, seq
