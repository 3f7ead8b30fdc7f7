"""Secrets between operators, agents and the safe: what operators ask about them, and the doors of one agent.

In: a recognised operator and a request, or an agent that is being started. Out: an `Act` for the gate, or `Routes`. A
value comes in chunks beside the call, never in its body: bodies are recorded, also those that are refused. Every change
is on the record before it happens, and every use before anything is dialled.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.msgpack import decode, encode

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.drivers.store import Put
from agent_os.kernel.authority import bindings
from agent_os.kernel.authority.secrets import LONGEST, Safe, Shown
from agent_os.kernel.calls import Act, Asked, Done, Stream
from agent_os.kernel.egress.routes import Misuse, Route, Routes, Use, routes_of
from agent_os.kernel.journal import Draft
from agent_os.kernel.outward import Outward, Permission
from agent_os.kernel.signals import KERNEL
from agent_os.kernel.table import Actor, Agent

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

_USES = "secret uses"  # bucket


class Uses(Struct, array_like=True):
    count: int = 0
    last: float = 0.0


# What operators ask.


def _secrets(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request: abi.Secrets = asked.request

    async def do() -> Done:
        return Done(await _do(kernel, caller, request, asked.stream))

    return Act(do)


async def _do(kernel: "Kernel", caller: Actor, request: abi.Secrets, stream: Stream | None) -> Any:
    safe, name = kernel.safe, request.name
    await asyncio.to_thread(safe.open)  # a passphrase takes its time, and a wrong key is told first
    if request.do == "list":
        return {"secrets": [_row(kernel, one) for one in safe.listed()]}
    bindings.require_name(name)
    if request.do in ("set", "rotate"):
        value = await _value(stream)
        change = safe.add if request.do == "set" else safe.rotate
        await _recorded(kernel, caller, request)
        return _row(kernel, await asyncio.to_thread(change, name, value))
    if request.do == "bind":
        words = (request.header, request.field, request.template, request.methods, request.agents)
        binding = bindings.bind(name, request.hosts, *words)
        await _recorded(kernel, caller, request)
        return _row(kernel, await asyncio.to_thread(safe.bind, binding))
    await _recorded(kernel, caller, request)
    if request.do == "unbind":
        return _row(kernel, await asyncio.to_thread(safe.unbind, name))
    await asyncio.to_thread(safe.remove, name)
    return {"name": name}


async def _value(stream: Stream | None) -> bytes:
    """All chunks, as one."""
    if stream is None:
        raise EINVAL("stream", "a value comes beside the call, and there is no stream")
    value = bytearray()
    while (chunk := await stream.receive()) is not None:
        if not isinstance(chunk, bytes):
            raise EINVAL("secret.value", "a value is bytes")
        value += chunk
        if len(value) > LONGEST:
            raise EINVAL("secret.long", f"a secret has at most {LONGEST} bytes")
    return bytes(value)


async def _recorded(kernel: "Kernel", caller: Actor, request: abi.Secrets) -> None:
    """What is about to change, and who does it. Nothing of the value, not even its length or hash."""
    facts: dict[str, Any] = {"event": f"secret {request.do}", "secret": request.name}
    if request.do == "bind":
        facts |= {"hosts": request.hosts, "agents": request.agents, "methods": request.methods}
        facts |= {"header": request.header, "field": request.field}
    puts = [Put(_USES, request.name, None)] if request.do == "remove" else []
    draft = Draft(caller.id, Kind.CHANGE, body=frames.encode_body(facts))
    await kernel.journal.record(draft, sync=True, puts=puts)


def _row(kernel: "Kernel", one: Shown) -> dict[str, Any]:
    uses = _uses(kernel, one.name)
    return {
        "name": one.name,
        "version": one.version,
        "age_s": max(0.0, time.time() - one.made),
        "bindings": [binding.words() for binding in one.bindings],
        "uses": uses.count,
        "last_s": max(0.0, time.time() - uses.last) if uses.count else None,
    }


def _uses(kernel: "Kernel", name: str) -> Uses:
    found = kernel.store.get(_USES, name)
    return decode(found, type=Uses) if found else Uses()


# The doors of one agent.


def routes(safe: Safe, words: Sequence[str], agent: str) -> tuple[Route, ...]:
    """What `--secret` asks for. May take a moment: opening the safe derives its key."""
    return routes_of(words, safe, agent) if words else ()


def doors(kernel: "Kernel", agent: Agent, its: Sequence[Route], outward: Outward) -> Routes | None:
    """Where an agent meets secrets, and where it must not. None where there is nothing to meet."""
    if not its and not kernel.safe.exists:
        return None

    async def permitted(use: Use) -> Permission:
        return await used(kernel, agent, outward, use)

    def misused(misuse: Misuse) -> asyncio.Future[None]:
        return kernel.start(_hold(kernel, agent, misuse))

    return Routes(agent.name, its, kernel.safe, used=permitted, misused=misused)


async def used(kernel: "Kernel", agent: Agent, outward: Outward, use: Use) -> Permission:
    """Permitted by the gate, and written ahead of the connection's own record, which is on disk before anything is
    dialled."""
    permission = await outward.use(use)
    try:
        await _record_use(kernel, agent, use, permission)
    except BaseException:
        permission.drop()
        raise
    return permission


async def _record_use(kernel: "Kernel", agent: Agent, use: Use, permission: Permission) -> None:
    counts = kernel.safe.uses  # several may be under way, and none of them on disk
    count = counts[use.secret] = counts.get(use.secret, _uses(kernel, use.secret).count) + 1
    facts = {"event": "secret use", "secret": use.secret, "version": use.version}
    facts |= {"host": use.host, "port": use.port, "method": use.method}
    draft = Draft(agent.id, Kind.SECRET_USE, agent.incarnation, body=frames.encode_body(facts))
    draft.verdict, draft.isolation = Verdict.ALLOW, agent.isolation
    permission.sign(draft)
    await kernel.journal.record(draft, puts=[Put(_USES, use.secret, encode(Uses(count, time.time())))])


async def _hold(kernel: "Kernel", agent: Agent, misuse: Misuse) -> None:
    """On record, then held still until an operator lets it go on or ends it."""
    facts = {"event": "secret misuse", "secret": misuse.secret, "what": misuse.what, "where": misuse.where}
    draft = Draft(agent.id, Kind.DECISION, agent.incarnation, body=frames.encode_body(facts))
    draft.verdict, draft.rule = Verdict.REFUSE, "secret.misuse"
    await kernel.journal.record(draft, sync=True)
    whose = f"the secret {misuse.secret}" if misuse.secret else "a secret"
    try:
        await kernel.signals.send(KERNEL, agent, AgentSignal.SIGSTOP)
    except AgentOSError:  # it has ended meanwhile
        return
    kernel.guests.notice(
        agent,
        f"held: it sent the {misuse.what} of {whose} to {misuse.where}"
        f"   go on: agentctl resume {agent.name}   end it: agentctl kill {agent.name}",
    )


PREPARE = {BY_REQUEST[abi.Secrets].number: _secrets}
