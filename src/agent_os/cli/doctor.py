"""`agentctl doctor`: what this machine can isolate, found out by doing it."""

import asyncio

import click

from agent_os.cli.output import output_option, paint, plain, print_json

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@output_option
def doctor(as_json: bool) -> int:
    """Check what this machine can isolate, by spawning a real agent that tries to get out.

    Ends with 1 if something failed or the level is below the minimum.
    """
    from agent_os import daemon

    minimum = daemon.minimum_level()
    level, checks = asyncio.run(daemon.examine())
    good = level >= minimum and all(check.status != "fail" for check in checks)
    if as_json:
        print_json({"level": level, "minimum": minimum, "ok": good, "checks": [vars(check) for check in checks]})
        return 0 if good else 1
    wide = max(len(check.name) for check in checks)
    for check in checks:
        click.echo(
            f"{paint(check.status.ljust(5), _COLOURS[check.status])} {check.name.ljust(wide)}  {plain(check.cause)}"
        )
        if check.fix and check.status != "ok":
            click.echo(f"      {' ' * wide}  fix: {plain(check.fix)}")
    click.echo(f"isolation {level}, minimum {minimum}: " + ("ready" if good else "not ready"))
    return 0 if good else 1
