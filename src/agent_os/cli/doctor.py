"""`agentctl doctor`: what this machine can isolate, found out by doing it, and what is wrong with the installation.

In: nothing, or leave to mend. Out: a line a check with its cause and the narrow fix. Of these fixes `--fix` does those
that only make a file of ours less open to others, exactly as printed, and never as root.
"""

import asyncio
import os

import click

from agent_os.abi.errors import EACCES, EPERM
from agent_os.cli.changes import say
from agent_os.cli.output import output_option, paint, plain, print_json

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("--fix", is_flag=True, help="Do the fixes that are a chmod of a file of ours, as printed. Not as root.")
@output_option(names=("checks.name",))
def doctor(fix: bool, as_json: bool) -> int:
    """Check what this machine can isolate, by spawning a real agent that tries to get out; and the installation.

    Ends with 1 if something failed or the level is below the minimum.
    """
    if fix and os.geteuid() == 0:
        hint = "agentctl doctor says what to do; or run it as the user whose agents these are"
        raise EPERM("doctor.root", "agentctl doctor --fix changes nothing as root", hint=hint)
    from agent_os import checkup

    minimum = checkup.minimum_level()
    level, checks, mends = asyncio.run(checkup.examine())
    done: list[str] = []
    if fix and mends:
        for one in mends:
            say(f"fix   {plain(str(one))}")
        try:
            again = {check.name: check for check in checkup.mended(mends)}
        except OSError as problem:
            raise EACCES("doctor.fix", f"{problem.filename or 'it'} could not be changed: {problem.strerror}") from None
        checks = [again.get(check.name, check) for check in checks]
        done = [str(one) for one in mends]
    good = level >= minimum and all(check.status != "fail" for check in checks)
    if as_json:
        fixed = {"fixed": done} if fix else {}
        print_json(
            {"level": level, "minimum": minimum, "ok": good, "checks": [vars(check) for check in checks], **fixed}
        )
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
