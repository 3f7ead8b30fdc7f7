"""How often is too often: restarts of one agent in a row, and of all children of a supervisor in a sliding period.

Both counts belong to ids, are stored with them, and are forgiven neither by a new pid nor by a new kernel. Goes in:
counts and times as stored, and what time it is. Reads no clock.
"""

from collections.abc import Iterable

from msgspec import Struct

from agent_os.kernel.supervisor.backoff import nominal
from agent_os.kernel.supervisor.terms import Supervision, Terms


def recent(times: Iterable[float], now: float, period: float) -> tuple[float, ...]:
    """Restarts of the last period; one exactly a period ago is over. A time that lies ahead, because the clock was set
    back, counts as now: it is neither forgiven nor held against anybody for longer than a period."""
    return tuple(min(time, now) for time in times if now - time < period)


def is_passed(terms: Supervision, times: Iterable[float], now: float) -> bool:
    """Whether one more restart would be one too many."""
    if terms.intensity is None:
        return False
    return len(recent(times, now, terms.period_secs)) >= terms.intensity


def noted(terms: Supervision, times: Iterable[float], now: float) -> tuple[float, ...]:
    """The times to store after one more restart."""
    if terms.intensity is None:
        return ()
    return (*recent(times, now, terms.period_secs), now)


class Restarts(Struct, frozen=True):
    """What people read of an agent's counters."""

    terms: Terms
    consecutive: int = 0
    last: float | None = None  # when it was last restarted

    @property
    def remaining(self) -> int:
        return max(0, self.terms.max_restarts - self.consecutive)

    @property
    def exhausted(self) -> bool:
        return self.remaining == 0

    @property
    def delay_ms(self) -> int:
        """Nominal, before the present life."""
        return nominal(self.terms.backoff, self.consecutive)
