"""The token that a command shows: in a file that only its owner can read, named by `$AGENT_OS_TOKEN_FILE`.

In: a path. Out: the token, or an error that says what is wrong with the file and what to do. Without the variable no
token is shown, and a command is whoever runs it. Never prints or keeps what it read.
"""

import os
import stat
from pathlib import Path

from agent_os.abi.doors import TOKEN
from agent_os.abi.errors import EACCES, EINVAL

VARIABLE = "AGENT_OS_TOKEN_FILE"
_LONGEST = 200  # bytes


def shown() -> str | None:
    """The token of this process's environment."""
    named = os.environ.get(VARIABLE)
    return read(Path(named)) if named else None


def read(path: Path) -> str:
    """EACCES: others could have read it, so it is no secret; EINVAL: there is no token in it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as problem:
        hint = f"unset {VARIABLE} to come as yourself"
        raise EACCES("token.file", f"the token file {path} cannot be read: {problem.strerror}", hint=hint) from None
    try:
        require_private(path, os.fstat(fd))
        text = os.read(fd, _LONGEST + 1).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    if not text.startswith(TOKEN) or len(text) > _LONGEST or not text.isprintable() or " " in text:
        hint = "agentctl token add NAME > FILE makes one"
        raise EINVAL("token.file", f"there is no token in {path}: one begins with {TOKEN}", hint=hint)
    return text


def require_private(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise EACCES("token.file", f"the token file {path} is no plain file")
    if found.st_uid != os.geteuid():
        hint = f"agentctl token add NAME > FILE makes one that is yours; remove {path}"
        raise EACCES("token.owner", f"the token file {path} belongs to uid {found.st_uid}, not to you", hint=hint)
    if found.st_mode & 0o077:
        reason = f"others may open the token file {path}: its mode is {stat.S_IMODE(found.st_mode):04o}"
        hint = f"chmod 600 {path}; if anybody may have read it, agentctl token rm NAME ends it"
        raise EACCES("token.mode", reason, hint=hint)
