"""What an agent may ask for as its child, turned into an order that can be carried out.

A child runs a file of its parent's own project, with its parent's view of the machine: never more paths, hosts or
environment than the parent was given, and nothing of what the operator said should happen with the parent's work.
"""

import os
from collections.abc import Mapping
from typing import Any

from agent_os.abi.errors import EINVAL, EPERM
from agent_os.abi.text import native
from agent_os.kernel.table import Agent

_KEEPS = ("cwd", "environment", "workspace", "mounts", "net", "env", "limit", "min_isolation", "python")
_KNOWS = {"name", "program", "caps", "description"}
_RUNTIMES = ("python",)


def child_order(parent: Agent, manifest: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The order and the name it asks for. EINVAL names what is wrong, EPERM a file that is not the parent's to run."""
    if unknown := sorted(set(manifest) - _KNOWS):
        raise EINVAL(
            "manifest.key", f"a manifest has no {unknown[0]!r} yet", hint=f"there is {', '.join(sorted(_KNOWS))}"
        )
    program = manifest.get("program")
    entry = program.get("entry") if isinstance(program, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    if not isinstance(entry, str) or program.get("runtime", "python") not in _RUNTIMES:  # pyright: ignore[reportUnknownMemberType, reportOptionalMemberAccess]
        hint = 'program = {"runtime": "python", "entry": "FILE.py:NAME"}'
        raise EINVAL("manifest.program", "a manifest says which program to run", hint=hint)
    if "file" not in parent.order:
        raise EPERM("spawn.guest", "only agents written for Agent OS can start others")
    file, _, function = entry.partition(":")
    order = {key: parent.order[key] for key in _KEEPS if key in parent.order}
    name = manifest.get("name")
    return {**order, "file": _host_file(parent, file), "function": function}, str(name) if name else None


def _host_file(parent: Agent, file: str) -> str:
    """Where the file is on the host. Inside, the project is at its own path and, for syscalls, at /work."""
    project = os.path.normpath(native(parent.order["cwd"]))
    place = f"{project}/{file.removeprefix('/work/')}" if file.startswith("/work/") else os.path.join(project, file)
    place = os.path.normpath(place)
    if not place.startswith(f"{project}/"):
        raise EPERM("spawn.file", f"{file} is not in your workspace")
    return place
