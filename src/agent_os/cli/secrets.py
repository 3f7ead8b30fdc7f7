"""`agentctl secrets`: keys and tokens that agents use and never see.

In: names and bindings as words, values on stdin alone. Out: names, bindings, ages and uses; no part of a value, ever.
"""

import sys
from collections.abc import Sequence
from typing import Any

import click

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import Secrets
from agent_os.cli.asking import ask, confirm
from agent_os.cli.changes import say
from agent_os.cli.output import age, output_option, plain, print_json
from agent_os.cli.screen import listed, watched
from agent_os.client.wire import at_once

_HEADINGS = ("NAME", "HOSTS", "HEADER", "AGENTS", "USES", "LAST", "AGE", "VERSION")
_NO_VALUE = (
    "a value on the command line would stay in your shell's history and be seen by everybody's ps; "
    "it is read from stdin: agentctl secrets set NAME < FILE"
)


@click.group()
def secrets() -> None:
    """Keep secrets, bind them to hosts, and let agents use them without seeing them.

    \b
      agentctl secrets set openai < key.txt
      agentctl secrets bind openai --host api.openai.com
      agentctl run --secret openai -- python my_agent.py
    """


@secrets.command("set")
@click.argument("name")
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
@output_option(names=("name",))
def set_(name: str, rest: Sequence[str], as_json: bool) -> None:
    """Keep a new secret. Its value is read from stdin, without the line break at its end."""
    _told(_give(Secrets(do="set", name=name), rest), "set", as_json)


@secrets.command()
@click.argument("name")
@click.argument("rest", nargs=-1, type=click.UNPROCESSED)
@output_option(names=("name",))
def rotate(name: str, rest: Sequence[str], as_json: bool) -> None:
    """Give a secret a new value, from stdin. New requests have it; the old one is masked for another day."""
    _told(_give(Secrets(do="rotate", name=name), rest), "rotated", as_json)


@secrets.command()
@click.argument("name")
@click.option("--host", "hosts", multiple=True, metavar="HOST[:PORT]", help="Where it may be sent. Repeatable.")
@click.option("--header", default="", metavar="NAME", help="In which header. Default: authorization, as Bearer.")
@click.option("--field", default="", metavar="NAME", help="In which field of a JSON or form body instead.")
@click.option("--template", default="", metavar="TEXT", help="How it is written there, with {} for the value.")
@click.option("--method", "methods", multiple=True, metavar="METHOD", help="Default: GET, HEAD and POST. Repeatable.")
@click.option(
    "--agent", "agents", multiple=True, metavar="NAME", help="Only these; 'build-*' is a beginning. Repeatable."
)
@click.option("--none", "unbind", is_flag=True, help="Take all its bindings away.")
@output_option(names=("name",))
def bind(
    name: str,
    hosts: Sequence[str],
    header: str,
    field: str,
    template: str,
    methods: Sequence[str],
    agents: Sequence[str],
    unbind: bool,
    as_json: bool,
) -> None:
    """Say where a secret may be sent. Without a binding it is of no use to anybody."""
    if unbind and (hosts or header or field or template or methods or agents):
        raise click.UsageError("--none stands alone")
    if unbind:
        _told(ask(Secrets(do="unbind", name=name)), "unbound", as_json)
        return
    place = Secrets(do="bind", name=name, hosts=list(hosts), header=header, field=field, template=template)
    place.methods, place.agents = list(methods), list(agents)
    _told(ask(place), "bound", as_json)


@secrets.command()
@output_option(names=("secrets.name",))
@watched
def ls(as_json: bool) -> None:
    """List secrets: where each may go, how often it was used, when last; never a value."""
    found = ask(Secrets(do="list"))["secrets"]
    if as_json:
        print_json({"secrets": found})
    elif found:
        click.echo(listed([row for one in found for row in _rows(one)], _HEADINGS, ("VERSION", "AGE")))
    else:
        say("no secrets   agentctl secrets set NAME keeps one")


@secrets.command(hidden=True)
@click.argument("name")
def get(name: str) -> None:
    """There is no such thing."""
    hint = f"agentctl secrets rotate {name} gives it a new value"
    raise EINVAL("secret.read", "a value never comes out again, not even to you", hint=hint)


@secrets.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option(names=("name",))
def rm(name: str, yes: bool, as_json: bool) -> None:
    """Remove a secret, its bindings and all its versions."""
    known = any(one["name"] == name for one in ask(Secrets(do="list"))["secrets"])
    if known and not yes:
        lost = f"{name} would be gone with all its versions and bindings"
        confirm(f"Remove {plain(name)} with all its versions and bindings?", lost, f"agentctl secrets rm {name} --yes")
    ask(Secrets(do="remove", name=name))
    if as_json:
        print_json({"name": name})
    else:
        click.echo(f"removed  {plain(name)}")


def _rows(one: dict[str, Any]) -> list[tuple[object, ...]]:
    last = "never" if one["last_s"] is None else age(one["last_s"])
    own = (one["uses"], last, age(one["age_s"]), one["version"])
    if not one["bindings"]:
        return [(one["name"], "-", "-", "-", *own)]
    return [
        (one["name"], ",".join(each["hosts"]), _place(each), ",".join(each["agents"]), *own) for each in one["bindings"]
    ]


def _place(binding: dict[str, Any]) -> str:
    return binding["header"] if "header" in binding else f"field {binding['field']}"


def _told(one: dict[str, Any], what: str, as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    hosts = ", ".join(host for each in one["bindings"] for host in each["hosts"])
    click.echo(plain(f"{what}  {one['name']}  version {one['version']}  {hosts or 'bound to no host'}"))
    if not hosts:
        say(f"next  agentctl secrets bind {plain(one['name'])} --host api.example.com")


def _give(request: Secrets, rest: Sequence[str]) -> Any:
    """Send a value, in a chunk beside the call."""
    if rest:
        raise click.UsageError(_NO_VALUE)
    return at_once(_send(request, _value(request.do, request.name)))


def _value(verb: str, name: str) -> bytes:
    if sys.stdin.isatty():
        asked = f"Value of {plain(name)}"
        value = str(click.prompt(asked, default="", show_default=False, hide_input=True, err=True)).encode()
    else:
        value = sys.stdin.buffer.read().removesuffix(b"\n").removesuffix(b"\r")
    if not value:
        where = "nothing was typed" if sys.stdin.isatty() else "standard input was empty"
        hint = f"agentctl secrets {verb} {name} < FILE"
        raise EINVAL("secret.empty", f"{where}, so there is no value for {name}", hint=hint)
    return value


async def _send(request: Secrets, value: bytes) -> Any:
    from agent_os.client.start import session

    async with session() as (client, _):
        stream = client.stream(request)
        for at in range(0, len(value), 64 << 10):
            await stream.send(value[at : at + (64 << 10)])
        stream.end()
        return await stream.result()
