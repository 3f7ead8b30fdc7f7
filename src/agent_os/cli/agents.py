"""`agentctl ps`, `kill`, `pause`, `resume`, `release`, `signal`, `wait`, `logs`: see the agents, and act on them.

In: names, or `--all`. Out: a table or one object; each verb returns only when what it says is true. What an agent is
called, runs and writes comes from outside and is shown made harmless.
"""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import click

from agent_os.abi.errors import EHOSTUNREACH, EINVAL, ESRCH, ETIMEDOUT, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Await, Body, History, Hold, ListAgents, Logs, Reach, Release, Tell
from agent_os.cli import errors
from agent_os.cli.asking import TO_LOOK, ask
from agent_os.cli.changes import say
from agent_os.cli.members import ROOT, SPARE, Row, cells, is_shown, members, now, restarts, short
from agent_os.cli.output import output_option, plain, print_json, shortened, table
from agent_os.cli.screen import again, listed
from agent_os.cli.tamer import Tamer
from agent_os.client.start import session
from agent_os.client.wire import Client

_EVERY_S = 1.0
_TO_ACT = 60.0  # seconds the kernel has to answer
_NONE = "no agent is running: agentctl run -- CMD starts one. What ended ones changed: agentctl diff NAME"


@click.command()
@click.option("-o", "--output", type=click.Choice(["table", "wide", "json", "name"]), default="table", help="Format.")
@click.option("--json", "as_json", is_flag=True, help="Same as -o json.")
@click.option("--all", "everybody", is_flag=True, help="Also those that are stopped or have ended.")
@click.option("--role", metavar="ROLE", help="Only these: supervisor, service, worker, user, custom(…).")
@click.option("--state", metavar="STATE", help="Only these: running, starting, backoff, blocked, failed …")
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
def ps(output: str, as_json: bool, everybody: bool, role: str | None, state: str | None, watch: bool) -> None:
    """List the agents that run, are to run, or failed to.

    ISO is the isolation level. In the wide format, LIMITS says what enforces the limits: cgroups (v2, v1) or only
    rlimits. An agent without a manifest is not listed when it has ended: agentctl diff NAME shows what it changed.
    """
    show = _SHAPES["json" if as_json else output]

    def draw() -> None:
        rows, quarantined = asyncio.run(_listed(everybody))
        chosen = [row for row in rows if role in (None, row["role"]) and state in (None, row["state"])]
        for_people = show in (_print_table, _print_wide)
        if rows and not chosen and for_people:
            say(f"none of {len(rows)} is like that")
        else:
            show(chosen)
        if quarantined and for_people:
            say(f"in quarantine: {plain(', '.join(quarantined))}   agentctl release NAME")

    again(draw, _EVERY_S, watch=watch)


async def _listed(everybody: bool) -> tuple[list[Row], list[str]]:
    """The agents, oldest first, those that have never run at the end; and the names that may not be started. Without a
    kernel there are none."""
    try:
        async with session(start=False) as (client, _):
            rows = await members(client, ended=everybody)
            quarantined = (await client.call(ListAgents(), deadline=TO_LOOK))["quarantined"]
    except EHOSTUNREACH:
        return [], []
    found = [row for row in rows if row["id"] != ROOT and (everybody or is_shown(row))]
    return sorted(found, key=lambda one: (not one["number"], one["number"] or 0, one["name"])), quarantined


def _print_table(rows: Sequence[Row]) -> None:
    if not rows:
        say(_NONE)
        return
    headings = ("NAME", "ROLE", "STATE", "ISO", "PARENT", "PID", "AGE", "MEMORY", "NOW")
    click.echo(listed([(*_cells(row), shortened(now(row))) for row in rows], headings, SPARE))


def _print_wide(rows: Sequence[Row]) -> None:
    if not rows:
        say(_NONE)
        return
    headings = ("NAME", "ROLE", "STATE", "ISO", "PARENT", "PID", "AGE", "MEMORY", "LIFE", "RESTARTS", "LIMITS")
    more = ("PROCESSES", "KERNEL", "PROJECT", "NOW")
    click.echo(table([(*_cells(row), *_more(row), now(row)) for row in rows], (*headings, *more)))


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
    role, state, level, old, memory = cells(row)
    return (row["name"], role, state, level, short(row["parent"]), str(row.get("pid") or "-"), old, memory)


def _more(row: Row) -> tuple[str, ...]:
    facts = (row.get(key) or "-" for key in ("limits", "processes", "kernel", "project"))
    return (str(row["incarnation"]), restarts(row), *map(str, facts))


def _killed(name: str, done: Row) -> str:
    number, left = done["processes"], done["survivors"]
    processes = f"{number} process{'' if number == 1 else 'es'}"
    rest = f"{left} of them LEFT" if left else "nothing left"
    return f"killed  {name} ({processes}), {done['seconds'] * 1000:.0f} ms; {rest}"


