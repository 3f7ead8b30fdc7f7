"""`agentctl diff`, `commit`, `discard`, `snapshot`: look at what an agent changed, and decide.

In: a workspace's name, or the current directory. Out: the changes on stdout; what happened and what is next on stderr.
All deciding is the kernel's; names and contents come from an agent and are shown escaped.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent_os import daemon
from agent_os.abi.errors import EINVAL
from agent_os.cli.changes import count, say, show, show_patches, tell
from agent_os.cli.output import age, output_option, plain, print_json, table

if TYPE_CHECKING:
    from agent_os.kernel.workspace import Workspace
    from agent_os.kernel.workspace.changes import Change
    from agent_os.kernel.workspace.landing import Report

EXIT_FAILED = 1
EXIT_CONFLICT = 9
_PROGRESS_S = 5


@click.command()
@click.argument("name", required=False)
@click.option("--patch", is_flag=True, help="Show the text of each change.")
@output_option
def diff(name: str | None, patch: bool, as_json: bool) -> None:
    """Show what an agent changed in its workspace.

    NAME is the latest workspace of the current directory unless given.
    """
    workspace = _find(name)
    changes = workspace.diff()
    if as_json:
        entries = [_entry(change) | ({"patch": workspace.patch(change)} if patch else {}) for change in changes]
        print_json({**_about(workspace), "running": workspace.running, "changes": entries})
        return
    say(f"{workspace.name}  {workspace.meta.mode} of {plain(workspace.meta.project)}")
    show(changes)
    if patch:
        show_patches(workspace, changes)
    say(count(changes))
    if changes and not workspace.running:
        say(f"next  agentctl commit {workspace.name}   or   agentctl discard {workspace.name}")


@click.command()
@click.argument("name", required=False)
@click.option("--allow-protected", is_flag=True, help="Also commit files that tools execute or read as configuration.")
@click.option("--only", metavar="PATH", multiple=True, help="Commit this path alone. Repeatable.")
@click.option("--yes", is_flag=True, help="Do not ask; protected files stay out unless --allow-protected.")
@click.option("--dry-run", is_flag=True, help="Say what would happen and change nothing.")
@output_option
def commit(
    name: str | None, allow_protected: bool, only: tuple[str, ...], yes: bool, dry_run: bool, as_json: bool
) -> int:
    """Write an agent's changes to the real directory.

    NAME is the latest workspace of the current directory unless given. Protected files need --allow-protected, or a
    person's yes to that very change. Ends with 9 when the project changed in the same places.
    """
    workspace = _find(name)
    report = workspace.commit(
        allow_protected=allow_protected, paths=only or None, dry_run=dry_run, progress=_progress()
    )
    if report.withheld and not (yes or dry_run or as_json) and _interactive():
        report = _ask_for_protected(workspace, report, only)
    if report.complete and not only:
        workspace.discard()
    if as_json:
        print_json({**_about(workspace), **_result(report)})
    else:
        show(report.committed)
        tell(workspace, report, removed=report.complete and not only)
    if report.conflicts:
        return EXIT_CONFLICT
    return EXIT_FAILED if report.failed else 0


@click.command()
@click.argument("name", required=False)
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def discard(name: str | None, yes: bool, as_json: bool) -> None:
    """Throw an agent's changes away.

    NAME is the latest workspace of the current directory unless given. The project itself was never touched.
    """
    workspace = _find(name)
    changes = workspace.diff()
    if changes and not yes:
        if not _interactive():
            raise EINVAL(
                "confirm",
                f"{workspace.name} holds {count(changes)}, which would be lost",
                hint=f"agentctl discard {workspace.name} --yes",
            )
        show(changes)
        click.confirm(f"Throw away {count(changes)} of {workspace.name}?", abort=True, err=True)
    workspace.discard()
    if as_json:
        print_json({**_about(workspace), "discarded": len(changes)})
    else:
        say(f"discarded {workspace.name}: {count(changes)}")


@click.command()
@click.argument("name", metavar="[NAME AS]", required=False)
@click.argument("as_name", metavar="", required=False)
@output_option
def snapshot(name: str | None, as_name: str | None, as_json: bool) -> None:
    """Keep the changes of agent NAME, as they are now, under the name AS.

    A running agent is held still while they are copied, and then goes on. Without names: list what is kept.
    `agentctl run --restore AS` starts with a copy of it; diff, commit and discard take its name.

    \b
      agentctl snapshot fix-3f2a before-tests
    """
    if name is None:
        _list_kept(as_json)
        return
    if as_name is None:
        raise click.UsageError("a snapshot needs a name: agentctl snapshot NAME AS")
    kept = asyncio.run(daemon.snapshot(name, as_name))
    changes = kept.diff()
    if as_json:
        print_json({**_about(kept), "of": name, "changes": len(changes)})
        return
    say(f"kept {plain(name)} as {kept.name}: {count(changes)}")
    say(f"next  agentctl run --restore {kept.name} -- CMD   agentctl diff {kept.name}   agentctl commit {kept.name}")


def _list_kept(as_json: bool) -> None:
    kept = daemon.workspaces().list()
    if as_json:
        print_json({"kept": [{**_about(one), "kind": _kind(one), "created": one.meta.born / 1e9} for one in kept]})
        return
    if not kept:
        say("nothing is kept: agentctl run --snapshot NAME -- CMD keeps what it changes")
        return
    rows = [(one.name, _kind(one), age(time.time() - one.meta.born / 1e9), one.meta.project) for one in kept]
    click.echo(table(rows, ("NAME", "KIND", "AGE", "PROJECT")))


def _kind(workspace: "Workspace") -> str:
    return "snapshot" if workspace.meta.snapshot else "running" if workspace.running else "ended"


def _find(name: str | None) -> "Workspace":
    workspaces = daemon.workspaces()
    return workspaces.open(name) if name else workspaces.latest(Path.cwd())


def _interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask_for_protected(workspace: "Workspace", report: "Report", only: tuple[str, ...]) -> "Report":
    """Ordinary changes have landed; what is left is shown in full, and only exactly that is committed on a yes."""
    shown = workspace.diff()
    expected = daemon.digest(shown)
    withheld = [change for change in shown if change.protected]
    say("These files are executed or read as configuration by tools:")
    show(withheld)
    show_patches(workspace, withheld)
    if not click.confirm("Commit them too?", default=False, err=True):
        return report
    more = workspace.commit(allow_protected=True, paths=only or None, expect=expected)
    more.committed[:0] = report.committed
    return more


def _progress() -> "Callable[[Change], None]":
    """A line on stderr every few seconds of a long commit."""
    last, written = time.monotonic(), 0

    def step(_change: "Change") -> None:
        nonlocal last, written
        written += 1
        if time.monotonic() - last >= _PROGRESS_S:
            last = time.monotonic()
            say(f"committed {written:,} entries so far")

    return step


def _about(workspace: "Workspace") -> dict[str, Any]:
    return {"workspace": workspace.name, "mode": workspace.meta.mode, "project": workspace.meta.project}


def _result(report: "Report") -> dict[str, Any]:
    return {
        "dry_run": report.dry_run,
        "complete": report.complete,
        "committed": [_entry(change) for change in report.committed],
        "withheld": [_entry(change) for change in report.withheld],
        "refused": [_entry(change) for change in report.refused],
        "failed": [_entry(change) for change in report.failed],
        "conflicts": [
            {**_entry(found.change), "code": found.code, "reason": found.reason} for found in report.conflicts
        ],
    }


def _entry(change: "Change") -> dict[str, Any]:
    return {
        "path": change.path,
        "kind": change.kind,
        "type": change.type,
        "size": change.size,
        "mode": None if change.mode is None else f"{change.mode:04o}",
        "sha256_old": change.sha256_old,
        "sha256_new": change.sha256_new,
        "protected": change.protected,
        "refused": change.refused,
    }
