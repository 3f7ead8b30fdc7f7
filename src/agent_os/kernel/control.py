"""The control socket: where it lies, made so that one that refuses connections is always a dead one.

In: a path. Out: a listening socket, 0600, in a directory where nobody else can put theirs in its place; one that we
make is 0700, and one that is there is never changed. It gets its name only once it listens, and whatever had that name
before is gone: the home's lock says that nobody else serves it.
"""

import os
import socket
import stat
from contextlib import suppress
from pathlib import Path

from agent_os.abi.errors import EACCES
from agent_os.kernel import beneath

_PENDING = 128


def listen(path: Path) -> socket.socket:
    draft = f".{path.name}-{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with beneath.closing(beneath.open_root(path.parent)) as directory:
            _require_safe(os.fstat(directory), path)
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=directory)
            listener.bind(f"/proc/self/fd/{directory}/{draft}")  # an address has 107 bytes, a path may have more
            os.chmod(draft, 0o600, dir_fd=directory)
            listener.listen(_PENDING)
            os.rename(draft, path.name, src_dir_fd=directory, dst_dir_fd=directory)
    except EACCES:
        listener.close()
        raise
    except OSError as problem:
        listener.close()
        reason = f"the control socket {path} cannot be made: {problem.strerror}"
        raise EACCES("socket.unwritable", reason, hint="AGENT_OS_SOCKET=PATH puts it elsewhere") from None
    listener.setblocking(False)
    return listener


def _require_safe(directory: os.stat_result, path: Path) -> None:
    loose = directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not directory.st_mode & stat.S_ISVTX
    if directory.st_uid not in (0, os.geteuid()) or loose:
        reason = f"the control socket {path} would lie where others could put theirs in its place"
        raise EACCES("socket.place", reason, hint="AGENT_OS_SOCKET=PATH in a directory that only you can write")
