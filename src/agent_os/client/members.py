"""Everybody as one list: the agents of manifests and those that run without one, each with its process if it has one.

In: what the kernel tells of the two. Out: rows, the same for every front door.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from agent_os.abi.syscalls import Declared, ListAgents
from agent_os.abi.text import native

if TYPE_CHECKING:
    from agent_os.client.wire import Client

ROOT = "system/root"
OVER = frozenset({"stopped", "completed", "failed", "quarantined"})
_DEFAULT = "default/"
_ABOVE_ALL: dict[str, Any] = {"id": ROOT, "name": "root", "role": "root", "parent": None, "state": "running"}
_TO_LOOK = 5.0  # seconds that a kernel has to answer what takes it none

Row = dict[str, Any]


async def members(client: "Client", *, ended: bool = False) -> list[Row]:
    """Root first, then in the order of their start. `ended`: also those without a manifest that this kernel saw end."""
    living = (await client.call(ListAgents(all=ended), deadline=_TO_LOOK))["agents"]
    declared = (await client.call(Declared(), deadline=_TO_LOOK))["agents"]
    return merged(declared, living)


def merged(declared: Iterable[Row], living: Iterable[Row]) -> list[Row]:
    """One row an id. What a manifest's agent has been told to be stands beside what its process does."""
    processes = {one["id"]: _readable(one) for one in living}
    rows = [_declared(one, processes.pop(one["id"], None)) for one in declared]
    rows += [{**one, "declared": False, "role": one.get("role") or "worker"} for one in processes.values()]
    if not any(row["id"] == ROOT for row in rows):
        rows.insert(0, {**_ABOVE_ALL, "declared": False})
    for row in rows:
        row["name"] = short(row["id"])
        if row.get("quarantined"):  # however its process is, or ended
            row["state"] = "quarantined"
        if row["id"] != ROOT:
            row["parent"] = row["parent"] or ROOT
    return rows


def _declared(record: Row, process: Row | None) -> Row:
    """The state of one that lives is that of its process, if it has one: a supervisor may do without. Its number here
    is not its pid on the host."""
    facts = {**record, "number": record["pid"], "pid": None, "declared": True}
    if process is None:
        return {**facts, "state": "running"} if record["state"] == "active" else facts
    own = {key: facts[key] for key in ("id", "role", "parent", "declared")}
    return {**facts, **process, **own, "state": _seen(record, process)}


def _seen(record: Row, process: Row) -> str:
    if record["state"] != "active":
        return record["state"]
    not_yet = process["state"] == "running" and not record["ready"] and not record["needs"]
    return "starting" if not_yet else process["state"]


def _readable(row: Row) -> Row:
    if "command" in row:
        row["command"] = [native(word) for word in row["command"]]
        row["project"] = row["project"] and native(row["project"])
    return row


def short(agent_id: str) -> str:
    """As people call it: bare in the default namespace."""
    return "root" if agent_id == ROOT else agent_id.removeprefix(_DEFAULT)


def is_shown(row: Row) -> bool:
    """Whether a list of what is going on has it: who lives, who is to live, and whoever failed to."""
    if not row["declared"]:
        return row["state"] not in ("completed", "failed")
    return row["state"] not in ("stopped", "completed") or (is_scheduled(row) and row["wanted"])


def is_scheduled(row: Row) -> bool:
    return row.get("activation") == "on_schedule"
