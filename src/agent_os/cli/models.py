"""`agentctl model`: which models there are, who provides them, what they cost, and whether they answer.

In: an operator's words; a key is the name of a secret. Out: providers, aliases, prices, calls that wait.
"""

from collections.abc import Sequence
from typing import Any

import click

from agent_os.abi.syscalls import Models
from agent_os.cli.asking import ask, confirm
from agent_os.cli.changes import say
from agent_os.cli.output import output_option, plain, print_json, table
from agent_os.cli.screen import listed, watched

_HEADINGS = ("PROVIDER", "DIALECT", "BASE", "KEY", "STATE")
_WAITING = ("AGENT", "MODEL", "CLASS", "POSITION", "WAITED", "BECAUSE OF")
_MICRO = 1_000_000
_WORDS = {"requests": "calls", "tokens": "tokens", "input_tokens": "tokens in", "output_tokens": "tokens out"}


@click.group()
def model() -> None:
    """Say which models agents can call. Keys are secrets: no agent sees one.

    \b
      agentctl secrets set openai < key.txt
      agentctl secrets bind openai --host api.openai.com
      agentctl model test openai/gpt-5-mini
      agentctl model add mine --dialect openai --base http://127.0.0.1:8080/v1
    """


@model.command()
@output_option(names=("providers.name",))
@watched
def ls(as_json: bool) -> None:
    """List providers, aliases, and calls that wait."""
    found = ask(Models(do="list"))
    if as_json:
        print_json(found)
        return
    click.echo(listed([_row(one) for one in found["providers"]], _HEADINGS, ("BASE", "DIALECT")))
    for one in found["providers"]:
        if one["missing"]:
            say(f"{plain(one['name'])} has no key: {plain(one['add_key'])}")
    for one in found["providers"]:
        if one["limits"]:
            click.echo(_limits(one))
    for name, stands_for in sorted(found["aliases"].items()):
        click.echo(f"{plain(name)} = {plain(stands_for)}")
    for name, weight in sorted(found["shares"].items()):
        click.echo(f"{plain(name)} has {weight:g} times the share of others")
    if found["waiting"]:
        click.echo(table([_waiting(one) for one in found["waiting"]], _WAITING))


@model.command()
@click.argument("name")
@click.option("--dialect", type=click.Choice(["anthropic", "openai", "ollama"]), default=None, help="What it speaks.")
@click.option("--base", default="", metavar="URL", help="Where it is, such as https://api.example.com/v1.")
@click.option("--key", "keys", multiple=True, metavar="SECRET", help="The secret that is its key. Several are a pool.")
@click.option("--api", type=click.Choice(["auto", "chat", "responses"]), default="auto", help="Of an OpenAI dialect.")
@click.option("--local/--remote", default=None, help="Whether it reads for nobody else. Default: by its address.")
@click.option("--slots", type=click.IntRange(1, 10_000), default=None, help="Calls that may be in flight.")
@output_option
def add(
    name: str,
    dialect: str | None,
    base: str,
    keys: Sequence[str],
    api: Any,
    local: bool | None,
    slots: int | None,
    as_json: bool,
) -> None:
    """Add a provider, or change one: what is not said stays as it is."""
    words: dict[str, Any] = {"dialect": dialect or "", "base": base, "keys": list(keys), "api": api}
    _told(ask(Models(do="add", name=name, local=local, slots=slots, **words)), as_json)


@model.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option(names=("name",))
def rm(name: str, yes: bool, as_json: bool) -> None:
    """Remove a provider that was added. What it was sent is on the record; its key stays a secret of yours."""
    if not yes and any(one["name"] == name and one["own"] for one in ask(Models(do="list"))["providers"]):
        lost = f"{name} would be removed, with its prices and limits"
        confirm(f"Remove {plain(name)} with its prices and limits?", lost, f"agentctl model rm {name} --yes")
    ask(Models(do="remove", name=name))
    if as_json:
        print_json({"name": name})
    else:
        click.echo(f"removed  {plain(name)}")


@model.command()
@click.argument("name")
@click.argument("stands_for", required=False, metavar="[PROVIDER/MODEL]")
@output_option
def alias(name: str, stands_for: str | None, as_json: bool) -> None:
    """Let a name stand for a model; without one, for nothing any more."""
    found = ask(Models(do="alias", name=name, model=stands_for))
    if as_json:
        print_json(found)
    else:
        click.echo(plain(f"{name} = {found['model']}" if found["model"] else f"removed  {name}"))


