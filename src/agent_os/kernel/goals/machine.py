"""How much memory there is for all agents together: the machine's, or less where our own cgroup has less.

In: what the operating system tells. Out: MiB. Where it tells nothing, the machine's memory counts.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


def memory_mb(groups: Path = _GROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([machine, *_limits(groups, own)]) >> 20


def _limits(groups: Path, own: Path) -> Iterator[int]:
    """Of our cgroup and all above it, in either hierarchy. A word in place of a number is no limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _above(groups, path, "memory.max")
            yield from _above(groups / "unified", path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _above(groups / "memory", path, "memory.limit_in_bytes")


def _above(top: Path, path: str, file: str) -> Iterator[int]:
    place = top / path.lstrip("/")
    for folder in (place, *place.parents):
        if not folder.is_relative_to(top):
            return
        try:
            text = (folder / file).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield int(text)
