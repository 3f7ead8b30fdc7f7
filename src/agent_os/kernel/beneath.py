"""Files beneath a directory descriptor, resolved by the Linux kernel (openat2), never by a host path again.

In: an open directory and a relative path that may be hostile. Out: descriptors, stat results, bytes, or an `OSError`
whose `errno` says why. Checking a path first and opening it afterwards loses races; here the lookup itself cannot leave
the directory. Owns nothing on disk; never follows a link to a place outside and never blocks on a FIFO or device.
"""

import ctypes
import errno
import hashlib
import os
import stat
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress

NO_XDEV = 0x01  # no crossing into another mount
NO_MAGICLINKS = 0x02  # no /proc/PID/fd and the like
NO_SYMLINKS = 0x04
BENEATH = 0x08

# For an agent's own view: links are followed as long as they stay inside.
INSIDE = BENEATH | NO_MAGICLINKS
# For a walk that already knows every directory: a link or a mount in the middle can only be a swap.
PHYSICAL = INSIDE | NO_SYMLINKS | NO_XDEV

_SYS_OPENAT2 = 437  # the same number on every architecture
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_RETRIES = 64  # the kernel answers EAGAIN when a rename elsewhere disturbed the lookup
_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}

_libc = ctypes.CDLL(None, use_errno=True)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_root(path: str | os.PathLike[str]) -> int:
    """The one time a host path is walked: the directory everything else is beneath."""
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def open_beneath(root: int, path: str, flags: int, mode: int = 0, *, resolve: int = INSIDE) -> int:
    """openat2. `""` is the root itself. EXDEV: the path leads outside; ELOOP: through a link that is not allowed."""
    raw = os.fsencode(path) or b"."
    if b"\0" in raw:  # ctypes would silently cut the name there
        raise OSError(errno.EINVAL, "NUL in path", path)
    how = _OpenHow(flags | os.O_CLOEXEC, mode if flags & os.O_CREAT else 0, resolve)
    for _ in range(_RETRIES):
        fd = _libc.syscall(
            ctypes.c_long(_SYS_OPENAT2),
            ctypes.c_int(root),
            ctypes.c_char_p(raw),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            break
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number), path)


def stat_beneath(root: int, path: str, *, resolve: int = PHYSICAL) -> os.stat_result | None:
    """The entry itself (a link is not followed), or None when there is none."""
    try:
        fd = open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW, resolve=resolve)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    with closing(fd):
        return os.fstat(fd)


def open_directory(root: int, path: str, *, resolve: int = PHYSICAL) -> int:
    return open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, resolve=resolve)


def open_file(root: int, path: str, *, resolve: int = PHYSICAL) -> int:
    """A regular file for reading; EINVAL for anything else, decided before the open: nothing is woken or waited for."""
    probe = open_beneath(root, path, os.O_PATH | (os.O_NOFOLLOW if resolve & NO_SYMLINKS else 0), resolve=resolve)
    with closing(probe):
        _require_regular(probe, path)
    # A swap in between meets O_NONBLOCK and is looked at again.
    fd = open_beneath(root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, resolve=resolve)
    try:
        _require_regular(fd, path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _require_regular(fd: int, path: str) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def read_beneath(root: int, path: str, limit: int, *, resolve: int = PHYSICAL) -> bytes:
    """At most `limit` bytes of a regular file."""
    with closing(open_file(root, path, resolve=resolve)) as fd:
        parts: list[bytes] = []
        while limit > 0 and (part := os.read(fd, min(limit, _CHUNK))):
            parts.append(part)
            limit -= len(part)
        return b"".join(parts)


def read_link(root: int, path: str, *, resolve: int = PHYSICAL) -> str:
    with closing(open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW, resolve=resolve)) as fd:
        return os.readlink("", dir_fd=fd)


def names(root: int, path: str, *, resolve: int = PHYSICAL) -> list[str]:
    """Sorted names of a directory; undecodable bytes survive as surrogates."""
    with closing(open_directory(root, path, resolve=resolve)) as fd:
        return sorted(os.listdir(fd))


