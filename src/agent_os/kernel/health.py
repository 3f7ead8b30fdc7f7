"""What is asked and said about health: an agent's word that it is ready or well, and an operator's look at all of them.

In: a recognised caller and a request. Out: an `Act` for the gate. What a word means is for whoever watches the agent;
from one that nobody watches it is heard and means nothing.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import ESRCH
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.supervisor.health import aggregate
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.table import Actor, Agent, bare, qualified

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Asked], Act]


def _ready(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    """That it was called says it all, and is heard where calls come in."""
    return Act(Done)


def _alive(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Alive", asked.request)

    def do() -> Done:
        kernel.watching.alive(agent, request.ok, request.why)
        return Done()

    return Act(do)


def _health(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    names = [qualified(name) for name in cast("abi.Health", asked.request).agents]

    def do() -> Done:
        known = {record.id: record for record in kernel.fleet.rows() if kernel.fleet.spec(record.id)}
        if unknown := [name for name in names if name not in known]:
            hint = "agentctl ps lists who is running; only agents of manifests are watched"
            raise ESRCH("agent.unknown", f"no manifest declares {bare(unknown[0])!r}", hint=hint)
        wanted = [known[name] for name in names] or list(known.values())
        healths = {bare(one.id): health for one in wanted if (health := kernel.watching.health(one))}
        return Done({"overall": str(aggregate(healths)), "agents": [_row(kernel, one) for one in wanted]})

    return Act(do)


def _row(kernel: "Kernel", record: Record) -> dict[str, Any]:
    health = kernel.watching.health(record)
    nobody: dict[str, Any] = {"ready": False, "waiting": False, "startup": "", "checks": [], "repeats": 0, "uses": []}
    named = {"agent": bare(record.id), "health": str(health or record.state)}
    return {**named, **nobody, **kernel.watching.facts(record.id)}


CALLS: dict[int, Prepare] = {BY_REQUEST[abi.Ready].number: _ready, BY_REQUEST[abi.Alive].number: _alive}
PREPARE: dict[int, Prepare] = {BY_REQUEST[abi.Health].number: _health}
