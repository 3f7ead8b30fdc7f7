"""`agentctl up`, `down`, `status`: the kernel itself.

In: flags. Out: one line a fact. `up` stays until Ctrl-C unless it is told to detach, and then takes the kernel down.
"""

import asyncio
import signal
from typing import Any

import click

from agent_os.abi.errors import EHOSTUNREACH
from agent_os.abi.syscalls import Down, Leave, Status
from agent_os.abi.text import native
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.changes import say
from agent_os.cli.output import age, output_option, paint, plain, print_json, table
from agent_os.cli.rules import alarm
from agent_os.client import place
from agent_os.client.start import connected
from agent_os.client.wire import Client, connect

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("-d", "--detach", is_flag=True, help="Leave it running in the background.")
def up(detach: bool) -> int:
    """Start the kernel, or adopt one that a run has started, and keep it until Ctrl-C.

    \b
      agentctl up --detach
    """
    return asyncio.run(_up(detach))


async def _up(detach: bool) -> int:
    from agent_os import daemon

    asked = asyncio.Event()
    if not detach:  # from the beginning: whoever presses Ctrl-C early means it, too
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with connected(stay=True) as (client, new):
        await client.call(Leave(adopt=True), deadline=TO_LOOK)
        facts = await client.call(Status(), deadline=TO_LOOK)
        _line(
            "kernel",
            f"{facts['version']}  pid {facts['pid']}  {place.control_socket()}" + ("" if new else "  (it ran)"),
        )
        _line("home", f"{native(facts['home'])}  {facts['entries']:,} entries in its journal")
        _line("policy", _rules(facts["policy"]))
        _fleet(facts)
        found = await daemon.probe.isolation()
        _line("isolation", found.cause, found.status)
        if found.fix and found.status != "ok":
            say(f"fix   {plain(found.fix)}")
        say("next  agentctl run -- python my_agent.py")
        return 0 if detach else await _until_asked(client, asked)


def _fleet(facts: dict[str, Any]) -> None:
    """Who is declared, and every manifest of the operator's folder that was left out when it booted."""
    if facts["declared"]:
        _line("agents", f"{facts['declared']} declared")
    for problem in facts["left_out"]:
        _line("agents", f"left out: {problem}", "warn")


def _line(name: str, text: str, status: str = "ok") -> None:
    click.echo(f"{paint(status.ljust(5), _COLOURS[status])} {name.ljust(10)}  {plain(text)}")


async def _until_asked(client: Client, asked: asyncio.Event) -> int:
    """Ctrl-C takes it down; so does a terminal that closes. If it ends otherwise, so do we."""
    say("Ctrl-C stops it")
    waiting = [asyncio.create_task(one) for one in (asked.wait(), client.ended())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if asked.is_set():
        await _stop(client, Down())
    else:
        say("the kernel has ended")
    for task in waiting:
        task.cancel()
    return 0


@click.command()
@click.option("--grace", type=click.FloatRange(min=0), default=10.0, metavar="SECONDS", help="Time for agents to end.")
def down(grace: float) -> int:
    """Stop every agent, then the kernel. Returns when both are gone."""

    async def stop() -> None:
        async with connect() as client:
            await _stop(client, Down(grace_s=grace))

    try:
        asyncio.run(stop())
    except EHOSTUNREACH:
        say("no kernel is running")
    return 0


async def _stop(client: Client, request: Down) -> None:
    answer = await client.call(request)
    await client.ended()
    number = answer["agents"] if answer else 0
    say(f"stopped  kernel, process {client.pid}" + (f", and {number} agent{'s' * (number != 1)}" if number else ""))


@click.command()
@output_option
def status(as_json: bool) -> None:
    """Show how the kernel is."""
    facts = asyncio.run(_status())
    if as_json:
        print_json({**facts, "home": native(facts["home"]), "socket": str(place.control_socket())})
        return
    agents = ", ".join(f"{number} {state}" for state, number in sorted(facts["agents"].items())) or "none"
    ends = "ends with its last agent" if facts["auto"] else "stays until agentctl down"
    rows = [
        ("kernel", f"{facts['version']}  pid {facts['pid']}  up {age(facts['seconds'])}  {ends}"),
        ("socket", place.control_socket()),
        ("home", native(facts["home"])),
        ("agents", agents),
        *([("declared", facts["declared"])] if facts["declared"] else []),
        *(("left out", one) for one in facts["left_out"]),
        *([("quarantine", _released(facts["quarantined"]))] if facts["quarantined"] else []),
        ("journal", f"{facts['journal']}  {facts['entries']:,} entries"),
        ("policy", _rules(facts["policy"])),
    ]
    click.echo(table(rows))
    alarm(facts["policy"])


def _released(names: list[str]) -> str:
    return f"{', '.join(names)}   agentctl release NAME lets one be started again"


def _rules(policy: dict[str, Any]) -> str:
    if not policy["files"]:
        return "no rules: what agents hold decides"
    count = sum(file["rules"] for file in policy["files"])
    files = len(policy["files"])
    return f"{count} rule{'s' * (count != 1)} in {files} file{'s' * (files != 1)}, {policy['mode']}"


async def _status() -> dict[str, Any]:
    async with connect() as client:
        return await client.call(Status(), deadline=TO_LOOK)
