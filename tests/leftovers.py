"""What a run may leave behind and must not: processes, cgroups, mounts, files. Counted, never assumed.

Only what belongs to the test at hand is counted: processes are found as descendants that were not there when the test
began (this process adopts orphans, so nobody can slip away by outliving its parent), cgroups by the pid in their name,
mounts and files by their place.
"""

import ctypes
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakSet

import forkserver

_PR_SET_CHILD_SUBREAPER = 36
_JOURNAL = ("journal.db", "journal.db-wal", "journal.db-shm", "journal.db.reserve", "keys", "anchor", "operator.token")
_LASTING = {*_JOURNAL, "lock", "level.json", "logs", "work", "run", "tmp", "secrets"}


_started: "WeakSet[subprocess.Popen[Any]]" = WeakSet()
_start = subprocess.Popen.__init__


def _note(process: "subprocess.Popen[Any]", *args: Any, **options: Any) -> None:
    _start(process, *args, **options)
    _started.add(process)


subprocess.Popen.__init__ = _note  # type: ignore[method-assign]
_before: set[tuple[int, str]] = set()  # descendants of an earlier test, which failed: pid and start


def adopt_orphans() -> None:
    """From now on a process whose parents died is a child of this one, and stays countable. What is here already is
    another test's."""
    _reap_orphans()
    _before.clear()
    _before.update(_found())
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def processes() -> dict[int, str]:
    """Every living descendant of this process, in whichever pid namespace: pid and command line. A launcher may have
    made a child ahead, its spare: that one is a part of the launcher, and counted only if it outlives it."""
    return {pid: _command_line(pid) for pid, _ in sorted(_found() - _before)}


def _found() -> set[tuple[int, str]]:
    """Pids, and when they began. Two walks: if a parent ends during the first, its child is ours in the second."""
    return _walk() | _walk()


def _walk() -> set[tuple[int, str]]:
    ourselves, templates = os.getpid(), forkserver.server.processes()  # no program of a test, but what it forks is
    found, parents = set[tuple[int, str]](), [ourselves]
    while parents:
        parent = parents.pop()
        for pid in _children(parent):
            name, facts = _stat(pid)
            if not facts or facts[0] in "ZX" or (name.endswith("(agent-os-spare") and parent != ourselves):
                continue
            parents.append(pid)
            if pid not in templates:
                found.add((pid, facts[19]))
    return found


def _stat(pid: int) -> tuple[str, list[str]]:
    try:
        name, _, facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    except (FileNotFoundError, ProcessLookupError):
        return "", []
    return name, facts.split()


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended
    return found


def _reap_orphans() -> None:
    """Of hundreds that have ended, each look at all processes would see every one. Whoever started one itself waits for
    it itself."""
    own = {one.pid for one in [*_started] if one.returncode is None}
    for pid in _children(os.getpid()):
        if pid not in own and _stat(pid)[1][:1] == ["Z"]:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def cgroups(kernel: int) -> list[str]:
    """The groups that the kernel with this pid made, in every hierarchy."""
    mounts = [line.split(" ") for line in Path("/proc/self/mounts").read_text().splitlines()]
    roots = [Path(where) for _, where, kind, *_ in mounts if kind in ("cgroup", "cgroup2")]
    walked = (folder for root in roots for folder, _, _ in os.walk(root))  # other groups may vanish meanwhile
    return sorted(folder for folder in walked if os.path.basename(folder).startswith(f"agent-os-{kernel}-"))


def mounts(place: Path) -> list[str]:
    """Mounts of this namespace that could be ours: below a test's directory, or on the launcher's template."""
    found: list[str] = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        kind, where = line.split(" ")[2], line.split(" ")[1]
        template = kind in ("tmpfs", "overlay") and (where == "/sys" or where.startswith("/sys/system"))
        if str(place) in line or template:
            found.append(line)
    return found


def files(state: Path) -> list[str]:
    """What a state directory holds beyond its record and the workspaces somebody may still decide about."""
    found = [entry.name for entry in state.iterdir() if entry.name not in _LASTING]
    found += [f"tmp/{entry.name}" for entry in (state / "tmp").glob("*") if entry.is_dir()]  # /tmp of running agents
    found += [f"run/{entry.name}" for entry in (state / "run").glob("*")]  # sockets of running kernels
    work = state / "work"
    if work.is_dir():
        found += [f"work/{entry.name}" for entry in work.iterdir() if not (entry / "meta.json").is_file()]
    return sorted(found)


def descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they lead to."""
    found: dict[int, str] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the one that listed the directory
    return found


PATIENCE = 30  # seconds: a safety limit, never a measure


def becomes_true(condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
    """Whether a condition holds before the time is up; asked again and again, because nobody announces it."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
