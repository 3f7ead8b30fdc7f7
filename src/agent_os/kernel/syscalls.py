"""The syscall table of the kernel: number → what understands it.

Each function turns one request into an `Act`: what authority it needs, how it is recorded, and the deed. Nothing
happens here; the gate decides, records, and then acts. Operator operations live in `operator.py`.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EINVAL, EMSGSIZE, ENOSYS, EPERM
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import BY_NUMBER, LATER, Body, Effect
from agent_os.kernel import roles
from agent_os.kernel.authority.labels import CLEAN, Label
from agent_os.kernel.calls import Act, Asked, Done, Need, Way, leave_of
from agent_os.kernel.operations import Handlers, Prepare
from agent_os.kernel.signals import known
from agent_os.kernel.supervisor import bonds
from agent_os.kernel.table import Actor, Agent, Caller
from agent_os.kernel.tools import doors as tools
from agent_os.kernel.vfs import Stream as Content

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

_OPERATORS = frozenset(one.number for one in abi.TABLE if one.operator)
_FINISH = "agent.finish"  # a tool only in name
_MOST_RANDOM = 1024
_LARGEST_SIGNAL = 8192  # bytes; it waits in the kernel until its receiver wants it
_LONGEST_SLEEP = 366 * 24 * 3600 * 1000  # ms
_NEVER: Callable[[], Done] = Done
_ANY = {
    5,
    6,
    7,
    8,
    9,
    18,
    19,
    26,
    38,
    40,
    41,
    44,
    131,
    157,
    161,
    183,
    215,
    230,
    241,
}  # bodies with a part that no schema bounds


def prepare(kernel: "Kernel", caller: Caller, asked: Asked) -> Act:
    """Find, decode, understand. What is wrong with the body names the field; an unknown number names itself."""
    op = asked.op
    if op not in BY_NUMBER:
        later = LATER.get(op)
        raise ENOSYS("op", f"there is no syscall {op}" + (f" yet: {later}" if later else ""))
    operator = op in _OPERATORS
    if operator != caller.operator:
        whom = "operators on the control socket" if operator else "agents"
        raise EPERM("operator", f"{BY_NUMBER[op].name} is for {whom}")
    asked.request = _decode(asked)
    if not isinstance(caller, Actor):
        return PREPARE[op](kernel, caller, asked)
    roles.require(caller, op, asked.request)
    act = kernel.operations[op](kernel, caller, asked)
    act.announced = roles.announced(op, asked.request)
    return act


@cache
def _decoder(op: int) -> Callable[[bytes], Body]:
    return msgspec.msgpack.Decoder(BY_NUMBER[op].request).decode


def _decode(asked: Asked) -> Body:
    raw = asked.raw if asked.raw != b"\xc0" else b"\x80"  # no body is an empty one
    try:
        request = _decoder(asked.op)(raw)
    except frames.UNREADABLE as problem:
        raise EINVAL("body", f"{BY_NUMBER[asked.op].name}: {problem}") from None
    if asked.op in _ANY:
        frames.nesting([getattr(request, name) for name in request.__struct_fields__])
    return request


# Files. The VFS prepares; large data goes by the stream beside the call.


def _read(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Read", asked.request)
    act = kernel.vfs.read(agent.files, request)
    kind, policies = act.needs[0].kind, kernel.authority.policies
    if _measured(kernel, agent, act.needs[0]) or policies.measures(agent.id, kind):
        # What is weighed is what is read, also if it grows meanwhile.
        size = kernel.vfs.extent(agent.files, request)
        act = kernel.vfs.read(agent.files, msgspec.structs.replace(request, length=size))
        act.facts = {**act.facts, "size": size}
    inner = act.do

    def do() -> Any:
        done = inner()
        if isinstance(done, Done):
            return in_chunks(done.value, asked, act, done.label) if isinstance(done.value, Content) else done
        return _then_chunks(done, asked, act)

    act.do = do
    return act


async def _then_chunks(deed: Awaitable[Done], asked: Asked, act: Act) -> Done:
    done = await deed
    return await in_chunks(done.value, asked, act, done.label) if isinstance(done.value, Content) else done


async def in_chunks(content: Content, asked: Asked, act: Act, label: Label | None) -> Done:
    """A large entry as a stream: what it is, then its pieces, each only while the gate allows it. The record keeps its
    hash; a replay reads it again and compares. Where there is no stream (a context in our own process), it is one
    value."""
    hashed, pieces = sha256(), list[Any]()
    try:
        if asked.stream:
            await leave_of(act).bring(label)
            leave_of(act).confirm()
            await asked.stream.send(content.head)
        for chunk in content.chunks:
            hashed.update(chunk.encode() if isinstance(chunk, str) else chunk)
            if asked.stream:
                leave_of(act).confirm()
                await asked.stream.send(chunk)
            else:
                pieces.append(chunk)
    finally:
        content.close()
    kept = {**content.head, "streamed": hashed.digest()}
    if asked.stream:
        return Done(None, kept=kept, label=label)
    return Done({**content.head, "data": ("" if content.text else b"").join(pieces)}, kept=kept, label=label)


def _write(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Write", asked.request)
    if not isinstance(request.data, bytes | str):
        raise EINVAL("body", f"SYS_WRITE: expected bytes or text, got {type(request.data).__name__} - at `$.data`")
    if not request.stream:
        act = kernel.vfs.write(agent.files, request)
        act.facts = {**act.facts, "size": _size(request.data)}
        return act
    upload = kernel.vfs.upload(agent.files, request)
    stream = asked.stream
    if stream is None:
        raise EINVAL("stream", "there is no stream beside this call")

    outside = upload.needs[0].kind == "file"
    measured = _measured(kernel, agent, upload.needs[0])
    act = Act(_NEVER, upload.needs, Way.EFFECT if outside else Way.STORE, Effect.IDEMPOTENT, upload.record)
    act.facts, act.label = upload.facts, upload.label

    async def receive() -> Done:
        try:
            total = 0
            while (chunk := await stream.receive()) is not None:
                total += _size(chunk)
                act.facts = {**upload.facts, "size": total}
                kernel.authority.policies.require_size(agent, upload.needs, act.facts)
                if measured:
                    _require_held(agent, upload.needs, asked.cap, act.facts)  # so much of it is still covered
                    leave_of(act).grow({"bytes": _size(chunk)})
                upload.add(chunk)
            leave_of(act).commit()
            written = upload.end()
            act.answered = written.answered
            deed = written.do()
            done = deed if isinstance(deed, Done) else await deed
            done.spent = {**(done.spent or {}), "bytes": total} if measured else done.spent
            return done
        finally:
            upload.abort()

    act.do = receive
    return act


def _size(data: bytes | str) -> int:
    return len(data) if isinstance(data, bytes) or data.isascii() else len(data.encode(errors="surrogatepass"))


def _measured(kernel: "Kernel", agent: Agent, need: Need) -> bool:
    """Whether it counts for somebody's capabilities how much a call moves: the agent's, or those of whoever shares."""
    holders = [agent.holdings, *(kernel.authority.holdings(one.holder) for one in agent.files.lent(need) or ())]
    return any(held.measures(need.kind) for held in holders)


def _require_held(agent: Agent, needs: Sequence[Need], cap: int | None, facts: Mapping[str, Any]) -> None:
    for need in needs:
        if agent.files.lent(need, facts) is None:
            agent.holdings.find((need,), cap, facts)


def _vfs(method: str) -> Prepare:
    def prepared(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
        return getattr(kernel.vfs, method)(agent.files, asked.request)

    return prepared


# Tools and other agents.


def _exec(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Exec", asked.request)
    if request.tool == _FINISH:
        from agent_os.kernel import people

        return people.finish(agent, request)
    if agent.outside:
        _as_outside(kernel, agent, request)
    asked.patience = None if request.wait_ms is None else request.wait_ms / 1000
    # How long it waits, and by what it is taken up again, is no part of what a person is asked about.
    request = asked.request = msgspec.structs.replace(request, wait_ms=None, state="")
    key = asked.key or f"{kernel.journal.log_id.hex()[:8]}:{agent.id}:{kernel.journal.next_seq}"
    act = kernel.tools.prepare(agent, request, key, cap=asked.cap)
    act.facts = {**act.facts, "args": request.params, "size": len(asked.raw)}
    if agent.outside:
        act.waits = lambda approval: {"state": kernel.outside.state(agent, request.tool, request.params, approval)}
    return act


def _as_outside(kernel: "Kernel", agent: Agent, request: abi.Exec) -> None:
    kernel.outside.require_offered(agent, request.tool)
    if request.state:
        kernel.outside.take_up(agent, request.tool, request.params, request.state)


def _think(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    return kernel.models.prepare(agent, asked)


def _signal(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Signal", asked.request)
    if len(asked.raw) > _LARGEST_SIGNAL:
        raise EMSGSIZE("signal.value", f"a signal with its value has at most {_LARGEST_SIGNAL} bytes")
    target = kernel.table.find_alive(request.agent, hint=False, namespace=agent.namespace)
    signal = known(request.signal)

    async def do() -> Done:
        return Done({"delivered": await kernel.signals.send(agent, target, signal, request.value)})

    needs = kernel.signals.needs(agent, target, signal)

    def told() -> Label:
        """Whether it was masked is the target's doing."""
        return kernel.lives.label(target) if signal.maskable else CLEAN

    return Act(do, needs, Way.EFFECT, Effect.IDEMPOTENT, label=told)


