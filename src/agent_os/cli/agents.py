"""`agentctl ps`, `kill`, `pause`, `resume`: see the running agents, and act on them.

In: names, or `--all`. Out: a table or one object; each verb returns only when what it says is true. What an agent is
called and runs comes from outside and is shown made harmless.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import click

from agent_os import daemon
from agent_os.abi.errors import AgentOSError
from agent_os.cli import errors
from agent_os.cli.changes import human_size, say
from agent_os.cli.output import age, output_option, plain, print_json, table

_EVERY_S = 1.0
_LONGEST = 60  # characters of a command in the narrow table
_CLEAR = "\x1b[H\x1b[2J"
_NONE = "no agent is running: agentctl run -- CMD starts one. What ended ones changed: agentctl diff NAME"

Row = dict[str, Any]


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "wide", "json", "name"]), default="table", help="Format.")
@click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
def ps(output: str, as_json: bool, watch: bool) -> None:
    """List the running agents.

    ISO is the isolation level; LIMITS says what enforces their limits: cgroups (v2, v1) or only rlimits. Ended agents
    are not listed: agentctl diff NAME shows what one changed.
    """
    show = _SHAPES["json" if as_json else output]
    try:
        while True:
            rows = asyncio.run(daemon.agents())
            if watch and sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            show(rows)
            if not watch:
                return
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:  # leaving a view is no failure
        return


def _print_table(rows: Sequence[Row]) -> None:
    if not rows:
        say(_NONE)
        return
    headings = ("NAME", "STATE", "ISO", "LIMITS", "PID", "AGE", "MEMORY", "COMMAND")
    click.echo(table([(*_cells(row), _shortened(_command(row))) for row in rows], headings))


def _print_wide(rows: Sequence[Row]) -> None:
    if not rows:
        say(_NONE)
        return
    headings = ("NAME", "STATE", "ISO", "LIMITS", "PID", "AGE", "MEMORY", "PROCESSES", "KERNEL", "PROJECT", "COMMAND")
    more = [(row.get("processes", "-"), row.get("kernel", "-"), row.get("project") or "-") for row in rows]
    cells = [(*_cells(row), *rest, _command(row)) for row, rest in zip(rows, more, strict=True)]
    click.echo(table(cells, headings))


def _print_names(rows: Sequence[Row]) -> None:
    for row in rows:
        click.echo(plain(row["name"]))


def _print_json(rows: Sequence[Row]) -> None:
    print_json({"agents": list(rows)})


_SHAPES: dict[str, Callable[[Sequence[Row]], None]] = {
    "table": _print_table,
    "wide": _print_wide,
    "name": _print_names,
    "json": _print_json,
}


def _cells(row: Row) -> tuple[str, ...]:
    """What every table shows. A kernel that does not answer told us nothing but its name."""
    known = "level" in row
    return (
        row["name"],
        row["state"],
        row["level"] if known else "-",
        row["limits"] if known else "-",
        str(row.get("pid") or "-"),
        age(row["age"]) if known else "-",
        human_size(row["memory"]) if known else "-",
    )


def _command(row: Row) -> str:
    return " ".join(row.get("command", ("-",)))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _many(command: Callable[..., Any]) -> Callable[..., Any]:
    """NAME… or --all, and the format."""
    names = click.argument("names", metavar="NAME...", nargs=-1)
    every = click.option("--all", "every", is_flag=True, help="Every running agent.")
    return names(every(output_option(command)))


@click.command()
@_many
def kill(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """End agents and everything they started.

    Returns when nothing of them is left, and ends with 1 if something is. Their changes are kept: agentctl diff NAME.
    """

    def say_so(name: str, done: Row) -> str:
        number, left = done["processes"], done["survivors"]
        processes = f"{number} process{'' if number == 1 else 'es'}"
        rest = f"{left} of them LEFT" if left else "nothing left"
        return f"killed  {name} ({processes}), {done['seconds'] * 1000:.0f} ms; {rest}"

    done, code = _each(names, every, "kill", say_so, as_json)
    return errors.EXIT_FAILED if any(one["survivors"] for one in done) else code


@click.command()
@_many
def pause(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """Hold agents still: none of their processes runs until agentctl resume.

    Returns when that is true. The clock of --timeout stops as well; a paused agent can be killed.
    """
    _, code = _each(
        names, every, "pause", lambda name, done: f"paused  {name}" + ("" if done["was"] else " (it was)"), as_json
    )
    return code


@click.command()
@_many
def resume(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """Let paused agents go on."""
    _, code = _each(
        names, every, "resume", lambda name, done: f"resumed  {name}" + ("" if done["was"] else " (it ran)"), as_json
    )
    return code


def _each(
    names: Iterable[str],
    every: bool,
    what: Literal["kill", "pause", "resume"],
    say_so: Callable[[str, Row], str],
    as_json: bool,
) -> tuple[list[Row], int]:
    """Act on all of them at once. One that fails keeps nobody else from it; its error is told and gives the code."""
    wanted = list(dict.fromkeys(names))
    if bool(wanted) == every:
        raise click.UsageError(f"name agents, or give --all: agentctl {what} NAME")
    done: list[Row] = []
    code = 0
    for name, result in asyncio.run(_tell(wanted, every, what)):
        if isinstance(result, AgentOSError):
            errors.report(result, as_json=as_json)
            code = code or errors.exit_code(result)
            continue
        done.append({"name": name, **result})
        if not as_json:
            click.echo(say_so(plain(name), result))
    if as_json:
        print_json({what: done})
    elif every and not done and not code:
        say("no agent is running")
    return done, code


async def _tell(
    names: Sequence[str], every: bool, what: Literal["kill", "pause", "resume"]
) -> list[tuple[str, Row | AgentOSError]]:
    if every:
        names = [row["name"] for row in await daemon.agents()]

    async def tell(name: str) -> tuple[str, Row | AgentOSError]:
        try:
            return name, await daemon.tell(name, what)
        except AgentOSError as error:
            return name, error

    return list(await asyncio.gather(*map(tell, names)))
