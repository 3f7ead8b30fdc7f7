"""One MCP server that runs: the helper that speaks with it, and the server itself, a guest joined to it or an address.

In: where the server is. Out: a `Speaking`, of which tools ask. The server is an agent of the table, so that rules, the
record and operators find it as they find any other: a command runs as a guest whose output and input are pipes to the
helper, and nothing else joins their sandboxes; an address is reached through a way out that holds this one host. One
half ends with the other.
"""

import asyncio
import importlib.util
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, ENOSYS, AgentOSError
from agent_os.abi.helpers import McpServer, Op, OpenMcp
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.kernel import safe
from agent_os.kernel.egress import Egress, parse_grant
from agent_os.kernel.egress.naming import granted, named
from agent_os.kernel.egress.routes import Route
from agent_os.kernel.helpers import serving
from agent_os.kernel.helpers.link import Answered
from agent_os.kernel.journal import Draft
from agent_os.kernel.outputs import Reader
from agent_os.kernel.running import Run
from agent_os.kernel.table import Agent, Ended, as_file
from agent_os.kernel.tools.working import egress_of

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

T = TypeVar("T", bound=Struct)
Notice = Callable[[str], None]
_TO_LOAD = 30.0  # seconds that our own half may take to start, beside what a server has
_TO_LEAVE = 2.0  # seconds in which one that has closed its output is gone
_LAST_LINES, _MOST_SAID = 12, 1000


class Speaking:
    """`leave`: what ends the server's half."""

    def __init__(self, helper: serving.Helped, leave: Callable[[str], Awaitable[None]]) -> None:
        self.helper, self._leave = helper, leave
        self._over: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self.helper.alive and self._over is None

    async def ask(self, op: int, request: Struct, answer: type[T], *, seconds: float, limit: int = 0) -> Answered[T]:
        return await self.helper.ask(op, request, answer, seconds=seconds, limit=limit)

    async def end(self, why: str) -> None:
        """Nothing of either half is left when this returns."""
        self._over = self._over or asyncio.create_task(self._end(why))
        await asyncio.shield(self._over)

    async def _end(self, why: str) -> None:
        await self.helper.end(why)
        await self._leave(why)


def require_sdk() -> None:
    if importlib.util.find_spec("mcp") is None:
        raise ENOSYS("mcp.extra", "the extra for MCP servers is not installed", hint="pip install 'agent-os[mcp]'")


# A command.


async def run_command(
    kernel: "Kernel", name: str, order: Mapping[str, Any], seconds: float, notice: Notice
) -> Speaking:
    """As a guest of that name. What it writes to its standard error is its log."""
    ends: list[int] = []

    def joined(output: int, input: int) -> None:
        ends.extend((output, input))

    agent = await kernel.guests.start(dict(order), name=name, joined=joined, lived=True, anew=True)
    run = cast("Run", agent.running)

    async def leave(why: str) -> None:
        if not agent.exit:
            with suppress(AgentOSError):  # the journal has failed, and has told everybody
                await kernel.end(agent, Ended(ExitClass.REQUESTED, 0, why))
        if run.task:
            await asyncio.wait([run.task])

    egress = Egress(name, (), lambda connection: None)  # the helper itself has nowhere to go
    try:
        helper = await serving.start(kernel, "mcp", name, egress, streams=(ends[0], ends[1]), notice=notice)
    except BaseException:
        await leave("it was not started")
        raise
    finally:
        for fd in ends:
            os.close(fd)
    if run.task:
        run.task.add_done_callback(lambda _: helper.link.end("its server has ended"))
    speaking = _joined(kernel, Speaking(helper, leave))
    try:
        await _open(speaking, OpenMcp("pipes"), seconds)
    except AgentOSError as problem:
        raise await _with_last_words(kernel, agent, run, problem) from None
    return speaking


