"""`agentctl memory`: what an agent remembers, now and as it was; and what an operator takes out of it.

In: an agent, a path below /mem, perhaps a moment. Out: tables, contents as they are, a tar archive, or objects. What is
shown in a table was named by an agent, so it is made harmless for a terminal first.
"""

import io
import sys
import tarfile
import time
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import click

from agent_os.abi.doors import Memory
from agent_os.abi.errors import EEXIST, EINVAL
from agent_os.cli.asking import ask, confirm, receive
from agent_os.cli.changes import say
from agent_os.cli.naming import AGENT
from agent_os.cli.output import age, output_option, plain, print_json, shortened
from agent_os.cli.screen import show as show_list
from agent_os.cli.screen import watched
from agent_os.client.values import jsonable

SCOPES = ("working", "episodic", "semantic", "shared")
_PAGE = 500
Row = dict[str, Any]


class Moment(NamedTuple):
    """A number of the journal, or a time of the wall clock."""

    seq: int | None = None
    ns: int | None = None


NOW = Moment()


class _Moment(click.ParamType):
    name = "SEQ|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Moment:
        if isinstance(value, Moment):
            return value
        if str(value).lstrip("#").isdecimal():
            return Moment(int(str(value).lstrip("#")))
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no entry of the journal (10482) and no time (2026-11-17T12:03:00)", param, ctx)
        return Moment(ns=int(moment.timestamp() * 1e9))


_as_of = click.option(
    "--as-of", "moment", type=_Moment(), default=NOW, help="As it was after this entry of the journal, or then."
)
_scope = click.option("--scope", type=click.Choice(SCOPES), help="Only this part of its memory.")


@click.group()
def memory() -> None:
    """What agents remember: look, search, remove, take away."""


@memory.command("ls")
@click.argument("agent", metavar="NAME", type=AGENT)
@click.argument("path", required=False)
@_scope
@_as_of
@output_option(names=("entries.path",))
@watched
def ls(agent: str, path: str | None, scope: str | None, moment: Moment, as_json: bool) -> None:
    """List what an agent keeps in its memory."""
    rows = _listed(agent, _place(path, scope), moment)
    if as_json:
        print_json({"agent": agent, "entries": jsonable(rows)})
        return
    now = time.time_ns()
    cells = [
        (one["path"], str(one["size"]), str(one["version"]), one["writer"], age((now - one["modified"]) / 1e9))
        for one in rows
    ]
    none = f"{plain(agent)} remembers nothing there" if moment == NOW else f"{plain(agent)} remembered nothing then"
    show_list(cells, ("PATH", "SIZE", "VERSION", "WRITER", "AGE"), ("VERSION", "WRITER"), none=none)


def _listed(agent: str, path: str, moment: Moment) -> list[Row]:
    rows: list[Row] = []
    after: str | None = ""
    while after is not None:
        page = ask(Memory(agent=agent, path=path, after=after, max=_PAGE, as_of=moment.seq, as_of_ns=moment.ns))
        rows += page["entries"]
        after = page["next"]
    return rows


@memory.command("cat")
@click.argument("agent", metavar="NAME", type=AGENT)
@click.argument("path")
@click.option("--version", type=click.IntRange(1), help="This version of it; history lists them.")
@_as_of
@output_option
def cat(agent: str, path: str, version: int | None, moment: Moment, as_json: bool) -> None:
    """Print what an entry holds, byte by byte; on a terminal what could steer it is made harmless."""
    request = Memory(do="read", agent=agent, path=_path(path), version=version, as_of=moment.seq, as_of_ns=moment.ns)
    pieces: list[bytes] = []
    found: Row = receive(request, pieces.append)
    data = b"".join(pieces) if found.pop("streamed", False) else found["data"]
    if as_json:
        text = data.decode() if isinstance(data, bytes) and found["text"] else data
        print_json(jsonable({**found, "data": text}))
        return
    raw = data.encode() if isinstance(data, str) else data
    if sys.stdout.isatty():
        click.echo(plain(raw.decode(errors="replace"), keep_newlines=True))
    else:
        sys.stdout.buffer.write(raw)
        sys.stdout.buffer.flush()


