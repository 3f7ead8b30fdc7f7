"""What follows from the rest of a manifest: switches from their lists, limits of guests, seed 4's second set of limits.

In: an `AgentManifest` whose tables know which of their keys were given. Out: the same one, complete. What was given is
never changed, but for a limit that is given twice: there the tighter one holds in both places.
"""

import math
from copy import copy
from typing import TYPE_CHECKING

from agent_os.manifest.capabilities import IpcScope, ResourceLimits
from agent_os.manifest.sections import Section
from agent_os.manifest.values import U64_MAX

if TYPE_CHECKING:
    from agent_os.manifest.model import AgentManifest, Program

# A guest is any command, and those need more room. None: what the machine gives, see `kernel.guest.limits`.
GUEST_RESOURCES: dict[str, int | None] = {
    "max_memory_mb": None,
    "cpu_quota": None,
    "max_cpu_secs": None,
    "max_tasks": 512,
    "max_open_files": 1000,
    "max_disk_mb": 8192,
}
# With this a model agent ends whose run was stopped without a result, at its turns or its budget. To start it again
# would be to pay for the same once more.
STOPPED = 20
# Seed 4's name -> where a manifest keeps it, and how many of seed 4's units one of its own is.
LIMITS: dict[str, tuple[str, str, int]] = {
    "max_memory_bytes": ("resources", "max_memory_mb", 1 << 20),
    "max_cpu_time_ms": ("resources", "max_cpu_secs", 1000),
    "max_tool_calls": ("budget", "tool_calls", 1),
    "max_messages": ("budget", "messages", 1),
    "max_disk_bytes": ("resources", "max_disk_mb", 1 << 20),
}


def settle(manifest: "AgentManifest") -> None:
    # The tables may be somebody's own values, used for other manifests as well.
    for table in ("capabilities", "resources", "budget", "health"):
        setattr(manifest, table, copy(getattr(manifest, table)))
    for switch, on in followed(manifest).items():
        if switch not in manifest.capabilities.given:
            setattr(manifest.capabilities, switch, on)
    if runtime(manifest.program) == "exec":
        for key, value in GUEST_RESOURCES.items():
            if key not in manifest.resources.given:
                setattr(manifest.resources, key, value)
        if "ready" not in manifest.health.given:
            manifest.health.ready = "immediate"
    if runtime(manifest.program) == "model" and "no_restart_exit_codes" not in manifest.health.given:
        manifest.health.no_restart_exit_codes = [STOPPED]
    _settle_limits(manifest)


def followed(manifest: "AgentManifest") -> dict[str, bool]:
    """What each switch is where nobody sets it."""
    can, agency = manifest.capabilities, manifest.agency
    topics = manifest.topics_publish or manifest.topics_subscribe
    return {
        "can_spawn": agency.max_children != 0 and bool(agency.allowed_roles),
        "can_ipc": can.ipc_scope != IpcScope.NONE or bool(topics or can.services),
        "can_exec_tools": bool(manifest.tools),
        "can_network": bool(can.network),
    }


def runtime(program: "Program") -> str:
    """The runtime that is named or that the program's keys tell; empty: none, or more than one."""
    if program.runtime:
        return program.runtime
    told = [name for name, given in told_by(program).items() if given]
    return told[0] if len(told) == 1 else ""


def told_by(program: "Program") -> dict[str, bool]:
    return {"python": bool(program.entry), "exec": bool(program.argv), "model": bool(program.model)}


def _settle_limits(manifest: "AgentManifest") -> None:
    asked = manifest.capabilities.resource_limits
    given = asked.given if "resource_limits" in manifest.capabilities.given else frozenset[str]()
    mirrored: dict[str, int] = {}
    for name, (table, key, unit) in LIMITS.items():
        section: Section = getattr(manifest, table)
        own: float | None = getattr(section, key)
        if name in given:
            limit = in_units(getattr(asked, name), unit)
            own = tighter(own, limit) if key in section.given else limit
            setattr(section, key, own)
        mirrored[name] = U64_MAX if own is None else min(math.ceil(own * unit), U64_MAX)
    manifest.capabilities.resource_limits = ResourceLimits(**mirrored)
    manifest.capabilities.resource_limits.given = given  # what only follows may follow again


def in_units(limit: int, unit: int) -> int | float | None:
    """One of seed 4's limits as a manifest has it: whole MiB, seconds with parts."""
    if limit == U64_MAX:
        return None
    return limit // unit if unit != 1000 or limit % unit == 0 else limit / unit


def tighter(one: float | None, other: float | None) -> float | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)
