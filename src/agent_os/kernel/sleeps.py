"""Sleeping agents: the time stands still while the agent is held, and what is left of a sleep survives a restart.

Live, only the monotonic clock counts, so a clock that is set back or forth moves nobody. Across a restart there is no
other clock than the wall's.
"""

import asyncio
import time

from agent_os.abi import frames
from agent_os.abi.entries import Entry, Kind
from agent_os.kernel.calls import Asked
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Agent

_WORTH_REMEMBERING = 0.5  # seconds; a shorter sleep is simply slept again
_LOOK_AGAIN = 30.0


class Sleeps:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._until: dict[tuple[str, str], int] = {}  # from before the restart: (agent, place) → wall time

    def remember(self, entry: Entry, body: bytes | None) -> None:
        """What the record says of a sleep, entry by entry: it began, or it is over."""
        place = (entry.agent, entry.pos or "")
        if entry.kind == Kind.ACCEPT and body is not None:
            self._until[place] = decode_any(body)["until_ns"]
        else:
            self._until.pop(place, None)

    async def sleep(self, agent: Agent, asked: Asked, seconds: float) -> None:
        until = self._until.pop((agent.id, asked.pos or ""), None)
        if until is not None:
            seconds = (until - time.time_ns()) / 1e9
        elif asked.pos is not None and seconds > _WORTH_REMEMBERING:
            self._note(agent, asked, time.time_ns() + int(seconds * 1e9))
        await agent.clock.sleep(seconds)

    async def until(self, agent: Agent, wall_ns: int) -> None:
        """A moment by the wall clock, wherever that clock goes meanwhile."""
        while (left := (wall_ns - time.time_ns()) / 1e9) > 0:
            await asyncio.sleep(min(left, _LOOK_AGAIN))
            await agent.clock.awake.wait()

    def _note(self, agent: Agent, asked: Asked, until_ns: int) -> None:
        draft = Draft(agent.id, Kind.ACCEPT, agent.incarnation, asked.op, pos=asked.pos, seen=asked.seen)
        draft.body = frames.encode_body({"until_ns": until_ns})
        self._journal.put(draft, sync=False)
