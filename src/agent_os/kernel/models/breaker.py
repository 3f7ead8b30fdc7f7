"""A circuit breaker: a provider that keeps failing is left alone for a while, then tried with one call at a time.

One for each base URL and model. In: calls leaving, succeeding and failing, with their moments. Out: whether a call may
leave, and when one may again. Only failures that may pass by themselves count (5xx, connection lost); a full key (429)
or a bad request says nothing about the provider's health.
"""

import math
from collections import deque

from msgspec import Struct, field

IN_A_ROW = 5
WINDOW_SECS, FEWEST, SHARE = 30.0, 20, 0.5  # or: of at least so many in so long, this part
FIRST_SECS, LONGEST_SECS = 15.0, 300.0


class Breaker(Struct):
    in_a_row: int = 0
    pause: float = FIRST_SECS  # of the next opening
    opened_until: float | None = None  # None: closed
    probe: str | None = None  # the call that tries it, while open
    _recent: deque[tuple[float, bool]] = field(default_factory=deque[tuple[float, bool]])  # moment, failed

    @property
    def open(self) -> bool:
        return self.opened_until is not None

    def allows(self, now: float) -> bool:
        return self.opened_until is None or (self.probe is None and now >= self.opened_until)

    def again_at(self, now: float) -> float:
        """When it allows a call though nothing happens; never, while a probe is out."""
        if self.opened_until is None:
            return now
        return math.inf if self.probe is not None else max(now, self.opened_until)

    def left(self, call: str, now: float) -> None:
        if self.opened_until is not None and self.probe is None and now >= self.opened_until:
            self.probe = call

    def succeeded(self, call: str, now: float) -> None:
        self.in_a_row = 0
        if self.opened_until is None:
            self._count(now, failed=False)
        elif call == self.probe:
            # A call that left before it opened proves nothing about now.
            self.opened_until, self.probe, self.pause = None, None, FIRST_SECS
            self._recent.clear()

    def busy(self, call: str, now: float) -> None:
        """The key is full (429). That is no failure, and from a probe it is a sign of life."""
        if call == self.probe:
            self.succeeded(call, now)

    def failed(self, call: str, now: float, *, counts: bool = True) -> None:
        if self.opened_until is not None:
            if call == self.probe:
                self.probe = None
                if counts:
                    self._open(now)
            return
        if not counts:
            return
        self.in_a_row += 1
        self._count(now, failed=True)
        failures = sum(failed for _, failed in self._recent)
        many = len(self._recent) >= FEWEST and failures >= SHARE * len(self._recent)
        if self.in_a_row >= IN_A_ROW or many:
            self._open(now)

    def _open(self, now: float) -> None:
        self.opened_until = now + self.pause
        self.pause = min(LONGEST_SECS, self.pause * 2)
        self.in_a_row = 0
        self._recent.clear()

    def _count(self, now: float, *, failed: bool) -> None:
        self._recent.append((now, failed))
        while self._recent[0][0] < now - WINDOW_SECS:
            self._recent.popleft()
