"""`agentctl cap`: who holds what, where it came from, and giving and taking it back.

In: names of agents, capabilities as people write them, handles (`c-12`), standing approvals (`q-7`). Out: tables, a
tree, or one object. Whether something was closed or killed by a revocation is said, because it is true by then.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import click

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import Capabilities, Grant, Revoke
from agent_os.cli.asking import ask
from agent_os.cli.changes import say
from agent_os.cli.naming import AGENT
from agent_os.cli.output import age, output_option, plain, print_json, table
from agent_os.cli.screen import listed, watched

_TIME = re.compile(r"([0-9]{1,9})(ms|s|m|h|d)")
_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
Row = dict[str, Any]


@click.group()
def cap() -> None:
    """What agents may do: every capability has a number, and one that it was derived from."""


@cap.command("ls")
@click.argument("agent", required=False, type=AGENT)
@click.option("--all", "everything", is_flag=True, help="Also what every agent holds without asking.")
@output_option(names=("capabilities.handle", "standing.handle"))
@watched
def ls(agent: str | None, everything: bool, as_json: bool) -> None:
    """List what AGENT holds, or everybody; and approvals that stand."""
    found: Row = ask(Capabilities(agent=agent))
    rows = [row for row in found["capabilities"] if everything or row["origin"] != "start"]
    if as_json:
        print_json({**found, "capabilities": rows})
        return
    cells = [
        (row["handle"], row["agent"], row["capability"], _source(row), _left(row), _uses(row), _open(row))
        for row in rows
    ]
    cells += [
        (
            *(one["handle"], one["agent"], one["capability"]),
            f"approved {age(one['age_s'])} ago by {one['by']}",
            "while it lives" if one["scope"] == "session" else "-",
            one["uses"],
            "-",
        )
        for one in found["standing"]
    ]
    if not cells:
        say("nobody holds more than every agent does (--all shows that)")
        return
    click.echo(
        listed(cells, ("HANDLE", "AGENT", "CAPABILITY", "FROM", "TTL", "USES", "OPEN"), ("FROM", "OPEN", "USES"))
    )


@cap.command("tree")
@click.argument("agent", type=AGENT)
@output_option(names=("capabilities.handle",))
@watched
def tree(agent: str, as_json: bool) -> None:
    """Show what AGENT holds with all it was derived from, and what was derived from it."""
    found: Row = ask(Capabilities(agent=agent, tree=True))
    rows = [row for row in found["capabilities"] if row["origin"] != "start"]
    if as_json:
        print_json({"capabilities": rows})
        return
    if not rows:
        say(f"{agent} holds no more than every agent does")
        return
    click.echo(table(list(_branches(rows))))


def _branches(rows: Sequence[Row]) -> Iterator[tuple[str, str, str, str]]:
    below: dict[str | None, list[Row]] = {}
    known = {row["handle"] for row in rows}
    for row in rows:
        below.setdefault(row["parent"] if row["parent"] in known else None, []).append(row)

    def walk(parent: str | None, indent: str) -> Iterator[tuple[str, str, str, str]]:
        here = below.get(parent, [])
        for row in here:
            last = row is here[-1]
            mark = "" if parent is None else f"{indent}{'└' if last else '├'} "
            text = f"{mark}{row['handle']} {row['capability']}"
            yield text, f"{row['from']} → {row['agent']}", f"ttl {_left(row)}", f"uses {_uses(row)}"
            yield from walk(row["handle"], indent if parent is None else f"{indent}{'  ' if last else '│ '}")

    yield from walk(None, "")


@cap.command("grant")
@click.argument("agent", type=AGENT)
@click.argument("capability", metavar="CAPABILITY")
@click.option("--actions", metavar="get,head", help="What it allows, where CAPABILITY does not say so itself.")
@click.option("--ttl", metavar="10m", help="How long it holds. Default: until the agent ends.")
@click.option("--uses", type=click.IntRange(min=1), metavar="N", help="How often it can be used.")
@output_option(names=("handle",))
def grant(agent: str, capability: str, actions: str | None, ttl: str | None, uses: int | None, as_json: bool) -> None:
    """Give AGENT a capability, such as 'http:api.example.com:get' or 'file:/data/**:read'."""
    if actions is not None:
        capability = f"{capability}:{actions}"
    row: Row = ask(Grant(agent=agent, capability=capability, ttl_ms=_ttl(ttl) if ttl else None, uses=uses))
    if as_json:
        print_json(row)
        return
    until = f" for {_left(row)}" if row["left_s"] is not None else ""
    click.echo(f"granted  {row['handle']}  {plain(row['agent'])}: {plain(row['capability'])}{until}")
    say(f"take it back: agentctl cap revoke {row['handle']}")


@cap.command("revoke")
@click.argument("handles", nargs=-1, required=True, metavar="HANDLE...")
@click.option("--future-only", is_flag=True, help="Do not kill a process that has it mounted: only its next life.")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the change.")
@output_option(names=("revoked.",))
def revoke(handles: Sequence[str], future_only: bool, reason: str, as_json: bool) -> None:
    """Take back capabilities (c-12) and standing approvals (q-7), with all that was derived from them.

    What they opened is closed when this returns. A process that has one of them mounted is killed.
    """
    told: Row = ask(Revoke(handles=list(handles), future_only=future_only, reason=reason))
    if as_json:
        print_json(told)
        return
    click.echo(f"revoked  {' '.join(told['revoked'])}" + (f"  ({told['closed']} closed)" if told["closed"] else ""))
    for name in told["killed"]:
        click.echo(f"killed   {plain(name)}, which had it mounted")
    for name in told["mounted"]:
        say(f"{plain(name)} keeps its mount until it ends")


def _ttl(text: str) -> int:
    found = _TIME.fullmatch(text)
    if found is None or not int(found[1]):
        raise EINVAL("cap.ttl", f"{text!r} is no length of time", hint="30s, 10m, 2h or 7d")
    return int(found[1]) * _MS[found[2]]


def _source(row: Row) -> str:
    return f"{row['parent']} of {row['from']}" if row["parent"] else str(row["origin"])


def _left(row: Row) -> str:
    left = row["left_s"]
    return "-" if left is None else "expired" if left <= 0 else age(round(left))


def _uses(row: Row) -> str:
    used, limits = row["used"].get("count"), row["limits"].get("count")
    return "-" if used is None and limits is None else str(used or 0) if limits is None else f"{used or 0}/{limits}"


def _open(row: Row) -> str:
    return "mounted" if row["mounted"] else str(row["open"]) if row["open"] else "-"
