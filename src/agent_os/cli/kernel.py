"""`agentctl up`, `down`: the kernel itself.

In: flags. Out: one line a fact. `up` stays until Ctrl-C unless it is told to detach, and then takes the kernel down.
"""

import asyncio
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import click

from agent_os.abi.doors import Gateway, Session
from agent_os.abi.errors import EACCES, EHOSTUNREACH, EINVAL, AgentOSError
from agent_os.abi.syscalls import Apply, Down, Leave, Models, Status
from agent_os.abi.text import native
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.changes import say
from agent_os.cli.health import model_names, rules_of
from agent_os.cli.output import paint, plain
from agent_os.client import place
from agent_os.client.config import LEVELS, setting
from agent_os.client.start import connected
from agent_os.client.wire import Client, connect

_TO_LISTEN = 90.0  # seconds
_DEMO = Path(__file__).parent / "demo"
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option("-d", "--detach", is_flag=True, help="Leave it running in the background.")
@click.option("--home", type=click.Path(path_type=Path, file_okay=False), help="The directory of its state.")
@click.option(
    "--min-isolation", type=click.Choice(LEVELS, case_sensitive=False), help="Nothing starts below. Default S2."
)
@click.option("--port", type=click.IntRange(0, 65535), metavar="NUMBER", help="Of the dashboard. Default: 7700.")
@click.option("--no-ui", is_flag=True, help="Only the kernel: no dashboard and no HTTP.")
@click.option("--demo", is_flag=True, help="Declare four small agents to look at; says how to take them away.")
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", help="Where to listen. Beyond loopback it needs TLS.")
@click.option("--public-name", multiple=True, metavar="NAME", help="What browsers call it, beyond loopback.")
@click.option("--cert", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Of TLS, with --key.")
@click.option("--key", type=click.Path(exists=True, dir_okay=False), metavar="FILE", help="Of TLS, with --cert.")
def up(
    detach: bool,
    home: Path | None,
    min_isolation: str | None,
    port: int | None,
    no_ui: bool,
    demo: bool,
    host: str,
    public_name: tuple[str, ...],
    cert: str | None,
    key: str | None,
) -> int:
    """Start the kernel and the dashboard, or adopt a kernel that a run has started, and keep both until Ctrl-C.

    \b
      agentctl up --detach
    """
    wanted = Gateway(
        do="start",
        host=host,
        names=list(public_name),
        cert=cert and os.path.abspath(cert),
        key=key and os.path.abspath(key),
    )
    if port is None:
        port = setting("port").value
    if port is not None:
        wanted.port = wanted.last_port = port
    if home is not None:
        os.environ["AGENT_OS_HOME"] = str(home.absolute())
    if min_isolation is not None:
        os.environ["AGENT_OS_MIN_ISOLATION"] = min_isolation  # for the kernel that this starts
    return asyncio.run(_up(detach, None if no_ui else wanted, demo=demo))


async def _up(detach: bool, gateway: Gateway | None, *, demo: bool) -> int:
    from agent_os.isolation import isolation

    asked = asyncio.Event()
    if not detach:  # from the beginning: whoever presses Ctrl-C early means it, too
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, asked.set)
    async with connected(stay=True, same=True) as (client, new):
        await client.call(Leave(adopt=True), deadline=TO_LOOK)
        facts = await client.call(Status(), deadline=TO_LOOK)
        _line(
            "kernel",
            f"{facts['version']}  pid {facts['pid']}  {place.control_socket()}" + ("" if new else "  (it ran)"),
        )
        _line("home", f"{native(facts['home'])}  {facts['entries']:,} entries in its journal")
        _line("policy", rules_of(facts["policy"]))
        _fleet(facts)
        found = await isolation()
        _line("isolation", found.cause, found.status)
        if found.fix and found.status != "ok":
            say(f"fix   {plain(found.fix)}")
        _line("models", model_names(await client.call(Models(do="list"), deadline=TO_LOOK)))
        if gateway:
            await _open_dashboard(client, gateway, new=new)
        if demo:
            await _declare_demo(client)
        else:
            say("next  agentctl run -- python my_agent.py")
        return 0 if detach else await _until_asked(client, asked)


