"""`agentctl policy show`, `apply`, `rollback`: the rules in force, and others in their place.

In: a file, or an agent's name. Out: what holds, with file and line, or every problem of what was to hold. A running
kernel puts new rules in force itself; where none runs, they are checked the same way and lie ready for the next.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from agent_os.abi.errors import EHOSTUNREACH, EINVAL, ENOENT
from agent_os.abi.syscalls import ApplyRules, Inspect, ListAgents, Rules
from agent_os.cli.changes import say
from agent_os.cli.errors import EXIT_FAILED, exit_code
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, paint, plain, print_json, table
from agent_os.cli.screen import watched
from agent_os.client import place
from agent_os.client.start import session
from agent_os.client.wire import at_once

COLOURS = {"allow": "green", "ask": "yellow", "forbid": "red"}
_PIECE = 64 << 10
_HASH = 16  # characters of a digest that people are shown
Facts = dict[str, Any]


@click.command()
@click.argument("agent", required=False, type=AGENT)
@output_option(names=("rules.rule",))
@watched
def show(agent: str | None, as_json: bool) -> int:
    """Show the rules in force: all of them, or those about AGENT with what its project adds."""
    try:
        facts = at_once(_in_force(agent))
    except EHOSTUNREACH:
        say("no kernel is running: these are the rules that it would load")
        facts = _of_files(agent)
    if as_json:
        print_json(facts)
    else:
        show_files(facts["files"])
        show_rules(facts["rules"])
        show_labels(facts["labels"])
        click.echo(
            f"{counted(len(facts['rules']), facts['labels'])}{_version(facts)}; digest {facts['digest'][:_HASH]}…"
        )
        alarm(facts)
    return EXIT_FAILED if facts.get("alarm") else 0


async def _in_force(agent: str | None) -> Facts:
    found: dict[str, list[Facts]] = {"rules": [], "labels": []}
    async with session(start=False) as (client, _):
        stream = client.stream(Rules(agent=agent))
        async for what, batch in stream:
            found[what] += batch
        return {**await stream.result(), **found}


def _of_files(agent: str | None) -> Facts:
    from agent_os import rulebook

    found = rulebook.opened([path for path in rulebook.places(place.home(), None)])
    described = rulebook.described(found, {agent: ""} if agent else {}, None)
    rules, labels = described["agents"][agent or "*"], described["labels"]
    return {**rulebook.about(found), "rules": rules, "labels": labels, "alarm": ""}


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), required=False)
@click.option("--dry-run", is_flag=True, help="Say what would be in force and change nothing.")
@output_option
def apply(file: Path | None, dry_run: bool, as_json: bool) -> int:
    """Put FILE (or - for standard input) in the place of the operator's rules, if all of it can be understood. Without
    FILE: have the kernel read its files again, now."""
    if dry_run and file is None:
        raise click.UsageError("--dry-run needs a FILE to try")
    return _changed(file, None if file is None else _read(file), back=False, dry_run=dry_run, as_json=as_json)


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would be in force and change nothing.")
@output_option
def rollback(dry_run: bool, as_json: bool) -> int:
    """Go back to the operator's rules before the last apply. Twice is as if nothing had been."""
    return _changed(None, None, back=True, dry_run=dry_run, as_json=as_json)


def _read(file: Path) -> bytes:
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ENOENT("policy.file", f"cannot read {file}: {error.strerror}") from None
    if not data:
        raise EINVAL("policy.empty", f"{file} is empty", hint="a policy begins with: version = 1")
    return data


def _changed(file: Path | None, data: bytes | None, *, back: bool, dry_run: bool, as_json: bool) -> int:
    from agent_os import rulebook

    try:
        try:
            facts = _tried(data) if dry_run else at_once(_send(data, back))
        except EHOSTUNREACH:
            if data is None and not back:
                raise
            facts = {**_lay_ready(data), "ready": True}
    except EINVAL as error:
        if error.code != "policy.invalid":
            raise
        problems = [_called(one, file) for one in rulebook.problems(error)]
        return refused(problems, "nothing has changed", as_json=as_json)
    if as_json:
        print_json({**facts, "dry_run": dry_run})
        return 0
    show_files(facts["files"])
    if dry_run:
        click.echo(f"would be in force; digest {facts['digest'][:_HASH]}…")
        return 0
    done = "lies ready for the next kernel" if facts.get("ready") else "in force" if facts["changed"] else "no change"
    click.echo(f"{done}{_version(facts)}; digest {facts['digest'][:_HASH]}…")
    return 0


