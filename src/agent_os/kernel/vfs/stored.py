"""The backend of memory: entries with versions, kept in the store, true in memory first.

An entry is changed in memory and, by the same call's transaction, in the store: what comes with a `Change` must be
committed with the call's record. Loaded from the store on first use. Directories are implied by the names of entries.
Never waits, never touches a file, and does not know whose entries these are.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Literal

import msgspec

from agent_os.abi.errors import EINVAL, ENOENT, ENOTDIR, EROFS
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import CLEAN, UNLABELLED, Label, joined
from agent_os.kernel.vfs import paths
from agent_os.kernel.vfs.backend import (
    MAX_ENTRIES,
    Change,
    Facts,
    Kept,
    Listed,
    Listener,
    Listeners,
    Page,
    Snapshot,
    Source,
    Usage,
    absent,
    check_quota,
    check_version,
    exists,
    is_directory,
)
from agent_os.kernel.vfs.bodies import Bodies
from agent_os.kernel.vfs.runs import Mark, Opened, Run, Stored

KEPT_VERSIONS = 10
KEPT_REMOVED = 1000  # entries; beyond, the oldest is forgotten

_encode = msgspec.msgpack.Encoder().encode
_decode_pins = msgspec.msgpack.Decoder(dict[str, int]).decode
_decode_floor = msgspec.msgpack.Decoder(int).decode


class StoreBackend:
    """One mount of one agent."""

    name = "store"
    kind: Literal["mem", "file"] = "mem"

    def __init__(
        self,
        store: Kept,
        bodies: Bodies,
        bucket: str,
        *,
        max_bytes: int | None,
        max_entries: int | None = MAX_ENTRIES,
        append_only: bool = False,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.rights = "ra" if append_only else "rwa"
        self._store, self._bodies, self._bucket = store, bodies, bucket
        self._max_bytes, self._max_entries = max_bytes, max_entries
        self._append_only = append_only
        self._wall_ns = wall_ns
        self._listeners = Listeners()
        self._loaded = False
        self._entries: dict[str, Stored] = {}
        self._removed: dict[str, None] = {}  # oldest first
        self._removed_bytes = 0
        self._children: dict[str, dict[str, None]] = {"": {}}
        self._bytes = 0
        self._pins: dict[str, dict[str, int]] = {}  # by checkpoint
        self._pinned: Counter[tuple[str, int]] = Counter()
        self._labels: dict[Label, None] = {}  # all that were ever seen here; mostly one
        self._floor = 0  # no new entry begins at or below it: a forgotten one may have been there

    # What is there.

    def stat(self, path: str) -> Facts | None:
        self._load()
        entry = self._live(path)
        if entry:
            return entry.facts()
        return Facts("directory") if path in self._children else None

    def label(self, path: str, version: int | None = None) -> Label:
        self._load()
        entry = self._entries.get(path)
        if entry and version is not None and (found := entry.find(version)):
            return found[0].label
        if entry and not entry.removed:
            return entry.runs[-1].label
        if not self._children.get(path):
            return CLEAN
        return next(iter(self._labels)) if len(self._labels) == 1 else joined(self._below(path))

    def _below(self, path: str) -> Iterator[Label]:
        stem = f"{path}/" if path else ""
        for name in self._children[path]:
            inner = stem + name
            if inner in self._children:
                yield from self._below(inner)
            else:
                yield self._entries[inner].runs[-1].label

    def read(self, path: str, version: int | None) -> Opened:
        self._load()
        entry = self._entries.get(path)
        if entry and version is None and not entry.removed:
            return self._opened(entry, entry.runs[-1], entry.runs[-1].marks[-1])
        if path in self._children:
            raise is_directory(path)
        if entry is None or (entry.removed and version is None):
            raise absent(path)
        found = entry.find(entry.version if version is None else version)
        if found is None:
            raise ENOENT(
                "vfs.version",
                f"version {version} of {path!r} is not kept",
                hint=f"kept are the last {KEPT_VERSIONS} versions and those that a checkpoint names",
                version=0 if entry.removed else entry.version,
            )
        return self._opened(entry, *found)

    def _opened(self, entry: Stored, run: Run, mark: Mark) -> Opened:
        run.load(self._store, self._bucket, entry.path)
        return Opened(Facts("file", mark.size, mark.version, mark.modified, run.text), run, self._bodies)

    def list(self, path: str, after: str, limit: int) -> Page:
        self._load()
        names = self._children.get(path)
        if names is None:
            raise ENOTDIR("vfs.file", f"{path!r} is an entry, not a directory") if self._live(path) else absent(path)
        stem = f"{path}/" if path else ""
        rest = sorted(name for name in names if name > after)
        entries = [Listed(name, self.stat(stem + name) or Facts("directory")) for name in rest[:limit]]
        return Page(entries, len(rest) > limit)

    def every(self, below: str = "") -> Iterator[tuple[str, Facts, str]]:
        """All entries at or below a path, in order, each with who wrote it last (empty: the owner)."""
        self._load()
        for path in sorted(self._entries):
            entry = self._entries[path]
            if entry.live and (not below or path == below or path.startswith(f"{below}/")):
                yield path, entry.facts(), entry.runs[-1].marks[-1].by

    def kept(self, path: str) -> set[int]:
        """The versions that can be read."""
        self._load()
        entry = self._entries.get(path)
        return {mark.version for run in entry.runs for mark in run.marks} if entry else set()

    def writer(self, path: str, version: int) -> str:
        """Who wrote a version that is kept; empty: the owner."""
        entry = self._entries.get(path)
        found = entry.find(version) if entry else None
        return found[1].by if found else ""

    def usage(self) -> Usage:
        self._load()
        return Usage(self._bytes, len(self._entries) - len(self._removed), self._max_bytes, self._max_entries)

    def watch(self, listener: Listener) -> Callable[[], None]:
        return self._listeners.add(listener)

    # Changes.

    def write(
        self,
        path: str,
        source: Source,
        *,
        create: bool = False,
        if_version: int | None = None,
        label: Label = UNLABELLED,
        by: str = "",
    ) -> Change:
        entry, live = self._target(path, if_version, create=create)
        if live and self._append_only:
            raise EROFS("vfs.append_only", f"{path!r} is written once; here entries are created and grow, no more")
        self._fits(source.size - (live.size if live else 0), live is None)
        return self._begin(entry, source, label, by)

    def append(
        self, path: str, source: Source, *, if_version: int | None = None, label: Label = UNLABELLED, by: str = ""
    ) -> Change:
        entry, live = self._target(path, if_version)
        if live is None:
            self._fits(source.size, True)
            return self._begin(entry, source, label, by)
        if source.size and live.text != source.text:
            held, came = ("text", "bytes") if live.text else ("bytes", "text")
            raise EINVAL("vfs.type", f"{path!r} holds {held}, and {came} cannot be appended to it")
        self._fits(source.size, False)
        live.load(self._store, self._bucket, path)
        return self._grow(entry, live, source, live.label.join(label), by)

    def remove(self, path: str, *, if_version: int | None = None, label: Label = UNLABELLED) -> Change:
        entry, live = self._target(path, if_version)
        if live is None:
            raise absent(path)
        if self._append_only:
            raise EROFS("vfs.append_only", f"{path!r} stays; here entries are created and grow, no more")
        entry.version += 1
        entry.removed = self._wall_ns()
        self._removed[path] = None
        self._removed_bytes += entry.weight
        self._bytes -= live.size
        self._unlink(path)
        puts = [*self._keep(entry), *self._forget()]
        return self._settled(Change(path, "removed", entry.version, puts=puts, label=label))

    def _target(self, path: str, if_version: int | None, *, create: bool = False) -> tuple[Stored, Run | None]:
        """The entry that a change is about, possibly new. Everything is checked before anything is changed."""
        if not self._loaded:
            self._load()
        entry = self._entries.get(path)
        live = entry.live if entry else None
        if live is None:
            self._check_name(path)
        elif create:
            raise exists(path)
        entry = entry or Stored(path, self._floor)
        check_version(path, entry.version if live else 0, if_version)
        return entry, live

    def _check_name(self, path: str) -> None:
        """Of an entry that is not there: it may not take a directory's name, nor lie below another entry."""
        if path in self._children:
            raise is_directory(path)
        above = paths.split(path)[0]
        while above:
            if self._live(above):
                raise ENOTDIR("vfs.file", f"{above!r} is an entry, not a directory")
            above = paths.split(above)[0]

    def _fits(self, more: int, new: bool) -> None:
        check_quota(self._bytes, more, self._max_bytes, "bytes")
        check_quota(len(self._entries) - len(self._removed), int(new), self._max_entries, "entries")

    def _begin(self, entry: Stored, source: Source, label: Label, by: str) -> Change:
        live = entry.live
        if live:
            self._bytes -= live.size
        if entry.removed:
            self._removed_bytes -= entry.weight
            del self._removed[entry.path]
            entry.removed = 0
        if live is None:
            self._entries[entry.path] = entry
            self._link(entry.path)
        run = Run(entry.version + 1, source.text, parts=[])
        entry.runs.append(run)
        return self._grow(entry, run, source, label, by)

    def _grow(self, entry: Stored, run: Run, source: Source, label: Label, by: str) -> Change:
        offset = run.size
        run.label = label
        self._labels[label] = None
        blobs, first = run.add(source, self._bodies)
        if run.size and not offset:
            run.text = source.text  # what was empty takes the type of its first content
        self._bytes += run.size - offset
        entry.version += 1
        run.marks.append(Mark(entry.version, run.size, self._wall_ns(), by))
        puts = run.puts(self._bucket, entry.path, first)
        puts += self._keep(entry)
        change = Change(entry.path, "written", entry.version, run.size, offset, puts, blobs, label=label)
        return self._settled(change)

    def _settled(self, change: Change) -> Change:
        change.settled = partial(self._tell, change)
        return change

    def _tell(self, change: Change) -> None:
        if change.blobs:
            self._bodies.settle(blob.digest for blob in change.blobs)
        self._listeners.tell(change)

    # What is kept of the past.

    def _keep(self, entry: Stored) -> Sequence[Put]:
        """Drop versions that nobody needs, and write the head."""
        puts: list[Put] = []
        before = entry.weight if entry.removed else 0
        oldest, live = entry.version - KEPT_VERSIONS, entry.live
        if entry.runs[0].marks[0].version <= oldest:  # runs and marks are in order
            for run in [run for run in entry.runs if run.marks[0].version <= oldest]:
                run.marks = [
                    one for one in run.marks if one.version > oldest or (entry.path, one.version) in self._pinned
                ]
                if not run.marks and run is not live:
                    entry.runs.remove(run)
                    puts += run.removals(self._bucket, entry.path)
        if entry.removed:
            self._removed_bytes -= before - entry.weight
        puts.append(Put(self._bucket, f"e/{entry.path}", entry.encode()))
        return puts

    def _forget(self) -> Iterator[Put]:
        """Removed entries are remembered within a bound, so that names thrown away cost nothing for ever."""
        limit = self._max_bytes
        for path in list(self._removed):
            if len(self._removed) <= KEPT_REMOVED and (limit is None or self._removed_bytes <= limit):
                return
            entry = self._entries[path]
            if any(self._pinned[path, mark.version] for run in entry.runs for mark in run.marks):
                continue
            del self._removed[path], self._entries[path]
            self._removed_bytes -= entry.weight
            if entry.version > self._floor:
                self._floor = entry.version
                yield Put(self._bucket, "f", _encode(self._floor))
            for run in entry.runs:
                yield from run.removals(self._bucket, path)
            yield Put(self._bucket, f"e/{path}", None)

    def snapshot(self, name: str) -> Snapshot:
        self._load()
        puts = self.release(name)
        versions = {path: entry.version for path, entry in self._entries.items() if entry.live}
        self._pins[name] = versions
        self._pinned.update(versions.items())
        return Snapshot(versions, [*puts, Put(self._bucket, f"p/{name}", _encode(versions))])

    def release(self, name: str) -> Sequence[Put]:
        """A checkpoint names its versions no longer."""
        self._load()
        versions = self._pins.pop(name, None)
        if versions is None:
            return []
        self._pinned.subtract(versions.items())
        self._pinned += Counter()  # drops what is at zero
        puts = [Put(self._bucket, f"p/{name}", None)]
        for path in versions:
            puts += self._keep(self._entries[path])
        return [*puts, *self._forget()]

    def erase(self, path: str) -> tuple[Change, set[bytes]] | None:
        """An entry goes with all its versions, also those that checkpoints name and those that are only added to. Gives
        the hashes of its bodies, too: others may have the same. None: there is none, and was none lately."""
        self._load()
        entry = self._entries.pop(path, None)
        if entry is None:
            return None
        if live := entry.live:
            self._bytes -= live.size
            self._unlink(path)
        else:
            del self._removed[path]
            self._removed_bytes -= entry.weight
        self._floor = max(self._floor, entry.version)
        puts = [Put(self._bucket, "f", _encode(self._floor)), Put(self._bucket, f"e/{path}", None)]
        bodies: set[bytes] = set()
        for run in entry.runs:
            rows = run.load(self._store, self._bucket, path)
            bodies |= {part[0] for row in rows for part in row if isinstance(part, tuple)}
            puts += run.removals(self._bucket, path)
        for name, versions in self._pins.items():
            if (version := versions.pop(path, None)) is not None:
                self._pinned[path, version] -= 1
                puts.append(Put(self._bucket, f"p/{name}", _encode(versions)))
        self._pinned += Counter()  # drops what is at zero
        return self._settled(Change(path, "removed", entry.version, puts=puts, label=CLEAN)), bodies

    def clear(self) -> Sequence[Put]:
        """Everything goes, also the past: the life of this mount is over."""
        keys = [key for key, _ in self._store.items(self._bucket)]
        self._load()
        for path, entry in self._entries.items():
            keys += [put.key for run in entry.runs for put in run.removals(self._bucket, path)]
            keys.append(f"e/{path}")
        keys += ["f", *(f"p/{name}" for name in self._pins)]
        self._entries, self._removed, self._children = {}, {}, {"": {}}
        self._pins, self._pinned, self._labels = {}, Counter(), {}
        self._bytes = self._removed_bytes = self._floor = 0
        return [Put(self._bucket, key, None) for key in dict.fromkeys(keys)]

    # The tree in memory.

    def _load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        floor = self._store.get(self._bucket, "f")
        self._floor = _decode_floor(floor) if floor else 0
        for key, value in self._store.items(self._bucket, "p/"):
            self._pins[key[2:]] = _decode_pins(value)
            self._pinned.update(self._pins[key[2:]].items())
        gone: list[tuple[int, str]] = []
        for key, value in self._store.items(self._bucket, "e/"):
            entry = Stored.decode(key[2:], value)
            self._entries[entry.path] = entry
            if live := entry.live:
                self._labels[live.label] = None
                self._bytes += live.size
                self._link(entry.path)
            else:
                gone.append((entry.removed, entry.path))
                self._removed_bytes += entry.weight
        self._removed = dict.fromkeys(path for _, path in sorted(gone))

    def _live(self, path: str) -> Stored | None:
        entry = self._entries.get(path)
        return entry if entry and entry.live else None

    def _link(self, path: str) -> None:
        while path:
            above, name = paths.split(path)
            if name in self._children.setdefault(above, {}):
                return
            self._children[above][name] = None
            path = above

    def _unlink(self, path: str) -> None:
        while path:
            above, name = paths.split(path)
            names = self._children[above]
            names.pop(name, None)
            if names or not above:
                return
            del self._children[above]
            path = above
