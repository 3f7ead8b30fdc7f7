"""What a guest's files take on disk, counted from outside while it may be changing them.

In: directories it writes to, and the pids of its processes. Out: bytes. Whether that is too much, and what then, is
decided elsewhere. The tree is hostile: no link is followed, and a directory closed to hide something is opened.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from agent_os.kernel import beneath
from agent_os.sandbox import syscalls

_ENTRY_BYTES = 1024  # what a name and an inode cost, however empty
_KCMP_FILES = 2
_PLACE = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def used(top: Path) -> int:
    """Bytes on disk below a directory; links are not followed. RecursionError if it is nested very deeply, be it that
    Python gives up first or that the descriptors, one for each level, run out."""
    try:
        return _walked(top)
    except OSError as problem:
        if problem.errno != errno.EMFILE:
            raise
        raise RecursionError("more levels than descriptors") from problem


def _walked(top: Path) -> int:
    total = 0
    for _, directories, files, here in os.fwalk(top, follow_symlinks=False, onerror=None):
        if os.geteuid() != 0:
            _let_us_look(directories, here)
        for name in (*directories, *files):
            try:
                total += os.stat(name, dir_fd=here, follow_symlinks=False).st_blocks * 512 + _ENTRY_BYTES
            except FileNotFoundError:
                continue
    return total


def nameless(pids: Iterable[int]) -> Counter[int]:
    """Bytes of files that were deleted and that these processes still have open, by device: no walk of a tree finds
    them. A thread may have a table of its own. What is open nowhere stays unseen: a file that is only mapped, or
    that waits in a socket; and, unless we are root, the files of a process that forbids looking at it."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        for thread in _entries(f"/proc/{pid}/task"):
            if int(thread) != pid and _share_descriptors(pid, int(thread)):
                continue
            table = f"/proc/{pid}/task/{thread}/fd"
            for fd in _entries(table):
                with suppress(OSError):
                    info = os.stat(f"{table}/{fd}")
                    if info.st_nlink == 0 and stat.S_ISREG(info.st_mode):
                        found[info.st_dev, info.st_ino] = info.st_blocks * 512
    by_device: Counter[int] = Counter()
    for (device, _), size in found.items():
        by_device[device] += size
    return by_device


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:  # it has ended, or does not let us look
        return []


def _share_descriptors(one: int, other: int) -> bool:
    try:
        return syscalls.call("kcmp", one, other, _KCMP_FILES, 0, 0) == 0
    except OSError:  # cannot be told: then both are looked at
        return False


def _let_us_look(directories: list[str], parent: int) -> None:
    """User mode: the files are ours, so a directory that its agent closed can be opened again. Root sees it anyway."""
    for name in directories:
        with suppress(OSError), beneath.closing(os.open(name, _PLACE, dir_fd=parent)) as place:
            mode = os.fstat(place).st_mode
            if mode & 0o500 != 0o500:
                os.chmod(f"/proc/self/fd/{place}", (mode & 0o7777) | 0o500)
