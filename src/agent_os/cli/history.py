"""`agentctl history`: the lives of one agent, how each ended, and what was decided then."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from agent_os.abi.syscalls import History
from agent_os.cli.asking import ask
from agent_os.cli.changes import say
from agent_os.cli.naming import AGENT
from agent_os.cli.output import age, output_option, plain, print_json, table
from agent_os.cli.screen import listed, watched

Life = dict[str, Any]
_HEADINGS = ("LIFE", "ISO", "BEGAN", "READY", "LASTED", "CLASS", "CODE", "DECISION", "REASON")
_SPARE = ("ISO", "READY", "CODE", "BEGAN")  # what a narrow table does without, in this order
_TOLD = ("fail", "block", "quarantine", "escalate")  # decisions that the class alone does not explain


@click.command()
@click.argument("name", type=AGENT)
@click.option("-n", "last", type=click.IntRange(min=1), metavar="LIVES", help="Only the last ones.")
@output_option(names=("lives.incarnation",))
@watched
def history(name: str, last: int | None, as_json: bool) -> None:
    """Show the lives of agent NAME, oldest first.

    CLASS is why a life ended, which decides what follows, together with its manifest; DECISION is what followed.
    """
    found = ask(History(agent=name, last=last))
    if as_json:
        print_json(found)
        return
    if not found["lives"]:
        say(f"{plain(name)} has not been started yet")
        return
    click.echo(listed([_cells(one) for one in found["lives"]], _HEADINGS, _SPARE))


def lives(found: Sequence[Life]) -> str:
    """All columns, however wide."""
    return table([_cells(one) for one in found], _HEADINGS)


def _cells(life: Life) -> tuple[str, ...]:
    ended = life["ended_ns"]
    return (
        str(life["incarnation"]),
        life["level"] or "-",
        _clock(life["began_ns"]),
        _seconds(life["began_ns"], life["ready_ns"]),
        _lasted(life["began_ns"], ended),
        life["class"] or "-",
        "-" if life["code"] is None else str(life["code"]),
        _decision(life),
        life["reason"] or "-",
    )


def _decision(life: Life) -> str:
    if life["ended_ns"] is None:
        return "-"
    act, delay = life["decision"] or "-", life["delay_ms"]
    if delay:
        return f"{act} in {delay / 1000:.1f} s"
    return f"{act}: {life['why']}" if act in _TOLD and life["why"] else act


def _clock(wall_ns: int | None) -> str:
    """Of the day, and the day where that is not today."""
    if wall_ns is None:
        return "-"
    then = datetime.fromtimestamp(wall_ns / 1e9)
    return then.strftime("%H:%M:%S" if then.date() == datetime.now().date() else "%Y-%m-%d %H:%M:%S")


def _seconds(began_ns: int | None, at_ns: int | None) -> str:
    return "-" if began_ns is None or at_ns is None else f"{max(at_ns - began_ns, 0) / 1e9:.2f} s"


def _lasted(began_ns: int | None, ended_ns: int | None) -> str:
    if began_ns is None or ended_ns is None:
        return "-" if began_ns is None else "runs"
    seconds = max(ended_ns - began_ns, 0) / 1e9
    return f"{seconds:.2f} s" if seconds < 60 else age(seconds)
