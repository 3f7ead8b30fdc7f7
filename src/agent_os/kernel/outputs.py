"""What agents wrote to their standard streams: one log each, bounded, and read back later.

Owns `<home>/logs/<name>.log` and its predecessor `.log.1`. A log that cannot be written loses output, never an agent.
"""

import os
from contextlib import suppress
from pathlib import Path

from agent_os.abi.errors import ENOENT

MOST_BYTES = 4 << 20  # of a log; with its predecessor twice that
MOST_LOGS = 200


class Output:
    """The log of one agent that runs."""

    def __init__(self, home: Path, name: str) -> None:
        self._path = home / "logs" / f"{name}.log"
        self._fd = self._size = -1
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
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._size = os.fstat(self._fd).st_size

    def write(self, data: bytes) -> None:
        if self._fd < 0:
            return
        with suppress(OSError):  # no room: the agent goes on
            if self._size and self._size + len(data) > MOST_BYTES:
                self.close()
                self.begins = max(0, self.begins - self._older())
                os.replace(self._path, f"{self._path}.1")
                self._open()
            self._size += os.write(self._fd, data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Reader:
    """A log from somewhere on, also while it grows. What is rotated away while it is read is read to its end first."""

    def __init__(self, home: Path, name: str, last: int | None = None, skip: int = 0) -> None:
        """ENOENT: there is no log, or it is gone. `last`: only so many lines of what there is; `skip`: all but the
        first bytes."""
        self._path = home / "logs" / f"{name}.log"
        self._fds = [fd for part in (Path(f"{self._path}.1"), self._path) if (fd := _opened(part)) >= 0]
        if not self._fds:
            raise ENOENT("logs.unknown", f"there is no output of {name}", hint="agentctl ps lists who is running")
        if last is not None:
            skip = max(skip, self._before(last))
        for fd in self._fds:
            size = os.fstat(fd).st_size
            os.lseek(fd, min(skip, size), os.SEEK_SET)
            skip -= min(skip, size)

    def _before(self, last: int) -> int:
        """Bytes before the last lines. A log is small enough to be read for that."""
        lines = b"".join(os.pread(fd, 2 * MOST_BYTES, 0) for fd in self._fds).splitlines(keepends=True)
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
