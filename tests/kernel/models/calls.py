"""Calls for the tests of the queue, with everything that a test does not care about."""

from itertools import count

from agent_os.kernel.models.buckets import Buckets
from agent_os.kernel.models.call import Call
from agent_os.kernel.models.queue import Queue
from agent_os.kernel.models.sizes import Sizes
from agent_os.kernel.supervisor.terms import Priority

_numbers = count(1)


def call(
    prompt: int = 1000,
    *,
    agent: str = "",
    program: str = "",
    type: str = "chat@1",
    tenant: str = "t",
    priority: Priority = "normal",
    deadline: float | None = None,
    max_output: int = 100,
) -> Call:
    name = f"c{next(_numbers)}"
    return Call(name, agent or name, program or name, type, tenant, prompt, max_output, priority, deadline)


def queue(capacity: float = 10_000, rate: float = 1_000, slots: int = 32, **more: object) -> Queue:
    return Queue(Sizes(), Buckets.configured(0.0, tokens=(capacity, rate)), slots=slots, **more)  # type: ignore[arg-type]


def joined(one: Queue, *calls: Call, now: float = 0.0) -> tuple[Call, ...]:
    for each in calls:
        one.join(each, now)
    return calls


def leaving(one: Queue, now: float = 0.0) -> list[Call]:
    """All that leave at this moment, in their order."""
    found: list[Call] = []
    while (each := one.next(now)) is not None:
        found.append(each)
    return found


def serial(one: Queue, now: float, *, seconds: float = 0.0) -> list[str]:
    """Everything that waits, each answered before the next leaves, with time enough for the bucket to fill."""
    order: list[str] = []
    while len(one):
        now += seconds or 1_000.0
        each = one.next(now)
        if each is not None:
            order.append(each.id)
            one.finished(each.id, each.prompt, 10, now)
    return order
