"""A backup: one tar file with a journal's database and what a home needs beside it, checked before anything trusts it.

Goes in: files of a home, from a running kernel or from one that is down. Comes out: a file that only its owner reads,
since the signing key is in it; and, at a restore, a home that goes on where the backup was taken. What a restore
replaces is put aside, never deleted.
"""

# apsw's types name a class that the standard library has only since 3.12.
# pyright: reportUnknownMemberType=false

import errno
import fcntl
import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from agent_os.abi.errors import (
    EACCES,
    EBUSY,
    ECONFLICT,
    EINVAL,
    EIO,
    ENOENT,
    ENOSPC,
    ENOTDIR,
    EROFS,
    AgentOSError,
)
from agent_os.abi.heads import parse_note, split_notes
from agent_os.client.sources import open_source
from agent_os.client.verify import Progress, Report, verify

DATABASE, ANCHOR, MARK, KEY, PUBLIC = (
    "journal.db",
    "anchor/heads",
    "anchor/mark",
    "keys/journal.key",
    "keys/journal.pub",
)
NAMES = (ANCHOR, MARK, KEY, PUBLIC, DATABASE)  # the database last: whoever reads a half-made home finds none
_BESIDE_DATABASE = ("-wal", "-shm")
_BLOCK = 512
_PAGES = 1000  # copied at once
Told = Callable[[int, int], object]  # how many bytes of the database are copied, of how many


class Writer:
    """A tar file, written as its content arrives."""

    def __init__(self, target: BinaryIO, told: Told | None = None) -> None:
        self._target, self._due, self._size = target, 0, 0
        self._told = told

    def begin(self, name: str, size: int) -> None:
        if name not in NAMES or self._due:
            raise EIO("backup.stream", f"a file {name!r} does not belong here")
        info = tarfile.TarInfo(name)
        info.size, info.mode, info.mtime = size, 0o600, int(time.time())
        self._target.write(info.tobuf())
        self._due = self._size = size
        self._pad = -size % _BLOCK

    def add(self, data: bytes) -> None:
        self._due -= len(data)
        if self._due < 0:
            raise EIO("backup.stream", "there came more than was announced")
        self._target.write(data)
        if self._told:
            self._told(self._size - self._due, self._size)
        if not self._due:
            self._target.write(bytes(self._pad))

    def finish(self) -> None:
        if self._due:
            raise EIO("backup.stream", f"{self._due} bytes are missing")
        self._target.write(bytes(2 * _BLOCK))
        self._target.flush()
        os.fsync(self._target.fileno())


_KINDS: dict[int, type[AgentOSError]] = {
    errno.ENOENT: ENOENT,
    errno.ENOTDIR: ENOTDIR,
    errno.EACCES: EACCES,
    errno.EPERM: EACCES,
    errno.EROFS: EROFS,
    errno.ENOSPC: ENOSPC,
    errno.EDQUOT: ENOSPC,
}


@contextmanager
def new_file(path: Path) -> Generator[BinaryIO]:
    """A file that appears whole or not at all, readable by its owner only. One that is there is not replaced."""
    if path.exists():
        raise ECONFLICT("backup.exists", f"{path} is there already", hint="choose another name, or remove it")
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w+b") as file:
            yield file
        os.rename(draft, path)
    except OSError as problem:
        kind = _KINDS.get(problem.errno or 0, EIO)
        raise kind(
            "backup.unwritable", f"{path} cannot be written: {problem.strerror}", hint="another FILE"
        ) from problem
    finally:
        draft.unlink(missing_ok=True)


def copy_home(home: Path, target: BinaryIO, told: Told | None = None) -> None:
    """A backup of a home whose kernel is down."""
    import apsw

    writer = Writer(target, told)
    with locked(home), tempfile.TemporaryDirectory(prefix=".backup-", dir=home) as place:
        if not (home / DATABASE).exists():
            raise ENOENT("backup.nothing", f"there is no journal in {home}", hint="AGENT_OS_HOME names another home")
        copy = Path(place) / DATABASE
        source, into = apsw.Connection(os.fspath(home / DATABASE)), apsw.Connection(os.fspath(copy))
        with source, into, into.backup("main", source, "main") as running:
            while not running.step(_PAGES):
                if told:
                    told(running.page_count - running.remaining, running.page_count)
        into.close()
        source.close()
        for path, name in [*((home / name, name) for name in NAMES[:-1]), (copy, DATABASE)]:
            if path.exists():
                writer.begin(name, path.stat().st_size)
                with path.open("rb") as file:
                    while data := file.read(1 << 20):
                        writer.add(data)
    writer.finish()


