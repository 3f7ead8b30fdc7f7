"""`agentctl policy`: rules before they are in force. Check them, test them, see what a change would change.

Works on files and changes nothing; a running kernel is only asked what agents hold, and what they did. Text of a policy
file is a stranger's and is shown harmless. Exit codes: 2 where a file cannot be loaded, 1 where a check or a test did
not hold. What is in force, and how that is changed, is in `rules`.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.abi.syscalls import Events
from agent_os.cli.asking import receive
from agent_os.cli.budget import since_ns
from agent_os.cli.calls import calls_of
from agent_os.cli.changes import say
from agent_os.cli.entries import Entry, when
from agent_os.cli.errors import EXIT_FAILED
from agent_os.cli.explain import explain
from agent_os.cli.output import output_option, paint, plain, print_json, table
from agent_os.cli.rules import (
    apply,
    counted,
    holdings,
    refused,
    rollback,
    show,
    show_files,
    show_labels,
    show_rules,
    where,
)

if TYPE_CHECKING:
    from agent_os.rulebook import Policy

_LAYERS = click.Choice(["organisation", "operator", "project", "manifest"])
_CLASSES = {"pure": "p", "idempotent": "i", "verifiable": "v", "opaque": "o"}
_FILE = click.Path(path_type=Path)


def _known_tools(_ctx: click.Context, _param: click.Parameter, given: Sequence[str]) -> dict[str, str | None]:
    tools: dict[str, str | None] = {}
    for one in given:
        name, equals, declared = one.partition("=")
        if equals and declared not in _CLASSES:
            raise click.BadParameter(f"{declared!r} is none of {', '.join(_CLASSES)}")
        tools[name] = _CLASSES.get(declared)
    return tools


def _known_agents(_ctx: click.Context, _param: click.Parameter, given: Sequence[str]) -> dict[str, str]:
    pairs = [one.partition(":") for one in given]
    if not all(name for name, _, _ in pairs):
        raise click.BadParameter("an agent has a name: NAME or NAME:ROLE")
    return {name: role or "worker" for name, _, role in pairs}


_layer = click.option("--layer", type=_LAYERS, help="Whose files these are. Default: as where they lie says.")
_tools = click.option(
    "--tool", "tools", multiple=True, callback=_known_tools, metavar="NAME[=CLASS]", help="A tool that there is."
)


@click.group()
def policy() -> None:
    """Rules: check them, test them, see what a change would change; put them in force, and take them back."""


@policy.command()
@click.argument("files", type=_FILE, nargs=-1)
@_layer
@_tools
@click.option(
    "--agent", "agents", multiple=True, callback=_known_agents, metavar="NAME[:ROLE]", help="An agent that there is."
)
@click.option("--strict", is_flag=True, help="End with 1 if anything is odd, too.")
@output_option
def check(
    files: Sequence[Path],
    layer: str | None,
    tools: dict[str, str | None],
    agents: dict[str, str],
    strict: bool,
    as_json: bool,
) -> int:
    """Load FILES, show what holds for whom, and what is odd: rules that never decide, unknown names, lists that allow
    everything, agents that can hold all three of the rule of two. Without FILES: those of this home and of the present
    directory."""
    from agent_os import rulebook
    from agent_os.client import place

    chosen = list(files) or rulebook.places(place.home(), Path.cwd())
    if not chosen:
        raise ENOENT("policy.none", "there is no policy file here", hint="agentctl policy check FILE")
    found, problems = _opened(chosen, layer, tools)
    if found is None:
        return refused(problems, as_json=as_json)
    facts = rulebook.described(found, agents, tools or None, holdings())
    if as_json:
        print_json({"ok": True, "problems": [], **facts})
    else:
        _show(facts)
    return EXIT_FAILED if strict and facts["findings"] else 0


@policy.command()
@click.argument("file", type=_FILE)
@click.option(
    "--policy", "files", type=_FILE, multiple=True, metavar="FILE", help="The rules. Default: those in force."
)
@_layer
@_tools
@output_option
def test(file: Path, files: Sequence[Path], layer: str | None, tools: dict[str, str | None], as_json: bool) -> int:
    """Decide the cases of FILE, and compare with what each expects. Ends with 1 if one failed."""
    from agent_os import rulebook
    from agent_os.client import place

    found, problems = _opened(list(files) or rulebook.places(place.home(), Path.cwd()), layer, tools)
    if found is None:
        return refused(problems, as_json=as_json)
    try:
        done = rulebook.outcomes(found, file, tools)
    except EINVAL as error:
        return refused(rulebook.problems(error), "no case was tried", as_json=as_json)
    failed = sum(not one["passed"] for one in done)
    if as_json:
        print_json({"ok": not failed, "passed": len(done) - failed, "failed": failed, "cases": done})
    else:
        for one in done:
            _show_case(one)
        click.echo(f"{len(done) - failed} passed, {failed} failed")
    return EXIT_FAILED if failed else 0


@policy.command()
@click.argument("files", type=_FILE, nargs=-1, required=True, metavar="[BEFORE] AFTER")
@click.option("--calls", type=_FILE, metavar="FILE", help="As agentctl events --calls writes them.")
@click.option("--against", metavar="SINCE", help="The calls on record since a day (2026-01-31), or so long (7d).")
@_layer
@_tools
@output_option
def diff(
    files: Sequence[Path],
    calls: Path | None,
    against: str | None,
    layer: str | None,
    tools: dict[str, str | None],
    as_json: bool,
) -> int:
    """Decide recorded calls again under BEFORE and AFTER, and list what would change.

    Without BEFORE: under the rules in force, and under those with AFTER in the place of the operator's (or of --layer).
    """
    from agent_os import rulebook
    from agent_os.client import place

    if len(files) > 2:
        raise click.UsageError("diff compares two files, or one with what is in force")
    if (calls is None) == (against is None):
        raise click.UsageError("which calls? --against 1d takes those on the record, --calls FILE those of a file")
    if len(files) == 2:
        (one, problems), (other, more) = (_opened([file], layer, tools) for file in files)
    else:
        in_force = rulebook.places(place.home(), Path.cwd())
        one, problems = _opened(in_force, None, tools)
        other, more = _tried(lambda: rulebook.replaced(in_force, files[0], layer, tools))
    if one is None or other is None:
        return refused([*problems, *(two for two in more if two not in problems)], as_json=as_json)
    try:
        with nullcontext(calls) if calls else _recorded(against or "") as found:
            count, changes = rulebook.compared(one, other, found)
    except EINVAL as error:
        return refused(rulebook.problems(error), "no call was decided", as_json=as_json)
    if as_json:
        print_json({"calls": count, "changes": changes})
        return 0
    if changes:
        rows = [(c["seq"], c["agent"], c["call"], _told(c["before"]), "→", _told(c["after"])) for c in changes]
        click.echo(table(rows, ("SEQ", "AGENT", "CALL", "BEFORE", "", "AFTER")))
    say(f"{count:,} calls decided again, {len(changes):,} otherwise")
    return 0


@contextmanager
def _recorded(against: str) -> Iterator[Path]:
    """The calls on the record since then, as a file of them."""
    since = since_ns(against) / 1e9

    def heard(page: list[Entry]) -> None:
        for entry in page:
            if when(entry).timestamp() >= since:
                file.writelines(f"{json.dumps(call, default=str)}\n" for call in calls_of(entry))

    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        receive(Events(bodies=True), heard, start=False)
        file.flush()
        yield Path(file.name)


def _opened(
    files: Sequence[Path], layer: str | None, tools: Mapping[str, str | None]
) -> "tuple[Policy | None, list[dict[str, Any]]]":
    from agent_os import rulebook

    return _tried(lambda: rulebook.opened(files, layer, tools))


def _tried(read: "Callable[[], Policy]") -> "tuple[Policy | None, list[dict[str, Any]]]":
    from agent_os import rulebook

    try:
        return read(), []
    except EINVAL as error:
        return None, rulebook.problems(error)


def _show(facts: Mapping[str, Any]) -> None:
    show_files(facts["files"])
    for name, rules in facts["agents"].items():
        click.echo(f"\n{'everybody' if name == '*' else plain(name)}")
        show_rules(rules)
    if facts["labels"]:
        click.echo("\nlabels")
        show_labels(facts["labels"])
    click.echo()
    for one in facts["findings"]:
        click.echo(f"{paint('odd', 'yellow')}  {where(one)}  {plain(one['rule'])}: {plain(one['what'])}")
    odd = len(facts["findings"])
    click.echo(f"{counted(facts['rules'], facts['labels'])}, {odd} odd; digest {facts['digest'][:16]}…")


def _show_case(one: Mapping[str, Any]) -> None:
    word = paint("ok  ", "green") if one["passed"] else paint("FAIL", "red")
    rule = f" by {one['rule']}" if one["rule"] else ""
    line = f"{word}  {plain(one['name'])}  {one['effect']}{plain(rule)}"
    if not one["passed"]:
        wanted = f" by {one['expected_rule']}" if one["expected_rule"] is not None else ""
        line += f", expected {one['expected']}{plain(wanted)}  ({plain(one['where'])}: {plain(one['why'])})"
    click.echo(line)


def _told(verdict: Mapping[str, Any]) -> str:
    parts = [verdict["effect"], verdict["violation"], f"({verdict['rule']})" if verdict["rule"] else ""]
    return " ".join(part for part in parts if part)


for _verb in (show, apply, rollback, explain):
    policy.add_command(_verb)
