"""The backend of real directories: the workspace and declared mounts, beneath a descriptor and nowhere else.

In: paths that hold no link (`real` finds them, before the gate decides on them). Every open is an openat2 that follows
no link, so what was decided on is what is opened, or the call is refused: swapping a link in loses the race. Only
regular files and directories. Methods block; `run` takes them to this mount's own thread, which holds the rights of
the directory's owner and no more. Versions are fingerprints of the file's identity and times, not counts.
"""

import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Literal, TypeVar

from msgspec import Struct

from agent_os.abi.errors import EAGAIN, EINVAL, ENOENT, ENOSPC
from agent_os.kernel import beneath
from agent_os.kernel.authority.labels import UNLABELLED, Label
from agent_os.kernel.vfs import paths
from agent_os.kernel.vfs.backend import (
    Change,
    Facts,
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
    read_only,
)
from agent_os.kernel.vfs.files import (
    PLAIN,
    TEMPORARY,
    OpenFile,
    become,
    create_beside,
    facts_of,
    fill,
    open_append,
    outside,
    refusal,
    refusing,
    require_openat2,
    special,
)

MAX_LINKS = 40
MAX_STEPS = 128  # names looked at on the way through links: this runs where everybody waits
USAGE_AGE_S = 10.0  # a walk's result is good for so long; our own changes are added to it
PLANNED_AGE_S = 5.0  # an append that waits longer, for a person say, does not hold up those behind it

T = TypeVar("T")


