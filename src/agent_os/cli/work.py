"""`agentctl diff`, `commit`, `discard`, `snapshot`: look at what an agent changed, and decide.

In: a workspace's name, or the current directory. Out: the changes on stdout; what happened and what is next on stderr.
All deciding is the kernel's; names and contents come from an agent and are shown escaped.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, field

from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import Snapshot, Work
from agent_os.abi.text import native, portable
from agent_os.cli import asking
from agent_os.cli.changes import count, counted, project, say, show, show_patches, tell
from agent_os.cli.naming import AGENT
from agent_os.cli.output import age, output_option, plain, print_json, table
from agent_os.client.start import session
from agent_os.client.wire import Client, at_once

EXIT_FAILED = 1
EXIT_CONFLICT = 9
_PROGRESS_S = 5
_REPORTED = ("committed", "withheld", "refused", "failed")

Entry = dict[str, Any]


class Answer(Struct):
    """What the kernel said of a workspace: facts, and lists of entries."""

    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    lists: dict[str, list[Entry]] = field(default_factory=dict[str, list[Entry]])
    patches: dict[int, str] = field(default_factory=dict[int, str])  # by the number of their change

    @property
    def name(self) -> str:
        return self.facts["workspace"]

    def about(self) -> dict[str, Any]:
        return {"workspace": self.name, "mode": self.facts["mode"], "project": native(self.facts["project"])}


def ask(do: Any, name: str | None = None, **fields: Any) -> Answer:
    """One operation on kept work: of that name, or the latest one of this directory."""
    here = "" if name else portable(os.getcwd())
    request = Work(do=do, name=name or "", directory=here, **fields)

    async def asked() -> Answer:
        async with session() as (client, _):
            return await answered(client, request)

    return at_once(asked())


async def answered(client: Client, request: Work) -> Answer:
    answer, progress = Answer(), _Progress()
    stream = client.stream(request)
    async for chunk in stream:
        match chunk:
            case ["patch", int(index), str(text)]:
                answer.patches[index] = answer.patches.get(index, "") + text
            case ["progress", int(number)]:
                progress.tell(number)
            case [str(what), list(entries)]:
                answer.lists.setdefault(what, []).extend(entries)  # pyright: ignore[reportUnknownArgumentType]
            case _:
                pass
    answer.facts = await stream.result()
    return answer


class _Progress:
    """A line on stderr every few seconds of a long commit."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def tell(self, written: int) -> None:
        if time.monotonic() - self._last >= _PROGRESS_S:
            self._last = time.monotonic()
            say(f"committed {written:,} entries so far")


@click.command()
@click.argument("name", required=False, type=AGENT)
@click.option("--patch", is_flag=True, help="Show the text of each change.")
@click.option(
    "-f",
    "--file",
    "manifests",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="Manifest, or directory: show what agentctl apply would change.",
)
@output_option
def diff(name: str | None, patch: bool, manifests: tuple[Path, ...], as_json: bool) -> None:
    """Show what an agent changed in its workspace.

    NAME is the latest workspace of the current directory unless given. With -f: what declared agents would become.
    """
    if manifests:
        if name or patch:
            raise click.UsageError("-f compares manifests with what is declared, and takes neither NAME nor --patch")
        from agent_os.cli.fleet import differences

        differences(manifests, as_json)
        return
    found = ask("diff", name, patch=patch)
    changes = found.lists.get("changes", [])
    if as_json:
        entries = [
            _entry(change) | ({"patch": found.patches.get(index, "")} if patch else {})
            for index, change in enumerate(changes)
        ]
        print_json({**found.about(), "running": found.facts["running"], "changes": entries})
        return
    say(f"{found.name}  {found.facts['mode']} of {project(found.facts)}")
    show(changes)
    if patch:
        show_patches(found.patches[index] for index in sorted(found.patches))
    say(count(changes))
    if changes and not found.facts["running"]:
        say(f"next  agentctl commit {found.name}   or   agentctl discard {found.name}")


