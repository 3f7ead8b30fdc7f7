"""How changes are shown: the same letters, marks and next steps wherever agentctl lists them.

In: changes and reports of a workspace; names and contents come from an agent and are shown escaped. Out: lines.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

import click

from agent_os.cli.output import paint, plain, table

if TYPE_CHECKING:
    from agent_os.kernel.workspace import Workspace
    from agent_os.kernel.workspace.changes import Change
    from agent_os.kernel.workspace.landing import Report

_LETTERS = {"add": "A", "modify": "M", "delete": "D", "mode": "P", "symlink": "L"}
_WORDS = {"add": "added", "modify": "modified", "delete": "deleted", "mode": "with a new mode", "symlink": "linked"}
_COLOURS = {"A": "green", "D": "red", "M": "yellow"}


def show(changes: "Iterable[Change]", stream: TextIO | None = None) -> None:
    """One line a change, on stdout unless given."""
    stream = stream or sys.stdout
    rows = [(_LETTERS[change.kind], change.shown, _size(change), _remark(change)) for change in changes]
    for line in table(rows).splitlines():
        click.echo(paint(line[0], _COLOURS.get(line[0], "blue"), stream) + line[1:], file=stream)


def _size(change: "Change") -> str:
    if change.kind == "mode":
        return f"mode {change.mode:o}"
    return human_size(change.size) if change.type == "file" and change.kind != "delete" else ""


def _remark(change: "Change") -> str:
    if change.refused:
        return f"refused: {change.refused}"
    return "protected" if change.protected else ""


def human_size(size: int) -> str:
    """1023 B, 1.0 kB, 4.2 MB: powers of 1000, one decimal."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} PB"


def show_patches(workspace: "Workspace", changes: "Iterable[Change]") -> None:
    for change in changes:
        text = workspace.patch(change)
        for line in text.splitlines():
            colour = {"+": "green", "-": "red", "@": "blue"}.get(line[:1])
            click.echo(paint(line, colour) if colour else line)


def count(changes: "list[Change]") -> str:
    """`3 changes: 2 added, 1 deleted; 1 protected`."""
    if not changes:
        return "no changes"
    kinds = Counter(change.kind for change in changes)
    text = f"{len(changes)} change{'s' if len(changes) > 1 else ''}: "
    text += ", ".join(f"{kinds[kind]} {word}" for kind, word in _WORDS.items() if kinds[kind])
    special = {"protected": sum(c.protected for c in changes), "refused": sum(bool(c.refused) for c in changes)}
    marks = ", ".join(f"{number} {word}" for word, number in special.items() if number)
    return f"{text}; {marks}" if marks else text


def tell(workspace: "Workspace", report: "Report", *, removed: bool) -> None:
    """What a commit did, what it left and why, and what to do about that."""
    did = "would commit" if report.dry_run else "committed"
    say(f"{did} {count(report.committed)} to {plain(workspace.meta.project)}")
    for title, left in (("withheld", report.withheld), ("refused", report.refused), ("failed", report.failed)):
        for change in left:
            reason = change.refused if title != "withheld" else "executed or read as configuration by tools"
            say(f"{title}  {change.shown}  {reason}")
    for conflict in report.conflicts:
        say(f"conflict  {conflict.change.shown}  {conflict.reason}")
    if removed:
        say(f"{workspace.name} is empty now and was removed")
    elif report.withheld:
        say(f"next  agentctl diff {workspace.name} --patch   then   agentctl commit {workspace.name} --allow-protected")
    elif not report.dry_run and not report.complete:
        say(f"next  agentctl diff {workspace.name} --patch   or   agentctl discard {workspace.name}")


def say(text: str) -> None:
    click.echo(text, err=True)
