"""`agentctl apply`, `delete`, `start`, `stop`, `restart`, and `diff -f`: agents that are declared by manifests.

In: files, directories or names. Out: what changes, one line each. Manifests are read here first, so that every problem
of every file is told before a kernel is asked; the kernel reads the same texts again and takes all of them or none.
"""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_os.abi.errors import EHOSTUNREACH, EINVAL, EMSGSIZE, AgentOSError
from agent_os.abi.syscalls import Apply, Body, Declared, Delete, Reach, Restart, Start, Stop
from agent_os.cli.agents import calling, each, many
from agent_os.cli.asking import TO_LOOK, ask, confirm
from agent_os.cli.changes import say, say_started
from agent_os.cli.errors import EXIT_FAILED
from agent_os.cli.members import ROOT, short
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, paint, plain, print_json, shortened, table
from agent_os.client.wire import at_once

if TYPE_CHECKING:
    from agent_os.manifest.fleet import Fleet

_MOST_BYTES = 900 << 10  # of all texts together: they go in one frame
_COLOURS = {"new": "green", "changed": "yellow", "gone": "red"}
_WORDS = {"new": "new", "changed": "changed", "same": "unchanged", "gone": "gone"}

Answer = dict[str, Any]
_paths = click.option(
    "-f",
    "--file",
    "paths",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Manifest, or directory.",
)
_yes = click.option("--yes", is_flag=True, help="Do not ask.")
_dry_run = click.option("--dry-run", is_flag=True, help="Say what would happen and change nothing.")


