"""`agentctl send`, `bus`: messages to agents, topics, and what could not be delivered.

In: an agent or a topic, and what to say: JSON, or text. Out: lines, tables, or objects. What is shown of a message is
what an agent wrote, so it is made harmless for a terminal first.
"""

import json
import sys
import time
from contextlib import suppress
from typing import Any

import click
import msgspec
from msgspec import Raw

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import Bus, DeadLetters, Listen, Post, Topics
from agent_os.cli.asking import ask, confirm, listen
from agent_os.cli.changes import say
from agent_os.cli.naming import AGENT
from agent_os.cli.output import age, output_option, plain, print_json
from agent_os.cli.screen import show as show_list
from agent_os.cli.screen import watched
from agent_os.client.values import jsonable

LANES = ("high", "normal", "low")
_LONGEST = 60  # characters of a cell
Row = dict[str, Any]

_lane = click.option("--lane", type=click.Choice(LANES), default="normal", show_default=True, help="How urgent it is.")
_key = click.option("--key", metavar="TEXT", help="Sent twice with the same key, it is handled once.")
_schema = click.option("--schema", default="", metavar="NAME", help="What kind of message it says it is.")


@click.command()
@click.argument("agent", metavar="NAME", type=AGENT)
@click.argument("payload", metavar="[JSON|TEXT]", required=False)
@_lane
@_key
@_schema
@click.option("--wait", is_flag=True, help="Ask, and print the response.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.001, max=1e6),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the response.",
)
@output_option(names=("id",))
def send(
    agent: str, payload: str | None, lane: Any, key: str | None, schema: str, wait: bool, timeout: float, as_json: bool
) -> None:
    """Send an agent a message: JSON, or else text; without one, what comes on the standard input."""
    request = Post(to=agent, payload=_payload(payload), lane=lane, key=key, schema=schema, wait=wait)
    request.deadline_ms = round(timeout * 1000)
    said: Row = ask(request)
    if as_json:
        print_json(jsonable(said))
    elif not wait:
        click.echo(plain(f"{said['id']}{'  (it was there already)' if said.get('duplicate') else ''}"))
    elif said.get("error") is None:
        click.echo(_text(said["payload"]))
    if wait and said.get("error") is not None:
        say(f"{plain(said['sender'])} says: {_text(said['error'])}")
        raise SystemExit(1)


@click.group()
def bus() -> None:
    """Messages, topics and dead letters."""


@bus.command("ls")
@click.argument("agent", metavar="[NAME]", required=False, type=AGENT)
@output_option(names=("mailboxes.agent",))
@watched
def ls(agent: str | None, as_json: bool) -> None:
    """List what waits for whom, and who waits for an answer."""
    found: Row = ask(Bus(agent=agent))
    if as_json:
        print_json(jsonable(found))
        return
    now = time.time()
    boxes = [
        (one["agent"], str(one["waiting"]), str(one["in_hand"]), str(one["bytes"]), _since(one["oldest_ns"], now))
        for one in found["mailboxes"]
    ]
    headings = ("AGENT", "WAITING", "IN HAND", "BYTES", "OLDEST")
    show_list(boxes, headings, ("BYTES",), none="no message waits")
    for one in found["requests"]:
        click.echo(plain(f"{one['id']}  {one['from']} {'waits for' if one['waits'] else 'gave up on'} {one['to']}"))
    if found["dead"]:
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(found["dead"].items()))
        say(f"dead letters: {told}; agentctl bus dead lists them")


@bus.command("topics")
@output_option(names=("subscriptions.topic",))
@watched
def topics(as_json: bool) -> None:
    """List subscriptions, and how far behind each is."""
    subs = ask(Bus())["subscriptions"]
    if as_json:
        print_json({"subscriptions": jsonable(subs)})
        return
    rows = [
        (
            one["topic"],
            one["group"] or "-",
            ", ".join(one["agents"]),
            str(one["waiting"]),
            str(one["bytes"]),
            one["sub"],
        )
        for one in subs
    ]
    headings = ("TOPIC", "GROUP", "AGENTS", "BEHIND", "BYTES", "ID")
    show_list(rows, headings, ("BYTES", "GROUP"), none="nobody has subscribed")


@bus.command("reliable")
@click.argument("topic", metavar="[TOPIC]", required=False)
@click.option("--off", is_flag=True, help="Take it back.")
@output_option(names=("reliable.",))
def reliable(topic: str | None, off: bool, as_json: bool) -> None:
    """List the topics that lose nothing, or say that those of a filter are: while a subscriber is too far behind,
    publishers are refused."""
    if off and not topic:
        raise click.UsageError("--off needs a topic: which is it?")
    found: list[str] = ask(Topics(topic=topic or "", reliable=not off))["reliable"]
    if as_json:
        print_json({"reliable": found})
        return
    click.echo("\n".join(map(plain, found)) if found else "no topic is reliable")


