"""Every process of one agent: found, counted, stopped and continued, without any cgroup.

In: the host pid of the agent's pid 1. All it ever started descends from that, because orphans of a pid namespace become
children of its pid 1. Reads /proc, which is world-readable even where an agent's namespaces are not; signals go through
pidfds, so that a reused pid is never hit. Where a cgroup can freeze, nobody needs `stop`.

A process may fork and end so fast that its pid is gone whenever somebody looks. It cannot hide that it was there: its
parent's list of children named it. So a walk that met a name without a process has not seen everybody, and `stop`
believes only walks that did.
"""

import functools
import os
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress

from msgspec import Struct

_PAGE = os.sysconf("SC_PAGE_SIZE")
_DEAD = "ZX"
_STOPPED = "Tt"
_WAITS = "D"  # in a system call that no signal interrupts; whoever has a SIGSTOP waiting goes no further than its end


class Member(Struct, frozen=True):
    pid: int
    started: int  # clock ticks; with the pid it names one process for ever
    parent: int
    state: str  # of its liveliest thread: the first one may be dead and others run
    memory: int  # resident bytes

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.started


def pid_of(pidfd: int) -> int | None:
    """The pid behind a pidfd, or None when that process has been collected."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        pid = next((int(line.split()[1]) for line in file if line.startswith("Pid:")), -1)
    return pid if pid > 0 else None


def members(init: int) -> list[Member]:
    """The agent's living processes, pid 1 first."""
    return _walk(init)[0]


def alive(known: Collection[Member]) -> list[Member]:
    """Those that have not ended; somebody else under the same pid does not count."""
    now = ((one, _look(one.pid)) for one in known)
    return [one for one, found in now if found and found.key == one.key and found.state not in _DEAD]


def stop(init: int, seconds: float = 5.0) -> list[Member] | None:
    """SIGSTOP to all, again until two walks agree that nobody moves. Returns whom to `resume`, which leaves out what
    had been stopped before; None if somebody kept escaping, and then all of them run again."""
    deadline = time.monotonic() + seconds
    idle = {one.key for one in members(init) if one.state in _STOPPED}
    told: set[tuple[int, int]] = set()
    before: set[tuple[int, int]] | None = None
    while time.monotonic() < deadline:
        found, complete = _walk(init)
        now = {one.key for one in found}
        moving = [one for one in found if one.state not in _STOPPED and not (one.state in _WAITS and one.key in told)]
        if complete and not moving and now == before:
            return [one for one in found if one.key not in idle]
        before = now if complete else None
        for one in moving:
            _signal(one, signal.SIGSTOP)
            told.add(one.key)
    resume(one for one in members(init) if one.key not in idle)
    return None


def resume(stopped: "Collection[Member] | Iterator[Member]") -> None:
    """Children before parents: a shell that runs first would take its stopped children for suspended jobs."""
    for one in sorted(stopped, key=lambda one: one.pid, reverse=True):
        _signal(one, signal.SIGCONT)


def _walk(init: int) -> tuple[list[Member], bool]:
    """Living processes, parents before children, and whether everybody who was named was there."""
    known = {init}
    queue, found = [init], list[Member]()
    complete = True
    children = _children if _lists_children() else _parents(init)
    for pid in queue:  # grows while we go
        one = _look(pid)
        if one is None or (pid != init and one.parent not in known):
            complete = False  # ended since it was named, or its pid is somebody else's by now
            continue
        if one.state not in _DEAD:
            found.append(one)
        new = [child for child in children(pid) if child not in known]
        known.update(new)
        queue += new
    return found, complete


@functools.cache
def _lists_children() -> bool:
    """Nearly every Linux does (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in _threads(pid):
        with suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{thread}/children") as file:
            found += map(int, file.read().split())
    return found


def _parents(init: int) -> "functools.partial[list[int]]":
    """The same from everybody's parent. A process that vanished may have been anybody's: it is given to pid 1."""
    children: dict[int, list[int]] = {}
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        one = _look(pid)
        children.setdefault(one.parent if one else init, []).append(pid)
    return functools.partial(_listed, children)


def _listed(children: dict[int, list[int]], pid: int) -> list[int]:
    return children.get(pid, [])


def _look(pid: int) -> Member | None:
    fields = _stat(f"/proc/{pid}/stat")
    if fields is None:
        return None
    states = {found[0].decode() for thread in _threads(pid) if (found := _stat(f"/proc/{pid}/task/{thread}/stat"))}
    return Member(pid, int(fields[19]), int(fields[1]), _liveliest(states), int(fields[21]) * _PAGE)


def _liveliest(states: set[str]) -> str:
    """Running before waiting before stopped before dead."""
    for kind in (_DEAD + _STOPPED + _WAITS, _DEAD + _STOPPED, _DEAD):
        if moving := sorted(states - set(kind)):
            return moving[0]
    return "Z"


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _stat(path: str) -> list[bytes] | None:
    try:
        with open(path, "rb") as file:
            return file.read().rpartition(b")")[2].split()  # the name before may hold anything
    except (FileNotFoundError, ProcessLookupError):
        return None


def _signal(one: Member, number: int) -> None:
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(one.pid)
        try:
            if alive([one]):  # the pidfd is of the very process we mean
                signal.pidfd_send_signal(pidfd, number)
        finally:
            os.close(pidfd)
