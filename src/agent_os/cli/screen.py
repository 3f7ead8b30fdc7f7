"""Tables that fit the terminal, and views that are drawn again in place of the last.

In: lines to show. Out: the terminal. Where stdout is no terminal nothing moves and nothing is cut: each picture follows
the last.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from agent_os.cli.output import plain, shape, table, width

EVERY_S = 1.0
_CLEAR = "\x1b[H\x1b[2J"
_LAST_COLUMN = 16  # columns that it wants


def cut(line: str, columns: int) -> str:
    """The line, or what fits of it and a sign that there was more."""
    if width(line) <= columns:
        return line
    kept, used = "", 0
    for char in line:
        used += width(char)
        if used > columns - 1:
            break
        kept += char
    return f"{kept}…"


def columns() -> int | None:
    """Of the terminal; None where there is none to fit into, or everything is wanted."""
    from shutil import get_terminal_size

    return get_terminal_size().columns if sys.stdout.isatty() and shape() != "wide" else None


def fitted(text: str) -> str:
    """Every line cut to the terminal, so that a table stays one."""
    room = columns()
    return text if room is None else "\n".join(cut(line, room) for line in text.splitlines())


def listed(rows: Sequence[Sequence[object]], headings: Sequence[str], spare: Sequence[str] = ()) -> str:
    """A table for the terminal. Where that is too narrow, columns are left out in the order of `spare`, so that the
    last one, in which the news is, can still be read."""
    room = columns()
    if room is None:
        return table(rows, headings)
    cells = [list(map(str, row)) for row in rows]
    kept = fitting(cells, headings, spare, room)
    return fitted(table([[row[at] for at in kept] for row in cells], [headings[at] for at in kept]))


def show(
    rows: Sequence[Sequence[object]], headings: Sequence[str], spare: Sequence[str] = (), *, none: str = ""
) -> None:
    """The list, or, to whoever looks on, that there is nothing on it."""
    if rows:
        click.echo(listed(rows, headings, spare))
    else:
        click.echo(none, err=True)


def fitting(rows: Sequence[Sequence[str]], headings: Sequence[str], spare: Sequence[str], room: int) -> list[int]:
    """The columns of a table that have their place in so much room, two blanks between any two."""
    kept = list(range(len(headings)))
    widths = [max(width(plain(line[at])) for line in (headings, *rows)) for at in kept]
    for name in filter(headings.__contains__, spare):
        if sum(widths[at] + 2 for at in kept[:-1]) + _LAST_COLUMN <= room:
            break
        kept.remove(list(headings).index(name))
    return kept


def watched(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `--watch`: the verb is done again every second."""

    @wraps(command)
    def verb(*args: Any, watch: bool, **kwargs: Any) -> Any:
        return again(lambda: command(*args, **kwargs), EVERY_S, watch=watch)

    return click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")(verb)


def again(draw: Callable[[], Any], every: float, *, watch: bool) -> Any:
    """Draw once, or with `watch` until Ctrl-C: leaving a view is no failure."""
    try:
        while True:
            if watch and sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            drawn = draw()
            if not watch:
                return drawn
            sys.stdout.flush()
            time.sleep(every)
    except KeyboardInterrupt:
        if not watch:
            raise
        return None
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), sys.stdout.fileno())
        return None
