"""Names of tools as providers allow them, and back.

Ours are `ns.verb`; theirs are at most 64 letters, digits, `_` and `-`. In: all names of one request. Out: a table both
ways that is the same for the same names, and almost always the same however many others there are, so that a prompt
stays the same from turn to turn.
"""

import hashlib
import re
from collections.abc import Iterable

from agent_os.abi.models import ModelRequest, ToolCall

LONGEST = 64
_OTHERS = re.compile(r"[^A-Za-z0-9_-]")
_DIGITS = 8


class Names:
    def __init__(self, ours: Iterable[str]) -> None:
        names = sorted(set(ours))
        plain = {name: _OTHERS.sub("_", name) for name in names}
        taken = list(plain.values())
        self._theirs = {
            name: short if 0 < len(short) <= LONGEST and taken.count(short) == 1 else _marked(name, short)
            for name, short in plain.items()
        }
        self._ours = {theirs: name for name, theirs in self._theirs.items()}

    @classmethod
    def of(cls, request: ModelRequest) -> "Names":
        """Of the tools that may be called and of those that were called before."""
        called = (block.name for message in request.messages for block in message.blocks if isinstance(block, ToolCall))
        return cls([*(tool.name for tool in request.tools), *called])

    def theirs(self, name: str) -> str:
        return self._theirs.get(name) or _marked(name, _OTHERS.sub("_", name))

    def ours(self, name: str) -> str:
        """What a model wrote. A name that nobody gave it stays as it is, for the loop to answer."""
        return self._ours.get(name, name)


def _marked(name: str, short: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGITS]
    return f"{short[: LONGEST - _DIGITS - 1]}_{digest}"
