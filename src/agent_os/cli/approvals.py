"""`agentctl approvals`, `approve`, `deny`, `answer`: what agents want that only a person may allow, or can tell them.

In: what waits, as the kernel tells it; half of it was written by an agent, and is shown quoted and made harmless. Out:
a table, the whole question, or an answer. An answer carries the digest of the question that was shown.
"""

import json
from collections.abc import Sequence
from typing import Any

import click

from agent_os.abi.errors import ENOENT
from agent_os.abi.syscalls import Approvals, Decide
from agent_os.cli.asking import ask
from agent_os.cli.changes import say
from agent_os.cli.naming import AGENT, APPROVAL
from agent_os.cli.output import age, output_option, paint, plain, print_json, shortened
from agent_os.cli.screen import listed, watched
from agent_os.client.values import jsonable

_LONGEST = 48  # characters of a cell
_DECIDED = {"refused": "denied", "used": "approved", "void": "approved"}
_SINCE = {"used": ", and used", "void": ", and void"}
Row = dict[str, Any]


@click.command()
@click.argument("approval", metavar="[ID]", required=False, type=APPROVAL)
@click.option("--agent", type=AGENT, help="Only of this agent.")
@click.option("--all", "everything", is_flag=True, help="Also what was answered, expired or cancelled lately.")
@output_option(names=("approvals.id",))
@watched
def approvals(approval: str | None, agent: str | None, everything: bool, as_json: bool) -> None:
    """List what waits for a person's decision, or show all of question ID.

    What is not answered in time is denied.
    """
    if approval is not None:
        one = _find(approval, agent)
        print_json(jsonable(one)) if as_json else _print_whole(one)
        return
    rows = ask(Approvals(agent=agent, all=everything))["approvals"]
    print_json(jsonable({"approvals": rows})) if as_json else _print_table(rows)


@click.command()
@click.argument("approval", metavar="ID", type=APPROVAL)
@click.option("--once", is_flag=True, help="For this one act. The default.")
@click.option("--session", is_flag=True, help="For like acts too, until the agent ends.")
@click.option("--always", is_flag=True, help="For like acts of this very agent, until revoked.")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the answer.")
@output_option(names=("id",))
def approve(approval: str, once: bool, session: bool, always: bool, reason: str, as_json: bool) -> None:
    """Allow the act that ID asks about. It is shown, and exactly that is allowed."""
    if once + session + always > 1:
        raise click.UsageError("--once, --session and --always exclude each other")
    scope = "always" if always else "session" if session else "once"
    _answer(approval, "approve", scope, reason, as_json=as_json)


@click.command()
@click.argument("approval", metavar="ID", type=APPROVAL)
@click.option("--reason", default="", metavar="TEXT", help="Told to the agent.")
@output_option(names=("id",))
def deny(approval: str, reason: str, as_json: bool) -> None:
    """Refuse the act that ID asks about; the agent is told, and goes on without."""
    _answer(approval, "deny", "once", reason, as_json=as_json)


@click.command()
@click.argument("approval", metavar="ID", type=APPROVAL)
@click.argument("value")
@click.option("--reason", default="", metavar="TEXT", help="Kept with the answer.")
@output_option(names=("id",))
def answer(approval: str, value: str, reason: str, as_json: bool) -> None:
    """Answer the question ID of an agent with VALUE: text, or JSON where it asks for another type.

    \b
      agentctl answer q-3 "The one in Berlin"
      agentctl answer q-4 true
    """
    one = _find(approval)
    if one["syscall"] != "SYS_ASK":
        raise click.UsageError(
            f"{one['id']} is no question: agentctl approve {one['id']}, or agentctl deny {one['id']}"
        )
    given = _value(value, one["schema"])
    decide = Decide(approval=one["id"], outcome="approve", digest=one["digest"], reason=reason, value=given)
    decided = ask(decide)
    if as_json:
        print_json(jsonable(decided))
        return
    click.echo(f"answered  {decided['id']}  {plain(decided['agent'])}: {_short(_json(given))}")


