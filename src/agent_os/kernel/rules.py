"""What operators ask of the policy: look at it, change it.

In: a recognised operator and a request of the operator range. Out: an `Act` for the gate. Reading, compiling and
putting in force is `governing`'s. Also the rules about one agent as plain values, for whoever shows them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EINVAL, EMSGSIZE, ESRCH
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel import works
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.problems import Where
from agent_os.kernel.authority.policy.rules import MOST_BYTES, Mode
from agent_os.kernel.calls import Act, Asked, Done, Stream
from agent_os.kernel.governing import about
from agent_os.kernel.table import Actor, Agent, Party, bare, qualified

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Asked], Act]


def summary(kernel: "Kernel") -> dict[str, Any]:
    """The policy in force and what is wrong with the newest one, for whoever looks at the kernel. Its mode is shadow, a
    thing to be warned of, also while somebody's own rules are: `shadow` says whose. Those of files are in `files`."""
    policies, alarm = kernel.authority.policies, kernel.governing.alarm
    told = {**about(policies.current.policy), "version": policies.version, "alarm": alarm.reason if alarm else ""}
    trying = sorted(map(bare, policies.trying))
    return {**told, "shadow": trying, **({"mode": str(Mode.SHADOW)} if trying else {})}


def shown(policy: Policy, parties: Sequence[Party]) -> Iterator[dict[str, Any]]:
    """The rules about one agent and those above it, as plain values."""
    from agent_os.kernel.authority.policy.findings import effective  # few ask

    for line in effective(policy, parties):
        yield {
            "layer": line.layer.name.lower(),
            "effect": str(line.effect),
            "what": list(line.what),
            "rule": line.id,
            "where": str(line.where),
            "mode": str(line.mode),
        }


def labels(policy: Policy) -> Iterator[dict[str, Any]]:
    """What the policy says of data, as plain values: which table, what it is about, and what it says of that."""
    for file in policy.files:
        for one in file.classes:
            yield _said("class", one.where, one.readers, one.name)
        for one in file.sources:
            yield _said("source", one.where, one.what, " ".join((one.integrity, *sorted(one.classes))))
        for one in file.sinks:
            only = ["trusted"] if one.integrity == "trusted" else []
            only += sorted(one.classes) if one.classes is not None else []
            yield _said(
                "sink", one.where, one.what, f"only {' '.join(only) or 'without a class'}, else {one.otherwise}"
            )
        for one in file.declassify:
            yield _said("declassify", one.where, (f"{one.sender.text} to {one.receiver.text}",), one.type)


def _said(table: str, where: Where, what: Sequence[object], says: str) -> dict[str, Any]:
    return {"table": table, "what": list(map(str, what)), "says": says, "where": str(where)}


def _rules(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    wanted = cast("abi.Rules", asked.request).agent
    agent = _find(kernel, wanted) if wanted else None

    async def do() -> Done:
        policy = kernel.authority.policies.of(agent.id) if agent else kernel.authority.policies.current.policy
        parties = agent.parties if agent else [(wanted or "*", "")]
        if asked.stream:
            await works.send(asked.stream, "rules", shown(policy, parties))
            await works.send(asked.stream, "labels", labels(policy))
        return Done({**summary(kernel), **about(policy), "agent": parties[0][0]})

    return Act(do)


def _apply(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.ApplyRules", asked.request)
    back, replaces = request.back, request.digest

    async def do() -> Done:
        data = await _sent(asked.stream)
        if back and data is not None:
            raise EINVAL("policy.both", "the rules before, or new ones: not both at once")
        before = kernel.authority.policies.current.policy.digest
        if back:
            policy = await kernel.governing.roll_back(caller.id, replaces)
        elif data is not None:
            policy = await kernel.governing.apply(data, caller.id, replaces)
        else:
            policy = await kernel.governing.reload(caller.id, replaces)
        return Done({**summary(kernel), **about(policy), "changed": policy.digest != before})

    return Act(do, can_stop=False)  # it is in force or not, whoever still listens


async def _sent(stream: Stream | None) -> bytes | None:
    """All that came beside the call; None: nothing."""
    parts: list[bytes] = []
    size = 0
    while stream and (chunk := await stream.receive()) is not None:
        if not isinstance(chunk, bytes):
            raise EINVAL("stream", "rules come as bytes")
        parts.append(chunk)
        size += len(chunk)
        if size > MOST_BYTES:
            raise EMSGSIZE("policy.size", f"a policy has at most {MOST_BYTES:,} bytes")
    return b"".join(parts) if parts else None


def _find(kernel: "Kernel", name: str) -> Agent | None:
    wanted = qualified(name, strict=False)
    try:
        found = kernel.table.find(wanted)
    except ESRCH:
        return None
    return None if found.exit else found


_BY_TYPE: Mapping[type[abi.Body], Prepare] = {abi.Rules: _rules, abi.ApplyRules: _apply}
PREPARE: dict[int, Prepare] = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
