"""`agentctl mcp register`, `clients`, `token`, `unregister`, `serve`: programs outside that call our tools over MCP.

In: a name, and what the program of that name may do and spend. Out: tables, objects, a token, once. `serve`
becomes the server itself, as another process of the operator's, so that nothing of the gateway is imported here.
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from agent_os.abi.doors import Clients
from agent_os.abi.errors import ENOSYS
from agent_os.cli.asking import ask, confirm
from agent_os.cli.changes import say
from agent_os.cli.output import output_option, plain, print_json, shortened
from agent_os.cli.screen import show as show_list
from agent_os.cli.screen import watched
from agent_os.client.values import jsonable

Row = dict[str, Any]


@click.command("register")
@click.argument("name", metavar="NAME")
@click.option("--cap", "caps", multiple=True, metavar="CAPABILITY", help="What it may do: tool:http.fetch:call.")
@click.option("--net", multiple=True, metavar="HOST[:PORT]", help="A host that tools may reach for it. Repeatable.")
@click.option("--budget", "budgets", multiple=True, metavar="LIMIT", help="What it may spend: 0.50usd, calls=1000.")
@click.option("--control", is_flag=True, help="Offer it the tools that control the OS: signal, wait, list.")
@click.option("--project", metavar="DIR", help="With --control: it may start agents of this folder, by agent.spawn.")
@output_option
def register(
    name: str,
    caps: Sequence[str],
    net: Sequence[str],
    budgets: Sequence[str],
    control: bool,
    project: str | None,
    as_json: bool,
) -> None:
    """Let a program outside call our tools over MCP, as an agent of role user.

    \b
      agentctl mcp register claude-code --cap tool:http.fetch:call --net api.github.com --budget calls=1000
      claude mcp add agent-os -- agentctl mcp serve --as claude-code
    """
    from agent_os.cli.budget import parse_limits

    limits = {resource: amount for resource, amount in parse_limits(budgets).items() if amount is not None}
    request = Clients(do="register", name=name, capabilities=list(caps), net=list(net), budget=limits, control=control)
    if project is not None:
        request.project = _project(project)
    (row,) = ask(request)["clients"]
    if as_json:
        print_json(jsonable(row))
        return
    click.echo(f"registered  {plain(name)}, an agent of role user")
    say(plain(f"next  agentctl mcp serve --as {name}; for HTTP, agentctl mcp token {name}"))


def _project(folder: str) -> Row:
    """As of an order of a run in that folder."""
    from agent_os.cli.interpreter import authors_python
    from agent_os.cli.surroundings import environment, words

    cwd, python = words([os.path.abspath(folder), authors_python()])
    return {"cwd": cwd, "environment": environment([]), "python": python}


@click.command("clients")
@output_option(names=("clients.name",))
@watched
def clients(as_json: bool) -> None:
    """List the programs outside that may call our tools."""
    said = ask(Clients())
    if as_json:
        print_json(jsonable(said))
        return
    rows = [
        (
            one["name"],
            one["state"],
            one["connections"],
            "yes" if one["control"] else "-",
            shortened(" ".join(one["capabilities"])),
        )
        for one in said["clients"]
    ]
    headings = ("CLIENT", "STATE", "CONNECTIONS", "CONTROL", "HOLDS")
    show_list(rows, headings, ("HOLDS",), none="no outside client   agentctl mcp register NAME")


@click.command("token")
@click.argument("name", metavar="NAME")
@click.option("--ttl", default=None, metavar="SECONDS", type=float, help="How long it is good; else until removed.")
@output_option
def token(name: str, ttl: float | None, as_json: bool) -> None:
    """Make a token with which a client comes in over HTTP. It is shown once.

    \b
      claude mcp add --transport http agent-os http://127.0.0.1:7700/mcp --header "Authorization: Bearer TOKEN"
    """
    said = ask(Clients(do="token", name=name, ttl_s=ttl))
    if as_json:
        print_json({"name": name, "token": said["token"]})
        return
    click.echo(said["token"])
    say(plain(f"shown this once; take it back: agentctl token rm mcp-{name}"))


@click.command("unregister")
@click.argument("name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def unregister(name: str, yes: bool, as_json: bool) -> None:
    """End a client: its connections and tokens with it, and what it held is gone."""
    if not yes and any(one["name"] == name for one in ask(Clients())["clients"]):
        lost = f"the client {name} would end, with its tokens and all that it holds"
        confirm(
            f"End {plain(name)} with its tokens and all that it holds?", lost, f"agentctl mcp unregister {name} --yes"
        )
    ask(Clients(do="remove", name=name))
    if as_json:
        print_json({"name": name})
    else:
        click.echo(f"unregistered  {plain(name)}")


@click.command("serve")
@click.option("--as", "name", required=True, metavar="NAME", help="The client that acts, as it was registered.")
def serve(name: str) -> None:
    """Serve our tools on standard input and output, as a registered client.

    \b
      claude mcp add agent-os -- agentctl mcp serve --as claude-code
    """
    if importlib.util.find_spec("mcp") is None:
        raise ENOSYS("mcp.extra", "agentctl mcp serve needs mcp", hint="pip install 'agent-os[mcp]'")
    ask(Clients(do="enter", name=name))  # ENOENT: nobody of that name is registered
    # -P: it runs where its client runs, and what lies in that directory must not be taken for a library.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "agent_os.gateway.mcp_stdio", name])
