"""What agentctl prints: versioned JSON, aligned tables, colour where it is wanted, and text made harmless.

In: values and text, part of it written by agents. Out: strings, or lines on stdout. Never reads anything and never
touches stderr, which belongs to messages.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import click

API = "v1"
_COLOURS = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "bold": 1, "dim": 2}


def plain(text: str, *, keep_newlines: bool = False) -> str:
    """`text` without what could steer a terminal or a reader's eye: controls, escapes, bidi and invisible marks.

    Each such character becomes a visible replacement, so that hostile text looks odd instead of looking clean.
    Line breaks become a space unless `keep_newlines`, so that a name cannot forge a second line.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_plain_char(char, keep_newlines) for char in text)


def _plain_char(char: str, keep_newlines: bool) -> str:
    if char == "\n":
        return char if keep_newlines else " "
    if char == "\t":
        return " "
    # Cc controls, Cf bidi and zero-width, Cs lone surrogates (undecodable file names), Zl/Zp line separators.
    if unicodedata.category(char) in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}:
        return "\N{REPLACEMENT CHARACTER}"
    return char


def print_json(value: Mapping[str, Any]) -> None:
    """One object on one line, with the version of its shape first."""
    click.echo(json.dumps({"api": API, **value}, ensure_ascii=True, default=str))


def show_result(result: Any) -> None:
    """What an agent returned: text as it is, made harmless; anything else as JSON."""
    text = result if isinstance(result, str) else json.dumps(result, default=repr)
    click.echo("\n".join(map(plain, text.splitlines())))


def wants_colour(stream: TextIO) -> bool:
    return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """`text` in a colour if `stream` (stdout unless given) shows colours, else unchanged."""
    if not wants_colour(stream or sys.stdout):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def width(text: str) -> int:
    """Columns a terminal uses for `text`."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def table(rows: Sequence[Sequence[object]], headings: Sequence[str] = ()) -> str:
    """Rows as aligned columns, two spaces apart, no trailing blanks. Every cell is made `plain`."""
    cells = [[plain(str(cell)) for cell in row] for row in rows]
    if headings:
        cells.insert(0, list(headings))
    widths: list[int] = []
    for row in cells:
        widths.extend([0] * (len(row) - len(widths)))
        widths[: len(row)] = [max(known, width(cell)) for known, cell in zip(widths, row, strict=False)]
    lines = ("  ".join(cell + " " * (widths[i] - width(cell)) for i, cell in enumerate(row)).rstrip() for row in cells)
    return "\n".join(lines)


def shortened(text: str, most: int = 60) -> str:
    """So many characters of it, the last one a sign that there was more."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def age(seconds: float) -> str:
    """`41s`, `9m`, `3h`, `12d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{max(int(seconds), 0)}s"


def output_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `-o table|json` and `--json`; the command receives `as_json: bool`. The last one given wins."""

    def is_json(_ctx: click.Context, _param: click.Parameter, value: str | None) -> bool:
        return value == "json"

    formats = click.Choice(["table", "json"])
    short = click.option("--json", "as_json", flag_value="json", callback=is_json, help="Same as -o json.")
    full = click.option("-o", "--output", "as_json", type=formats, default="table", callback=is_json, help="Format.")
    return full(short(command))
