"""Everybody as one list: the agents of manifests and those that run without one, each with its process if it has one.

In: what the kernel tells of the two. Out: rows in the order of the supervision tree, and the words in which `ps`,
`tree` and `top` show one. Names, reasons and commands come from outside; whoever prints them makes them harmless.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from agent_os.abi.syscalls import Declared, ListAgents
from agent_os.abi.text import native
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.changes import human_size
from agent_os.cli.output import age, paint

if TYPE_CHECKING:
    from agent_os.client.wire import Client

ROOT = "system/root"
OVER = frozenset({"stopped", "completed", "failed", "quarantined"})
COLOURS = {"running": "green", "failed": "red", "quarantined": "red", "backoff": "yellow", "blocked": "yellow"}
_DEFAULT = "default/"
_ABOVE_ALL: dict[str, Any] = {"id": ROOT, "name": "root", "role": "root", "parent": None, "state": "running"}

SPARE = ("ISO", "PARENT", "PID", "MEMORY", "ROLE", "AGE")  # what a narrow table does without, in this order

Row = dict[str, Any]


async def members(client: "Client", *, ended: bool = False) -> list[Row]:
    """Root first, then in the order of their start. `ended`: also those without a manifest that this kernel saw end."""
    living = (await client.call(ListAgents(all=ended), deadline=TO_LOOK))["agents"]
    declared = (await client.call(Declared(), deadline=TO_LOOK))["agents"]
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


def in_tree(rows: Sequence[Row], top: str = ROOT) -> Iterator[tuple[str, Row]]:
    """Each below its supervisor, with the lines that lead to it. One whose supervisor is not listed hangs from root."""
    known = {row["id"]: row for row in rows}
    below: dict[str, list[Row]] = {}
    for row in rows:
        if row["id"] != ROOT:
            below.setdefault(row["parent"] if row["parent"] in known else ROOT, []).append(row)
    yield "", known[top]
    yield from _branches(below, top, "")


def _branches(below: dict[str, list[Row]], parent: str, lead: str) -> Iterator[tuple[str, Row]]:
    children = below.pop(parent, [])  # taken out: whatever the rows say, nobody is told twice
    children.sort(key=lambda row: (row.get("index", 1 << 62), row.get("number") or 0))
    for row in children:
        last = row is children[-1]
        yield f"{lead}{'└ ' if last else '├ '}", row
        yield from _branches(below, row["id"], f"{lead}{'  ' if last else '│ '}")


def cells(row: Row) -> tuple[str, ...]:
    """ROLE, STATE, ISO, AGE, MEMORY. One without a process has less to tell."""
    known = "memory" in row
    return (
        row["role"],
        row["state"],
        row.get("level") or ("" if row["declared"] else row.get("isolation")) or "-",
        age(row["age"]) if known else "-",
        human_size(row["memory"]) if known else "-",
    )


def restarts(row: Row) -> str:
    """How many of its restarts in a row it has used."""
    if not row["declared"] or row["id"] == ROOT:
        return "-"
    most = row["max_restarts"]
    return f"{min(row['consecutive'], most)}/{most}" if row["policy"] != "never" else "never"


def now(row: Row, wall: float | None = None) -> str:
    """What there is to say of it at this moment: why it does not run, else what it runs."""
    why = row.get("why") or ""
    if row["declared"] and row["state"] not in ("running", "starting", "paused"):
        return _waiting(row, why, time.time() if wall is None else wall)
    if row.get("needs"):
        return f"not ready: needs {', '.join(map(short, row['needs']))}"
    if row.get("health", "").startswith(("degraded", "unhealthy")):
        return row["health"]
    return command(row)


def _waiting(row: Row, why: str, wall: float) -> str:
    left = (row.get("until") or wall) - wall
    after = f"after {why}" if row["state"] == "backoff" and why else why
    if row["state"] == "blocked" and row.get("needs"):
        after = f"needs {', '.join(map(short, row['needs']))}"
    again = f"again in {left:.0f} s" if left >= 1 else ""
    scheduled = "waits for its time" if is_scheduled(row) and row["wanted"] and row["state"] == "completed" else ""
    return ", ".join(part for part in (scheduled, again, after) if part) or "-"


def is_scheduled(row: Row) -> bool:
    return row.get("activation") == "on_schedule"


def command(row: Row) -> str:
    """Of an author's own agent its file and function: how it is loaded is nobody's business."""
    words = row.get("command", (row.get("detail") or "-",))
    return os.path.basename(words[-1]) if row.get("kind") == "native" and len(words) > 1 else " ".join(words)


def coloured(line: str, state: str) -> str:
    """A line of a table, with its state in colour where those are shown."""
    return line.replace(f"  {state}", f"  {paint(state, COLOURS[state])}", 1) if state in COLOURS else line


def states(rows: Iterable[Row]) -> str:
    """`3 running, 1 backoff`, the frequent ones first."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["state"]] = counts.get(row["state"], 0) + 1
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    return ", ".join(f"{number} {state}" for state, number in ordered) or "none"
