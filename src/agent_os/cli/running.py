"""`agentctl run FILE.agent.toml`: declare one agent, follow what it writes over all its lives, and end with its code.

In: a manifest. Out: the agent's output on stdout, news of it on stderr. The first Ctrl-C stops it, the second kills it;
with the terminal gone it runs on, as everything that is declared. It stays declared: `agentctl delete` forgets it.
"""

import asyncio
import math
import os
import signal
import sys
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from agent_os.abi.errors import ENOENT, AgentOSError
from agent_os.abi.syscalls import Apply, Await, Declared, Events, Logs, Start, Stop, Work
from agent_os.cli.agents import ended_with, reached
from agent_os.cli.asking import TO_LOOK
from agent_os.cli.changes import count, say, say_started
from agent_os.cli.entries import Entry
from agent_os.cli.errors import EXIT_FAILED, EXIT_NOT_STARTED
from agent_os.cli.fleet import read_all, texts
from agent_os.cli.members import OVER, short
from agent_os.cli.output import plain, shortened, show_result
from agent_os.cli.tamer import Tamer
from agent_os.cli.work import answered
from agent_os.client.start import session
from agent_os.client.wire import Client

if TYPE_CHECKING:
    from agent_os.manifest.model import AgentManifest


# What an agent tells of its work, in lines for whoever looks on: turns of a model, tools, progress, questions. In:
# entries of the journal with their bodies. Out: a line each, or none. A scripted model is always called so.

_EVENT = "SYS_EVENT"
_LONGEST = 200  # characters of what an agent said
_MOST_NAMED = 10
Facts = Mapping[str, Any]


def told(entry: Entry) -> str:
    """A line; empty: nothing that somebody who looks on must see."""
    body = _map(entry.get("body"))
    if entry["kind"] == "approval" and body.get("state") == "pending":
        verb = "answer" if entry.get("op") == "SYS_ASK" else "approve"
        return f"waits for you  {_question(body)}   agentctl {verb} {body.get('id', '')}"
    if entry["kind"] != "result" or entry.get("op") != _EVENT:
        return ""
    request = _map(body.get("request"))
    return line(str(request.get("kind", "")), _map(request.get("facts")))


def line(kind: str, facts: Facts) -> str:
    match kind:
        case "agent.model":
            return f"{_turn(facts)}  {model(facts)}  {_tokens(_map(facts.get('usage')))}"
        case "agent.tool":
            why = f": {_words(facts['why'])}" if facts.get("why") else ""
            return f"{_turn(facts)}  {_words(facts.get('tool'))}  {_words(facts.get('outcome'))}{why}"
        case "agent.progress":
            done = f"{_number(facts['done']):.0%}  " if facts.get("done") is not None else ""
            return f"{done}{_words(facts.get('text'))}"
        case "agent.compacted":
            before, after = _number(facts.get("before")), _number(facts.get("after"))
            return f"{_turn(facts)}  the history was shortened, {before} to {after}"
        case _:
            return ""


def summary(facts: Facts, said: str = "") -> str:
    """Of `agent.done`: how a run went. `said`: what the reader is told anyway."""
    models = facts.get("models")
    named = cast("list[Any]", models) if isinstance(models, list) else []
    names = ", ".join(map(_words, named[:_MOST_NAMED])) or "no answer of a model"
    scripted = " (scripted)" if facts.get("scripted") else ""
    cost = facts.get("cost_microusd")
    price = "price unknown" if cost is None else f"${_number(cost) / 1e6:.4f}"
    why = _words(facts.get("why"))
    stop = f"stopped ({_words(facts.get('stop'))}): {why}  " if facts.get("stop") != "done" and why not in said else ""
    counts = f"{_counted(facts.get('turns'), 'turn')}, {_counted(facts.get('tool_calls'), 'tool call')}"
    return f"{stop}{names}{scripted}  {counts}, {_tokens(_map(facts.get('usage')))}, {price}"


def model(facts: Facts) -> str:
    """Its name, and that it is a script where it is one."""
    return _words(facts.get("model")) + (" (scripted)" if facts.get("scripted") else "")


def done(entry: Entry) -> Facts | None:
    """What `agent.done` says, if that is what an entry is."""
    request = _map(_map(entry.get("body")).get("request"))
    if entry["kind"] == "result" and entry.get("op") == _EVENT and request.get("kind") == "agent.done":
        return _map(request.get("facts"))
    return None


def _question(body: Facts) -> str:
    question = _map(body.get("args")).get("question")
    if isinstance(question, dict):
        question = _map(question).get("begins")
    return f'"{_words(question)}"' if question else _words(body.get("wants"))


def _counted(number: Any, what: str) -> str:
    return f"{_number(number)} {what}{'' if number == 1 else 's'}"


def _tokens(usage: Facts) -> str:
    return f"{_number(usage.get('input')):,} + {_number(usage.get('output')):,} tokens"


