"""`agentctl audit`: the signed log. Read it, check it, prove parts of it, take it away.

`verify` needs no kernel: it reads the home's journal, or an export, and never changes it. Its exit code is 10 if
anything was changed, and it names the first bad entry. What proofs say is checked here, not believed.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from agent_os.abi.errors import EHOSTUNREACH, EINVAL, ENOENT
from agent_os.abi.syscalls import Consistency, Events, Export, Head, Prove
from agent_os.cli.asking import ask, receive
from agent_os.cli.changes import human_size, say
from agent_os.cli.errors import EXIT_TAMPERED
from agent_os.cli.events import show
from agent_os.cli.naming import AGENT
from agent_os.cli.output import output_option, paint, plain, print_json
from agent_os.cli.progress import Progress, progress_option

_MOST_SHOWN = 10  # findings
_SHORT = 16  # characters of a hash that a person compares


@click.group()
def audit() -> None:
    """The signed log of everything that happened."""


@audit.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option("-n", "last", type=click.IntRange(0), help="The last so many. Default 20.")
@click.option("--from", "start", type=click.IntRange(1), metavar="SEQ", help="From this entry on.")
@click.option("--to", "end", type=click.IntRange(1), metavar="SEQ", help="Up to this entry.")
@click.option("--agent", type=AGENT, help="Only what this agent or operator did.")
@output_option(names=("entries.seq",))
def tail(follow: bool, last: int | None, start: int | None, end: int | None, agent: str | None, as_json: bool) -> None:
    """Show the newest entries, with all that is recorded of them in JSON."""
    if last is None and start is None:
        last = 20
    request = Events(agent=agent, start=start or 0, end=end, last=last, follow=follow, bodies=True)
    show(request, as_json=as_json)


@audit.command()
@output_option
def head(as_json: bool) -> None:
    """Show the newest signed head: keep it elsewhere, and `audit verify --head FILE` finds whatever was undone."""
    found = ask(Head())
    if as_json:
        names = ("log_id", "root", "policy_digest", "key_id")
        print_json({**found, **{name: found[name].hex() for name in names}})
        return
    click.echo(found["note"], nl=False)
    say(f"{found['size']:,} entries, signed {_minute(found['wall_ns'])}; keep it: agentctl audit head > head.txt")


@audit.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--head", "saved", type=click.Path(path_type=Path), metavar="FILE", help="A head that you kept.")
@click.option("--key", type=click.Path(path_type=Path), metavar="FILE", help="The public key, as keys/journal.pub.")
@click.option("--strict", is_flag=True, help="End with 10 for a gap as well.")
@progress_option
@output_option
def verify(file: Path | None, saved: Path | None, key: Path | None, strict: bool, shown: bool, as_json: bool) -> int:
    """Check the whole log: FILE, an export or a journal; by default that of this home.

    Every entry is hashed again and compared with every signed head. Ends with 10 if anything was changed. Needs no
    running kernel.

    A gap is reported where entries went unsigned for over two seconds: a kernel that was killed and has not booted
    since, a machine that slept, or a recorder that somebody stopped. It ends with 0, or with 10 if --strict.
    """
    from agent_os.client import place

    home = place.home()
    path = file or home / "journal.db"
    if not path.exists():
        raise ENOENT("journal.none", f"there is no journal at {path}", hint="agentctl run -- CMD begins one")
    if file is None:
        key = key or home / "keys" / "journal.pub"
    heads = [one for one in (home / "anchor" / "heads" if file is None else None, saved) if one and one.exists()]
    if saved and not saved.exists():
        raise ENOENT("head.none", f"there is no file {saved}")
    report, minutes = _check(path, key, heads, saved, Progress("checking", shown=shown))
    if as_json:
        import msgspec

        print_json({"ok": report.ok, "first_bad": report.first_bad, **msgspec.to_builtins(report)})
    else:
        _print_report(report, minutes, own=file is None and saved is None)
    return EXIT_TAMPERED if not report.ok or (strict and report.gaps) else 0


def _check(
    path: Path, key: Path | None, heads: Sequence[Path], saved: Path | None, progress: Progress
) -> tuple[Any, list[str]]:
    """What the verifier says, and of when the saved heads are."""
    from agent_os.abi.heads import parse_note, split_notes
    from agent_os.client.verify import verify as check

    trusted = key.read_text() if key and key.exists() else None
    minutes: list[str] = []
    if saved:
        try:
            minutes = [_minute(parse_note(note).head.wall_ns) for note in split_notes(saved.read_bytes())]
        except (ValueError, KeyError) as problem:
            raise EINVAL("head.unreadable", f"{saved} holds something else than signed heads: {problem}") from None
        if not minutes:
            raise EINVAL("head.unreadable", f"there is no signed head in {saved}", hint="agentctl audit head > FILE")
    if not heads:
        return check(path, key=trusted, progress=progress), minutes
    with tempfile.NamedTemporaryFile() as together:
        for one in heads:
            together.write(one.read_bytes())
        together.flush()
        return check(path, key=trusted, anchor=Path(together.name), progress=progress), minutes


def _print_report(report: Any, minutes: Sequence[str], *, own: bool) -> None:
    chain = "chain ok" if report.ok else f"chain BROKEN at {report.first_bad}"
    parts = [f"records {report.entries:,}", chain, f"heads {report.heads:,}, {report.signed:,} records signed"]
    if report.erased:
        parts.append(f"{report.erased:,} bodies erased")
    if minutes and report.ok:
        parts.append(f"saved head of {minutes[-1]} is a prefix")
    click.echo("   ".join(parts))
    for finding in [*report.findings[:_MOST_SHOWN], *report.gaps[:_MOST_SHOWN]]:
        word = "bad" if finding in report.findings else "gap"
        through = f"–{finding.through}" if finding.through != finding.seq else ""
        click.echo(f"{word}  {finding.seq}{through}  {plain(finding.what)}")
    if report.ok and report.gaps:
        gaps = f"{len(report.gaps):,} gaps" if len(report.gaps) > 1 else "a gap"
        click.echo(paint(f"integrity OK, with {gaps} in which nobody signed", "yellow"))
    elif report.ok:
        click.echo(paint("integrity OK", "green"))
    else:
        click.echo(paint(f"integrity FAILED, first bad entry {report.first_bad}", "red"))
    if report.ok and own:
        say("against whoever holds this machine only a head kept elsewhere helps: agentctl audit verify --head FILE")
    elif report.ok and not report.pinned:
        say("no key was given, so the log vouches for itself: --key FILE")


@audit.command()
@click.argument("seq", type=click.IntRange(1))
@click.option("--size", type=click.IntRange(1), metavar="N", help="In the log of so many entries, not the newest.")
@output_option
def prove(seq: int, size: int | None, as_json: bool) -> int:
    """Prove that entry SEQ is in the log of a signed head, without showing any other entry."""
    from agent_os.abi.tree import leaf_hash, verify_inclusion

    said = ask(Prove(seq=seq, size=size))
    leaf = leaf_hash(said["entry"])
    good = verify_inclusion(leaf, seq - 1, said["size"], said["proof"], said["root"]) and _fits(said, "root", "size")
    facts = {"seq": seq, "size": said["size"], "leaf": leaf.hex(), "root": said["root"].hex(), "ok": good}
    if as_json:
        print_json({**facts, "entry": said["entry"].hex(), "proof": _hex(said["proof"]), "head": said["head"]})
    else:
        _print_proof(good, f"entry {seq} is in the log of {said['size']:,}", said["proof"], facts["root"], said["head"])
    return 0 if good else EXIT_TAMPERED


@audit.command()
@click.argument("first", type=click.IntRange(1))
@click.argument("second", type=click.IntRange(1), required=False)
@output_option
def consistency(first: int, second: int | None, as_json: bool) -> int:
    """Prove that the log of SECOND entries (default: of the newest head) begins with the log of FIRST."""
    from agent_os.abi.tree import verify_consistency

    said = ask(Consistency(first=first, second=second))
    second = int(said["second"])
    roots = said["first_root"], said["second_root"]
    good = verify_consistency(first, second, said["proof"], *roots) and _fits(said, "second_root", "second")
    if as_json:
        facts = {"first": first, "second": second, "first_root": roots[0].hex(), "second_root": roots[1].hex()}
        print_json({**facts, "ok": good, "proof": _hex(said["proof"]), "head": said["head"]})
    else:
        what = f"the log of {second:,} begins with that of {first:,}, root {roots[0].hex()[:_SHORT]}…"
        _print_proof(good, what, said["proof"], roots[1].hex(), said["head"])
    return 0 if good else EXIT_TAMPERED


def _fits(said: dict[str, Any], root: str, size: str) -> bool:
    """The head that came with a proof is one of that tree."""
    from agent_os.abi.heads import parse_note

    if said["head"] is None:
        return True
    head = parse_note(said["head"].encode()).head
    return head.root == said[root] and head.size == said[size]


def _print_proof(good: bool, what: str, proof: Sequence[bytes], root: str, note: str | None) -> None:
    signed = "signed" if note else "no head of that size was signed"
    click.echo(f"{what}: {len(proof)} hashes, root {root[:_SHORT]}… ({signed})" if good else f"NOT PROVED: {what}")
    click.echo(paint("proof OK", "green") if good else paint("proof FAILED", "red"))


@audit.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--to", "end", type=click.IntRange(1), metavar="SEQ", help="As of this entry.")
@click.option("--no-bodies", is_flag=True, help="Leave out what was asked and answered; the proofs hold without.")
@output_option
def export(file: Path, end: int | None, no_bodies: bool, as_json: bool) -> int:
    """Write the log to FILE, for an auditor: agentctl audit verify FILE checks it anywhere."""
    from agent_os.client import backups, place

    home = place.home()
    with backups.new_file(file) as target:
        try:
            receive(Export(end=end, bodies=not no_bodies), target.write, start=False)
        except EHOSTUNREACH:
            if end is not None or not (home / "journal.db").exists():
                raise
            _export_offline(home / "journal.db", target, bodies=not no_bodies)
        target.flush()
        key = home / "keys" / "journal.pub"
        written = Path(f"/proc/{os.getpid()}/fd/{target.fileno()}")
        report, _ = _check(written, key, [], None, Progress("checking"))
        size = target.tell()
    if as_json:
        print_json({"file": str(file), "entries": report.entries, "bytes": size, "ok": report.ok})
    else:
        good = "integrity OK" if report.ok else f"integrity FAILED, first bad entry {report.first_bad}"
        click.echo(f"exported {report.entries:,} records, {human_size(size)}; {good}")
        say(f"an auditor needs {plain(str(key))} beside it")
    return 0 if report.ok else EXIT_TAMPERED


def _export_offline(journal: Path, target: Any, *, bodies: bool) -> None:
    """No kernel runs: the file itself is read."""
    from agent_os.client import sources

    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "export"
        sources.export(journal, whole, bodies=bodies)
        with whole.open("rb") as file:
            shutil.copyfileobj(file, target)


def _hex(hashes: Sequence[bytes]) -> list[str]:
    return [one.hex() for one in hashes]


def _minute(wall_ns: int) -> str:
    return datetime.fromtimestamp(wall_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
