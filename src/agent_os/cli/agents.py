"""`agentctl ps`, `kill`, `pause`, `resume`, `release`, `signal`, `wait`, `logs`: see the agents, and act on them.

In: names, or `--all`. Out: a table or one object; each verb returns only when what it says is true. What an agent is
called, runs and writes comes from outside and is shown made harmless.
"""

import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Literal

import click

from agent_os.abi.errors import EHOSTUNREACH, EINVAL, ESRCH, ETIMEDOUT, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Await, Body, Budgets, Declared, History, Hold, ListAgents, Logs, Reach, Release, Tell
from agent_os.cli import errors
from agent_os.cli.asking import TO_LOOK, ask
from agent_os.cli.changes import say
from agent_os.cli.members import ROOT, SPARE, STATES, Row, cells, in_tree, is_shown, members, now, restarts, short
from agent_os.cli.naming import AGENT, did_you_mean
from agent_os.cli.output import output_option, plain, print_json, shape, shortened, table
from agent_os.cli.screen import listed, watched
from agent_os.client.start import session
from agent_os.client.wire import Client, at_once

_TO_ACT = 60.0  # seconds the kernel has to answer
_NONE = "no agent is running: agentctl run -- CMD starts one. What ended ones changed: agentctl diff NAME"


@click.command()
@click.option("--all", "everybody", is_flag=True, help="Also those that are stopped or have ended.")
@click.option("-l", "--label", "labels", multiple=True, metavar="KEY=VALUE", help="Only declared so. Repeatable.")
@click.option("--role", metavar="ROLE", help="Only these: supervisor, service, worker, user, custom(…).")
@click.option("--state", type=click.Choice(STATES), metavar="STATE", help=f"Only these: {', '.join(STATES)}.")
@output_option(names=("agents.name",))
@watched
def ps(everybody: bool, labels: Sequence[str], role: str | None, state: str | None, as_json: bool) -> None:
    """List the agents that run, are to run, or failed to.

    ISO is the isolation level. In the wide format, LIMITS says what enforces the limits: cgroups (v2, v1) or only
    rlimits. An agent without a manifest is not listed when it has ended: agentctl diff NAME shows what it changed.
    """
    rows, alike, quarantined = at_once(_listed(everybody, dict(map(_label, labels))))
    chosen = [row for row in rows if row["id"] in alike]
    chosen = [row for row in chosen if role in (None, row["role"]) and state in (None, row["state"])]
    if as_json:
        print_json({"agents": chosen})
        return
    if not chosen:
        say(f"none of {len(rows)} is like that" if rows else _NONE)
    else:
        _print_wide(chosen) if shape() == "wide" else _print_table(chosen)
    if quarantined:
        say(f"in quarantine: {plain(', '.join(quarantined))}   agentctl release NAME")


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.UsageError(f"a label is KEY=VALUE, not {text!r}")
    return key, value


async def _listed(everybody: bool, labels: Row) -> tuple[list[Row], set[str], list[str]]:
    """The agents, oldest first, those that have never run at the end; which of them have the labels; and the names
    that may not be started. Without a kernel there are none."""
    try:
        async with session(start=False) as (client, _):
            rows = await members(client, ended=everybody)
            quarantined = (await client.call(ListAgents(), deadline=TO_LOOK))["quarantined"]
            known = {row["id"] for row in rows}
            if labels:
                alike = (await client.call(Declared(labels=labels), deadline=TO_LOOK))["agents"]
                known = {row["id"] for row in alike}
            _count_spent(rows, (await client.call(Budgets(), deadline=TO_LOOK))["accounts"])
    except EHOSTUNREACH:
        return [], set(), []
    found = [row for row in rows if row["id"] != ROOT and (everybody or is_shown(row))]
    found.sort(key=lambda one: (not one["number"], one["number"] or 0, one["name"]))
    return found, known, quarantined


