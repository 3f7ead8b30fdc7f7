"""Everybody at one moment, as `top` shows it: the lines above the table, the order of its rows, and their cells.

In: what the kernel tells. Out: strings; names, reasons and commands come from outside, and whoever prints them makes
them harmless. Draws nothing.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agent_os.abi.syscalls import Approvals, Status
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.changes import human_size
from agent_os.cli.members import ROOT, Row, cells, in_tree, is_shown, members, now, restarts, short, states
from agent_os.cli.output import age, shortened

if TYPE_CHECKING:
    from agent_os.client.wire import Client

NOBODY = "no kernel is running: agentctl up starts one"
NO_AGENT = "no agent yet: agentctl run -- CMD, agentctl apply -f DIR"
HEADINGS = ("NAME", "ROLE", "STATE", "ISO", "PARENT", "PID", "AGE", "MEMORY", "RESTARTS", "NOW")
_BAD = {"failed": 0, "quarantined": 0, "backoff": 1, "blocked": 1}  # these first, where rows are ordered by state
ORDERS: dict[str, Callable[[Row], Any]] = {
    "state": lambda row: (_BAD.get(row["state"], 2), row["state"], row["name"]),
    "memory": lambda row: (-(row.get("memory") or 0), row["name"]),
    "age": lambda row: (-(row.get("age") or 0.0), row["name"]),
    "restarts": lambda row: (-(row.get("consecutive") or 0), row["name"]),
    "name": lambda row: row["name"],
}


@dataclass(frozen=True)
class Glance:
    """`facts` are the kernel's own; None where there is none, and then `why` says more if there is more to say."""

    facts: dict[str, Any] | None = None
    rows: list[Row] = field(default_factory=list[Row])
    why: str = NOBODY


async def look(client: "Client") -> Glance:
    facts = await client.call(Status(), deadline=TO_LOOK)
    waiting = (await client.call(Approvals(), deadline=TO_LOOK))["approvals"]
    rows = [row for row in await members(client) if row["id"] == ROOT or is_shown(row)]
    return Glance({**facts, "approvals": len(waiting), "load": os.getloadavg()[0]}, rows)


def agents(glance: Glance) -> list[Row]:
    """Without root, which is no news."""
    return [row for row in glance.rows if row["id"] != ROOT]


def nobody(glance: Glance) -> str:
    """Why there is no row to show."""
    return f"none of {len(agents(glance))} is like that" if agents(glance) else NO_AGENT


def head(glance: Glance) -> list[str]:
    """How the kernel is, how everybody is, and what waits for a person if anything does."""
    facts, rows = glance.facts, agents(glance)
    if facts is None:
        return [glance.why]
    kernel = f"kernel {facts['version']}  pid {facts['pid']}  up {age(facts['seconds'])}  {facts['entries']:,} entries"
    memory = human_size(sum(row.get("memory") or 0 for row in rows))
    processes = sum(row.get("processes") or 0 for row in rows)
    levels = sorted({row["level"] for row in rows if row.get("level")})
    walls = f"  isolation {'–'.join(dict.fromkeys((levels[0], levels[-1])))}" if levels else ""
    everybody = f"agents {len(rows)}: {states(rows)}   {memory} in {processes} process{'es' * (processes != 1)}"
    asked = facts["approvals"]
    waiting = [f"{asked} wait{'s' * (asked == 1)} for you: agentctl approvals"] if asked else []
    return [f"{kernel}  load {facts['load']:.2f}{walls}", everybody, *waiting]


def ordered(glance: Glance, order: str, words: str = "") -> list[tuple[str, Row]]:
    """The rows that hold all of the words, with what leads to each: nothing, unless they are ordered as a `tree`."""
    if order == "tree":
        return list(in_tree([row for row in glance.rows if row["id"] == ROOT or holds(row, words)]))
    return [("", row) for row in sorted(agents(glance), key=ORDERS[order]) if holds(row, words)]


def holds(row: Row, words: str) -> bool:
    text = "\n".join((row["id"], row["role"], row["state"], short(row["parent"] or ""), now(row))).lower()
    return all(word in text for word in words.lower().split())


def line(lead: str, row: Row) -> tuple[str, ...]:
    """The cells of one, below HEADINGS."""
    role, state, level, old, memory = cells(row)
    parent, pid = short(row["parent"]) if row["parent"] else "-", str(row.get("pid") or "-")
    name = f"{lead}{row['name']}"
    return (name, role, state, level, parent, pid, old, memory, restarts(row), shortened(now(row)))
