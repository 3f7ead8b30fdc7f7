"""Copies of whole trees for workspaces: of a project, where there is no overlay, and of an agent's layer, to keep it.

In: open directories and the uid that the copy shall belong to. Out: a tree with the same entries; blocks are shared
where the disk can. What an agent made is hostile: every path is resolved physically beneath a descriptor, setuid bits
stay behind, devices and sockets are not copied. A layer's deletions and marks (`user.overlay.*`) are part of it.
"""

import errno
import fcntl
import os
import stat
from contextlib import suppress

from agent_os.kernel import beneath
from agent_os.kernel.workspace.changes import PERMISSIONS

_FICLONE = 0x40049409
_NO_XATTRS = {errno.ENOTSUP, errno.EPERM}


def copy_project(source: int, target: int, uid: int | None) -> list[str]:
    """Files, directories and links of a project; the paths that were copied."""
    return _copy(source, target, uid, layer=False)


def copy_layer(source: int, target: int, uid: int | None) -> list[str]:
    """An agent's layer with its deletions, marks and hard links. The layer must not change meanwhile."""
    copied = _copy(source, target, uid, layer=True)
    _finish(source, target, os.fstat(source), uid, marks=True)
    return copied


def _copy(source: int, target: int, uid: int | None, *, layer: bool) -> list[str]:
    made: list[str] = []
    directories: list[tuple[str, os.stat_result]] = []
    linked: dict[int, str] = {}  # inode: where its first name was copied to
    for path, info in beneath.walk(source, ""):
        if stat.S_ISDIR(info.st_mode):
            beneath.make_directory(target, path)
            directories.append((path, info))
        elif stat.S_ISREG(info.st_mode):
            if layer and info.st_nlink > 1 and info.st_ino in linked:
                _link(target, linked[info.st_ino], path)
            else:
                linked[info.st_ino] = path
                _copy_file(source, target, path, uid, marks=layer)
        elif not _copy_other(source, target, path, info, uid, layer):
            continue
        made.append(path)
    for path, info in reversed(directories):  # a mode that forbids writing, and the times, come last
        with (
            beneath.closing(beneath.open_directory(source, path)) as old,
            beneath.closing(beneath.open_directory(target, path)) as new,
        ):
            _finish(old, new, info, uid, marks=layer)
    return made


def _copy_file(source: int, target: int, path: str, uid: int | None, *, marks: bool) -> None:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with (
        beneath.closing(beneath.open_file(source, path)) as old,
        beneath.closing(beneath.open_beneath(target, path, flags, 0o600, resolve=beneath.PHYSICAL)) as new,
    ):
        try:
            fcntl.ioctl(new, _FICLONE, old)
        except OSError:  # no shared blocks here: copy the bytes
            beneath.sha256(old, into=new)
        _finish(old, new, os.fstat(old), uid, marks=marks)


def _copy_other(source: int, target: int, path: str, info: os.stat_result, uid: int | None, layer: bool) -> bool:
    """A link; in a layer also a deletion or a named pipe. Whether there was something to copy."""
    with beneath.parent(target, path) as (directory, name):
        if stat.S_ISLNK(info.st_mode):
            os.symlink(beneath.read_link(source, path), name, dir_fd=directory)
        elif layer and stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=directory)  # the one device that needs no privilege
        elif layer and stat.S_ISFIFO(info.st_mode):
            os.mkfifo(name, info.st_mode & PERMISSIONS, dir_fd=directory)
        else:
            return False
        if uid is not None:
            os.chown(name, uid, uid, dir_fd=directory, follow_symlinks=False)
        os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=directory, follow_symlinks=False)
    return True


def _link(target: int, first: str, path: str) -> None:
    with beneath.parent(target, first) as (there, old), beneath.parent(target, path) as (here, new):
        os.link(old, new, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)


def _finish(old: int, new: int, info: os.stat_result, uid: int | None, *, marks: bool) -> None:
    if marks:
        _copy_marks(old, new)
    give(new, uid)
    os.fchmod(new, info.st_mode & PERMISSIONS)
    os.utime(new, ns=(info.st_atime_ns, info.st_mtime_ns))


def _copy_marks(old: int, new: int) -> None:
    """Extended attributes of the user's own kind: the overlay's marks, and what the agent itself noted on a file."""
    try:
        names = os.listxattr(old)
    except OSError as error:
        if error.errno in _NO_XATTRS:
            return
        raise
    for name in names:
        if name.startswith("user."):
            os.setxattr(new, name, os.getxattr(old, name))


def give(fd: int, uid: int | None) -> None:
    if uid is not None and os.fstat(fd).st_uid != uid:
        os.fchown(fd, uid, uid)


def stamp(root: int, paths: list[str]) -> None:
    """Let entries bear a change time of now, and nothing else."""
    for path in paths:
        with suppress(FileNotFoundError), beneath.parent(root, path) as (directory, name):
            info = os.stat(name, dir_fd=directory, follow_symlinks=False)
            os.utime(name, ns=(info.st_atime_ns, info.st_mtime_ns), dir_fd=directory, follow_symlinks=False)
