"""How well a tool does: its last calls, whether it should be called at all, and its figures.

In: what became of each call, and the time as the caller passes it. Out: `ok`, `degraded` (half of its last 20 failed)
or `down` (the last ten of them in a row), and the metrics that a listing shows. For whoever had those ten failures it
fails fast with the last error, and one call at a time is tried; what one agent asked for, and how that failed, neither
keeps others from a tool nor is told to them. Failures of the caller (bad parameters, a missing right) are not the
tool's. Pure.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct, field

from agent_os.abi.errors import EAGAIN, EIO, AgentOSError
from agent_os.abi.tools import HealthState

WINDOW = 20
IN_A_ROW = 10
PROBE_S = (5.0, 300.0)  # how long one that is down is left alone, doubling
_OF_ALL = 8  # so many times what one caller may have under way, all may together; and each of them one
_MOST_STREAKS = 1024  # callers of whose failures it knows
_KEPT_TIMES = 512  # durations that percentiles are of
# Not the tool's: what the caller wrote, may or has, and its own end.
_CALLERS = frozenset(
    "EPERM EACCES EPOLICY EAPPROVAL ELABEL EBUDGET EINVAL ETYPE ECANCELED EINTR ENOENT EEXIST ECONFLICT EISDIR ENOTDIR "
    "EROFS EMSGSIZE EAGAIN".split()
)


class Metrics(Struct):
    calls: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])  # by name
    denied: int = 0
    in_flight: int = 0
    bytes: int = 0
    times: deque[float] = field(default_factory=lambda: deque[float](maxlen=_KEPT_TIMES))  # ms

    def percentile(self, share: float) -> float:
        if not self.times:
            return 0.0
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def told(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "errors": dict(self.errors),
            "denied": self.denied,
            "in_flight": self.in_flight,
            "bytes": self.bytes,
            "p50_ms": round(self.percentile(0.5), 3),
            "p95_ms": round(self.percentile(0.95), 3),
        }


class _Streak(Struct):
    """Failures of one caller without a success between."""

    row: int = 0
    error: str = ""
    again: float = 0.0  # when one call may be tried
    wait: float = PROBE_S[0]
    probing: bool = False


class Health:
    """One tool's, over all its versions' calls or of one version, as its registry keeps it."""

    def __init__(self, concurrency: int, clock: Callable[[], float]) -> None:
        self.metrics = Metrics()
        self._most, self._clock = concurrency, clock
        self._last: deque[bool] = deque(maxlen=WINDOW)
        self._row = 0  # failures without a success between, whosever
        self._error = ""
        self._streaks: dict[str, _Streak] = {}  # by caller
        self._in_flight: Counter[str] = Counter()  # as well

    @property
    def state(self) -> HealthState:
        if self._row >= IN_A_ROW:
            return "down"
        bad = self._last.count(False)
        return "degraded" if len(self._last) >= WINDOW // 2 and bad * 2 >= len(self._last) else "ok"

    @property
    def last_error(self) -> str:
        return self._error

    def begin(self, caller: str = "") -> None:
        """Before a call. EAGAIN: too many of it run. EIO: it is down for this caller, and not yet time to try."""
        mine, all_ = self._in_flight[caller], self.metrics.in_flight
        if mine >= self._most or (mine and all_ >= self._most * _OF_ALL):
            reason = f"{mine} of your calls of it run already"
            raise EAGAIN("tool.busy", reason, retry_after_ms=int(max(50.0, self.metrics.percentile(0.5))))
        streak = self._streaks.get(caller)
        if streak and streak.row >= IN_A_ROW:
            left = streak.again - self._clock()
            if left > 0 or streak.probing:
                reason = f"the tool is down, and its last error was: {streak.error}"
                after = int(max(left, 1.0) * 1000)
                raise EIO("tool.down", reason, hint="it is tried again by itself", retry_after_ms=after, ran=False)
            streak.probing = True
        self.metrics.calls += 1
        self.metrics.in_flight += 1
        self._in_flight[caller] += 1

    def end(self, duration_ms: float, size: int = 0, error: AgentOSError | None = None, caller: str = "") -> None:
        """After each that began."""
        self.metrics.in_flight -= 1
        self._in_flight -= Counter({caller: 1})  # which forgets whoever has none
        self.metrics.bytes += size
        self.metrics.times.append(duration_ms)
        if streak := self._streaks.get(caller):
            streak.probing = False
        if error is None:
            self._last.append(True)
            self._row = 0
            self._streaks.pop(caller, None)
            return
        self.metrics.errors[error.name] += 1
        if error.name not in _CALLERS:
            self._failed(error, caller)

    def deny(self) -> None:
        """The gate refused one."""
        self.metrics.denied += 1

    def _failed(self, error: AgentOSError, caller: str) -> None:
        self._last.append(False)
        self._row += 1
        self._error = f"{error.name} {error.code}: {error.reason}"[:500]
        if caller not in self._streaks and len(self._streaks) >= _MOST_STREAKS:
            del self._streaks[next(iter(self._streaks))]
        streak = self._streaks.setdefault(caller, _Streak())
        streak.row, streak.error = streak.row + 1, self._error
        if streak.row >= IN_A_ROW:
            streak.again = self._clock() + streak.wait
            streak.wait = min(streak.wait * 2, PROBE_S[1])
