"""What a run may leave behind and must not: processes, cgroups, mounts, files. Counted, never assumed.

Only what belongs to the test at hand is counted: processes are found as descendants that were not there when the test
began (this process adopts orphans, so nobody can slip away by outliving its parent), cgroups by the pid in their name,
mounts and files by their place.
"""

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path

import forkserver

_PR_SET_CHILD_SUBREAPER = 36
_JOURNAL = ("journal.db", "journal.db-wal", "journal.db-shm", "journal.db.reserve", "keys", "anchor", "operator.token")
_LASTING = {*_JOURNAL, "lock", "level.json", "logs", "work", "run", "tmp", "secrets"}


_before: set[tuple[int, str]] = set()  # descendants of an earlier test, which failed: pid and start


def adopt_orphans() -> None:
    """From now on a process whose parents died is a child of this one, and stays countable. What is here already is
    another test's."""
    _before.clear()
    _before.update(_found())
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER")


def processes() -> dict[int, str]:
    """Every living descendant of this process, in whichever pid namespace: pid and command line. A launcher may have
    made a child ahead, its spare: that one is a part of the launcher, and counted only if it outlives it."""
    return {pid: _command_line(pid) for pid, _ in sorted(_found() - _before)}


def _found() -> set[tuple[int, str]]:
    """Pids, and when they began."""
    starts: dict[int, str] = {}
    parents: dict[int, int] = {}
    spares: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, facts = (entry / "stat").read_text().rpartition(")")
                state, parent = facts.split()[:2]
            except (FileNotFoundError, ProcessLookupError):
                continue
            if state not in "ZX":
                parents[int(entry.name)] = int(parent)
                starts[int(entry.name)] = facts.split()[19]
                if name.endswith("(agent-os-spare") and int(parent) != os.getpid():
                    spares.add(int(entry.name))
    templates = forkserver.server.processes()  # no program of a test, but what it forks is
    ours = (pid for pid in parents.keys() - spares - templates if _descends(pid, os.getpid(), parents))
    return {(pid, starts[pid]) for pid in ours}


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while (pid := parents.get(pid, 0)) > 0:
        if pid == ancestor:
            return True
    return False


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
