"""Commit: an agent's changes land in the project, entry by entry, so that a crash at any point can be resumed.

In: the project, the agent's layer and the workspace's own directory, all open; the changes; who allowed what. Out: a
`Report`. Before the first write `intent.json` names every entry with its hashes and what the project had in its place;
it is closed after the last. An entry is done when its rename (or unlink, or mkdir) is: never half. Every path is
resolved physically beneath a descriptor, on both sides. Never decides what is protected and never runs anything.
"""

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, cast

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from agent_os.abi.errors import EINVAL, EIO, ENOSPC
from agent_os.kernel import beneath
from agent_os.kernel.workspace.changes import PERMISSIONS, Change

INTENT = "intent.json"
_RESERVE = 1 << 20  # room left for directories and the intent itself
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# Answers that mean: the place is not as it was when we looked.
_MOVED = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EXDEV}

Facts = tuple[int, ...] | None  # what identifies an entry of the project; None: there is none
Key = tuple[str, str]


class Conflict(Struct, frozen=True):
    """One entry the project changed as well. Nothing of it was written."""

    change: Change
    reason: str
    code: str = "workspace.changed"

    @property
    def path(self) -> str:
        return self.change.path


class Report(Struct):
    committed: list[Change] = field(default_factory=list[Change])
    withheld: list[Change] = field(default_factory=list[Change])  # protected, and nobody allowed them
    refused: list[Change] = field(default_factory=list[Change])
    conflicts: list[Conflict] = field(default_factory=list[Conflict])
    failed: list[Change] = field(default_factory=list[Change])  # the disk said no; `refused` says why
    dry_run: bool = False

    @property
    def complete(self) -> bool:
        """Nothing is left in the workspace that the project does not have."""
        return not (self.dry_run or self.withheld or self.refused or self.conflicts or self.failed)


class Step(Struct):
    change: Change
    seen: Facts
    planned: bool = True  # False: looked at and without conflict, but not part of this commit
    done: bool = False


class Intent:
    """What a commit set out to do. Kept afterwards: what landed once is not shown or compared again."""

    def __init__(self, home: int) -> None:
        self.home = home
        self.id = secrets.token_hex(4)
        self.open = False
        self.steps: dict[Key, Step] = {}
        self._load()

    def _load(self) -> None:
        try:
            with (
                beneath.closing(beneath.open_file(self.home, INTENT)) as fd,
                open(fd, encoding="utf-8", closefd=False) as file,
            ):
                record = cast("dict[str, Any]", json.load(file))
        except FileNotFoundError:
            return
        except ValueError as error:
            raise EIO("workspace.damaged", f"{INTENT} of this workspace cannot be read: {error}") from None
        self.id, self.open = record["id"], record["open"]
        for entry in record["steps"]:
            change = Change(**entry["change"])
            seen = None if entry["seen"] is None else tuple(entry["seen"])
            self.steps[change.path, change.kind] = Step(change, seen, entry["planned"], entry["done"])

    def save(self) -> None:
        self.save_to(self.home)

    def save_to(self, home: int) -> None:
        steps = [asdict(step) | {"change": asdict(step.change)} for step in self.steps.values()]
        write_json(home, INTENT, {"id": self.id, "open": self.open, "steps": steps})

    def landed(self, change: Change) -> bool:
        step = self.steps.get((change.path, change.kind))
        return step is not None and step.done and step.change.signature == change.signature

    def expected(self, change: Change, seen: Facts) -> bool:
        """Whether an earlier commit has looked at this very entry, found no conflict, and nothing moved since."""
        if change.kind == "mode" and (change.path, "add") in self.steps:
            return True  # a directory of ours that a crash left without its final mode
        step = self.steps.get((change.path, change.kind))
        return step is not None and step.change.signature == change.signature and step.seen == seen

    def wrote(self, change: Change) -> bool:
        """Whether what the project has there is what an earlier commit put there: a restored state went on from it."""
        before = (self.steps.get((change.path, kind)) for kind in ("add", "modify", "symlink"))
        return any(step and step.done and step.change.sha256_new == change.sha256_old for step in before)

    def temporary(self, index: int) -> str:
        return f".agent-os-{self.id}-{index}"


def write_json(directory: int, name: str, value: object) -> None:
    """Whole or not at all, and on the disk before it returns. Odd names survive: JSON escapes surrogates."""
    new = f"{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(new, flags, 0o600, dir_fd=directory), "w", encoding="ascii") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    beneath.rename(directory, new, name)
    os.fsync(directory)


