"""A model call as its queue sees it, and how doors show one that waits."""

from typing import Literal, NamedTuple

from msgspec import Struct

from agent_os.kernel.goals.goal import PRIORITIES
from agent_os.kernel.supervisor.terms import Priority

Reason = Literal["rate", "slots", "breaker", "class", "stopped", "retry"]
RANKS: dict[Priority, int] = {word: rank for rank, word in enumerate(PRIORITIES)}  # the lower goes first


class Call(Struct, eq=False):
    """The kernel stamps `program`, `type` and `tenant`; an agent cannot say them. Moments are of the queue's clock."""

    id: str
    agent: str
    program: str  # the goal at the root of the subtree that the agent works in
    type: str  # manifest name and major version
    tenant: str
    prompt: int  # tokens, estimated
    max_output: int
    priority: Priority = "normal"
    deadline: float | None = None

    # Below is the queue's own.
    seq: int = 0  # of its arrival
    arrived: float = 0.0
    rank: int = 2  # of the class it is served in: its own, or that of somebody who waits for its agent
    due: float | None = None  # likewise; its own deadline alone can end it
    output: int = 0  # reserved at the key when it leaves
    room: int = 0  # for its output that the key must have when it leaves: more, so that a long answer is not refused
    rem: float = 0.0  # what its program probably still needs, when it was last scored
    stamp: int = 0  # changes whenever its place does: older entries of it mean nothing
    left: float | None = None  # when it was sent
    order: int = 0  # of its dispatch

    @property
    def need(self) -> int:
        return self.prompt + self.output


class Place(NamedTuple):
    """Where a call stands, as doors show it. `position` counts from 1."""

    id: str
    agent: str
    tenant: str
    priority: str  # in which it is served
    position: int
    reason: Reason
    waited_ms: int
