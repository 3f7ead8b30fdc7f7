"""A dry replay: an agent's program runs against its record, and nothing that it asks for happens.

In: an agent and perhaps an entry to stop at. Out: how many calls matched, or the first that did not. The program runs
isolated as before, with no network and a workspace that is thrown away; on the other end of its socket there is no gate
and no driver, only the record. The agent itself, if it lives, is not touched.
"""

import asyncio
import socket
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import EINVAL, ENOENT, ESRCH, AgentOSError
from agent_os.abi.frames import Hello, Welcome
from agent_os.kernel.authority.handles import Holdings
from agent_os.kernel.calls import Answer, Asked
from agent_os.kernel.connection import Connection
from agent_os.kernel.recorded import Recorded, decode_any
from agent_os.kernel.replay import Replay, deliveries
from agent_os.kernel.resuming import resumable
from agent_os.kernel.table import Agent, qualified

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

_CHECKPOINT = 26
Found = tuple[Entry, bytes | None]


class Script(Struct, frozen=True):
    """What is rehearsed: the record of one life, from its beginning or from a checkpoint with a state."""

    agent: str
    order: dict[str, Any]
    history: list[Found]
    start: dict[str, Any] | None = None


async def rehearse(kernel: "Kernel", name: str, at: int | None) -> dict[str, Any]:
    script = await asyncio.to_thread(_script, kernel, name, at)
    line = deliveries(script.history)
    calls = [one for one in line if one.pos is not None]
    told: dict[str, Any] = {"agent": script.agent, "calls": len(calls), "from": line[0].seq, "to": line[-1].seq}
    told["checkpoint"] = _last_checkpoint(script)
    difference = await _play(kernel, script)
    if difference:
        facts = {"code": difference.code, "reason": difference.reason, "hint": difference.hint, **difference.detail}
        return told | {"match": False, "difference": facts}
    return told | {"match": True, "difference": None}


def _script(kernel: "Kernel", name: str, at: int | None) -> Script:
    agent_id = qualified(name, strict=False)
    row = kernel.table.row(agent_id)
    stored = kernel.store.get("agents", agent_id)
    order = row.order if row else decode_any(stored) if stored else None
    if order is None:
        if not kernel.store.aseq(agent_id):
            raise ESRCH("agent.unknown", f"there is no agent {name!r}", hint="agentctl ps lists who is running")
        reason = f"{name} ended under an earlier kernel, and how it was started is not kept that long"
        raise ENOENT("replay.order", reason, hint=f"agentctl trace {name} shows its record")
    if order.get("kind") != "native":
        reason = f"{name} does not speak to the kernel, so there is no record of calls to run it against"
        raise EINVAL("replay.guest", reason, hint=f"agentctl trace {name} shows what is known of it")
    first = row.first_aseq if row else int(kernel.store.get("lives", agent_id) or 1)
    start, history = _history(kernel, agent_id, first, at)
    if not deliveries(history):
        raise ENOENT("replay.nothing", f"{name} has made no call" + (f" up to entry {at}" if at else ""))
    return Script(agent_id, order, history, start)


def _history(kernel: "Kernel", agent: str, first: int, at: int | None) -> tuple[dict[str, Any] | None, list[Found]]:
    """The entries of this life up to `at`, without those before the newest checkpoint that kept a state. What ended
    with that very checkpoint is told from the beginning: there is nothing after it."""
    lived = [one for one in kernel.journal.scan(agent, first) if at is None or one[0].seq <= at]
    last = max((entry.inc for entry, _ in lived), default=0)  # of the lives before, what that one was taken through
    before = resumable((one for one in lived if one[0].inc < last), unasked=kernel.fleet.spec(agent) is not None)
    lived = [*before, *(one for one in lived if one[0].inc == last)]
    states = {facts["name"]: facts for facts in kernel.checkpoints.of(agent) if facts["state"] is not None}
    for index in range(len(lived) - 1, -1, -1):
        name = _checkpoint_name(lived[index])
        later = lived[index + 1 :]
        if name in states and lived[index][0].aseq > states[name]["aseq"] and deliveries(later):
            return states[name], later
    return None, lived


def _checkpoint_name(found: Found, *, with_state: bool = False) -> str | None:
    entry, body = found
    if entry.kind != Kind.OUTCOME or entry.op != _CHECKPOINT or entry.code or body is None:
        return None
    asked: dict[str, Any] = decode_any(Recorded.of(body).request)
    return None if with_state and asked.get("state") is None else asked["name"]


def _last_checkpoint(script: Script) -> str | None:
    """The newest one with a state. If its call matches, so does the state: bodies are compared whole."""
    names = [name for one in script.history if (name := _checkpoint_name(one, with_state=True))]
    return names[-1] if names else None


async def _play(kernel: "Kernel", script: Script) -> AgentOSError | None:
    """The first difference, or None. Whatever happens, nothing of the process is left."""
    guest, line = await kernel.guests.rehearse(script.order, script.agent)
    ending = asyncio.create_task(guest.finish())
    try:
        stage = _Stage(script)
        line.setblocking(False)
        await stage.open(line)
        done, _ = await asyncio.wait([stage.verdict, ending], return_when=asyncio.FIRST_COMPLETED)
        if stage.verdict not in done:
            stage.replay.ended()
        return await stage.verdict
    finally:
        await guest.kill()
        outcome = await ending
        if outcome.workspace:
            await asyncio.to_thread(outcome.workspace.discard)


class _Cut:
    """Stands where a connection expects the gate: nothing is ever under way that could be cancelled."""

    def cancel(self, passing: object) -> None: ...


class _Stage:
    """What a connection has in place of a kernel: the record, and nothing that could act."""

    def __init__(self, script: Script) -> None:
        self.script, self.gate = script, _Cut()
        self.connections = set[Connection]()
        self.verdict: asyncio.Future[AgentOSError | None] = asyncio.get_running_loop().create_future()
        agent = script.agent
        self._agent = Agent(agent, "native", 0, 1, "", None, Holdings(agent))
        self._line: Connection | None = None
        self.replay = Replay(deliveries(script.history), live=self._live, push=self._push, differs=self._say)

    async def open(self, sock: socket.socket) -> None:
        def admit(connection: Connection, hello: Hello) -> Agent:
            self._line = connection
            asyncio.get_running_loop().call_soon(self.replay.start)  # after its WELCOME
            return self._agent

        def lost(connection: Connection, fault: AgentOSError | None) -> None:
            if fault:
                self._say(fault)
            else:
                self.replay.ended()

        stage = cast("Kernel", self)
        await asyncio.get_running_loop().create_unix_connection(lambda: Connection(stage, admit, lost), sock=sock)

    # What a connection asks of a kernel.

    def enter(self, caller: Agent, asked: Asked, answer: Answer) -> None:
        self.replay.call(asked, answer)

    def greet(self, caller: Agent, welcome: Welcome) -> None:
        welcome.replaying = True
        welcome.input = frames.body(self.script.order.get("input"))
        if start := self.script.start:
            welcome.checkpoint, welcome.state = start["name"], frames.body(start["state"])

    def flush_soon(self, connection: Connection) -> None:
        asyncio.get_running_loop().call_soon(connection.flush)

    # What the replay says.

    def _live(self, held: list[tuple[Asked, Answer]]) -> None:
        """Everything came again. What the program would do next is not asked of anybody."""
        self._say(None)

    def _say(self, difference: AgentOSError | None) -> None:
        if not self.verdict.done():
            self.replay.stop()
            self.verdict.set_result(difference)

    def _push(self, what: str, body: Any) -> None:
        if self._line:
            self._line.push(what, body)
