"""`agentctl status`: how everything is, on one screen.

In: what the kernel tells of itself, its agents, their money and its record. Out: a line a fact, each with what to do
where something waits for a person; or one object. Everything is asked over one connection, nothing is tried.
"""

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from agent_os.abi.doors import Metrics
from agent_os.abi.syscalls import Approvals, Budgets, Cost, Head, Models, Status
from agent_os.abi.text import native
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.budget import shown
from agent_os.cli.members import ROOT, is_shown, members
from agent_os.cli.output import age, output_option, paint, plain, print_json, when_idle, width
from agent_os.cli.rules import alarm
from agent_os.client import place
from agent_os.client.wire import at_once

if TYPE_CHECKING:
    from agent_os.client.wire import Client

Facts = dict[str, Any]
Line = tuple[str, str, str]  # how it is, what it is of, and the text
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_UNSIGNED_S = 60.0  # a head is signed every second in which something was recorded
_NEARLY = 0.9  # of a limit
_MICRO = 1_000_000


@click.command()
@output_option
def status(as_json: bool) -> None:
    """Show how everything is: kernel, isolation, agents, approvals, money, violations, record, models, rules.

    The first word of a line says how it is: ok, warn or fail.
    """
    facts = at_once(_look())
    if as_json:
        print_json(facts)
        return
    for how, name, text in lines(facts, time.time()):
        click.echo(f"{paint(how.ljust(5), _COLOURS[how])} {name}{' ' * (10 - width(name))}  {plain(text)}")
    alarm(facts["policy"])


async def _look() -> Facts:
    from agent_os.client.wire import connect

    async with connect() as client:
        return await gathered(client)


async def gathered(client: "Client") -> Facts:
    """What the kernel tells of itself, and beside it what others would have to be asked about one by one."""
    facts = await client.call(Status(), deadline=TO_LOOK)
    rows = [row for row in await members(client) if row["id"] != ROOT and is_shown(row)]
    measured = await client.call(Metrics(), deadline=TO_LOOK)
    approvals = await client.call(Approvals(), deadline=TO_LOOK)
    spending = await _spending(client)
    models = _models(await client.call(Models(do="list"), deadline=TO_LOOK))
    # Last: this look is on the record, too. Asked before, the head of an idle kernel would always be behind it.
    head = await client.call(Head(), deadline=TO_LOOK)
    return {
        **facts,
        "home": native(facts["home"]),
        "socket": str(place.control_socket()),
        "isolation": {
            **facts["isolation"],
            "agents": _counted(row.get("level") or row.get("isolation") for row in rows),
        },
        "states": _counted(row["state"] for row in rows),
        "approvals": len(approvals["approvals"]),
        "spending": spending,
        "violations": {
            one["labels"]["rule"]: one["value"] for one in measured["counters"] if one["name"] == "violations_total"
        },
        "entries": max(facts["entries"], head["size"] if head else 0),
        "head": head and {"size": head["size"], "signed_ns": head["wall_ns"]},
        "models": models,
    }


async def _spending(client: "Client") -> Facts:
    """Money, in dollars: what all have spent, what they may, and whoever has spent nearly all of what is theirs."""
    total = (await client.call(Cost(by=["agent"]), deadline=TO_LOOK))["total"]
    accounts = (await client.call(Budgets(), deadline=TO_LOOK))["accounts"]
    limit = None
    nearly: list[str] = []
    for account in accounts:
        for use in account["uses"]:
            if account["account"] == "operator" and use["resource"] == "cost":
                limit = use["limit"]
            if use["limit"] is not None and use["spent"] + use["held"] >= _NEARLY * use["limit"]:
                nearly.append(f"{account['account']} {use['resource']}")
    cost = total.get("cost", 0)
    return {
        "cost_usd": cost / _MICRO,
        "limit_usd": None if limit is None else limit / _MICRO,
        "tokens": total.get("tokens", 0),
        "nearly": nearly,
    }


def _models(found: Facts) -> Facts:
    providers = found["providers"]
    return {
        "ready": [one["name"] for one in providers if not one["missing"]],
        "local": [one["name"] for one in providers if _is_local(one["base"])],
        "without_key": [one["name"] for one in providers if one["missing"]],
        "waiting": len(found["waiting"]),
    }


def _is_local(base: str) -> bool:
    return urlsplit(base).hostname in ("127.0.0.1", "::1", "localhost")


def _counted(words: Iterator[Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in words:
        if word:
            counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))


