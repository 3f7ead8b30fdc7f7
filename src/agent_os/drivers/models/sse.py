"""Server-sent events out of bytes that arrive in any pieces.

In: chunks, cut wherever the network cut them: inside a line end, inside a character. Out: events with their data as
bytes, which whoever reads it decodes as a whole. Comments, ids and retry times are left out. One event is bounded; what
is longer is no event. Never waits, never touches a socket.
"""

from collections.abc import Iterator
from typing import NamedTuple

LARGEST_EVENT = 16 << 20
_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    name: str  # empty: not said
    data: bytes


class TooLong(ValueError):
    """An event that never ends."""


class Reader:
    def __init__(self, largest: int = LARGEST_EVENT) -> None:
        self._largest = largest
        self._line = bytearray()  # begun and not ended
        self._after_cr = False  # the last byte was a CR: an LF now belongs to it
        self._first = True
        self._name = ""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that this piece completes. Must be consumed before the next piece."""
        if not chunk:
            return
        if self._after_cr:
            chunk = chunk.removeprefix(b"\n")
        # bytes.splitlines breaks at LF, CR and CRLF and at nothing else, which is what the standard asks.
        lines = chunk.splitlines(keepends=True)
        for line in lines:
            bare = line.rstrip(b"\r\n")
            if len(bare) == len(line):
                self._hold(bare)
            elif (event := self._end_of_line(bare)) is not None:
                yield event
        self._after_cr = chunk.endswith(b"\r")

    def end(self) -> Event | None:
        """The last event of a server that closes without the empty line behind it."""
        if self._line:
            self._end_of_line(b"")
        return self._dispatch()

    def _hold(self, piece: bytes) -> None:
        if self._size + len(self._line) + len(piece) > self._largest:
            raise TooLong(f"an event of more than {self._largest} bytes")
        self._line += piece

    def _end_of_line(self, rest: bytes) -> Event | None:
        self._hold(rest)
        line = bytes(self._line)
        self._line.clear()
        if self._first:
            self._first, line = False, line.removeprefix(_BOM)
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value) + 1
        elif name == b"event":
            self._name = value.decode(errors="replace")
        return None

    def _dispatch(self) -> Event | None:
        data = b"\n".join(self._data)  # one without any is a sign of life on some servers
        event = Event(self._name, data) if data else None
        self._name, self._size = "", 0
        self._data.clear()
        return event
