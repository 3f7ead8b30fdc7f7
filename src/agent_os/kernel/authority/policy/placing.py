"""Putting a new operator's policy in place of the old one, and back.

Goes in: where the policy in force lies, and the bytes of a new one that has been checked. What was there is kept beside
it under `.previous`, which is empty where there was none. Each step is one rename, so whoever reads meanwhile sees the
old file or the new one, never half.
"""

import os
from pathlib import Path

from agent_os.abi.errors import ENOENT


def previous(target: Path) -> Path:
    return target.with_name(f"{target.name}.previous")


def put(target: Path, data: bytes, good: bytes | None = None) -> None:
    """Durable when it returns. No data: no file. `good`: what is in force, where that is not what lies there: a file
    that nobody could understand is nothing to come back to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if good is None:
        good = target.read_bytes() if target.exists() else b""
    if good != data:
        _write(previous(target), good)
    if data:
        _write(target, data)
    else:
        target.unlink(missing_ok=True)
        _settle(target.parent)


def before(target: Path) -> bytes:
    """What `put_back` would put in place; empty: no file."""
    try:
        return previous(target).read_bytes()
    except FileNotFoundError:
        hint = "agentctl policy apply keeps what it replaces"
        raise ENOENT("policy.previous", f"there is no policy before {target}", hint=hint) from None


def put_back(target: Path) -> bytes:
    """The policy before the newest, in force again; the newest becomes the one before, so that doing it twice undoes
    it. Gives what is now in place."""
    old = before(target)
    put(target, old)
    return old


def _write(path: Path, data: bytes) -> None:
    import tempfile

    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    _settle(path.parent)


def _settle(folder: Path) -> None:
    """What its names stand for is on disk."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
