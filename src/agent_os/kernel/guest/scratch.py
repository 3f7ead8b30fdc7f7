"""A guest's `/tmp`: a directory on disk, its own while it runs and gone afterwards.

Owns `<state>/tmp/<name>/`: `lock` (held while the guest runs) and `files`, which the sandbox mounts. In: whose it is
and what else will be mounted below `/tmp`. Out: the directory. What a killed kernel left is removed at the next run.
How full it may get is the disk watcher's concern.
"""

import errno
import fcntl
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

from agent_os.abi.errors import EACCES, ENOSPC, AgentOSError
from agent_os.kernel import beneath

_INSIDE = "/tmp/"
_LOCK = "lock"


@contextmanager
def scratch(state: Path, name: str, uid: int | None, mounts: Iterable[tuple[str, Path]] = ()) -> Generator[Path]:
    """`uid` is the host uid it shall belong to, None: ours. `mounts` are the other places inside and their sources:
    points for those below `/tmp` are made here, because the sandbox makes none on a disk."""
    top = state / "tmp"
    try:
        top.mkdir(mode=0o700, exist_ok=True)
        with beneath.closing(_locked(top / ".lock")):  # nobody sweeps what is only half made
            _sweep(top)
            (top / name).mkdir(mode=0o700)
            lock = _locked(top / name / _LOCK)
    except OSError as problem:
        raise _explained(problem, top) from problem
    with beneath.closing(lock):
        try:
            yield _filled(top / name / "files", uid, mounts)
        finally:
            _remove(top, name)


def _filled(files: Path, uid: int | None, mounts: Iterable[tuple[str, Path]]) -> Path:
    try:
        files.mkdir()
        for place, source in sorted(mounts):
            if place.startswith(_INSIDE):
                _make_point(files / place.removeprefix(_INSIDE), source)
        if uid is not None:
            os.chown(files, uid, uid)
        files.chmod(0o1777)
    except OSError as problem:
        raise _explained(problem, files) from problem
    return files


def _make_point(point: Path, source: Path) -> None:
    with suppress(FileExistsError, NotADirectoryError):  # mounts that exclude each other: the sandbox says so
        point.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if source.is_dir():
            point.mkdir(mode=0o755)
        else:
            point.touch(mode=0o644, exist_ok=False)


def _sweep(top: Path) -> None:
    """Remove what nobody holds any more."""
    for left in top.iterdir():
        if left.is_dir():
            with suppress(OSError), beneath.closing(_locked(left / _LOCK, wait=False)):
                _remove(top, left.name)


def _remove(top: Path, name: str) -> None:
    """What cannot be removed now is tried again at every run: it costs no guest its outcome, no next one its start."""
    with suppress(OSError), beneath.closing(beneath.open_root(top)) as root:
        beneath.remove_tree(root, name)


def _locked(path: Path, *, wait: bool = True) -> int:
    """Held until the descriptor is closed, or its process ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(fd)
        raise
    return fd


def _explained(problem: OSError, place: Path) -> AgentOSError:
    reason = f"no /tmp for the guest can be made in {place}: {problem.strerror}"
    hint = "make room there, or keep the state elsewhere: AGENT_OS_HOME=/some/directory agentctl …"
    full = problem.errno in (errno.ENOSPC, errno.EDQUOT)
    return ENOSPC("tmp.space", reason, hint=hint) if full else EACCES("tmp.unwritable", reason, hint=hint)
