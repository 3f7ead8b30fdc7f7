"""What agentctl prints: versioned JSON or the same as YAML, tables, colour where it is wanted, and text made harmless.

In: values and text, part of it written by agents. Out: strings, or lines on stdout. Never reads anything and never
touches stderr, which belongs to messages.
"""

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import click

API = "v1"
_SHAPE, _NAMES = "agent_os.shape", "agent_os.names"  # in click's context: what this command is to print
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


def shape() -> str:
    """The format that was asked for; outside a command, JSON's."""
    ctx = click.get_current_context(silent=True)
    return ctx.meta.get(_SHAPE, "table") if ctx else "json"


def print_json(value: Mapping[str, Any]) -> None:
    """What a verb has for programs: one object on one line, with the version of its shape first; or the same as YAML,
    or only its names, where that was asked for."""
    whole = {"api": API, **value}
    match shape():
        case "yaml":
            click.echo(_yaml(whole), nl=False)
        case "name":
            for name in _names(value, click.get_current_context().meta[_NAMES]):
                click.echo(plain(name))
        case _:
            click.echo(json.dumps(whole, ensure_ascii=True, default=str))


def _yaml(value: Mapping[str, Any]) -> str:
    """A document: several in a row can be told apart. ASCII alone, so that nothing in it steers a terminal."""
    import yaml

    same = json.loads(json.dumps(value, default=str))
    return yaml.safe_dump(same, sort_keys=False, explicit_start=True, allow_unicode=False, width=1 << 16)


def _names(value: Mapping[str, Any], paths: Sequence[str]) -> Iterator[str]:
    """`agents.name`: of each in that list; `wrote.`: each is one. What has no such list is itself what is named."""
    for path in paths:
        part, _, field = path.rpartition(".")
        rows = value[part] if part in value else () if len(paths) > 1 else [value]
        yield from (str(row[field] if field else row) for row in rows)


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
    """So many characters of it, the last one a sign that there was more; in the wide format all of it."""
    return text if len(text) <= most or shape() == "wide" else f"{text[: most - 1]}…"


def age(seconds: float) -> str:
    """`41s`, `9m`, `3h`, `12d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{max(int(seconds), 0)}s"


def when_idle(seconds: float) -> str:
    """When a kernel stops that nobody asked to stay."""
    return f"{age(seconds)} after its last agent" if seconds else "with its last agent"


def output_option(
    command: Callable[..., Any] | None = None,
    *,
    names: Sequence[str] = (),
    more: Sequence[str] = (),
    long: str = "--output",
) -> Callable[..., Any]:
    """Adds `-o table|wide|json|yaml|name` and `--json`; the command receives `as_json: bool`, true where programs read,
    and gives `print_json` the value. The last format given wins.

    `names`: where in that value the names are, such as `agents.name`; without any, nothing here has one. `more`:
    formats of this verb alone, which it asks `shape` about. `long`: where --output means something else.
    """
    if command is None:
        return lambda given: output_option(given, names=names, more=more, long=long)

    def chosen(ctx: click.Context, _param: click.Parameter, value: str | None) -> bool:
        if value is not None:
            ctx.meta[_SHAPE], ctx.meta[_NAMES] = value, names
        return ctx.meta.get(_SHAPE) in ("json", "yaml", "name")

    formats = click.Choice(["table", "wide", "json", "yaml", *(["name"] if names else []), *more])
    said = "Format; wide leaves out and shortens nothing."
    short = click.option("--json", "as_json", flag_value="json", callback=chosen, help="Same as -o json.")
    full = click.option("-o", long, "as_json", type=formats, default="table", callback=chosen, help=said)
    return full(short(command))
