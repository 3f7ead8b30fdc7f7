"""A disk that fails on purpose: a VFS over SQLite's own that counts, refuses, and forgets what was not synced.

`fail` maps an operation (`write`, `sync`) to the error it raises from then on. `image` writes what a power loss at this
moment would leave: every write since a file's last sync is undone. Counters prove that a fault took place.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw


class ShimDisk(apsw.VFS):
    def __init__(self, name: str = "shim") -> None:
        self.vfs_name = name
        self.fail: dict[str, type[Exception]] = {}
        self.refused = self.writes = self.syncs = 0
        self.unsynced: dict[str, list[tuple[int, bytes, int]]] = {}  # path: offset, what was there, size before
        super().__init__(name, base="")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return ShimFile(self, name, flags)

    def meet(self, operation: str) -> None:
        if error := self.fail.get(operation):
            self.refused += 1
            raise error(f"{operation} refused by the test")

    def image(self, home: Path, target: Path) -> int:
        """Copies the home's files as they would be after a power loss now. Returns how many bytes are lost."""
        lost = 0
        for path in [path for path in home.rglob("*") if path.is_file() and not path.name.endswith("-shm")]:
            data = bytearray(path.read_bytes())
            for offset, before, size in reversed(self.unsynced.get(str(path), [])):
                lost += len(before)
                data[offset : offset + len(before)] = before
                del data[size:]
            copy = target / path.relative_to(home)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(data)
            copy.chmod(path.stat().st_mode)
        return lost


class ShimFile(apsw.VFSFile):
    def __init__(self, disk: ShimDisk, name: Any, flags: list[int]) -> None:
        self._disk = disk
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else (name or "")
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.meet("write")
        self._disk.writes += 1
        size = os.path.getsize(self._path)
        before = b""
        with open(self._path, "rb") as file:
            file.seek(offset)
            before = file.read(len(data)).ljust(len(data), b"\0")
        self._disk.unsynced.setdefault(self._path, []).append((offset, before, size))
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.meet("sync")
        self._disk.syncs += 1
        self._disk.unsynced.pop(self._path, None)
        super().xSync(flags)


@contextmanager
def shim_disk() -> Iterator[ShimDisk]:
    disk = ShimDisk(f"shim-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        yield disk
    finally:
        disk.unregister()
