"""What operators see of the fleet: the declared agents as they are now, and the lives that each has had.

In: OP_DECLARED and OP_HISTORY. Out: plain rows. Of now the fleet's records tell, of the past the journal, which knows
lives of agents without a manifest as well. Changes nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import ESRCH
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.journal import Journal
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.supervisor.intensity import Restarts
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.table import Actor, qualified

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Asked], Act]
Life = dict[str, Any]
_FACTS = ("level", "began_ns", "ready_ns", "ended_ns", "class", "code", "reason", "decision", "why", "delay_ms")
_LONGEST_WHY = 200  # characters, in a list of everybody
_MOST_LIVES = 400  # of one answer, which is one frame
_BLANK: Life = dict.fromkeys(_FACTS)
_TELLS = frozenset({Kind.SPAWN, Kind.STATE, Kind.EXIT})


def _declared(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Declared", asked.request)

    def do() -> Done:
        wanted = {kernel.fleet.require(name).id for name in request.agents}
        found = [one for one in kernel.fleet.rows() if not wanted or one.id in wanted]
        if request.labels:
            found = [one for one in found if request.labels.items() <= _labels(kernel, one).items()]
        pids = {one.id: one.pid for one in kernel.table.alive()}
        rows = [_row(kernel, one, pids.get(one.id), manifests=request.manifests) for one in found]
        if not wanted:  # all of them are one frame, whatever folder somebody declares a thousand from
            rows = [{**row, "file": "", "why": row["why"][:_LONGEST_WHY]} for row in rows]
        return Done({"agents": rows})

    return Act(do)


def _labels(kernel: "Kernel", record: Record) -> dict[str, str]:
    spec = kernel.fleet.spec(record.id)
    return spec.manifest.labels if spec else {}


def _row(kernel: "Kernel", record: Record, pid: int | None, *, manifests: bool) -> dict[str, Any]:
    spec = kernel.fleet.spec(record.id)
    restarts = Restarts(spec.terms, record.consecutive) if spec else None
    row: dict[str, Any] = {
        "id": record.id,
        "parent": record.parent,
        "index": record.index,
        "wanted": record.wanted,
        "state": str(record.state),
        "why": record.why or kernel.fleet.graph.left_out.get(record.id, ""),
        "until": record.until,
        "incarnation": record.incarnation,
        "consecutive": record.consecutive,
        "pid": pid,
        "ready": kernel.fleet.is_ready(record.id),
        "needs": [one for one in kernel.fleet.graph.hard.get(record.id, ()) if not kernel.fleet.served(one)],
        "health": str(kernel.watching.health(record) or ""),
        "role": spec.role if spec else "root",
        "max_restarts": spec.terms.max_restarts if spec else None,
        "restarts_remaining": restarts.remaining if restarts else None,
        "exhausted": restarts.exhausted if restarts else None,
        "policy": str(spec.terms.policy) if spec else "",
        "activation": spec.activation if spec else "",
        "strategy": str(spec.supervision.strategy) if spec else "",
        "file": spec.file if spec else "",
    }
    return {**row, "manifest": spec.manifest.to_toml()} if manifests and spec else row


# The lives.


async def _lives(kernel: "Kernel", request: abi.History) -> dict[str, Any]:
    agent_id = qualified(request.agent, strict=False)
    if not kernel.store.aseq(agent_id) and kernel.fleet.record(agent_id) is None:
        raise ESRCH("agent.unknown", f"the record knows no {request.agent!r}", hint="agentctl ps --all")
    lives = await asyncio.to_thread(lives_of, kernel.journal, agent_id)
    return {"agent": agent_id, "lives": lives[-min(request.last or _MOST_LIVES, _MOST_LIVES) :]}


def lives_of(journal: Journal, agent_id: str) -> list[Life]:
    """Newest last. An agent's calls are passed over: only what happened to it counts. One whose process could not be
    made keeps its number for the next try: then there are several rows of one life."""
    lives: list[Life] = []
    for entry, body in journal.scan(agent_id):
        if entry.kind not in _TELLS or not entry.inc:
            continue
        told = _content(body)
        if (
            not lives
            or lives[-1]["incarnation"] < entry.inc
            or (lives[-1]["ended_ns"] and told.get("event") == "begins")
        ):
            lives.append({**_BLANK, "incarnation": entry.inc})
        _note(lives[-1], entry, told)
    return lives


def _note(life: Life, entry: Entry, told: Mapping[str, Any]) -> None:
    event = told.get("event")
    if entry.kind == Kind.SPAWN or event == "begins":
        life["began_ns"] = life["began_ns"] or entry.wall_ns
    elif entry.kind == Kind.EXIT:
        life["ended_ns"] = entry.wall_ns
        life |= {name: told.get(name) for name in ("class", "code", "reason")}
    elif event == "spawned":
        life["level"] = told.get("level")
    elif event == "ready":
        life["ready_ns"] = life["ready_ns"] or entry.wall_ns
    if isinstance(decided := told.get("decision"), Mapping):
        decided = cast("Mapping[str, Any]", decided)
        life |= {"decision": decided.get("act"), "why": decided.get("why"), "delay_ms": decided.get("delay_ms")}


def _content(body: bytes | None) -> Mapping[str, Any]:
    try:
        told = decode_any(body) if body else None
    except (msgspec.MsgspecError, ValueError):
        return {}
    return cast("Mapping[str, Any]", told) if isinstance(told, Mapping) else {}


def _history(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.History", asked.request)

    async def do() -> Done:
        return Done(await _lives(kernel, request))

    return Act(do)


_BY_TYPE: Mapping[type[abi.Body], Prepare] = {abi.Declared: _declared, abi.History: _history}
PREPARE: dict[int, Prepare] = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
