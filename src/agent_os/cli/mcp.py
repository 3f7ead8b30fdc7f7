"""`agentctl mcp`: servers of the Model Context Protocol, whose tools agents call as mcp.NAME.TOOL.

In: a command, which runs as a guest, or an address. Out: tables of servers and tools, or objects. What a server says of
its tools is a stranger's word and is made harmless for a terminal; a person approves of exactly what was shown.
"""

import os
from collections.abc import Sequence
from typing import Any

import click

from agent_os.abi.syscalls import Mcp
from agent_os.cli.asking import ask, confirm
from agent_os.cli.changes import say
from agent_os.cli.mcp_clients import clients, register, serve, token, unregister
from agent_os.cli.output import output_option, plain, print_json, shortened, table
from agent_os.cli.screen import show as show_list
from agent_os.cli.screen import watched
from agent_os.cli.surroundings import environment, words
from agent_os.client.config import setting
from agent_os.client.values import jsonable

Row = dict[str, Any]


@click.group()
def mcp() -> None:
    """Servers whose tools agents call as mcp.NAME.TOOL; and programs outside that call our tools."""


@mcp.command("add")
@click.argument("name", metavar="NAME")
@click.option("--url", default="", help="A server elsewhere; without it, a command follows.")
@click.option(
    "--cwd", default="", metavar="DIR", help="A folder that it sees and works in. What it writes there is lost."
)
@click.option(
    "--mount", "mounts", multiple=True, metavar="[rw:]SRC[:DST]", help="Show it a path, read-only unless rw:."
)
@click.option("--net", multiple=True, metavar="HOST[:PORT]", help="A host that it may reach. Repeatable.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    metavar="NAME[=HOST]",
    help="A bound secret, which it never sees: at http://127.0.0.1:3128/_api/NAME; with --url, brought to the server.",
)
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or pass yours on. Repeatable.")
@click.option("--limit", multiple=True, metavar="NAME=VALUE", help="Bound it, as of agentctl run. Repeatable.")
@click.option("--connect", default=30.0, metavar="SECONDS", help="That it may take to begin. Default 30.")
@click.option("--timeout", default=60.0, metavar="SECONDS", help="That a call may take. Default 60.")
@click.argument("argv", nargs=-1, metavar="[-- CMD [ARG]…]", type=click.UNPROCESSED)
@output_option(names=("servers.name",))
def add(
    name: str,
    url: str,
    cwd: str,
    mounts: Sequence[str],
    net: Sequence[str],
    secrets: Sequence[str],
    env: Sequence[str],
    limit: Sequence[str],
    connect: float,
    timeout: float,
    argv: Sequence[str],
    as_json: bool,
) -> None:
    """Start a server and approve of the tools that it has now.

    A command runs as a guest of its own, called mcp-NAME: it sees /usr, its own program and what you show it, and
    reaches the network only where --net allows.

    \b
      agentctl mcp add files --mount rw:notes:/notes -- mcp-server-filesystem /notes
      agentctl mcp add mine --cwd . -- python server.py
      agentctl mcp add tracker --url https://mcp.example.com/mcp --secret tracker
    """
    request = Mcp(do="add", name=name, connect_s=connect, call_s=timeout)
    if url:
        if argv or cwd or mounts or net or env or limit or len(secrets) > 1:
            raise click.UsageError("--url takes at most one --secret; everything else is for a command")
        request.url, request.secret = url, "".join(secrets)
    else:
        request.order = _order(argv, cwd, mounts, net, secrets, env, limit)
    _told(ask(request), as_json)


def _order(
    argv: Sequence[str],
    cwd: str,
    mounts: Sequence[str],
    net: Sequence[str],
    secrets: Sequence[str],
    env: Sequence[str],
    limit: Sequence[str],
) -> Row:
    if not argv:
        raise click.UsageError("a command is missing: agentctl mcp add NAME -- CMD ARG…, or --url https://…")
    return {
        "argv": words(argv),
        "cwd": words([os.path.abspath(cwd or os.getcwd())])[0],
        "environment": environment(env),
        "workspace": words([os.path.abspath(cwd)])[0] if cwd else "tmpfs",
        "mounts": words(mounts),
        "net": list(net),
        "secrets": list(secrets),
        "env": words(env),
        "limit": list(limit),
        "min_isolation": setting("min_isolation", project=True).value,
    }


@mcp.command("ls")
@output_option(names=("servers.name",))
@watched
def ls(as_json: bool) -> None:
    """List the servers and how they are."""
    said = ask(Mcp())
    if as_json:
        print_json(jsonable(said))
        return
    rows = [
        (one["name"], one["state"], len(one["tools"]), shortened(one["where"]), shortened(one["problem"]))
        for one in said["servers"]
    ]
    headings = ("SERVER", "STATE", "TOOLS", "WHERE", "PROBLEM")
    show_list(rows, headings, ("WHERE",), none="no server   agentctl mcp add NAME -- CMD")


@mcp.command("test")
@click.argument("name", metavar="NAME")
@output_option(names=("servers.name",))
def test(name: str, as_json: bool) -> None:
    """Ask a server for its tools, and hold them against those that were approved."""
    _told(ask(Mcp(do="test", name=name)), as_json)


@mcp.command("approve")
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option(names=("servers.name",))
def approve(name: str, yes: bool, as_json: bool) -> None:
    """Show what a server has changed, and approve of exactly that."""
    said = ask(Mcp(do="test", name=name))
    (one,) = said["servers"]
    if one["held"] or one["new"]:
        if not as_json:
            _told(said, as_json)
        if not yes:
            changed = f"{len(one['held'])} changed and {len(one['new'])} new tools of {name}"
            confirm(f"Approve {changed}?", f"{changed} wait for you", f"agentctl mcp approve {name} --yes")
        said = ask(Mcp(do="approve", name=name, listing=one["listing"]))
    _told(said, as_json)


@mcp.command("rm")
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option(names=("name",))
def remove(name: str, yes: bool, as_json: bool) -> None:
    """End a server and forget it, with its tools."""
    if not yes and any(one["name"] == name for one in ask(Mcp(do="list"))["servers"]):
        lost = f"the server {name} would end, and what you approved of its tools be forgotten"
        confirm(f"End {plain(name)} and forget its tools?", lost, f"agentctl mcp rm {name} --yes")
    ask(Mcp(do="remove", name=name))
    if as_json:
        print_json({"name": name})
    else:
        click.echo(f"removed  {plain(name)}")


def _told(said: Row, as_json: bool) -> None:
    """One server: its tools, and then what waits for somebody."""
    if as_json:
        print_json(jsonable(said))
        return
    (one,) = said["servers"]
    name, held = one["name"], one["held"]
    aliases = [tool.removeprefix(f"mcp.{name}.") for tool in one["tools"]]
    rows = [(alias, "held" if alias in held else "approved") for alias in aliases]
    rows += [(alias, "new") for alias in one["new"]]
    cells = [(f"mcp.{name}.{alias}", state, shortened(one["says"].get(alias, "-"), 70)) for alias, state in rows]
    click.echo(table(cells, ("TOOL", "STATE", "WHAT IT SAYS OF ITSELF")) if cells else f"{plain(name)} has no tool")
    for alias, why in one["left_out"].items():
        say(plain(f"left out  {alias}: {why}"))
    for alias, why in held.items():
        say(plain(f"held  {alias}: {why}"))
        if alias in one["says"]:
            say(plain(f"      it says now: {one['says'][alias]}"))
    if held or one["new"]:
        say(plain(f"next  agentctl mcp approve {name}"))


for command in (register, clients, token, unregister, serve):
    mcp.add_command(command)
