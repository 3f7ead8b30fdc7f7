"""An export of a journal: one file that an auditor takes away and the offline verifier reads without a kernel.

The magic line, then frames of a 4-byte big-endian length and a msgpack array whose first element says what it is:

    [0, {log_id, size, bodies}]                 the header, once
    [1, first number, rows, leaf hashes]        the entries of one tile; a row is [seq, agent, aseq, entry, body]
    [2, [[digest, body], …]]                    larger bodies
    [3, [signed head, …]]

Pure: what is stored goes in, the file's bytes come out. Both ends of it are made here so that they cannot differ.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from agent_os.abi.entries import Kind, decode
from agent_os.abi.tree import WIDTH

MAGIC = b"agent-os journal export 1\n"
HEADER, ROWS, BODIES, HEADS = 0, 1, 2, 3
MOST_HEADS = 1000  # in one frame
_KEPT_WITHOUT_BODIES = (Kind.KEY, Kind.REDACT)  # without these the keys and the erasures could not be followed

# seq, agent, aseq, entry, body: as stored, whatever type that may be
RawRow = tuple[Any, Any, Any, Any, Any]


def opening(log_id: Any, size: int, *, bodies: bool) -> bytes:
    return MAGIC + _frame([HEADER, {"log_id": log_id, "size": size, "bodies": bodies}])


def rows(tile: int, of_tile: Sequence[RawRow], leaves: Any, *, bodies: bool) -> bytes:
    kept = [row if bodies else _without_body(row) for row in of_tile]
    return _frame([ROWS, tile * WIDTH + 1, kept, leaves])


def body(digest: Any, data: Any) -> bytes:
    return _frame([BODIES, [(digest, data)]])


def heads(notes: Sequence[Any]) -> bytes:
    parts = (notes[at : at + MOST_HEADS] for at in range(0, len(notes), MOST_HEADS))
    return b"".join(_frame([HEADS, list(part)]) for part in parts)


def _frame(values: list[Any]) -> bytes:
    data = msgspec.msgpack.encode(values)
    return len(data).to_bytes(4) + data


def _without_body(row: RawRow) -> RawRow:
    return row if decode(row[3]).kind in _KEPT_WITHOUT_BODIES else (*row[:4], None)