@contextmanager
def unpacked(file: Path, beside: Path, progress: Progress | None = None) -> Generator[tuple[Path, Report]]:
    """The files of a backup in a directory of their own, and what a verification found. Gone afterwards."""
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=beside) as name:
        place = Path(name)
        _unpack(file, place)
        key = place / PUBLIC
        anchor = place / ANCHOR
        trusted = key.read_text() if key.exists() else None
        heads = anchor if anchor.exists() else None
        yield place, verify(place / DATABASE, key=trusted, anchor=heads, progress=progress)


def _unpack(file: Path, place: Path) -> None:
    try:
        with tarfile.open(file, "r:") as archive:
            for member in archive:
                content = archive.extractfile(member) if member.isfile() and member.name in NAMES else None
                if content is None:
                    raise EINVAL("backup.foreign", f"{file} holds {member.name!r}, which no backup of ours does")
                (place / member.name).parent.mkdir(mode=0o700, exist_ok=True)
                with open(os.open(place / member.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                    shutil.copyfileobj(content, out)
                    os.fsync(out.fileno())
    except (tarfile.TarError, EOFError) as problem:
        raise EINVAL("backup.unreadable", f"{file} is no backup, or not a whole one: {problem}") from problem
    except FileExistsError:
        raise EINVAL("backup.foreign", f"{file} holds a file twice") from None
    except OSError as problem:
        raise EINVAL("backup.unreadable", f"cannot read {file}: {problem.strerror}") from problem
    if not (place / DATABASE).exists():
        raise EINVAL("backup.unreadable", f"{file} is no backup: there is no {DATABASE} in it")


@contextmanager
def locked(home: Path) -> Generator[None]:
    """No kernel runs in this home, and none can start, until this ends."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise EBUSY("home.held", f"a kernel runs in {home}", hint="agentctl down") from None
    try:
        yield
    finally:
        os.close(fd)


def require_older(home: Path, place: Path) -> None:
    """ECONFLICT if the home's journal is another one, or knows more than the backup in `place`."""
    ours = _known(home)
    if ours is None:
        return
    theirs = _known(place) or (b"", 0)
    hint = "--yes restores all the same; what is there is put aside"
    if ours[0] != theirs[0]:
        raise ECONFLICT("restore.other", f"the journal in {home} is another one than the backup's", hint=hint)
    if ours[1] > theirs[1]:
        reason = f"the journal in {home} has {ours[1]} entries, the backup {theirs[1]}: {ours[1] - theirs[1]} would go"
        raise ECONFLICT("restore.newer", reason, hint=hint)


def _known(home: Path) -> tuple[bytes, int] | None:
    """Which journal a home has and how far it went. The anchor tells it even of a database that cannot be read."""
    log_id, size = b"", 0
    with suppress(OSError, ValueError):
        for note in split_notes((home / ANCHOR).read_bytes()):
            head = parse_note(note).head
            log_id, size = head.log_id, max(size, head.size)
    with suppress(AgentOSError):
        source = open_source(home / DATABASE)
        try:
            facts = source.facts()
            log_id, size = facts.log_id or log_id, max(size, facts.size)
        finally:
            source.close()
    return (log_id, size) if size else None


def put_in_place(place: Path, home: Path) -> Path | None:
    """Make a home of the files in `place`; where the old ones are now. The database goes out first and comes in last:
    with an anchor and no database no kernel boots, so a restore that was cut off is repeated, not overlooked."""
    old = [name for name in NAMES if (home / name).exists()]
    aside = _new_directory(home, time.strftime("before-restore-%Y%m%dT%H%M%SZ", time.gmtime())) if old else None
    if aside:
        for name in old:
            (aside / name).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if name != DATABASE:
                shutil.copy2(home / name, aside / name)
        for suffix in ("", *_BESIDE_DATABASE):
            with suppress(FileNotFoundError):
                (home / (DATABASE + suffix)).rename(aside / (DATABASE + suffix))
    for name in NAMES:
        if (place / name).exists():
            (home / name).parent.mkdir(mode=0o700, exist_ok=True)
            (place / name).replace(home / name)
    return aside


def _new_directory(home: Path, name: str) -> Path:
    """One that was not there: what an earlier restore put aside stays."""
    number = 1
    while True:
        place = home / (name if number == 1 else f"{name}-{number}")
        try:
            place.mkdir(mode=0o700)
            return place
        except FileExistsError:
            number += 1