@bus.command("pub")
@click.argument("topic")
@click.argument("payload", metavar="[JSON|TEXT]", required=False)
@_lane
@_key
@_schema
@output_option(names=("id",))
def pub(topic: str, payload: str | None, lane: Any, key: str | None, schema: str, as_json: bool) -> None:
    """Publish an event: JSON, or else text."""
    said: Row = ask(Post(topic=topic, payload=_payload(payload), lane=lane, key=key, schema=schema))
    print_json(said) if as_json else click.echo(said["id"])


@bus.command("sub")
@click.argument("topic")
@click.option("-n", "most", type=click.IntRange(min=1), metavar="COUNT", help="End after so many.")
@click.option("--first", is_flag=True, help="Begin with what is still kept.")
@output_option
def sub(topic: str, most: int | None, first: bool, as_json: bool) -> None:
    """Follow a topic or filter (`*` one token, `>` the rest), until Ctrl-C."""
    left = most

    def heard(one: Row) -> None:
        nonlocal left
        print_json(jsonable(one)) if as_json else click.echo(_event(one))
        left = None if left is None else left - 1
        if left is not None and left <= 0:
            raise _Enough

    with suppress(_Enough):
        listen(Listen(topic=topic, start="first" if first else "new"), heard)


class _Enough(Exception):
    """As many as were wanted have come."""


@bus.command("dead")
@click.argument("agent", metavar="[NAME]", required=False, type=AGENT)
@output_option(names=("letters.id",))
@watched
def dead(agent: str | None, as_json: bool) -> None:
    """List what could not be delivered, and why: the oldest first."""
    letters = ask(DeadLetters(agent=agent))["letters"]
    if as_json:
        print_json({"letters": jsonable(letters)})
        return
    now = time.time()
    rows = [
        (
            one["id"],
            one["receiver"],
            one["to"] if one["to"] != one["receiver"] else "-",
            one["from"],
            str(one["tries"]),
            _short(f"{one['reason']}: {one['detail']}" if one["detail"] else one["reason"]),
            _since(one["at_ns"], now),
        )
        for one in letters
    ]
    headings = ("ID", "RECEIVER", "TOPIC", "FROM", "TRIES", "REASON", "AGE")
    show_list(rows, headings, ("TRIES", "TOPIC", "FROM"), none="no dead letter")


@bus.command("redeliver")
@click.argument("letters", metavar="ID…", nargs=-1, required=True)
def redeliver(letters: tuple[str, ...]) -> None:
    """Deliver dead letters once more, as if they came just now."""
    for one in letters:
        said: Row = ask(DeadLetters(do="redeliver", letters=[one]))
        click.echo(plain(f"{one}  sent again as {said['id']}"))


@bus.command("drop")
@click.argument("letters", metavar="ID…", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop(letters: tuple[str, ...], yes: bool) -> None:
    """Forget dead letters. The record keeps that they were."""
    if not yes:
        there = {str(one["id"]) for one in ask(DeadLetters())["letters"]}
        if lost := [one for one in letters if one in there]:
            names = ", ".join(lost)
            confirm(f"Forget {plain(names)}?", f"this forgets {names}", f"agentctl bus drop {' '.join(letters)} --yes")
    for one in letters:
        ask(DeadLetters(do="drop", letters=[one]))
        click.echo(plain(f"{one}  dropped"))


def _payload(text: str | None) -> Raw:
    words = sys.stdin.read() if text is None else text
    try:
        value = json.loads(words)
    except ValueError:
        value = words
    try:
        return Raw(msgspec.msgpack.encode(value))
    except (ValueError, OverflowError) as problem:  # bytes that are no text, or a number that is too large
        raise EINVAL("bus.payload", f"this cannot be sent: {problem}", hint="send JSON, or text in UTF-8") from None


def _event(one: Row) -> str:
    return f"{plain(one['to'])}  {plain(one['sender'])}  {_text(one['payload'])}"


def _text(value: Any) -> str:
    return plain(value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False, default=str))


def _short(text: str) -> str:
    clean = plain(text)
    return clean if len(clean) <= _LONGEST else f"{clean[: _LONGEST - 1]}…"


def _since(ns: int | None, now: float) -> str:
    return "-" if ns is None else age(now - ns / 1e9)
