"""`agentctl can`, `explain`: may an agent do something, which step and rule decide, and what would allow it.

In: an agent and an act written as the capability for exactly that, or the number of a decision. Out: yes or no, or all
of it; what an agent wrote is made harmless. The exit code of `can` is that of the refusal it tells of.
"""

import json
import re
import tomllib
from typing import Any

import click

from agent_os.abi.errors import BY_NUMBER
from agent_os.abi.syscalls import Explain
from agent_os.cli.asking import ask
from agent_os.cli.errors import exit_code
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, paint, plain, print_json, table

_MANIFESTS = (".agent.toml", ".agent.json")
_DECISION = re.compile(r"(?:d-)?([0-9]{1,18})")
_WORDS = {"allow": "allowed", "ask": "ASKS", "refuse": "REFUSED"}
_EXIT_ASK = 6
Row = dict[str, Any]


@click.command()
@click.argument("agent", type=AGENT)
@click.argument("capability", metavar="CAPABILITY | FILE.agent.toml")
@output_option
def can(agent: str, capability: str, as_json: bool) -> int:
    """Say whether AGENT may do one thing now, or spawn a child of a manifest.

    \b
      agentctl can triage file:/work/report.md:write
      agentctl can triage worker.agent.toml
    """
    if not capability:
        raise click.UsageError("can what? agentctl can triage file:/work/report.md:write")
    told: Row = ask(_about(agent, capability))
    if as_json:
        print_json(told)
    elif told["verdict"] == "allow":
        click.echo("yes")
    else:
        word = "asks first" if told["verdict"] == "ask" else "no"
        click.echo(f"{word}: {plain(told['because'])}")
    return _code(told)


@click.command()
@click.argument("what", nargs=-1, metavar="AGENT CAPABILITY | d-SEQ")
@click.option("--seq", type=click.IntRange(min=1), metavar="N", help="The entry of the journal to explain.")
@output_option
def explain(what: tuple[str, ...], seq: int | None, as_json: bool) -> None:
    """Say what every step of the gate answers, which rule decides, and what would allow it.

    \b
      agentctl explain triage http:api.example.com:post
      agentctl explain d-5512
    """
    told: Row = ask(_request(what, seq))
    if as_json:
        print_json(told)
    else:
        click.echo("\n".join(_lines(told)))


def _request(what: tuple[str, ...], seq: int | None) -> Explain:
    if seq is not None and not what:
        return Explain(seq=seq)
    if seq is None and len(what) == 1 and (named := _DECISION.fullmatch(what[0])):
        return Explain(seq=int(named[1]))
    if seq is None and len(what) == 2:
        return _about(*what)
    raise click.UsageError("explain takes an agent and a capability, or a decision: agentctl explain d-5512")


def _about(agent: str, what: str) -> Explain:
    if not what.endswith(_MANIFESTS):
        return Explain(agent=agent, capability=what)
    from agent_os.manifest.model import AgentManifest

    AgentManifest.load(what)  # what is wrong with it is said with its lines
    with open(what, "rb") as file:
        return Explain(agent=agent, manifest=json.load(file) if what.endswith(".json") else tomllib.load(file))


def _lines(told: Row) -> list[str]:
    verdict = told["verdict"]
    colour = {"allow": "green", "ask": "yellow", "refuse": "red"}[verdict]
    head = [(paint(f"{_WORDS[verdict]:<8}", colour), plain(told["what"]))]
    record = f"    audit #{told['seq']}" if told.get("seq") else ""
    held = f"    capability {told['handle']} {told['capability']}".rstrip() if told.get("handle") else ""
    lines = [f"{word}  {text}" for word, text in head]
    lines.append(f"agent     {plain(told['agent'])}{plain(held)}{record}")
    if told.get("because"):
        lines.append(f"because   {plain(told['because'])}")
    rows = [
        (f"{step['step']} {step['name']}", step["answer"], step["rule"], step["where"], step["why"])
        for step in told["steps"]
    ]
    lines += [f"  {line}" for line in table(rows).splitlines()]
    lines += [f"to allow  {plain(command)}" for command in told.get("allow", ())]
    return lines


def _code(told: Row) -> int:
    if told["verdict"] == "allow":
        return 0
    if told["verdict"] == "ask":
        return _EXIT_ASK
    return exit_code(BY_NUMBER[told["number"]](told["detail_code"], told["because"]))