# What acts on a running agent, wherever somebody asks for it: the call, and how its answer is told.
ACTS: dict[str, Callable[[str], Body]] = {
    "kill": lambda name: Tell(agent=name, signal=AgentSignal.SIGKILL),
    "pause": lambda name: Hold(agent=name),
    "resume": lambda name: Hold(agent=name, hold=False),
}
SAID: dict[str, Callable[[str, Row], str]] = {
    "kill": _killed,
    "pause": lambda name, done: f"paused  {name}" + ("" if done["was"] else " (it was)"),
    "resume": lambda name, done: f"resumed  {name}" + ("" if done["was"] else " (it ran)"),
}


def many(everybody: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """NAME… or --all, which means `everybody`, and the format."""
    names = click.argument("names", metavar="NAME...", nargs=-1)
    every = click.option("--all", "every", is_flag=True, help=everybody)
    return lambda command: names(every(output_option(command)))


_many = many("Every running agent.")


@click.command()
@_many
def kill(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """End agents and everything they started.

    Returns when nothing of them is left, and ends with 1 if something is. Their changes are kept: agentctl diff NAME.
    """
    done, code = each(names, every, "kill", ACTS["kill"], SAID["kill"], as_json)
    return errors.EXIT_FAILED if any(one["survivors"] for one in done) else code


@click.command()
@_many
def pause(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """Hold agents still: none of their processes runs until agentctl resume.

    Returns when that is true. The clock of --timeout stops as well; a paused agent can be killed.
    """
    return each(names, every, "pause", ACTS["pause"], SAID["pause"], as_json)[1]


@click.command()
@_many
def resume(names: tuple[str, ...], every: bool, as_json: bool) -> int:
    """Let paused agents go on."""
    return each(names, every, "resume", ACTS["resume"], SAID["resume"], as_json)[1]


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
    return each([name], False, "signal", request, said, as_json)[1]


def _number(text: str) -> int:
    wanted = text.upper().removeprefix("SIG")
    for one in AgentSignal:
        if wanted in (one.name.removeprefix("SIG"), str(one.value)):
            return one.value
    names = ", ".join(f"{one.name} ({one.value})" for one in AgentSignal)
    raise EINVAL("signal.unknown", f"there is no signal {text!r}", hint=f"one of {names}")


def each(
    names: Iterable[str],
    every: bool,
    what: str,
    request: Callable[[str], Body],
    say_so: Callable[[str, Row], str],
    as_json: bool,
    within: float | None = _TO_ACT,
) -> tuple[list[Row], int]:
    """Act on all of them at once. One that fails keeps nobody else from it; its error is told and gives the code."""
    wanted = list(dict.fromkeys(names))
    if bool(wanted) == every:
        raise click.UsageError(f"name agents, or give --all: agentctl {what} NAME")
    done: list[Row] = []
    code = 0
    for name, result in asyncio.run(tell(wanted, every, request, within)):
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
    names: Sequence[str], every: bool, request: Callable[[str], Body], within: float | None = _TO_ACT
) -> list[tuple[str, Row | AgentOSError]]:
    """What became of it, for each. Without a kernel nobody runs."""
    try:
        async with session(start=False) as (client, _):
            if every:
                found = await client.call(ListAgents(), deadline=TO_LOOK)
                names = [row["name"] for row in found["agents"]]

            async def one(name: str) -> tuple[str, Row | AgentOSError]:
                try:
                    return name, await client.call(request(name), deadline=within)
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
@click.option(
    "--for", "state", type=click.Choice(["ready", "running", "over"]), help="Of a declared agent. Default: over."
)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer; exit code 124.")
@output_option
def wait(name: str, state: Literal["ready", "running", "over"] | None, timeout: float | None, as_json: bool) -> int:
    """Wait for agent NAME to end, and end with its code; with --for ready or running, until it is that.

    128+n: signal n of the host ended it; 137 also if it was killed. One that is restarted has not ended. If it will
    never be what is waited for, the code is 9.
    """

    async def ask() -> Row:
        async with session() as (client, _), asyncio.timeout(timeout):
            if state is None:
                return await client.call(Await(agent=name))
            return await reached(client, name, state)

    try:
        found = asyncio.run(ask())
    except KeyboardInterrupt:
        return errors.EXIT_INTERRUPTED
    except TimeoutError:
        raise ETIMEDOUT("wait", f"{name} was not {state or 'over'} within {timeout:g} s", hint="agentctl ps") from None
    if as_json:
        print_json(found)
    else:
        click.echo(plain(f"{found['agent']}  {state if state in ('ready', 'running') else _how(found, state)}"))
    return 0 if state in ("ready", "running") else ended_with(found["status"])


def _how(found: Row, state: str | None) -> str:
    """It ended."""
    why = found["reason"] if state is None else found["why"]
    killed = found["state"] == "completed" and found["status"] == -1  # on request; nobody would call it completed
    return why if killed and why else f"{found['state'].partition('(')[0]}  {why or ''}".rstrip()


async def reached(client: Client, name: str, state: Literal["ready", "running", "over"]) -> Row:
    """How a declared agent is once it is so; of one that is over, with the code of its last life, None without any."""
    found = await client.call(Reach(agent=name, state=state))
    lives = (await client.call(History(agent=name, last=1)))["lives"]
    return {**found, "status": lives[-1]["code"] if lives else None}


def ended_with(status: int | None) -> int:
    """The exit code of a command that stands for an agent."""
    if status is None:
        return errors.EXIT_FAILED
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
