"""`agentctl trace`: what one agent did, in time: models, tools, decisions, questions, messages, states.

In: an agent. Out: a picture, objects, or spans for OpenTelemetry. `-f` goes on as things happen, until Ctrl-C.
"""

import json
from datetime import datetime
from typing import Any

import click

import agent_os
from agent_os.abi.errors import EHOSTUNREACH
from agent_os.abi.syscalls import Events, Status
from agent_os.cli.asking import ask, listen
from agent_os.cli.changes import say
from agent_os.cli.entries import Entry, clock, deed, name_of, refused
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, paint, plain, print_json, shortened, width
from agent_os.client.spans import Exported, Span, Spans, as_otlp, exported, worth_exporting
from agent_os.client.values import jsonable

_BAR = 16  # characters of the longest
_TRACED = 1000  # entries
_LONGEST = 80  # columns of a title
# What a runtime does for itself. It is in the record, and with --all in the picture.
_HOUSEKEEPING = {"SYS_NOW", "SYS_RANDOM", "SYS_LEFT", "SYS_EVENT", "SYS_SIGMASK", "SYS_READY", "SYS_ALIVE"}


@click.command()
@click.argument("name", type=AGENT)
@click.option("-f", "--follow", is_flag=True, help="Go on with what it does, until Ctrl-C.")
@click.option("-n", "last", type=click.IntRange(0), default=_TRACED, help=f"The last so many. Default {_TRACED}.")
@click.option("--all", "everything", is_flag=True, help="Also what its runtime does for itself, such as SYS_NOW.")
@click.option(
    "--export",
    type=click.Choice(["otlp", "json"]),
    help="otlp sends spans to $OTEL_EXPORTER_OTLP_ENDPOINT; json prints the same.",
)
@click.option("--content", is_flag=True, help="Export also what was said: answers of models, arguments and results.")
@output_option(names=("spans.name",))
def trace(
    name: str, follow: bool, last: int, everything: bool, export: str | None, content: bool, as_json: bool
) -> None:
    """Show what one agent did, in time: its calls, refusals, questions, signals, connections, checkpoints."""
    request = Events(agent=name, last=last, follow=follow, bodies=True)
    if content and export is None:
        raise click.UsageError("--content says what is exported; add --export otlp or --export json")
    if export is not None:
        _export(request, export, content)
        return
    spans, shown, known = Spans(), list[Span](), set[int]()
    first: datetime | None = None

    def heard(page: list[Entry]) -> None:
        nonlocal first
        for entry in page:
            span = spans.add(entry)
            spans.over(entry)
            first = first or span.began
            if not everything and _is_housekeeping(span):
                continue
            if not follow:
                if id(span) not in known:  # else it has ended, and is there already
                    known.add(id(span))
                    shown.append(span)
            elif as_json:
                print_json(_object(span))
            elif not span.open:
                click.echo(f"{_since(first, span.began)}  {_title(span)}  {_took(span)}".rstrip())

    listen(request, heard)
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


def _is_housekeeping(span: Span) -> bool:
    entry = span.entry
    return entry.get("op") in _HOUSEKEEPING and not refused(entry) and "code" not in entry


# The picture.


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
    wide = min(max(width(text) for text in (head, *(row[1] for row in rows))), _LONGEST)
    click.echo(f"{_since(first, first)}  {_wide(head, wide)}  {'#' * _BAR} {_length(total)}")
    for time, title, bar, took, span in rows:
        text = f"{time}  {_wide(title, wide)}  {bar} {took}".rstrip()
        click.echo(paint(text, "red") if refused(span.entry) else text)


def _title(span: Span) -> str:
    """`chat anthropic/claude-sonnet  1204/188  $0.0064`, `execute_tool http.fetch  rule net.read`, …"""
    entry = span.entry
    parts = [_words(span)]
    if span.sort == "chat" and not refused(entry):
        taken, given = span.usage
        parts += [f"{taken}/{given}"] if taken or given else []
        parts += [f"${span.dollars:.4f}"] if span.dollars is not None else []
    if "code" in entry:
        parts.append(str(entry["code"]))
    if rule := plain(span.rule):
        parts.append(f"rule {shortened(rule, 40)}")
    return "  ".join(part for part in parts if part)


def _words(span: Span) -> str:
    entry = span.entry
    subject = plain(shortened(span.subject))
    match span.sort:
        case "chat" | "tool" if refused(entry):
            return f"REFUSED {subject or deed(entry)}"
        case "chat" | "tool":
            return f"{'chat' if span.sort == 'chat' else 'execute_tool'} {subject}".rstrip()
        case "approval":
            return f"approval {subject}"
        case _:
            word = "REFUSED " if refused(entry) else "" if "op" in entry else f"{entry['kind']} "
            return f"{word}{deed(entry)}".strip()


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
    facts = {"name": span.name, "lane": span.lane, "began": span.began.isoformat(), "seconds": seconds}
    facts |= {"waiting": span.open, "refused": span.refused, "agent": name_of(span.entry)}
    return {**facts, "attributes": jsonable(span.attributes()), "entry": jsonable(span.entry)}


# To others.


def _export(request: Events, how: str, content: bool) -> None:
    from agent_os.client import otlp

    if how == "otlp":
        otlp.require()
    log = str(ask(Status())["log"])
    version = agent_os.__version__
    sender = otlp.Sender(version) if how == "otlp" else None
    sent = lost = 0
    spans, gathered = Spans(), list[Exported]()

    def heard(page: list[Entry]) -> None:
        nonlocal sent, lost
        over = [one for entry in page for one in spans.ended(entry) if worth_exporting(one)]
        found = [exported(one, log, content=content) for one in over]
        if sender is None:
            gathered.extend(found)
            if request.follow and gathered:
                click.echo(json.dumps(as_otlp(gathered, version)))
                gathered.clear()
        elif found:
            good = sender.send(found)
            sent, lost = sent + len(found) * good, lost + len(found) * (not good)

    listen(request, heard)
    if sender is None:
        if gathered or not request.follow:
            click.echo(json.dumps(as_otlp(gathered, version)))
        return
    sender.close()
    if lost:
        reason = f"{sender.endpoint} took {sent} spans, and {lost} are lost: it is not there, or refuses them"
        raise EHOSTUNREACH("otlp", reason, hint=otlp.HINT)
    say(f"{sent} spans sent to {sender.endpoint}")
