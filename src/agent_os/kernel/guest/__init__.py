"""Guests: any unmodified command as an agent. What it needs to see, and the environment it gets."""

import difflib
import os
import re
import resource
from collections.abc import Sequence
from pathlib import Path

from agent_os.abi.errors import EINVAL
from agent_os.kernel.guest.environment import Mount, environment, expand, parse_duration, parse_env, parse_mount
from agent_os.kernel.guest.program import INTERPRETERS, Program, resolve
from agent_os.sandbox import hierarchies
from agent_os.sandbox.spec import GUEST_LIMITS, Limits

# The meaning of `--limit NAME=VALUE`, and the limits a guest has without it. The operator's words go in, `Limits`
# come out; an unknown name or a value this host cannot give is refused with a right form. Applies nothing: that is
# the sandbox's work.

_MOST_MB = 1 << 24  # 16 TiB
_BOUNDS = {
    "memory_mb": (16, _MOST_MB),
    "as_mb": (64, _MOST_MB),
    "pids": (4, 1 << 22),
    "cpu_pct": (1, 100 * (os.cpu_count() or 1)),
    "cpu_s": (1, 10**9),
    "nofile": (16, 1 << 20),
    "fsize_mb": (1, _MOST_MB),
    "disk_mb": (1, _MOST_MB),
    "tmp_mb": (1, _MOST_MB),
}
NAMES = tuple(_BOUNDS)
# An agent has no right to raise what its kernel was started with: name → the limit and the bytes or pieces it counts.
_INHERITED = {
    "as_mb": (resource.RLIMIT_AS, 1 << 20),
    "pids": (resource.RLIMIT_NPROC, 1),
    "cpu_s": (resource.RLIMIT_CPU, 1),
    "nofile": (resource.RLIMIT_NOFILE, 1),
    "fsize_mb": (resource.RLIMIT_FSIZE, 1 << 20),
    "disk_mb": (resource.RLIMIT_FSIZE, 1 << 20),
}


def parse_limits(items: Sequence[str], wall_s: float | None = None) -> Limits:
    """A guest's limits: the defaults, and what the operator set. The last one of a name counts."""
    asked = dict(_parse(item) for item in items)
    return default_limits()._replace(wall_s=wall_s, **asked)


def default_limits() -> Limits:
    """Half of the machine's memory, where a cgroup can hold a guest to it; the rest is fixed."""
    if "memory" not in hierarchies.detect().controllers:
        return GUEST_LIMITS
    return GUEST_LIMITS._replace(memory_mb=max(_BOUNDS["memory_mb"][0], _machine_mb() // 2))


def unenforced(enforced_by: dict[str, str]) -> tuple[str, ...]:
    """What to tell the operator about limits that were asked for and that nobody keeps here."""
    names = [name for name, who in enforced_by.items() if who.startswith("nothing") and name in NAMES]
    why = "no cgroup controller we may use; agentctl doctor says how to get one"
    return tuple(f"--limit {name} is not enforced here: {why}" for name in names)


def _parse(item: str) -> tuple[str, int]:
    name, given, value = item.partition("=")
    if name in ("wall_s", "wall", "time", "timeout"):
        raise EINVAL("limit.unknown", f"--limit {item!r}: the wall clock has a flag of its own.", hint="--timeout 10m")
    if name not in _BOUNDS:
        near = difflib.get_close_matches(name, NAMES, n=2, cutoff=0.6)
        guess = f" Did you mean {' or '.join(near)}?" if near else ""
        reason = f"--limit {item!r}: {name!r} is no limit.{guess}"
        raise EINVAL("limit.unknown", reason, hint=f"one of {', '.join(NAMES)}")
    least, most = _bounds(name)
    example = f"--limit {name}={min(max(least, 512), most)}"
    if not given or not re.fullmatch(r"\d{1,12}", value, re.ASCII):
        raise EINVAL("limit.malformed", f"--limit {item!r}: {name} takes a whole number.", hint=example)
    if not least <= int(value) <= most:
        raise EINVAL("limit.range", f"--limit {item!r}: {name} is from {least} to {most} here.", hint=example)
    return name, int(value)


def _bounds(name: str) -> tuple[int, int]:
    least, most = _BOUNDS[name]
    if name in _INHERITED:
        which, unit = _INHERITED[name]
        hard = resource.getrlimit(which)[1]
        if hard != resource.RLIM_INFINITY:
            most = max(least, min(most, hard // unit))
    return least, most


def _machine_mb() -> int:
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal:"))
    return int(line.split()[1]) // 1024


__all__ = [
    "INTERPRETERS",
    "Mount",
    "Program",
    "environment",
    "expand",
    "parse_duration",
    "parse_env",
    "parse_limits",
    "parse_mount",
    "resolve",
    "unenforced",
]