@memory.command("history")
@click.argument("agent", metavar="NAME", type=AGENT)
@click.argument("path")
@click.option("-n", "last", type=click.IntRange(1, _PAGE), default=50, show_default=True, help="The last so many.")
@output_option(names=("changes.seq",))
def history(agent: str, path: str, last: int, as_json: bool) -> None:
    """Show who changed an entry and when, the newest first, and which of its versions can still be read."""
    found = ask(Memory(do="history", agent=agent, path=_path(path), max=last))
    if as_json:
        print_json(jsonable(found))
        return
    now = time.time_ns()
    cells = [
        (
            f"#{one['seq']}",
            one["change"],
            str(one["version"] or "-"),
            str(one["size"]),
            one["writer"],
            age((now - one["at_ns"]) / 1e9),
            {"store": "kept", "record": "in the record"}.get(one["source"], "gone" if _had(one) else "-"),
        )
        for one in found["changes"]
    ]
    headings = ("ENTRY", "CHANGE", "VERSION", "SIZE", "WRITER", "AGE", "CONTENT")
    show_list(cells, headings, ("SIZE",), none=f"the record knows of no {plain(path)}")


def _had(one: Row) -> bool:
    return one["change"] in ("written", "appended")


@memory.command("search")
@click.argument("agent", metavar="NAME", type=AGENT)
@click.argument("words", nargs=-1, required=True)
@_scope
@output_option(names=("found.path",))
def search(agent: str, words: tuple[str, ...], scope: str | None, as_json: bool) -> None:
    """Find entries that have all of these words, in their path or their text."""
    found = ask(Memory(do="search", agent=agent, path=_place(None, scope), query=" ".join(words)))
    if as_json:
        print_json(jsonable(found))
        return
    cells = [(one["path"], str(one["hits"]), shortened(one["excerpt"], 80)) for one in found["found"]]
    show_list(cells, ("PATH", "HITS", "TEXT"), none=f"nothing that {plain(agent)} remembers has all of these words")
    if found["more"]:
        say(f"there is more; these are the {len(cells)} with the most hits")


