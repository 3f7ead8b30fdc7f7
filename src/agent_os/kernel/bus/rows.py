"""What the local broker needs of a store, which is to read what is kept. It never writes: its callers do."""

from collections.abc import Iterator
from typing import Protocol


class Rows(Protocol):
    def get(self, bucket: str, key: str) -> bytes | None: ...

    def items(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, bytes]]: ...
