"""The interface that tools of Ring 3 helpers are written against: one question, one checked answer.

`kernel/helpers/link.Link` is one. A tool here makes a request of parameters and a result of what came back; it parses
nothing that a stranger wrote, as the helper did that.
"""

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from agent_os.abi.helpers import Part

T = TypeVar("T", bound=Struct)
T_co = TypeVar("T_co", bound=Struct, covariant=True)


class Told(Protocol, Generic[T_co]):
    @property
    def value(self) -> T_co: ...

    def cut(self, parts: Sequence[Part]) -> list[bytes]:
        """The bytes of each part of it."""
        ...


class Helper(Protocol):
    """One agent's browser, or one server's client."""

    async def ask(self, op: int, request: Struct, answer: type[T], *, seconds: float, limit: int = 0) -> Told[T]: ...
