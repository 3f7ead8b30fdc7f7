"""How everybody is shown: rows in the order of the supervision tree, and the words in which `ps`, `tree` and `top` show
one.

In: the rows of `client.members`. Names, reasons and commands come from outside; whoever prints them makes them
harmless.
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence

from agent_os.cli.changes import human_size
from agent_os.cli.output import age, paint
from agent_os.client.members import OVER as OVER
from agent_os.client.members import ROOT as ROOT
from agent_os.client.members import Row as Row
from agent_os.client.members import is_scheduled
from agent_os.client.members import is_shown as is_shown
from agent_os.client.members import members as members
from agent_os.client.members import merged as merged
from agent_os.client.members import short as short

COLOURS = {"running": "green", "failed": "red", "quarantined": "red", "backoff": "yellow", "blocked": "yellow"}
STATES = "pending starting running paused backoff blocked stopped completed failed quarantined".split()  # all there are
SPARE = ("ISO", "PARENT", "PID", "MEMORY", "ROLE", "AGE")  # what a narrow table does without, in this order


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
