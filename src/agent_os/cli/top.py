"""`agentctl top`: everybody at a glance, live, or with `--once` one picture on stdout.

In: what the kernel tells. Out: a picture or one object, without any library beyond the base; the live view is `board`,
which needs Textual and is imported only for it.
"""

import sys

import click

from agent_os.abi.errors import EHOSTUNREACH, EINVAL, ENOSYS
from agent_os.cli.glance import HEADINGS, ORDERS, Glance, head, line, look, nobody, ordered
from agent_os.cli.members import SPARE, coloured
from agent_os.cli.output import output_option, plain, print_json, shape
from agent_os.cli.screen import fitted, listed
from agent_os.client.start import session
from agent_os.client.wire import at_once

_ORDERS = click.Choice([*ORDERS, "tree"])


@click.command()
@click.option("--once", is_flag=True, help="One picture, then end. Needs no terminal and no Textual.")
@click.option("--sort", "order", type=_ORDERS, default="state", help="What comes first. Default state.")
@click.option("--filter", "words", default="", metavar="WORDS", help="Only agents that have all of these.")
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, metavar="SECONDS", help="Between two looks. Default 2."
)
@output_option(names=("agents.name",))
def top(once: bool, order: str, words: str, every: float, as_json: bool) -> None:
    """Show all agents live, those in trouble first, with what the chosen one does. Any format but table is --once.

    \b
    arrows  choose      t  as a tree      p  pause     q  quit
    s       sort        d  details        c  resume    A  what waits for you
    /       filter      Enter  its trace  K  kill; each of the three asks first
    """
    if as_json:
        seen = at_once(_once())
        print_json({"kernel": seen.facts, "agents": [row for _, row in ordered(seen, order, words)]})
    elif once or shape() == "wide":
        click.echo(picture(at_once(_once()), order, words))
    else:
        _live(order, words, every)


def picture(seen: Glance, order: str, words: str = "") -> str:
    above = fitted(plain("\n".join(head(seen)), keep_newlines=True))
    if seen.facts is None:
        return above
    found = ordered(seen, order, words)
    if not found:
        return f"{above}\n\n{nobody(seen)}"
    drawn = listed([line(lead, row) for lead, row in found], HEADINGS, SPARE).splitlines()
    return "\n".join([above, "", drawn[0], *map(coloured, drawn[1:], (row["state"] for _, row in found))])


async def _once() -> Glance:
    try:
        async with session(start=False) as (client, _):
            return await look(client)
    except EHOSTUNREACH:
        return Glance()


def _live(order: str, words: str, every: float) -> None:
    if not all(one.isatty() for one in (sys.stdin, sys.stdout, sys.stderr)):  # Textual draws on the last
        raise EINVAL("top.terminal", "top needs a terminal to draw on", hint="agentctl top --once")
    try:
        from agent_os.cli.board import Board
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("textual", "rich"):
            raise
        reason = "top needs textual: pip install 'agent-os[tui]'; agentctl top --once does without"
        raise ENOSYS("extra.missing", reason) from None
    board = Board(order, words, every)
    board.run()
    if board.failure:
        raise board.failure
