"""What cgroups this host lets us have, found once per kernel process by doing: make one, write a limit, read it back.

Three columns: `v2`, a group whose controllers are ours to use; `v1`, one hierarchy for each controller, often beside a
controller-less v2 mount that freezes and kills; `rlimits`, no controller at all. Groups are made below the kernel's
own, so whatever bounds the kernel bounds its agents, too; the limits and processes of other groups are never touched.
"""

import contextlib
import errno
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from agent_os.sandbox.spec import Limits

Column = Literal["v2", "v1", "rlimits"]
CONTROLLERS = ("memory", "pids", "cpu")
OURS = "agent-os-"
_MB, _PERIOD_US = 1 << 20, 100_000
_USUAL_SHARES = 1024  # of cpu, in v1
_TRIED = Limits(memory_mb=64, pids=64, cpu_pct=50)


class Hierarchy(NamedTuple):
    """One mount of cgroups, and what was proved to work below our own group in it."""

    parent: Path
    v2: bool
    controllers: tuple[str, ...] = ()
    freezes: bool = False
    kills: bool = False
    late: bool = False  # joined only when an agent is frozen: joining v2 waits for every processor, 10 ms and more


class Found(NamedTuple):
    """What this host lets us do."""

    hierarchies: tuple[Hierarchy, ...]

    @property
    def controllers(self) -> frozenset[str]:
        return frozenset(name for hierarchy in self.hierarchies for name in hierarchy.controllers)

    @property
    def column(self) -> Column:
        versions = {hierarchy.v2 for hierarchy in self.hierarchies if hierarchy.controllers}
        return "rlimits" if not versions else "v2" if versions == {True} else "v1"


@functools.cache
def detect(column: Column | None = None) -> Found:
    """Try everything once. A column stands for a host that has that one only: `v1` knows no v2 mount and the other way
    round, `rlimits` has no cgroup to write to."""
    if column == "rlimits":
        return Found(())
    hierarchies: list[Hierarchy] = []
    missing = list(CONTROLLERS)
    for mount in sorted(_mounts(), key=lambda mount: not mount.v2):  # v2 first: whoever has its controllers uses them
        if column not in (None, "v2" if mount.v2 else "v1"):
            continue
        wanted = [name for name in missing if mount.v2 or name in mount.holds]
        if (mount.v2 or wanted) and (found := _try(mount, wanted)):
            hierarchies.append(found)
            missing = [name for name in missing if name not in found.controllers]
    return Found(_hybrid(hierarchies))


def _hybrid(hierarchies: list[Hierarchy]) -> tuple[Hierarchy, ...]:
    """Beside v1 controllers, a v2 mount without any only freezes and kills, and can wait until it is needed."""
    if not any(each.controllers for each in hierarchies if not each.v2):
        return tuple(hierarchies)
    return tuple(each._replace(late=each.v2 and not each.controllers) for each in hierarchies)


class _Mount(NamedTuple):
    own: Path  # the directory of our own group
    v2: bool
    holds: frozenset[str]  # v1: what is mounted there


def unified_mount() -> Path | None:
    """The cgroup v2 mount, if any: `/sys/fs/cgroup` itself, or the controller-less one of a hybrid host."""
    return next((where for where, _, kind, _ in _mount_lines() if kind == "cgroup2"), None)


