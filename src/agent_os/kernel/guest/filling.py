"""When to look again at what an agent has written: soon while it writes, seldom while nothing on its disk moves.

To count a tree costs far more than to ask a file system how much of it is free, and that is true of everybody on it at
once. So whoever wrote nothing is left alone for longer and longer, and all are looked at as soon as their file system
has lost a little. In: places, and how much is a little. Out: pauses. Counts no files and ends nobody.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

from msgspec import Struct

TICK = 1.0  # seconds between two looks at the file systems
LONGEST = 240.0  # seconds: what one wrote is not seen while another deletes as much, and so takes from nobody
MOST, LEAST = 8 << 20, 1 << 20  # bytes
_PARTS = 4  # of a limit
_LONGER = 4


def step(limit: int) -> int:
    """How many bytes less on the whole file system are a reason to look at who has this limit."""
    return max(LEAST, min(MOST, limit // _PARTS))


class Place(Struct, frozen=True):
    """Where somebody writes."""

    top: Path
    device: int
    limit: int  # bytes


def free(tops: Mapping[int, Path]) -> dict[int, int]:
    """Bytes that nobody uses, by device. A place that is gone has nothing to tell."""
    found: dict[int, int] = {}
    for device, top in tops.items():
        with suppress(OSError):
            facts = os.statvfs(top)
            found[device] = facts.f_bfree * facts.f_frsize
    return found


class _Sleeper(Struct, eq=False):
    place: Place
    woken: "asyncio.Future[None]"
    step: int
    mark: int = -1  # most that was free since it went to sleep


class Filling:
    """Of one loop: all who wait share the looks, one a second for each file system."""

    def __init__(self) -> None:
        self._sleepers: set[_Sleeper] = set()
        self._ticking: asyncio.Task[None] | None = None

    async def pause(self, seconds: float, places: Sequence[Place]) -> None:
        """So long, or until somewhere there what is free has become less by a step."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(seconds, _wake, woken)
        own = {_Sleeper(place, woken, step(place.limit)) for place in places}
        self._sleepers |= own
        if self._ticking is None or self._ticking.done():
            self._ticking = loop.create_task(self._tick())
        try:
            await woken
        finally:
            timer.cancel()
            self._sleepers -= own

    async def _tick(self) -> None:
        while self._sleepers:
            now = await asyncio.to_thread(free, {one.place.device: one.place.top for one in self._sleepers})
            for one in self._sleepers:
                if (left := now.get(one.place.device)) is None:
                    continue
                if left > one.mark:
                    one.mark = left
                elif left < one.mark - one.step:
                    _wake(one.woken)
            await asyncio.sleep(TICK)


def _wake(woken: "asyncio.Future[None]") -> None:
    if not woken.done():
        woken.set_result(None)


_fillings: "WeakKeyDictionary[asyncio.AbstractEventLoop, Filling]" = WeakKeyDictionary()


def filling() -> Filling:
    """That of the running loop."""
    return _fillings.setdefault(asyncio.get_running_loop(), Filling())


class Pace:
    """How long to leave one agent alone: longer each time that nothing has changed."""

    def __init__(self) -> None:
        self._last: Sequence[int] = ()
        self._pause = TICK

    def next(self, used: Sequence[int], took: float) -> float:
        """`used`: what the look found; `took`: seconds, so that looking at large trees stays cheap."""
        self._pause = min(LONGEST, _LONGER * self._pause) if used == self._last else TICK
        self._last = used
        return max(self._pause, 10 * took)