class Landing(Struct):
    """One commit. `plan` decides every entry without writing, `land` writes what was decided."""

    lower: int
    upper: int
    intent: Intent
    created: int  # ns; what changed in the project after this, changed under the agent's feet
    progress: Callable[[Change], None] | None = None
    report: Report = field(default_factory=Report)
    found: list[Change] = field(default_factory=list[Change])
    steps: list[Step] = field(default_factory=list[Step])  # what this commit will write
    others: list[Step] = field(default_factory=list[Step])
    _gone: set[str] = field(default_factory=set[str])  # what this commit removed
    _touched: set[str] = field(default_factory=set[str])  # directories to sync at the end

    def plan(self, found: list[Change], *, wanted: Iterable[Change], allow_protected: bool) -> None:
        self.found = found
        held, candidates = _Held(), list[Step]()
        selected = set(wanted)
        for change in found:
            reason, seen = (None, None) if change.refused else self._conflict(change)
            if change not in selected:
                self._remember(change, reason, seen)
            elif change.refused:
                held.put(change, change.refused, "refused")
            elif change.protected and not allow_protected:
                held.put(change, "protected", "withheld")
                self._remember(change, reason, seen)
            elif reason:
                held.put(change, reason, "conflict")
            else:
                candidates.append(Step(change, seen))
        free = held.sift(candidates)
        self.steps = sorted(free, key=lambda step: _order(step.change))
        self.report.withheld += held.of("withheld")
        self.report.refused += [replace(change, refused=held.reasons[change]) for change in held.of("refused")]
        self.report.conflicts += [Conflict(change, held.reasons[change]) for change in held.of("conflict")]
        self._require_room()

    def _remember(self, change: Change, reason: str | None, seen: Facts) -> None:
        """For a later commit: this one's own writes, beside it or to a hard link, must not look like the host's."""
        if reason is None and not change.refused:
            self.others.append(Step(change, seen, planned=False))

    def land(self) -> Report:
        if self.intent.open:
            self._recover()
        for step in (*self.others, *self.steps):
            self.intent.steps[step.change.path, step.change.kind] = step
        self.intent.open = True
        self.intent.save()  # from here on a crash is resumed
        for index, step in enumerate(self.steps):
            self._attempt(step, index)
            if self.progress:
                self.progress(step.change)
        self._finish_directories()
        self._sync()
        self.intent.open = False
        self.intent.save()  # the commit is over, whatever its outcome
        return self.report

    def _recover(self) -> None:
        """After a crash: what the project already has is done, and no temporary file of ours stays behind."""
        left = {(change.path, change.kind) for change in self.found}
        prefix = self.intent.temporary(0)[:-1]
        for above in {_above(step.change.path) for step in self.intent.steps.values()}:
            with suppress(OSError), beneath.closing(beneath.open_directory(self.lower, above)) as fd:
                for name in os.listdir(fd):
                    if name.startswith(prefix):
                        os.unlink(name, dir_fd=fd)
        for key, step in self.intent.steps.items():
            if step.planned and not step.done and key not in left:
                step.done = True
                self.report.committed.append(step.change)

    def _conflict(self, change: Change) -> tuple[str | None, Facts]:
        try:
            old = beneath.stat_beneath(self.lower, change.path)
        except OSError as error:
            return f"the project's place for it cannot be reached: {error.strerror}", None
        seen = _facts(old)
        if self.intent.expected(change, seen):
            return None, seen
        if old is None:
            return self._vanished(change), seen
        if stat.S_ISDIR(old.st_mode):
            # Entries come and go below a directory without concerning it; its mode is its own.
            own = change.kind == "mode" and old.st_ctime_ns > self.created and old.st_ctime_ns != old.st_mtime_ns
            return ("the project changed its mode too" if own else None), seen
        if old.st_ctime_ns > self.created and not self.intent.wrote(change):
            return "the project has a newer version", seen
        return None, seen

    def _vanished(self, change: Change) -> str | None:
        """An entry that came from the project, whose place there is empty: removed meanwhile, or moved by the agent?"""
        if not change.copied_up:
            return None
        if change.type == "directory":  # the overlay never lets such a directory be moved
            return "the project no longer has this directory"
        above = beneath.stat_beneath(self.lower, _above(change.path))
        if above is not None and above.st_mtime_ns > self.created:
            return "the project no longer has this file"
        return None

    def _require_room(self) -> None:
        files = [
            step.change for step in self.steps if step.change.type == "file" and step.change.kind in ("add", "modify")
        ]
        disk = os.fstatvfs(self.lower)
        room = disk.f_bavail * disk.f_frsize - _RESERVE
        need = sum(change.size for change in files)
        if need > room or any(change.sha256_new is None for change in files):
            largest = max(files, key=lambda change: change.size)
            raise ENOSPC(
                "workspace.space",
                f"committing needs {need:,} bytes and the project's disk has {max(room, 0):,}; "
                f"the largest file is {largest.shown} with {largest.size:,}",
                hint="make room, or commit the rest alone with --only PATH",
            )

    def _attempt(self, step: Step, index: int) -> None:
        change = step.change
        try:
            self._apply(step, self.intent.temporary(index))
        except _Moved as moved:
            self.report.conflicts.append(Conflict(change, str(moved)))
        except OSError as error:
            if error.errno in _NO_ROOM:
                raise ENOSPC(
                    "workspace.space", f"no room left while writing {change.shown}", hint="make room, then commit again"
                ) from None
            if error.errno in _MOVED:
                self.report.conflicts.append(Conflict(change, f"the project changed there: {error.strerror}"))
            else:
                self.report.failed.append(replace(change, refused=f"cannot be written: {error.strerror}"))
        else:
            step.done = True
            self.report.committed.append(change)
            if change.kind == "delete":
                self._gone.add(change.path)

    def _apply(self, step: Step, temporary: str) -> None:
        change = step.change
        if change.kind == "mode":
            self._set_mode(change)
            return
        with beneath.parent(self.lower, change.path) as (directory, name):
            if change.kind == "delete" and change.type == "directory":
                os.rmdir(name, dir_fd=directory)
            elif change.type == "directory":
                _make_directory(directory, name)
            else:
                self._leaf(step, directory, name, temporary)
        self._touched.add(_above(change.path))

    def _leaf(self, step: Step, directory: int, name: str, temporary: str) -> None:
        seen = None if step.change.path in self._gone else step.seen
        if _facts(_lstat(directory, name)) != seen:
            raise _Moved("the project changed it at this moment")
        if step.change.kind == "delete":
            os.unlink(name, dir_fd=directory)
            return
        try:
            if step.change.type == "symlink":
                self._make_link(step.change, directory, temporary)
            else:
                self._make_file(step.change, directory, temporary)
            beneath.rename(directory, temporary, name, replace=seen is not None)  # the entry is committed here
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            raise

    def _make_file(self, change: Change, directory: int, temporary: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            beneath.closing(beneath.open_file(self.upper, change.path)) as source,
            beneath.closing(os.open(temporary, flags, 0o600, dir_fd=directory)) as target,
        ):
            if beneath.sha256(source, into=target) != change.sha256_new:
                raise _Moved("the workspace changed while it was committed")
            _give_to_owner_of(directory, target)
            os.fchmod(target, (change.mode or 0) & PERMISSIONS)
            os.fsync(target)

    def _make_link(self, change: Change, directory: int, temporary: str) -> None:
        os.symlink(beneath.read_link(self.upper, change.path), temporary, dir_fd=directory)
        if os.geteuid() == 0:
            owner = os.fstat(directory)
            os.chown(temporary, owner.st_uid, owner.st_gid, dir_fd=directory, follow_symlinks=False)

    def _set_mode(self, change: Change) -> None:
        path = "" if change.path == "." else change.path
        now = beneath.stat_beneath(self.lower, path)
        if now is None or stat.S_ISDIR(now.st_mode) != (change.type == "directory"):
            raise _Moved("the project no longer has it")
        # The project's own setgid directory stays one; nothing an agent set ever gets there.
        kept = now.st_mode & 0o7000 if change.type == "directory" else 0
        beneath.change_mode(self.lower, path, kept | ((change.mode or 0) & PERMISSIONS))

    def _finish_directories(self) -> None:
        """New directories were open to us only; a mode without write permission could not have received children."""
        made = [step.change for step in self.steps if step.done and _makes_directory(step.change)]
        for change in reversed(made):
            with suppress(OSError, _Moved):  # replaced on the host at this moment: no longer ours to finish
                self._set_mode(change)

    def _sync(self) -> None:
        for above in self._touched:
            try:
                with beneath.closing(beneath.open_directory(self.lower, above)) as fd:
                    os.fsync(fd)
            except OSError as error:
                if error.errno not in _MOVED:  # removed by this commit, or moved on the host: no longer ours to sync
                    raise


