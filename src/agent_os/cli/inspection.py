"""`agentctl inspect`: everything that the kernel knows of one agent. What the agent itself chose is shown harmless."""

from typing import Any

import click

from agent_os.abi.errors import ESRCH
from agent_os.abi.syscalls import Body, Declared, Inspect
from agent_os.cli.asking import ask
from agent_os.cli.changes import human_size
from agent_os.cli.entries import deed
from agent_os.cli.members import now, restarts, short
from agent_os.cli.naming import AGENT
from agent_os.cli.output import age, output_option, plain, print_json, table
from agent_os.client.values import jsonable

Facts = dict[str, Any]


@click.command()
@click.argument("name", type=AGENT)
@output_option
def inspect(name: str, as_json: bool) -> None:
    """Show everything that is known of one agent: state, limits, capabilities, checkpoints, what waits for you; of a
    declared one also its manifest, as far as it says more than the defaults."""
    found = _declared(name)
    facts = _asked(Inspect(agent=name)) if found else ask(Inspect(agent=name))
    if as_json:
        print_json(jsonable({**(facts or {}), **({"declared": found} if found else {})}))
        return
    click.echo("\n".join(described(name, found, facts)))


def described(name: str, declared: Facts | None, facts: Facts | None) -> list[str]:
    """All of it as lines: what its manifest makes of it, and what its newest life is, as far as there is either."""
    rows = [*(_declaration(declared) if declared else []), *(_rows(facts, bool(declared)) if facts else [])]
    lines = [*table(rows).splitlines(), *(_lists(name, facts) if facts else [])]
    if declared:
        lines += ["manifest", *(f"  {line}".rstrip() for line in _text(declared).splitlines())]
    return lines


def _declared(name: str) -> Facts | None:
    answer = _asked(Declared(agents=[name], manifests=True))
    return answer["agents"][0] if answer else None


def _asked(request: Body) -> Facts | None:
    """The answer; nothing of an agent that is not known there: one has no manifest, another has never run."""
    try:
        return ask(request)
    except ESRCH:
        return None


def _declaration(row: Facts) -> list[tuple[str, str]]:
    seen = {**row, "declared": True}
    ready = "ready" if row["ready"] else "not ready"
    alive = f", {ready}, {row['health']}" if row["state"] == "active" and row["health"] else ""
    why = now(seen) if row["state"] != "active" else "-"
    rows = [("name", short(row["id"])), ("id", row["id"]), ("role", row["role"])]
    rows += [("parent", short(row["parent"])), ("declared", f"{row['state']}{alive}{'' if why == '-' else f': {why}'}")]
    rows += [("wanted", "yes" if row["wanted"] else "no"), ("restarts", f"{restarts(seen)} in a row, {row['policy']}")]
    rows += [("needs", ", ".join(map(short, row["needs"])))] if row["needs"] else []
    return [*rows, ("starts", row["activation"]), ("file", row["file"])]


def _rows(facts: Facts, declared: bool) -> list[tuple[str, str]]:
    detail = f" ({facts['detail']})" if facts.get("detail") else ""
    state = "quarantined" if facts["quarantined"] else facts["state"]
    own = [("name", facts["name"]), ("id", facts["id"]), ("parent", facts["parent"] or "root")]
    rows = [] if declared else own
    rows += [("kind", facts["kind"]), ("state", f"{state}{detail}"), ("isolation", facts["isolation"] or "-")]
    rows += [("incarnation", str(facts["incarnation"]))]
    if "age" in facts:
        rows += [("process", f"{facts['pid']}, {facts['processes']} in all"), ("age", age(facts["age"]))]
        rows += [("memory", human_size(facts["memory"])), ("limits", facts["limits"])]
        rows += [("command", " ".join(map(str, facts["command"]))), ("project", str(facts["project"] or "-"))]
    return [*rows, ("entries", f"{facts['entries']:,}")]


def _lists(name: str, facts: Facts) -> list[str]:
    held = [(f"c-{one['handle']}", one["capability"], one["origin"]) for one in facts["capabilities"]]
    parked = [(f"#{one['seq']}", deed(one)) for one in facts["parked"]]
    ask_for = f"it waits for you: agentctl resolve {plain(name)} SEQ --done, --not-done or --fail"
    return [
        *_list("capabilities", held),
        *_list("checkpoints", [(one["name"], "with state" if one["state"] else "") for one in facts["checkpoints"]]),
        *_list("links", [_bond(one["one"], "-", one["other"]) for one in facts["links"]]),
        *_list("monitors", [_bond(one["watcher"], "watches", one["target"]) for one in facts["monitors"]]),
        *_list("goals", [(one["id"], one["priority"], one["goal"]) for one in facts["goals"]]),
        *_list("unknown", parked),
        *([f"nobody of its name is started until: agentctl release {plain(name)}"] if facts["quarantined"] else []),
        *([ask_for] if parked else []),
    ]


def _bond(one: Facts, word: str, other: Facts) -> tuple[str, ...]:
    return short(one["id"]), word, short(other["id"])


def _list(title: str, rows: list[tuple[str, ...]]) -> list[str]:
    return [title, *(f"  {line}" for line in table(rows).splitlines())] if rows else []


def _text(row: Facts) -> str:
    return plain(row.get("manifest", ""), keep_newlines=True)
