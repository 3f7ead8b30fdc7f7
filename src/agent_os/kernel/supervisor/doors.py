"""What operators ask of the fleet: declare, delete, start, stop, restart, wait. Each as an `Act` for the gate.

In: OP_APPLY to OP_RESTART and OP_REACH, from a caller that the door has recognised. The doing is the fleet's; looking
at it is in `looking`.
"""

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EBUSY, EINVAL
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.supervisor.declaring import Report
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.table import Actor, bare

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Asked], Act]
_MOST_FILES = 10_000


def _waiting(work: Callable[["Kernel", Actor, Any], Awaitable[Any]]) -> Prepare:
    def prepared(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
        async def do() -> Done:
            if kernel.halting:
                raise EBUSY("halting", "the kernel is stopping", hint="try again in a moment")
            return Done(await work(kernel, caller, asked.request))

        return Act(do)

    return prepared


async def _apply(kernel: "Kernel", caller: Actor, request: abi.Apply) -> Any:
    if not request.files or len(request.files) > _MOST_FILES:
        raise EINVAL("manifest", f"an apply has 1 to {_MOST_FILES} manifests, not {len(request.files)}")
    for file in request.files:
        if not os.path.isabs(file) or not os.path.isdir(os.path.dirname(file)):
            raise EINVAL("manifest", f"{file}: a manifest comes with its absolute path, in a folder that is there")
    fleet = kernel.fleet
    report = await fleet.apply_files(request.files, by=caller.id, prune=request.prune, dry_run=request.dry_run)
    return _told(report)


async def _delete(kernel: "Kernel", caller: Actor, request: abi.Delete) -> Any:
    return _told(await kernel.fleet.delete(request.agents, caller.id, dry_run=request.dry_run))


def _told(report: Report) -> dict[str, Any]:
    return msgspec.to_builtins(report)


async def _start(kernel: "Kernel", caller: Actor, request: abi.Start) -> Any:
    return _alive(kernel, await kernel.fleet.start(request.agent, caller.id))


async def _restart(kernel: "Kernel", caller: Actor, request: abi.Restart) -> Any:
    record = await kernel.fleet.restart(request.agent, caller.id, grace=request.grace_s, reason=request.reason)
    return _alive(kernel, record)


async def _stop(kernel: "Kernel", caller: Actor, request: abi.Stop) -> Any:
    began, fleet = time.monotonic(), kernel.fleet
    was = str(fleet.require(request.agent))
    record = await fleet.stop(request.agent, caller.id, request.grace_s, request.force, request.reason)
    return {**_state(record), "was": was, "seconds": time.monotonic() - began}


async def _reach(kernel: "Kernel", caller: Actor, request: abi.Reach) -> Any:
    record = await kernel.fleet.reach(request.agent, request.state)
    return {**_state(record), "why": record.why}


def _state(record: Record) -> dict[str, Any]:
    return {"agent": bare(record.id), "state": str(record)}


def _alive(kernel: "Kernel", record: Record) -> dict[str, Any]:
    row = kernel.table.living(record.id)
    return {**_state(record), "incarnation": record.incarnation, "pid": row.pid if row else None}


_BY_TYPE: Mapping[type[abi.Body], Prepare] = {
    abi.Apply: _waiting(_apply),
    abi.Delete: _waiting(_delete),
    abi.Start: _waiting(_start),
    abi.Stop: _waiting(_stop),
    abi.Restart: _waiting(_restart),
    abi.Reach: _waiting(_reach),
}
PREPARE: dict[int, Prepare] = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