class _Moved(Exception):
    """The place, or the content, is no longer what was planned."""


class _Held:
    """Entries that will not be written, and those that therefore cannot be either."""

    def __init__(self) -> None:
        self.reasons: dict[Change, str] = {}
        self.kinds: dict[Change, str] = {}
        self.deletes: dict[str, Change] = {}
        self.writes: dict[str, Change] = {}
        self.below: dict[str, Change] = {}  # directory → one held entry somewhere below it

    def put(self, change: Change, reason: str, kind: str) -> None:
        self.reasons[change], self.kinds[change] = reason, kind
        (self.deletes if change.kind == "delete" else self.writes)[change.path] = change
        for above in _ancestors(change.path):
            self.below.setdefault(above, change)

    def of(self, kind: str) -> list[Change]:
        return [change for change, what in self.kinds.items() if what == kind]

    def sift(self, steps: list[Step]) -> list[Step]:
        """Without the entries whose place depends on a held one. Repeated until nothing more is held back."""
        while True:
            blocked = [(step, by) for step in steps if (by := self._blocker(step.change))]
            if not blocked:
                return steps
            for step, by in blocked:
                reason = f"depends on {by.shown}, {self.reasons[by]}"
                self.put(step.change, reason, self.kinds[by])
            steps = [step for step in steps if step.change not in self.reasons]

    def _blocker(self, change: Change) -> Change | None:
        places = [change.path, *_ancestors(change.path)]
        if change.kind == "delete":
            # A directory is not emptied for something that will not take its place, nor removed while it keeps entries.
            above = next((self.writes[place] for place in places if _replaces(self.writes.get(place))), None)
            return above or (self.below.get(change.path) if change.type == "directory" else None)
        return next(
            (
                held
                for place in places
                if (held := self.deletes.get(place) or self.writes.get(place))
                and (held.kind == "delete" or _makes_directory(held))
            ),
            None,
        )


