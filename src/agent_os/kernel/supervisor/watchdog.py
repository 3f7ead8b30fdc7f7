"""Deadlines that stand still: the watchdog of an agent, and the countdown that its other limits in time use too.

In: moments of one monotonic clock, that a call came in or is over, that the agent is held or goes on. Out: when to look
again, and at expiry which host signal is due. No time passes while the agent is suspended, hibernated, waits for a
person or is inside a kernel call, so neither a slow model nor a long approval is a hang. Looks at no clock and sends
nothing itself.
"""

from typing import Literal

Step = Literal["abort", "kill"]  # host SIGABRT, which may leave a dump; then SIGKILL
ABORT_SECS = 5.0  # between the two


class Countdown:
    """So many seconds of time that counts. Holds nest: it goes on when as many were released as were taken."""

    __slots__ = ("_end", "_holds", "_left", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds  # None: it never ends
        self._end: float | None = None  # while it runs
        self._left: float | None = None  # while it is held
        self._holds = 0

    def start(self, now: float) -> None:
        """From now on, all of it; again, if it ran already."""
        if self.seconds is None:
            return
        if self._holds:
            self._left = self.seconds
        else:
            self._end = now + self.seconds

    def stop(self) -> None:
        self._end = self._left = None

    def hold(self, now: float) -> None:
        self._holds += 1
        if self._end is not None:
            self._left, self._end = max(0.0, self._end - now), None

    def release(self, now: float) -> None:
        """What was left when it was held is left now. One release too many changes nothing."""
        if self._holds == 0:
            return
        self._holds -= 1
        if self._holds == 0 and self._left is not None:
            self._end, self._left = now + self._left, None

    @property
    def running(self) -> bool:
        """It was started and is not over, held or not."""
        return self._end is not None or self._left is not None

    @property
    def held(self) -> bool:
        return self._holds > 0

    @property
    def due(self) -> float | None:
        """When it ends, if nothing comes between; None while it is held, stopped or never started."""
        return self._end

    def over(self, now: float) -> bool:
        return self._end is not None and now >= self._end


class Watchdog:
    """One incarnation's. Armed at READY; any syscall is a ping. Once it has expired nothing calls it back."""

    __slots__ = ("_countdown", "_kill_at", "_killed")

    def __init__(self, seconds: float | None) -> None:
        self._countdown = Countdown(seconds)
        self._kill_at: float | None = None
        self._killed = False

    @property
    def expired(self) -> bool:
        return self._kill_at is not None

    def arm(self, now: float) -> None:
        self._countdown.start(now)

    def ping(self, now: float) -> None:
        """Before READY there is nothing that a ping could put off."""
        if self._countdown.running:
            self._countdown.start(now)

    def enter(self, now: float) -> None:
        """A call came in. While the kernel works on it, the agent cannot be blamed."""
        self.ping(now)
        self.hold(now)

    def leave(self, now: float) -> None:
        """The call has been answered."""
        self.release(now)

    def hold(self, now: float) -> None:
        """The agent is suspended, hibernated or waits for a person. Holds nest."""
        self._countdown.hold(now)

    def release(self, now: float) -> None:
        self._countdown.release(now)

    @property
    def due(self) -> float | None:
        """When `look` has something to say, unless a ping or a hold comes first; None: nothing to wait for."""
        if self._kill_at is None:
            return self._countdown.due
        return None if self._killed else self._kill_at

    def look(self, now: float) -> Step | None:
        """Each step is told once."""
        if self._kill_at is None:
            if not self._countdown.over(now):
                return None
            self._kill_at = now + ABORT_SECS
            return "abort"
        if self._killed or now < self._kill_at:
            return None
        self._killed = True
        return "kill"
