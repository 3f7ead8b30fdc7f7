"""`agentctl tree`: who supervises whom, with the state of each. The rows are those of `ps`."""

from collections.abc import Sequence

import click

from agent_os.abi.errors import EHOSTUNREACH, ESRCH
from agent_os.cli.changes import say
from agent_os.cli.members import SPARE, Row, cells, coloured, in_tree, is_shown, members, now, restarts
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, print_json, shortened
from agent_os.cli.screen import listed, watched
from agent_os.client.start import session
from agent_os.client.wire import at_once

_NONE = "no kernel is running: agentctl up starts one, agentctl apply -f DIR declares agents"


@click.command()
@click.argument("name", required=False, type=AGENT)
@click.option("--all", "everybody", is_flag=True, help="Also those that are stopped or have completed.")
@output_option(names=("agents.name",))
@watched
def tree(name: str | None, everybody: bool, as_json: bool) -> None:
    """Show who supervises whom: all agents, or NAME and those below it.

    RESTARTS is how many of its restarts in a row an agent has used; it comes back to 0 by running on.
    """
    rows = at_once(_rows(everybody))
    if not rows:
        say(_NONE)
    found = list(in_tree(rows, _top(rows, name))) if rows else []
    if as_json:
        print_json({"agents": [row for _, row in found]})
    elif found:
        click.echo(drawn(found))


def drawn(found: Sequence[tuple[str, Row]]) -> str:
    headings = ("NAME", "ROLE", "STATE", "ISO", "AGE", "MEMORY", "RESTARTS", "NOW")
    rows = [(f"{lead}{row['name']}", *cells(row), restarts(row), shortened(now(row))) for lead, row in found]
    lines = listed(rows, headings, SPARE).splitlines()
    return "\n".join([lines[0], *map(coloured, lines[1:], (row["state"] for _, row in found))])


def _top(rows: Sequence[Row], name: str | None) -> str:
    if name is None:
        return rows[0]["id"]
    found = next((row["id"] for row in rows if name in (row["id"], row["name"])), None)
    if found is None:
        hint = "agentctl tree --all lists everybody"
        raise ESRCH("agent.unknown", f"there is no agent {name!r} to look at", hint=hint)
    return found


async def _rows(everybody: bool) -> list[Row]:
    try:
        async with session(start=False) as (client, _):
            rows = await members(client, ended=everybody)
    except EHOSTUNREACH:
        return []
    # A supervisor that is over is drawn as long as somebody below it is.
    kept = {row["id"] for row in rows if everybody or is_shown(row)}
    above = {row["id"]: row["parent"] for row in rows}
    for one in list(kept):
        while (one := above.get(one) or "") and one not in kept:
            kept.add(one)
    return [row for row in rows if row["id"] in kept]
