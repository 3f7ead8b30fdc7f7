"""What goes into the journal: a draft of an entry, and the item that waits for the writer.

Data only. A draft is an entry without what the journal itself adds: numbers, the time, and the body's hash.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from agent_os.abi.entries import Kind
from agent_os.drivers.store import Blob, Put, Row


class Draft(Struct, gc=False):
    """A msgspec struct, because one is made for every call and a dataclass takes four times as long to fill."""

    agent: str  # who acted
    kind: Kind
    inc: int = 0
    op: int = 0
    effect: str = ""
    ref: int = 0
    pos: str | None = None
    seen: int = 0
    key: str | None = None
    verdict: int = 0
    step: int = 0
    rule: str = ""
    handle: int = 0
    capability_digest: bytes = b""
    label: list[str] = []
    policy_digest: bytes = b""
    mode: str = ""
    isolation: str = ""
    cost: dict[str, Any] = {}
    body: bytes | None = None  # encoded already
    code: int = 0


class Waiter(Protocol):
    """Somebody who must also hear of a failure. `committed` and `failed` are called on the writer's thread."""

    def committed(self) -> None: ...

    def failed(self, error: Exception) -> None: ...


# A plain tuple, made once per entry on the loop's thread:
# the row, kind, ref, puts, blobs, sync, what to call on the loop, who waits in a thread or as a task
Done = Callable[[], None]
Item = tuple[Row, int, int, Sequence[Put], Sequence[Blob], bool, Done | None, Waiter | None]
