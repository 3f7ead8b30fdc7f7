"""The store of a kernel that keeps nothing: lists and dictionaries, gone with the process.

An append is one step under a lock, so readers see all of it or nothing. There is no disk, so nothing waits for one.
"""

import threading
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

from agent_os.abi.errors import EINVAL
from agent_os.drivers.store import Blob, Put, Row


class MemoryStore:
    path = None

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: list[Row] = []
        self._of: dict[str, list[Row]] = {}
        self._blobs: dict[bytes, bytes] = {}
        self._facts: dict[str, dict[str, bytes]] = {}
        self._sorted: dict[str, list[str]] = {}  # keys of a bucket, until one comes or goes

    def append(self, rows: Sequence[Row], puts: Sequence[Put], blobs: Sequence[Blob], *, sync: bool) -> None:
        with self._lock:
            if rows and rows[0][0] != len(self._rows) + 1:
                raise EINVAL("store.order", f"entry {rows[0][0]} does not follow entry {len(self._rows)}")
            for row in rows:
                self._rows.append(row)
                self._of.setdefault(row[1], []).append(row)
            for digest, data in blobs:
                self._blobs.setdefault(digest, data)
            for bucket, key, value in puts:
                self._put(bucket, key, value)

    def _put(self, bucket: str, key: str, value: bytes | None) -> None:
        facts = self._facts.setdefault(bucket, {})
        if value is None:
            if facts.pop(key, None) is not None:
                self._sorted.pop(bucket, None)
            return
        if key not in facts:
            self._sorted.pop(bucket, None)
        facts[key] = value

    def size(self) -> int:
        return len(self._rows)

    def row(self, seq: int) -> Row | None:
        return self._rows[seq - 1] if 1 <= seq <= len(self._rows) else None

    def rows(self, first: int, last: int | None = None) -> Iterator[Row]:
        return iter(self._rows[max(0, first - 1) : len(self._rows) if last is None else last])

    def rows_of(self, agent: str, first: int = 1, last: int | None = None) -> Iterator[Row]:
        rows = self._of.get(agent, [])
        return iter(rows[max(0, first - 1) : len(rows) if last is None else last])

    def aseq(self, agent: str) -> int:
        rows = self._of.get(agent)
        return rows[-1][2] if rows else 0

    def blob(self, digest: bytes) -> bytes | None:
        return self._blobs.get(digest)

    def get(self, bucket: str, key: str) -> bytes | None:
        facts = self._facts.get(bucket)
        return None if facts is None else facts.get(key)

    def items(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        with self._lock:
            facts = self._facts.get(bucket, {})
            keys = self._sorted.get(bucket)
            if keys is None:
                keys = self._sorted[bucket] = sorted(facts)  # code points sort as their UTF-8 does
            found = [(key, facts[key]) for key in (keys if not prefix else _below(keys, prefix))]
        return iter(found)

    def before(self, bucket: str, key: str, most: int) -> list[tuple[str, bytes]]:
        found = [one for one in self.items(bucket) if one[0] < key]
        return found[::-1][:most]

    def erase(self, digests: Sequence[bytes], seqs: Sequence[int] = (), unnamed: Sequence[bytes] = ()) -> None:
        with self._lock:
            values = [value for facts in self._facts.values() for value in facts.values()]
            for digest in (*digests, *(one for one in unnamed if not any(one in value for value in values))):
                self._blobs.pop(digest, None)
            for seq in seqs:
                self._rows[seq - 1] = self._rows[seq - 1]._replace(body=None)

    def scrub(self) -> bool:
        return True  # there is no file

    def backup(self, path: str) -> None:
        """As the file that a kernel with a home has."""
        from agent_os.drivers.store.sqlite import SqliteStore

        with self._lock:
            facts = [Put(bucket, key, value) for bucket, held in self._facts.items() for key, value in held.items()]
            blobs = [Blob(digest, data) for digest, data in self._blobs.items()]
            rows = list(self._rows)
        copy = SqliteStore(Path(path), reserve=0)
        try:
            copy.append(rows, facts, blobs, sync=True)
        finally:
            copy.close()

    def close(self) -> None:
        """Nothing is open."""


def _below(keys: Sequence[str], prefix: str) -> Iterator[str]:
    for at in range(bisect_left(keys, prefix), len(keys)):
        if not keys[at].startswith(prefix):
            return
        yield keys[at]