def _value(text: str, schema: Any) -> Any:
    """Text is text where text is asked for; anything else is JSON."""
    if schema is None or (isinstance(schema, dict) and schema.get("type") == "string"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _answer(approval: str, outcome: Any, scope: Any, reason: str, *, as_json: bool) -> None:
    one = _find(approval)
    if outcome == "approve" and one["syscall"] == "SYS_ASK":
        raise click.UsageError(f"{one['id']} is a question: agentctl answer {one['id']} VALUE")
    if not as_json:
        _print_whole(one, err=True)
    decided = ask(Decide(approval=one["id"], outcome=outcome, digest=one["digest"], scope=scope, reason=reason))
    if as_json:
        print_json(jsonable(decided))
        return
    if outcome == "deny":
        click.echo(f"denied  {decided['id']}  {plain(decided['agent'])}: {_short(decided['wants'])}")
        return
    how = {"once": "once", "session": "until it ends", "always": "always"}[scope]
    click.echo(f"approved  {decided['id']}  {plain(decided['agent'])}: {_short(decided['wants'])}, {how}")
    if scope != "once":
        say(f"take it back: agentctl cap revoke {decided['id']}")


def _find(approval: str, agent: str | None = None) -> Row:
    rows: list[Row] = ask(Approvals(agent=agent, all=True))["approvals"]
    number = approval.lower().removeprefix("q-")
    for row in rows:
        if row["id"] == f"q-{number}":
            return row
    waiting = ", ".join(row["id"] for row in rows if row["state"] == "pending")
    hint = f"there waits: {waiting}" if waiting else "agentctl approvals lists what waits; now nothing does"
    raise ENOENT("approval.unknown", f"there is no approval {approval!r}", hint=hint)


def _print_table(rows: Sequence[Row]) -> None:
    if not rows:
        say("nothing waits for a decision")
        return
    click.echo(listing(rows))
    verb = "answer ID VALUE" if any(row["syscall"] == "SYS_ASK" for row in rows) else "approve ID"
    say(f"all of one: agentctl approvals ID   then   agentctl {verb}   or   agentctl deny ID")


def listing(rows: Sequence[Row]) -> str:
    headings = ("ID", "AGENT", "WANTS", "ORIGIN", "AGE", "STATE")
    cells = [
        (row["id"], row["agent"], _short(_wants(row)), _short(_origin(row)), age(row["seconds"]), _state(row))
        for row in rows
    ]
    return listed(cells, headings, ("ORIGIN", "AGE"))


def _wants(row: Row) -> str:
    """A question in its own words, quoted."""
    question = row["args"].get("question") if row["syscall"] == "SYS_ASK" and isinstance(row["args"], dict) else None
    return row["wants"] if question is None else f"{row['wants']}: {_json(question)}"


def _print_whole(one: Row, *, err: bool = False) -> None:
    """Every part of a question. What an agent wrote stands in quotation marks behind a bar."""
    lines = [
        paint(f"{one['id']}  {plain(one['agent'])} wants {plain(one['wants'])}", "bold"),
        *(f"because  {plain(reason)}" for reason in one["reasons"]),
        f"rules    {plain(', '.join(one['rules']))}",
        f"origin   {plain(_origin(one))}",
        f"grants   {plain(one['capability']) or 'this call only'}",
        *(f"holds    {plain(', '.join(one['holds']))}" for _ in range(bool(one.get("holds")))),
        f"scopes   {', '.join(one['scopes'])}" + ("  (always is not offered for guests)" if one["guest"] else ""),
        *(f"only     {plain(' or '.join(group))} may answer" for group in one["approvers"]),
        "state    " + (f"open, {_state(one)}, then denied" if one["state"] == "pending" else _state(one)),
        "the agent wrote:",
        *(f"  | {line}" for line in _quoted(one["args"])),
    ]
    click.echo("\n".join(lines), err=err)


def _quoted(args: Any) -> list[str]:
    if not isinstance(args, dict) or not args:
        return [_json(args)]
    return [f"{plain(str(name))}: {_json(value)}" for name, value in args.items()]


def _json(value: Any) -> str:
    """As JSON: nothing in it can end its quotation marks or its line."""
    return plain(json.dumps(jsonable(value), ensure_ascii=False, default=str))


def _origin(row: Row) -> str:
    """Where what it says comes from, as far as the kernel saw."""
    words = next(iter(row["origins"].values()), [])
    if not words or words[0] == "trusted":
        return "trusted" if words else "unknown"
    sources = [word.removeprefix("from:") for word in words if word.startswith("from:")]
    return f"untrusted: {', '.join(sources)}" if sources else "untrusted"


def _state(row: Row) -> str:
    state = row["state"]
    if state == "pending":
        return f"{_left(row['left'])} left"
    by = f" by {row['decided_by']}" if row["decided_by"] else ""
    return plain(f"{_DECIDED.get(state, state)}{by}{_SINCE.get(state, '')}")


def _left(seconds: float) -> str:
    """`14m48s`, `40s`."""
    whole = max(int(seconds), 0)
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m" if hours else f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _short(text: str) -> str:
    return shortened(plain(text), _LONGEST)
