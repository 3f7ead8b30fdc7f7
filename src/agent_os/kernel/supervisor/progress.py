"""Progress: whether an agent goes on, or only repeats itself.

In: each tool call of one incarnation as the gate sees it, so guests' too. Out: a notice at n equal calls in a row, the
end of the incarnation (class probe, detail `loop`) at 2n, each once; its health meanwhile. What the calls answered does
not matter: whoever must poll asks for a higher n. Keeps a digest of the last call, never its arguments.
"""

from hashlib import blake2b
from typing import Any, Literal

import msgspec

from agent_os.kernel.supervisor.health import HEALTHY, Health

DETAIL = "loop"  # of the exit
Found = Literal["repeats", "loop"]
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class Progress:
    """`limit`: `max_repeat_calls`, None for off."""

    __slots__ = ("_last", "_limit", "count", "tool")

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._last = b""
        self.tool = ""
        self.count = 0  # of the last call, in a row

    def call(self, tool: str, arguments: Any) -> Found | None:
        """A tool was called. Off, it costs nothing."""
        if self._limit is None:
            return None
        digest = _digest(tool, arguments)
        self.count = self.count + 1 if digest == self._last else 1
        self._last, self.tool = digest, tool
        if self.count == 2 * self._limit:
            return "loop"
        return "repeats" if self.count == self._limit else None

    @property
    def health(self) -> Health:
        if self._limit is None or self.count < self._limit:
            return HEALTHY
        return Health("unhealthy", f"it called {self.tool} with the same arguments {self.count} times in a row")


def _digest(tool: str, arguments: Any) -> bytes:
    """Equal for equal calls: the order of keys is nobody's intention."""
    try:
        data = _encode((tool, arguments))
    except (TypeError, ValueError, OverflowError):  # a guest's JSON may hold what our wire cannot
        data = repr((tool, arguments)).encode()
    return blake2b(data, digest_size=16).digest()
