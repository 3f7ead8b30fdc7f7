"""An agent's limits: what each process is held to by rlimits, and who enforces which limit.

`apply_rlimits` runs inside the child (step C11) and holds on every host, as `rank_for_memory` (C3) does. What bounds
the agent as a whole is its `Group` (`cgroup.py`), on the kernel's side; `enforcers` tells the two apart for the spawn
record.
"""

import contextlib
import os
import resource
from typing import TYPE_CHECKING

from agent_os.sandbox.spec import Limits

if TYPE_CHECKING:  # the launcher imports this file and has no use for that one
    from agent_os.sandbox.cgroup import Group

_MB = 1 << 20
_QUEUED_SIGNALS = 1024
_HEAVIEST, _MOST_KILLABLE = 800, 900  # of weights; of what Linux adds to how killable a process is


def apply_rlimits(limits: Limits) -> None:
    file_mb = limits.fsize_mb or limits.disk_mb
    bounds: dict[int, int | None] = {
        resource.RLIMIT_CORE: 1,  # 0 would still start a core handler that is a pipe
        resource.RLIMIT_NPROC: limits.pids,  # counted per agent, because each has a user namespace
        resource.RLIMIT_FSIZE: file_mb * _MB,
        resource.RLIMIT_AS: limits.as_mb * _MB if limits.as_mb else None,
        resource.RLIMIT_CPU: limits.cpu_s,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_SIGPENDING: _QUEUED_SIGNALS,  # counted for the operator, too
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    for which, bound in bounds.items():
        if bound is not None:
            resource.setrlimit(which, (bound, bound))


def bound_descriptors(limits: Limits) -> None:
    """Apart from the others and last: Linux also takes it for how many descriptors may be on their way between sockets,
    and counts those of all agents of one user together."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limits.nofile, limits.nofile))


def rank_for_memory(limits: Limits) -> None:
    """When the machine runs out of memory, the lighter ones go first. Anybody may make itself easier to kill. Early:
    later the file is not ours any more."""
    if limits.weight is not None and limits.weight < _HEAVIEST:
        with contextlib.suppress(OSError):
            file = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, str(_MOST_KILLABLE * (_HEAVIEST - limits.weight) // _HEAVIEST).encode())
            finally:
                os.close(file)


def enforcers(limits: Limits, group: "Group | None" = None) -> dict[str, str]:
    """Who enforces each limit that is set, for the spawn record: the group that really has it, and what stands beside
    it or instead."""
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
        "weight": "nothing: no cgroup controller",
    }
    if group:
        for limit, controller in (("memory_mb", "memory"), ("pids", "pids"), ("cpu_pct", "cpu")):
            if controller in group.applied:
                by[limit] = f"cgroup {group.version(controller)} {controller}, the agent as a whole"
        if group.weighed:
            by["weight"] = f"cgroup {group.version('cpu')} cpu, the agent as a whole"
    return {name: by[name] for name, value in limits._asdict().items() if value is not None}