@memory.command("rm")
@click.argument("agent", metavar="NAME", type=AGENT)
@click.argument("path")
@click.option("--if-version", type=click.IntRange(1), help="Only if it is still this version.")
@click.option(
    "--erase", is_flag=True, help="For good: all versions, and what the record holds of them. Needs --reason."
)
@click.option("--reason", metavar="TEXT", default="", help="Why it is erased; the record keeps that.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@output_option
def rm(
    agent: str, path: str, if_version: int | None, erase: bool, reason: str, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Remove an entry from an agent's memory. The record keeps what it was, unless you erase it."""
    where = _path(path)
    if erase != bool(reason.strip()):
        raise click.UsageError("--erase and --reason TEXT go together: the record keeps who erased it, and why")
    if erase:
        _erase(Memory(do="erase", agent=agent, path=where, if_version=if_version, reason=reason), yes, dry_run, as_json)
        return
    rows = [one for one in _listed(agent, where, NOW) if one["path"] == where]
    if not rows:
        raise EINVAL(
            "memory.directory", f"{path} is a directory: one entry at a time", hint=f"agentctl memory ls {agent} {path}"
        )
    if if_version is None:
        if_version = rows[0]["version"]  # what was shown is what goes
    what = f"{where} of {agent}, version {rows[0]['version']}, {rows[0]['size']} bytes"
    if dry_run:
        click.echo(f"would remove {plain(what)}")
        return
    if not yes:
        confirm(f"Remove {plain(what)}?", f"this removes {what}", "agentctl memory rm … --yes")
    gone = ask(Memory(do="remove", agent=agent, path=where, if_version=if_version))
    if as_json:
        print_json({"agent": agent, "path": where, "version": gone["version"]})
    else:
        click.echo(f"removed {plain(what)}")


def _erase(request: Memory, yes: bool, dry_run: bool, as_json: bool) -> None:
    found = ask(Memory(do="history", agent=request.agent, path=request.path, max=_PAGE))["changes"]
    what = f"{request.path} of {request.agent}, with what the record holds of {len(found)} changes"
    if dry_run:
        click.echo(f"would erase {plain(what)}")
        return
    if not yes:
        after = "It cannot be read again by anybody, nor replayed; backups made before keep it."
        confirm(f"Erase {plain(what)}? {after}", f"this erases {what}", "agentctl memory rm … --erase --yes")
    gone = ask(request)
    if as_json:
        print_json({"agent": request.agent, "path": request.path, **gone})
        return
    click.echo(f"erased {plain(request.path)} of {plain(request.agent)}: {gone['entries']} bodies of the record")
    if gone["shared"]:
        say(f"kept  {gone['shared']} of its contents are, byte for byte, also in another entry of a memory")
    for one in gone["left"]:
        who = plain(one["agent"])
        say(f"left  #{one['seq']} of {who} has the same bytes   agentctl events --agent {who}")
    if not gone["scrubbed"]:
        why = "somebody reads the journal just now, or there is no room to write it anew"
        say(f"note  free pages of the journal's file may still hold it: {why}; the next erasure sees to it")


@memory.command("export")
@click.argument("agent", metavar="NAME", type=AGENT)
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@_scope
@_as_of
@output_option
def export(agent: str, file: Path, scope: str | None, moment: Moment, as_json: bool) -> None:
    """Write all of it into a tar archive; - is the standard output."""
    to_stdout = str(file) == "-"
    if not to_stdout and file.exists():
        raise EEXIST("file.exists", f"{file} is there already", hint="give another name, or remove it first")
    request = Memory(do="export", agent=agent, path=_place(None, scope), as_of=moment.seq, as_of_ns=moment.ns)
    if to_stdout:
        told = _archived(request, sys.stdout.buffer)
    else:
        try:
            with file.open("xb") as out:
                told = _archived(request, out)
        except BaseException:
            file.unlink(missing_ok=True)  # half of a memory is none
            raise
    for path in told["gone"]:
        say(f"{plain(path)} is gone: neither the store nor the record has what it was")
    if as_json and not to_stdout:
        print_json({"agent": agent, "file": str(file), "entries": told["count"], "bytes": told["bytes"]})
    else:
        say(f"{told['count']} entries, {told['bytes']} bytes{'' if to_stdout else f' in {plain(str(file))}'}")


def _archived(request: Memory, out: IO[bytes]) -> Row:
    with tarfile.open(fileobj=out, mode="w|") as archive:
        writer = _Archive(archive)
        told: Row = receive(request, writer.heard)
        writer.close()
        return told


class _Archive:
    """Chunks of the kernel, as members of an archive."""

    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._facts: Row | None = None
        self._data = io.BytesIO()

    def heard(self, chunk: tuple[str, Any]) -> None:
        sort, what = chunk
        if sort == "data":
            self._data.write(what)
            return
        self.close()
        self._facts = what

    def close(self) -> None:
        facts, self._facts = self._facts, None
        if facts is None:
            return
        member = tarfile.TarInfo(facts["path"].lstrip("/"))
        member.size, member.mtime, member.mode = self._data.tell(), facts["modified"] // 10**9, 0o600
        member.pax_headers = {"AGENT_OS.version": str(facts["version"]), "AGENT_OS.writer": facts["writer"]}
        self._data.seek(0)
        self._archive.addfile(member, self._data)
        self._data = io.BytesIO()


def _place(path: str | None, scope: str | None) -> str:
    if path and scope:
        raise click.UsageError("a path or --scope, one of them")
    return f"/mem/{scope}" if scope else _path(path or "/mem")


def _path(path: str) -> str:
    """`working/note` means `/mem/working/note`."""
    return path if path.startswith("/") else f"/mem/{path}"
