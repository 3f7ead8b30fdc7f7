"""What an agent changed: the difference between a project and the layer its writes went to.

In: two open directories, the project (lower) and the agent's layer (upper), and how the layer was made (`overlay` or
`copy`). Out: a list of `Change`. Reads only, physically, entry by entry; everything in the upper is hostile. A deletion
is a 0:0 character device or a file marked `user.overlay.whiteout`; a directory marked `user.overlay.opaque` hides all
that the project has below it.
"""

import difflib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from agent_os.kernel import beneath
from agent_os.kernel.workspace.protected import is_protected, outward

Kind = Literal["add", "modify", "delete", "mode", "symlink"]
Type = Literal["file", "directory", "symlink", "special"]

_MOST_HOLES = 2 << 30  # bytes of nothing in sparse files that one diff reads
PERMISSIONS = 0o777  # what of a mode is ever compared or committed: setuid, setgid and sticky are not
_PATCH_BYTES = 256 << 10
_PATCH_LINES = 4000


class Change(Struct, frozen=True):
    """One entry that differs. `path` is relative to the project; undecodable bytes in it are surrogates."""

    path: str
    kind: Kind
    type: Type  # of the new entry, or of the old one for a deletion
    size: int = 0  # apparent size of the new content
    mode: int | None = None
    sha256_old: str | None = None
    sha256_new: str | None = None  # of a link: of its target
    protected: bool = False
    refused: str | None = None  # why this entry is never committed
    copied_up: bool = False  # the upper says it came from an entry of the project

    @property
    def shown(self) -> str:
        """The path for people: nothing in it can forge a line or steer a terminal."""
        return escape(self.path) + ("/" if self.type == "directory" else "")

    @property
    def signature(self) -> str:
        """Equal for two changes that would write the same thing."""
        return f"{self.kind}:{self.type}:{self.mode}:{self.sha256_new}"


class CopyBase(Struct, frozen=True):
    """What copy mode knows about its start: which paths were copied, and when that was finished."""

    paths: frozenset[str]
    finished: int  # ns

    def holds(self, path: str, now: os.stat_result) -> bool:
        """Whether an entry is still as it was copied."""
        return path in self.paths and now.st_ctime_ns <= self.finished


def escape(name: str) -> str:
    r"""Reversible and printable: `\n`, `\x1b`, `\u202e`; a byte that is no UTF-8 is `\xff`."""
    return "".join(_escape_char(char) for char in name)


