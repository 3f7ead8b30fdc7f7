"""What of the host an escape would change, as one comparable value.

`snapshot` reads; `differences` names what changed. Owns the list of what changes by itself and is therefore left out.
Never changes anything.
"""

import contextlib
import hashlib
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from agent_os.sandbox.hierarchies import unified_mount

# What the kernel itself changes all the time, or what reading would trigger.
_RESTLESS = (
    *("fs/dentry-state", "fs/inode-nr", "fs/inode-state", "fs/file-nr", "fs/aio-nr", "fs/quota", "fs/binfmt_misc"),
    *(
        "fs/dentry-negative",
        "kernel/random",
        "kernel/ns_last_pid",
        "kernel/pty/nr",
        "kernel/perf_event_max_sample_rate",
    ),
    *("kernel/perf_cpu_time_max_percent", "net/netfilter/nf_conntrack_count", "vm/stat_refresh", "kernel/init_private"),
    *("kernel/hung_task_detect_count", "kernel/sched_domain", "vm/compact_memory", "vm/drop_caches"),
)
_CLOCK_TOLERANCE = 0.5

State = dict[str, object]


def snapshot(canaries: Iterable[Path], uids: Iterable[int], mark: str) -> State:
    """`uids` are those whose shared objects count; `mark` is in the name of every cgroup and directory of ours."""
    owners = set(uids)
    return {
        "sysctl": _sysctls(),
        "mounts": sorted(line.split(" ", 2)[2] for line in Path("/proc/self/mountinfo").read_text().splitlines()),
        "canary": {str(path): _facts(path) for path in canaries},
        "clock": round((time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)) / _CLOCK_TOLERANCE),
        "name": (socket.gethostname(), Path("/proc/sys/kernel/domainname").read_text()),
        "shm": sorted(
            entry.name for entry in os.scandir("/dev/shm") if entry.stat(follow_symlinks=False).st_uid in owners
        ),
        "ipc": _ipc(owners),
        "keys": sorted(line.split()[0] for line in _lines("/proc/keys") if " user " in line),
        "cgroups": _cgroups(mark),
        "devices": sorted(os.listdir("/dev")),
        "tops": sorted(os.listdir("/")) + sorted(os.listdir("/etc")) + sorted(os.listdir("/usr")),
    }


def differences(before: State, after: State) -> list[str]:
    found: list[str] = []
    for name, old in before.items():
        new = after[name]
        if name == "clock":
            if isinstance(old, int) and isinstance(new, int) and abs(old - new) > 1:
                found.append(f"clock: jumped by about {(new - old) * _CLOCK_TOLERANCE} s")
        elif isinstance(old, dict) and isinstance(new, dict):
            keys = [key for key in old.keys() | new.keys() if old.get(key) != new.get(key)]
            found += [f"{name}: {key}: {old.get(key)!r} became {new.get(key)!r}" for key in sorted(keys)]
        elif old != new:
            found.append(f"{name}: {_changed(old, new)}")
    return found


def descendants(top: int, spares: bool = False) -> dict[int, str]:
    """Living processes below one, with their command lines. Orphans count if `top` is a subreaper. A child that a
    launcher made ahead belongs to the launcher, comes and goes, and counts only if asked for."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                command, facts = Path(f"/proc/{name}/stat").read_text().rsplit(")", 1)
                state, parent = facts.split()[:2]
                if state not in "ZX" and (spares or not command.endswith("(agent-os-spare")):
                    parents[int(name)] = int(parent)
    below: dict[int, str] = {}
    waiting = [top]
    while waiting:
        here = waiting.pop()
        for pid in [pid for pid, parent in parents.items() if parent == here]:
            with contextlib.suppress(OSError):
                below[pid] = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:120]
                )
            waiting.append(pid)
    return below


def _changed(old: object, new: object) -> str:
    if isinstance(old, list) and isinstance(new, list):
        return f"gone {sorted(set(old) - set(new))}, new {sorted(set(new) - set(old))}"
    return f"{old!r} became {new!r}"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _sysctls() -> dict[str, str]:
    values: dict[str, str] = {}
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            path = f"{folder}/{name}"
            short = path.removeprefix("/proc/sys/")
            if short.startswith(_RESTLESS) or not os.access(path, os.R_OK):
                continue
            with contextlib.suppress(OSError, UnicodeDecodeError):
                values[short] = Path(path).read_text()
    return values


def _facts(path: Path) -> object:
    try:
        facts = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else sorted(os.listdir(path))
    except OSError as problem:
        return str(problem)
    return content, facts.st_mode, facts.st_uid, facts.st_gid, facts.st_mtime_ns if path.is_file() else 0


def _ipc(owners: set[int]) -> list[str]:
    found: list[str] = []
    for kind, column in (("shm", 7), ("sem", 4), ("msg", 7)):
        for line in _lines(f"/proc/sysvipc/{kind}")[1:]:
            if int(line.split()[column]) in owners:
                found.append(f"{kind} {line.split()[1]}")
    return found


def _cgroups(mark: str) -> list[str]:
    mount = unified_mount()
    if mount is None:
        return []
    return sorted(top for top, _, _ in os.walk(mount) if mark in top)
