"""Signed heads: the key, when a head is due, and two small files outside the database that remember how far it went.

`keys/journal.key` (0600) signs; `keys/journal.pub` is for auditors. `anchor/heads` gets every head that is synced, so
that a database cut short or put back is found. `anchor/mark` holds size and root of the newest synced group, unsigned:
it tells a torn tail, which nobody was promised, from a lost one. It never reads an entry.
"""

import os
import time
from hashlib import sha256
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent_os.abi.entries import Head
from agent_os.abi.errors import EIO
from agent_os.abi.heads import head_text, key_id, parse_note, signed_note, split_notes, verifier_key

EVERY_ENTRIES, EVERY_SECONDS = 1000, 1.0
NEWEST = 1 << 16  # bytes of the anchor that a boot looks at
KEY, NEXT_KEY, PUBLIC, ANCHOR, MARK = (
    "keys/journal.key",
    "keys/journal.key.next",
    "keys/journal.pub",
    "anchor/heads",
    "anchor/mark",
)


class Signer:
    """An Ed25519 key. It exists in this process and, with a home, in one file that only its owner reads."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = key.public_key().public_bytes_raw()
        self.key_id = key_id(self.public)

    @classmethod
    def new(cls) -> "Signer":
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def of_home(cls, home: Path) -> "Signer":
        """The home's key, made if it has none."""
        path = home / KEY
        if not path.exists():
            signer = cls.new()
            signer.save(path)
            return signer
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> "Signer":
        try:
            if path.stat().st_mode & 0o077:
                raise EIO("journal.key", f"{path} can be read by others", hint=f"chmod 600 {path}")
            return cls(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(path.read_text().strip())))
        except (OSError, ValueError) as problem:
            raise EIO("journal.key", f"cannot read the journal's key {path}: {problem}") from problem

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(path, self._key.private_bytes_raw().hex().encode() + b"\n", 0o600)

    def sign(self, text: bytes) -> bytes:
        return self._key.sign(text)

    def note(self, head: Head) -> bytes:
        return signed_note(head, self.public, self.sign(head_text(head)))


class Heads:
    """Decides when a head is due, makes it, and keeps the files of a home (none for a journal in memory).

    Used by the writer's thread only, but for `newest`, which is replaced whole.
    """

    def __init__(self, log_id: bytes, boot: int, signer: Signer) -> None:
        self.log_id, self.boot, self.signer = log_id, boot, signer
        self.policy_digest = b""
        self.newest: tuple[Head, bytes] | None = None
        self._size = 0  # covered by the newest head
        self._made = self._anchored = float("-inf")  # the first group after a boot is signed at once
        self._waiting: list[bytes] = []  # made, and not yet known to be on disk
        self._anchor = self._mark = -1

    def begin(self, home: Path) -> None:
        """Take the home's files into use. Not before the journal was found good: until then nothing is touched."""
        (home / ANCHOR).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._anchor = _open(home / ANCHOR, os.O_APPEND)
        _drop_half_note(self._anchor)
        self._mark = _open(home / MARK, 0)
        self.publish(home)

    def publish(self, home: Path) -> None:
        """Put the public key where auditors find it."""
        (home / PUBLIC).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write(home / PUBLIC, verifier_key(self.log_id, self.signer.public).encode() + b"\n", 0o644)

    def resume(self, size: int) -> None:
        """Go on after the newest stored head, which covers `size` entries."""
        self._size = size
        self._waiting.clear()

    def due(self, size: int) -> bool:
        if size == self._size:
            return False
        return size - self._size >= EVERY_ENTRIES or time.monotonic() - self._made >= EVERY_SECONDS

    def wait(self, size: int) -> float | None:
        """Seconds until a head is due without another entry; None if there is nothing to sign."""
        if size == self._size:
            return None
        return max(0.0, self._made + EVERY_SECONDS - time.monotonic())

    def overdue(self) -> bool:
        """A head has been only in the database for so long that this group should be synced for its sake."""
        return time.monotonic() - self._anchored >= EVERY_SECONDS

    def make(self, size: int, root: bytes) -> bytes:
        head = Head(self.log_id, self.boot, size, root, time.time_ns(), self.policy_digest, self.signer.key_id)
        note = self.signer.note(head)
        self._size, self._made = size, time.monotonic()
        self._waiting.append(note)
        self.newest = head, note
        return note

    def synced(self, size: int, root: bytes) -> None:
        """Everything up to `size` is on disk. Heads leave for the anchor only now: the anchor must never know more
        than the disk, or a power loss would look like a theft."""
        if self._mark >= 0:
            os.pwrite(self._mark, pack_mark(size, root), 0)
        if self._waiting:
            if self._anchor >= 0:
                _write_all(self._anchor, b"".join(self._waiting))
            self._waiting.clear()
            self._anchored = time.monotonic()

    def close(self) -> None:
        for fd in (self._anchor, self._mark):
            if fd >= 0:
                os.fsync(fd)
                os.close(fd)
        self._anchor = self._mark = -1


def pack_mark(size: int, root: bytes) -> bytes:
    data = size.to_bytes(8) + root
    return data + sha256(data).digest()[:8]


def read_mark(home: Path) -> tuple[int, bytes] | None:
    """None if there is none, or if it was itself cut off."""
    try:
        data = (home / MARK).read_bytes()
    except FileNotFoundError:
        return None
    size, root = int.from_bytes(data[:8]), data[8:40]
    return (size, root) if data == pack_mark(size, root) else None


def read_anchor(home: Path) -> list[Head]:
    """The newest heads that were anchored. ValueError if one does not read as a head."""
    try:
        with (home / ANCHOR).open("rb") as file:
            start = max(0, os.fstat(file.fileno()).st_size - NEWEST)
            file.seek(start)
            notes = split_notes(file.read())
    except FileNotFoundError:
        return []
    return [parse_note(note).head for note in notes[bool(start) :]]  # the first may have lost its beginning


def _drop_half_note(fd: int) -> None:
    """A kernel that was killed may have left half a note; the next one would be taken for its end."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, NEWEST, max(0, size - NEWEST))
    if not tail.endswith(b"\n") or (tail and not tail.splitlines()[-1].startswith("— ".encode())):
        end = tail.rfind("\n— ".encode())
        end = tail.find(b"\n", end + 1) + 1 if end >= 0 else 0
        os.ftruncate(fd, size - (len(tail) - end))


def _open(path: Path, flags: int) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all."""
    draft = path.with_name(path.name + ".new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        _write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    draft.replace(path)


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
