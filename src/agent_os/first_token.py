"""The first operator token: `operator.token` in the kernel's home, for whoever cannot come by the control socket alone.

Written once in the life of a home, 0600. The file is there before the record knows of it, and a mark in the store says
that it does: a crash in between leaves a file whose token is taken up at the next start, never a token that nobody has.
One whose mode or owner lets others read it keeps the kernel from starting: whoever has read it is an operator.
"""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from agent_os.abi.doors import TOKEN
from agent_os.abi.errors import EACCES
from agent_os.client.credentials import read
from agent_os.drivers.store import Put
from agent_os.kernel.kernel import Kernel

FILE, NAME = "operator.token", "operator"
_MADE = ("token file", "made")


def found(home: Path) -> str:
    """What the file holds, empty where there is none. An error: others could have read it."""
    return read(home / FILE) if os.path.lexists(home / FILE) else ""


async def ensure(kernel: Kernel, home: Path) -> None:
    """The home has had its token."""
    if kernel.store.get(*_MADE):
        return
    if not (text := found(home)):
        text = TOKEN + secrets.token_urlsafe(32)
        _write(home / FILE, text)
    await kernel.tokens.add("kernel", NAME, "operator", text=text, beside=[Put(*_MADE, b"1")])


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.fchmod(fd, 0o600)
            os.write(fd, f"{text}\n".encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        draft.rename(path)
    except OSError as problem:
        raise EACCES("token.file", f"the token file {path} cannot be written: {problem.strerror}") from None
