"""A goal as the store keeps it, from the moment it was submitted until a while after its end.

In and out: one row per goal. What waits and what is at work is found here by the next kernel; of those that ended the
newest stay, for whoever asks how it went. Decides nothing.
"""

from typing import Any, Literal

import msgspec
from msgspec import Struct

from agent_os.drivers.store import Put, Store
from agent_os.kernel.goals.goal import Goal, Waiting
from agent_os.kernel.supervisor.terms import Priority

GOALS = "goals"  # bucket
MOST_ENDED = 1000
State = Literal["waiting", "working", "done", "failed", "late", "withdrawn"]


class Kept(Struct, kw_only=True):
    id: str
    seq: int
    goal: Goal
    agent: str
    picked_by: str
    priority: Priority
    submitted_at: float
    memory_mb: int
    by: str  # who submitted it
    state: State = "waiting"
    taken: int = 0  # where the record of the life begins that has it in hand; 0: nobody has
    alone: bool = False  # its agent was started for it, and is done with it when it ends
    deaths: int = 0  # lives that ended abnormally with it in hand
    started_at: float | None = None
    ended_at: float | None = None
    result: Any = None
    reason: str = ""

    @property
    def over(self) -> bool:
        return self.state not in ("waiting", "working")

    def waiting(self) -> Waiting:
        """As the queue has it."""
        facts = (self.agent, self.picked_by, self.priority, self.submitted_at, self.memory_mb)
        return Waiting(self.id, self.seq, self.goal, *facts)

    def shown(self) -> dict[str, Any]:
        """As doors show one that does not wait."""
        names = ("id", "agent", "picked_by", "priority", "submitted_at", "started_at", "ended_at", "state", "reason")
        facts = {name: getattr(self, name) for name in (*names, "result", "by", "deaths")}
        return {**facts, "goal": self.goal.text, "tenant": self.goal.tenant, "deadline": self.goal.deadline}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode


def put(kept: Kept) -> Put:
    return Put(GOALS, kept.id, _encode(kept))


def gone(kept: Kept) -> Put:
    return Put(GOALS, kept.id, None)


def stored(store: Store) -> list[Kept]:
    """In the order in which they came."""
    return sorted((_decode(value) for _, value in store.items(GOALS)), key=lambda one: one.seq)
