"""How much agents may write: each family its share of the journal per time, and all only while the disk has room.

An `Allowance` is a bucket of bytes. Spending is never refused: whoever is in debt is told how long, and is not heard
until then; nothing is dropped. It belongs to an agent with all that descends from it, so that neither a crash nor a
child brings a new one. `Room` looks at the file system of the journal: below the floor agents are turned away, and what
is left serves their operator. Records nothing itself.
"""

import logging
import os
import time
from pathlib import Path

from agent_os.abi.errors import EAGAIN

BURST = 256 << 20  # bytes at once
RATE = 1 << 20  # bytes a second after that, for ever: some two thousand small calls
ENTRY = 512  # bytes that an entry takes beside what was asked and answered
FLOOR = 256 << 20  # bytes; what the operator needs to look, kill and stop for days
_PART = 20  # of a small file system the floor is this part
_LOOK_S = 0.25
_AGAIN_MS = 5000
log = logging.getLogger("agent_os.kernel")


class Allowance:
    """Starts full. The clock is looked at only when nothing is left, which for most is never; so after a rest two
    bursts may come together, and never more."""

    __slots__ = ("_burst", "_left", "_rate", "_since")

    def __init__(self, burst: float = BURST, rate: float = RATE) -> None:
        self._burst, self._rate = burst, rate
        self._left = float(burst)
        self._since = time.monotonic()

    def spend(self, count: int) -> float:
        """The seconds until what was spent is covered; 0.0 for whoever still has some."""
        self._left -= count
        return 0.0 if self._left >= 0 else self._debt(count)

    def exhaust(self, seconds: float) -> None:
        """Whatever is left is gone, and what comes in the next seconds is spent already."""
        self._debt(0)
        self._left = min(self._left, 0.0) - seconds * self._rate

    def _debt(self, count: int) -> float:
        """What time brought back counts as there before the last `count` was spent, and never more than fits."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + count + (now - self._since) * self._rate) - count
        self._since = now
        return max(0.0, -self._left / self._rate)


class Room:
    """Whether the journal's file system has any for agents. Without a home, the journal lies in memory: always."""

    def __init__(self, home: Path | None) -> None:
        self._home = home
        self._looked = 0.0
        self._low = False

    def low(self) -> bool:
        now = time.monotonic()
        if self._home is None or now - self._looked < _LOOK_S:
            return self._low
        self._looked = now
        free, floor = _free(self._home)
        if (free < floor) != self._low:
            self._low = free < floor
            log.warning(
                "%d MiB are free where the journal lies: %s",
                free >> 20,
                f"agents are turned away below {floor >> 20} MiB" if self._low else "agents are heard again",
            )
        return self._low

    def refusal(self) -> EAGAIN:
        reason = "the disk of the journal is nearly full, so nothing new is begun until there is room again"
        return EAGAIN("journal.space", reason, retry_after_ms=_AGAIN_MS)


def _free(home: Path) -> tuple[int, int]:
    """Bytes that are free for us, and the floor."""
    facts = os.statvfs(home)
    return facts.f_bavail * facts.f_frsize, min(FLOOR, facts.f_blocks * facts.f_frsize // _PART)
