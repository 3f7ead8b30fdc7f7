"""How much one sender may take of everybody's bus: messages a second, bytes that nobody acknowledged, subscriptions.

In: a sender and what it wants. Out: nothing, or the error with what is used and what the limit is. Rates start full at
boot; the rest is counted again from what is kept.
"""

import math

from agent_os.abi.errors import EAGAIN, EDQUOT

RATE, BURST = 1000.0, 2000.0  # messages a second, and at once
UNACKED = 64 << 20  # bytes
SUBSCRIPTIONS = 100
SHORTEST_MS, LONGEST_MS = 10, 60_000  # of what a refused sender is told to wait
_WINDOW = 10.0  # seconds, over which a drain rate is measured


class Drain:
    """How fast something empties: what was taken out lately, older takings counting less and less."""

    __slots__ = ("_at", "_count", "_since")

    def __init__(self, now: float) -> None:
        self._count, self._at, self._since = 0.0, now, now

    def took(self, count: int, now: float) -> None:
        self._count = self._count * math.exp((self._at - now) / _WINDOW) + count
        self._at = self._since = now

    def wait_ms(self, count: int, now: float) -> int:
        """Until so many more are out. Where nothing moved lately, as long again as nothing has moved."""
        rate = self._count * math.exp((self._at - now) / _WINDOW) / _WINDOW
        seconds = count / rate if rate * _WINDOW >= 1 else now - self._since
        return min(LONGEST_MS, max(SHORTEST_MS, math.ceil(seconds * 1000)))


class Account:
    """One sender's."""

    __slots__ = ("_at", "_left", "behind", "behind_bytes", "subscriptions", "unacked")

    def __init__(self, now: float) -> None:
        self._left, self._at = BURST, now
        self.unacked = self.subscriptions = 0
        self.behind = self.behind_bytes = 0  # events that wait or are in hand, over all its subscriptions

    def idle(self, now: float) -> bool:
        """Nothing would be different if it began anew."""
        return not (self.unacked or self.subscriptions) and self._left + (now - self._at) * RATE >= BURST

    def require_turn(self, now: float) -> None:
        """One message more; counted by `spend`."""
        if self._left < 1:
            self._left, self._at = min(BURST, self._left + (now - self._at) * RATE), now
            if self._left < 1:
                wait = max(SHORTEST_MS, math.ceil((1 - self._left) / RATE * 1000))
                raise EAGAIN(
                    "bus.rate",
                    f"an agent sends {RATE:.0f} messages a second, and {BURST:.0f} at once",
                    retry_after_ms=wait,
                    limit=int(RATE),
                )

    def spend(self) -> None:
        self._left -= 1

    def require_unacked(self, more: int) -> None:
        if self.unacked + more > UNACKED:
            raise EAGAIN(
                "bus.unacked",
                f"receivers have {self.unacked} bytes of this sender in their mailboxes; at most {UNACKED} may wait",
                hint="wait until some are acknowledged",
                retry_after_ms=1000,
                used=self.unacked,
                limit=UNACKED,
            )

    def require_subscription(self) -> None:
        if self.subscriptions >= SUBSCRIPTIONS:
            raise EDQUOT(
                "bus.subscriptions",
                f"this agent has {self.subscriptions} subscriptions; at most {SUBSCRIPTIONS} are kept",
                hint="end one, or use a wider filter",
                used=self.subscriptions,
                limit=SUBSCRIPTIONS,
            )


class Accounts:
    """Everybody's. Who has nothing left to remember is forgotten, so names alone cost no memory."""

    _MANY = 1024

    def __init__(self) -> None:
        self._of: dict[str, Account] = {}
        self._look_at = self._MANY

    def of(self, agent: str, now: float) -> Account:
        account = self._of.get(agent)
        if account is None:
            if len(self._of) >= self._look_at:
                self._of = {name: one for name, one in self._of.items() if not one.idle(now)}
                self._look_at = max(self._MANY, 2 * len(self._of))
            account = self._of[agent] = Account(now)
        return account