def lines(facts: Facts, now: float) -> Iterator[Line]:
    """One a fact; more only where something is wrong."""
    ends = f"stops {when_idle(facts['idle_exit'])}" if facts["auto"] else "stays until agentctl down"
    halting = "  it is stopping" if facts["halting"] else ""
    up = f"{facts['version']}  pid {facts['pid']}  up {age(facts['seconds'])}  {ends}{halting}"
    yield ("warn" if facts["halting"] else "ok"), "kernel", up
    yield "ok", "socket", facts["socket"]
    yield "ok", "home", facts["home"]
    yield _isolation(facts["isolation"])
    yield from _agents(facts)
    waiting = facts["approvals"]
    said = f"{waiting} wait{'s' * (waiting == 1)} for you   agentctl approvals" if waiting else "none waits"
    yield ("warn" if waiting else "ok"), "approvals", said
    yield _money(facts["spending"])
    yield _violations(facts["violations"])
    yield _journal(facts)
    yield _head(facts["head"], facts["entries"], now)
    gateway = facts["gateway"]
    yield (
        "ok",
        "dashboard",
        f"{gateway['url']}   agentctl ui lets you in" if gateway else "none   agentctl up starts one",
    )
    yield "ok", "models", _model_words(facts["models"])
    policy = facts["policy"]
    yield ("fail" if policy["alarm"] else "warn" if policy.get("shadow") else "ok"), "policy", rules_of(policy)


def _isolation(found: Facts) -> Line:
    level, minimum, agents = found["found"], found["minimum"], found["agents"]
    here = f"{level} on this host" if level else "not tried yet: agentctl doctor"
    below = level is not None and level < minimum
    have = f"  agents: {_numbers(agents)}" if agents else ""
    fix = "   agentctl doctor says why" if below else ""
    return ("fail" if below else "ok"), "isolation", f"{here}, minimum {minimum}{have}{fix}"


def _agents(facts: Facts) -> Iterator[Line]:
    states = facts["states"]
    bad = [state for state in ("failed", "quarantined", "backoff", "blocked") if state in states]
    declared = f"  ({facts['declared']} declared)" if facts["declared"] else ""
    yield ("warn" if bad else "ok"), "agents", f"{_numbers(states) or 'none'}{declared}"
    if facts["quarantined"]:
        names = ", ".join(facts["quarantined"])
        yield "warn", "quarantine", f"{names}   agentctl release NAME lets one be started again"
    for problem in facts["left_out"]:
        yield "warn", "left out", problem


def _money(found: Facts) -> Line:
    spent = shown("cost", round(found["cost_usd"] * _MICRO))
    limit = found["limit_usd"]
    if limit is None:
        top = "no cap for all   agentctl budget set operator cost=5usd"
    else:
        part = f"{100 * found['cost_usd'] / limit:.0f}%" if limit else "100%"
        top = f"of {shown('cost', round(limit * _MICRO))}, {part}"
    near = f"   nearly all: {', '.join(found['nearly'])}" if found["nearly"] else ""
    return ("warn" if near else "ok"), "spent", f"{spent} {top}{near}" if limit is not None else f"{spent}; {top}{near}"


def _violations(found: Mapping[str, int]) -> Line:
    if not found:
        return "ok", "violations", "none since the kernel began"
    words = ", ".join(f"{rule} {count:,}×" for rule, count in sorted(found.items(), key=lambda one: -one[1]))
    return (
        "warn",
        "violations",
        f"{sum(found.values()):,} since the kernel began: {words}   agentctl events --type decision",
    )


def _journal(facts: Facts) -> Line:
    well = facts["journal"] == "ok"
    return ("ok" if well else "fail"), "journal", f"{facts['journal']}  {facts['entries']:,} entries"


def _head(head: Facts | None, entries: int, now: float) -> Line:
    if head is None:
        return "warn", "head", "nothing is signed yet"
    old = now - head["signed_ns"] / 1e9
    late = entries > head["size"] and old > _UNSIGNED_S
    fix = f"   without a signature: {entries - head['size']:,}" if late else ""
    return ("warn" if late else "ok"), "head", f"{head['size']:,} entries signed {age(old)} ago{fix}"


def model_names(found: Facts) -> str:
    """Which providers can be called, and which want a key."""
    return _model_words(_models(found))


def _model_words(found: Facts) -> str:
    local = found["local"]
    ready = ", ".join(f"{name} (local)" if name in local else name for name in found["ready"]) or "none"
    missing = f"; no key for {', '.join(found['without_key'])}" if found["without_key"] else ""
    waiting = found["waiting"]
    calls = f"; {waiting} call{'s' * (waiting != 1)} wait{'s' * (waiting == 1)}" if waiting else ""
    return f"{ready}{missing}{calls}"


def rules_of(policy: Facts) -> str:
    trying = policy.get("shadow", ())
    mode = f"shadow for what the projects of {', '.join(map(plain, trying))} say" if trying else policy["mode"]
    if not policy["files"]:
        return f"no rules: what agents hold decides, {mode}"
    count = sum(file["rules"] for file in policy["files"])
    files = len(policy["files"])
    return f"{count} rule{'s' * (count != 1)} in {files} file{'s' * (files != 1)}, {mode}"


def _numbers(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts.items())
