"""`agentctl run FILE.agent.toml`: declare one agent, follow what it writes over all its lives, and end with its code.

In: a manifest. Out: the agent's output on stdout, news of it on stderr. The first Ctrl-C stops it, the second kills it;
with the terminal gone it runs on, as everything that is declared. It stays declared: `agentctl delete` forgets it.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from agent_os.abi.errors import ENOENT, AgentOSError
from agent_os.abi.syscalls import Apply, Declared, Logs, Start, Stop
from agent_os.cli.agents import ended_with, reached
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.changes import say
from agent_os.cli.errors import EXIT_FAILED, EXIT_NOT_STARTED
from agent_os.cli.fleet import read_all, stay, texts
from agent_os.cli.members import OVER, short
from agent_os.cli.output import plain
from agent_os.cli.tamer import Tamer
from agent_os.client.start import session
from agent_os.client.wire import Client

_BETWEEN_LIVES = 0.2


def run_manifest(path: Path, *, detach: bool, quiet: bool) -> int:
    fleet = read_all([path])
    if len(fleet.read) != 1:
        raise click.UsageError("run takes one manifest; agentctl apply -f takes several")
    return asyncio.run(_run(next(iter(fleet.read)), texts(fleet), detach, quiet))


async def _run(agent: str, files: dict[str, str], detach: bool, quiet: bool) -> int:
    async with session() as (client, new):
        shown = await _written(client, agent)
        await client.call(Apply(files=files))
        await stay(client, new and not quiet)
        starting = asyncio.ensure_future(_start(client, agent))
        if detach:
            await starting
            click.echo(plain(short(agent)))
            return 0
        return await _Following(client, agent, shown, quiet).to_the_end(starting)


async def _start(client: Client, agent: str) -> None:
    """To run it is to want it now, whatever its manifest says of when it starts by itself."""
    row = (await client.call(Declared(agents=[agent]), deadline=TO_LOOK))["agents"][0]
    if row["state"] in OVER or row["activation"] not in ("", "always"):
        await client.call(Start(agent=agent))


async def _written(client: Client, agent: str) -> int:
    """Bytes of its output of earlier runs."""
    size = 0
    stream = client.stream(Logs(agent=agent))
    try:
        async for data in stream:
            size += len(data)
        await stream.result()
    except ENOENT:  # it has never written anything
        return 0
    return size


class _Following:
    def __init__(self, client: Client, agent: str, shown: int, quiet: bool) -> None:
        self._client, self._agent, self._shown, self._quiet = client, agent, shown, quiet
        self._tamer = Tamer() if sys.stdout.isatty() else None
        self._asked = 0
        self._tasks: set[asyncio.Future[Any]] = set()

    async def to_the_end(self, starting: "asyncio.Future[None]") -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            await starting
            over = asyncio.ensure_future(reached(self._client, self._agent, "over"))
            while not over.done():
                await self._copy(follow=True)
                await asyncio.wait([over], timeout=_BETWEEN_LIVES)
            await self._copy(follow=False)
        finally:
            loop.remove_signal_handler(signal.SIGINT)
        return self._told(over.result())

    async def _copy(self, *, follow: bool) -> None:
        """What it writes in this life, from where the last one ended."""
        stream = self._client.stream(Logs(agent=self._agent, follow=follow, skip=self._shown))
        with suppress(ENOENT):  # nothing yet
            async for data in stream:
                self._shown += len(data)
                view = memoryview(self._tamer.feed(data) if self._tamer else data)
                while view:
                    view = view[os.write(1, view) :]
            await stream.result()

    def _told(self, ended: dict[str, Any]) -> int:
        name, why = plain(short(self._agent)), plain(ended["why"] or "")
        if not self._quiet:
            state = ended["state"].partition("(")[0]
            say(f"{name}  {state}{': ' * bool(why)}{why}   agentctl history {name}   agentctl delete {name}")
        if ended["status"] is None:  # it never came to live
            return 0 if ended["state"] == "stopped" else EXIT_NOT_STARTED
        failed = ended["state"].startswith(("failed", "quarantined"))
        return ended_with(ended["status"]) or (EXIT_FAILED if failed else 0)

    def _interrupt(self) -> None:
        self._asked += 1
        self._begin(self._stop(force=self._asked > 1))

    async def _stop(self, *, force: bool) -> None:
        with suppress(AgentOSError):  # it has just ended
            await self._client.call(Stop(agent=self._agent, force=force, reason="Ctrl-C"))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
