"""The key that opens the safe: from systemd, from a key file, or from a passphrase.

In: the kernel's own environment and its home. Out: a `Source`, which wraps and unwraps the safe's key. A file that
others can read is refused, as is one that is no key. Never touches the safe itself.

    CREDENTIALS_DIRECTORY         set by systemd: its credential agent-os-secrets, if there is one
    AGENT_OS_SECRETS_KEY          a key file
    AGENT_OS_SECRETS_PASSPHRASE   a file, or a pipe, whose first line is the passphrase
    otherwise                     keys/secrets.key in the home, made on first use
"""

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cryptography.exceptions import InvalidTag
from msgspec import Struct

from agent_os.abi.errors import EACCES, EIO
from agent_os.lazy import lazy

if TYPE_CHECKING:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.ciphers import aead
    from cryptography.hazmat.primitives.kdf import hkdf, scrypt
else:
    hashes = lazy("cryptography.hazmat.primitives.hashes")
    aead = lazy("cryptography.hazmat.primitives.ciphers.aead")
    hkdf = lazy("cryptography.hazmat.primitives.kdf.hkdf")
    scrypt = lazy("cryptography.hazmat.primitives.kdf.scrypt")

CREDENTIAL = "agent-os-secrets"
KEY_FILE = "keys/secrets.key"
KEY_BYTES, NONCE_BYTES, SALT_BYTES = 32, 12, 16
SCRYPT_N = 2**15
_LARGEST = 64 << 10
_SHORTEST_PASSPHRASE = 8
_WHAT = b"agent-os safe key"  # both what it is for, and the associated data of the wrapped key
How = Literal["credential", "key file", "passphrase"]


class Wrapped(Struct):
    """The safe's key, as it lies on disk."""

    how: How
    salt: bytes
    nonce: bytes
    sealed: bytes
    n: int = 0  # of scrypt


class Source(Struct, frozen=True):
    how: How
    path: Path
    made: bool = False  # we may make the file

    def wrap(self, key: bytes) -> Wrapped:
        salt, nonce = os.urandom(SALT_BYTES), os.urandom(NONCE_BYTES)
        n = SCRYPT_N if self.how == "passphrase" else 0
        sealed = aead.AESGCM(self._derived(salt, n)).encrypt(nonce, key, _WHAT)
        return Wrapped(self.how, salt, nonce, sealed, n)

    def unwrap(self, wrapped: Wrapped, what: Path) -> bytes:
        if wrapped.how != self.how:
            reason = f"{what} was closed with a {wrapped.how}, and the kernel was given a {self.how} ({self.path})"
            raise EACCES("secrets.key", reason, hint=_GIVE[wrapped.how])
        if self.how == "passphrase" and not SCRYPT_N <= wrapped.n <= SCRYPT_N << 5:
            raise EIO("secrets.damaged", f"{what} is damaged: scrypt with n = {wrapped.n}", hint=_RESTORE)
        if not self.path.exists():
            raise EACCES("secrets.key", f"{what} cannot be opened: {self.path} is not there", hint=_GIVE[self.how])
        try:
            return aead.AESGCM(self._derived(wrapped.salt, wrapped.n)).decrypt(wrapped.nonce, wrapped.sealed, _WHAT)
        except (InvalidTag, ValueError):
            reason = f"{what} does not open with the {self.how} of {self.path}: it is another one, or damaged"
            raise EACCES("secrets.key", reason, hint=_GIVE[self.how]) from None

    def _derived(self, salt: bytes, n: int) -> bytes:
        material = self._read()
        if self.how == "passphrase":
            return scrypt.Scrypt(salt=salt, length=KEY_BYTES, n=n, r=8, p=1).derive(material)
        return hkdf.HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=salt, info=_WHAT).derive(material)

    def _read(self) -> bytes:
        if self.made and not self.path.exists():
            self._make()
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                self._require_private(os.fstat(fd))
                data = file.read(_LARGEST)
        except OSError as problem:
            reason = f"the {self.how} {self.path} cannot be read: {problem.strerror}"
            raise EACCES("secrets.key", reason, hint=_GIVE[self.how]) from None
        if self.how == "passphrase":
            data = data.split(b"\n", 1)[0].rstrip(b"\r")
        elif len(data) != KEY_BYTES:  # a key of random bytes may end in one that looks like the end of a line
            data = data.removesuffix(b"\n")
        least = _SHORTEST_PASSPHRASE if self.how == "passphrase" else KEY_BYTES
        if len(data) < least:
            reason = f"the {self.how} in {self.path} has {len(data)} bytes, and needs at least {least}"
            raise EACCES("secrets.key", reason, hint=_GIVE[self.how])
        return data

    def _require_private(self, info: os.stat_result) -> None:
        if stat.S_ISREG(info.st_mode) and info.st_mode & 0o077:
            reason = f"the {self.how} {self.path} can be read or written by others (mode {info.st_mode & 0o777:o})"
            raise EACCES("secrets.key_mode", reason, hint=f"chmod 600 {self.path}, and if others had access: a new one")
        if info.st_uid not in (0, os.geteuid()):
            reason = f"the {self.how} {self.path} belongs to uid {info.st_uid}, and is not yours"
            raise EACCES("secrets.key_mode", reason, hint=_GIVE[self.how])

    def _make(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(self.path, secrets.token_hex(KEY_BYTES).encode() + b"\n")


_RESTORE = "put a copy back, or move it away and set the secrets again"
_GIVE: Mapping[How, str] = {
    "credential": f"start the kernel with systemd's credential {CREDENTIAL}",
    "key file": "AGENT_OS_SECRETS_KEY=FILE agentctl up; a key file has 32 bytes or more and mode 600",
    "passphrase": "AGENT_OS_SECRETS_PASSPHRASE=FILE agentctl up, with the passphrase in its first line and mode 600",
}


def source(home: Path, env: Mapping[str, str]) -> Source:
    """Where this kernel has its key from."""
    if directory := env.get("CREDENTIALS_DIRECTORY"):
        credential = Path(directory, CREDENTIAL)
        if credential.exists():
            return Source("credential", credential)
    if path := env.get("AGENT_OS_SECRETS_KEY"):
        return Source("key file", Path(path))
    if path := env.get("AGENT_OS_SECRETS_PASSPHRASE"):
        return Source("passphrase", Path(path))
    return Source("key file", home / KEY_FILE, made=True)


def write_whole(path: Path, data: bytes) -> None:
    """The file is what it was, or all of this, and on disk when this returns; readable by its owner only."""
    draft = path.with_name(f".{path.name}.new")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
