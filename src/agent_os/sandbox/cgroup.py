"""One agent's cgroups: what caps its memory, tasks and CPU as a whole, and what freezes and kills it at once.

The kernel makes a `Group` for a spawn, the launcher's child joins it (step C3), and `remove` takes its directories away
in every hierarchy. Which hierarchies there are, and what they can do, is `hierarchies.detect`'s word.
"""

import contextlib
import errno
import functools
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from agent_os.sandbox.hierarchies import CONTROLLERS, OURS, Column, Found, Hierarchy, detect, put, weigh, write
from agent_os.sandbox.spec import Limits

_PAUSE_SECONDS = 0.002
_NEARLY = 0.9  # a large page may be refused a little below the limit


@dataclass(eq=False, repr=False)
class Group:
    """The cgroups of one agent, one in each hierarchy of use. Everything it ever starts stays in them."""

    name: str
    found: Found
    places: list[tuple[Hierarchy, Path]]
    applied: frozenset[str] = frozenset()  # the controllers that hold a limit of this agent
    weighed: bool = False  # its share of cpu is in force
    alarm: int = -1  # v1: readable once the group ran out of memory; `answer_alarm` says what to do then
    _over: bool = field(default=False, init=False)
    memory: tuple[Hierarchy, Path] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.memory = self._place("memory")

    def _place(self, controller: str) -> tuple[Hierarchy, Path] | None:
        return next((place for place in self.places if controller in place[0].controllers), None)

    @classmethod
    def create(cls, name: str, column: Column | None = None) -> "Group":
        """Fresh groups below our own. Where this host gives us none, a Group that holds nothing and can do nothing."""
        found = detect(column)
        places = [(each, each.parent / f"{OURS}{os.getpid()}-{name}") for each in found.hierarchies]
        made: list[Path] = []
        try:
            for each, path in places:
                if not each.late:
                    os.mkdir(path, 0o755)
                    made.append(path)
        except OSError:
            for path in made:
                path.rmdir()
            return cls(name, Found(()), [])
        return cls(name, found, places)

    @property
    def column(self) -> Column:
        return self.found.column

    @property
    def controllers(self) -> frozenset[str]:
        """What could be limited here; `applied` says what is."""
        return self.found.controllers

    @property
    def path(self) -> Path | None:
        """Where it freezes and kills; else any of its directories."""
        return min(self.places, key=lambda place: not place[0].freezes)[1] if self.places else None

    def apply(self, limits: Limits) -> None:
        """Put an agent's limits in force before it joins; what cannot be is missing in `applied`."""
        self.applied = frozenset(
            name for each, path in self.places for name in each.controllers if put(path, each.v2, name, limits)
        )
        if limits.weight is not None:
            self.share(limits.weight)
        if "memory" in self.applied and self.memory and not self.memory[0].v2:
            self._watch_memory(self.memory[1])

    def share(self, weight: int) -> None:
        """Its part of cpu and io among others, also while it runs."""
        if place := self._place("cpu"):
            self.weighed = weigh(place[1], place[0].v2, weight)

    def enforces(self, limits: Limits) -> bool:
        """Whether the agent is capped as a whole: memory, tasks and, if it has a limit, CPU. That is level S3."""
        wanted = {"memory", "pids"} | ({"cpu"} if limits.cpu_pct else set[str]())
        return self.controllers >= set(CONTROLLERS) and self.applied >= wanted

    def version(self, controller: str) -> str:
        """v1 or v2: whose controller it is."""
        return next("v2" if each.v2 else "v1" for each, _ in self.places if controller in each.controllers)

    def open_procs(self) -> list[int]:
        """Descriptors to join by: whoever writes `0` to each is in. In v1 `tasks` moves the one thread that a child
        has; `cgroup.procs` would wait for every processor, 10 ms and more on a quiet machine."""
        opened: list[int] = []
        try:
            for each, path in (place for place in self.places if not place[0].late):
                file = path / ("cgroup.procs" if each.v2 else "tasks")
                opened.append(os.open(file, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        return opened

    def _watch_memory(self, path: Path) -> None:
        """v1 kills one process that ran out of memory and leaves the rest; we want to hear of it and end them all."""
        with contextlib.suppress(OSError):
            control = os.open(path / "memory.oom_control", os.O_RDONLY | os.O_CLOEXEC)
            alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            try:
                write(path / "cgroup.event_control", f"{alarm} {control}")
                self.alarm = alarm
            except OSError:
                os.close(alarm)
            finally:
                os.close(control)

    def answer_alarm(self) -> bool:
        """Whether the agent has to be killed as a whole: not if a group above it ran out of memory."""
        os.eventfd_read(self.alarm)
        self._over = self._over or self._was_full()
        return self._over

    def ran_out_of_memory(self) -> bool:
        """Whether Linux killed something in it for its own memory limit. To be asked before `remove`."""
        if "memory" not in self.applied or self.memory is None:
            return False
        hierarchy, path = self.memory
        file = path / ("memory.events" if hierarchy.v2 else "memory.oom_control")
        return self._over or (_counter(file, "oom_kill") > 0 and self._was_full())

    def _was_full(self) -> bool:
        hierarchy, path = self.memory or (None, Path())
        if hierarchy and hierarchy.v2:
            return _counter(path / "memory.events", "max") > 0
        # not failcnt: newer kernels leave it at 0
        return _number(path / "memory.max_usage_in_bytes") >= _number(path / "memory.limit_in_bytes") * _NEARLY > 0

    def memory_used(self, near: int = 0) -> int | None:
        """Bytes that it holds and that nobody could take from it at once: what was only read from a disk is not
        counted, which is a longer look and left out below `near`. None: nobody counts."""
        if self.memory is None:
            return None
        hierarchy, path = self.memory
        used = _number(f"{path}/{'memory.current' if hierarchy.v2 else 'memory.usage_in_bytes'}")
        if used < near:
            return used
        return max(0, used - _counter(path / "memory.stat", "inactive_file" if hierarchy.v2 else "total_inactive_file"))

    def tasks_used(self) -> int | None:
        """Processes and threads."""
        place = self._place("pids")
        return _number(f"{place[1]}/pids.current") if place else None

    def kill(self) -> None:
        for each, path in self.places:
            with contextlib.suppress(FileNotFoundError):  # a late one that nobody has needed
                if each.kills:  # Linux before 5.14 has no cgroup.kill; pid 1's death does it then
                    write(path / "cgroup.kill", "1")

    def freeze(self, frozen: bool, timeout: float = 5.0) -> bool:
        """Freeze or thaw; true once the kernel says it is so. An agent that has ended has no group any more."""
        for each, path in self.places:
            if each.freezes:
                with contextlib.suppress(FileNotFoundError):
                    if each.late and not self._gather(path, timeout):
                        return False
                    write(path / "cgroup.freeze", "1" if frozen else "0")
                    return _wait_event(path, "frozen", "1" if frozen else "0", timeout)
        return False

    def _gather(self, late: Path, timeout: float) -> bool:
        """Move the whole agent into a group it has not joined yet, until nobody is left outside: whatever a moved
        process starts begins inside."""
        late.mkdir(exist_ok=True)
        joined = next(path for each, path in self.places if not each.late)

        def all_inside() -> bool:
            outside = _pids(joined) - _pids(late)
            for pid in outside:
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    write(late / "cgroup.procs", pid)
            return not outside

        return _polled(all_inside, timeout)

    def remove(self, timeout: float = 5.0) -> None:
        """Remove the groups once they are empty: processes leave a moment after their death was reported."""
        if self.alarm >= 0:
            os.close(self.alarm)
            self.alarm = -1
        for each, path in self.places:
            if each.v2:
                _wait_event(path, "populated", "0", timeout)
            _polled(functools.partial(_removed, path), timeout)


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except FileNotFoundError:
        return True
    except OSError as problem:
        if problem.errno != errno.EBUSY:
            raise
        return False
    return True


def _pids(path: Path) -> set[str]:
    return set((path / "cgroup.procs").read_text().split())


def _counter(path: Path, key: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[0] == key), 0)


def _number(path: Path | str) -> int:
    """Asked of every agent, again and again: by the shortest way."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        return int(os.read(fd, 32))
    except OSError:
        return 0
    finally:
        os.close(fd)


def _polled(done: Callable[[], bool], timeout: float) -> bool:
    """v1 announces nothing: ask again until it is so."""
    deadline = time.monotonic() + timeout
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _wait_event(path: Path, key: str, value: str, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    try:
        events = (path / "cgroup.events").open()
    except FileNotFoundError:
        return False
    with events:
        watch = select.poll()
        watch.register(events, select.POLLPRI)  # the kernel raises POLLPRI whenever the file changes
        while f"{key} {value}" not in events.read().splitlines():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            watch.poll(left * 1000)
            events.seek(0)
    return True
