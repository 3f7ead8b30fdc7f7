"""Schedules: when an agent with `activation = "on_schedule"` is to run, and what becomes of runs that could not.

In: a cron expression and a time zone, wall-clock moments (seconds since 1970), until when due times have been settled,
whether the last run still lives. Out: start, skip or wait, with what is to be recorded. Runs that were missed, because
the kernel was down or the machine slept, start once together. A library reads the expression. Starts nothing; what it
returns as `settled` must be stored before the act, or a crash between them would start a run twice.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import Struct

from agent_os.abi.errors import EINVAL

_LONGEST = 256  # characters of an expression
_MOST_COUNTED = 1000  # due times that passed; a year of minutes would take seconds to count
_SET_BACK = 3600.0  # a clock set back by more was wrong before, and what it settled does not count
_SYNTAX = "five fields: minute hour day-of-month month day-of-week, as in '30 6 * * MON-FRI'"


class Look(Struct, frozen=True):
    """What a look at the clock came to. Everything due until `settled` is dealt with by it."""

    act: Literal["wait", "start", "skip"]
    settled: float
    next: float | None  # when to look again; None: there is no further run
    passed: int = 0  # due times since the last look; at _MOST_COUNTED counting ended
    first: float | None = None  # the earliest of them

    @property
    def missed(self) -> int:
        """How many runs there will never be: recorded."""
        return self.passed - 1 if self.act == "start" else self.passed


class Schedule:
    """A cron expression in a zone. The hour that a zone leaves out runs just after it, the one it has twice runs
    once, as cron users expect it."""

    def __init__(self, expression: str, zone: str = "UTC") -> None:
        """EINVAL for an expression or a zone that is none, and for one that never comes due."""
        self.expression, self.zone = expression, zone
        self._tz = _zone(zone)
        self._require_sound()

    def _require_sound(self) -> None:
        fields = self.expression.split()
        if len(self.expression) > _LONGEST or len(fields) != 5:
            problem = f"has {len(fields)} fields" if len(self.expression) <= _LONGEST else "is too long"
            raise EINVAL("schedule.expression", f"the schedule {self.expression[:_LONGEST]!r} {problem}", hint=_SYNTAX)
        try:
            coming = next(CronSim(self.expression, datetime(2000, 1, 1, tzinfo=UTC)), None)
        except CronSimError as error:
            told = str(error)
            problem = f"{told[:1].lower()}{told[1:]}"
            raise EINVAL(
                "schedule.expression", f"the schedule {self.expression!r} has a {problem}", hint=_SYNTAX
            ) from None
        if coming is None:
            raise EINVAL("schedule.never", f"the schedule {self.expression!r} never comes due", hint=_SYNTAX)

    def after(self, moment: float) -> float | None:
        """The first due time later than that."""
        return next(self._due_after(moment), None)

    def _due_after(self, moment: float) -> Iterator[float]:
        """All of them, in order. Of an hour that comes twice the library names the first, which may be over."""
        for due in CronSim(self.expression, datetime.fromtimestamp(moment, self._tz)):
            if (at := due.timestamp()) > moment:
                yield at

    def look(self, settled: float, now: float, *, alive: bool = False) -> Look:
        """What is due now. `settled`: that of the look before, or the moment from which the schedule holds."""
        if settled > now + _SET_BACK:
            settled = now
        if settled >= now:  # set back a little: what ran does not run again
            return Look("wait", settled, self.after(settled))
        passed, first = self._count(settled, now)
        if first is None:
            return Look("wait", now, self.after(now))
        return Look("skip" if alive else "start", now, self.after(now), passed, first)

    def _count(self, settled: float, now: float) -> tuple[int, float | None]:
        count, first = 0, None
        for due in self._due_after(settled):
            if due > now or count == _MOST_COUNTED:
                break
            count, first = count + 1, first or due
        return count, first


def _zone(name: str) -> tzinfo:
    """UTC needs no data of the host."""
    if name.upper() == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        hint = "a name like Europe/Berlin; the host's time zone data must be installed"
        raise EINVAL("schedule.timezone", f"the time zone {name[:64]!r} is not known here", hint=hint) from None
