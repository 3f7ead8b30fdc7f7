"""What agents and operators ask about tools: SYS_TOOLS and SYS_REGISTER, OP_TOOLS and OP_CALL, each as an `Act`.

In: a request, decoded. Out: what it needs, how it is recorded, and the deed. What an agent registers is for itself and
its descendants, and each call of it is a one-shot run; it is in the store beside the record, so that it is there again
after a crash, and goes with its agent.
"""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, EIO, EMSGSIZE, EPERM, ETYPE, AgentOSError
from agent_os.abi.states import ExitClass, Incarnation
from agent_os.abi.syscalls import BY_REQUEST, Effect
from agent_os.abi.tools import ToolSpec
from agent_os.drivers.store import Put
from agent_os.kernel.authority.capability import Capability, parse
from agent_os.kernel.authority.labels import CLEAN, Label, joined, packed, unpacked, untrusted
from agent_os.kernel.calls import Act, Asked, Done, Need, Way
from agent_os.kernel.egress.naming import is_loopback
from agent_os.kernel.journal import Draft
from agent_os.kernel.table import Ended
from agent_os.kernel.tooling import INTERPRETER, OWN
from agent_os.kernel.tools.registry import Call, Deed, Tool

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.table import Agent

Prepare = Callable[["Kernel", Any, Asked], Act]
LARGEST_CODE = 256 << 10
_LARGEST_SPEC = 128 << 10
_LARGEST_PRINTED = 4 << 20  # bytes of a result as JSON, which is many times as large once it is read


def _tools(kernel: "Kernel", agent: "Agent", asked: Asked) -> Act:
    request = cast("abi.Tools", asked.request)
    found = kernel.tools.seen_by(agent, request.query, request.tag)

    def told() -> Label:
        """What others wrote of their tools is theirs."""
        strangers = (one.name for one in found if one.owner not in ("", agent.id) or one.name.startswith("mcp."))
        return joined(untrusted(f"tool:{name}") for name in strangers)

    rows = [msgspec.to_builtins(one) for one in found]
    if not agent.outside:
        return Act(lambda: Done({"tools": rows}), label=told)
    agents = kernel.outside.agents(agent)
    kept = {"tools": [one["name"] for one in (*rows, *agents)]}  # no replay tells it the same again
    return Act(lambda: Done({"tools": rows, "agents": agents}, kept=kept), label=told)


# What agents add.


def _register(kernel: "Kernel", agent: "Agent", asked: Asked) -> Act:
    request = cast("abi.Register", asked.request)
    if len(request.code.encode(errors="surrogatepass")) > LARGEST_CODE:
        raise EMSGSIZE("tool.code", f"a tool has at most {LARGEST_CODE >> 10} KiB of code")
    if len(asked.raw) > LARGEST_CODE + _LARGEST_SPEC:
        raise EMSGSIZE("tool.spec", f"a tool's spec has at most {_LARGEST_SPEC >> 10} KiB")
    spec = _spec(request.spec)

    def do() -> Done:
        label = kernel.authority.labels.of(agent.id)
        made = add(kernel, agent.id, spec, request.code, label)
        value = msgspec.msgpack.encode([request.spec, request.code, packed(label)])
        row = Put(OWN, f"{agent.id}\0{made.id}", value)
        return Done({"name": made.spec.name, "version": made.spec.version, "digest": made.spec.digest}, [row])

    return Act(do, way=Way.STORE, effect=Effect.IDEMPOTENT, label=lambda: CLEAN)


def _spec(written: dict[str, Any]) -> ToolSpec:
    try:
        spec = msgspec.convert(written, ToolSpec)
    except msgspec.ValidationError as problem:
        raise EINVAL("tool.spec", f"this is no tool: {problem}") from None
    if spec.sandbox not in ("tool", "tool+net", "program"):
        reason = f"{spec.name}: a tool that an agent adds runs in a sandbox of its own"
        raise EPERM("tool.sandbox", reason, hint='sandbox: "tool", or "tool+net" for one with its caller\'s network')
    if spec.secrets or spec.milder or spec.effect == "verifiable":
        raise EPERM("tool.spec", f"{spec.name}: a tool that an agent adds has no secrets, and cannot be verifiable")
    requires = spec.requires or ("tool:call",)
    place = "tool" if spec.sandbox == "program" else spec.sandbox  # for others its code is run apart
    return msgspec.structs.replace(spec, sandbox=place, requires=requires, digest="")


def add(kernel: "Kernel", owner: str, spec: ToolSpec, code: str, label: Label) -> Tool:
    """EEXIST: the same version is there and is another one. `label`: what its owner carries."""
    data = code.encode(errors="surrogatepass")
    weight = len(data) + len(msgspec.msgpack.encode(spec))
    deed = Deed(partial(_run_code, code), digest=sha256(data).digest(), carries=label, weight=weight)
    return kernel.tools.registry.register(spec, deed, owner=owner, foreign=True)


def restore(kernel: "Kernel") -> None:
    """What agents of before a crash had added. What is no tool any more, as one of that name is there for all by now,
    is left out: its owner is told that there is none."""
    for key, kept in kernel.store.items(OWN):
        written, code, label = msgspec.msgpack.decode(kept)
        with suppress(AgentOSError):
            add(kernel, key.partition("\0")[0], _spec(written), code, unpacked(label))


