"""`agentctl run`: any command as an isolated agent, in the foreground.

In: flags and a command. Out: the command's own output and exit code; on stderr, at the end, what was refused and what
it changed. 125 means we could not start it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from agent_os.abi.errors import AgentOSError
from agent_os.cli import terminal
from agent_os.cli.changes import count, say, show, tell
from agent_os.cli.output import plain
from agent_os.cli.streams import Streams

if TYPE_CHECKING:
    from agent_os.kernel.plan import Order
    from agent_os.kernel.process import Guest, Outcome

_MOST_SHOWN = 20


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--workspace",
    metavar="[bind:]DIR|tmpfs",
    help="Project directory, default the current one. Writes are kept apart until you commit them; "
    "bind: writes through at once; tmpfs is empty and gone at the end.",
)
@click.option(
    "--mount", "mounts", multiple=True, metavar="[rw:]SRC[:DST]", help="Show another path, read-only unless rw:."
)
@click.option("--net", multiple=True, metavar="HOST[:PORT]", help="Allow connections to a host. Repeatable.")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]", help="Set a variable, or pass yours on. Repeatable.")
@click.option("--timeout", metavar="10s|5m|1h", help="Kill it after this long; exit code 124.")
@click.option(
    "--limit",
    multiple=True,
    metavar="NAME=VALUE",
    help="Bound it: memory_mb, pids, cpu_pct (of one core), cpu_s, as_mb, nofile, fsize_mb, disk_mb, tmp_mb. "
    "Repeatable.",
)
@click.option("--min-isolation", metavar="S0…S4", help="Refuse to start below this level. Default S2.")
@click.option("--commit", is_flag=True, help="At the end, if it ended 0, write ordinary changes to the project.")
@click.option("--discard", is_flag=True, help="At the end throw the changes away.")
@click.option("--keep", is_flag=True, help="Keep the changes for later. The default.")
@click.option("--snapshot", metavar="NAME", help="Keep the changes under this name, to look at, commit or restore.")
@click.option(
    "--from", "--restore", "origin", metavar="NAME", help="Start with a copy of the changes kept under this name."
)
@click.option("--allow-protected", is_flag=True, help="With --commit: also files that tools execute or obey.")
@click.option("-T", "--no-tty", is_flag=True, help="Plain streams, even if you are at a terminal.")
@click.option("-q", "--quiet", is_flag=True, help="No summary at the end.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    command: tuple[str, ...],
    workspace: str | None,
    mounts: Sequence[str],
    net: Sequence[str],
    env: Sequence[str],
    timeout: str | None,
    limit: Sequence[str],
    min_isolation: str | None,
    commit: bool,
    discard: bool,
    keep: bool,
    snapshot: str | None,
    origin: str | None,
    allow_protected: bool,
    no_tty: bool,
    quiet: bool,
) -> int:
    """Run COMMAND as an isolated agent.

    It sees the current directory at its own path, /usr, its own program and nothing else of this machine. Its writes
    stay apart until you commit them; it reaches the network only where --net allows.

    \b
      agentctl run -- python my_agent.py
      agentctl run --net api.example.com --timeout 10m -- bash -c './fetch && make report'
    """
    if sys.platform != "linux":
        raise click.ClickException(
            f"{sys.platform} has no namespaces to isolate an agent with; run Agent OS inside a Linux VM "
            "(for example with Lima: limactl start, then install it there)"
        )
    from agent_os import daemon  # not before: it needs Linux

    if not command:
        raise click.UsageError("no command was given: agentctl run -- python my_agent.py")
    if commit + discard + keep + (snapshot is not None) > 1:
        raise click.UsageError("--commit, --discard, --keep and --snapshot exclude each other")
    wanted = daemon.order(
        command,
        workspace=workspace,
        mounts=mounts,
        net=net,
        env=env,
        timeout=timeout,
        limit=limit,
        min_isolation=min_isolation,
        origin=origin,
        snapshot=snapshot,
        tty=terminal.size() if terminal.is_interactive() and not no_tty else None,
    )
    try:
        outcome = asyncio.run(_run(wanted))
    except asyncio.CancelledError:  # interrupted twice before there was a guest
        raise click.Abort from None
    if snapshot:
        outcome, kept = _name(outcome, snapshot), True
    else:
        kept = _settle(outcome, "commit" if commit else "discard" if discard else "keep", allow_protected)
    if not quiet:
        _summarise(outcome, kept)
    return outcome.code


async def _run(wanted: "Order") -> "Outcome":
    from agent_os import daemon

    interrupts = _Interrupts()
    if wanted.tty:
        return await _run_on_terminal(wanted, interrupts)
    streams = Streams()
    async with daemon.running(wanted, streams.theirs) as guest:
        streams.started()
        interrupts.concern(guest)
        outcome = await guest.finish()
        await streams.drain(interrupts.hurry)
    return outcome


async def _run_on_terminal(wanted: "Order", interrupts: "_Interrupts") -> "Outcome":
    """The guest has a terminal of its own; ours shows it. There Ctrl-C is a key for the program, until it is pressed
    again without any reaction."""
    from agent_os import daemon

    loop = asyncio.get_running_loop()
    null = os.open(os.devnull, os.O_RDWR)
    async with daemon.running(wanted, (null, null, null)) as guest:
        os.close(null)
        interrupts.concern(guest)
        assert guest.process.terminal is not None
        with terminal.raw():
            link = terminal.Link(guest.process.terminal, lambda: loop.call_soon_threadsafe(interrupts.kill))
            loop.add_signal_handler(signal.SIGWINCH, link.resize)
            link.resize()
            try:
                return await guest.finish()
            finally:
                loop.remove_signal_handler(signal.SIGWINCH)
                await asyncio.to_thread(link.finish)


class _Interrupts:
    """The first Ctrl-C asks the guest to end, the second kills it. One that comes while the guest is being started is
    kept for it, because it may be running already; a second one then gives the start up, which leaves nothing."""

    def __init__(self) -> None:
        self._asked = 0
        self.hurry = asyncio.Event()  # asked twice
        self._guest: Guest | None = None
        self._starting = asyncio.current_task()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def concern(self, guest: "Guest") -> None:
        self._guest = guest
        edge = "\r" if guest.order.tty else ""  # a raw terminal does not go back to the first column by itself
        guest.notice = lambda line: say(f"{edge}{guest.name}  {plain(line)}{edge}")
        if self._asked:
            guest.stop()

    def _interrupt(self) -> None:
        self._asked += 1
        if self._asked > 1:
            self.hurry.set()
        if self._guest is None:
            if self._asked > 1 and self._starting:
                self._starting.cancel()
        elif self._asked == 1:
            self._guest.stop()
        else:
            self.kill()

    def kill(self) -> None:
        if self._guest:
            self._guest.stop(signal.SIGKILL)


def _name(outcome: "Outcome", name: str) -> "Outcome":
    """Keep the state under the name that was asked for; if somebody took that meanwhile, it stays under its own."""
    try:
        return replace(outcome, workspace=outcome.workspace and outcome.workspace.keep_as(name))
    except AgentOSError as error:
        say(f"the state is kept as {outcome.name}, because {plain(error.reason)}")
        return outcome


def _settle(outcome: "Outcome", after: str, allow_protected: bool) -> bool:
    """Do with the changes what was asked; whether a workspace is left to decide about."""
    workspace = outcome.workspace
    if workspace is None:
        return False
    if not outcome.changes:
        after = "discard"
    elif after == "commit" and outcome.code:
        say(f"nothing was committed, because it ended {outcome.code}")
    elif after == "commit":
        report = workspace.commit(allow_protected=allow_protected)
        tell(workspace, report, removed=False)
        after = "discard" if report.complete else "told"
    if after == "discard":
        workspace.discard()
    return after in ("keep", "commit")


def _summarise(outcome: "Outcome", kept: bool) -> None:
    memory, disk = outcome.limits.memory_mb or 0, outcome.limits.disk_mb
    endings = {
        "exited": f"ended {outcome.code}",
        "timeout": "killed by its --timeout",
        "interrupted": "stopped by you",
        "killed": "killed by agentctl kill",
        "disk": f"killed: its workspace outgrew its disk limit of {disk} MB (more: --limit disk_mb={2 * disk})",
        "memory": f"killed: it used more than its memory limit of {memory} MB (more: --limit memory_mb={2 * memory})",
        "launcher": "killed: the launcher ended",
    }
    say(f"{outcome.name}  {endings[outcome.ending]} after {outcome.seconds:.1f} s  isolation {outcome.level}")
    for note in outcome.notes:
        say(f"note  {plain(note)}")
    for refusal in outcome.refusals:
        allow = f"   allow: {refusal.allow}" if refusal.allow else ""
        say(f"refused  {plain(refusal.what)}  {refusal.times}×{allow}")
    if kept:
        name = outcome.workspace.name if outcome.workspace else outcome.name
        hidden = len(outcome.changes) - _MOST_SHOWN
        show(outcome.changes[:_MOST_SHOWN], sys.stderr)
        say(count(list(outcome.changes)) + (f" ({hidden} not shown here)" if hidden > 0 else ""))
        again = (
            f"   agentctl run --restore {name} -- CMD" if outcome.workspace and outcome.workspace.meta.snapshot else ""
        )
        say(f"next  agentctl diff --patch {name}   agentctl commit {name}   agentctl discard {name}{again}")
