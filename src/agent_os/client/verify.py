"""The offline verifier: does this journal say what was recorded, and nothing else?

Goes in: a journal's database or an export, the public key that the auditor keeps, and the anchored heads. Comes out: a
`Report` with the first bad sequence number. It imports nothing of the kernel, re-encodes nothing and changes nothing.

What it establishes: every entry from 1 on is there, hashes into the tree of every head, and every head is signed by a
key of the chain that the given key belongs to. Bodies fit their hashes; one that is gone was erased by an entry. Each
agent's own numbers have no gap; each outcome answers one intent, once. What it cannot: tell a change by somebody who
holds the key and every copy of the anchor.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from msgspec import Struct, field

from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.abi.heads import (
    Note,
    key_hash,
    key_id,
    key_statement,
    origin,
    parse_note,
    parse_verifier_key,
    split_notes,
)
from agent_os.abi.tree import HASH, WIDTH, Tree, leaf_hash, root_of
from agent_os.client.ranges import MOST_FINDINGS, Finding, Part, check_range, upper_tiles
from agent_os.client.sources import Facts, Source, open_source

TAMPERED = 10  # exit code
GAP_NS = 2_000_000_000
RANGES = "agent_os.client.ranges"
ALONE = 1 << 16  # entries below which a second process would start later than the first one ends
# What else takes time, in entries that could be checked meanwhile: a process to start, a signature to check.
START, SIGNATURE = 25_000, 40
Progress = Callable[[int, int], object]  # told how many entries are done, about, and how many there are


class Report(Struct):
    log_id: str = ""
    entries: int = 0
    root: str = ""  # of all entries
    signed: int = 0  # entries covered by the newest good head
    heads: int = 0
    keys: list[str] = field(default_factory=list[str])  # ids, the first one first
    pinned: bool = False  # the given key belongs to the chain; without one, the journal vouches for itself
    anchored: int = 0  # heads from the anchor
    erased: int = 0  # bodies that an entry says were erased
    findings: list[Finding] = field(default_factory=list[Finding])
    gaps: list[Finding] = field(default_factory=list[Finding])  # entries that no head covered for over two seconds

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def first_bad(self) -> int | None:
        return min((finding.seq for finding in self.findings), default=None)


def verify(
    path: Path,
    *,
    key: str | None = None,
    anchor: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a journal. `key` is a line as in `keys/journal.pub`; `anchor` a file of heads kept elsewhere."""
    anchored = _read_anchor(anchor)  # before the database, which may be growing: it must not fall behind
    source = open_source(path)
    try:
        return _Verification(path, source, key, anchored, workers or os.cpu_count() or 1, progress).run()
    finally:
        source.close()


def _read_anchor(anchor: Path | None) -> list[bytes]:
    if anchor is None:
        return []
    try:
        return split_notes(anchor.read_bytes())
    except OSError as problem:
        raise EINVAL("journal.anchor", f"cannot read {anchor}: {problem.strerror}") from problem


