"""Whether what a program outside could call has changed; whoever is connected as it is told.

In: that the journal wrote something, that the registry of tools changed, that a capability's time is over. Out: the
notice `tools` to each connection of that client, one for all that changed within a moment. What counts is what
SYS_TOOLS would show it: a change that it could not see there is none. While nobody is connected nothing is looked at,
and a look that finds the same rules, capabilities, tools and agents goes no further. Records nothing: the notice only
says that it is worth asking again, and that question is on the record like any other.
"""

import asyncio
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from agent_os.abi.frames import encode_body

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.outside import Seat
    from agent_os.kernel.table import Agent

TOOLS = {"type": "tools"}  # the notice
MOMENT = 0.1  # seconds between a change and the look at it, so that many are one
_LONGEST = 3600.0  # seconds until a look for a capability whose time may be over


class _Grounds(Struct, frozen=True):
    """What an offer rests on: while these are the same, so is it."""

    tools: int
    policy: bytes
    handles: tuple[int, ...]
    agents: tuple[Any, ...]


class _Known(Struct, frozen=True):
    grounds: _Grounds
    shown: bytes  # digest


class Offers:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel = kernel
        self._known: dict[Seat, _Known] = {}  # of clients that are connected
        self._tools = 0  # how often they have changed
        self._due: asyncio.TimerHandle | None = None
        self._expires: asyncio.TimerHandle | None = None
        kernel.tools.registry.changed = self._tools_changed
        kernel.journal.after_group.append(self._soon)

    def begin(self, seat: "Seat") -> None:
        """It is connected: from here on a change is told."""
        if seat not in self._known:
            self._known[seat] = self._look_at(seat.agent)
            self._watch_clock()

    def end(self, seat: "Seat") -> None:
        self._known.pop(seat, None)
        self._watch_clock()

    def _tools_changed(self) -> None:
        self._tools += 1
        self._soon()

    def _soon(self) -> None:
        if self._known and not self._due:
            self._due = asyncio.get_running_loop().call_later(MOMENT, self._look)

    def _look(self) -> None:
        self._due = None
        for seat, known in list(self._known.items()):
            if self._grounds(seat.agent) == known.grounds:
                continue
            now = self._known[seat] = self._look_at(seat.agent)
            if now.shown != known.shown:
                for line in list(seat.lines):
                    line.push("notice", TOOLS)
        self._watch_clock()

    def _watch_clock(self) -> None:
        """A capability that expires is in nobody's record at that moment."""
        if self._expires:
            self._expires.cancel()
            self._expires = None
        left = [_LONGEST]
        for seat in self._known:
            held = seat.agent.holdings
            left += [
                one.expiry / 1000 - held.clock.wall() for one in held if one.expiry and not one.expired(held.clock)
            ]
        if len(left) > 1:
            self._expires = asyncio.get_running_loop().call_later(min(left) + MOMENT, self._look)

    def _grounds(self, agent: "Agent") -> _Grounds:
        held = agent.holdings
        return _Grounds(
            self._tools,
            self._kernel.authority.policies.of(agent.id).digest,
            tuple(one.id for one in held.every() if not one.revoked and not one.expired(held.clock)),
            self._kernel.outside.exported(),
        )

    def _look_at(self, agent: "Agent") -> _Known:
        tools = [(one.name, one.digest) for one in self._kernel.tools.seen_by(agent)]
        shown = encode_body([tools, self._kernel.outside.agents(agent)])
        return _Known(self._grounds(agent), sha256(shown).digest())
