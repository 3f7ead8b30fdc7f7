"""Where somebody stands in the record: which journal, and how far. Opaque to clients, who only hand it back.

In: `log` and `entries` of OP_STATUS, or a client's text. Out: a text, or a `Cursor`. Asks nobody anything.
"""

import re
from typing import NamedTuple

_TEXT = re.compile(r"([0-9a-f]{32})\.([0-9]{1,18})(?:\.([1-9][0-9]?))?")


class Cursor(NamedTuple):
    """After entry `seq` of the journal `log`."""

    log: str
    seq: int
    part: int = 0  # of an entry that makes several events: so many of them were told; 0: all

    def __str__(self) -> str:
        return f"{self.log}.{self.seq}" + (f".{self.part}" if self.part else "")


def read(text: str) -> Cursor | None:
    """None: no cursor of ours."""
    found = _TEXT.fullmatch(text)
    return Cursor(found[1], int(found[2]), int(found[3] or 0)) if found else None
