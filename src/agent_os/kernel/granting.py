"""What operators ask of capabilities: who holds what and from where, give, take back.

In: a recognised operator and a request of the operator range. Out: an `Act` for the gate. What is given or taken back
is on disk, and what it opened is closed, before the answer leaves. Why something is allowed or not is `explaining`'s.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EINVAL
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel import explaining
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.answers import Standing
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.handles import Handle
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.egress.naming import require_endpoint
from agent_os.kernel.table import NAMESPACE, Actor

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Asked], Act]
_MOST_MS = 366 * 24 * 3600 * 1000


# Look.


def _capabilities(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Capabilities", asked.request)
    agent = kernel.table.find(request.agent).id if request.agent else None

    def do() -> Done:
        held = kernel.authority.everything()
        own = [one for one in held if agent in (None, one.holder)]
        found = _family(held, own) if request.tree else own
        standing = [one for one in kernel.approvals.standing() if agent in (None, one.agent)]
        return Done({"capabilities": [row(one) for one in found], "standing": list(map(_stands, standing))})

    return Act(do)


def _family(held: Sequence[Handle], own: Sequence[Handle]) -> list[Handle]:
    """With all that these were derived from, and what was derived from them."""
    above = {one for handle in own for one in handle.chain()}
    of = set(own)
    return [one for one in held if one in above or not of.isdisjoint(one.chain())]


def row(handle: Handle) -> dict[str, Any]:
    """A capability as doors show it."""
    parent, left = handle.parent, None
    if handle.expiry is not None:
        left = handle.expiry / 1000 - time.time()
    return {
        "handle": f"c-{handle.id}",
        "agent": _name(handle.holder),
        "capability": str(handle.capability),
        "canonical": handle.capability.canonical,
        "origin": handle.origin,
        "parent": f"c-{parent.id}" if parent else None,
        "from": _name(parent.holder) if parent else "operator",
        "left_s": left,
        "used": {name: amount for name, amount in handle.used.items() if amount},
        "limits": dict(handle.limits),
        "open": len(handle.opened),
        "mounted": any(one.lasting for one in handle.opened),
    }


def _stands(one: Standing) -> dict[str, Any]:
    facts = {"rules": one.rules, "scope": one.scope, "by": one.by, "uses": one.uses}
    age = time.time() - one.since_ns / 1e9
    return {"handle": one.id, "agent": _name(one.agent), "capability": _short(one.capability), "age_s": age, **facts}


def _short(texts: str) -> str:
    """As people write them."""
    return " ".join(str(capability.parse(text)) for text in texts.split())


def _name(agent: str) -> str:
    return agent.removeprefix(f"{NAMESPACE}/")


# Give and take back.


def _grant(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Grant", asked.request)
    agent = kernel.table.find_alive(request.agent)
    wanted = _bounded(require_endpoint(capability.parse(request.capability)), request)

    async def do() -> Done:
        kernel.table.find_alive(agent.id)
        return Done(row(await kernel.authority.grant(agent.id, wanted, caller.id)))

    return Act(do, can_stop=False)


def _bounded(wanted: Capability, request: abi.Grant) -> Capability:
    """With the end and the number of uses that were given beside it; never more than its own."""
    more: dict[str, int] = {}
    if request.ttl_ms is not None:
        if not 0 < request.ttl_ms <= _MOST_MS:
            raise EINVAL("cap.ttl", "a capability lasts more than nothing and at most a year", hint="--ttl 10m")
        more["expiry"] = int(time.time() * 1000) + request.ttl_ms
    if request.uses is not None:
        if request.uses <= 0:
            raise EINVAL("cap.uses", "a capability is for one use at least", hint="--uses 1")
        more["count"] = request.uses
    own = wanted.constraints
    least = {name: min(value, own[name]) if name in own else value for name, value in more.items()}
    return Capability(wanted.kind, wanted.target, wanted.actions, {**own, **least})


def _revoke(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Revoke", asked.request)
    if not request.handles:
        raise EINVAL("cap.handle", "which capability?", hint="agentctl cap ls shows what there is")
    standing = [one for one in request.handles if one.startswith("q-")]
    known = {one.id for one in kernel.approvals.standing()}
    if unknown := [one for one in standing if one not in known]:
        raise EINVAL("approval.standing", f"{unknown[0]} is no standing approval", hint="agentctl cap ls")
    roots = [kernel.authority.find(_number(one)) for one in request.handles if not one.startswith("q-")]
    if start := next((one for one in roots if one.starting), None):
        reason = f"c-{start.id} is what every agent holds, and only a rule takes it away"
        raise EINVAL("cap.start", reason, hint=f'[[rule]] effect = "forbid", what = ["{start.capability}"]')

    async def do() -> Done:
        taken = [kernel.approvals.take_back(one, caller.id).id for one in standing]
        told: dict[str, Any] = {"revoked": taken, "closed": 0, "killed": [], "mounted": []}
        if roots:
            gone = await kernel.authority.revoke(roots, caller.id, future_only=request.future_only)
            mounts = sorted({_name(handle.holder) for handle, one in gone.opened if one.lasting})
            told["revoked"] = [*taken, *(f"c-{one.id}" for one in gone.handles)]
            told["closed"] = sum(not one.lasting for _, one in gone.opened)
            told["mounted" if request.future_only else "killed"] = mounts
        return Done(told)

    return Act(do, can_stop=False)


def _number(text: str) -> int:
    digits = text.removeprefix("c-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 18:
        raise EINVAL("cap.handle", f"{text!r} is no capability", hint="c-12, as agentctl cap ls shows it")
    return int(digits)


# Why.


def _explain(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Explain", asked.request)
    if [bool(request.seq), bool(request.capability), bool(request.manifest)].count(True) != 1:
        raise EINVAL("body", "OP_EXPLAIN takes an entry, or an agent and a capability or a manifest")
    if request.seq:
        return Act(lambda: Done(explaining.entry(kernel, request.seq)))
    agent = kernel.table.find(request.agent)
    if request.manifest:
        return Act(lambda: Done(explaining.child(kernel, agent, request.manifest)))
    wanted = capability.parse(request.capability)
    return Act(lambda: Done(explaining.act(kernel, agent, wanted)))


_BY_TYPE: Mapping[type[abi.Body], Prepare] = {
    abi.Capabilities: _capabilities,
    abi.Grant: _grant,
    abi.Revoke: _revoke,
    abi.Explain: _explain,
}
PREPARE: dict[int, Prepare] = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
