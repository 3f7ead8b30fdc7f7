"""Health of agents: what the results of probes mean for one incarnation, and what many healths make together.

In: that READY came, results of checks, moments of one monotonic clock. Out: what follows (a start that took too long,
out of service, back, failed), each told once; when the next check is due; a health in words. Liveness and readiness
never touch each other. Runs no check, routes nothing and ends nobody.
"""

from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b
from math import floor
from typing import Literal

from msgspec import Struct

from agent_os.kernel.supervisor.watchdog import Countdown

Word = Literal["healthy", "degraded", "unhealthy", "unknown"]
_GRAVITY: tuple[Word, ...] = ("healthy", "degraded", "unknown", "unhealthy")


class Health(Struct, frozen=True):
    """Of one agent or one part of the kernel."""

    word: Word
    why: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.why}" if self.why else self.word


HEALTHY = Health("healthy")
UNKNOWN = Health("unknown")


def worst(*healths: Health) -> Health:
    """What several views of the same agent come to; the first of the worst tells why."""
    return max(healths, key=lambda health: _GRAVITY.index(health.word), default=UNKNOWN)


class Overall(Struct, frozen=True):
    """Of many together. `bad`: who is not healthy."""

    word: Literal["healthy", "degraded", "down"]
    bad: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.word} ({', '.join(self.bad)})" if self.word == "degraded" else self.word


def aggregate(healths: Mapping[str, Health]) -> Overall:
    """Down when nobody is left that answers, which nobody at all is too."""
    bad = tuple(sorted(name for name, health in healths.items() if health.word != "healthy"))
    if all(health.word in ("unhealthy", "unknown") for health in healths.values()):
        return Overall("down", bad)
    return Overall("degraded", bad) if bad else Overall("healthy")


class Event(StrEnum):
    """What follows. The two that end an incarnation are spelt as its exit class."""

    READY = "ready"
    START_TIMEOUT = "start_timeout"
    OUT = "out"  # no new requests; dependants are told
    BACK = "back"
    PROBE = "probe"


class Settings(Struct, frozen=True):
    """Of a manifest's `[health]`. One interval, for both kinds of probe."""

    check_interval_secs: float = 30.0
    timeout_secs: float = 5.0
    failure_threshold: int = 3
    success_threshold: int = 1
    start_timeout_secs: float | None = 60.0


class Streak:
    """Results in a row against two thresholds: so many failures bring it down, so many successes bring it up again."""

    __slots__ = ("_against", "_failures", "_successes", "up", "why")

    def __init__(self, failures: int, successes: int) -> None:
        self._failures, self._successes = failures, successes
        self._against = 0  # results in a row that contradict `up`
        self.up = True
        self.why = ""  # what the last failure said

    def note(self, ok: bool, why: str = "") -> bool:
        """Whether this one turned it."""
        if not ok:
            self.why = why
        self._against = 0 if ok == self.up else self._against + 1
        if self._against < (self._failures if self.up else self._successes):
            return False
        self.up, self._against = ok, 0
        return True


class Seen(Struct, frozen=True):
    """What one look at an agent came to."""

    ok: bool
    why: str = ""


class Check(Struct, frozen=True):
    """One round of probes that was begun. What was begun before the agent was held says nothing about it now."""

    round: int


class Probes:
    """One incarnation's. `live` and `ready` say which kinds of probe it has; without any it is live and ready after
    READY."""

    def __init__(
        self, agent: str, settings: Settings, began: float, *, live: bool = False, ready: bool = False
    ) -> None:
        self._agent, self._settings = agent, settings
        self._probed = live or ready
        self._startup = Countdown(settings.start_timeout_secs)
        self._startup.start(began)
        self._started = self._too_late = False
        self._round = 0
        self._readiness = Streak(settings.failure_threshold, settings.success_threshold)
        self._liveness = Streak(settings.failure_threshold, 1)
        self._failed = False

    @property
    def ready(self) -> bool:
        """Whether requests may be routed to it, as far as its health goes."""
        return self._started and self._readiness.up

    @property
    def health(self) -> Health:
        if self._failed:
            return Health("unhealthy", self._liveness.why or "its liveness probe fails")
        if not self._started:
            return Health("unhealthy", "it did not become ready in time") if self._too_late else UNKNOWN
        return HEALTHY if self._readiness.up else Health("degraded", self._readiness.why or "its readiness probe fails")

    def due(self, now: float) -> float | None:
        """When to look again: at the end of the start, then at each check. None while it is held, or has no probe."""
        if not self._started:
            return None if self._too_late else self._startup.due
        if self._failed or not self._probed or self._startup.held:
            return None
        return next_check(self._agent, self._settings.check_interval_secs, now)

    def came_up(self) -> Event | None:
        """READY. A second one says nothing new, and one that came too late does not help any more."""
        if self._started or self._too_late:
            return None
        self._started = True
        self._startup.stop()
        return Event.READY

    def probe(self) -> None:
        """There is a probe, as it has turned out."""
        self._probed = True

    def look(self, now: float) -> Event | None:
        """Whether the start took too long."""
        if self._started or self._too_late or not self._startup.over(now):
            return None
        self._too_late = True
        return Event.START_TIMEOUT

    def hold(self, now: float) -> None:
        """Suspended, or waiting for a person: it is not asked, and no time passes for it. Holds nest."""
        self._round += 1
        self._startup.hold(now)

    def release(self, now: float) -> None:
        self._startup.release(now)

    def begin(self) -> Check:
        return Check(self._round)

    def readiness(self, check: Check, ok: bool, why: str = "") -> Event | None:
        """A result; a check that took longer than its limit has failed."""
        if not self._counts(check) or not self._readiness.note(ok, why):
            return None
        return Event.BACK if ok else Event.OUT

    def liveness(self, check: Check, ok: bool, why: str = "") -> Event | None:
        """A result. Once it has failed, the incarnation ends and nothing is told of it any more."""
        if self._failed or not self._counts(check) or not self._liveness.note(ok, why):
            return None
        self._failed = True
        return Event.PROBE

    def _counts(self, check: Check) -> bool:
        return self._started and check.round == self._round and not self._startup.held


def next_check(agent: str, interval: float, now: float) -> float:
    """The next moment of the agent's own beat. A hash of its id says where in the interval that lies, so that a
    thousand agents that started together are not all asked together."""
    share = int.from_bytes(blake2b(agent.encode(), digest_size=8).digest(), "big") / 2**64
    first = share * interval
    due = first + (floor((now - first) / interval) + 1) * interval
    return due if due > now else due + interval  # what rounding may have lost
