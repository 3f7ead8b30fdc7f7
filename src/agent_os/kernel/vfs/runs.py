"""The content of a stored entry: runs of versions that share their bytes, and how they lie in the store.

A run is one replace and the appends after it; each of its versions is a prefix of one content, so an append writes only
what it adds. Content is a list of rows of parts. A part is a few bytes, or a body by its hash; a row is closed at
2 KiB, so an append rewrites at most one small row, and a file of many tiny appends is not many rows. A run carries the
label of whoever wrote it: an old version stays as tainted as it was, whatever replaced it.
"""

from bisect import bisect_right
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct, field

from agent_os.drivers.store import Blob, Put
from agent_os.kernel.authority.labels import CLEAN, UNLABELLED, Label, of_words
from agent_os.kernel.vfs.backend import Facts, Kept, Source
from agent_os.kernel.vfs.bodies import Bodies

INLINE = 256  # bytes; larger pieces are bodies, which the journal's record names by the same hash: stored once
ROW = 2048

Part = bytes | tuple[bytes, int]  # the bytes, or (digest, length)
_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(list[bytes | tuple[bytes, int]]).decode


def _length(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else part[1]


def _weight(part: Part) -> int:
    return len(part) if isinstance(part, bytes) else 40


class Mark(msgspec.Struct, array_like=True):
    """One kept version of a run: its prefix."""

    version: int
    size: int
    modified: int
    by: str = ""  # who wrote it, where that was not the owner


class Run(Struct):
    base: int  # the version that began it
    text: bool
    rows: int = 0  # in the store
    size: int = 0
    marks: list[Mark] = field(default_factory=list[Mark])
    parts: list[list[Part]] | None = None  # row by row; None: not loaded
    starts: list[int] = field(default_factory=list[int])  # offset of each row
    label: Label = UNLABELLED  # of all who wrote in it

    def load(self, store: Kept, bucket: str, path: str) -> list[list[Part]]:
        if self.parts is None:
            self.parts, self.starts, at = [], [], 0
            for _, value in store.items(bucket, f"s/{path}//{self.base:020}/"):
                row: list[Part] = list(_decode_row(value))
                self.parts.append(row)
                self.starts.append(at)
                at += sum(map(_length, row))
        return self.parts

    def add(self, source: Source, bodies: Bodies) -> tuple[list[Blob], int]:
        """Append in memory. Gives the new bodies and the first row that changed. The run is loaded."""
        assert self.parts is not None
        blobs: list[Blob] = []
        first = max(0, len(self.parts) - 1)
        for block in source.blocks():
            part: Part = block
            if len(block) > INLINE:
                digest = _digest(source, block)
                blobs.append(Blob(digest, block))
                bodies.hold(digest, block)
                part = (digest, len(block))
            self._append(part)
        self.rows = len(self.parts)
        return blobs, first

    def _append(self, part: Part) -> None:
        assert self.parts is not None
        row = self.parts[-1] if self.parts else None
        if row is None or sum(map(_weight, row)) + _weight(part) > ROW:
            self.parts.append([part])
            self.starts.append(self.size)
        elif isinstance(part, bytes) and isinstance(row[-1], bytes):
            row[-1] += part  # readers of an older prefix see the same prefix
        else:
            row.append(part)
        self.size += _length(part)

    def puts(self, bucket: str, path: str, first: int) -> list[Put]:
        rows = enumerate((self.parts or [])[first:], first)
        return [Put(bucket, self._key(path, number), _encode(row)) for number, row in rows]

    def removals(self, bucket: str, path: str) -> list[Put]:
        return [Put(bucket, self._key(path, number), None) for number in range(self.rows)]

    def _key(self, path: str, number: int) -> str:
        # A normalised path holds no "//", so no entry's keys begin like another's.
        return f"s/{path}//{self.base:020}/{number:08}"

    def mark(self, version: int) -> Mark | None:
        return next((mark for mark in self.marks if mark.version == version), None)


def _digest(source: Source, block: bytes) -> bytes:
    return source.digest if len(block) == source.size else sha256(block).digest()


class Stored(Struct):
    """An entry: its versions, newest run last. Removed ones stay for a while, for their old versions and number."""

    path: str
    version: int = 0
    removed: int = 0  # ns; 0: it is there
    runs: list[Run] = field(default_factory=list[Run])

    @property
    def live(self) -> Run | None:
        return self.runs[-1] if self.runs and not self.removed else None

    @property
    def weight(self) -> int:
        return sum(run.size for run in self.runs)

    def facts(self) -> Facts:
        run = self.runs[-1]
        mark = run.marks[-1]
        return Facts("file", run.size, self.version, mark.modified, run.text)

    def find(self, version: int) -> tuple[Run, Mark] | None:
        for run in self.runs:
            if mark := run.mark(version):
                return run, mark
        return None

    def encode(self) -> bytes:
        runs = [
            [run.base, run.text, run.rows, run.size, run.marks, _CLEAN if run.label is CLEAN else _words(run.label)]
            for run in self.runs
        ]
        return _encode([self.version, self.removed, runs])

    @classmethod
    def decode(cls, path: str, raw: bytes) -> "Stored":
        version, removed, heads = _decode_head(raw)
        return cls(path, version, removed, [_run(head) for head in heads])


class _Head(msgspec.Struct, array_like=True):
    """A run as it lies in the store."""

    base: int
    text: bool
    rows: int
    size: int
    marks: list[Mark]
    label: list[str] = []  # before there were labels there was none, which is untrusted


_decode_head: Any = msgspec.msgpack.Decoder(tuple[int, int, list[_Head]]).decode


def _run(head: _Head) -> Run:
    return Run(head.base, head.text, head.rows, head.size, head.marks, label=of_words(head.label))


_CLEAN = CLEAN.words()


@lru_cache(maxsize=256)
def _words(label: Label) -> list[str]:
    return label.words()


class Opened(Struct):
    """A version opened for reading: a prefix that nothing changes any more."""

    facts: Facts
    run: Run
    source: Bodies

    def read(self, offset: int, length: int) -> bytes:
        end = min(offset + length, self.facts.size)
        parts = self.run.parts or []
        if len(parts) == 1 and isinstance(only := parts[0][0], bytes) and end <= len(only):
            return only[offset:end]  # most entries are this small
        pieces: list[bytes] = []
        number = max(0, bisect_right(self.run.starts, offset) - 1)
        while number < len(parts) and self.run.starts[number] < end:
            at = self.run.starts[number]
            for part in parts[number]:
                if at < end and at + _length(part) > offset:
                    data = part if isinstance(part, bytes) else self.source.get(part[0])
                    pieces.append(data[max(0, offset - at) : end - at])
                at += _length(part)
            number += 1
        return b"".join(pieces)

    def close(self) -> None:
        """Nothing is held."""