def walk(root: int, path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below a directory, parents before children. No recursion: a hostile tree may be very deep."""
    queue = [path]
    while queue:
        above = queue.pop()
        for name in names(root, above):
            entry = join(above, name)
            info = stat_beneath(root, entry)
            if info is None:
                continue
            yield entry, info
            if stat.S_ISDIR(info.st_mode):
                queue.append(entry)


@contextmanager
def parent(root: int, path: str, *, resolve: int = PHYSICAL) -> Generator[tuple[int, str]]:
    """The directory that holds `path`, open, and the last name: for calls that take (dir_fd, name)."""
    above, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        raise OSError(errno.EINVAL, "no name to act on", path)
    with closing(open_directory(root, above, resolve=resolve)) as fd:
        yield fd, name


def make_directory(root: int, path: str, mode: int = 0o700) -> None:
    with parent(root, path) as (fd, name):
        os.mkdir(name, mode, dir_fd=fd)


def unlink(root: int, path: str) -> None:
    with parent(root, path) as (fd, name):
        os.unlink(name, dir_fd=fd)


def remove_directory(root: int, path: str) -> None:
    with parent(root, path) as (fd, name):
        os.rmdir(name, dir_fd=fd)


def rename(directory: int, old: str, new: str, *, replace: bool = True) -> None:
    """Within one open directory. Without `replace` an existing `new` is EEXIST, also when it appears at this moment."""
    if replace:
        os.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)
        return
    try:
        _renameat2(directory, old, new, _RENAME_NOREPLACE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # A file system without RENAME_NOREPLACE: a hard link refuses an existing name just as surely.
        os.link(old, new, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
        os.unlink(old, dir_fd=directory)


def exchange(directory: int, one: str, other: str) -> None:
    """Each gets the other's name, within one open directory and at one moment."""
    _renameat2(directory, one, other, _RENAME_EXCHANGE)


def _renameat2(directory: int, old: str, new: str, flags: int) -> None:
    result = _libc.renameat2(
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(old)),
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(new)),
        ctypes.c_uint(flags),
    )
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)


def change_mode(root: int, path: str, mode: int) -> None:
    """chmod of a file or directory that is not a link, through a descriptor so that it cannot be swapped for one."""
    with closing(open_beneath(root, path, os.O_PATH | os.O_NOFOLLOW, resolve=PHYSICAL)) as fd:
        if stat.S_ISLNK(os.fstat(fd).st_mode):
            raise OSError(errno.ELOOP, "a link has no mode", path)
        os.chmod(f"/proc/self/fd/{fd}", mode)  # the only way to change what O_PATH pins


def extents(fd: int, size: int) -> Iterator[tuple[int, int, bool]]:
    """(offset, length, has data) over the whole apparent size, so that holes need not be read."""
    at = 0
    while at < size:
        try:
            data = min(os.lseek(fd, at, os.SEEK_DATA), size)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            data = size
        if data > at:
            yield at, data - at, False
        if data < size:
            hole = min(os.lseek(fd, data, os.SEEK_HOLE), size)
            yield data, hole - data, True
            data = hole
        at = data


def sha256(fd: int, into: int | None = None) -> str:
    """Hash of a file's content; with `into`, the content is copied there in the same pass, holes kept as holes."""
    size = os.fstat(fd).st_size
    digest = hashlib.sha256()
    for offset, length, has_data in extents(fd, size):
        for at in range(offset, offset + length, _CHUNK):
            want = min(_CHUNK, offset + length - at)
            block = os.pread(fd, want, at) if has_data else _ZEROS[:want]
            digest.update(block)
            if has_data and into is not None:
                _write_all(into, block, at)
    if into is not None:
        os.ftruncate(into, size)
    return digest.hexdigest()


def _write_all(fd: int, block: bytes, at: int) -> None:
    view = memoryview(block)
    while view:
        written = os.pwrite(fd, view, at)
        view, at = view[written:], at + written


def remove_tree(directory: int, name: str) -> None:
    """Remove `name` and all below it, whatever its modes, names and depth; links are removed, not followed.

    Sub-directories are moved up beside their parent before they are emptied: two descriptors and no recursion
    suffice for any depth. Nothing is left to resume after a crash but a smaller tree; call it again.
    """
    try:
        os.unlink(name, dir_fd=directory)
        return
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            raise
    with closing(_open_for_removal(directory, name)) as top:
        moved = 0
        while entries := os.listdir(top):
            for entry in entries:
                if not _unlink_unless_directory(top, entry):
                    moved = _empty_into(top, entry, moved)
                    os.rmdir(entry, dir_fd=top)
    os.rmdir(name, dir_fd=directory)


def _empty_into(top: int, entry: str, moved: int) -> int:
    """Unlink the files of a sub-directory and move its directories up into `top` under names of ours."""
    with closing(_open_for_removal(top, entry)) as fd:
        for child in os.listdir(fd):
            if _unlink_unless_directory(fd, child):
                continue
            os.close(_open_for_removal(fd, child))  # moving a directory needs the right to write into it
            while True:
                moved += 1
                try:
                    os.rename(child, f"{moved:x}", src_dir_fd=fd, dst_dir_fd=top)
                    break
                except OSError as error:
                    # That name was the agent's own: try the next.
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                        raise
    return moved


def _unlink_unless_directory(directory: int, name: str) -> bool:
    if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        return False
    os.unlink(name, dir_fd=directory)
    return True


def _open_for_removal(directory: int, name: str) -> int:
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(name, os.O_PATH | flags, dir_fd=directory)) as pinned:
        with suppress(PermissionError):
            os.chmod(f"/proc/self/fd/{pinned}", 0o700)
        return os.open(f"/proc/self/fd/{pinned}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


@contextmanager
def closing(fd: int) -> Generator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def join(above: str, name: str) -> str:
    return f"{above}/{name}" if above else name
