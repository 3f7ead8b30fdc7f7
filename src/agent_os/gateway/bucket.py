"""A token bucket: so many a second, with a burst. Pure but for the clock, which is given where it matters."""

import time


class Bucket:
    def __init__(self, rate: float, burst: int) -> None:
        self._rate, self._burst = rate, burst
        self._left, self._at = float(burst), time.monotonic()

    def take(self, now: float | None = None) -> float:
        """0.0, and one is taken; else the seconds until there is one."""
        now = time.monotonic() if now is None else now
        self._left = min(self._burst, self._left + max(0.0, now - self._at) * self._rate)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        return (1 - self._left) / self._rate