@click.command()
@click.argument("name", required=False, type=AGENT)
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
    paths = [portable(path) for path in only]
    report = ask("commit", name, allow_protected=allow_protected, paths=paths, dry_run=dry_run)
    if report.lists.get("withheld") and not (yes or dry_run or as_json) and _interactive():
        report = _ask_for_protected(report, paths)
    if as_json:
        print_json({**report.about(), **_result(report)})
    else:
        show(report.lists.get("committed", ()))
        tell(report.facts, report.lists, dry_run=dry_run, removed=report.facts["removed"])
    if report.lists.get("conflicts"):
        return EXIT_CONFLICT
    return EXIT_FAILED if report.lists.get("failed") else 0


@click.command()
@click.argument("name", required=False, type=AGENT)
@click.option("--yes", is_flag=True, help="Do not ask.")
@output_option
def discard(name: str | None, yes: bool, as_json: bool) -> None:
    """Throw an agent's changes away.

    NAME is the latest workspace of the current directory unless given. The project itself was never touched.
    """
    found = ask("diff", name)
    changes = found.lists.get("changes", [])
    if changes and not yes:
        if not _interactive():
            raise EINVAL(
                "confirm",
                f"{found.name} holds {count(changes)}, which would be lost",
                hint=f"agentctl discard {found.name} --yes",
            )
        show(changes)
        click.confirm(f"Throw away {count(changes)} of {found.name}?", abort=True, err=True)
    ask("discard", found.name)
    if as_json:
        print_json({**found.about(), "discarded": len(changes)})
    else:
        say(f"discarded {found.name}: {count(changes)}")


@click.group()
def work() -> None:
    """What an agent changed, apart from the project until it is committed. The same verbs stand by themselves, too."""


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
    facts = asking.ask(Snapshot(agent=name, name=as_name))
    kept, counts = facts["workspace"], facts["counts"]
    if as_json:
        about = Answer(facts).about()
        print_json({**about, "of": name, "changes": sum(counts.values()) - counts["protected"] - counts["refused"]})
        return
    say(f"kept {plain(name)} as {kept}: {counted(counts)}")
    say(f"next  agentctl run --restore {kept} -- CMD   agentctl diff {kept}   agentctl commit {kept}")


def _list_kept(as_json: bool) -> None:
    kept = ask("list").lists.get("states", [])
    if as_json:
        told = [{**Answer(one).about(), "kind": one["kind"], "created": one["created"]} for one in kept]
        print_json({"kept": told})
        return
    if not kept:
        say("nothing is kept: agentctl run --snapshot NAME -- CMD keeps what it changes")
        return
    now = time.time()
    rows = [(one["workspace"], one["kind"], age(now - one["created"]), native(one["project"])) for one in kept]
    click.echo(table(rows, ("NAME", "KIND", "AGE", "PROJECT")))


def _interactive() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask_for_protected(report: Answer, paths: list[str | bytes]) -> Answer:
    """Ordinary changes have landed; what is left is shown in full, and only exactly that is committed on a yes."""
    shown = ask("diff", report.name, patch=True)
    changes = shown.lists.get("changes", [])
    withheld = [index for index, change in enumerate(changes) if change["protected"]]
    say("Tools execute or obey these files, or a rule asks about them:")
    show(changes[index] for index in withheld)
    show_patches(shown.patches.get(index, "") for index in withheld)
    if not click.confirm("Commit them too?", default=False, err=True):
        return report
    more = ask("commit", report.name, allow_protected=True, paths=paths, digest=shown.facts["digest"])
    more.lists["committed"] = report.lists.get("committed", []) + more.lists.get("committed", [])
    return more


def _result(report: Answer) -> dict[str, Any]:
    return {
        "dry_run": report.facts["dry_run"],
        "complete": report.facts["complete"],
        **{title: [_entry(change) for change in report.lists.get(title, ())] for title in _REPORTED},
        "conflicts": [
            {**_entry(found), "code": found["code"], "reason": found["reason"]}
            for found in report.lists.get("conflicts", ())
        ],
    }


def _entry(change: Entry) -> Entry:
    """As programs get it: without what is for people."""
    mode = None if change["mode"] is None else f"{change['mode']:04o}"
    return {key: change[key] for key in _SHOWN} | {"path": native(change["path"]), "mode": mode}


_SHOWN = ("path", "kind", "type", "size", "mode", "sha256_old", "sha256_new", "protected", "refused")

for _verb, _called in ((diff, "diff"), (commit, "commit"), (discard, "rollback"), (snapshot, "snapshot")):
    work.add_command(_verb, _called)