class _Verification:
    def __init__(
        self,
        path: Path,
        source: Source,
        key: str | None,
        anchored: list[bytes],
        workers: int,
        progress: Progress | None,
    ) -> None:
        self._path, self._source, self._workers, self._progress = path, source, workers, progress
        self._anchored = anchored
        self._key = _parse_key(key)
        self._report = Report(pinned=False)
        self._public: dict[bytes, bytes] = {}  # key id: key
        self._since: list[tuple[int, bytes]] = []  # from which entry on which key id signs

    def run(self) -> Report:
        report = self._report
        try:
            facts = self._source.facts()
            known = self._notes(facts)
            self._whole(facts, [note for note, _ in known])
            parts = self._parts(facts.size, sorted({0} | {note.head.size for note, _ in known}))
            self._numbers(parts)
            self._answers(parts)
            self._key_chain(facts, parts)
            self._bodies(facts, parts)
            self._roots(facts, known, parts)
            self._pinned(facts)
        except AgentOSError as problem:  # the file cannot be read any further
            self._find(1, 1, problem.reason)
        except (TypeError, ValueError, LookupError, AttributeError) as problem:
            # Whatever a forger left in the place of a value: it is not what a journal holds.
            self._find(1, report.entries, f"something in it is no part of a journal: {problem!r}")
        report.findings = sorted(report.findings, key=lambda finding: (finding.seq, finding.through))[:MOST_FINDINGS]
        return report

    def _find(self, seq: int, through: int, what: str) -> None:
        self._report.findings.append(Finding(seq, max(seq, through), what))

    def _notes(self, facts: Facts) -> list[tuple[Note, bool]]:
        """Every head, by size, and whether the anchor holds it."""
        notes: dict[Note, bool] = {}
        for anchored, raws in ((False, self._source.heads()), (True, self._anchored)):
            for raw in raws:
                try:
                    notes[parse_note(raw)] = anchored
                except (ValueError, KeyError, AttributeError, TypeError, UnicodeError) as problem:
                    where = "anchor" if anchored else "journal"
                    self._find(1, facts.size, f"a head of the {where} cannot be read: {problem}")
        self._report.anchored = len(self._anchored)
        return sorted(notes.items(), key=lambda pair: (pair[0].head.size, pair[0].head.boot))

    def _whole(self, facts: Facts, notes: Sequence[Note]) -> None:
        report = self._report
        report.entries, report.heads = facts.size, len(notes)
        report.log_id = facts.log_id.hex() if isinstance(facts.log_id, bytes) else ""
        if not facts.size:
            self._find(1, notes[-1].head.size if notes else 1, "the journal is empty")
        elif not notes:
            self._find(1, facts.size, "no head is signed")
        elif notes[-1].head.size > facts.size:
            newest = notes[-1].head
            self._find(facts.size + 1, newest.size, f"they were signed in boot {newest.boot} and are gone")
        expected = self._key[0] if self._key else facts.log_id
        if facts.log_id != expected or any(note.head.log_id != expected for note in notes):
            self._find(1, facts.size, "this is another journal than the key's, or carries another's heads")

    def _parts(self, size: int, wanted: list[int]) -> list[Part]:
        if not size:
            return []
        spans = _spans(size, 1 if size < ALONE else self._workers, len(wanted))
        helpers = [_start_helper(self._path, span, wanted) for span in spans[1:]]
        own = spans[0][1]
        tell = self._progress  # the others are about as far as this one
        parts = [check_range(self._source, 1, own, wanted, tell and (lambda done: tell(size * done // own, size)))]
        parts += [_result(helper, *span) for helper, span in zip(helpers, spans[1:], strict=True)]
        for part in parts:
            self._report.findings += part.findings
        return parts

    def _numbers(self, parts: Sequence[Part]) -> None:
        last: dict[str, int] = {}
        for part in parts:
            for agent, (first, seq, newest) in part.agents.items():
                if first != last.get(agent, 0) + 1:
                    self._find(seq, seq, f"it is number {first} of {agent}, and the one before is missing")
                last[agent] = newest

    def _answers(self, parts: Sequence[Part]) -> None:
        waiting: set[int] = set()
        for part in parts:
            for seq, ref in part.answers:
                if ref in waiting:
                    waiting.remove(ref)
                else:
                    self._find(seq, seq, f"it answers entry {ref}, which is no intent or was answered before")
            waiting.update(part.open)

    def _key_chain(self, facts: Facts, parts: Sequence[Part]) -> None:
        """Who may sign from which entry on. Each key but the first is brought in by the one before it."""
        held = b""
        for seq, body in (pair for part in parts for pair in part.keys):
            try:
                said = msgspec.msgpack.decode(body)
                statement = key_statement(said["log_id"], seq, said["old"], said["new"])
                if said["old"] != held or said["log_id"] != facts.log_id or bool(held) != (seq > 1):
                    raise ValueError("it does not follow the key before it")
                if held:
                    _check(held, said["by_old"], statement)
                _check(said["new"], said["by_new"], statement)
            except (msgspec.MsgspecError, KeyError, TypeError, ValueError, InvalidSignature) as problem:
                self._find(seq, seq, f"the key is not rightly brought in: {problem or 'the signature is wrong'}")
                continue
            held = said["new"]
            self._public[key_id(held)] = held
            self._since.append((seq, key_id(held)))
        self._report.keys = [key.hex() for _, key in self._since]

    def _pinned(self, facts: Facts) -> None:
        if self._key:
            self._report.pinned = self._key[1] in self._public.values()
            # In a journal cut short the key may have been in what is gone, which was named already.
            if not self._report.pinned and self._report.ok:
                self._find(1, facts.size, "the given key is not in the journal's chain of keys")

    def _bodies(self, facts: Facts, parts: Sequence[Part]) -> None:
        if not facts.bodies:
            return
        seqs: dict[bytes, int] = {}
        for part in parts:
            for digest, seq in part.bodies.items():
                seqs.setdefault(digest, seq)
        erased = {digest for part in parts for digest in part.erased}
        for digest, data in self._source.bodies():
            seq = seqs.pop(digest, 0)
            if seq and (not isinstance(data, bytes) or sha256(data).digest() != digest):
                self._find(seq, seq, "its body is not the one that was hashed")
        for digest, seq in seqs.items():
            if digest in erased:
                self._report.erased += 1
            else:
                self._find(seq, seq, "its body is gone, and no entry says that it was erased")

    def _roots(self, facts: Facts, known: Sequence[tuple[Note, bool]], parts: Sequence[Part]) -> None:
        """The tree of every head, rebuilt from the entries. After the first range that broke off, nothing is known."""
        roots, edges, walls = list[bytes](), dict[int, list[tuple[int, bytes]]](), dict[int, int]()
        boots = [seq for part in parts for seq in part.boots]
        for part in parts:
            roots += part.roots
            edges |= part.edges
            walls |= part.walls
            if len(part.roots) < (part.last - part.first + 1) // WIDTH:
                break
        tree, good, good_anchored = Tree(), 0, 0
        previous: Note | None = None
        for note, anchored in known:
            size = note.head.size
            if size not in edges:  # beyond what is there, or beyond what could be read
                break
            if self._root(tree, roots, edges[size], size) != note.head.root:
                # After a fork the journal's own heads may all be good; only what the anchor knows counts against it.
                self._differs((good_anchored if anchored else good) + 1, note)
                break
            if not self._signed(note):
                self._find(good + 1, size, "the head is not signed by the key that signs here")
                break
            self._gap(previous, note, walls, boots)
            previous, good = note, size
            good_anchored = size if anchored else good_anchored
        self._report.signed = good
        if self._report.ok:
            self._tail(facts, good, walls, previous, roots)

    def _differs(self, first: int, note: Note) -> None:
        """Some entry up to this head is bad. If the hashes stored beside the entries are the signed ones, whoever does
        not fit his is named already; else nothing tells which of them it is."""
        size = note.head.size
        named = any(first <= finding.seq == finding.through <= size for finding in self._report.findings)
        if not named or self._stored_root(size) != note.head.root:
            self._find(first, size, "the entries are not those of the signed head")

    def _stored_root(self, size: int) -> bytes:
        stored = [self._source.leaves(index) for index in range(-(-size // WIDTH))]
        leaves = b"".join(part for part in stored if isinstance(part, bytes))[: size * HASH]
        return root_of(leaves[at : at + HASH] for at in range(0, len(leaves), HASH))

    def _root(self, tree: Tree, roots: list[bytes], edge: list[tuple[int, bytes]], size: int) -> bytes:
        while (tree.size + WIDTH) < size or (tree.size + WIDTH == size and size // WIDTH <= len(roots)):
            tree.graft(roots[tree.size // WIDTH], 8)
        whole = Tree(tree.size, tree.frontier)
        if tree.size < size:
            for level, piece in edge:
                whole.graft(piece, level)
        return whole.root()

    def _signed(self, note: Note) -> bool:
        """By the key in force at that size, and by no other."""
        ruling = [key for seq, key in self._since if seq <= note.head.size][-1:]
        if [note.head.key_id] != ruling or len(note.signatures) != 1:
            return False
        name, used, signature = note.signatures[0]
        public = self._public[note.head.key_id]
        if name != origin(note.head.log_id) or used != key_hash(name, public):
            return False
        try:
            _check(public, signature, note.text)
        except (InvalidSignature, ValueError):
            return False
        return True

    def _gap(self, before: Note | None, note: Note, walls: dict[int, int], boots: Sequence[int]) -> None:
        """A kernel that lives signs every second; one that was killed signs nothing until it boots again. So what each
        boot wrote since the last head must have been signed in time, or have been written just before its end."""
        first = before.head.size + 1 if before else 1
        between = [seq for seq in boots if first < seq <= note.head.size]
        if before is not None and before.head.boot != note.head.boot and not (between or first in boots):
            return  # of another boot, and it does not say where that began
        for start, end in pairwise([first, *between, note.head.size + 1]):
            until = note.head.wall_ns if end > note.head.size else walls.get(end - 1, 0)
            late = until - walls.get(start, until)
            if late > GAP_NS:
                self._report.gaps.append(Finding(start, end - 1, f"no head covered it for {late / 1e9:.1f} s"))

    def _tail(
        self, facts: Facts, good: int, walls: dict[int, int], newest: Note | None, roots: Sequence[bytes]
    ) -> None:
        if newest is not None and good == facts.size:
            self._report.root = newest.head.root.hex()
        elif time.time_ns() - walls.get(good + 1, 0) > GAP_NS:
            what = "no head covers it: the kernel was killed and has not booted since, or it was added by somebody"
            self._report.gaps.append(Finding(good + 1, facts.size, what))
        if facts.tiles and newest is not None:
            self._open_tile(newest.head.size)
            for level, index, tile in upper_tiles(roots):
                if self._source.tile(level, index) != tile:
                    below = WIDTH ** (level + 1)
                    self._find(index * below + 1, (index + 1) * below, "the stored tree above it was changed")

    def _open_tile(self, size: int) -> None:
        """The hashes of the newest head's last tile, which is not whole, lie apart."""
        first = size // WIDTH * WIDTH + 1
        rows = [row for run in self._source.runs(first, size) for row in run] if first <= size else []
        if self._source.tail() != (size // WIDTH).to_bytes(8) + b"".join(leaf_hash(row[3]) for row in rows):
            self._find(first, size, "its hashes in the stored tree were changed")


def _parse_key(key: str | None) -> tuple[bytes, bytes] | None:
    try:
        return parse_verifier_key(key) if key else None
    except ValueError as problem:
        raise EINVAL("journal.key", f"this is no key of a journal: {problem}", hint="see keys/journal.pub") from problem


def _check(public: bytes, signature: bytes, text: bytes) -> None:
    Ed25519PublicKey.from_public_bytes(public).verify(signature, text)


def _spans(size: int, count: int, heads: int) -> list[tuple[int, int]]:
    """What this process takes, then what each helper does, so that they end together. All begin with a tile."""
    if count == 1:
        return [(1, size)]
    share = max(WIDTH, _tiles(size - START + SIGNATURE * heads, count))
    own = max(WIDTH, _tiles(size - share * (count - 1), 1))
    firsts = range(own + 1, size + 1, share)
    return [(1, min(size, own)), *((first, min(size, first + share - 1)) for first in firsts)]


def _tiles(size: int, count: int) -> int:
    """The part that one of `count` takes, in whole tiles."""
    return -(-size // (count * WIDTH)) * WIDTH


def _start_helper(path: Path, span: tuple[int, int], wanted: list[int]) -> "subprocess.Popen[bytes]":
    """Another process for another range: hashing small things holds the interpreter's lock."""
    command = [sys.executable, "-P", "-m", RANGES]  # -P: nothing of the directory we are in is taken for a library
    helper = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert helper.stdin is not None
    order = {"path": str(path.absolute()), "span": span, "wanted": [size for size in wanted if span[0] - 1 <= size]}
    with suppress(BrokenPipeError), helper.stdin:  # a helper that is gone is found by its result
        helper.stdin.write(msgspec.msgpack.encode(order))
    return helper


def _result(helper: "subprocess.Popen[bytes]", first: int, last: int) -> Part:
    assert helper.stdout is not None
    with helper, helper.stdout:
        data = helper.stdout.read()
    try:
        return msgspec.msgpack.decode(data, type=Part)
    except msgspec.MsgspecError:
        what = f"they were not checked: the process that was to do it ended with {helper.returncode}"
        return Part(first, last, findings=[Finding(first, last, what)])
