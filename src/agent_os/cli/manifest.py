"""`agentctl manifest`: what agents are to be, before they are. Lint, show, explain.

Works on files alone: no daemon is asked and nothing changes. Text of a manifest may be a stranger's and is shown
harmless. Exit codes: 2 where a manifest cannot be used, 1 where `--strict` finds something odd.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.cli.changes import say
from agent_os.cli.errors import EXIT_FAILED, exit_code
from agent_os.cli.output import output_option, paint, plain, print_json, shortened, table

if TYPE_CHECKING:
    from agent_os.manifest.problems import Problem
    from agent_os.manifest.reading import Read

_FILE = click.Path(path_type=Path)


@click.group()
def manifest() -> None:
    """Manifests: find what is wrong with them, show them complete, say what their keys give."""


@manifest.command()
@click.argument("paths", type=_FILE, nargs=-1)
@click.option("--strict", is_flag=True, help="End with 1 if anything is odd, too.")
@output_option(names=("manifests.",))
def lint(paths: Sequence[Path], strict: bool, as_json: bool) -> int:
    """Read PATHS and tell every problem with file, line and key. Several files, or a directory, are taken as one fleet:
    names that nobody has and circles of waiting are found as well. Without PATHS: the present directory."""
    from agent_os.manifest.fleet import read_fleet

    chosen = list(paths) or [Path()]
    fleet = read_fleet(chosen, whole=len(chosen) > 1 or chosen[0].is_dir())
    problems, warnings = sorted(fleet.problems), sorted(fleet.warnings)
    if as_json:
        print_json(
            {
                "ok": not problems,
                "manifests": sorted(fleet.read),
                "problems": [asdict(one) for one in problems],
                "warnings": [asdict(one) for one in warnings],
            }
        )
    else:
        _list("error", "red", problems)
        _list("odd", "yellow", warnings)
        say(f"{_count(len(fleet.read), 'manifest')} read, {_count(len(problems), 'problem')}, {len(warnings)} odd")
    if problems:
        return exit_code(EINVAL("manifest", ""))
    return EXIT_FAILED if strict and warnings else 0


@manifest.command()
@click.argument("file", type=_FILE)
@output_option
def show(file: Path, as_json: bool) -> int:
    """Show FILE complete, with all defaults: as TOML, or with --json as JSON."""
    read = _read(file)
    if as_json:
        print_json({"manifest": json.loads(read.manifest.to_json())})
    else:
        click.echo(plain(read.manifest.to_toml(full=True), keep_newlines=True), nl=False)
    _warn(read)
    return 0


@manifest.command()
@click.argument("what", required=False, metavar="[FILE|KEY]")
@output_option(names=("keys.key",))
def explain(what: str | None, as_json: bool) -> int:
    """Say what the keys of FILE give, and which capabilities it asks for. With KEY, such as health or
    health.max_restarts: what that key means. Without either: every key there is."""
    if what is not None and Path(what).is_file():
        return _explain_file(Path(what), as_json)
    if what is not None and ("/" in what or what.endswith((".toml", ".json"))):
        raise ENOENT("manifest.file", f"there is no file {what}", hint="agentctl manifest explain lists every key")
    return _explain_keys(what or "", as_json)


def _explain_keys(prefix: str, as_json: bool) -> int:
    from agent_os.manifest.explaining import reference
    from agent_os.manifest.problems import Flaw

    try:
        rows = reference(prefix)
    except Flaw as flaw:
        hint = flaw.hint or "agentctl manifest explain lists every key"
        raise EINVAL("manifest.key", flaw.message, hint=hint) from None
    if as_json:
        keys = ("key", "takes", "default", "about")
        print_json({"keys": [{key: getattr(row, key) for key in keys} for row in rows]})
        return 0
    shown = [(row.key, _default(row.default), row.takes, row.about) for row in rows]
    click.echo(table(shown, ("KEY", "DEFAULT", "TAKES", "MEANS")))
    return 0


def _explain_file(file: Path, as_json: bool) -> int:
    from agent_os.manifest.explaining import explained

    read = _read(file)
    told = explained(read.manifest)
    if as_json:
        keys = [row._asdict() for row in told.keys]
        print_json({"id": read.manifest.id, "keys": keys, "grants": [one._asdict() for one in told.grants]})
    else:
        click.echo(f"{plain(read.manifest.id)}  {read.manifest.role}\n")
        rows = [(row.key, _value(row.value), _default(row.default), row.about) for row in told.keys]
        click.echo(table(rows, ("KEY", "VALUE", "DEFAULT", "MEANS")))
        click.echo()
        grants = [(one.capability, one.key, "what is allowed of it" if one.adapts else "whole") for one in told.grants]
        click.echo(table(grants, ("ASKS FOR", "BECAUSE OF", "GRANTED")) if grants else "It asks for nothing.")
    _warn(read)
    return 0


def _read(file: Path) -> "Read":
    """One manifest; every problem is the answer where it cannot be read."""
    from agent_os.manifest.problems import ManifestError
    from agent_os.manifest.reading import load

    try:
        return load(file)
    except ManifestError as error:
        for one in error.problems[1:]:  # the first is told by whoever handles the error
            say(plain(str(one)))
        raise


def _warn(read: "Read") -> None:
    for one in read.warnings:
        say(f"odd  {plain(str(one))}")


def _list(word: str, colour: str, problems: "Sequence[Problem]") -> None:
    for one in problems:
        click.echo(f"{paint(word, colour)}  {plain(str(one))}")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _default(value: Any) -> str:
    return "–" if value is None else _value(value)


def _value(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False), 48)
