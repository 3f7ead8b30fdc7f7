"""Whether a model call that failed is tried again, and when. Nobody but the kernel retries.

In: the fault, how often the call was sent, what the provider asked for, the deadline, and a random number. Out: a
pause, or why not. Pure but for `RetryShare`, which remembers how many calls and retries a queue has sent in the last
minute: a provider in trouble must not get twice the calls because of it.
"""

from collections import deque
from typing import Literal

from msgspec import Struct, field

from agent_os.drivers.models import Again

ATTEMPTS = 4
FIRST_SECS, LONGEST_SECS = 0.5, 30.0  # the pause is drawn from 0 to this, doubled each time
LONGEST_WAIT_SECS = 60.0  # asked for by a provider; beyond it the caller decides
SHARE, ALWAYS, WINDOW_SECS = 0.1, 3, 60.0

Because = Literal["", "fault", "attempts", "delivered", "long", "deadline", "share"]


class Verdict(Struct, frozen=True):
    """`pause` in seconds, or None and `because`. With `long` and `deadline` the caller gets EAGAIN with `wait`."""

    pause: float | None
    because: Because = ""
    wait: float = 0.0


class RetryShare:
    """Of one queue. Both counts forget what is older than a minute."""

    def __init__(self) -> None:
        self._sent: deque[float] = deque()
        self._retries: deque[float] = deque()

    def sent(self, now: float, *, retry: bool = False) -> None:
        self._sent.append(now)
        if retry:
            self._retries.append(now)
        self._forget(now)

    def allows(self, now: float) -> bool:
        self._forget(now)
        return len(self._retries) + 1 <= max(ALWAYS, SHARE * (len(self._sent) + 1))

    def _forget(self, now: float) -> None:
        for moments in (self._sent, self._retries):
            while moments and moments[0] <= now - WINDOW_SECS:
                moments.popleft()


class Tried(Struct):
    """What is known of a call when an attempt has failed."""

    attempts: int  # made, this one included
    again: Again  # what the fault says
    retry_after: float | None = None  # seconds, asked for by the provider
    delivered: bool = False  # the caller has seen some of the answer
    deadline: float | None = None
    share: RetryShare = field(default_factory=RetryShare)


def decide(tried: Tried, now: float, drawn: float) -> Verdict:
    """`drawn` is uniform in [0, 1)."""
    if tried.again == "no":
        return Verdict(None, "fault")
    if tried.delivered:
        return Verdict(None, "delivered")
    if tried.attempts >= (2 if tried.again == "once" else ATTEMPTS):
        return Verdict(None, "attempts")
    pause = drawn * min(LONGEST_SECS, FIRST_SECS * 2 ** (tried.attempts - 1))
    if tried.retry_after is not None:
        pause = tried.retry_after + drawn * FIRST_SECS
    if tried.deadline is not None and now + pause >= tried.deadline:
        return Verdict(None, "deadline", pause)
    if pause > LONGEST_WAIT_SECS:
        return Verdict(None, "long", pause)
    if not tried.share.allows(now):
        return Verdict(None, "share", pause)
    return Verdict(pause)