def _escape_char(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if char.isprintable():
        return char
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"
    return char.encode("unicode_escape").decode("ascii")


def compare(lower: int, upper: int, *, base: CopyBase | None = None) -> list[Change]:
    """All changes, in path order, deletions of a place before what is put there. `base` is given in copy mode."""
    walker = _Walk(lower, upper, base)
    return sorted(walker.run(), key=lambda change: (change.path.split("/"), change.kind != "delete"))


class _Walk:
    """One walk over the upper. A queue and whole paths, no recursion or kept descriptors: the agent chose the depth."""

    def __init__(self, lower: int, upper: int, base: CopyBase | None) -> None:
        self.lower, self.upper, self.base = lower, upper, base
        disk = os.fstatvfs(lower)
        self.room = disk.f_bavail * disk.f_frsize
        self.holes = _MOST_HOLES

    def run(self) -> Iterator[Change]:
        yield from self._mode_change("", os.fstat(self.upper), os.fstat(self.lower))
        queue = [("", True, self.base is not None)]
        while queue:
            path, lower_here, hides = queue.pop()
            try:
                entries = beneath.names(self.upper, path)
                hides = hides or self._opaque(path)
            except OSError as error:
                yield self._unreadable(path, "directory", error)
                continue
            if hides and lower_here:
                yield from self._hidden(path, set(entries))
            for name in entries:
                entry = beneath.join(path, name)
                try:
                    yield from self._entry(entry, hides, queue)
                except OSError as error:
                    yield self._unreadable(entry, "file", error)

    def _entry(self, path: str, hides: bool, queue: list[tuple[str, bool, bool]]) -> Iterator[Change]:
        new = beneath.stat_beneath(self.upper, path)
        if new is None:  # gone while we looked: the agent is still running
            return
        old = beneath.stat_beneath(self.lower, path)
        if self._is_whiteout(path, new):
            if old is not None:
                yield from self._deleted(path, old)
        elif stat.S_ISDIR(new.st_mode):
            yield from self._directory(path, new, old)
            queue.append((path, old is not None and stat.S_ISDIR(old.st_mode), hides))
        elif self._untouched(path, new):
            return
        else:
            if old is not None and stat.S_ISDIR(old.st_mode):
                yield from self._deleted(path, old)
                old = None
            yield from self._leaf(path, new, old)

    def _directory(self, path: str, new: os.stat_result, old: os.stat_result | None) -> Iterator[Change]:
        if old is not None and stat.S_ISDIR(old.st_mode):
            yield from self._mode_change(path, new, old)
            return
        if self._untouched(path, new):
            return
        if old is not None:
            yield from self._deleted(path, old)
        mode = new.st_mode & PERMISSIONS
        yield self._change(path, "add", "directory", mode=mode, copied_up=self._copied_up(path, directory=True))

    def _leaf(self, path: str, new: os.stat_result, old: os.stat_result | None) -> Iterator[Change]:
        if stat.S_ISREG(new.st_mode):
            yield from self._file(path, new, old)
        elif stat.S_ISLNK(new.st_mode):
            yield from self._symlink(path, new, old)
        else:
            what = _special(new.st_mode)
            yield self._change(path, "add" if old is None else "modify", "special", refused=f"{what}: never committed")

    def _file(self, path: str, new: os.stat_result, old: os.stat_result | None) -> Iterator[Change]:
        mode = new.st_mode & PERMISSIONS
        before = self._hash_old(path, old) if old is not None else None
        # What cannot fit is not read either: a sparse file costs its author nothing and would cost us hours.
        fits = new.st_size <= self.room
        self.holes -= max(0, new.st_size - new.st_blocks * 512) if fits else 0
        refused = None if self.holes >= 0 else "its holes, and those of files before it, are larger than anyone needs"
        after = self._hash(self.upper, path) if fits and not refused else None
        if old is not None and stat.S_ISREG(old.st_mode) and before == after and after is not None:
            yield from self._mode_change(path, new, old)
            return
        yield self._change(
            path,
            "add" if old is None else "modify",
            "file",
            size=new.st_size,
            mode=mode,
            sha256_old=before,
            sha256_new=after,
            refused=refused,
            copied_up=self._copied_up(path),
        )

    def _symlink(self, path: str, new: os.stat_result, old: os.stat_result | None) -> Iterator[Change]:
        target = beneath.read_link(self.upper, path)
        after = _hash_text(target)
        before = self._hash_old(path, old) if old is not None else None
        if old is not None and stat.S_ISLNK(old.st_mode) and before == after:
            return
        refused = f"link leads outside: {escape(target)}" if outward(path, target) else None
        size = new.st_size
        yield self._change(path, "symlink", "symlink", size=size, sha256_old=before, sha256_new=after, refused=refused)

    def _mode_change(self, path: str, new: os.stat_result, old: os.stat_result) -> Iterator[Change]:
        if new.st_mode & PERMISSIONS != old.st_mode & PERMISSIONS and not self._untouched(path, new):
            kind: Type = "directory" if stat.S_ISDIR(new.st_mode) else "file"
            size = 0 if kind == "directory" else new.st_size
            yield self._change(path or ".", "mode", kind, size=size, mode=new.st_mode & PERMISSIONS)

    def _hidden(self, path: str, kept: set[str]) -> Iterator[Change]:
        """What the project has in a directory and the agent no longer sees there."""
        try:
            present = beneath.names(self.lower, path)
        except OSError as error:
            yield self._unreadable(path, "directory", error)
            return
        for name in present:
            entry = beneath.join(path, name)
            if name in kept or (self.base is not None and entry not in self.base.paths):
                continue
            old = beneath.stat_beneath(self.lower, entry)
            if old is not None:
                yield from self._deleted(entry, old)

    def _deleted(self, path: str, old: os.stat_result) -> Iterator[Change]:
        yield self._deletion(path, old)
        if not stat.S_ISDIR(old.st_mode):
            return
        try:
            for below, info in beneath.walk(self.lower, path):
                yield self._deletion(below, info)
        except OSError as error:
            yield self._unreadable(error.filename or path, "directory", error)

    def _deletion(self, path: str, old: os.stat_result) -> Change:
        return self._change(path, "delete", _type(old.st_mode), sha256_old=self._hash_old(path, old))

    def _unreadable(self, path: str, kind: Type, error: OSError) -> Change:
        reason = "on another mount" if error.errno == errno.EXDEV else f"cannot be read: {error.strerror}"
        return self._change(path or ".", "modify", kind, refused=reason)

    def _change(
        self,
        path: str,
        kind: Kind,
        of: Type,
        *,
        size: int = 0,
        mode: int | None = None,
        sha256_old: str | None = None,
        sha256_new: str | None = None,
        refused: str | None = None,
        copied_up: bool = False,
    ) -> Change:
        protected = is_protected(path)
        return Change(path, kind, of, size, mode, sha256_old, sha256_new, protected, refused, copied_up)

    def _hash_old(self, path: str, old: os.stat_result) -> str | None:
        if stat.S_ISREG(old.st_mode):
            try:
                return self._hash(self.lower, path)
            except PermissionError:  # one may delete or replace what one cannot read
                return None
        return _hash_text(beneath.read_link(self.lower, path)) if stat.S_ISLNK(old.st_mode) else None

    def _hash(self, root: int, path: str) -> str:
        with beneath.closing(beneath.open_file(root, path)) as fd:
            return beneath.sha256(fd)

    def _is_whiteout(self, path: str, new: os.stat_result) -> bool:
        if self.base is not None:
            return False
        if stat.S_ISCHR(new.st_mode):
            return new.st_rdev == 0
        return stat.S_ISREG(new.st_mode) and new.st_size == 0 and self._mark(path, "whiteout") is not None

    def _opaque(self, path: str) -> bool:
        if self.base is not None:
            return True
        return self._mark(path, "opaque", directory=True) == b"y"

    def _copied_up(self, path: str, *, directory: bool = False) -> bool:
        if self.base is not None:
            return path in self.base.paths
        return self._mark(path, "origin", directory=directory) is not None

    def _mark(self, path: str, name: str, *, directory: bool = False) -> bytes | None:
        opened = beneath.open_directory if directory else beneath.open_file
        with beneath.closing(opened(self.upper, path)) as fd:
            return _xattr(fd, name)

    def _untouched(self, path: str, new: os.stat_result) -> bool:
        """Copy mode: an entry that is still as we copied it is no change, whatever became of the project's since."""
        return self.base is not None and self.base.holds(path, new)


def _xattr(fd: int, name: str) -> bytes | None:
    try:
        return os.getxattr(fd, f"user.overlay.{name}")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP):
            return None
        raise


