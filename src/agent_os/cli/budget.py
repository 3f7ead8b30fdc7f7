"""`agentctl budget`, `cost`: what agents may spend, and what they have spent.

In: names and amounts as people write them (`0.50usd`, `10k`, `20MB`, `unlimited`). Out: tables, one object, or CSV.
Amounts travel as whole numbers, money in millionths of a dollar; programs read `cost_usd`, in dollars.
"""

import csv
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import click

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import Budgets, Cost, Limit
from agent_os.cli.asking import ask
from agent_os.cli.changes import human_size, say
from agent_os.cli.naming import AGENT, did_you_mean
from agent_os.cli.output import output_option, plain, print_json, shape, table
from agent_os.cli.screen import listed, watched

RESOURCES = ("cost", "tokens", "bytes", "count", "calls", "messages", "model_calls")
_MICRO = 1_000_000
_KEYS = ("agent", "model", "day", "hour", "minute")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(i?)(?:b|b/s)?", re.IGNORECASE)
_MONEY = re.compile(r"\$?([0-9]+(?:\.[0-9]+)?)\s*(?:usd)?", re.IGNORECASE)
_LAST_NS = 2**63 - 1  # in the year 2262
_SINCE = re.compile(r"([0-9]+)([mhd])")
Row = dict[str, Any]


def parse_limits(words: Sequence[str]) -> dict[str, int | None]:
    """Each resource once: which of two was meant is not for us to say."""
    limits: dict[str, int | None] = {}
    for resource, amount in map(parse_limit, words):
        if resource in limits:
            raise EINVAL("budget.twice", f"{resource} is there twice", hint="one limit for each resource")
        limits[resource] = amount
    return limits


def parse_limit(text: str) -> tuple[str, int | None]:
    """`cost=0.50usd`, `tokens=10k`, `calls=unlimited`; money alone (`0.50usd`) is the cost."""
    name, equals, amount = text.partition("=")
    if not equals and text in RESOURCES:
        example = "0.50usd" if text == "cost" else "10k"
        raise EINVAL("budget.amount", f"{text!r} needs an amount", hint=f"{text}={example}, or {text}=unlimited")
    if not equals:
        name, amount = "cost", text
    if name not in RESOURCES:
        near = did_you_mean(name, RESOURCES)
        raise EINVAL("budget.resource", f"no budget counts {name!r}{near}", hint=f"there is {', '.join(RESOURCES)}")
    return name, None if amount == "unlimited" else parse_amount(name, amount)


def parse_amount(resource: str, text: str) -> int:
    found = (_MONEY if resource == "cost" else _AMOUNT).fullmatch(text.strip())
    if found is None:
        example = "0.50usd" if resource == "cost" else "10k"
        raise EINVAL("budget.amount", f"{text!r} is no amount of {resource}", hint=f"such as {example}, or unlimited")
    factor = _MICRO if resource == "cost" else (1024 if found[3] else 1000) ** _POWERS[found[2].lower()]
    amount = Decimal(found[1]) * factor
    if amount != int(amount):
        raise EINVAL("budget.amount", f"{text!r} is finer than {resource} is counted")
    return int(amount)


def shown(resource: str, amount: int) -> str:
    if resource == "cost":
        return _dollars(amount)
    return human_size(amount) if resource == "bytes" else f"{amount:,}"


def _dollars(micro: int) -> str:
    """At least cents; more digits only where there are any."""
    text = f"{micro / _MICRO:,.6f}".rstrip("0")
    whole, _, part = text.partition(".")
    return f"${whole}.{part:0<2}"


@click.group(invoke_without_command=True)
@output_option(names=("accounts.account",))
@click.pass_context
def budget(ctx: click.Context, as_json: bool) -> None:
    """What agents may spend. An agent's spending counts for everybody above it, too."""
    if ctx.invoked_subcommand is None:
        _list(None, as_json=as_json)


@budget.command("ls")
@click.argument("name", required=False, type=AGENT)
@output_option(names=("accounts.account",))
@watched
def ls(name: str | None, as_json: bool) -> None:
    """List all budgets, or those that bind NAME: its own, and of all above it."""
    _list(name, as_json=as_json)


@budget.command("set")
@click.argument("name", type=AGENT)
@click.argument("limits", nargs=-1, required=True, metavar="RESOURCE=AMOUNT...")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the change.")
@output_option(names=("account",))
def set_limits(name: str, limits: Sequence[str], reason: str, as_json: bool) -> None:
    """Say how much NAME and all below it may spend in all: cost=0.50usd tokens=10k calls=unlimited.

    NAME `operator` is the account above all agents.
    """
    _change(name, limits, reason, more=False, as_json=as_json)


@budget.command("raise")
@click.argument("name", type=AGENT)
@click.argument("limits", nargs=-1, required=True, metavar="RESOURCE=AMOUNT...")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the change.")
@output_option(names=("account",))
def raise_limits(name: str, limits: Sequence[str], reason: str, as_json: bool) -> None:
    """Let NAME spend so much more than it may now."""
    _change(name, limits, reason, more=True, as_json=as_json)


