"""A command of an operator's in the sandbox of an agent that runs: OP_EXEC.

In: whose sandbox, the command, and the client's stream. Out: how it ended. The agent's own init starts it, so it has
the agent's walls, files, network and limits, is held and killed with the agent, and does not outlive it. The agent's
record tells of it before it begins and after it has ended. What it writes goes to the client as fast as that reads:
only the task of this one call ever waits for an agent.
"""

import asyncio
import errno
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from msgspec import Struct

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EACCES, EBUSY, EINVAL, EIO, EMSGSIZE, ENOENT, ESRCH, AgentOSError
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel import guest
from agent_os.kernel.calls import Act, Asked, Done, Stream
from agent_os.kernel.operator import alive
from agent_os.kernel.orders import word
from agent_os.kernel.process import Guest
from agent_os.kernel.pumps import Pipes, Pumps
from agent_os.kernel.running import Run
from agent_os.kernel.table import Actor, Agent
from agent_os.sandbox.beside import Command, End

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Ending = Literal["exited", "timeout", "interrupted", "agent"]
MOST_AT_ONCE = 16  # in one agent
_LONGEST = 128 << 10  # bytes of a command and its variables
_CODES: Mapping[Ending, int] = {"timeout": 124, "interrupted": 130}  # whoever was ended did not succeed
_BY_CLIENT = (signal.SIGTERM, signal.SIGKILL)
_LONGEST_TOLD = 80  # bytes of a command, to whoever looks on


class _Wanted(Struct, frozen=True):
    argv: tuple[str, ...]
    env: Mapping[str, str]
    seconds: float | None