class DirectoryBackend:
    name = "directory"
    kind: Literal["mem", "file"] = "file"

    def __init__(self, root: int, *, writable: bool = True, max_bytes: int | None = None) -> None:
        """`root` stays the caller's; O_PATH is enough."""
        require_openat2(root)
        self.rights = "rwa" if writable else "r"
        self._root = os.dup(root)
        self._writable, self._max_bytes = writable, max_bytes
        self._closed = False
        self._listeners = Listeners()
        self._lock = threading.Lock()  # changes, one after the other
        self._used: tuple[float, int, int] | None = None  # when walked, bytes, entries
        self._planned: dict[str, list[Planned]] = {}  # appends that are decided and not done
        owner = os.fstat(self._root)
        self._thread = ThreadPoolExecutor(1, "vfs", initializer=become, initargs=(owner.st_uid, owner.st_gid))

    def run(self, work: Callable[[], T]) -> "Future[T]":
        """In order, with the owner's rights, without stopping anybody else."""
        if self._closed:
            raise ENOENT("vfs.mount", "this directory is no longer mounted")
        return self._thread.submit(work)

    def close(self) -> None:
        """What is under way is finished first, on its thread; nobody waits for that, however slow the disk is."""
        if not self._closed:
            self._closed = True
            self._thread.submit(os.close, self._root)
            self._thread.shutdown(wait=False)

    # What is there.

    def real(self, path: str) -> str:
        """Where `path` leads once links inside are followed. EACCES for one that leads out."""
        return self.led(path)[0]

    def led(self, path: str) -> tuple[str, tuple[str, ...]]:
        """The same, and by which other names: as it was asked for, and what each link on the way made of that."""
        facts = self.stat(path)
        if facts and facts.kind != "other":
            return path, ()  # no link anywhere in it
        return self._follow(path)

    def _follow(self, path: str) -> tuple[str, tuple[str, ...]]:
        todo, done, links, steps = path.split("/") if path else [], "", 0, 0
        names: list[str] = []
        todo.reverse()
        while todo:
            name = todo.pop()
            steps += 1
            if steps > MAX_STEPS:
                raise outside(path)
            if name in ("", "."):
                continue
            if name == "..":
                if not done:
                    raise outside(path)
                done = paths.split(done)[0]
                continue
            at = beneath.join(done, name)
            try:
                info = beneath.stat_beneath(self._root, at, resolve=PLAIN)
                if info is None or not stat.S_ISLNK(info.st_mode):
                    done = at
                    continue
                target = beneath.read_link(self._root, at, resolve=PLAIN)
            except OSError as error:
                raise refusal(error, path) from None
            links += 1
            if target.startswith("/") or links > MAX_LINKS:
                raise outside(path)
            if ".." not in todo:  # behind a name, it leads to wherever that name does, which comes later
                names.append("/".join([at, *(name for name in reversed(todo) if name not in ("", "."))]))
            todo += reversed(target.split("/"))
        return done, tuple(names)

    def stat(self, path: str) -> Facts | None:
        try:
            info = beneath.stat_beneath(self._root, path, resolve=PLAIN)
        except OSError as error:
            raise refusal(error, path) from None
        return None if info is None else facts_of(info)

    def folds(self, path: str) -> bool:
        """Whether case makes no difference at this place: another spelling finds the same thing. Of what is not there
        yet, the folder around it tells."""
        while path:
            above, name = paths.split(path)
            other = name.swapcase()
            with suppress(OSError):
                here = beneath.stat_beneath(self._root, path, resolve=PLAIN)
                if here is not None and other != name:
                    there = beneath.stat_beneath(self._root, beneath.join(above, other), resolve=PLAIN)
                    return there is not None and os.path.samestat(here, there)
            path = above
        return False

    def read(self, path: str, version: int | None) -> "OpenFile":
        try:
            facts = self._require_file(path)
            if version is not None and version != facts.version:
                raise EINVAL("vfs.versions", "a directory keeps no old versions", version=facts.version)
            return OpenFile(beneath.open_file(self._root, path, resolve=PLAIN))
        except OSError as error:
            raise refusal(error, path) from None

    def _require_file(self, path: str) -> Facts:
        facts = self.stat(path)
        if facts is None:
            raise absent(path)
        if facts.kind == "directory":
            raise is_directory(path)
        if facts.kind == "other":
            raise special(path)
        return facts

    def list(self, path: str, after: str, limit: int) -> Page:
        try:
            found = beneath.names(self._root, path, resolve=PLAIN)
        except OSError as error:
            raise refusal(error, path) from None
        names = [name for name in found if not name.startswith(TEMPORARY)]
        said = [name for name in names if paths.speakable(name)]
        entries: list[Listed] = []
        rest = sorted(name for name in said if name > after)
        for name in rest[:limit]:
            # Gone since: it was not present throughout.
            if facts := self.stat(beneath.join(path, name)):
                entries.append(Listed(name, facts))
        return Page(entries, len(rest) > limit, len(names) - len(said))

    def usage(self) -> Usage:
        if self._used is None or time.monotonic() - self._used[0] > USAGE_AGE_S:
            size = count = 0
            for _, info in self._walk():
                size, count = size + (info.st_size if stat.S_ISREG(info.st_mode) else 0), count + 1
            self._used = time.monotonic(), size, count
        return self.last_usage()

    def last_usage(self) -> Usage:
        """Without a walk: what the last one found and our own changes since; 0 before the first."""
        _, size, count = self._used or (0.0, 0, 0)
        return Usage(size, count, self._max_bytes, None)

    def _walk(self) -> Iterator[tuple[str, os.stat_result]]:
        """All entries. What vanishes under the walk, or cannot be looked at, is left out."""
        queue = [""]
        while queue:
            above = queue.pop()
            with suppress(OSError):
                for name in beneath.names(self._root, above, resolve=PLAIN):
                    path = beneath.join(above, name)
                    info = beneath.stat_beneath(self._root, path, resolve=PLAIN)
                    if info is None:
                        continue
                    yield path, info
                    if stat.S_ISDIR(info.st_mode):
                        queue.append(path)

    def watch(self, listener: Listener) -> Callable[[], None]:
        return self._listeners.add(listener)

    def snapshot(self, name: str) -> Snapshot:
        """Nothing here has versions to pin; `hashes` says what is there."""
        return Snapshot()

    def hashes(self, limit: int) -> dict[str, str]:
        """SHA-256 of every regular file, of at most `limit` bytes together; "" for one that its owner cannot read."""
        result: dict[str, str] = {}
        total = 0
        for path, info in self._walk():
            if not stat.S_ISREG(info.st_mode):
                continue
            total += info.st_size
            if total > limit:
                raise ENOSPC("checkpoint.work", f"the files exceed {limit:,} bytes", hint="checkpoint without work")
            result[path] = ""
            with suppress(OSError), beneath.closing(beneath.open_file(self._root, path, resolve=PLAIN)) as fd:
                result[path] = beneath.sha256(fd)
        return result

    # Changes.

    def label(self, path: str, version: int | None = None) -> None:
        """Programs write here without asking, so nothing is known of single files."""

    def write(
        self,
        path: str,
        source: Source,
        *,
        create: bool = False,
        if_version: int | None = None,
        label: Label = UNLABELLED,
    ) -> Change:
        """Whole or not at all: written beside its place, synced, renamed into it."""
        with self._lock, refusing(path):
            old = self._before_change(path, if_version)
            if create and old:
                raise exists(path)
            self._fits(source.size - (old.size if old else 0))
            self._make_parents(path)
            with beneath.parent(self._root, path, resolve=PLAIN) as (directory, name):
                fd, temporary = create_beside(directory, name)
                with beneath.closing(fd):
                    try:
                        fill(fd, source)
                        # Fingerprint and existence are decided here, at the rename, and at no other moment.
                        check_version(path, self._version(path), if_version)
                        if old:
                            os.fchmod(fd, self._mode(path))
                        os.fsync(fd)
                        self._place(directory, temporary, path, new=create or if_version == 0)
                    except BaseException:
                        with suppress(OSError):
                            os.unlink(temporary, dir_fd=directory)
                        raise
                    os.fsync(directory)
                    facts = facts_of(os.fstat(fd))
            return self._changed(
                Change(path, "written", facts.version, facts.size), facts.size - (old.size if old else 0)
            )

    def _place(self, directory: int, temporary: str, path: str, *, new: bool) -> None:
        try:
            beneath.rename(directory, temporary, paths.split(path)[1], replace=not new)
        except FileExistsError:
            check_version(path, self._version(path), 0)  # somebody was faster
            raise

    def plan_append(self, path: str, size: int) -> "Planned":
        """Where an append of `size` bytes will begin, counting those that are decided but not done yet."""
        facts = self.stat(path)
        now = time.monotonic()
        waiting = [one for one in self._planned.get(path, []) if now - one.when < PLANNED_AGE_S]
        ends = [one.end for one in waiting]
        begin = max([facts.size if facts and facts.kind == "file" else 0, *ends])
        plan = Planned(path, begin, begin + size, now)
        self._planned[path] = [*waiting, plan]
        return plan

    def drop_plan(self, plan: "Planned") -> None:
        """It happened, or never will."""
        left = [one for one in self._planned.get(plan.path, []) if one is not plan]
        if left:
            self._planned[plan.path] = left
        else:
            self._planned.pop(plan.path, None)

    def append(
        self,
        path: str,
        source: Source,
        *,
        if_version: int | None = None,
        label: Label = UNLABELLED,
        at: int | None = None,
    ) -> Change:
        """At the end, which must be at `at` if that is given: only then can a crash be told from a success later."""
        with self._lock, refusing(path):
            old = self._before_change(path, if_version)
            size = old.size if old else 0
            if at is not None and at != size:
                raise EAGAIN(
                    "vfs.moved",
                    f"{path!r} has {size} bytes and had {at} when the append was decided; nothing was written",
                    retry_after_ms=10,
                )
            self._fits(source.size)
            self._make_parents(path)
            with beneath.closing(open_append(self._root, path)) as fd:
                try:
                    fill(fd, source)
                    os.fsync(fd)
                except OSError:
                    os.ftruncate(fd, size)  # an append is whole or not there
                    raise
                facts = facts_of(os.fstat(fd))
            if not old:
                with beneath.parent(self._root, path, resolve=PLAIN) as (directory, _):
                    os.fsync(directory)
            offset = facts.size - source.size
            return self._changed(Change(path, "written", facts.version, facts.size, offset), source.size)

    def remove(self, path: str, *, if_version: int | None = None, label: Label = UNLABELLED) -> Change:
        with self._lock, refusing(path):
            old = self._require_writable(path)
            facts = self.stat(path)
            if facts is None:
                raise absent(path)
            check_version(path, facts.version, if_version)
            with beneath.parent(self._root, path, resolve=PLAIN) as (directory, name):
                if facts.kind == "directory":
                    os.rmdir(name, dir_fd=directory)
                else:
                    os.unlink(name, dir_fd=directory)
                os.fsync(directory)
            return self._changed(Change(path, "removed", 0), -(old.size if old else 0))

    def take_back(self, path: str, size: int) -> None:
        """Cut off what a killed append left behind its recorded beginning."""
        with self._lock, refusing(path):
            self._require_writable(path)
            with beneath.closing(open_append(self._root, path)) as fd:
                os.ftruncate(fd, size)
                os.fsync(fd)

    def _require_writable(self, path: str) -> Facts | None:
        if not self._writable:
            raise read_only("this directory")
        if not path:
            raise is_directory(path)
        return self.stat(path)

    def _before_change(self, path: str, if_version: int | None) -> Facts | None:
        facts = self._require_writable(path)
        if facts and facts.kind == "directory":
            raise is_directory(path)
        if facts and facts.kind == "other":
            raise special(path)
        check_version(path, facts.version if facts else 0, if_version)
        return facts

    def _version(self, path: str) -> int:
        facts = self.stat(path)
        return facts.version if facts else 0

    def _mode(self, path: str) -> int:
        info = beneath.stat_beneath(self._root, path, resolve=PLAIN)
        return stat.S_IMODE(info.st_mode) & 0o777 if info else 0o644

    def _fits(self, more: int) -> None:
        if self._max_bytes is not None:
            check_quota(self.usage().bytes, more, self._max_bytes, "bytes")

    def _make_parents(self, path: str) -> None:
        above = paths.split(path)[0]
        missing: list[str] = []
        while above and self.stat(above) is None:
            missing.append(above)
            above = paths.split(above)[0]
        for directory in reversed(missing):
            with beneath.parent(self._root, directory, resolve=PLAIN) as (fd, name), suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=fd)

    def _changed(self, change: Change, more: int) -> Change:
        if self._used:
            when, size, count = self._used
            self._used = when, max(0, size + more), count
        change.settled = lambda: self._listeners.tell(change)
        return change


class Planned(Struct, frozen=True):
    """An append on its way: where it will begin and end, unless another one is given up."""

    path: str
    begin: int
    end: int
    when: float
