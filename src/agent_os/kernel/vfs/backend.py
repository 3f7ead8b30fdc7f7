"""What every backend of a mount is: nine methods on relative paths, and the plain facts they give.

A path here is relative to the mount, normalised, "" for the mount itself. Backends know nothing of agents, mounts,
capabilities or records; they answer with facts or an error of the family, and say what the store must hold.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from msgspec import Struct, field

from agent_os.abi.errors import ECONFLICT, EDQUOT, EEXIST, EINVAL, EISDIR, ENOENT, EROFS
from agent_os.drivers.store import Blob, Put
from agent_os.kernel.authority.labels import UNLABELLED, Label

MIB = 1 << 20
CHUNK = 64 << 10  # of a streamed read
MAX_ENTRIES = 10_000

Data = bytes | str


class Facts(Struct, frozen=True):
    """One entry as it is now."""

    kind: Literal["file", "directory", "other"]
    size: int = 0  # bytes
    version: int = 0
    modified: int = 0  # ns, wall clock
    text: bool = False


class Listed(Struct, frozen=True):
    name: str
    facts: Facts


class Page(Struct, frozen=True):
    entries: Sequence[Listed]
    more: bool
    hidden: int = 0  # names on a disk that no path can say


class Content(Protocol):
    """An entry opened for one read."""

    @property
    def facts(self) -> Facts: ...

    def read(self, offset: int, length: int) -> bytes: ...

    def close(self) -> None: ...


class Change(Struct):
    """What a change did, and what the store must hold for it to last."""

    path: str
    kind: Literal["written", "removed"]
    version: int
    size: int = 0
    offset: int | None = None  # where an append landed
    puts: Sequence[Put] = ()
    blobs: Sequence[Blob] = ()
    settled: Callable[[], None] | None = None  # to be called once puts and blobs are committed
    label: Label | None = None  # of whoever made it, where it is kept


class Usage(NamedTuple):
    bytes: int
    entries: int
    max_bytes: int | None
    max_entries: int | None


class Snapshot(Struct):
    """The versions that a checkpoint names, and what keeps them."""

    versions: dict[str, int] = field(default_factory=dict[str, int])
    puts: list[Put] = field(default_factory=list[Put])


Listener = Callable[[Change], None]


class Kept(Protocol):
    """What of a store this room reads. It writes nothing itself: changes go with the record of their call."""

    def get(self, bucket: str, key: str) -> bytes | None: ...

    def items(self, bucket: str, prefix: str = "") -> Iterator[tuple[str, bytes]]: ...

    def blob(self, digest: bytes) -> bytes | None: ...


class Source(Protocol):
    """Data to be written: at once or streamed before. Iterating gives blocks of at most 1 MiB."""

    text: bool
    size: int

    @property
    def digest(self) -> bytes: ...

    def blocks(self) -> Iterator[bytes]: ...


class Backend(Protocol):
    """`rights` says what can be done at all: r (read), w (replace, remove), a (create, append). A change comes with the
    label of whoever makes it; what nobody labelled is untrusted."""

    name: str
    kind: Literal["mem", "file"]  # of the capability that its paths need
    rights: str

    def stat(self, path: str) -> Facts | None: ...

    def label(self, path: str, version: int | None = None) -> Label | None:
        """Of what is there: an entry, or a directory with all below it, for a name can be a message. Nothing there:
        clean. None: none is kept here, and it is that of the source."""
        ...

    def read(self, path: str, version: int | None) -> Content: ...

    def write(
        self, path: str, source: Source, *, create: bool, if_version: int | None, label: Label = UNLABELLED
    ) -> Change: ...

    def append(self, path: str, source: Source, *, if_version: int | None, label: Label = UNLABELLED) -> Change: ...

    def list(self, path: str, after: str, limit: int) -> Page: ...

    def remove(self, path: str, *, if_version: int | None, label: Label = UNLABELLED) -> Change: ...

    def watch(self, listener: Listener) -> Callable[[], None]:
        """Told of every change made through this backend, when it is committed; the result ends it."""
        ...

    def snapshot(self, name: str) -> Snapshot: ...

    def usage(self) -> Usage: ...


class Listeners:
    """Who wants to hear of changes."""

    def __init__(self) -> None:
        self._all: dict[int, Listener] = {}
        self._next = 0

    def add(self, listener: Listener) -> Callable[[], None]:
        self._next += 1
        number = self._next
        self._all[number] = listener
        return lambda: self._all.pop(number, None) and None

    def tell(self, change: Change) -> None:
        for listener in tuple(self._all.values()):
            listener(change)


# Refusals that every backend words alike. `path` is what the caller may know.


def absent(path: str) -> ENOENT:
    return ENOENT("vfs.absent", f"there is no entry {path!r} here", hint="list the directory to see what is there")


def exists(path: str) -> EEXIST:
    return EEXIST("vfs.exists", f"{path!r} exists already and mode is 'create'", hint="write with mode 'replace'")


def is_directory(path: str) -> EISDIR:
    return EISDIR("vfs.directory", f"{path or '/'!r} is a directory", hint="list it, or name an entry in it")


def read_only(what: str) -> EROFS:
    return EROFS("vfs.read_only", f"{what} can only be read, whatever the capability")


def check_version(path: str, current: int, wanted: int | None) -> None:
    """Compare-and-set. 0 means: must not exist."""
    if wanted is None or wanted == current:
        return
    raise ECONFLICT(
        "vfs.conflict",
        f"{path!r} is at version {current}, not {wanted}; nothing was written",
        hint="read it again and decide with what is there now",
        version=current,
    )


def check_quota(used: int, more: int, limit: int | None, what: str) -> None:
    if limit is None or more <= 0 or used + more <= limit:
        return
    raise EDQUOT(
        "vfs.quota",
        f"{used:,} of {limit:,} {what} are used and {more:,} more were asked for; the old content is untouched",
        hint="remove entries you no longer need",
        used=used,
        limit=limit,
    )


def check_range(offset: int, length: int | None) -> None:
    if offset < 0 or (length is not None and length < 0):
        raise EINVAL("vfs.range", "offset and length are not negative")


def page(names: Mapping[str, Facts], after: str, limit: int) -> Page:
    """By bytes of the name, which for UTF-8 is by code point."""
    rest = sorted(name for name in names if name > after)
    return Page([Listed(name, names[name]) for name in rest[:limit]], len(rest) > limit)