def _count_spent(rows: Iterable[Row], accounts: Iterable[Row]) -> None:
    """Puts into each row what it has spent, with all below it, and of its limit of money."""
    uses = {one["account"]: {use["resource"]: use for use in one["uses"]} for one in accounts}
    for row in rows:
        own = uses.get(short(row["id"]), {})
        spent = {name: use["spent"] for name, use in own.items() if name in ("cost", "tokens")}
        limit = own.get("cost", {}).get("limit")
        row["spent"] = {"tokens": spent.get("tokens", 0), "cost_usd": spent.get("cost", 0) / 1e6}
        row["limit_usd"] = None if limit is None else limit / 1e6


def _print_table(rows: Sequence[Row]) -> None:
    headings = ("NAME", "ROLE", "STATE", "ISO", "PARENT", "PID", "AGE", "MEMORY", "NOW")
    click.echo(listed([(*_cells(row), shortened(now(row))) for row in rows], headings, SPARE))


def _print_wide(rows: Sequence[Row]) -> None:
    headings = ("NAME", "ROLE", "STATE", "ISO", "PARENT", "PID", "AGE", "MEMORY", "TOKENS", "COST", "BUDGET")
    more = ("LIFE", "RESTARTS", "LIMITS", "PROCESSES", "KERNEL", "PROJECT", "NOW")
    click.echo(table([(*_cells(row), *_more(row), now(row)) for row in rows], (*headings, *more)))


def _cells(row: Row) -> tuple[str, ...]:
    role, state, level, old, memory = cells(row)
    return (row["name"], role, state, level, short(row["parent"]), str(row.get("pid") or "-"), old, memory)


def _more(row: Row) -> tuple[str, ...]:
    facts = (row.get(key) or "-" for key in ("limits", "processes", "kernel", "project"))
    return (*_spent(row), str(row["incarnation"]), restarts(row), *map(str, facts))


def _spent(row: Row) -> tuple[str, str, str]:
    """TOKENS, COST, BUDGET: how much of its money is gone."""
    cost, limit, tokens = row["spent"]["cost_usd"], row["limit_usd"], row["spent"]["tokens"]
    part = "-" if limit is None else f"{100 * cost / limit:.0f}%" if limit else "100%"
    return f"{tokens:,}" if tokens else "-", f"${cost:.2f}" if cost else "-", part


def _killed(name: str, done: Row) -> str:
    number, left = done["processes"], done["survivors"]
    processes = f"{number} process{'' if number == 1 else 'es'}"
    rest = f"{left} of them LEFT" if left else "nothing left"
    if done.get("asked"):  # and it ended by itself
        return f"ended  {name}{_below(done)}, {done['seconds']:.1f} s after it was asked; {rest}"
    return f"killed  {name}{_below(done)} ({processes}), {done['seconds'] * 1000:.0f} ms; {rest}"


def _below(done: Row) -> str:
    number = len(done.get("descendants", ()))
    return f" and {number} descendant{'s' * (number != 1)}" if number else ""


# What acts on a running agent, wherever somebody asks for it: the call, and how its answer is told.
ACTS: dict[str, Callable[..., Body]] = {
    "kill": lambda name, reason="": Tell(agent=name, signal=AgentSignal.SIGKILL, reason=reason),
    "pause": lambda name, reason="": Hold(agent=name, reason=reason),
    "resume": lambda name, reason="": Hold(agent=name, hold=False, reason=reason),
}
SAID: dict[str, Callable[[str, Row], str]] = {
    "kill": _killed,
    "pause": lambda name, done: f"paused  {name}{_below(done)}" + ("" if done["was"] else " (it was)"),
    "resume": lambda name, done: f"resumed  {name}{_below(done)}" + ("" if done["was"] else " (it ran)"),
}
_ACTED = tuple(f"{verb}.name" for verb in ("kill", "pause", "resume", "start", "stop", "restart"))


