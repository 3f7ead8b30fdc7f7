"""`agentctl ps`, `kill`, `pause`, `resume`, `release`, `signal`, `wait`, `logs`: see the agents, and act on them.

In: names, or `--all`. Out: a table or one object; each verb returns only when what it says is true. What an agent is
called, runs and writes comes from outside and is shown made harmless.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import click

from agent_os.abi.errors import EHOSTUNREACH, EINVAL, ESRCH, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Await, Body, Hold, ListAgents, Logs, Release, Tell
from agent_os.abi.text import native
from agent_os.cli import errors
from agent_os.cli.asking import ask
from agent_os.cli.changes import human_size, say
from agent_os.cli.output import age, output_option, plain, print_json, table
from agent_os.cli.tamer import Tamer
from agent_os.client.start import session

_EVERY_S = 1.0
_TO_LOOK, _TO_ACT = 5.0, 60.0  # seconds the kernel has to answer
_LONGEST = 60  # characters of a command in the narrow table
_CLEAR = "\x1b[H\x1b[2J"
_NONE = "no agent is running: agentctl run -- CMD starts one. What ended ones changed: agentctl diff NAME"

Row = dict[str, Any]


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "wide", "json", "name"]), default="table", help="Format.")
@click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
@click.option("--all", "everybody", is_flag=True, help="Also those that this kernel saw end.")
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
def ps(output: str, as_json: bool, everybody: bool, watch: bool) -> None:
    """List the running agents.

    ISO is the isolation level; LIMITS says what enforces their limits: cgroups (v2, v1) or only rlimits. Ended agents
    are not listed: agentctl diff NAME shows what one changed.
    """
    show = _SHAPES["json" if as_json else output]
    try:
        while True:
            rows, quarantined = asyncio.run(_listed(everybody))
            if watch and sys.stdout.isatty():
                click.echo(_CLEAR, nl=False)
            show(rows)
            if quarantined and show in (_print_table, _print_wide):
                say(f"in quarantine: {plain(', '.join(quarantined))}   agentctl release NAME")
            if not watch:
                return
            time.sleep(_EVERY_S)
    except KeyboardInterrupt:  # leaving a view is no failure
        return


async def _listed(everybody: bool) -> tuple[list[Row], list[str]]:
    """The agents, oldest first, and the names that may not be started. Without a kernel there are none."""
    try:
        async with session(start=False) as (client, _):
            found = await client.call(ListAgents(all=everybody), deadline=_TO_LOOK)
    except EHOSTUNREACH:
        return [], []
    rows: list[Row] = found["agents"]
    for row in rows:
        if "command" in row:
            row["command"] = [native(word) for word in row["command"]]
            row["project"] = row["project"] and native(row["project"])
    return sorted(rows, key=lambda one: one["number"]), found["quarantined"]


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
    """What every table shows. One that is starting or has ended has no process to tell of."""
    known = "memory" in row
    return (
        row["name"],
        "quarantined" if row["quarantined"] else row["state"],
        row.get("level") or row["isolation"] or "-",
        row["limits"] if known else "-",
        str(row.get("pid") or "-"),
        age(row["age"]) if known else "-",
        human_size(row["memory"]) if known else "-",
    )


def _command(row: Row) -> str:
    return " ".join(row.get("command", (row.get("detail") or "-",)))


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

    request = lambda name: Tell(agent=name, signal=AgentSignal.SIGKILL)  # noqa: E731
    done, code = _each(names, every, "kill", request, say_so, as_json)
    return errors.EXIT_FAILED if any(one["survivors"] for one in done) else code


@click.command()
@_many
def pause(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """Hold agents still: none of their processes runs until agentctl resume.

    Returns when that is true. The clock of --timeout stops as well; a paused agent can be killed.
    """
    said = lambda name, done: f"paused  {name}" + ("" if done["was"] else " (it was)")  # noqa: E731
    return _each(names, every, "pause", lambda name: Hold(agent=name), said, as_json)[1]


@click.command()
@_many
def resume(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """Let paused agents go on."""
    said = lambda name, done: f"resumed  {name}" + ("" if done["was"] else " (it ran)")  # noqa: E731
    return _each(names, every, "resume", lambda name: Hold(agent=name, hold=False), said, as_json)[1]


@click.command()
@click.argument("name")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the release.")
@output_option
def release(name: str, reason: str, as_json: bool) -> None:
    """End the quarantine of agent NAME: it may be started again. It is not; what it held stays revoked."""
    ask(Release(agent=name, reason=reason))
    if as_json:
        print_json({"released": name})
    else:
        click.echo(f"released  {plain(name)}")


@click.command()
@click.argument("name")
@click.argument("signal", metavar="SIGNAL")
@output_option
def signal(name: str, signal: str, as_json: bool) -> int:
    """Send agent NAME a signal, by name or number; nothing that it masks holds you off.

    \b
      agentctl signal digest-3f2a SIGUSR1
    """
    number = _number(signal)
    request = lambda name: Tell(agent=name, signal=number)  # noqa: E731
    said = lambda name, done: f"sent  {AgentSignal(number).name} to {name}"  # noqa: E731
    return _each([name], False, "signal", request, said, as_json)[1]


def _number(text: str) -> int:
    wanted = text.upper().removeprefix("SIG")
    for one in AgentSignal:
        if wanted in (one.name.removeprefix("SIG"), str(one.value)):
            return one.value
    names = ", ".join(f"{one.name} ({one.value})" for one in AgentSignal)
    raise EINVAL("signal.unknown", f"there is no signal {text!r}", hint=f"one of {names}")


def _each(
    names: Iterable[str],
    every: bool,
    what: str,
    request: Callable[[str], Body],
    say_so: Callable[[str, Row], str],
    as_json: bool,
) -> tuple[list[Row], int]:
    """Act on all of them at once. One that fails keeps nobody else from it; its error is told and gives the code."""
    wanted = list(dict.fromkeys(names))
    if bool(wanted) == every:
        raise click.UsageError(f"name agents, or give --all: agentctl {what} NAME")
    done: list[Row] = []
    code = 0
    for name, result in asyncio.run(tell(wanted, every, request)):
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


async def tell(
    names: Sequence[str], every: bool, request: Callable[[str], Body]
) -> list[tuple[str, Row | AgentOSError]]:
    """What became of it, for each. Without a kernel nobody runs."""
    try:
        async with session(start=False) as (client, _):
            if every:
                found = await client.call(ListAgents(), deadline=_TO_LOOK)
                names = [row["name"] for row in found["agents"]]

            async def one(name: str) -> tuple[str, Row | AgentOSError]:
                try:
                    return name, await client.call(request(name), deadline=_TO_ACT)
                except AgentOSError as error:
                    return name, error

            return list(await asyncio.gather(*map(one, names)))
    except EHOSTUNREACH:
        return [(name, _nobody(name)) for name in names]


def _nobody(name: str) -> ESRCH:
    hint = f"agentctl diff {name} shows what it changed, if it has ended"
    return ESRCH("agent.unknown", f"there is no running agent {name!r}: no kernel is running", hint=hint)


@click.command()
@click.argument("name")
@output_option
def wait(name: str, as_json: bool) -> int:
    """Wait for agent NAME to end, and end with its code.

    128+n: signal n of the host ended it; 137 also if it was killed.
    """

    async def ask() -> Row:
        async with session() as (client, _):
            return await client.call(Await(agent=name))

    try:
        found = asyncio.run(ask())
    except KeyboardInterrupt:
        return errors.EXIT_INTERRUPTED
    if as_json:
        print_json(found)
    else:
        killed = found["state"] == "completed" and found["status"] == -1  # on request; nobody would call it completed
        how = found["reason"] if killed else f"{found['state']}  {found['reason'] or ''}".rstrip()
        click.echo(plain(f"{found['agent']}  {how}"))
    status = found["status"]
    return status if status >= 0 else 137 if status == -1 else 128 - status


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on until it ends, or Ctrl-C.")
@click.option("-n", "last", type=click.IntRange(min=0), metavar="LINES", help="Only the last lines.")
def logs(name: str, follow: bool, last: int | None) -> None:
    """Show what agent NAME wrote, while it runs or afterwards."""

    async def read() -> None:
        async with session() as (client, _):
            tamer = Tamer() if sys.stdout.isatty() else None
            stream = client.stream(Logs(agent=name, follow=follow, last=last))
            async for data in stream:
                _write(tamer.feed(data) if tamer else data)
            await stream.result()

    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # leaving a view is no failure
        asyncio.run(read())


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
