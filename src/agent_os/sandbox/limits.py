"""Bounds that hold without any cgroup controller, and the cgroup that can kill and freeze a whole agent.

`apply_rlimits` runs inside the child (step C11). `Group` is the kernel's side: one cgroup per agent on a v2 mount
where there is one we may write to, used for kill and freeze; limits by controller are not built yet.
"""

import contextlib
import os
import resource
import select
import time
from dataclasses import dataclass
from pathlib import Path

from agent_os.sandbox.spec import Limits

_MB = 1 << 20
_OURS = "agent-os-"


def apply_rlimits(limits: Limits) -> None:
    file_mb = limits.fsize_mb or limits.disk_mb
    bounds: dict[int, int | None] = {
        resource.RLIMIT_CORE: 1,  # 0 would still start a core handler that is a pipe
        resource.RLIMIT_NOFILE: limits.nofile,
        resource.RLIMIT_NPROC: limits.pids,  # counted per agent, because each has a user namespace
        resource.RLIMIT_FSIZE: file_mb * _MB,
        resource.RLIMIT_AS: limits.as_mb * _MB if limits.as_mb else None,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    for which, bound in bounds.items():
        if bound is not None:
            resource.setrlimit(which, (bound, bound))


def enforcers(limits: Limits) -> dict[str, str]:
    """Who enforces each limit on this path, for the spawn record."""
    by = {
        "as_mb": "RLIMIT_AS, per process",
        "pids": "RLIMIT_NPROC, per agent",
        "cpu_s": "RLIMIT_CPU, per process",
        "wall_s": "kernel timer",
        "nofile": "RLIMIT_NOFILE",
        "fsize_mb": "RLIMIT_FSIZE, per file",
        "disk_mb": "RLIMIT_FSIZE per file and a watcher",
        "tmp_mb": "tmpfs size",
        "memory_mb": "nothing: no cgroup controller",
        "cpu_pct": "nothing: no cgroup controller",
    }
    return {name: by[name] for name, value in vars(limits).items() if value is not None}


def unified_mount() -> Path | None:
    """The cgroup v2 mount, if any: `/sys/fs/cgroup` itself, or the controller-less one of a hybrid host."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(where)
    return None


def _sweep(parent: Path) -> None:
    """Remove the empty groups of kernels that were killed before they could."""
    for path in parent.glob(f"{_OURS}*"):
        owner = path.name.removeprefix(_OURS).partition("-")[0]
        if owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                path.rmdir()


@dataclass(frozen=True)
class Group:
    """One agent's cgroup. Everything it ever starts stays in it."""

    path: Path

    @classmethod
    def create(cls, name: str) -> "Group | None":
        """A fresh group below our own, or None where this host gives us none we could create."""
        mount = unified_mount()
        if mount is None:
            return None
        own = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "/")
        parent = mount / own.lstrip("/")
        try:
            _sweep(parent)
            path = parent / f"{_OURS}{os.getpid()}-{name}"
            path.mkdir(mode=0o755)
        except OSError:
            return None
        return cls(path)

    def open_procs(self) -> int:
        return os.open(self.path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)

    def kill(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # Linux before 5.14 has no cgroup.kill; pid 1's death does it then
            (self.path / "cgroup.kill").write_text("1")

    def freeze(self, frozen: bool, timeout: float = 5.0) -> bool:
        """Freeze or thaw; true once the kernel says it is so."""
        (self.path / "cgroup.freeze").write_text("1" if frozen else "0")
        return self._wait_event("frozen", "1" if frozen else "0", timeout)

    def remove(self, timeout: float = 5.0) -> None:
        """Remove the group once it is empty: processes leave it a moment after their death was reported."""
        self._wait_event("populated", "0", timeout)
        with contextlib.suppress(FileNotFoundError):
            self.path.rmdir()

    def _wait_event(self, key: str, value: str, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        with (self.path / "cgroup.events").open() as events:
            watch = select.poll()
            watch.register(events, select.POLLPRI)  # the kernel raises POLLPRI whenever the file changes
            while f"{key} {value}" not in events.read().splitlines():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                watch.poll(left * 1000)
                events.seek(0)
        return True