def _type(mode: int) -> Type:
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISLNK(mode):
        return "symlink"
    return "file" if stat.S_ISREG(mode) else "special"


def _special(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "named pipe"
    return "socket" if stat.S_ISSOCK(mode) else "device"


def _hash_text(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()


def patch(lower: int, upper: int, change: Change) -> str:
    """A unified diff of one text file, control characters made visible; a sentence in brackets where there is none."""
    if change.type != "file" or change.refused or change.kind == "mode":
        return ""
    before = b"" if change.sha256_old is None else _text(lower, change.path)
    after = b"" if change.kind == "delete" else _text(upper, change.path)
    if before is None or after is None:
        return f"[{change.shown}: binary or too large to show]\n"
    old, new = (_lines(before), _lines(after))
    if len(old) + len(new) > _PATCH_LINES:
        return f"[{change.shown}: too many lines to show]\n"
    from_name = "/dev/null" if change.sha256_old is None else f"a/{change.shown}"
    to_name = "/dev/null" if change.kind == "delete" else f"b/{change.shown}"
    return "".join(f"{line}\n" for line in difflib.unified_diff(old, new, from_name, to_name, lineterm=""))


def _text(root: int, path: str) -> bytes | None:
    try:
        data = beneath.read_beneath(root, path, _PATCH_BYTES + 1)
    except OSError:
        return None
    return None if len(data) > _PATCH_BYTES or b"\0" in data else data


def _lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    if lines[-1]:
        lines[-1] += " [no newline at end]"
    else:
        lines.pop()
    return ["".join(char if char in "\t\\" else _escape_char(char) for char in line) for line in lines]