def _mount_lines() -> Iterator[tuple[Path, str, str, str]]:
    """Mount point, what of the hierarchy is mounted there, file system, its options."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, where = before.split(" ")[3:5]
            yield Path(where), root, kind, options


def _mounts() -> list[_Mount]:
    own: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        own |= dict.fromkeys(names.split(","), path)
    found: list[_Mount] = []
    for where, root, kind, options in _mount_lines():
        holds = frozenset(options.split(",")) & own.keys()
        group = own.get("" if kind == "cgroup2" else next(iter(holds), "?"))
        if group is not None:
            inside = group.removeprefix(root) if root != "/" else group  # a container may show a part of the tree
            found.append(_Mount(where / inside.lstrip("/"), kind == "cgroup2", holds))
    return found


def _try(mount: _Mount, wanted: Sequence[str]) -> Hierarchy | None:
    """Make a group and see what it can do; None where it is of no use."""
    sweep(mount.own)
    moved = mount.v2 and _enable(mount.own, wanted)
    path = mount.own / f"{OURS}{os.getpid()}-try"
    try:
        path.mkdir(mode=0o755)
    except OSError:
        return None
    try:
        proved = tuple(
            name for name in wanted if put(path, mount.v2, name, _TRIED) and _reads_back(path, mount.v2, name)
        )
        # not the freezer of v1: what it holds does not even die, so a killed kernel would leave it behind for ever
        freezes, kills = (mount.v2 and _exists(path, f"cgroup.{name}") for name in ("freeze", "kill"))
        found = Hierarchy(mount.own, mount.v2, proved, freezes, kills)
    finally:
        path.rmdir()
    if moved and not proved:
        _leave_leaf(mount.own)
    return found if found.controllers or found.freezes else None


def _enable(own: Path, wanted: Sequence[str]) -> bool:
    """v2: have controllers in the groups below ours; whether we had to move for it. A group with processes in it cannot
    pass controllers on, so if all of them are ours (a delegated scope) they move into a leaf; else nothing is done."""
    with contextlib.suppress(OSError):
        available = (own / "cgroup.controllers").read_text().split()
        order = " ".join(f"+{name}" for name in wanted if name in available)
        if not order:
            return False
        try:
            write(own / "cgroup.subtree_control", order)
        except OSError as problem:
            if problem.errno != errno.EBUSY or not _enter_leaf(own):
                return False
            try:
                write(own / "cgroup.subtree_control", order)
            except OSError:
                _leave_leaf(own)
                return False
            _enable_io(own, available)
            return True
        _enable_io(own, available)
    return False


def _enable_io(own: Path, available: Sequence[str]) -> None:
    """Apart from the others: it limits nothing, and shares are as good without it."""
    if "io" in available:
        with contextlib.suppress(OSError):
            write(own / "cgroup.subtree_control", "+io")


def _leaf(own: Path) -> Path:
    return own / f"{OURS}{os.getpid()}-kernel"


def _enter_leaf(own: Path) -> bool:
    pids = (own / "cgroup.procs").read_text().split()
    if not all(_is_ours(int(pid)) for pid in pids):
        return False
    _leaf(own).mkdir(mode=0o755)
    try:
        for pid in pids:
            write(_leaf(own) / "cgroup.procs", pid)
    except OSError:
        _leave_leaf(own)
        return False
    return True


def _leave_leaf(own: Path) -> None:
    with contextlib.suppress(OSError):
        for pid in (_leaf(own) / "cgroup.procs").read_text().split():
            write(own / "cgroup.procs", pid)
        _leaf(own).rmdir()


def _is_ours(pid: int) -> bool:
    """Whether a process is this one or descends from it."""
    while pid > 1 and pid != os.getpid():
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid == os.getpid()


def _settings(v2: bool, name: str, limits: Limits) -> list[tuple[str, str]]:
    """File and value for a limit: the first one is the limit, the others make it strict where the host knows them."""
    if name == "memory" and limits.memory_mb:
        size = str(limits.memory_mb * _MB)
        if v2:
            return [("memory.max", size), ("memory.swap.max", "0"), ("memory.oom.group", "1")]
        return [("memory.limit_in_bytes", size), ("memory.memsw.limit_in_bytes", size)]
    if name == "pids":
        return [("pids.max", str(limits.pids))]
    if name == "cpu" and limits.cpu_pct:
        quota = limits.cpu_pct * _PERIOD_US // 100
        return [("cpu.max", f"{quota} {_PERIOD_US}")] if v2 else [("cpu.cfs_quota_us", str(quota))]
    return []


def put(path: Path, v2: bool, name: str, limits: Limits) -> bool:
    """Write a limit; whether it is in force."""
    settings = _settings(v2, name, limits)
    for index, (file, value) in enumerate(settings):
        try:
            write(path / file, value)
        except OSError:
            if index == 0:
                return False
    return bool(settings)


def weigh(path: Path, v2: bool, weight: int) -> bool:
    """Its share of cpu, and of io where this host has shares of that; whether the first is in force. 100 is usual."""
    file, value = ("cpu.weight", weight) if v2 else ("cpu.shares", weight * _USUAL_SHARES // 100)
    try:
        write(path / file, str(value))
    except OSError:
        return False
    with contextlib.suppress(OSError):
        if v2:
            write(path / "io.weight", str(weight))
    return True


def _reads_back(path: Path, v2: bool, name: str) -> bool:
    file, value = _settings(v2, name, _TRIED)[0]
    return (path / file).read_text().strip() == value


def write(path: Path, text: str) -> None:
    """Never creates: a cgroup's files are there or they are not."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _exists(path: Path, name: str) -> bool:
    return (path / name).exists()


def sweep(own: Path) -> None:
    """Remove the empty groups of kernels that were killed before they could, in our group and in those beside it (a
    session of an operator is often a group of its own)."""
    for path in (*own.glob(f"{OURS}*"), *own.parent.glob(f"*/{OURS}*")):
        owner = path.name.removeprefix(OURS).partition("-")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                path.rmdir()
