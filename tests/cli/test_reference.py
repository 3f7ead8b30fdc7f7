"""docs/agentctl.md lists every verb there is, and the verbs and flags that were promised are there."""

import re

import click
import pytest

from abi.test_syscalls import ROOT, reference
from agent_os.cli import main as cli

PAGE = (ROOT / "docs" / "agentctl.md").read_text(encoding="utf-8")

# The table of verbs that the interfaces promise, with their main flags.
PROMISED = {
    "up": "--detach --home --port --no-ui --min-isolation",
    "down": "",
    "init": "--template",
    "doctor": "-o --fix",
    "backup": "--verify-only",
    "restore": "--verify-only --yes",
    "status": "-o",
    "run": "--name --cap --net --budget --timeout --mount --env --commit --allow-protected --detach --rm"
    " --min-isolation",
    "work diff": "",
    "work commit": "--allow-protected",
    "work rollback": "--yes",
    "apply": "--file --dry-run --prune --yes",
    "diff": "--file",
    "delete": "--dry-run --yes",
    "submit": "--agent --priority",
    "queue": "",
    "ps": "-l --role --state --watch -o",
    "tree": "--watch -o",
    "inspect": "-o",
    "history": "--watch -o",
    "manifest lint": "",
    "manifest show": "",
    "manifest explain": "",
    "top": "--once -o",
    "logs": "-f -n --since",
    "trace": "-f --export",
    "events": "-f --type --agent --cursor",
    "signal": "--tree --reason",
    "pause": "--tree --all --reason",
    "resume": "--tree --all --reason",
    "start": "--all",
    "stop": "--all --grace --reason",
    "kill": "--tree --all --grace --reason",
    "restart": "--all --grace --reason",
    "release": "--reason",
    "send": "--timeout",
    "wait": "--for --timeout",
    "checkpoint": "",
    "replay": "--at",
    "approvals": "--watch",
    "approve": "--once --session --always --reason",
    "deny": "--reason",
    "policy check": "",
    "policy test": "",
    "policy diff": "--against",
    "policy apply": "--dry-run",
    "policy rollback": "--dry-run",
    "can": "",
    "explain": "",
    "cap ls": "",
    "cap grant": "--ttl --uses --actions",
    "cap revoke": "",
    "cap tree": "",
    "secrets set": "",
    "secrets ls": "",
    "secrets bind": "--host --header --agent",
    "secrets rotate": "",
    "secrets rm": "--yes",
    "audit tail": "--from --to",
    "audit head": "",
    "audit verify": "--head",
    "audit prove": "",
    "audit consistency": "",
    "audit export": "",
    "memory ls": "--scope --as-of",
    "memory cat": "",
    "memory search": "",
    "memory rm": "--yes",
    "memory export": "",
    "bus topics": "",
    "bus pub": "",
    "bus sub": "-n",
    "bus dead": "",
    "bus redeliver": "",
    "bus drop": "--yes",
    "cost": "--by -o",
    "budget ls": "",
    "budget set": "",
    "budget raise": "",
    "tool ls": "",
    "tool show": "",
    "tool call": "--dry-run",
    "mcp add": "",
    "mcp ls": "",
    "mcp test": "",
    "mcp serve": "",
    "mcp register": "",
    "mcp rm": "--yes",
    "mcp unregister": "--yes",
    "model ls": "",
    "model add": "",
    "model test": "",
    "model rm": "--yes",
    "config view": "--show-origin",
    "config set": "--dry-run",
    "token add": "--role --ttl",
    "token ls": "",
    "token rm": "--yes",
    "ui": "-o",
    "completion": "",
    "version": "",
    "new": "",
}


def command(path: str) -> click.Command | None:
    found: click.Command | None = cli.app
    for word in path.split():
        if not isinstance(found, click.Group):
            return None
        found = found.get_command(click.Context(found), word)
    return found


def test_the_page_has_the_verbs_of_agentctl() -> None:
    assert reference().verbs_page() == PAGE, "run scripts/reference"


def test_every_verb_of_the_page_exists_and_the_other_way_round() -> None:
    listed = {match[1] for match in re.finditer(r"^\| `agentctl ([a-z]+)[ `]", PAGE, re.MULTILINE)}
    assert listed == set(cli.VERBS)


@pytest.mark.parametrize("path", PROMISED)
def test_what_was_promised_is_there(path: str) -> None:
    found = command(path)
    assert found is not None, f"agentctl {path} is not there"
    flags = {name for param in found.params for name in (*param.opts, *param.secondary_opts)}
    assert set(PROMISED[path].split()) <= flags


@pytest.mark.parametrize(
    "path", sorted(path for path in PROMISED if path.split()[-1] in ("ls", "view", "topics", "dead"))
)
def test_every_list_has_all_formats_and_can_be_watched(path: str) -> None:
    found = command(path)
    assert found is not None
    formats = next(param.type for param in found.params if "-o" in param.opts)
    assert isinstance(formats, click.Choice)
    assert set(formats.choices) >= {"table", "wide", "json", "yaml", "name"}