async def _open_dashboard(client: Client, wanted: Gateway, *, new: bool) -> None:
    """It listens, and its address lets one person in. Settings that cannot be meant end what was started for them; what
    else keeps it from listening is no reason to have no kernel."""
    try:
        found = await client.call(wanted, deadline=_TO_LISTEN)
    except EINVAL:
        if new:
            await _stop(client, Down())
        raise
    except AgentOSError as error:
        _line("dashboard", error.reason, "warn")
        say(f"fix   {plain(error.hint)}")
        return
    code = await client.call(Session(do="code"), deadline=TO_LOOK)
    minutes = round(code["seconds"] / 60)
    _line("dashboard", f"{found['gateway']['url']}/#code={code['code']}   (valid once, {minutes} minutes)")


async def _declare_demo(client: Client) -> None:
    """The agents that ship beside this module, declared as anybody's."""
    folder = _staged()
    files = {str(file): file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.agent.toml"))}
    applied = await client.call(Apply(files=files))
    names = sorted(one["id"].rpartition("/")[2] for one in applied["agents"])
    _line("demo", f"{', '.join(names)} in {folder}")
    say("next  agentctl tree   agentctl approvals   agentctl logs demo-guest   agentctl diff demo-guest")
    say(f"away  agentctl delete {' '.join(names)} --yes")


def _staged() -> Path:
    """A copy of their folder, in the user's own data: a commit must not change this installation."""
    xdg = Path(os.environ.get("XDG_DATA_HOME") or "")
    folder = (xdg if xdg.is_absolute() else Path.home() / ".local/share") / "agent-os" / "demo"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for source in (one for one in _DEMO.iterdir() if one.suffix in (".toml", ".py")):
            shutil.copyfile(source, folder / source.name)
    except OSError as problem:
        raise EACCES(
            "demo.folder", f"{folder} cannot be written: {problem.strerror}", hint="set XDG_DATA_HOME"
        ) from None
    return folder


def _fleet(facts: dict[str, Any]) -> None:
    """Who is declared, and every manifest of the operator's folder that was left out when it booted."""
    if facts["declared"]:
        _line("agents", f"{facts['declared']} declared")
    for problem in facts["left_out"]:
        _line("agents", f"left out: {problem}", "warn")


def _line(name: str, text: str, status: str = "ok") -> None:
    click.echo(f"{paint(status.ljust(5), _COLOURS[status])} {name.ljust(10)}  {plain(text)}")


async def _until_asked(client: Client, asked: asyncio.Event) -> int:
    """Ctrl-C takes it down; so does a terminal that closes. If it ends otherwise, so do we."""
    say("Ctrl-C stops it")
    waiting = [asyncio.create_task(one) for one in (asked.wait(), client.ended())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if asked.is_set():
        await _stop(client, Down())
    else:
        say("the kernel has ended")
    for task in waiting:
        task.cancel()
    return 0


@click.command()
@click.option("--grace", type=click.FloatRange(min=0), default=10.0, metavar="SECONDS", help="Time for agents to end.")
def down(grace: float) -> int:
    """Stop every agent, then the kernel. Returns when both are gone."""

    async def stop() -> None:
        async with connect() as client:
            await _stop(client, Down(grace_s=grace))

    try:
        asyncio.run(stop())
    except EHOSTUNREACH:
        say("no kernel is running")
    return 0


async def _stop(client: Client, request: Down) -> None:
    answer = await client.call(request)
    await client.ended()
    number = answer["agents"] if answer else 0
    say(f"stopped  kernel, process {client.pid}" + (f", and {number} agent{'s' * (number != 1)}" if number else ""))