def _change(name: str, limits: Sequence[str], reason: str, *, more: bool, as_json: bool) -> None:
    wanted = parse_limits(limits)
    account = ask(Limit(agent=name, limits=wanted, more=more, reason=reason))
    if as_json:
        print_json(_in_dollars(account))
    else:
        _print([account])
        for one in account["uses"]:
            if more and one["resource"] == "bytes" and one["limit"] is not None:  # which the table rounds
                say(f"exactly {one['limit']:,} bytes")


def _list(name: str | None, *, as_json: bool) -> None:
    accounts: list[Row] = ask(Budgets(agent=name))["accounts"]
    if as_json:
        print_json({"accounts": list(map(_in_dollars, accounts))})
    else:
        _print(accounts)


def _in_dollars(account: Row) -> Row:
    """An account for programs: amounts as they are counted, but money in dollars, and named so."""
    return {**account, "uses": [_use_in_dollars(one) for one in account["uses"]]}


def _use_in_dollars(one: Row) -> Row:
    if one["resource"] != "cost":
        return one
    amounts = {name: None if one[name] is None else one[name] / _MICRO for name in ("spent", "held", "limit")}
    return {**one, "resource": "cost_usd", **amounts}


def _spent_in_dollars(spent: Mapping[str, int]) -> Row:
    return {
        ("cost_usd" if name == "cost" else name): amount / _MICRO if name == "cost" else amount
        for name, amount in spent.items()
    }


def _print(accounts: Sequence[Row]) -> None:
    rows = [
        (account["account"], account["parent"] or "-", *told)
        for account in accounts
        for told in ([(one["resource"], *_uses(one)) for one in account["uses"]] or [("-",) * 5])
    ]
    if not rows:
        say("nobody has a limit, and nothing was spent: agentctl budget set NAME cost=0.50usd")
        return
    click.echo(listed(rows, ("ACCOUNT", "PARENT", "RESOURCE", "SPENT", "HELD", "LIMIT", "USED"), ("HELD", "PARENT")))


def _uses(one: Row) -> tuple[str, str, str, str]:
    resource, limit, used = one["resource"], one["limit"], one["spent"] + one["held"]
    part = "-" if limit is None else f"{100 * used // limit}%" if limit else "100%"
    top = "unlimited" if limit is None else shown(resource, limit)
    return shown(resource, one["spent"]), shown(resource, one["held"]) if one["held"] else "-", top, part


@click.command()
@click.option("--by", default="agent", metavar="KEYS", help="agent, model, day, hour, minute, or several: agent,day.")
@click.option("--since", metavar="TIME", help="A day (2026-01-31), or so long ago (30m, 12h, 7d).")
@output_option(more=("csv",))
@watched
def cost(by: str, since: str | None, as_json: bool) -> None:
    """Show what was spent, added up from the record."""
    keys = [key.strip() for key in by.split(",")]
    if unknown := [key for key in keys if key not in _KEYS]:
        near = did_you_mean(unknown[0], _KEYS)
        raise click.UsageError(f"--by knows {', '.join(_KEYS)}, not {unknown[0]!r}{near}")
    found: Row = ask(Cost(by=keys, since_ns=since_ns(since) if since else 0))  # pyright: ignore[reportArgumentType]
    rows: list[Row] = found["rows"]
    if as_json:
        rows = [{**row, "spent": _spent_in_dollars(row["spent"])} for row in rows]
        print_json({**found, "rows": rows, "total": _spent_in_dollars(found["total"])})
    elif shape() == "csv":
        _print_csv(keys, rows)
    elif not rows:
        say("nothing was spent")
    else:
        used = [name for name in RESOURCES if name in found["total"]]
        lines = [(*(row[key] for key in keys), *_amounts(used, row["spent"])) for row in rows]
        total = ("total", *("" for _ in keys[1:]), *_amounts(used, found["total"]))
        click.echo(table([*lines, total], [name.upper() for name in (*keys, *used)]))


def _amounts(resources: Sequence[str], spent: Mapping[str, int]) -> list[str]:
    return [shown(name, spent[name]) if name in spent else "-" for name in resources]


def _print_csv(keys: Sequence[str], rows: Sequence[Row]) -> None:
    """Money in dollars, everything else as it is counted. A name cannot pass for a formula of a spreadsheet."""
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow([*keys, "cost_usd", *RESOURCES[1:]])
    for row in rows:
        spent = row["spent"]
        names = [plain(str(row[key])) for key in keys]
        safe = [f"'{name}" if name[:1] in "=+-@" else name for name in names]
        out.writerow([*safe, f"{spent.get('cost', 0) / _MICRO:.6f}", *(spent.get(name, 0) for name in RESOURCES[1:])])


def since_ns(text: str) -> int:
    """A day, or so long ago, as the wall clock counts; what it cannot count is its first or last moment."""
    try:
        if found := _SINCE.fullmatch(text):
            length = {"m": "minutes", "h": "hours", "d": "days"}[found[2]]
            moment = datetime.now(UTC) - timedelta(**{length: int(found[1])})
        else:
            moment = datetime.fromisoformat(text)
            moment = moment if moment.tzinfo else moment.astimezone()
    except (ValueError, OverflowError):  # no such words, or no such day
        raise click.UsageError(f"--since {text!r}: a day (2026-01-31), or so long ago (30m, 12h, 7d)") from None
    return max(0, min(int(moment.timestamp() * 1e9), _LAST_NS))