@model.command()
@click.argument("name", metavar="PROVIDER/MODEL")
@click.option("--input", "input_", type=float, default=None, metavar="DOLLARS", help="For a million tokens of input.")
@click.option("--output-tokens", "--output", "output", type=float, default=None, metavar="DOLLARS", help="Of output.")
@click.option("--cached-read", type=float, default=None, metavar="DOLLARS", help="Of input from a cache.")
@click.option("--cache-write", type=float, default=None, metavar="DOLLARS", help="Of input into one.")
@click.option("--request", type=float, default=None, metavar="DOLLARS", help="For a million calls.")
@click.option("--none", "forget", is_flag=True, help="As the public table has it, again.")
@output_option(names=("name",), long="--format")
def price(
    name: str,
    input_: float | None,
    output: float | None,
    cached_read: float | None,
    cache_write: float | None,
    request: float | None,
    forget: bool,
    as_json: bool,
) -> None:
    """Say what a model costs, in dollars for a million tokens."""
    given = {"input": input_, "output": output, "cached_read": cached_read, "cache_write": cache_write}
    prices = {word: amount for word, amount in {**given, "request": request}.items() if amount is not None}
    if forget == bool(prices):
        raise click.UsageError("give --input and --output, or --none")
    _told(ask(Models(do="price", name=name, prices=prices)), as_json)


@model.command()
@click.argument("name", metavar="PROVIDER")
@click.option("--requests", type=float, default=None, metavar="NUMBER", help="Calls in a minute.")
@click.option("--tokens", type=float, default=None, metavar="NUMBER", help="Tokens in a minute, input and output.")
@click.option("--input-tokens", type=float, default=None, metavar="NUMBER", help="Of input alone.")
@click.option("--output-tokens", type=float, default=None, metavar="NUMBER", help="Of output alone.")
@click.option("--none", "forget", is_flag=True, help="As learned from what the provider says, again.")
@output_option(names=("name",))
def limit(
    name: str,
    requests: float | None,
    tokens: float | None,
    input_tokens: float | None,
    output_tokens: float | None,
    forget: bool,
    as_json: bool,
) -> None:
    """Say what each key of a provider allows of each model in a minute. Calls beyond it wait."""
    given = {"requests": requests, "tokens": tokens, "input_tokens": input_tokens, "output_tokens": output_tokens}
    limits = {word: amount for word, amount in given.items() if amount is not None}
    if forget == bool(limits):
        raise click.UsageError("give --requests, --tokens, --input-tokens or --output-tokens, or --none")
    found = ask(Models(do="limit", name=name, limits=limits))
    if as_json:
        print_json(found)
    else:
        click.echo(_limits(found))


@model.command()
@click.argument("namespace")
@click.argument("weight", type=float, required=False, metavar="[WEIGHT]")
@output_option
def share(namespace: str, weight: float | None, as_json: bool) -> None:
    """Give the agents of a namespace more of a full key than others get, or less; without a number, as much."""
    found = ask(Models(do="share", name=namespace, weight=weight))
    if as_json:
        print_json(found)
    else:
        click.echo(plain(f"{namespace} has {found['share']:g} times the share of others"))


@model.command()
@click.argument("name", metavar="PROVIDER[/MODEL]")
@output_option
def test(name: str, as_json: bool) -> None:
    """Make one small call, at your own cost; of a provider alone, list the models that it knows."""
    found = ask(Models(do="test", name=name))
    if as_json:
        print_json(found)
    elif "models" in found:
        click.echo("\n".join(plain(f"{found['provider']}/{one}") for one in found["models"]) or "it knows none")
    else:
        cost = found["cost_microusd"]
        paid = "price unknown" if cost is None else f"${cost / _MICRO:.6f}"
        used = f"{found['input']} tokens in, {found['output']} out, {paid}, {found['ms']} ms"
        click.echo(plain(f"{found['model']}  answered as {found['answered']}: {found['text'][:200]}"))
        click.echo(used)


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    state = "no key" if one["missing"] else "has its key" if one["keys"] else "needs no key"
    return (one["name"], one["dialect"], one["base"] or "-", ",".join(one["keys"]) or "-", state)


def _limits(one: dict[str, Any]) -> str:
    told = ", ".join(f"{amount:,.0f} {_WORDS[kind]}" for kind, amount in one["limits"].items())
    return plain(f"{one['name']}  {told or 'as the provider says'} a minute, for each key and model")


def _waiting(one: dict[str, Any]) -> tuple[object, ...]:
    waited = f"{one['waited_ms'] / 1000:.1f}s"
    return (one["agent"], one["model"], one["priority"], one["position"], waited, one["reason"])


def _told(one: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(one)
        return
    click.echo(table([_row(one)], _HEADINGS))
    for name, prices in sorted(one["prices"].items()):
        click.echo(plain(f"{name}  {', '.join(f'{word} ${amount:g}' for word, amount in prices.items())}"))
    following = one["add_key"] if one["missing"] else f"agentctl model test {one['name']}"
    say(f"next  {plain(following)}")