async def _run_code(code: str, call: Call) -> Any:
    """Its parameters on standard input, its result on standard output, both JSON."""
    runs = call.under.kernel.tools.means(call).runs
    stdin = json.dumps(call.params).encode()
    argv, spec = [INTERPRETER, "-I", "-c", code], call.tool.spec
    ran = await runs.run(argv, stdin=stdin, timeout_s=spec.timeout_s, network=spec.sandbox == "tool+net")
    said = ran.stderr[-2000:].decode(errors="replace")
    if ran.timed_out or ran.too_large or ran.code != 0:
        why = "took too long" if ran.timed_out else "wrote too much" if ran.too_large else f"ended with {ran.code}"
        raise EIO("tool.failed", f"{call.tool.id} {why}", stderr=said, ran=True)
    if len(ran.stdout) > _LARGEST_PRINTED:
        reason = f"{call.tool.id} printed more than {_LARGEST_PRINTED >> 20} MiB of JSON"
        raise EMSGSIZE("tool.output", reason, hint="write it to a file below /work", ran=True)
    try:
        return msgspec.json.decode(ran.stdout) if ran.stdout.strip() else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ETYPE("tool.output", f"{call.tool.id} printed no JSON: {problem}", stderr=said, ran=True) from None


# What operators ask.


def _looked_at(kernel: "Kernel", caller: Any, asked: Asked) -> Act:
    request = cast("abi.ToolsOf", asked.request)
    registry = kernel.tools.registry

    def do() -> Done:
        if request.name:
            return Done({"tools": [_whole(one) for one in registry.versions_of(request.name)]})
        if request.agent is not None:
            found = kernel.tools.seen_by(kernel.table.find(request.agent), request.query, request.tag)
            return Done({"tools": [msgspec.to_builtins(one) for one in found]})
        return Done({"tools": [_row(one) for one in registry.all(request.query, request.tag)]})

    return Act(do)


def _row(tool: Tool) -> dict[str, Any]:
    info = msgspec.to_builtins(tool.info)
    return {**info, "suspended": tool.suspended, **tool.health.metrics.told(), "last_error": tool.health.last_error}


def _whole(tool: Tool) -> dict[str, Any]:
    return {**_row(tool), "spec": msgspec.to_builtins(tool.spec)}


def _call(kernel: "Kernel", caller: Any, asked: Asked) -> Act:
    """As an agent: through the gate, with what it holds. As the operator: in an agent made for this one call, which
    holds what the call needs, and whose record tells of it."""
    request = cast("abi.ToolCall", asked.request)

    async def do() -> Done:
        body = abi.Exec(tool=request.tool, params=request.params, dry_run=request.dry_run, whole=not request.dry_run)
        if request.agent is not None:
            return Done(await _asked(kernel, kernel.table.find_alive(request.agent), body))
        return Done(await _as_operator(kernel, body))

    return Act(do)


async def _as_operator(kernel: "Kernel", body: abi.Exec) -> Any:
    agent = kernel.table.admit(f"tool-{os.urandom(4).hex()}", "context", isolation="none")
    kernel.furnish(agent)
    try:
        act = kernel.tools.prepare(agent, body, "")
        told = frames.encode_body({"kind": "context", "tool": body.tool})
        draft = Draft(agent.id, Kind.SPAWN, agent.incarnation, isolation="none", body=told)
        for need in act.needs:
            agent.holdings.grant(_exactly(need, act.facts), "operator")
        puts = [*kernel.table.puts(agent), *kernel.authority.begin(agent.id, None)]
        await kernel.journal.record(draft, puts=puts)
        agent.become(Incarnation.RUNNING)
        return await _asked(kernel, agent, body)
    finally:
        await kernel.left(agent, Ended(ExitClass.NORMAL, 0, "the call is over"))


def _exactly(need: Need, facts: Mapping[str, Any]) -> Capability:
    """The capability for this one thing."""
    limits = ""
    if need.kind == "shell":
        return parse("shell:execute")
    if need.kind == "http":
        host = need.target.partition("/")[0]
        limits = f"{{port:{facts['port']},scheme:{facts['scheme']}}}"
        if is_loopback(host):
            limits = f"{{loopback:{host}:{facts['port']}}}"
    return parse(f"{need.kind}:{need.target}:{need.action}{limits}")


async def _asked(kernel: "Kernel", agent: "Agent", body: abi.Exec) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def answer(value: msgspec.Raw, error: AgentOSError | None) -> None:
        if answered.done():
            return
        if error:
            answered.set_exception(error)
        else:
            answered.set_result(msgspec.msgpack.decode(value))

    passing = kernel.enter(agent, Asked(BY_REQUEST[abi.Exec].number, frames.encode_body(body)), answer)
    try:
        return await answered
    except asyncio.CancelledError:
        if passing:
            kernel.gate.cancel(passing)
        raise


CALLS: dict[int, Prepare] = {BY_REQUEST[abi.Tools].number: _tools, BY_REQUEST[abi.Register].number: _register}
PREPARE: dict[int, Prepare] = {BY_REQUEST[abi.ToolsOf].number: _looked_at, BY_REQUEST[abi.ToolCall].number: _call}
