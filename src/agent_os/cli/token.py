"""`agentctl token`: who may come in at the doors besides the person at this machine, and as what.

In: a name, a role, a length of time. Out: the token, once, on stdout alone so that it can go into a file; names, roles
and ages after that.
"""

import re
import time
from typing import Any

import click

from agent_os.abi.doors import Role, Tokens
from agent_os.abi.errors import EINVAL
from agent_os.cli.asking import ask, confirm
from agent_os.cli.changes import say
from agent_os.cli.output import age, output_option, plain, print_json
from agent_os.cli.screen import listed, watched

_HEADINGS = ("NAME", "ROLE", "AGE", "EXPIRES", "LAST", "CONNECTIONS")
_TIME = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@click.group()
def token() -> None:
    """Tokens for the gateway and for AGENT_OS_TOKEN_FILE: a viewer looks, an auditor reads all, an operator acts.

    \b
      agentctl token add wall --role viewer --ttl 30d
      agentctl token add anna --role operator > anna.token
    """


@token.command()
@click.argument("name")
@click.option("--role", type=click.Choice(["viewer", "auditor", "operator"]), default="viewer", show_default=True)
@click.option("--ttl", metavar="30d", help="How long it is good. Default: until it is removed.")
@output_option(names=("name",))
def add(name: str, role: Role, ttl: str | None, as_json: bool) -> None:
    """Make a token. It is printed this once, and nobody can ask for it again."""
    made = ask(Tokens(do="add", name=name, role=role, ttl_s=_seconds(ttl) if ttl else None))
    if as_json:
        (row,) = [one for one in made["tokens"] if one["name"] == name]
        print_json({**row, "token": made["token"]})
        return
    click.echo(made["token"])
    until = f"for {ttl}" if ttl else f"until agentctl token rm {name}"
    say(f"token {plain(name)}: {role}, {until}; keep it, it is not shown again")


@token.command()
@output_option(names=("tokens.name",))
@watched
def ls(as_json: bool) -> None:
    """List tokens: their roles, ages and when each was last used; never a token."""
    found = ask(Tokens())["tokens"]
    if as_json:
        print_json({"tokens": found})
    elif found:
        click.echo(listed([_row(one, time.time_ns()) for one in found], _HEADINGS, ("CONNECTIONS", "AGE")))
    else:
        say("no tokens   agentctl token add NAME makes one")


@token.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option(names=("name",))
def rm(name: str, yes: bool, as_json: bool) -> None:
    """Remove a token, and close what is connected by it."""
    known = any(one["name"] == name for one in ask(Tokens())["tokens"])
    if known and not yes:
        lost = f"whoever has the token {name} would be shut out"
        confirm(f"Shut out whoever has the token {plain(name)}?", lost, f"agentctl token rm {name} --yes")
    ask(Tokens(do="remove", name=name))
    if as_json:
        print_json({"name": name})
    else:
        click.echo(f"removed  {plain(name)}")


def _row(one: dict[str, Any], now: int) -> tuple[object, ...]:
    ends, last = one["expires_ns"], one["last_ns"]
    left = "never" if ends is None else "expired" if ends <= now else f"in {age((ends - now) / 1e9)}"
    used = "never" if last is None else age((now - last) / 1e9)
    return one["name"], one["role"], age((now - one["created_ns"]) / 1e9), left, used, one["connections"]


def _seconds(text: str) -> float:
    found = _TIME.fullmatch(text)
    if found is None or not int(found[1]):
        raise EINVAL("token.ttl", f"{text!r} is no length of time", hint="30s, 10m, 2h or 30d")
    return float(int(found[1]) * _SECONDS[found[2]])
