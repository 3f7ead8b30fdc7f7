"""How far something long has come: a line on stderr every two seconds, where somebody looks at it or asked for it.

In: numbers, as often as the work likes. Out: lines, none in the first two seconds. Never touches stdout.
"""

import sys
import time
from collections.abc import Callable

import click

EVERY_S = 2.0

progress_option = click.option(
    "--progress", "shown", is_flag=True, help="Tell how far it is, also where stderr is no terminal."
)


class Progress:
    """Call it with how much is done and how much there is."""

    def __init__(self, what: str, *, shown: bool = False, count: Callable[[int], str] = "{:,}".format) -> None:
        self._what, self._count = what, count
        self._shown = shown or sys.stderr.isatty()
        self._due = time.monotonic() + EVERY_S

    def __call__(self, done: int, total: int) -> None:
        if self._shown and time.monotonic() >= self._due:
            self._due = time.monotonic() + EVERY_S
            share = 100 * done // max(total, 1)
            click.echo(f"{self._what}: {share} % of {self._count(total)}", err=True)
