"""How changes are shown: the same letters, marks and next steps wherever agentctl lists them.

In: changes and reports of a workspace, as the kernel tells them (maps); names and contents come from an agent and are
shown escaped. Out: lines.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

import click

from agent_os.cli.output import paint, plain, table, when_idle

Entry = Mapping[str, Any]

_LETTERS = {"add": "A", "modify": "M", "delete": "D", "mode": "P", "symlink": "L"}
_WORDS = {"add": "added", "modify": "modified", "delete": "deleted", "mode": "with a new mode", "symlink": "linked"}
_COLOURS = {"A": "green", "D": "red", "M": "yellow"}


def show(changes: Iterable[Entry], stream: TextIO | None = None) -> None:
    """One line a change, on stdout unless given."""
    stream = stream or sys.stdout
    rows = [(_LETTERS[change["kind"]], change["shown"], _size(change), _remark(change)) for change in changes]
    for line in table(rows).splitlines():
        click.echo(paint(line[0], _COLOURS.get(line[0], "blue"), stream) + line[1:], file=stream)


def _size(change: Entry) -> str:
    if change["kind"] == "mode":
        return f"mode {change['mode']:o}"
    return human_size(change["size"]) if change["type"] == "file" and change["kind"] != "delete" else ""


def _remark(change: Entry) -> str:
    if change["refused"]:
        return f"refused: {change['refused']}"
    return "protected" if change["protected"] else ""


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


def show_patches(patches: Iterable[str]) -> None:
    for text in patches:
        for line in text.splitlines():
            colour = {"+": "green", "-": "red", "@": "blue"}.get(line[:1])
            click.echo(paint(line, colour) if colour else line)


def count(changes: Sequence[Entry]) -> str:
    """`3 changes: 2 added, 1 deleted; 1 protected`."""
    kinds = Counter(change["kind"] for change in changes)
    protected, refused = sum(c["protected"] for c in changes), sum(bool(c["refused"]) for c in changes)
    return counted({**kinds, "protected": protected, "refused": refused})


def counted(numbers: Mapping[str, int]) -> str:
    """The same from numbers alone."""
    total = sum(numbers.get(kind, 0) for kind in _WORDS)
    if not total:
        return "no changes"
    text = f"{total} change{'s' if total > 1 else ''}: "
    text += ", ".join(f"{numbers[kind]} {word}" for kind, word in _WORDS.items() if numbers.get(kind))
    marks = ", ".join(f"{numbers[word]} {word}" for word in ("protected", "refused") if numbers.get(word))
    return f"{text}; {marks}" if marks else text


def tell(workspace: Entry, lists: Mapping[str, Sequence[Entry]], *, dry_run: bool = False, removed: bool) -> None:
    """What a commit did, what it left and why, and what to do about that."""
    name, did = workspace["workspace"], "would commit" if dry_run else "committed"
    complete = not any(lists.get(left) for left in ("withheld", "refused", "failed", "conflicts"))
    say(f"{did} {count(lists.get('committed', ()))} to {project(workspace)}")
    for title in ("withheld", "refused", "failed"):
        for change in lists.get(title, ()):
            reason = change["refused"] if title != "withheld" else "tools execute or obey it, or a rule asks about it"
            say(f"{title}  {change['shown']}  {reason}")
    for conflict in lists.get("conflicts", ()):
        say(f"conflict  {conflict['shown']}  {conflict['reason']}")
    if removed:
        say(f"{name} is empty now and was removed")
    elif lists.get("withheld"):
        say(f"next  agentctl diff {name} --patch   then   agentctl commit {name} --allow-protected")
    elif not dry_run and not complete:
        say(f"next  agentctl diff {name} --patch   or   agentctl discard {name}")


def project(workspace: Entry) -> str:
    from agent_os.abi.text import native

    return plain(native(workspace["project"]))


def say(text: str) -> None:
    click.echo(text, err=True)


def say_started(pid: int) -> None:
    """That there was no kernel, and for how long there is one now."""
    from agent_os.client.start import idle_exit

    say(f"kernel  started in the background, process {pid}; it stops {when_idle(idle_exit())}")