@click.command()
@_paths
@click.option(
    "--prune", is_flag=True, help="Also delete whoever was declared from the same directories and is not here."
)
@click.option("--wait", is_flag=True, help="Return when each is ready, or cannot be.")
@_dry_run
@_yes
@output_option(names=("agents.id",))
def apply(paths: Sequence[Path], prune: bool, wait: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Declare the agents of manifests, and have the kernel keep them as declared.

    All of them or none: with any problem nothing changes. New ones are started as their dependencies allow; one that
    runs and is changed is restarted. Starts a kernel in the background, if none runs.

    \b
      agentctl apply -f agents/ --dry-run
    """
    files = texts(read_all(paths))
    if prune and not (dry_run or yes):
        gone = [one["id"] for one in _applied(files, prune, True)["agents"] if one["change"] == "gone"]
        _confirm(gone, "agentctl apply --prune --yes, with the same -f")
    answer = _applied(files, prune, dry_run)
    show(answer, as_json, dry_run=dry_run)
    changed = [one["id"] for one in answer["agents"] if one["change"] in ("new", "changed")]
    return at_once(_until_ready(changed), looped=True) if wait and changed and not dry_run else 0


def differences(paths: Sequence[Path], as_json: bool) -> None:
    """What `apply` would change."""
    show(_applied(texts(read_all(paths)), False, True), as_json, dry_run=True)


@click.command()
@click.argument("names", metavar="[NAME...]", nargs=-1, type=AGENT)
@_paths
@_dry_run
@_yes
@output_option(names=("agents.id",))
def delete(names: Sequence[str], paths: Sequence[Path], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Stop declared agents, in order, and forget them: by NAME, or those of manifests.

    Returns when nothing of them is left. What they did stays on the record, and what they changed is kept.
    """
    if bool(names) == bool(paths):
        raise click.UsageError("name agents, or give manifests: agentctl delete NAME, agentctl delete -f PATH")
    wanted = list(names) or list(read_all(paths).read)
    if not (dry_run or yes):
        _confirm(wanted, f"agentctl delete {' '.join(names) or '-f …'} --yes")
    show(ask(Delete(agents=wanted, dry_run=dry_run)), as_json, dry_run=dry_run)


_many = many("Every declared agent.")


@click.command()
@_many
def start(names: Sequence[str], every: bool, as_json: bool) -> int:
    """Start declared agents, and clear their counters.

    Returns when each is ready; ends with 9 if one cannot be.
    """
    return _act("start", names, every, lambda name: Start(agent=name), _started, as_json)


@click.command()
@_many
@click.option("--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="Instead of what its manifest says.")
@click.option("--force", is_flag=True, help="Kill it without asking it first.")
@click.option("--reason", default="", metavar="TEXT", help="Kept on the record.")
def stop(names: Sequence[str], every: bool, grace: float | None, force: bool, reason: str, as_json: bool) -> int:
    """Stop agents and keep them so, until agentctl start.

    Work in hand may be finished, then each is asked to end, then killed. Returns when nothing of them is left.
    """

    def said(name: str, done: Answer) -> str:
        return f"stopped  {name}" + (
            f", {done['seconds']:.1f} s" if done["was"] == "active" else f" (it was {done['was']})"
        )

    def request(name: str) -> Stop:
        return Stop(agent=name, grace_s=grace, force=force, reason=reason)

    return _act("stop", names, every, request, said, as_json)


@click.command()
@_many
@click.option("--grace", type=click.FloatRange(min=0), metavar="SECONDS", help="Instead of what its manifest says.")
@click.option("--reason", default="", metavar="TEXT", help="Kept on the record.")
def restart(names: Sequence[str], every: bool, grace: float | None, reason: str, as_json: bool) -> int:
    """Stop declared agents and start them again, with new processes and cleared counters.

    Returns when each is ready; ends with 9 if one cannot be.
    """

    def request(name: str) -> Restart:
        return Restart(agent=name, grace_s=grace, reason=reason)

    return _act("restart", names, every, request, _restarted, as_json)


def _started(name: str, done: Answer, verb: str = "started") -> str:
    word = verb if done["state"] == "active" else done["state"]
    return f"{word}  {name}, life {done['incarnation']}"


def _restarted(name: str, done: Answer) -> str:
    return _started(name, done, "restarted")


def _act(
    what: str,
    names: Sequence[str],
    every: bool,
    request: Callable[[str], Body],
    said: Callable[[str, Answer], str],
    as_json: bool,
) -> int:
    if bool(names) == every:
        raise click.UsageError(f"name agents, or give --all: agentctl {what} NAME")
    wanted = at_once(_declared()) if every else names
    return each(wanted, False, what, calling(request, within=None), said, as_json)[1]


async def _declared() -> list[str]:
    from agent_os.client.start import session

    async with session(start=False) as (client, _):
        rows = (await client.call(Declared(), deadline=TO_LOOK))["agents"]
    found = [short(row["id"]) for row in rows if row["id"] != ROOT]
    if not found:
        raise EINVAL("fleet.empty", "no agent is declared", hint="agentctl apply -f DIR")
    return found


# Manifests, to the kernel and back.


def read_all(paths: Sequence[Path]) -> "Fleet":
    """All of them, or every problem: one a line, and the first as the error."""
    from agent_os.manifest.fleet import read_fleet
    from agent_os.manifest.problems import ManifestError

    if not paths:
        raise click.UsageError("which manifests? -f FILE.agent.toml, or -f DIRECTORY")
    fleet = read_fleet(paths, known=at_once(_known()))
    for one in sorted(fleet.warnings):
        say(f"odd  {plain(str(one))}")
    try:
        fleet.settle()
    except ManifestError as error:
        for one in error.problems[1:]:
            say(plain(str(one)))
        raise
    return fleet


async def _known() -> list[str]:
    """Ids that are declared already: a manifest may name them. Nobody starts a kernel for a file with a mistake."""
    from agent_os.client.wire import connect

    try:
        async with connect() as client:
            return [row["id"] for row in (await client.call(Declared(), deadline=TO_LOOK))["agents"]]
    except EHOSTUNREACH:
        return []


def texts(fleet: "Fleet") -> dict[str, str]:
    from agent_os.manifest.checks import Found

    paths = [one.located(Found(("name",), "")).file for one in fleet.read.values()]
    files = {_named(path): Path(path).read_text(encoding="utf-8-sig") for path in paths}
    size = sum(len(path) + len(text.encode()) for path, text in files.items())
    if size > _MOST_BYTES:
        reason = f"these manifests have {size:,} bytes together, and one apply takes {_MOST_BYTES:,}"
        raise EMSGSIZE("fleet.size", reason, hint="apply one directory after another")
    return files


def _named(path: str) -> str:
    """Where it is. Names go to the kernel, and into its record, as text."""
    found = os.path.abspath(path)
    if not found.isprintable():
        raise EINVAL("manifest.path", f"{plain(found)}: this path is no plain text", hint="rename the directory")
    return found


def _applied(files: dict[str, str], prune: bool, dry_run: bool) -> Answer:
    return at_once(_apply(Apply(files=files, prune=prune, dry_run=dry_run)))


async def _apply(request: Apply) -> Answer:
    from agent_os.client.start import session

    async with session(same=not request.dry_run) as (client, new):
        answer = await client.call(request)
        if new and not request.dry_run:
            say_started(client.pid)
        return answer


def show(answer: Answer, as_json: bool, *, dry_run: bool) -> None:
    """One line an agent that changes, its keys below it, and a count."""
    if as_json:
        print_json({"dry_run": dry_run, **answer})
        return
    for text in answer.get("warnings", ()):
        say(f"odd  {plain(text)}")
    changing = [one for one in answer["agents"] if one["change"] != "same"]
    for one in changing:
        word = paint(_WORDS[one["change"]].ljust(7), _COLOURS[one["change"]])
        click.echo(f"{word}  {plain(short(one['id']))}")
        if one["change"] == "changed":
            rows = [(f"  {key}", _value(before), "→", _value(after)) for key, before, after in one["keys"]]
            click.echo(table(rows))
    say(f"{'would be' if dry_run else 'now'}  {_counted(answer['agents'])}")
    if any(one["change"] in ("new", "changed") for one in changing) and not dry_run:
        say("next  agentctl tree   agentctl ps --watch")


def _counted(agents: Sequence[Answer]) -> str:
    counts = {change: sum(one["change"] == change for one in agents) for change in _WORDS}
    return ", ".join(f"{number} {_WORDS[change]}" for change, number in counts.items() if number) or "nothing declared"


def _value(value: Any) -> str:
    return "absent" if value is None else shortened(json.dumps(value, ensure_ascii=False, default=str), 48)


def _confirm(agents: Sequence[str], hint: str) -> None:
    if not agents:
        return
    names = ", ".join(plain(short(one)) for one in agents)
    confirm(f"Stop and forget {names}?", f"this stops and forgets {names}", hint)


async def _until_ready(agents: Sequence[str]) -> int:
    """Ends with 1 if one of them will not be. Whoever waits for a person or for its time is not waited for."""
    from agent_os.client.start import session

    async with session(start=False) as (client, _):
        rows = (await client.call(Declared(agents=list(agents)), deadline=TO_LOOK))["agents"]
        agents = [row["id"] for row in rows if row["activation"] == "always"]
        waiting = (client.call(Reach(agent=one, state="ready")) for one in agents)
        import asyncio

        answers = await asyncio.gather(*waiting, return_exceptions=True)
    code = 0
    for agent, answer in zip(agents, answers, strict=True):
        if isinstance(answer, AgentOSError):
            say(plain(answer.reason))
            code = EXIT_FAILED
        elif isinstance(answer, BaseException):
            raise answer
        else:
            say(f"{'ready' if answer['state'] == 'active' else answer['state']}  {plain(short(agent))}")
    return code
