"""What calls give back to an author, as small records. Fields that this version does not know are ignored."""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from agent_os.abi.errors import EPROTO


class Content(Struct, frozen=True):
    data: Any  # bytes or text
    version: int = 0
    size: int = 0


class Written(Struct, frozen=True):
    version: int = 0
    size: int = 0
    offset: int | None = None  # of an append


class Stat(Struct, frozen=True):
    kind: str
    size: int = 0
    version: int = 0
    modified: int = 0
    rights: str = ""
    labels: list[str] = []


class Item(Struct, frozen=True):
    """One line of a directory."""

    name: str
    kind: str = ""
    size: int = 0
    version: int = 0


class Page(Struct, frozen=True):
    entries: list[Item] = []
    more: bool = False


class Spawned(Struct, frozen=True):
    agent: str
    level: str = ""
    returns: Any = None  # the annotation of its function, where the author's program has that

    def __or__(self, other: Any) -> Any:
        from agent_os.userland.pipes import joined  # which needs this module

        return joined(self, other)


class Ended(Struct, frozen=True):
    """How a child ended."""

    agent: str
    state: str
    status: int = 0
    result: Any = None
    reason: str = ""


class Elevated(Struct, frozen=True):
    """What was granted beside what the agent held; nothing, if it held all of it."""

    granted: list[str]
    expires_ns: int | None = None


class Goal(Struct, frozen=True):
    """What somebody wants done."""

    id: str
    text: str
    inputs: dict[str, Any] = {}
    priority: str = "normal"
    deadline: float | None = None  # seconds since 1970


class Monitored(Struct, frozen=True):
    ref: int


class Time(Struct, frozen=True):
    wall_ns: int
    mono_ns: int = 0


class Change(Struct, frozen=True):
    """What a watch saw. Of kind `gap`: `count` notices were lost, look for yourself."""

    kind: str = ""
    path: str = ""
    version: int = 0
    count: int = 0


class Opened(Struct, frozen=True):
    handle: int


class Watching(Struct, frozen=True):
    watch: int | str


class Shared(Struct, frozen=True):
    path: str = ""


class Made(Struct, frozen=True):
    checkpoint: str


class Masked(Struct, frozen=True):
    mask: list[int]


T = TypeVar("T")


def read_as(shape: type[T], value: Any) -> T:
    """An answer in its shape; EPROTO if the kernel answered something else."""
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as problem:
        raise EPROTO("answer", f"the kernel's answer is no {shape.__name__}: {problem}") from problem
