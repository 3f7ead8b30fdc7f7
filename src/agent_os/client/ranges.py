"""The part of a verification that reads every entry: a range of them, hashed and checked by itself.

Goes in: a source and a range that begins with a tile. Comes out: a `Part`, which says what is wrong in the range and
holds what must be compared across ranges. Ranges are independent, so several processes can each take one.

Half of the time goes to SHA-256, three times an entry: its leaf, its body, a node of the tree. So of an entry only the
beginning is decoded; all of it only where something does not fit.
"""

import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from agent_os.abi import entries
from agent_os.abi.entries import Kind
from agent_os.abi.errors import AgentOSError
from agent_os.abi.tree import HASH, WIDTH, leaf_hash, leaf_hashes, node_hash, parents
from agent_os.client.sources import RawRow, Source, open_source

MOST_FINDINGS = 100
_NOTED = frozenset({Kind.INTENT, Kind.OUTCOME, Kind.PARK, Kind.RESOLVE, Kind.KEY, Kind.REDACT, Kind.BOOT})
_NOTHING = sha256()
# Where the hash of its body stands in an entry whose code, the last field, takes one byte. In any other entry these are
# other bytes, and to find a body with just their hash is to invert SHA-256.
_DIGEST = slice(-HASH - 1, -1)


class _Begin(Struct, array_like=True, gc=False):
    """As `Entry` begins; what comes after is skipped."""

    seq: int
    agent: str
    aseq: int
    inc: int
    epoch: int
    wall_ns: int
    kind: int
    op: int = 0
    effect: str = ""
    ref: int = 0


_begin = msgspec.msgpack.Decoder(_Begin).decode


class Finding(Struct):
    """Something wrong: at `seq`, or somewhere from there to `through`."""

    seq: int
    through: int
    what: str


class Part(Struct):
    """What one range gave."""

    first: int
    last: int
    roots: list[bytes] = field(default_factory=list[bytes])  # of its whole tiles
    edges: dict[int, list[tuple[int, bytes]]] = field(default_factory=dict[int, list[tuple[int, bytes]]])
    # of the entry after a wanted size, of the last one, and of those at and before a boot
    walls: dict[int, int] = field(default_factory=dict[int, int])
    boots: list[int] = field(default_factory=list[int])  # entries that begin one
    # by agent: its first number here and that entry's, its last number
    agents: dict[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    open: list[int] = field(default_factory=list[int])  # intents not answered in this range
    answers: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # entry, the earlier one it answers
    bodies: dict[bytes, int] = field(default_factory=dict[bytes, int])  # kept elsewhere: digest, first entry
    keys: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])  # entry, its body
    erased: list[bytes] = field(default_factory=list[bytes])
    findings: list[Finding] = field(default_factory=list[Finding])


Progress = Callable[[int], object]  # told how many entries are done


def check_range(source: Source, first: int, last: int, wanted: Iterable[int], progress: Progress | None = None) -> Part:
    """`wanted` are sizes at which the root must be known: for each, the edge of the tree within its last tile."""
    collecting = gc.isenabled()
    gc.disable()  # millions of short-lived objects and no circle: looking for one takes a third of the time
    try:
        return _Range(source, first, last, wanted).run(progress)
    finally:
        if collecting:
            gc.enable()


