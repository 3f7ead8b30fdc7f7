"""Data on its way into the tree: a value that came with the call, or chunks that came before it.

Chunks wait in memory up to 1 MiB, beyond it in an unnamed temporary file; the digest is taken as they come. Knows no
path, no mount and no quota.
"""

import hashlib
from collections.abc import Iterator
from typing import IO

from agent_os.abi.errors import EINVAL
from agent_os.kernel.vfs.backend import MIB, Data


def encode(data: Data) -> bytes:
    if isinstance(data, bytes):
        return data
    try:
        return data.encode()
    except UnicodeEncodeError as error:
        raise EINVAL("vfs.text", f"the text holds half a surrogate pair at {error.start}; it is no UTF-8") from None


class Whole:
    """Data that is all there."""

    def __init__(self, data: Data) -> None:
        self.text = isinstance(data, str)
        self._raw = encode(data)
        self.size = len(self._raw)

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self._raw).digest()

    def blocks(self) -> Iterator[bytes]:
        for at in range(0, self.size, MIB):
            yield self._raw[at : at + MIB]

    def close(self) -> None:
        """Nothing is held."""


class Spool:
    """Data that grows by chunks of one type."""

    def __init__(self) -> None:
        self.text = False
        self.size = 0
        self._hash = hashlib.sha256()
        self._chunks = 0
        self._file: IO[bytes] | None = None  # until there is data: a write that the gate refuses has none, nor an end

    def add(self, chunk: Data) -> None:
        text = isinstance(chunk, str)
        if self._chunks and text != self.text:
            raise EINVAL("vfs.type", "the chunks of one write are all text or all bytes")
        raw = encode(chunk)
        self.text = text
        self._chunks += 1
        self._opened().write(raw)
        self._hash.update(raw)
        self.size += len(raw)

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            import tempfile  # few programs stream, and all would pay for the import

            self._file = tempfile.SpooledTemporaryFile(max_size=MIB)  # noqa: SIM115
        return self._file

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    def blocks(self) -> Iterator[bytes]:
        at = 0
        while at < self.size:
            file = self._opened()
            file.seek(at)
            block = file.read(MIB)
            at += len(block)
            yield block

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
