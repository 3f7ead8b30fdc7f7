"""How far pipes have come: after a crash each goes on at the stage that has no outcome.

In: what a finished stage gave, as it was cleared for the next. Out: rows that are kept in the same transaction in which
the response is taken off the bus. A pipe is known by the place in its caller's program; one without a place (a context
in process) ends with its kernel. Decides nothing.
"""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from agent_os.drivers.store import Put
from agent_os.kernel.bus.rows import Rows

PIPES = "pipes.running"  # bucket: agent and place
_encode = msgspec.msgpack.Encoder().encode


class Progress(Struct, array_like=True):
    stage: int = 0  # the next
    payload: Raw = Raw(b"\xc0")
    labels: list[str] = []  # what it carries, beside its caller's own; no words at all would mean: not known
    type: str = ""
    sender: str = ""  # whose output that is; empty: the caller's input
    failed: list[Any] | None = None  # how it ended, where the caller has not heard


_decode = msgspec.msgpack.Decoder(Progress).decode


class Running:
    def __init__(self, rows: Rows) -> None:
        self._pipes: dict[str, dict[str, Progress]] = {}
        for key, row in rows.items(PIPES):
            agent, _, place = key.partition(" ")
            self._pipes.setdefault(agent, {})[place] = _decode(row)

    def find(self, agent: str, place: str) -> Progress | None:
        return self._pipes.get(agent, {}).get(place) if place else None

    def keep(self, agent: str, place: str, progress: Progress) -> list[Put]:
        if not place:
            return []
        progress.payload = progress.payload.copy()
        self._pipes.setdefault(agent, {})[place] = progress
        return [Put(PIPES, f"{agent} {place}", _encode(progress))]

    def forget(self, agent: str, place: str) -> list[Put]:
        mine = self._pipes.get(agent, {})
        if mine.pop(place, None) is None:
            return []
        if not mine:
            del self._pipes[agent]
        return [Put(PIPES, f"{agent} {place}", None)]

    def ended(self, agent: str) -> list[Put]:
        """It ended for good: nobody goes on with what it began."""
        return [put for place in list(self._pipes.get(agent, ())) for put in self.forget(agent, place)]
