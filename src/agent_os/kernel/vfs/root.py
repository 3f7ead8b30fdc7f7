"""One agent's tree: which backend answers for a path, and the handles and watches that are open in it.

Isolation is by construction: a path is looked up here and nowhere else, and nothing here leads to another agent's tree
but a share that its owner gave. Owns the mounts and descriptors; decides no authority and records nothing.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Struct

from agent_os.abi.errors import EAGAIN, EBADF, EEXIST, EINVAL, ENOENT, ENOTDIR
from agent_os.drivers.store import Put
from agent_os.kernel.authority.handles import Handle as Capable
from agent_os.kernel.authority.labels import CLEAN, UNLABELLED, Label, of_source
from agent_os.kernel.calls import SAID, Need
from agent_os.kernel.vfs import paths
from agent_os.kernel.vfs.backend import (
    MAX_ENTRIES,
    MIB,
    Backend,
    Change,
    Facts,
    Kept,
    Listener,
    Page,
    Snapshot,
    Source,
    Usage,
    absent,
    is_directory,
    page,
    read_only,
)
from agent_os.kernel.vfs.directory import DirectoryBackend
from agent_os.kernel.vfs.shares import SharedBackend
from agent_os.kernel.vfs.stored import StoreBackend

# The backend of kernel views: text that is rendered when it is read, so there is no copy to change. A callable of
# the kernel gives name → text; names may contain "/". Whoever asks for a change gets EROFS, whatever the
# capability.

Render = Callable[[], Mapping[str, str]]
Labelled = Callable[[str], Label | None]  # by the path within the view


class ViewBackend:
    name = "view"
    kind: Literal["mem", "file"] = "mem"
    rights = "r"

    def __init__(self, render: Render, labelled: Labelled = lambda path: None) -> None:
        self._render, self._labelled = render, labelled

    def label(self, path: str, version: int | None = None) -> Label | None:
        return self._labelled(path)

    def stat(self, path: str) -> Facts | None:
        texts = self._render()
        if path in texts:
            return _facts(texts[path])
        return Facts("directory") if not path or any(name.startswith(path + "/") for name in texts) else None

    def read(self, path: str, version: int | None) -> "Rendered":
        if version:
            raise EINVAL("vfs.versions", "a view is rendered at each read and keeps no versions")
        text = self._render().get(path)
        if text is None:
            raise is_directory(path) if self.stat(path) else absent(path)
        return Rendered(text)

    def list(self, path: str, after: str, limit: int) -> Page:
        texts = self._render()
        if path in texts:
            raise ENOTDIR("vfs.file", f"{path!r} is an entry, not a directory")
        stem = f"{path}/" if path else ""
        names: dict[str, Facts] = {}
        for name, text in texts.items():
            if name.startswith(stem):
                first, slash, _ = name[len(stem) :].partition("/")
                names[first] = Facts("directory") if slash else _facts(text)
        if path and not names:
            raise absent(path)
        return page(names, after, limit)

    def write(
        self,
        path: str,
        source: Source,
        *,
        create: bool = False,
        if_version: int | None = None,
        label: Label = UNLABELLED,
    ) -> Change:
        raise read_only("a view of the kernel")

    def append(self, path: str, source: Source, *, if_version: int | None = None, label: Label = UNLABELLED) -> Change:
        raise read_only("a view of the kernel")

    def remove(self, path: str, *, if_version: int | None = None, label: Label = UNLABELLED) -> Change:
        raise read_only("a view of the kernel")

    def watch(self, listener: Listener) -> Callable[[], None]:
        return lambda: None

    def snapshot(self, name: str) -> Snapshot:
        return Snapshot()

    def usage(self) -> Usage:
        texts = self._render()
        return Usage(sum(len(text.encode()) for text in texts.values()), len(texts), None, None)


class Rendered:
    def __init__(self, text: str) -> None:
        self._raw = text.encode()
        self.facts = Facts("file", len(self._raw), text=True)

    def read(self, offset: int, length: int) -> bytes:
        return self._raw[offset : offset + length]

    def close(self) -> None:
        """Nothing is held."""


def _facts(text: str) -> Facts:
    return Facts("file", len(text.encode()), text=True)


# What an agent wants to hear about, and what it has not heard yet. Changes of one path merge until they are taken;
# beyond 1,024 waiting notices the rest becomes one `gap` with a count. The connection takes them when it can:
# `notify` answers False for "not now", and the kernel calls `flush` later. With each notice goes the label of all
# who made what it tells of.

MAX_WAITING = 1024
MAX_WATCHES = 256

Notice = dict[str, Any]
Notify = Callable[[Notice, Label], bool | None]


class Watches:
    def __init__(self) -> None:
        self.notify: Notify | None = None
        self._recursive: dict[str, bool] = {}
        self._waiting: dict[tuple[str, str], tuple[Notice, Label]] = {}
        self._missed: dict[str, tuple[int, Label]] = {}  # by watch
        self._scheduled = False

    def add(self, path: str, recursive: bool) -> None:
        self._recursive[path] = recursive

    def end(self, path: str) -> bool:
        self._missed.pop(path, None)
        for key in [key for key in self._waiting if key[0] == path]:
            del self._waiting[key]
        return self._recursive.pop(path, None) is not None

    @property
    def any(self) -> bool:
        return bool(self._recursive)

    def all(self) -> dict[str, bool]:
        return dict(self._recursive)

    def changed(self, path: str, kind: str, version: int, label: Label) -> None:
        for watch, recursive in self._recursive.items():
            inside = paths.below(watch, path)
            if inside is not None and (recursive or "/" not in inside):
                self._queue(watch, {"watch": watch, "path": path, "kind": kind, "version": version}, label)
        self._schedule()

    def missed(self, watch: str, count: int, label: Label) -> None:
        """Something happened and nobody can say what any more."""
        self._miss(watch, count, label)
        self._schedule()

    def _miss(self, watch: str, count: int, label: Label) -> None:
        before, known = self._missed.get(watch, (0, CLEAN))
        self._missed[watch] = before + count, known.join(label)

    def _queue(self, watch: str, notice: Notice, label: Label) -> None:
        key = watch, notice["path"]
        if key not in self._waiting and len(self._waiting) >= MAX_WAITING:
            self._miss(watch, 1, label)
            return
        _, known = self._waiting.pop(key, (None, CLEAN))  # the newest news of a path stands where it happened
        self._waiting[key] = notice, known.join(label)

    def _schedule(self) -> None:
        """At the end of this turn of the loop, so that a burst is one notice; without a loop, now."""
        if self._scheduled or not (self._waiting or self._missed):
            return
        try:
            asyncio.get_running_loop().call_soon(self.flush)
            self._scheduled = True
        except RuntimeError:
            self.flush()

    def flush(self) -> None:
        self._scheduled = False
        while self.notify and (self._waiting or self._missed):
            if self._waiting:
                key = next(iter(self._waiting))
                if self.notify(*self._waiting[key]) is False:
                    return
                self._waiting.pop(key, None)
            else:
                watch, (count, label) = next(iter(self._missed.items()))
                if self.notify({"watch": watch, "kind": "gap", "count": count}, label) is False:
                    return
                self._missed.pop(watch, None)


WORK = "/work"
WORK_BYTES = 1024 * MIB
MAX_HANDLES = 256
MAX_FOUND = 256  # paths remembered
Held = Callable[[Need, Mapping[str, Any]], bool]  # whether a need is covered, given the facts of what it is for
_NO_FACTS: Mapping[str, Any] = {}

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.decode


class Mount(NamedTuple):
    at: str
    backend: Backend
    unwatch: Callable[[], None]


class Place(NamedTuple):
    """A path, found: `path` is its one spelling, `inner` what the backend calls it."""

    path: str
    inner: str
    at: str
    backend: Backend
    said: tuple[str, ...] = ()  # other names that led here, through links: a rule may be about one of those

    def need(self, action: str) -> Need:
        return Need(self.backend.kind, action, self.path)

    @property
    def facts(self) -> Mapping[str, Any]:
        return {SAID: self.said} if self.said else _NO_FACTS


class Handle(Struct, array_like=True, frozen=True):
    path: str
    flags: str  # r, w, rw
    said: tuple[str, ...] = ()


MakeStore = Callable[..., StoreBackend]


class Root:
    """What a call is resolved in. Made by `Vfs.root`."""

    def __init__(self, agent: str, store: Kept, make_store: MakeStore) -> None:
        self.agent = agent
        self.watches = Watches()
        self.source: Callable[[Need], Label] = of_source  # of what has no label of its own
        self._host = ""  # what /work is called outside, and in its sandbox as well; empty: it has no other name
        self._make_store = make_store
        self._mounts: dict[str, Mount] = {}
        self._found: dict[str, Place] = {}  # as it was asked for; agents ask for the same paths again and again
        self._bucket = f"vfs.open/{agent}"
        self._handles: dict[int, Handle] = {}
        self._next_handle = 1
        self._restore(store)

    @property
    def notify(self) -> Notify | None:
        return self.watches.notify

    @notify.setter
    def notify(self, deliver: Notify | None) -> None:
        self.watches.notify = deliver
        self.watches.flush()

    # Mounts.

    def mount(self, at: str, backend: Backend) -> None:
        at = paths.normalise(at)
        if at in self._mounts or at == "/":
            raise EEXIST("vfs.mounted", f"something is mounted at {at} already")

        def heard(change: Change) -> None:
            if self.watches.any:
                path = paths.join(at, change.path)
                label = self.source(Need(backend.kind, "read", path)) if change.label is None else change.label
                self.watches.changed(path, change.kind, change.version, label)

        self._mounts[at] = Mount(at, backend, backend.watch(heard))
        self._found.clear()

    def mount_directory(
        self, at: str, fd: int, *, writable: bool = True, max_bytes: int | None = WORK_BYTES
    ) -> DirectoryBackend:
        """`fd` stays the caller's. EISOLATION where openat2 is missing."""
        backend = DirectoryBackend(fd, writable=writable, max_bytes=max_bytes)
        try:
            self.mount(at, backend)
        except EEXIST:
            backend.close()
            raise
        return backend

    def mount_view(self, at: str, render: Render, labelled: Labelled = lambda path: None) -> None:
        self.mount(at, ViewBackend(render, labelled))

    def mount_store(
        self,
        at: str,
        *,
        name: str = "",
        max_bytes: int | None = 256 * MIB,
        max_entries: int | None = MAX_ENTRIES,
        append_only: bool = False,
    ) -> StoreBackend:
        """`name` is where its entries lie in the store; a mount of the same name finds them again."""
        backend = self._make_store(
            self.agent, name or at, max_bytes=max_bytes, max_entries=max_entries, append_only=append_only
        )
        self.mount(at, backend)
        return backend

    def unmount(self, at: str) -> None:
        found = self._mounts.pop(at, None)
        if found is None:
            raise ENOENT("vfs.mount", f"nothing is mounted at {at}")
        self._found.clear()
        found.unwatch()
        if isinstance(found.backend, DirectoryBackend):
            found.backend.close()

    def mounts(self) -> list[dict[str, Any]]:
        """Without a walk through real directories: their usage is not known here."""
        rows: list[dict[str, Any]] = []
        for at, mount in sorted(self._mounts.items()):
            row: dict[str, Any] = {"path": at, "backend": mount.backend.name, "rights": shown(mount.backend.rights)}
            if not isinstance(mount.backend, DirectoryBackend):
                row |= mount.backend.usage()._asdict()
            rows.append(row)
        return rows

    def backend(self, at: str) -> Backend | None:
        found = self._mounts.get(at)
        return found.backend if found else None

    def backends(self) -> Sequence[Mount]:
        return list(self._mounts.values())

    # Paths.

    def resolve(self, path: str) -> str:
        """The one name of it that everybody else hears: a workspace is /work, whatever it is called outside."""
        path = paths.normalise(path, self.agent)
        if self._host and (inner := paths.below(self._host, path)) is not None:
            return paths.join(WORK, inner)
        return path

    def call_work(self, host: str) -> None:
        """The second name of /work. One that something in this tree has already is not taken."""
        tops = {at.split("/")[1] for at in self._mounts} | {"work"}
        self._host = host if host.strip("/") and host.split("/")[1] not in tops else ""

    def host_name(self, path: str) -> str:
        """What an entry of the workspace is called outside; empty where there is no such name."""
        if not self._host or not path.startswith(f"{WORK}/"):
            return ""
        return self._host + path[len(WORK) :]

    def folds(self, path: str) -> bool:
        """Whether the path lies where case makes no difference."""
        at = path
        while at:
            if mount := self._mounts.get(at):
                backend = mount.backend
                return isinstance(backend, DirectoryBackend) and backend.folds(paths.below(at, path) or "")
            at = at.rpartition("/")[0]
        return False

    def find(self, path: str) -> Place | None:
        """None: one of the directories above the mounts. The deepest mount answers."""
        return self._found.get(path) or self._find(path)

    def _find(self, said: str) -> Place | None:
        path = at = self.resolve(said)
        while at:
            if mount := self._mounts.get(at):
                inner = paths.below(at, path) or ""
                if isinstance(mount.backend, DirectoryBackend):
                    inner, names = mount.backend.led(inner)  # links change: looked up each time
                    if not names:
                        return Place(paths.join(at, inner), inner, at, mount.backend)
                    # A link may lead to a name that no rule could say, and so must not be the way to it.
                    real = paths.normalise(paths.join(at, inner))
                    others = tuple(paths.composed(paths.join(at, name)) for name in names)
                    return Place(real, inner, at, mount.backend, others)
                if len(self._found) >= MAX_FOUND:
                    self._found.clear()
                place = self._found[said] = Place(path, inner, at, mount.backend)
                return place
            at = at.rpartition("/")[0]
        if path == "/" or any(paths.below(path, at) is not None for at in self._mounts):
            return None
        tops = ", ".join(sorted(self._mounts))
        raise ENOENT("vfs.mount", f"nothing is mounted at or above {path!r}", hint=f"there is {tops}")

    def tops(self, path: str) -> dict[str, Facts]:
        """Names of a directory above the mounts, or of a mount beside an entry's own."""
        inner = (paths.below(path, at) for at in self._mounts)
        return {rest.split("/")[0]: Facts("directory") for rest in inner if rest}

    def reading_below(self, path: str) -> list[Need]:
        """What it takes to see all mounts below a directory above them."""
        return [Need(mount.backend.kind, "read", at) for at, mount in self._mounts.items() if paths.below(path, at)]

    def granted(self, need: Need) -> bool:
        """Whether a live share is the authority for it: below /mem/shared there is no other."""
        return self.lent(need) is not None

    def lent(self, need: Need, facts: Mapping[str, Any] = _NO_FACTS) -> Sequence[Capable] | None:
        """The owner's capabilities that such a share rests on: empty where the owner has ended. None: there is none."""
        if not need.target.startswith("/mem/shared"):
            return None
        mount = self._mounts.get("/mem/shared")
        inner = paths.below("/mem/shared", need.target)
        if need.kind != "mem" or not mount or inner is None or not isinstance(mount.backend, SharedBackend):
            return None
        return mount.backend.lent(inner, need.action, facts)

    # Handles and watches; both outlive a restart of the kernel.

    def open(self, place: Place, flags: str) -> tuple[int, list[Put]]:
        if len(self._handles) >= MAX_HANDLES:
            raise EAGAIN("vfs.handles", f"{MAX_HANDLES} handles are open", hint="close one", retry_after_ms=1000)
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = Handle(place.path, flags, place.said)
        next_one = Put(self._bucket, "next", _encode(self._next_handle))
        return number, [Put(self._bucket, f"h/{number}", _encode(self._handles[number])), next_one]

    def handle(self, number: int) -> Handle:
        found = self._handles.get(number)
        if found is None:
            raise EBADF("vfs.handle", f"handle {number} is not open", hint="open the path first")
        return found

    def close_handle(self, number: int) -> list[Put]:
        self.handle(number)
        del self._handles[number]
        return [Put(self._bucket, f"h/{number}", None)]

    def begin_watch(self, path: str, recursive: bool) -> list[Put]:
        if len(self.watches.all()) >= MAX_WATCHES:
            raise EINVAL("vfs.watches", f"at most {MAX_WATCHES} watches", hint="end one, or watch a directory")
        self.watches.add(path, recursive)
        return [Put(self._bucket, f"w{path}", _encode(recursive))]

    def end_watch(self, path: str) -> list[Put]:
        if not self.watches.end(path):
            raise ENOENT("vfs.watch", f"{path} is not watched")
        return [Put(self._bucket, f"w{path}", None)]

    def shut(self, held: Held) -> list[Put]:
        """Close what is no longer covered."""
        puts: list[Put] = []
        for number, one in list(self._handles.items()):
            facts = {SAID: one.said} if one.said else _NO_FACTS
            actions = [action for flag, action in (("r", "read"), ("w", "write")) if flag in one.flags]
            if not all(held(Need(self._kind(one.path) or "file", action, one.path), facts) for action in actions):
                puts += self.close_handle(number)
        for path in self.watches.all():
            kind = self._kind(path)
            needs = [Need(kind, "read", path)] if kind else self.reading_below(path)
            if not all(held(need, _NO_FACTS) for need in needs):
                puts += self.end_watch(path)
        return puts

    def hears(self, notice: Mapping[str, Any], held: Callable[[Need], bool]) -> bool:
        """Whether its capabilities cover what a notice tells of."""
        path = str(notice.get("path") or notice["watch"])
        kind = self._kind(path)
        return not kind or held(Need(kind, "read", path))

    def _kind(self, path: str) -> str:
        """Of what answers for a path; empty above the mounts."""
        while path:
            if mount := self._mounts.get(path):
                return mount.backend.kind
            path = path.rpartition("/")[0]
        return ""

    def forget(self) -> list[Put]:
        """Handles and watches go."""
        puts = [Put(self._bucket, f"h/{number}", None) for number in self._handles]
        puts += [Put(self._bucket, f"w{path}", None) for path in self.watches.all()]
        self._handles.clear()
        for path in self.watches.all():
            self.watches.end(path)
        return puts

    def _restore(self, store: Kept) -> None:
        for key, raw in store.items(self._bucket):
            if key == "next":
                self._next_handle = _decode(raw, type=int)
            elif key.startswith("h/"):
                self._handles[int(key[2:])] = _decode(raw, type=Handle)
            else:
                self.watches.add(key[1:], _decode(raw, type=bool))

    def close(self) -> None:
        """The kernel's descriptors; what is stored stays."""
        for at in list(self._mounts):
            self.unmount(at)


def shown(rights: str) -> str:
    """As people read it: r, rw, or ra for what only grows."""
    return rights.replace("rwa", "rw")