class _Range:
    def __init__(self, source: Source, first: int, last: int, wanted: Iterable[int]) -> None:
        self._source = source
        self._part = Part(first, last)
        self._next = first  # the first entry that was not looked at
        self._open: set[int] = set()
        self._first: dict[str, tuple[int, int]] = {}  # by agent: its own number, the entry's
        self._last: dict[str, int] = {}  # by agent: its own number
        self._walls: set[int] = set()  # entries whose time is wanted
        self._tiles = source.facts().tiles
        self._wanted: dict[int, list[int]] = {}  # tile index: sizes that end in it
        for size in wanted:
            if first <= size <= last:
                self._wanted.setdefault((size - 1) // WIDTH, []).append(size)
            self._walls.add(size + 1)

    def run(self, progress: Progress | None) -> Part:
        part = self._part
        try:
            self._runs(progress)
        except AgentOSError as problem:  # the file cannot be read any further
            self._find(self._next, part.last, problem.reason)
        except (TypeError, ValueError, LookupError, AttributeError, msgspec.MsgspecError) as problem:
            # Whatever a forger left in the place of a value: it is not what a journal holds.
            self._find(self._next, part.last, f"something here is no part of a journal: {problem!r}")
        part.agents = {agent: (*self._first[agent], last) for agent, last in self._last.items()}
        part.open = sorted(self._open)
        return part

    def _runs(self, progress: Progress | None) -> None:
        part = self._part
        for rows in self._source.runs(part.first, part.last):
            missing = self._numbers(rows, self._next, part.last)
            if missing:
                self._find(missing, missing, "the entry is missing, or another stands in its place")
                return  # what follows would be compared with the wrong places of the tree
            if not self._entries(rows):
                return
            self._next += len(rows)
            if progress:
                progress(self._next - part.first)
            if len(part.findings) >= MOST_FINDINGS:
                return
        if self._next <= part.last:
            self._find(self._next, part.last, "the entries are missing")

    def _find(self, seq: int, through: int, what: str) -> None:
        self._part.findings.append(Finding(seq, through, what))

    def _numbers(self, rows: Sequence[RawRow], expected: int, last: int) -> int:
        """The first number that is not in its place, or 0."""
        for row in rows:
            if row[0] != expected:
                return expected
            expected += 1
        short = rows and len(rows) % WIDTH and expected <= last
        return expected if short or not rows else 0

    def _entries(self, rows: Sequence[RawRow]) -> bool:
        try:
            leaves = leaf_hashes([row[3] for row in rows])
            self._fields(rows)
        except (TypeError, ValueError, LookupError, msgspec.MsgspecError):
            return self._worst(rows)
        first = rows[0][0]
        self._times(rows, first)
        for at in range(0, len(leaves), WIDTH):
            self._tile((first - 1 + at) // WIDTH, leaves[at : at + WIDTH])
        return True

    def _fields(self, rows: Sequence[RawRow]) -> None:
        last = self._last
        new_hash = _NOTHING.copy  # cheaper than a new one for each
        for seq, agent, aseq, raw, body in rows:
            entry = _begin(raw)
            if entry.seq != seq or entry.agent != agent or entry.aseq != aseq:
                self._find(seq, seq, "the row says something else than the entry")
                continue
            if last.get(agent) != aseq - 1:
                self._out_of_turn(seq, agent, aseq)
            last[agent] = aseq
            if body is None:
                self._elsewhere(seq, entries.decode(raw).body)
            else:
                state = new_hash()
                state.update(body)
                digest = state.digest()
                if digest != raw[_DIGEST] and digest != entries.decode(raw).body:
                    self._find(seq, seq, "its body is not the one that was hashed")
            if entry.kind in _NOTED:
                self._note(seq, entry.kind, entry.ref, body)

    def _times(self, rows: Sequence[RawRow], first: int) -> None:
        """Where gaps between heads may begin and end."""
        here = range(first, first + len(rows))
        boots = [seq for seq in self._part.boots if seq in here]
        for seq in {here[-1], *boots, *(seq - 1 for seq in boots), *self._walls.intersection(here)}:
            if seq in here:
                self._part.walls[seq] = _begin(rows[seq - first][3]).wall_ns

    def _elsewhere(self, seq: int, digest: bytes) -> None:
        if digest:
            self._part.bodies.setdefault(digest, seq)

    def _out_of_turn(self, seq: int, agent: str, aseq: int) -> None:
        if agent in self._last:
            what = f"it is number {aseq} of {agent}, and the one before was {self._last[agent]}"
            self._find(seq, seq, what)
        else:
            self._first[agent] = aseq, seq

    def _note(self, seq: int, kind: int, ref: int, body: bytes | None) -> None:
        if kind == Kind.INTENT:
            self._open.add(seq)
        elif kind == Kind.BOOT:
            self._part.boots.append(seq)
        elif kind == Kind.KEY:
            self._part.keys.append((seq, body or b""))
        elif kind == Kind.REDACT:
            self._part.erased += _digests(body)
        elif kind == Kind.PARK:
            if ref >= self._part.first and ref not in self._open:
                self._find(seq, seq, f"it parks entry {ref}, which is no open intent")
        elif ref in self._open:
            self._open.remove(ref)
        elif ref >= self._part.first:
            self._find(seq, seq, f"it answers entry {ref}, which is no intent or was answered before")
        elif ref:
            self._part.answers.append((seq, ref))

    def _tile(self, index: int, leaves: list[bytes]) -> None:
        rows = [leaves]
        while len(rows[-1]) > 1:
            rows.append(parents(rows[-1]))
        whole = len(leaves) == WIDTH
        if whole:
            self._part.roots.append(rows[-1][0])
        for size in self._wanted.get(index, ()):
            self._part.edges[size] = _edge(rows, size - index * WIDTH)
        self._compare(index, rows, whole)

    def _compare(self, index: int, rows: list[list[bytes]], whole: bool) -> None:
        """With the hashes stored beside the entries. They prove nothing, but they tell which entry is the bad one."""
        first = index * WIDTH + 1
        if whole and self._tiles and self._source.tile(0, index) == b"".join(chain.from_iterable(rows[:-1])):
            return
        stored = self._source.leaves(index)
        if not isinstance(stored, bytes) or (whole and len(stored) != WIDTH * HASH):
            if whole:
                self._find(first, first + WIDTH - 1, "its hashes in the stored tree are missing")
            return
        for at, leaf in enumerate(rows[0]):
            if stored[at * HASH : (at + 1) * HASH] not in (leaf, b""):
                self._find(first + at, first + at, "the entry is not the one in the stored tree")
                return
        if whole and self._tiles:
            self._find(first, first + WIDTH - 1, "the stored tree does not fit together above it")

    def _worst(self, rows: Sequence[RawRow]) -> bool:
        """Some row is not even an entry: name it. The run cannot be hashed, so nothing after it is checked."""
        for row in rows:
            try:
                leaf_hash(row[3])
                entries.decode(row[3])
                sha256(row[4] or b"")
            except (TypeError, msgspec.MsgspecError) as problem:
                self._find(row[0], row[0], f"it is no entry: {problem}")
                return False
        self._find(rows[0][0], rows[-1][0], "one of the entries cannot be read")
        return False


def _digests(body: bytes | None) -> list[bytes]:
    said: dict[str, Any] = msgspec.msgpack.decode(body) if body else {}
    return [digest for digest in said.get("digests", ()) if isinstance(digest, bytes)]


def _edge(rows: list[list[bytes]], count: int) -> list[tuple[int, bytes]]:
    """The complete subtrees over the first `count` leaves of a tile, the largest first."""
    edge: list[tuple[int, bytes]] = []
    at = 0
    for level in reversed(range(len(rows))):
        if count & (1 << level):
            edge.append((level, rows[level][at >> level]))
            at += 1 << level
    return edge


def upper_tiles(roots: Sequence[bytes]) -> Iterable[tuple[int, int, bytes]]:
    """The tiles above whole leaf tiles, as they must be stored: level, index, bytes."""
    level, row = 1, list(roots)
    while len(row) >= WIDTH:
        above: list[bytes] = []
        for at in range(0, len(row) // WIDTH * WIDTH, WIDTH):
            rows = [row[at : at + WIDTH]]
            while len(rows[-1]) > 2:
                rows.append(parents(rows[-1]))
            yield level, at // WIDTH, b"".join(value for each in rows for value in each)
            above.append(node_hash(*rows[-1]))
        level, row = level + 1, above


def _help() -> None:
    """One range, for another process: the order comes in, the part goes out."""
    order: dict[str, Any] = msgspec.msgpack.decode(sys.stdin.buffer.read())
    first, last = order["span"]
    try:
        part = check_range(open_source(Path(order["path"])), first, last, order["wanted"])
    except AgentOSError as problem:
        part = Part(first, last, findings=[Finding(first, last, problem.reason)])
    sys.stdout.buffer.write(msgspec.msgpack.encode(part))


if __name__ == "__main__":
    _help()
