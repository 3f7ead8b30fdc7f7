"""Content too large for one frame: read out in chunks, taken in as chunks.

An upload charges its quota as it grows and changes nothing; at its end it becomes an `Act` like any other write.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec import Struct, field

from agent_os.abi.errors import EBADF, EINVAL
from agent_os.kernel.authority.labels import Label
from agent_os.kernel.calls import Act, Need
from agent_os.kernel.vfs.backend import CHUNK, Content, Data
from agent_os.kernel.vfs.sources import Spool, encode

_LONGEST = 4  # bytes of one UTF-8 character


class Stream(Struct):
    """A read that is answered in chunks. `close` it if it is not read to its end."""

    head: dict[str, Any]  # version, size
    text: bool
    chunks: Iterator[Data]
    close: Callable[[], None]


def chunks(content: Content, offset: int, length: int, text: bool, path: str) -> Iterator[Data]:
    """At most 64 KiB each; text is cut between characters. Closes the content when done."""
    try:
        end = min(offset + length, content.facts.size)
        while offset < end:
            raw = content.read(offset, min(CHUNK, end - offset))
            if not raw:
                return  # a file that became shorter meanwhile
            data = decode(raw, path, last=offset + len(raw) >= end) if text else raw
            offset += len(data.encode()) if isinstance(data, str) else len(data)
            yield data
    finally:
        content.close()


def decode(raw: bytes, path: str, *, last: bool = True) -> str:
    """UTF-8 text. A character that the end of a part cuts is left for the next part; anything else is EINVAL."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        if not last and error.end == len(raw) and 0 < error.start >= len(raw) - _LONGEST:
            return raw[: error.start].decode()
        reason = f"{path!r} is no UTF-8 text at byte {error.start} of what was asked for"
        raise EINVAL("vfs.text", reason, hint="read it as bytes, or begin at another offset") from None


class Upload(Struct):
    """A write whose data comes in chunks. Ask the gate for `needs` before taking the first."""

    needs: tuple[Need, ...]
    facts: Mapping[str, Any]
    record: dict[str, Any]  # for an intent written before the data has come; `verify` understands it
    label: Callable[[], Label | None]  # of what is there
    _check: Callable[[int], None]  # raises EDQUOT when so many bytes do not fit
    _end: Callable[[Spool], Act]
    _gone: Callable[["Upload"], None]
    spool: Spool = field(default_factory=Spool)
    over: bool = False

    def add(self, chunk: Data) -> None:
        if self.over:
            raise EBADF("vfs.upload", "this upload has ended")
        self._check(len(encode(chunk)))
        self.spool.add(chunk)

    def end(self) -> Act:
        """The write itself; it appears when that is done."""
        if self.over:
            raise EBADF("vfs.upload", "this upload has ended")
        self.over = True
        self._gone(self)
        return self._end(self.spool)

    def abort(self) -> None:
        """Nothing was written and nothing stays."""
        if not self.over:
            self.over = True
            self._gone(self)
        self.spool.close()