async def _with_last_words(kernel: "Kernel", agent: Agent, run: Run, problem: AgentOSError) -> AgentOSError:
    """The problem, with what the server said before it and what it may have missed."""
    if run.task:
        await asyncio.wait([run.task], timeout=_TO_LEAVE)
    said = " ".join(await asyncio.to_thread(_last_lines, kernel, agent, run.output.begins)).strip()[-_MOST_SAID:]
    told = problem.reason
    if agent.exit and agent.exit.exit_class != ExitClass.REQUESTED:
        told = f"{agent.name} ended {agent.exit.code} before it answered"
    problem.reason = f"{told}; its last words: {said}" if said else told
    problem.hint = "; ".join(run.guest.notes) or problem.hint or f"agentctl logs {agent.name}"
    return problem


def _last_lines(kernel: "Kernel", agent: Agent, begins: int) -> list[str]:
    try:
        with closing(Reader(kernel.guests.home, as_file(agent.id), _LAST_LINES, begins)) as log:
            data = log.read(64 << 10)
    except AgentOSError:
        return []
    return data.decode(errors="replace").split("\n")[-_LAST_LINES - 1 :]


# An address.


async def reach(kernel: "Kernel", name: str, url: str, secret: str, seconds: float, notice: Notice) -> Speaking:
    """Through a way out that holds this one host, and by the door that brings the secret to it."""
    agent, routes = await _traveller(kernel, name, url, secret)

    async def leave(why: str) -> None:
        with suppress(AgentOSError):  # the journal has failed, and has told everybody
            await kernel.left(agent, Ended(ExitClass.REQUESTED, 0, why))

    try:
        helper = await serving.start(kernel, "mcp", name, egress_of(kernel, agent, routes=routes), notice=notice)
    except BaseException:
        await leave("it was not started")
        raise
    speaking = _joined(kernel, Speaking(helper, leave))
    parts = urlsplit(url)
    there = parts._replace(scheme="", netloc="", fragment="").geturl()
    await _open(speaking, OpenMcp("http", url=routes[0].url + there if routes else url), seconds)
    return speaking


async def _traveller(kernel: "Kernel", name: str, url: str, secret: str) -> tuple[Agent, tuple[Route, ...]]:
    """An agent without a program that holds the way to one server, and nothing else."""
    host, port = endpoint(url)
    word = f"{secret}={host}" if port == 443 else f"{secret}={host}:{port}"
    routes = await asyncio.to_thread(safe.routes, kernel.safe, [word] if secret else [], name)
    if any((route.host, route.port) != (host, port) for route in routes):
        reason = f"{secret} is not bound to {host}:{port}"
        raise EINVAL("mcp.secret", reason, hint=f"agentctl secrets bind {secret} --host {host}:{port}")
    net = [parse_grant(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")]
    agent = kernel.table.admit(name, "context", isolation="none")
    puts = kernel.authority.anew(agent.id)
    agent.holdings = kernel.authority.holdings(agent.id)
    kernel.furnish(agent)
    for one in granted(net, routes):
        agent.holdings.grant(one, "operator")
    agent.named_hosts = named(net, routes)
    told = frames.encode_body({"kind": "context", "mcp": url})
    draft = Draft(agent.id, Kind.SPAWN, agent.incarnation, isolation="none", body=told)
    puts = [*puts, *kernel.table.puts(agent), *kernel.authority.begin(agent.id, None)]
    await kernel.journal.record(draft, puts=puts)
    agent.become(Incarnation.RUNNING)
    return agent, routes


def endpoint(url: str) -> tuple[str, int]:
    """EINVAL: no address of a server."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.password:
        hint = "https://host/path; a key is a secret: agentctl secrets set, bind, then --secret NAME"
        raise EINVAL("mcp.url", f"{url[:100]!r} is no address of a server", hint=hint)
    return host, port or (443 if parts.scheme == "https" else 80)


# Both.


def _joined(kernel: "Kernel", speaking: Speaking) -> Speaking:
    speaking.helper.link.ended.add_done_callback(lambda why: kernel.start(speaking.end(why.result())))
    return speaking


async def _open(speaking: Speaking, opening: OpenMcp, seconds: float) -> None:
    try:
        await speaking.ask(Op.OPEN, opening, McpServer, seconds=seconds + _TO_LOAD)
    except BaseException:
        await speaking.end("it could not be opened")
        raise