def _turn(facts: Facts) -> str:
    return f"turn {_number(facts.get('turn'))}"


def _number(value: Any) -> int | float:
    """An agent says it, and may say anything."""
    return value if isinstance(value, int | float) and math.isfinite(value) else 0


def _words(value: Any) -> str:
    return shortened(plain(str(value or "")), _LONGEST)


def _map(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


_BETWEEN_LIVES = 0.2


class Instead(NamedTuple):
    """What takes the place of a manifest's own."""

    goal: str = ""
    model: str = ""
    inputs: Mapping[str, str] = {}


def run_manifest(path: Path, instead: Instead, *, detach: bool, quiet: bool) -> int:
    fleet = read_all([path])
    if len(fleet.read) != 1:
        raise click.UsageError("run takes one manifest; agentctl apply -f takes several")
    files = texts(fleet)
    if any(instead):
        files = {file: _with(fleet.manifests[0], instead, path) for file in files}
    return asyncio.run(_run(next(iter(fleet.read)), files, detach, quiet))


def _with(manifest: "AgentManifest", instead: Instead, path: Path) -> str:
    """The manifest with a goal, a model or inputs in place of its own."""
    from agent_os.manifest.settling import runtime
    from agent_os.manifest.writing import to_toml

    program, kind = manifest.program, runtime(manifest.program)
    if kind not in ("model", "python"):
        raise click.UsageError(f"{path} runs a command, which takes neither a goal nor --model or --input")
    if instead.goal and kind == "python":
        raise click.UsageError(f"{path} runs {program.entry}, which takes no goal: --input NAME=VALUE")
    program.goal = instead.goal or program.goal
    program.inputs = {**program.inputs, **instead.inputs}
    if instead.model:
        program.runtime, program.model, program.loop.fallback = kind, instead.model, []
    return manifest.to_json() if path.suffix == ".json" else to_toml(manifest)


async def _run(agent: str, files: dict[str, str], detach: bool, quiet: bool) -> int:
    async with session(same=True) as (client, new):
        shown, since = await _written(client, agent), await _newest(client) + 1
        await client.call(Apply(files=files))
        if new and not quiet:
            say_started(client.pid)
        starting = asyncio.ensure_future(_start(client, agent))
        if detach:
            await starting
            click.echo(plain(short(agent)))
            return 0
        return await _Following(client, agent, shown, since, quiet).to_the_end(starting)


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


async def _newest(client: Client) -> int:
    """The number of the newest entry of the journal."""
    stream, found = client.stream(Events(last=1)), 0
    async for page in stream:
        found = max([found, *(entry["seq"] for entry in page)])
    await stream.result()
    return found


class _Following:
    def __init__(self, client: Client, agent: str, shown: int, since: int, quiet: bool) -> None:
        self._client, self._agent, self._shown, self._since, self._quiet = client, agent, shown, since, quiet
        self._done: Mapping[str, Any] | None = None  # how a run of a model went
        self._tamer = Tamer() if sys.stdout.isatty() else None
        self._asked = 0
        self._tasks: set[asyncio.Future[Any]] = set()

    async def to_the_end(self, starting: "asyncio.Future[None]") -> int:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        telling = asyncio.ensure_future(self._tell(follow=True))
        try:
            await starting
            over = asyncio.ensure_future(reached(self._client, self._agent, "over"))
            while not over.done():
                await self._copy(follow=True)
                await asyncio.wait([over], timeout=_BETWEEN_LIVES)
            await self._copy(follow=False)
        finally:
            telling.cancel()
            loop.remove_signal_handler(signal.SIGINT)
        await asyncio.wait([telling])
        await self._tell(follow=False)
        await self._show_result()
        code = self._told(over.result())
        await self._show_changes()
        return code

    async def _tell(self, *, follow: bool) -> None:
        """What it does and what it waits for, as it happens."""
        stream = self._client.stream(Events(agent=self._agent, start=self._since, follow=follow, bodies=True))
        try:
            async for page in stream:
                for entry in page:
                    self._since = entry["seq"] + 1
                    self._done = done(entry) or self._done
                    if not self._quiet and (line := told(entry)):
                        say(f"{plain(short(self._agent))}  {line}")
        finally:
            stream.cancel()

    async def _show_result(self) -> None:
        ended = await self._client.call(Await(agent=self._agent), deadline=TO_LOOK)
        if ended["result"] is not None and ended["status"] == 0:
            show_result(ended["result"])

    async def _show_changes(self) -> None:
        """What it wrote apart waits for a person; of a project that is written through there is nothing to tell."""
        name = short(self._agent)
        with suppress(AgentOSError):
            changes = (await answered(self._client, Work(do="diff", name=name))).lists.get("changes", [])
            if changes and not self._quiet:
                say(f"{plain(name)}  {count(changes)}   agentctl diff {plain(name)}   agentctl commit {plain(name)}")

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
        if self._done and not self._quiet:
            say(f"{name}  {summary(self._done, why)}")
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
