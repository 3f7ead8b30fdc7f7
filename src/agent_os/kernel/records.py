"""What happens to an agent's process, as entries of the journal.

In: an agent, an event and its facts. Out: one entry each, whose body is a map with the event's name. What is about to
happen is on disk before it happens (`before`); what happened is written after (`after`). If it cannot be written, the
journal's error says so and the thing does not happen.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from agent_os.abi import frames
from agent_os.abi.entries import Kind, Verdict
from agent_os.abi.errors import EIO, EPERM
from agent_os.abi.text import portable
from agent_os.drivers.store import Put
from agent_os.kernel.egress.attempt import Leave
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.table import from_file, qualified

_KINDS = {
    "spawn": Kind.SPAWN,
    "spawned": Kind.STATE,
    "no overlay": Kind.CHANGE,
    "refused": Kind.DECISION,
    "connect": Kind.CONNECT,
    "snapshot": Kind.CHECKPOINT,
    "exec": Kind.CHANGE,
    "exec ended": Kind.CHANGE,
    "exit": Kind.STATE,  # of the process; the end of the agent is the table's to tell
}  # everything else that is done to a process is a signal: kill, stop, disk, tmp

_UNNAMED = ("net.host", "net.port", "net.address", "net.route")
_CAPABILITY = 2  # the gate's step


class Records(Struct, frozen=True):
    """The record of one incarnation. `isolation` is known once it runs."""

    journal: Journal
    incarnation: int = 0
    with_spawn: Sequence[Put] = ()  # what the store must hold from the moment that it is to be started

    async def before(self, agent: str, event: str, /, **facts: object) -> int:
        """An intent: on disk when this returns. The number of its entry."""
        puts = self.with_spawn if event == "spawn" else ()
        return await self.journal.record(self._draft(agent, event, facts), sync=True, puts=puts)

    async def connecting(self, agent: str, facts: Mapping[str, object], leave: Leave | None) -> None:
        """A connection that is about to be dialled, with what that rests on. On disk when this returns."""
        draft = self._draft(agent, "connect", facts)
        puts = leave.begin(draft) if leave else ()
        await self.journal.record(draft, sync=True, puts=puts, numbered=leave.began if leave else None)

    def connected(self, agent: str, facts: Mapping[str, object], leave: Leave | None, *, told: bool = True) -> None:
        """A connection is over, or was refused. What it rested on ends here, also if nothing is written of it."""
        draft = self._draft(agent, "connect", facts)
        if facts["code"] in _UNNAMED:  # refused before the gate was asked: nothing that the agent holds names it
            draft.step, draft.code = _CAPABILITY, EPERM.number
        with suppress(EIO):
            puts = leave.end(draft, int(str(facts["bytes_up"])) + int(str(facts["bytes_down"]))) if leave else ()
            if told or puts or draft.ref:
                self.journal.put(draft, sync=False, puts=puts)

    def after(self, agent: str, event: str, /, **facts: object) -> None:
        """It has happened. A journal that failed has told everybody; that must not keep an end from being one."""
        with suppress(EIO):
            self.journal.put(self._draft(agent, event, facts), sync=False)

    def _draft(self, agent: str, event: str, facts: Mapping[str, object]) -> Draft:
        body = frames.encode_body({"event": event, **_plain(facts)})
        agent_id = qualified(from_file(agent), strict=False)
        draft = Draft(agent_id, _KINDS.get(event, Kind.SIGNAL), self.incarnation, body=body)
        verdict = facts.get("verdict")
        if verdict is not None or event == "refused":
            draft.verdict = Verdict.ALLOW if verdict == "allow" else Verdict.REFUSE
        draft.isolation = str(facts.get("level", ""))
        return draft


def _plain(value: Any) -> Any:
    """Facts as msgpack holds them."""
    if isinstance(value, str):
        return portable(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value if value is None or isinstance(value, int | float | bytes) else str(value)