def many(everybody: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """NAME… or --all, which means `everybody`, and the format."""
    names = click.argument("names", metavar="NAME...", nargs=-1, type=AGENT)
    every = click.option("--all", "every", is_flag=True, help=everybody)
    return lambda command: names(every(output_option(command, names=_ACTED)))


_many = many("Every running agent.")
_tree = click.option("--tree", is_flag=True, help="Everybody below it as well, however far.")
_reason = click.option("--reason", default="", metavar="TEXT", help="Kept on the record, and told to who follows it.")


@click.command()
@_many
@_tree
@click.option("--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="Ask it to end first, and wait so long.")
@_reason
def kill(names: tuple[str, ...], every: bool, tree: bool, grace: float | None, reason: str, as_json: bool) -> int:
    """End agents and everything they started.

    Returns when nothing of them is left, and ends with 1 if something is. Their changes are kept: agentctl diff NAME.
    """

    async def end(client: Client, name: str) -> Row:
        if grace is None:
            return await client.call(ACTS["kill"](name, reason), deadline=_TO_ACT)
        return await _asked_first(client, name, grace, reason)

    done, code = each(names, every, "kill", end, SAID["kill"], as_json, tree=tree)
    return errors.EXIT_FAILED if any(one["survivors"] for one in done) else code


async def _asked_first(client: Client, name: str, grace: float, reason: str) -> Row:
    began = time.monotonic()
    await client.call(Tell(agent=name, signal=AgentSignal.SIGTERM, reason=reason), deadline=_TO_ACT)
    try:
        await client.stream(Await(agent=name)).result(grace)
        return {"processes": 0, "survivors": 0, "seconds": time.monotonic() - began, "asked": True}
    except TimeoutError:
        return await client.call(ACTS["kill"](name, reason), deadline=_TO_ACT)


@click.command()
@_many
@_tree
@_reason
def pause(names: tuple[str, ...], every: bool, tree: bool, reason: str, as_json: bool) -> int:
    """Hold agents still: none of their processes runs until agentctl resume.

    Returns when that is true. The clock of --timeout stops as well; a paused agent can be killed.
    """
    return each(names, every, "pause", _acting("pause", reason), SAID["pause"], as_json, tree=tree)[1]


@click.command()
@_many
@_tree
@_reason
def resume(names: tuple[str, ...], every: bool, tree: bool, reason: str, as_json: bool) -> int:
    """Let paused agents go on."""
    return each(names, every, "resume", _acting("resume", reason), SAID["resume"], as_json, tree=tree)[1]


def _acting(what: str, reason: str) -> "Act":
    return calling(lambda name: ACTS[what](name, reason))


@click.command()
@click.argument("name", type=AGENT)
@click.option("--reason", default="", metavar="TEXT", help="Kept with the release.")
@output_option(names=("released",))
def release(name: str, reason: str, as_json: bool) -> None:
    """End the quarantine of agent NAME: it may be started again. It is not; what it held stays revoked."""
    ask(Release(agent=name, reason=reason))
    if as_json:
        print_json({"released": name})
    else:
        click.echo(f"released  {plain(name)}")


@click.command()
@click.argument("name", type=AGENT)
@click.argument("signal", metavar="SIGNAL")
@_tree
@_reason
@output_option(names=("signal.name",))
def signal(name: str, signal: str, tree: bool, reason: str, as_json: bool) -> int:
    """Send agent NAME a signal, by name or number; nothing that it masks holds you off.

    \b
      agentctl signal digest-3f2a SIGUSR1
    """
    number = _number(signal)
    send = calling(lambda name: Tell(agent=name, signal=number, reason=reason))
    said = lambda name, done: f"sent  {AgentSignal(number).name} to {name}{_below(done)}"  # noqa: E731
    return each([name], False, "signal", send, said, as_json, tree=tree)[1]


def _number(text: str) -> int:
    wanted = text.upper().removeprefix("SIG")
    for one in AgentSignal:
        if wanted in (one.name.removeprefix("SIG"), str(one.value)):
            return one.value
    names = ", ".join(f"{one.name} ({one.value})" for one in AgentSignal)
    near = did_you_mean(text, [one.name for one in AgentSignal])
    raise EINVAL("signal.unknown", f"there is no signal {text!r}{near}", hint=f"one of {names}")


Act = Callable[[Client, str], Awaitable[Row]]


def calling(request: Callable[[str], Body], within: float | None = _TO_ACT) -> Act:
    """An act that is one call."""
    return lambda client, name: client.call(request(name), deadline=within)


def each(
    names: Iterable[str],
    every: bool,
    what: str,
    act: Act,
    say_so: Callable[[str, Row], str],
    as_json: bool,
    *,
    tree: bool = False,
) -> tuple[list[Row], int]:
    """Act on all of them at once. One that fails keeps nobody else from it; its error is told and gives the code."""
    wanted = list(dict.fromkeys(names))
    if bool(wanted) == every:
        raise click.UsageError(f"name agents, or give --all: agentctl {what} NAME")
    done: list[Row] = []
    code = 0
    told = tell(wanted, every, act, tree=tree)
    for name, result in at_once(told, looped=bool(every or tree or wanted[1:])):
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
    names: Sequence[str], every: bool, act: Act, *, tree: bool = False
) -> list[tuple[str, Row | AgentOSError]]:
    """What became of it, for each. Without a kernel nobody runs."""
    try:
        async with session(start=False) as (client, _):
            if every:
                found = await client.call(ListAgents(), deadline=TO_LOOK)
                names = [row["name"] for row in found["agents"]]
            rows = await members(client) if tree else []

            async def one(name: str) -> tuple[str, Row | AgentOSError]:
                try:
                    done = await act(client, name)
                    return name, await _and_below(client, rows, name, act, done) if tree else done
                except AgentOSError as error:
                    return name, error

            if len(names) == 1:
                return [await one(names[0])]
            import asyncio

            return list(await asyncio.gather(*map(one, names)))
    except EHOSTUNREACH:
        return [(name, nobody(name)) for name in names]


async def _and_below(client: Client, rows: Sequence[Row], name: str, act: Act, done: Row) -> Row:
    """The same for everybody below it, who may have gone with it; what is counted, is counted together."""
    top = next((row["id"] for row in rows if name in (row["id"], row["name"])), None)
    below = [row for _, row in in_tree(rows, top)][1:] if top else []
    alive = [row["name"] for row in below if row.get("pid")]
    import asyncio

    for answer in await asyncio.gather(*(act(client, one) for one in alive), return_exceptions=True):
        if isinstance(answer, ESRCH):
            continue
        if isinstance(answer, BaseException):
            raise answer
        for count in ("processes", "survivors", "seconds"):
            if count in done:
                done[count] += answer[count]
    return {**done, "descendants": alive}


def nobody(name: str) -> ESRCH:
    hint = f"agentctl diff {name} shows what it changed, if it has ended"
    return ESRCH("agent.unknown", f"there is no running agent {name!r}: no kernel is running", hint=hint)


@click.command()
@click.argument("name", type=AGENT)
@click.option(
    "--for", "state", type=click.Choice(["ready", "running", "over"]), help="Of a declared agent. Default: over."
)
@click.option("--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer; exit code 124.")
@output_option(names=("agent",))
def wait(name: str, state: Literal["ready", "running", "over"] | None, timeout: float | None, as_json: bool) -> int:
    """Wait for agent NAME to end, and end with its code; with --for ready or running, until it is that.

    128+n: signal n of the host ended it; 137 also if it was killed. One that is restarted has not ended. If it will
    never be what is waited for, the code is 9.
    """

    import asyncio

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
@click.argument("name", type=AGENT)
@click.option("-f", "--follow", is_flag=True, help="Go on until it ends, or Ctrl-C.")
@click.option("-n", "last", type=click.IntRange(min=0), metavar="LINES", help="Only the last lines.")
@click.option("--since", metavar="TIME", help="Only since a moment (2026-01-31T12:00), or so long ago (30m, 12h, 7d).")
def logs(name: str, follow: bool, last: int | None, since: str | None) -> None:
    """Show what agent NAME wrote, while it runs or afterwards."""
    from agent_os.cli.budget import since_ns
    from agent_os.cli.tamer import Tamer

    begin = since_ns(since) if since else 0

    async def read() -> None:
        async with session() as (client, _):
            tamer = Tamer() if sys.stdout.isatty() else None
            stream = client.stream(Logs(agent=name, follow=follow, last=last, since_ns=begin))
            async for data in stream:
                _write(tamer.feed(data) if tamer else data)
            await stream.result()

    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # leaving a view is no failure
        at_once(read())


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]
