"""`agentctl events`: what happened, in order, to everybody or to one agent.

In: a choice of entries. Out: a line for each, or objects. `-f` goes on as things happen, until Ctrl-C.
"""

from collections.abc import Iterable
from typing import Any

import click

from agent_os.abi.syscalls import Events
from agent_os.cli.asking import listen
from agent_os.cli.calls import calls_of, is_lost
from agent_os.cli.changes import say
from agent_os.cli.entries import Entry, line
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, print_json
from agent_os.client.values import jsonable

_BAR = 16  # characters of the longest
_TRACED = 1000  # entries


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("-n", "last", type=click.IntRange(0), help="The last so many. Default 20.")
@click.option("--type", "kinds", multiple=True, metavar="KIND", help="Only these: result, signal, exit … Repeatable.")
@click.option("--agent", type=AGENT, help="Only what this agent did, or an operator (local:1000), or kernel.")
@click.option("--cursor", type=click.IntRange(0), metavar="SEQ", help="Everything after this entry.")
@click.option("--calls", is_flag=True, help="Only calls, as agentctl policy diff reads them: by default all there are.")
@output_option(names=("entries.seq",))
def events(
    follow: bool,
    last: int | None,
    kinds: tuple[str, ...],
    agent: str | None,
    cursor: int | None,
    calls: bool,
    as_json: bool,
) -> None:
    """Show what happened: every call, refusal, signal, start and end, as the journal has it.

    \b
      agentctl events --calls > calls.jsonl
      agentctl policy diff new.toml --calls calls.jsonl
    """
    if last is None and cursor is None and not calls:
        last = 20
    start = 0 if cursor is None else cursor + 1
    request = Events(agent=agent, start=start, last=last, follow=follow, bodies=True)
    if calls:
        _show_calls(request, kinds)
    else:
        show(request, as_json=as_json, kinds=kinds)


def _show_calls(request: Events, kinds: Iterable[str]) -> None:
    wanted, lost = set(kinds), 0

    def heard(page: list[Entry]) -> None:
        nonlocal lost
        for entry in page:
            if wanted and entry["kind"] not in wanted:
                continue
            for call in calls_of(entry):
                print_json(call)
            lost += is_lost(entry)

    listen(request, heard)
    if lost:
        say(f"{lost:,} calls are left out: what they were about was erased, or is too large to be told")


def show(request: Events, *, as_json: bool, kinds: Iterable[str] = ()) -> None:
    """Entries as lines; as one object, or, where they never end, one object a line."""
    wanted, gathered = set(kinds), list[Any]()

    def heard(page: list[Entry]) -> None:
        for entry in page:
            if wanted and entry["kind"] not in wanted:
                continue
            if not as_json:
                click.echo(line(entry))
            elif request.follow:
                print_json(jsonable(entry))
            else:
                gathered.append(jsonable(entry))

    listen(request, heard)
    if as_json and not request.follow:
        print_json({"entries": gathered})
