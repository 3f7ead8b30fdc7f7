"""The interface of a store: where the journal, the bodies and the kernel's small facts lie.

One thread appends; any thread reads what is committed. An append is one transaction: all of it is there, or nothing.
`sync` asks that it is on disk when the call returns. A failed append or sync is final: the caller must not try again.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Row(NamedTuple):
    """One journal entry as it is stored."""

    seq: int
    agent: str
    aseq: int
    entry: bytes
    body: bytes | None  # inline; None: there is none, or it lies in the body store


class Put(NamedTuple):
    """A small fact, set or (None) removed in the same transaction as the entries."""

    bucket: str
    key: str
    value: bytes | None


class Blob(NamedTuple):
    """A body by its SHA-256, stored once however often it is put."""

    digest: bytes
    data: bytes


class Store(Protocol):
    def append(self, rows: Sequence[Row], puts: Sequence[Put], blobs: Sequence[Blob], *, sync: bool) -> None: ...

    def size(self) -> int:
        """The newest sequence number, 0 for an empty journal."""
        ...

    def row(self, seq: int) -> Row | None: ...

    def rows(self, first: int, last: int | None = None) -> Iterator[Row]:
        """In order, `last` included. Safe to consume slowly; sees one consistent state."""
        ...

    def rows_of(self, agent: str, first: int = 1, last: int | None = None) -> Iterator[Row]:
        """One agent's, by `aseq`."""
        ...

    def aseq(self, agent: str) -> int:
        """The agent's newest, 0 if it never acted."""
        ...

    def blob(self, digest: bytes) -> bytes | None: ...

    def get(self, bucket: str, key: str) -> bytes | None: ...

    def items(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """By key, in order of bytes."""
        ...

    def before(self, bucket: str, key: str, most: int) -> list[tuple[str, bytes]]:
        """At most so many with a lesser key, the greatest first."""
        ...

    def erase(self, digests: Sequence[bytes], seqs: Sequence[int] = (), unnamed: Sequence[bytes] = ()) -> None:
        """Remove bodies from the body store: these, those beside these entries, and of `unnamed` those whose hash is in
        no fact. Entries and hashes stay."""
        ...

    def scrub(self) -> bool:
        """Nothing that was ever removed or replaced is left in any byte. Nobody else writes meanwhile, and it takes as
        long as writing everything anew. False: somebody reads an older state, or there is no room for a second one."""
        ...

    def backup(self, path: str) -> None:
        """A consistent copy, while others read and write."""
        ...

    def close(self) -> None: ...