def _spawn(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    from agent_os.kernel import spawning  # which needs Linux, as whoever can spawn does

    return spawning.prepare(kernel, agent, cast("abi.Spawn", asked.request), asked.cap)


def _wait(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Wait", asked.request)

    async def do() -> Done:
        children = [one.id for one in kernel.table.children(agent.id) if request.agent in (None, one.name, one.id)]
        with kernel.models.lends(agent, children):
            told, label = await kernel.wait_for_child(agent, request.agent)
        return Done(told, label=label)

    return Act(do, label=lambda: CLEAN)  # that nobody has ended tells nothing of anybody


def _exit(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Exit", asked.request)

    def do() -> Done:
        agent.last_words = request
        return Done()

    return Act(do, way=Way.STORE, effect=Effect.IDEMPOTENT, answered=lambda: kernel.left_by_itself(agent))


# The agent itself.


def _check_policy(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.CheckPolicy", asked.request)
    other = Asked(request.op, frames.encode_body(request.body))
    return Act(lambda: Done(kernel.gate.dry(agent, other)))


def _checkpoint(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Checkpoint", asked.request)
    return kernel.checkpoints.prepare(agent, request)


def _sleep(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Sleep", asked.request)
    if (request.ms is None) == (request.until_ns is None):
        raise EINVAL("body", "SYS_SLEEP takes ms or until_ns, one of them")
    if (request.ms or 0) > _LONGEST_SLEEP:
        raise EINVAL("body", f"SYS_SLEEP sleeps at most {_LONGEST_SLEEP} ms, a year - at `$.ms`")

    async def do() -> Done:
        if request.until_ns is not None:
            await kernel.sleeps.until(agent, request.until_ns)
        else:
            await kernel.sleeps.sleep(agent, asked, (request.ms or 0) / 1000)
        return Done()

    return Act(do)


def _now(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    return Act(lambda: Done({"wall_ns": time.time_ns(), "mono_ns": time.monotonic_ns()}))


def _random(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    count = cast("abi.Random", asked.request).n
    if not 0 <= count <= _MOST_RANDOM:
        raise EINVAL("body", f"SYS_RANDOM gives 0 to {_MOST_RANDOM} bytes - at `$.n`")
    return Act(lambda: Done(os.urandom(count)))


def _sigmask(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Sigmask", asked.request)
    block, unblock = {known(n) for n in request.block}, {known(n) for n in request.unblock}
    if never := sorted(one for one in block if not one.maskable):
        raise EINVAL("signal.mask", f"{AgentSignal(never[0]).name} cannot be masked")

    def do() -> Done:
        agent.mask |= block - unblock
        later = unblock & agent.mask
        if later:
            kernel.start(kernel.signals.unmask(agent, later))
        return Done({"mask": sorted(agent.mask - later)})

    return Act(do, way=Way.STORE, effect=Effect.IDEMPOTENT)


FILES = {
    "asking": (30,),
    "bus.doors": range(11, 18),
    "elevation": (39,),
    "goals.desk": (37, 38),
    "health": (32, 33),
    "people": range(40, 43),
    "pipes.doors": (18,),
}
PREPARE = Handlers(
    "CALLS",
    FILES,
    {
        1: _read,
        2: _write,
        3: _vfs("open"),
        4: _vfs("close"),
        5: _exec,
        6: _signal,
        7: _check_policy,
        8: _exit,
        9: _spawn,
        10: _wait,
        19: _think,
        21: _vfs("share"),
        22: _vfs("list"),
        23: _vfs("stat"),
        24: _vfs("remove"),
        25: _vfs("watch"),
        26: _checkpoint,
        27: _sleep,
        28: _now,
        29: _random,
        31: _sigmask,
        **bonds.CALLS,
        **tools.CALLS,
    },
)
