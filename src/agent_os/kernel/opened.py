"""What is open under capabilities, and how each of it ends when they are taken back.

A mount belongs to a process, so that its end is the process's. A file or a watch that an agent opened lies in its tree,
over restarts, and so does what it lent; whatever nothing covers any more is shut there. A call under way is the gate's,
a connection the proxy's. Decides nothing: whoever revokes calls these, and answers when they are done.
"""

from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from agent_os.abi.errors import EACCES, EPERM, ESRCH
from agent_os.abi.states import ExitClass
from agent_os.drivers.store import Put
from agent_os.kernel.authority.constraints import NO_FACTS, Facts
from agent_os.kernel.authority.handles import Handle, Holdings
from agent_os.kernel.authority.policy.rules import Effect
from agent_os.kernel.calls import Need
from agent_os.kernel.table import Agent, Ended

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.vfs import Root

_KILLED = -9


class Mounted:
    """A directory that a process sees. The process opens files there without asking anybody, so only its end takes the
    directory back; if it lives again, then without."""

    lasting = True

    def __init__(self, handle: Handle, agent: Agent, end: Callable[[Agent, Ended], Awaitable[object]]) -> None:
        self._handle, self._agent, self._end = handle, agent, end
        handle.opened.add(self)

    async def close(self) -> None:
        reason = f"{self._handle.capability} was revoked, and it is mounted"
        with suppress(ESRCH):
            await self._end(self._agent, Ended(ExitClass.SIGNAL, _KILLED, reason))

    def ended(self) -> None:
        """The process is gone by itself."""
        self._handle.opened.discard(self)


def shut(kernel: "Kernel", holders: Collection[str]) -> list[Put]:
    """Close what these agents have open in their trees, or lent, and nothing covers any more. For the entry that tells
    of it."""
    puts: list[Put] = []
    for holder in holders:
        root, held = kernel.vfs.root(holder), kernel.authority.holdings(holder)
        puts += kernel.vfs.shut(holder, lambda need, _, root=root, held=held: is_held(root, held, need))
        puts += kernel.bus.shut(holder, partial(is_held, root, held))
    return puts


def rests(kernel: "Kernel", owner: str, need: Need, facts: Facts = NO_FACTS) -> Sequence[Handle] | None:
    """What an owner has for doing itself what it lets another do; None: it may not, or would be asked first. Who has
    ended holds nothing any more, and what it lent stays lent; but no rule is outlived."""
    policy = kernel.authority.policies.of(owner)
    against = (policy.restricted(name, role, need, facts) for name, role in kernel.table.parties(owner))
    if any(one and one.effect is not Effect.ALLOW for one in against):
        return None
    if kernel.table.over(owner):
        return ()
    return _held(kernel.vfs.root(owner), kernel.authority.holdings(owner), need, facts)


def is_held(root: "Root", held: Holdings, need: Need) -> bool:
    return _held(root, held, need, NO_FACTS) is not None


def _held(root: "Root", held: Holdings, need: Need, facts: Facts) -> Sequence[Handle] | None:
    if (lent := root.lent(need, facts)) is not None:
        return lent
    try:
        found = held.find((need,), facts=facts)
    except (EPERM, EACCES):
        return None
    return (found,) if found else ()
