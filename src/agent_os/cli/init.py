"""`agentctl init`: an agent to begin with, in a folder: its manifest, its program, rules, and a test of the rules.

Works on files alone. Everything comes from the templates beside this module, with the agent's name put in. Never
overwrites: if a file of the agent is there already, nothing is written; rules that are there stay as they are.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from agent_os.abi.errors import EACCES, EEXIST, EINVAL
from agent_os.cli.changes import say
from agent_os.cli.output import output_option, plain, print_json

_TEMPLATES = Path(__file__).parent / "templates"
_PLACE = "NAME"  # where the agent's name goes, in files and their names
_RULES = {
    "agent-os.toml": "common/agent-os.toml",
    ".agents/policy.toml": "common/policy.toml",
    "policy-cases.toml": "common/policy-cases.toml",
}
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_.-]+")


class Template(NamedTuple):
    about: str
    files: dict[str, str]  # as it is called there → as it is called among the templates
    next: str


TEMPLATES = {
    "code": Template(
        "an agent of your own, in Python",
        {"NAME.agent.toml": "code/agent.toml", "agent.py": "code/agent.py"},
        "agentctl run NAME.agent.toml",
    ),
    "loop": Template(
        "a model, tools and a goal, without code",
        {"NAME.agent.toml": "loop/agent.toml", "NAME.yaml": "loop/script.yaml", "notes.md": "loop/notes.md"},
        "agentctl run NAME.agent.toml",
    ),
    "service": Template(
        "an agent that answers others",
        {"NAME.agent.toml": "service/agent.toml", "service.py": "service/service.py"},
        "agentctl apply -f NAME.agent.toml",
    ),
    "pipeline": Template(
        "agents that hand on typed values",
        {"NAME.agent.toml": "pipeline/agent.toml", "pipeline.py": "pipeline/pipeline.py"},
        "agentctl run NAME.agent.toml",
    ),
    "guest": Template(
        "any program, unmodified",
        {"NAME.agent.toml": "guest/agent.toml", "program.py": "guest/program.py"},
        "agentctl run NAME.agent.toml",
    ),
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".", metavar="[DIR]")
@click.option(
    "--template",
    type=click.Choice(list(TEMPLATES)),
    default="code",
    show_default=True,
    help="; ".join(f"{name}: {one.about}" for name, one in TEMPLATES.items()) + ".",
)
@click.option("--name", metavar="NAME", help="What to call the agent. Default: as the folder is called.")
@output_option(names=("wrote.",))
def init(folder: Path, template: str, name: str | None, as_json: bool) -> int:
    """Write an example agent, rules and a test of the rules into DIR, the present directory unless given. Nothing that
    is there is overwritten."""
    return _begin(folder, template, name, as_json)


@click.command()
@click.argument("template", type=click.Choice(list(TEMPLATES)))
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=".", metavar="[DIR]")
@click.option("--name", metavar="NAME", help="What to call the agent. Default: as the folder is called.")
@output_option(names=("wrote.",))
def new(folder: Path, template: str, name: str | None, as_json: bool) -> int:
    """The same as agentctl init [DIR] --template TEMPLATE."""
    return _begin(folder, template, name, as_json)


def _begin(folder: Path, template: str, name: str | None, as_json: bool) -> int:
    chosen = TEMPLATES[template]
    called = _named(name) if name else _name_of(folder)
    own = {target.replace(_PLACE, called): source for target, source in chosen.files.items()}
    if there := [target for target in own if (folder / target).exists() or (folder / target).is_symlink()]:
        hint = f"agentctl init {folder / called}, or another --name"
        raise EEXIST("init.exists", f"{', '.join(there)} is there already, and nothing was written", hint=hint)
    wrote = list(_write(folder, {**own, **_RULES}, called))
    kept = [target for target in _RULES if target not in wrote]
    if as_json:
        print_json({"name": called, "template": template, "wrote": wrote, "kept": kept})
        return 0
    for target in wrote:
        click.echo(plain(str(folder / target)))
    for target in kept:
        say(f"kept  {plain(str(folder / target))}  was there already")
    where = "" if folder == Path() else f"cd {plain(str(folder))} && "
    say(f"next  {where}{chosen.next.replace(_PLACE, called)}")
    return 0


def _write(folder: Path, files: dict[str, str], called: str) -> Iterator[str]:
    """Those that were not there. A name is never written through: neither over a file nor over a link."""
    for target, source in files.items():
        path = folder / target
        text = (_TEMPLATES / source).read_text(encoding="utf-8").replace(_PLACE, called)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            continue
        except OSError as problem:
            raise EACCES("init.write", f"{path} cannot be written: {problem.strerror}") from problem
        yield target


def _name_of(folder: Path) -> str:
    """As the folder is called, in letters that a name can have."""
    word = _NOT_IN_NAMES.sub("-", folder.resolve().name.lower()).strip("-_.")[:63]
    return word or "agent"


def _named(name: str) -> str:
    if _NOT_IN_NAMES.search(name) or not name[0].isalnum() or len(name) > 63:
        raise EINVAL("init.name", f"{name!r} is no name", hint="a-z, 0-9, '_', '.', '-', a letter or digit first")
    return name
