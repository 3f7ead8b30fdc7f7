"""`agentctl events` and `trace`: what happened, in order, to everybody or to one agent.

In: a choice of entries. Out: a line for each, or objects. `-f` goes on as things happen, until Ctrl-C.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

from agent_os.abi.syscalls import Events
from agent_os.cli.asking import listen
from agent_os.cli.calls import calls_of, is_lost
from agent_os.cli.changes import say
from agent_os.cli.entries import Entry, clock, deed, jsonable, line, name_of, refused, when
from agent_os.cli.output import output_option, paint, plain, print_json, width

_BAR = 16  # characters of the longest
_TRACED = 1000  # entries


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("-n", "last", type=click.IntRange(0), help="The last so many. Default 20.")
@click.option("--type", "kinds", multiple=True, metavar="KIND", help="Only these: result, signal, exit … Repeatable.")
@click.option("--agent", metavar="NAME", help="Only what this agent did, or an operator (local:1000), or kernel.")
@click.option("--cursor", type=click.IntRange(0), metavar="SEQ", help="Everything after this entry.")
@click.option("--calls", is_flag=True, help="Only calls, as agentctl policy diff reads them: by default all there are.")
@output_option
def events(
    follow: bool,
    last: int | None,
    kinds: tuple[str, ...],
    agent: str | None,
    cursor: int | None,
    calls: bool,
    as_json: bool,
) -> None:
    """Show what happened: every call, refusal, signal, start and end, as the journal has it.

    \b
      agentctl events --calls > calls.jsonl
      agentctl policy diff new.toml --calls calls.jsonl
    """
    if last is None and cursor is None and not calls:
        last = 20
    start = 0 if cursor is None else cursor + 1
    request = Events(agent=agent, start=start, last=last, follow=follow, bodies=True)
    if calls:
        _show_calls(request, kinds)
    else:
        show(request, as_json=as_json, kinds=kinds)


def _show_calls(request: Events, kinds: Iterable[str]) -> None:
    wanted, lost = set(kinds), 0

    def heard(page: list[Entry]) -> None:
        nonlocal lost
        for entry in page:
            if wanted and entry["kind"] not in wanted:
                continue
            for call in calls_of(entry):
                print_json(call)
            lost += is_lost(entry)

    listen(request, heard)
    if lost:
        say(f"{lost:,} calls are left out: what they were about was erased, or is too large to be told")


def show(request: Events, *, as_json: bool, kinds: Iterable[str] = ()) -> None:
    """Entries as lines; as one object, or, where they never end, one object a line."""
    wanted, gathered = set(kinds), list[Any]()

    def heard(page: list[Entry]) -> None:
        for entry in page:
            if wanted and entry["kind"] not in wanted:
                continue
            if not as_json:
                click.echo(line(entry))
            elif request.follow:
                print_json(jsonable(entry))
            else:
                gathered.append(jsonable(entry))

    listen(request, heard)
    if as_json and not request.follow:
        print_json({"entries": gathered})


@dataclass
class Span:
    """One thing that an agent did, and how long it took where that is known."""

    entry: Entry
    began: datetime
    ended: datetime | None = None
    open: bool = False

    @property
    def seconds(self) -> float:
        return (self.ended - self.began).total_seconds() if self.ended else 0.0


class Spans:
    """Entries put together: an intent and its outcome, a call that waited and its answer, are one."""

    def __init__(self) -> None:
        self._intents: dict[int, Span] = {}
        self._waits: dict[str, Span] = {}

    def add(self, entry: Entry) -> Span:
        """The span that this entry begins or, then known as a whole, ends."""
        now, kind = when(entry), entry["kind"]
        if kind in ("outcome", "result"):
            span = self._intents.pop(entry.get("ref", 0), None) or self._waits.pop(entry.get("pos", ""), None)
            if span:
                span.entry, span.ended, span.open = entry, now, False
                return span
        span = Span(entry, now, open=kind in ("intent", "accept"))
        if kind == "intent":
            self._intents[entry["seq"]] = span
        elif kind == "accept":
            self._waits[entry.get("pos", "")] = span
        return span


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with what it does, until Ctrl-C.")
@click.option("-n", "last", type=click.IntRange(0), default=_TRACED, help=f"The last so many. Default {_TRACED}.")
@output_option
def trace(name: str, follow: bool, last: int, as_json: bool) -> None:
    """Show what one agent did, in time: its calls, refusals, signals, connections, checkpoints."""
    spans, shown = Spans(), list[Span]()
    first: datetime | None = None

    def heard(page: list[Entry]) -> None:
        nonlocal first
        for entry in page:
            span = spans.add(entry)
            first = first or span.began
            if not follow:
                if span.ended is None:  # else it is there already
                    shown.append(span)
            elif as_json:
                print_json(_object(span))
            elif not span.open:
                click.echo(f"{_since(first, span.began)}  {_title(span)}  {_took(span)}".rstrip())

    listen(Events(agent=name, last=last, follow=follow, bodies=True), heard)
    if follow:
        return
    if as_json:
        print_json({"agent": name, "spans": [_object(span) for span in shown]})
    else:
        _print(name, shown)
        if shown and shown[0].entry.get("aseq", 1) > 1 and len(shown) >= last // 2:
            say(f"earlier entries are left out: agentctl trace {plain(name)} -n NUMBER")


def told(span: Span) -> str:
    """One that is over, or was over at once, with the time of day: `12:03:12.120  REFUSED SYS_WRITE /work/x  EPERM`"""
    return f"{clock(span.began)}  {_title(span)}  {_took(span)}".rstrip()


def _print(name: str, spans: list[Span]) -> None:
    if not spans:
        say("nothing is recorded")
        return
    first, end = spans[0].began, max(span.ended or span.began for span in spans)
    total = max((end - first).total_seconds(), 1e-6)
    rows = [(_since(first, span.began), f"├ {_title(span)}", _bar(span, total), _took(span), span) for span in spans]
    time, title, bar, took, span = rows[-1]
    rows[-1] = (time, title.replace("├", "└", 1), bar, took, span)
    head = f"invoke_agent {plain(name)}"
    wide = min(max(width(text) for text in (head, *(row[1] for row in rows))), 80)
    click.echo(f"{_since(first, first)}  {_wide(head, wide)}  {'#' * _BAR} {_length(total)}")
    for time, title, bar, took, span in rows:
        text = f"{time}  {_wide(title, wide)}  {bar} {took}".rstrip()
        click.echo(paint(text, "red") if refused(span.entry) else text)


def _title(span: Span) -> str:
    entry = span.entry
    word = "REFUSED " if refused(entry) else "" if "op" in entry else f"{entry['kind']} "
    code = f"  {entry['code']}" if "code" in entry else ""
    return f"{word}{deed(entry)}{code}".strip()


def _bar(span: Span, total: float) -> str:
    if span.open:
        return "." * _BAR
    return "!" if refused(span.entry) else "#" * max(1, round(_BAR * span.seconds / total)) if span.ended else ""


def _took(span: Span) -> str:
    return "waiting" if span.open else _length(span.seconds) if span.ended else ""


def _length(seconds: float) -> str:
    return f"{seconds * 1000:.1f}ms" if seconds < 1 else f"{seconds:.1f}s"


def _since(first: datetime, moment: datetime) -> str:
    return f"{(moment - first).total_seconds():>6.1f}s"


def _wide(text: str, columns: int) -> str:
    return text + " " * max(0, columns - width(text))


def _object(span: Span) -> dict[str, Any]:
    seconds = span.seconds if span.ended else None
    facts = {"began": span.began.isoformat(), "seconds": seconds, "waiting": span.open, "agent": name_of(span.entry)}
    return {**facts, "entry": jsonable(span.entry)}
