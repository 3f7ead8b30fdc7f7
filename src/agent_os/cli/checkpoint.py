"""`agentctl checkpoint`, `replay`, `resolve`: keep a moment of an agent, run it against its record, and say what became
of something whose outcome nobody knows."""

import json
from typing import Any

import click

from agent_os.abi.syscalls import CheckpointOf, Resolve
from agent_os.abi.syscalls import Replay as Rehearse
from agent_os.cli.asking import ask
from agent_os.cli.changes import human_size, say
from agent_os.cli.errors import EXIT_FAILED
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, paint, plain, print_json
from agent_os.client.values import jsonable


@click.command()
@click.argument("name", type=AGENT)
@click.option("--as", "label", default="", metavar="LABEL", help="What to call it. Default: k-1, k-2, …")
@output_option(names=("checkpoint",))
def checkpoint(name: str, label: str, as_json: bool) -> None:
    """Keep the present state of an agent. One with on_checkpoint is replayed from there from then on."""
    made = ask(CheckpointOf(agent=name, name=label))
    if as_json:
        print_json(made)
        return
    what = "with its own state" if made["state"] else "files and workspace; it gave no state of its own"
    click.echo(f"{plain(made['checkpoint'])} {plain(made['agent'])} at #{made['at']}, {human_size(made['size'])}")
    say(what)


@click.command()
@click.argument("name", type=AGENT)
@click.option("--at", type=click.IntRange(1), metavar="SEQ", help="Only up to this entry.")
@output_option
def replay(name: str, at: int | None, as_json: bool) -> int:
    """Run an agent's program against its record, with nothing it asks for happening, and compare.

    The agent itself is not touched. Ends with 1 at the first call that differs.
    """
    told: dict[str, Any] = ask(Rehearse(agent=name, at=at))
    if as_json:
        print_json(jsonable(told))
    elif told["match"]:
        same = f"; state equals checkpoint {plain(told['checkpoint'])}" if told["checkpoint"] else ""
        click.echo(f"replayed {told['calls']:,} calls from #{told['from']}; all results match{same}")
    else:
        difference = told["difference"]
        click.echo(paint(f"DIFFERS  {plain(difference['reason'])}", "red"))
        for side in ("recorded", "called"):
            if difference.get(side):
                click.echo(plain(f"{side:<8}  {difference[side]}  {difference.get(f'{side}_body', '')}".rstrip()))
        if difference["hint"]:
            say(f"try: {difference['hint']}")
    return 0 if told["match"] else EXIT_FAILED


@click.command()
@click.argument("name", type=AGENT)
@click.argument("seq", type=click.IntRange(1))
@click.option("--done", "verdict", flag_value="done", help="It happened; the agent goes on with --result.")
@click.option("--not-done", "verdict", flag_value="not_done", help="It did not happen: do it now.")
@click.option("--fail", "verdict", flag_value="fail", help="Tell the agent that it failed.")
@click.option("--result", metavar="JSON", help="With --done: what it gave.")
@output_option
def resolve(name: str, seq: int, verdict: str | None, result: str | None, as_json: bool) -> None:
    """Say what became of an effect that began before a crash and whose outcome is unknown.

    agentctl inspect NAME lists them. The agent waits until then.
    """
    if verdict not in ("done", "not_done", "fail"):
        raise click.UsageError("say what happened: --done, --not-done or --fail")
    if result is not None and verdict != "done":
        raise click.UsageError("--result belongs to --done")
    try:
        value = None if result is None else json.loads(result)
    except ValueError as problem:
        raise click.UsageError(f"--result is no JSON: {problem}") from None
    ask(Resolve(agent=name, seq=seq, verdict=verdict, result=value))
    if as_json:
        print_json({"agent": name, "seq": seq, "verdict": verdict})
    else:
        click.echo(f"resolved  {plain(name)} #{seq}: {verdict.replace('_', ' ')}")
