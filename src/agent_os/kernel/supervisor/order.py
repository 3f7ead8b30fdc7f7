"""Who is stopped and who is started when a child failed, and in which order.

Goes in: the strategy and the children of one supervisor by start index, never those of another. Comes out: two lists.
A list is walked from the front: stops one after the other, each until it is gone; starts likewise, each until READY.
Whoever on the start list has an appointment of its own (a back-off) is started no earlier than that. Never decides
whether somebody is started again.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from agent_os.kernel.supervisor.terms import RestartPolicy, State, Strategy

_WAITING = {State.PENDING, State.BACKOFF}


class Sibling(Struct, frozen=True):
    id: str
    policy: RestartPolicy
    state: State


class Lists(NamedTuple):
    stop: tuple[str, ...]
    start: tuple[str, ...]


def affected(strategy: Strategy, children: Sequence[Sibling], failed: str) -> Lists:
    """`children` in start order, the failed one among them. Whoever neither lives nor waits to be started has ended for
    a reason of its own (stopped, completed, failed, quarantined) or is blocked: no strategy brings it back."""
    if strategy is Strategy.ONE_FOR_ONE:
        return Lists((), (failed,))
    drawn_in = children if strategy is Strategy.ONE_FOR_ALL else _from(failed, children)
    stop = stopping(one for one in drawn_in if one.id != failed)
    start = tuple(one.id for one in drawn_in if one.id == failed or _comes_back(one))
    return Lists(stop, start)


def stopping(children: Iterable[Sibling]) -> tuple[str, ...]:
    """Those that live, the last started first."""
    return tuple(reversed([one.id for one in children if one.state is State.ACTIVE]))


def _from(failed: str, children: Sequence[Sibling]) -> Sequence[Sibling]:
    return children[[one.id for one in children].index(failed) :]


def _comes_back(sibling: Sibling) -> bool:
    if sibling.state is State.ACTIVE:
        return sibling.policy is not RestartPolicy.NEVER
    return sibling.state in _WAITING
