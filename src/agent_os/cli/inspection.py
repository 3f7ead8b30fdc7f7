"""`agentctl inspect`: everything that the kernel knows of one agent. What the agent itself chose is shown harmless."""

from typing import Any

import click

from agent_os.abi.syscalls import Inspect
from agent_os.cli.asking import ask
from agent_os.cli.changes import human_size
from agent_os.cli.entries import deed, jsonable
from agent_os.cli.output import age, output_option, plain, print_json, table


@click.command()
@click.argument("name")
@output_option
def inspect(name: str, as_json: bool) -> None:
    """Show everything that is known of one agent: state, limits, capabilities, checkpoints, what waits for you."""
    facts: dict[str, Any] = ask(Inspect(agent=name))
    if as_json:
        print_json(jsonable(facts))
        return
    click.echo(table(_rows(facts)))
    _list("capabilities", [(f"c-{one['handle']}", one["capability"], one["origin"]) for one in facts["capabilities"]])
    _list("checkpoints", [(one["name"], "with state" if one["state"] else "") for one in facts["checkpoints"]])
    _list("unknown", [(f"#{one['seq']}", deed(one)) for one in facts["parked"]])
    if facts["quarantined"]:
        click.echo(f"nobody of its name is started until: agentctl release {plain(name)}")
    if facts["parked"]:
        click.echo(f"it waits for you: agentctl resolve {plain(name)} SEQ --done, --not-done or --fail")


def _rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    detail = f" ({facts['detail']})" if facts.get("detail") else ""
    state = "quarantined" if facts["quarantined"] else facts["state"]
    rows = [("name", facts["name"]), ("id", facts["id"]), ("kind", facts["kind"])]
    rows += [("state", f"{state}{detail}"), ("isolation", facts["isolation"] or "-")]
    rows += [("incarnation", str(facts["incarnation"])), ("parent", facts["parent"] or "-")]
    if "age" in facts:
        rows += [("process", f"{facts['pid']}, {facts['processes']} in all"), ("age", age(facts["age"]))]
        rows += [("memory", human_size(facts["memory"])), ("limits", facts["limits"])]
        rows += [("command", " ".join(map(str, facts["command"]))), ("project", str(facts["project"] or "-"))]
    return [*rows, ("entries", f"{facts['entries']:,}")]


def _list(title: str, rows: list[tuple[str, ...]]) -> None:
    if rows:
        click.echo(title)
        click.echo("\n".join(f"  {line}" for line in table(rows).splitlines()))
