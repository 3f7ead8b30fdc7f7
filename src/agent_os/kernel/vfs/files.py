"""Single files beneath a descriptor, for the directory backend: opened, filled, described, and what went wrong said.

Every open is an openat2 that follows no link (`PLAIN`). Errors of the host become ours here.
"""

import ctypes
import errno
import hashlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress

from agent_os.abi.errors import (
    EACCES,
    EAGAIN,
    EBUSY,
    EINVAL,
    EIO,
    EISOLATION,
    ENOSPC,
    ENOTDIR,
    AgentOSError,
)
from agent_os.kernel import beneath
from agent_os.kernel.vfs.backend import Facts, Source, absent, exists, is_directory, read_only

PLAIN = beneath.INSIDE | beneath.NO_SYMLINKS
TEMPORARY = ".agent-os-tmp-"  # in the directory of the file that it becomes

_libc = ctypes.CDLL(None, use_errno=True)


class OpenFile:
    """A file opened for one read. Its owner may change it meanwhile; then the reader gets a mixture, as everywhere."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.facts = facts_of(os.fstat(fd))

    def read(self, offset: int, length: int) -> bytes:
        parts: list[bytes] = []
        while length > 0 and (part := os.pread(self._fd, min(length, 1 << 20), offset)):
            parts.append(part)
            offset, length = offset + len(part), length - len(part)
        return b"".join(parts)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def require_openat2(root: int) -> None:
    """Without the kernel's own lookup a directory cannot be shown safely, so it is not shown."""
    try:
        os.close(beneath.open_beneath(root, "", os.O_PATH | os.O_DIRECTORY, resolve=PLAIN))
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):
            raise EISOLATION(
                "vfs.openat2", "this host has no openat2 (Linux 5.6); directories cannot be mounted"
            ) from None
        raise ENOTDIR("vfs.mount", f"what was given to mount is not a directory: {error.strerror}") from None


def become(uid: int, gid: int) -> None:
    """For this thread's file accesses only (the calls are per thread): an agent's files with an agent's rights. It also
    makes new files the owner's, and an id-mapped mount accepts no other."""
    if uid != os.geteuid():
        _libc.setfsgid(ctypes.c_uint(gid))
        _libc.setfsuid(ctypes.c_uint(uid))


def create_beside(directory: int, name: str) -> tuple[int, str]:
    """The same name each time, so that what a killed write left is taken over by the one that repeats it."""
    word = hashlib.sha256(os.fsencode(name)).hexdigest()[:16]
    for attempt in range(16):
        temporary = f"{TEMPORARY}{word}{attempt or ''}"
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        with suppress(FileExistsError):  # a directory of that name is somebody's joke
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return os.open(temporary, flags, 0o644, dir_fd=directory), temporary
    raise OSError(errno.EEXIST, "no free name for the temporary file")


def open_append(root: int, path: str) -> int:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY
    fd = beneath.open_beneath(root, path, flags, 0o644, resolve=PLAIN)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise special(path)
    return fd


def fill(fd: int, source: Source) -> None:
    for block in source.blocks():
        _write_all(fd, block)


def _write_all(fd: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(fd, view) :]


def facts_of(info: os.stat_result) -> Facts:
    if stat.S_ISDIR(info.st_mode):
        return Facts("directory", 0, 0, info.st_mtime_ns)
    kind = "file" if stat.S_ISREG(info.st_mode) else "other"
    return Facts(kind, info.st_size, _fingerprint(info), info.st_mtime_ns)


def _fingerprint(info: os.stat_result) -> int:
    """A u64 that changes when the file does; 0 is kept for "does not exist"."""
    said = f"{info.st_ino} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns}"
    return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=8).digest(), "big") >> 1 or 1


@contextmanager
def refusing(path: str) -> Generator[None]:
    """OSErrors inside become ours, naming the caller's path."""
    try:
        yield
    except OSError as error:
        raise refusal(error, path) from None


def outside(path: str) -> EACCES:
    return EACCES("vfs.outside", f"{path!r} goes through a link that leads out of this directory; it is not followed")


def special(path: str) -> EINVAL:
    return EINVAL("vfs.special", f"{path!r} is no regular file; devices, pipes, sockets and links are not opened")


def refusal(error: OSError, path: str) -> AgentOSError:
    match error.errno:
        case errno.ENOENT:
            return absent(path)
        case errno.ENOTDIR:
            return ENOTDIR("vfs.file", f"a component of {path!r}, or it itself, is not a directory")
        case errno.EISDIR:
            return is_directory(path)
        case errno.EEXIST:
            return exists(path)
        case errno.ENOTEMPTY:
            return EBUSY("vfs.not_empty", f"{path!r} is not empty", hint="remove what is in it first")
        case errno.EXDEV:
            return outside(path)
        case errno.ELOOP:
            return EAGAIN(
                "vfs.link", f"a link appeared in {path!r} during the call; nothing was done", retry_after_ms=10
            )
        case errno.EACCES | errno.EPERM:
            return EACCES("vfs.denied", f"the permissions of {path!r} do not allow it")
        case errno.EINVAL | errno.ENXIO:
            return special(path)
        case errno.EOVERFLOW:
            reason = f"{path!r} belongs to a user of the host that does not exist for agents"
            return EACCES("vfs.owner", reason, hint="whoever owns the directory can change the owner of the file")
        case errno.ENAMETOOLONG:
            return EINVAL("path.name", f"{path!r} is too long for this file system")
        case errno.EROFS:
            return read_only("this file system")
        case errno.ENOSPC | errno.EDQUOT:
            return ENOSPC("vfs.full", f"no space is left for {path!r}; the old content is untouched")
        case _:
            return EIO("vfs.io", f"{path!r}: {error.strerror}")
