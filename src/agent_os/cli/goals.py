"""`agentctl submit`, `queue`: goals for agents, in whose order they are worked at, and how they ended.

In: a goal as people write it, and who it is for. Out: a line, tables, or one object. Who is picked and when it starts
is the kernel's to say.
"""

import json
import re
import time
from collections.abc import Sequence
from typing import Any

import click

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import LookAtGoal, Prioritize, Queue, Submit, Withdraw
from agent_os.cli.asking import ask
from agent_os.cli.changes import say
from agent_os.cli.members import short
from agent_os.cli.naming import AGENT
from agent_os.cli.output import age, output_option, plain, print_json, shortened, table
from agent_os.cli.screen import listed, watched
from agent_os.client.values import jsonable

PRIORITIES = ("critical", "high", "normal", "low")
_LONGEST = 48  # characters of a cell
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd])")
Row = dict[str, Any]


@click.command()
@click.argument("goal", nargs=-1, required=True)
@click.option(
    "--agent",
    metavar="NAME",
    type=AGENT,
    help="Who is to do it. Else the ready agent whose skills and labels fit best.",
)
@click.option("--priority", type=click.Choice(PRIORITIES), help="How urgent it is; else normal.")
@click.option("--tenant", metavar="NAMESPACE", help="Whose share it counts for; else default.")
@click.option("--within", metavar="TIME", help="It is of no use later: 90s, 10m, 2h, 1d.")
@click.option("--memory", type=int, metavar="MIB", help="What its agent will take; else what that declares.")
@click.option("--input", "inputs", multiple=True, metavar="NAME=VALUE", help="Given beside the goal. JSON, or text.")
@click.option("--budget", "amounts", multiple=True, metavar="RESOURCE=AMOUNT", help="Must be free: cost=0.50usd.")
@click.option("--wait", is_flag=True, help="Until it is over; exit 1 if it was not done.")
@output_option(names=("id",))
def submit(
    goal: Sequence[str],
    agent: str | None,
    priority: str | None,
    tenant: str | None,
    within: str | None,
    memory: int | None,
    inputs: Sequence[str],
    amounts: Sequence[str],
    wait: bool,
    as_json: bool,
) -> None:
    """Submit a GOAL: words that say what is to be done.

    It is kept until it is over, whatever ends meanwhile.
    """
    wanted: Row = {"text": " ".join(goal), "agent": agent, "priority": priority, "tenant": tenant}
    wanted |= {"deadline": time.time() + _seconds(within) if within else None, "memory_mb": memory}
    wanted |= {"inputs": dict(map(_input, inputs)), "budget": _budget(amounts)}
    said: Row = ask(Submit(goal={key: value for key, value in wanted.items() if value not in (None, {})}))
    if not wait:
        print_json(said) if as_json else click.echo(_submitted(said))
        return
    if not as_json:
        say(_submitted(said))
    over: Row = ask(LookAtGoal(goal=said["id"], wait=True))
    print_json(jsonable(over)) if as_json else click.echo(_ended(over))
    if over["state"] != "done":
        raise SystemExit(1)


def _submitted(said: Row) -> str:
    return plain(f"{said['id']}  for {short(said['agent'])} ({said['picked_by']})")


@click.group(invoke_without_command=True)
@click.option("--all", "everything", is_flag=True, help="Also goals that ended lately.")
@output_option(names=("working.id", "waiting.id", "ended.id"))
@watched
@click.pass_context
def queue(ctx: click.Context, everything: bool, as_json: bool) -> None:
    """List goals: those at which agents are, then those that wait, in the order in which they start."""
    if ctx.invoked_subcommand is None:
        found: Row = ask(Queue(all=everything))
        print_json(jsonable(found)) if as_json else _print(found)


@queue.command("show")
@click.argument("goal", metavar="ID")
@output_option(names=("id",))
def show(goal: str, as_json: bool) -> None:
    """Show one goal, with its result once it has one."""
    one: Row = ask(LookAtGoal(goal=goal))
    if as_json:
        print_json(jsonable(one))
        return
    rows = [(name, _short(_text(one[name]), 400)) for name in one if one[name] not in (None, "")]
    click.echo(table(rows))


@queue.command("prioritize")
@click.argument("target", metavar="ID|AGENT")
@click.argument("priority", type=click.Choice(PRIORITIES))
@output_option(names=("goals.id",))
def prioritize(target: str, priority: str, as_json: bool) -> None:
    """Say how urgent a goal is, or all goals of an agent."""
    found: Row = ask(Prioritize(target=target, priority=priority))
    if as_json:
        print_json(jsonable(found))
        return
    for one in found["goals"]:
        click.echo(plain(f"{one['id']}  {one['priority']}  {_short(one['goal'])}"))


@queue.command("withdraw")
@click.argument("goal", metavar="ID")
@click.option("--reason", default="", metavar="TEXT", help="Kept with it.")
@output_option(names=("id",))
def withdraw(goal: str, reason: str, as_json: bool) -> None:
    """Take back a goal that waits. One that is worked at ends with its agent."""
    gone: Row = ask(Withdraw(goal=goal, reason=reason))
    print_json(jsonable(gone)) if as_json else click.echo(_ended(gone))


def _print(found: Row) -> None:
    now = time.time()
    states = {"working": lambda one: "working", "waiting": _waits, "ended": lambda one: one["state"]}
    rows = [_cells(one, state(one), now) for part, state in states.items() for one in found[part]]
    if not rows:
        say('no goal waits: agentctl submit "what is to be done"')
        return
    click.echo(
        listed(rows, ("ID", "AGENT", "PRIORITY", "STATE", "AGE", "DEADLINE", "GOAL"), ("DEADLINE", "AGE", "PRIORITY"))
    )


def _waits(one: Row) -> str:
    return f"{one['position']}. waits for {one['waiting_for']}" if one["waiting_for"] else f"{one['position']}. starts"


def _cells(one: Row, state: str, now: float) -> tuple[str, ...]:
    deadline = "-" if one["deadline"] is None else "passed" if one["deadline"] < now else age(one["deadline"] - now)
    times = (age(now - one["submitted_at"]), deadline)
    return one["id"], short(one["agent"]), one["priority"], state, *times, _short(one["goal"])


def _ended(one: Row) -> str:
    more = one["reason"] or (_text(one["result"]) if one["result"] is not None else "")
    return plain(f"{one['id']}  {one['state']}") + (f"  {_short(more, 400)}" if more else "")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False, default=str)


def _short(text: str, most: int = _LONGEST) -> str:
    return shortened(plain(text), most)


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise EINVAL("goal.deadline", f"--within {text!r} is no time", hint="such as 90s, 10m, 2h, 1d")
    return float(found[1]) * _UNITS[found[2]]


def _input(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise EINVAL("goal.input", f"--input {text!r} has no name", hint="--input NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _budget(amounts: Sequence[str]) -> dict[str, int]:
    if not amounts:
        return {}
    from agent_os.cli.budget import parse_limit

    limits = dict(parse_limit(one) for one in amounts)
    return {resource: amount for resource, amount in limits.items() if amount is not None}
