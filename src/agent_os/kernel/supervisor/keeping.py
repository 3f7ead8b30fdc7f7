"""What the store keeps of a fleet: the manifest of every declared agent, and the record of its lives.

In: changes, each with what it rests on. Out: what the store must hold with the entry that tells of it, so that a kernel
that died between two steps finds either both or neither. Decides nothing.
"""

from typing import Any

import msgspec

from agent_os.drivers.store import Put, Store
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.specs import ROOT_ID, Spec
from agent_os.kernel.supervisor.terms import State

SPECS, RECORDS, SETTLED = "specs", "fleet", "schedules"  # buckets, by id
_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_spec = msgspec.msgpack.Decoder(Spec).decode
_record = msgspec.msgpack.Decoder(Record).decode


class Kept:
    """The newest of everything, as it is or is about to be in the store."""

    def __init__(self, store: Store) -> None:
        self.specs = {key: _spec(value) for key, value in store.items(SPECS)}
        self.records = {key: _record(value) for key, value in store.items(RECORDS)}
        self.records.setdefault(ROOT_ID, Record(ROOT_ID, state=State.ACTIVE, incarnation=1))
        self.settled = {key: float(value) for key, value in store.items(SETTLED)}  # id → until when it ran all it must
        self._children: dict[str, dict[str, None]] = {}
        for record in self.records.values():
            self._place(record)

    def children(self, parent: str) -> list[Record]:
        """By start index."""
        found = (self.records[one] for one in self._children.get(parent, ()))
        return sorted(found, key=lambda record: record.index)

    def has_children(self, parent: str) -> bool:
        return bool(self._children.get(parent))

    def keep(self, *changed: Record) -> list[Put]:
        for record in changed:
            if (old := self.records.get(record.id)) and old.parent != record.parent:
                self._children.get(old.parent or "", {}).pop(record.id, None)
            self.records[record.id] = record
            self._place(record)
        return [Put(RECORDS, record.id, _encode(record)) for record in changed]

    def declare(self, spec: Spec) -> Put:
        self.specs[spec.id] = spec
        return Put(SPECS, spec.id, _encode(spec))

    def settle(self, agent_id: str, until: float) -> Put:
        self.settled[agent_id] = until
        return Put(SETTLED, agent_id, repr(until).encode())

    def drop(self, agent_id: str) -> list[Put]:
        self.specs.pop(agent_id, None)
        self.settled.pop(agent_id, None)
        if old := self.records.pop(agent_id, None):
            self._children.get(old.parent or "", {}).pop(agent_id, None)
        return [Put(bucket, agent_id, None) for bucket in (SPECS, RECORDS, SETTLED)]

    def _place(self, record: Record) -> None:
        if record.parent:
            self._children.setdefault(record.parent, {})[record.id] = None


def told(record: Record) -> dict[str, Any]:
    """For the journal."""
    return {"state": str(record), "wanted": record.wanted, "why": record.why, "until": record.until}
