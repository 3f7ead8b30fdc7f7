"""SYS_SPAWN: what an agent may ask for as its child, turned into an order that can be carried out.

A child runs a file of its parent's own project, with its parent's view of the machine: never more paths, hosts,
environment or time than the parent was given, and nothing of what the operator said should happen with the parent's
work. A family has bounds: so many live children, so many generations.
"""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agent_os.abi.errors import EDQUOT, EINVAL, EPERM, ESRCH
from agent_os.abi.syscalls import Effect, Spawn
from agent_os.abi.text import native
from agent_os.kernel.authority import capability, charges
from agent_os.kernel.calls import Act, Done, Need, Way, leave_of
from agent_os.kernel.passing import revoked
from agent_os.kernel.table import Agent, Table

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

MOST_CHILDREN = 16  # alive at once
MOST_GENERATIONS = 4  # below an agent that an operator started
_KEEPS = ("cwd", "environment", "workspace", "mounts", "net", "env", "timeout", "limit", "min_isolation", "python")
_KNOWS = {"name", "program", "caps", "description"}
_RUNTIMES = ("python",)


def require_place(table: Table, parent: str) -> None:
    """One more child may be there: its parent is, and the family is neither too wide nor too deep."""
    if table.over(parent):
        raise ESRCH("agent.ended", "who wanted this child has ended, and children end with their parents")
    alive = sum(not table.over(child.id) for child in table.children(parent))
    if alive >= MOST_CHILDREN:
        reason = f"you have {alive} live children, and {MOST_CHILDREN} are allowed"
        raise EDQUOT("children", reason, hint="wait for one to end", used=alive, limit=MOST_CHILDREN)
    above = table.generation(parent)
    if above >= MOST_GENERATIONS:
        reason = f"you are {above} generations below an operator's agent, and {MOST_GENERATIONS} are the most"
        raise EDQUOT("limit", reason, hint="let an agent further up start it", used=above, limit=MOST_GENERATIONS)


def prepare(kernel: "Kernel", parent: Agent, request: Spawn, cap: int | None = None) -> Act:
    """A child: it sees what its parent sees, and what it may do is part of what its parent holds."""
    require_place(kernel.table, parent.id)
    order, name = child_order(parent, request.manifest)
    if name:
        kernel.table.require_own_name(name, parent.id)
    needs = [Need("agent", "spawn", name or "*")]
    wanted = [capability.parse(text) for text in request.caps]
    for one in wanted:
        parent.holdings.prove(one)

    async def do() -> Done:
        by = parent.holdings.find(needs, cap)

        def place() -> None:
            """Others may have come meanwhile, and what it rests on or is to hold may be gone."""
            require_place(kernel.table, parent.id)
            for one in wanted:
                parent.holdings.prove(one)
            if by and by.revoked:
                raise revoked()
            if by:
                charges.require_life(by)
            leave_of(act).confirm()

        child = await kernel.guests.start(
            {**order, "spawned": by.id if by else 0},
            name=name,
            parent=parent.id,
            caps=request.caps,
            input=request.input,
            place=place,
            confirm=leave_of(act).confirm,
        )
        return Done({"agent": child.name, "level": child.isolation})

    act = Act(do, needs, Way.EFFECT, Effect.VERIFIABLE, can_stop=False)
    return act


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
