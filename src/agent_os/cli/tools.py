"""`agentctl tool`: which tools there are, and a call of one by hand.

In: names, parameters as NAME=VALUE or JSON. Out: tables, a tool's result, or objects. What a tool says is made harmless
for a terminal first.
"""

import json
from typing import Any

import click

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import ToolCall, ToolsOf
from agent_os.cli.asking import ask
from agent_os.cli.changes import say
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, plain, print_json, shortened
from agent_os.cli.screen import show as show_list
from agent_os.cli.screen import watched
from agent_os.client.values import jsonable

_LONGEST = 70  # characters of a cell
Row = dict[str, Any]


@click.group()
def tool() -> None:
    """Tools that agents can call. Who calls one needs the capability for it, and for what it does.

    \b
      agentctl tool ls
      agentctl tool show http.fetch
      agentctl tool call --agent NAME file.read path=/work/notes.md
    """


@tool.command("ls")
@click.argument("words", nargs=-1, metavar="[WORD…]")
@click.option("--agent", type=AGENT, help="What this agent may call.")
@click.option("--tag", default="", help="Only those with this tag.")
@output_option(names=("tools.name",))
@watched
def ls(words: tuple[str, ...], agent: str | None, tag: str, as_json: bool) -> None:
    """List tools, by name: all, or those with these words."""
    found: list[Row] = ask(ToolsOf(query=" ".join(words), tag=tag, agent=agent))["tools"]
    if as_json:
        print_json({"tools": jsonable(found)})
        return
    rows = [
        (
            f"{one['name']}@{one['version']}",
            one.get("effect", "opaque"),
            "suspended" if one.get("suspended") else one.get("health", "ok"),
            str(one.get("calls", "-")),
            shortened(plain(one.get("description", "")), _LONGEST),
        )
        for one in found
    ]
    headings = ("TOOL", "EFFECT", "HEALTH", "CALLS", "WHAT IT DOES")
    show_list(rows, headings, ("CALLS", "HEALTH"), none="no such tool")


@tool.command("show")
@click.argument("name", metavar="NAME[@VERSION]")
@output_option(names=("tools.name",))
def show(name: str, as_json: bool) -> None:
    """Show what a tool takes, gives and needs, and how it does."""
    found: list[Row] = ask(ToolsOf(name=name))["tools"]
    if as_json:
        print_json({"tools": jsonable(found)})
        return
    for one in found:
        spec: Row = one["spec"]
        click.echo(plain(f"{one['name']}@{one['version']}  {one.get('effect', 'opaque')}  {spec['description']}"))
        click.echo(plain(f"needs    tool:{one['name']}:call, {', '.join(spec['requires'])}"))
        click.echo(
            plain(f"runs     {spec['sandbox']}, at most {spec['timeout_s']:g} s, {spec['output_limit']:,} bytes")
        )
        errors = ", ".join(f"{count} {code}" for code, count in one["errors"].items()) or "none"
        times = f"p50 {one['p50_ms']:g} ms, p95 {one['p95_ms']:g} ms"
        click.echo(f"calls    {one['calls']}, refused {one['denied']}, errors {errors}, {times}")
        if one["suspended"]:
            click.echo(plain(f"held     {one['suspended']}"))
        click.echo(f"digest   {one['digest']}")
        click.echo(plain(f"takes    {json.dumps(spec['input_schema'], ensure_ascii=False)}"))
        if spec["output_schema"] is not None:
            click.echo(plain(f"gives    {json.dumps(spec['output_schema'], ensure_ascii=False)}"))


@tool.command("call")
@click.argument("name", metavar="NAME[@VERSION]")
@click.argument("given", nargs=-1, metavar="[PARAM=VALUE…|JSON]")
@click.option("--agent", type=AGENT, help="As this agent, with what it holds. Without: as the operator.")
@click.option("--dry-run", is_flag=True, help="Only check the parameters and the rights.")
@output_option
def call(name: str, given: tuple[str, ...], agent: str | None, dry_run: bool, as_json: bool) -> None:
    """Call a tool. A value is JSON, or else text: path=/work/a.txt limit=100."""
    said = ask(ToolCall(tool=name, params=_params(given), agent=agent, dry_run=dry_run))
    if as_json:
        print_json(jsonable(said))
        return
    result = said if dry_run else said.get("text") or said.get("value")
    text = result if isinstance(result, str) else json.dumps(jsonable(result), ensure_ascii=False, indent=2)
    click.echo("\n".join(map(plain, text.split("\n"))))
    if not dry_run and said.get("cut"):
        say(f"cut: there were {said['size']:,} bytes")


def _params(words: tuple[str, ...]) -> Row:
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return json.loads(words[0])
        except ValueError as problem:
            raise EINVAL("tool.params", f"this is no JSON: {problem}") from None
    params: Row = {}
    for word in words:
        name, given, text = word.partition("=")
        if not given or not name:
            raise EINVAL("tool.params", f"{word!r} is not PARAM=VALUE", hint="path=/work/a.txt, or one JSON object")
        try:
            params[name] = json.loads(text)
        except ValueError:
            params[name] = text
    return params