def _replaces(change: Change | None) -> bool:
    return change is not None and change.kind in ("add", "symlink")


def _makes_directory(change: Change) -> bool:
    return change.kind == "add" and change.type == "directory"


def _order(change: Change) -> tuple[int, int, str]:
    """Deletions from the leaves up, directories from the root down, then files; directories' modes last, leaves up."""
    depth = change.path.count("/")
    if change.kind == "delete":
        return 0, -depth, change.path
    if _makes_directory(change):
        return 1, depth, change.path
    if change.kind == "mode" and change.type == "directory":
        return 3, -depth, change.path
    return 2, 0, change.path


def _facts(info: os.stat_result | None) -> Facts:
    if info is None:
        return None
    if stat.S_ISDIR(info.st_mode):
        return (info.st_ino,)
    return (info.st_ino, info.st_mtime_ns, info.st_size)


def _lstat(directory: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _make_directory(directory: int, name: str) -> None:
    os.mkdir(name, 0o700, dir_fd=directory)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with beneath.closing(os.open(name, flags, dir_fd=directory)) as made:
        _give_to_owner_of(directory, made)


def _give_to_owner_of(directory: int, fd: int) -> None:
    """Only root can; anyone else's files are their own, as with any program of theirs."""
    owner, own = os.fstat(directory), os.fstat(fd)
    if os.geteuid() == 0 and (own.st_uid, own.st_gid) != (owner.st_uid, owner.st_gid):
        os.fchown(fd, owner.st_uid, owner.st_gid)


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _ancestors(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)]


def select(changes: Iterable[Change], paths: Iterable[str] | None) -> list[Change]:
    """The changes at or below the given relative paths; all of them when none are given."""
    if paths is None:
        return list(changes)
    wanted = [os.path.normpath(path) for path in paths]
    for path in wanted:
        if path.startswith(("/", "../")) or path == "..":
            raise EINVAL(
                "workspace.path",
                f"{path} is not a path inside the workspace",
                hint="name it as `agentctl diff` shows it",
            )
    return [
        change
        for change in changes
        if any(change.path == p or p == "." or change.path.startswith(p + "/") for p in wanted)
    ]