def _exec(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request, stream = cast("abi.Beside", asked.request), asked.stream
    if stream is None:
        raise EINVAL("stream", "there is no stream beside this call")
    wanted = _understood(request)
    _find(kernel, request.agent)  # whoever cannot be asked is refused before anything is announced

    async def do() -> Done:
        return Done(await _run(kernel, caller, request.agent, wanted, stream))

    return Act(do)


def _understood(request: abi.Beside) -> _Wanted:
    argv = tuple(map(word, request.argv))
    if not argv or not argv[0]:
        raise EINVAL("command.none", "no command was given", hint=f"agentctl exec {request.agent} -- ls")
    if any("\0" in word for word in argv):
        raise EINVAL("command.malformed", "a word of the command contains a NUL byte")
    env = guest.parse_env([word(one) for one in request.env], {})
    if sum(map(len, map(os.fsencode, (*argv, *env, *env.values())))) > _LONGEST:
        raise _too_long()
    return _Wanted(argv, env, guest.parse_duration(request.timeout) if request.timeout else None)


def _find(kernel: "Kernel", name: str) -> tuple[Agent, Guest]:
    """A running agent and its process. ESRCH: there is none. EBUSY: it is held, or has enough to do."""
    agent = alive(kernel, name)
    if kernel.halting:
        raise EBUSY("halting", "the kernel is stopping", hint="try again in a moment")
    if not isinstance(agent.running, Run):
        raise ESRCH("agent.process", f"{agent.name} has no process: {_instead(agent)}", hint="agentctl ps")
    found = agent.running.guest
    found.require_alive()
    if agent.held or agent.stopped or found.paused:
        hint = f"agentctl resume {agent.name}"
        raise EBUSY("agent.paused", f"{agent.name} is paused, and so would the command be", hint=hint)
    if len(found.beside) >= MOST_AT_ONCE:
        reason = f"{MOST_AT_ONCE} commands run in the sandbox of {agent.name} already"
        raise EBUSY("exec.many", reason, hint="try again when one of them has ended")
    return agent, found


def _instead(agent: Agent) -> str:
    if agent.outside:
        return "it is a program elsewhere, which calls tools here"
    return "it lives in the program that made it" if agent.kind == "context" else "it is being started, or has ended"


async def _run(kernel: "Kernel", caller: Actor, name: str, wanted: _Wanted, stream: Stream) -> dict[str, Any]:
    agent, found = _find(kernel, name)
    about = {"by": caller.id, "argv": wanted.argv, "env": sorted(wanted.env), "seconds": wanted.seconds}
    entry = await found.told("exec", **about)
    began = time.monotonic()
    try:
        if _find(kernel, name)[1] is not found:
            raise ESRCH("agent.ended", f"{agent.name} has just ended", hint="agentctl ps")
        beside = _Beside(found, wanted, stream)
    except AgentOSError as error:
        found.tell("exec ended", by=caller.id, entry=entry, error=str(error))
        raise
    kernel.guests.notice(agent, f"{_shown(wanted.argv)} is run in its sandbox by {caller.described}")

    async def record() -> None:
        """Whoever has left meanwhile."""
        end = await beside.command.wait()
        seconds = round(time.monotonic() - began, 3)
        facts = {"error": end.why} if end.why else {"code": beside.code(end), "ending": beside.ending(end)}
        found.tell("exec ended", by=caller.id, entry=entry, **facts, seconds=seconds)

    recorded = kernel.start(record())
    end = await beside.carry({"name": agent.name})
    await asyncio.wait([recorded])  # which is not given up with us
    if end.why:
        raise _not_started(wanted.argv[0], agent.name, end.why)
    code = beside.code(end)
    if code is None:
        raise EIO("exec.answer", f"nobody in the sandbox of {agent.name} says how it ended")
    return {"name": agent.name, "code": code, "ending": beside.ending(end), "seconds": time.monotonic() - began}


class _Beside:
    """One command: started, carried, and ended with whoever wants it."""

    def __init__(self, found: Guest, wanted: _Wanted, stream: Stream) -> None:
        self._guest, self._wanted, self._stream = found, wanted, stream
        self._ending: Ending = "exited"
        pipes = Pipes(plain=True, fed=True)
        try:
            if found.process.commands is None:
                raise OSError(errno.EPIPE, "it has no init that could be asked")
            self.command: Command = found.process.commands.start(wanted.argv, wanted.env, pipes.theirs)
        except OSError as problem:
            pipes.give_up()
            raise _not_asked(found.name, problem) from problem
        pipes.started()
        found.beside.add(self.command)
        self._pumps = Pumps(pipes, None, stream, signal=self._heard)

    def ending(self, end: End) -> Ending:
        return "agent" if end.lost and self._ending == "exited" else self._ending

    def code(self, end: End) -> int | None:
        return _CODES.get(self._ending, end.code)

    def _heard(self, number: int) -> None:
        """From the client."""
        if number in _BY_CLIENT:
            self._end("interrupted", number)

    def _end(self, ending: Ending, number: int) -> None:
        """Whatever ends it from now on, this is why."""
        if self._ending == "exited":
            self._ending = ending
        self.command.signal(number)

    async def carry(self, about: Mapping[str, Any]) -> End:
        """Everything it wrote is out when this returns. If this is cancelled, it is killed, and nobody waits for it."""
        clock = asyncio.create_task(self._watch_clock())
        self._pumps.start()
        try:
            await self._stream.send(["started", about])
            end = await self.command.wait()
            self._pumps.let_go()
            await self._pumps.drained()
            return end
        except BaseException:
            self._end("interrupted", signal.SIGKILL)
            raise
        finally:
            clock.cancel()
            self._guest.beside.discard(self.command)
            await self._pumps.stop()

    async def _watch_clock(self) -> None:
        if self._wanted.seconds is not None:
            await self._guest.run_on(self._wanted.seconds)
            self._end("timeout", signal.SIGKILL)


def _shown(argv: Sequence[str]) -> str:
    """As text that can travel: a word may be no UTF-8."""
    return os.fsencode(" ".join(argv))[:_LONGEST_TOLD].decode(errors="replace")


def _too_long() -> EMSGSIZE:
    hint = "give it by its standard input, or as a file"
    return EMSGSIZE("command.long", "the command and its variables are too long", hint=hint)


def _not_asked(name: str, problem: OSError) -> AgentOSError:
    if problem.errno == errno.E2BIG:  # short, but not as it is written to an init
        return _too_long()
    if problem.errno == errno.EAGAIN:
        return EBUSY("exec.silent", f"{name} takes no commands now: {problem.strerror}", hint="agentctl ps")
    return ESRCH("agent.ended", f"{name} cannot be asked any more: {problem.strerror}", hint="agentctl ps")


def _not_started(program: str, name: str, why: str) -> AgentOSError:
    if why == "No such file or directory":
        reason = f"there is no {program} in the sandbox of {name}"
        return ENOENT("command.missing", reason, hint=f"agentctl exec {name} -- ls /usr/bin shows what there is")
    reason = f"{program} could not be started in the sandbox of {name}: {why}"
    return EACCES("command.exec", reason, hint="check its mode, shebang and format, and the agent's limits")


PREPARE = {BY_REQUEST[abi.Beside].number: _exec}
