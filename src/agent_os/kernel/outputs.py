"""What agents wrote to their standard streams: one log each, bounded, and read back later.

Owns `<home>/logs/<name>.log` and its predecessor `.log.1`, and beside each a file `.times`: where in the log was what
was written in which second, 16 bytes a second in which something was. A log that cannot be written loses output, never
an agent.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

from agent_os.abi.errors import ENOENT

MOST_BYTES = 4 << 20  # of a log; with its predecessor twice that
MOST_LOGS = 200
_MARK = 16  # bytes: an offset, and the wall clock when that was written
_EVERY_NS = 1_000_000_000
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW


class Output:
    """The log of one agent that runs."""

    def __init__(self, home: Path, name: str) -> None:
        self._path = home / "logs" / f"{name}.log"
        self._fd = self._times = self._size = -1
        self._marked_ns = self._marks = 0
        self.begins = 0  # bytes that are there of others before it: of earlier lives, and of who had its name
        with suppress(OSError):
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            sweep(home)
            self._open()
            self.begins = self._older() + self._size

    def _older(self) -> int:
        """Bytes of the log before the present one."""
        try:
            return os.lstat(f"{self._path}.1").st_size
        except OSError:
            return 0

    def _open(self) -> None:
        self._fd = os.open(self._path, _APPEND, 0o600)
        self._size = os.fstat(self._fd).st_size
        with suppress(OSError):  # a log without times is still one
            self._times = os.open(_times(self._path), _APPEND, 0o600)
            whole = os.fstat(self._times).st_size // _MARK * _MARK
            os.ftruncate(self._times, whole)  # half a mark of a kernel that was killed
            self._marks = whole

    def write(self, data: bytes) -> None:
        if self._fd < 0:
            return
        with suppress(OSError):  # no room: the agent goes on
            if self._size and (self._size + len(data) > MOST_BYTES or self._marks >= MOST_BYTES):
                self._rotate()
            self._mark(time.time_ns())
            self._size += os.write(self._fd, data)

    def _rotate(self) -> None:
        self.close()
        self.begins = max(0, self.begins - self._older())
        older = Path(f"{self._path}.1")
        os.replace(self._path, older)
        with suppress(OSError):  # it has none
            _times(older).unlink(missing_ok=True)
            os.replace(_times(self._path), _times(older))
        self._open()
        self._marked_ns = 0

    def _mark(self, now: int) -> None:
        """What comes next is of this second, unless that was said already. A clock that was set back says so, too."""
        if self._times < 0 or 0 <= now - self._marked_ns < _EVERY_NS:
            return
        self._marked_ns = now
        with suppress(OSError):
            self._marks += os.write(self._times, self._size.to_bytes(8) + now.to_bytes(8))

    def close(self) -> None:
        for fd in (self._fd, self._times):
            if fd >= 0:
                os.close(fd)
        self._fd = self._times = -1


class Reader:
    """A log from somewhere on, also while it grows. What is rotated away while it is read is read to its end first."""

    def __init__(self, home: Path, name: str, last: int | None = None, skip: int = 0, since_ns: int = 0) -> None:
        """ENOENT: there is no log, or it is gone. `last`: only so many lines of what there is; `skip`: all but the
        first bytes; `since_ns`: what was written since then, with the rest of its second and its line."""
        self._path = home / "logs" / f"{name}.log"
        parts = (Path(f"{self._path}.1"), self._path)
        opened = [(part, fd) for part in parts if (fd := _opened(part)) >= 0]
        self._fds = [fd for _, fd in opened]
        if not self._fds:
            raise ENOENT("logs.unknown", f"there is no output of {name}", hint="agentctl ps lists who is running")
        if since_ns:
            skip = max(skip, self._begin_of_line(_first(_marks(opened), since_ns)))
        if last is not None:
            skip = max(skip, self._before(last))
        for fd in self._fds:
            size = os.fstat(fd).st_size
            os.lseek(fd, min(skip, size), os.SEEK_SET)
            skip -= min(skip, size)

    def _whole(self) -> bytes:
        """A log is small enough to be read to find something in it."""
        return b"".join(os.pread(fd, 2 * MOST_BYTES, 0) for fd in self._fds)

    def _begin_of_line(self, at: int | None) -> int:
        """None: after everything that is there."""
        whole = self._whole()
        return len(whole) if at is None else whole.rfind(b"\n", 0, at) + 1

    def _before(self, last: int) -> int:
        """Bytes before the last lines."""
        lines = self._whole().splitlines(keepends=True)
        return sum(map(len, lines[:-last] if last else lines))

    def read(self, size: int) -> bytes:
        """What comes next; nothing where nothing is there yet."""
        while not (data := os.read(self._fds[0], size)):
            if len(self._fds) == 1 and not self._rotated():
                return b""
            os.close(self._fds.pop(0))
        return data

    def _rotated(self) -> bool:
        """Whether a new log took the place of the one we read."""
        fd = _opened(self._path)
        if fd < 0:
            return False
        if os.fstat(fd).st_ino == os.fstat(self._fds[-1]).st_ino:
            os.close(fd)
            return False
        self._fds.append(fd)
        return True

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds = []


def _times(path: Path) -> Path:
    return path.with_name(f"{path.name}.times")


def _marks(parts: list[tuple[Path, int]]) -> list[tuple[int, int]]:
    """Offsets over all parts, each with when that was written. Those of what was never written are left out."""
    found: list[tuple[int, int]] = []
    before = 0
    for path, fd in parts:
        size, data = os.fstat(fd).st_size, b""
        times = _opened(_times(path))
        if times >= 0:
            data = os.pread(times, 2 * MOST_BYTES, 0)
            os.close(times)
        for at in range(0, len(data) - _MARK + 1, _MARK):
            offset, when = int.from_bytes(data[at : at + 8]), int.from_bytes(data[at + 8 : at + _MARK])
            if offset < size:
                found.append((before + offset, when))
        before += size
    return found


def _first(marks: list[tuple[int, int]], since_ns: int) -> int | None:
    """Where that begins what may have been written since then: never less. What has no mark before it may be, too."""
    begin: int | None = None if marks else 0
    for number in range(len(marks) - 1, -1, -1):
        offset, when = marks[number]
        if when + _EVERY_NS <= since_ns:
            break
        begin = offset if number else 0
    return begin


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1


def sweep(home: Path) -> None:
    """Only so many logs are kept: the newest."""
    logs = sorted((home / "logs").glob("*.log"), key=lambda path: path.lstat().st_mtime_ns)
    for path in [one for one in logs if one.name != "kernel.log"][:-MOST_LOGS]:
        for part in (path, Path(f"{path}.1")):
            part.unlink(missing_ok=True)
            _times(part).unlink(missing_ok=True)