def _called(problem: Facts, file: Path | None) -> Facts:
    """By the name of the file that was given, not of the place where it would have lain."""
    from agent_os import rulebook

    there = problem["file"]
    if file is None or there == str(rulebook.ORGANISATION):
        return problem
    given = "standard input" if str(file) == "-" else str(file)
    return {**problem, "file": given, "what": problem["what"].replace(f"{there}:", f"{given}:")}


async def _send(data: bytes | None, back: bool) -> Facts:
    async with session(start=False) as (client, _):
        stream = client.stream(ApplyRules(back=back))
        for at in range(0, len(data or b""), _PIECE):
            await stream.send((data or b"")[at : at + _PIECE])
        stream.end()
        return await stream.result()


def _tried(data: bytes | None) -> Facts:
    from agent_os import rulebook

    return rulebook.about(rulebook.would_be(place.home(), data))


def _lay_ready(data: bytes | None) -> Facts:
    from agent_os import rulebook

    home = place.home()
    return rulebook.about(rulebook.roll_back(home) if data is None else rulebook.apply(home, data))


def holdings() -> dict[str, list[str]]:
    """What the agents of a running kernel hold, by name; empty where none runs."""
    try:
        return at_once(_holdings())
    except EHOSTUNREACH:
        return {}


async def _holdings() -> dict[str, list[str]]:
    async with session(start=False) as (client, _):
        names = [one["name"] for one in (await client.call(ListAgents()))["agents"]]
        seen = [await client.call(Inspect(agent=name)) for name in names]
        return {
            name: [held["capability"] for held in one["capabilities"]] for name, one in zip(names, seen, strict=True)
        }


def refused(problems: list[Facts], so: str = "nothing of it would be in force", *, as_json: bool) -> int:
    """Every problem, not only the first, and what follows. They are the result, so they go to stdout."""
    if as_json:
        print_json({"ok": False, "problems": problems})
    else:
        for one in problems:
            click.echo(f"{where(one)}: {plain(one['what'])}")
        say(f"agentctl: {len(problems)} problem{'s' if len(problems) > 1 else ''}: {so}")
    return exit_code(EINVAL("policy.invalid", ""))


def alarm(facts: Mapping[str, Any]) -> None:
    if facts.get("alarm"):
        click.echo(f"{paint('ALARM', 'red')}  the newest policy is not in force: {plain(facts['alarm'])}")


def show_files(files: list[Facts]) -> None:
    for file in files:
        click.echo(f"{plain(file['file'])}  {file['layer']}, default {file['default']}, {file['mode']}")
    if not files:
        click.echo("no policy file")


def show_rules(rules: list[Facts]) -> None:
    rows = [(one["effect"], ", ".join(one["what"]), one["rule"], one["where"]) for one in rules]
    for line in table(rows).splitlines():
        word = line.split(" ", 1)[0]
        click.echo("  " + paint(word, COLOURS[word]) + line[len(word) :])
    if not rows:
        click.echo("  no rule")


def show_labels(labels: list[Facts]) -> None:
    rows = [(one["table"], ", ".join(one["what"]) or "nobody", one["says"], one["where"]) for one in labels]
    for line in table(rows).splitlines():
        click.echo(f"  {line}")


def counted(rules: int, labels: list[Facts]) -> str:
    """`1 rule`, `2 rules and 3 about labels`."""
    return f"{rules} rule{'s' * (rules != 1)}" + (f" and {len(labels)} about labels" if labels else "")


def where(one: Mapping[str, Any]) -> str:
    return plain(f"{one['file']}:{one['line']}" if one["line"] else str(one["file"]))


def _version(facts: Facts) -> str:
    return f", version {facts['version']}" if "version" in facts else ""
