"""`agentctl backup` and `restore`: a copy of journal and store, taken while everything runs, checked both ways.

A backup is verified after it was written and again before it is restored. It holds the signing key, so only its owner
may read it. A restore needs the kernel down, never goes over a newer log unless told to, and deletes nothing.
"""

from pathlib import Path
from typing import Any, BinaryIO

import click

from agent_os.abi.errors import EHOSTUNREACH
from agent_os.abi.syscalls import Backup
from agent_os.cli.asking import receive
from agent_os.cli.changes import human_size, say
from agent_os.cli.errors import EXIT_TAMPERED
from agent_os.cli.output import output_option, paint, plain, print_json
from agent_os.cli.progress import Progress, progress_option


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--verify-only", is_flag=True, help="Check a backup that is there.")
@progress_option
@output_option
def backup(file: Path, verify_only: bool, shown: bool, as_json: bool) -> int:
    """Copy journal and store to FILE, while agents run, and check the copy. Works without a running kernel, too."""
    from agent_os.client import backups, place

    if not verify_only:
        told = Progress("copying", shown=shown, count=human_size)
        with backups.new_file(file) as target:
            try:
                _receive(target, told)
            except EHOSTUNREACH:
                backups.copy_home(place.home(), target, told)
    with backups.unpacked(file, file.absolute().parent, Progress("checking", shown=shown)) as (_, report):
        pass
    if not report.ok and not verify_only:
        file.unlink()
    return _tell(report, file, "checked" if verify_only else "kept", as_json)


def _receive(target: BinaryIO, told: Progress) -> None:
    from agent_os.client import backups

    writer = backups.Writer(target, told)

    def heard(chunk: Any) -> None:
        if isinstance(chunk, bytes):
            writer.add(chunk)
        else:
            writer.begin(*chunk)

    receive(Backup(), heard, start=False)
    writer.finish()


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--yes", is_flag=True, help="Also over a journal that is newer, or another one.")
@click.option("--verify-only", is_flag=True, help="Check the backup, and restore nothing.")
@output_option
def restore(file: Path, yes: bool, verify_only: bool, as_json: bool) -> int:
    """Put journal and store back as they were in FILE. The kernel must be down: agentctl down.

    What is there now is put aside in the state directory. Agents that ran when the backup was taken go on with the next
    kernel.
    """
    from agent_os.client import backups, place

    home = place.home()
    with backups.locked(home), backups.unpacked(file, home, Progress("checking")) as (unpacked, report):
        if not report.ok or verify_only:
            return _tell(report, file, "checked", as_json)
        if not yes:
            backups.require_older(home, unpacked)
        aside = backups.put_in_place(unpacked, home)
    if aside and not as_json:
        say(f"what was there is in {plain(str(aside))}")
    return _tell(report, file, "restored", as_json, aside)


def _tell(report: Any, file: Path, what: str, as_json: bool, aside: Path | None = None) -> int:
    if as_json:
        facts = {"file": str(file), "entries": report.entries, "log_id": report.log_id, "ok": report.ok}
        print_json({**facts, "first_bad": report.first_bad, "aside": str(aside) if aside else None, what: report.ok})
    elif report.ok:
        size = human_size(file.stat().st_size)
        click.echo(f"{what} {report.entries:,} records, {size}; " + paint("integrity OK", "green"))
    else:
        click.echo(paint(f"integrity FAILED, first bad entry {report.first_bad}; nothing was {what}", "red"))
        for finding in report.findings[:10]:
            click.echo(f"bad  {finding.seq}  {plain(finding.what)}")
    return 0 if report.ok else EXIT_TAMPERED
