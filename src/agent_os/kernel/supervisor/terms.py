"""The terms an agent is supervised on, words and numbers of its manifest, and the states it can be in.

Goes in and comes out: plain values, already validated. Knows no manifest file and no process; whoever reads a manifest
makes these of it.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

Priority = Literal["low", "normal", "high", "critical"]
Jitter = Literal["equal", "none"]


class RestartPolicy(StrEnum):
    """Whether an agent that ended is started again. Whom that concerns beside it is the strategy's business."""

    NEVER = "never"
    ON_FAILURE = "on_failure"
    ALWAYS = "always"


class Strategy(StrEnum):
    """Who is stopped and started with a child that failed. Never whether."""

    ONE_FOR_ONE = "one_for_one"
    ONE_FOR_ALL = "one_for_all"
    REST_FOR_ONE = "rest_for_one"


class State(StrEnum):
    """Of an agent, over all its lives; those of one life are in `abi`."""

    PENDING = "pending"  # admitted, waiting for its turn
    BLOCKED = "blocked"  # by a dependency, a budget, a provider, an approval, an unknown outcome
    ACTIVE = "active"  # it has a live incarnation, and is shown as that one's state
    BACKOFF = "backoff"
    STOPPED = "stopped"
    COMPLETED = "completed"
    FAILED = "failed"
    QUARANTINED = "quarantined"


OVER = frozenset({State.STOPPED, State.COMPLETED, State.FAILED, State.QUARANTINED})  # nothing of it comes by itself


class Backoff(Struct, frozen=True):
    """How long to wait before the next life. The doubling is nominal; see `backoff`."""

    base_ms: int = 100
    cap_ms: int = 30_000
    jitter: Jitter = "equal"


class Terms(Struct, frozen=True):
    """Of an agent, for its own restarts."""

    policy: RestartPolicy = RestartPolicy.ON_FAILURE
    max_restarts: int = 5  # in a row, without ever becoming stable
    stable_secs: float = 60.0  # of being ready, after which the counting begins anew
    success_codes: frozenset[int] = frozenset({0})  # of normal ends; here and below −n for host signal n
    no_restart_codes: frozenset[int] = frozenset()
    force_restart_codes: frozenset[int] = frozenset()
    max_deaths: int = 3  # with one message in hand
    backoff: Backoff = field(default_factory=Backoff)


class Supervision(Struct, frozen=True):
    """Of a supervisor, for its children. Root has no intensity: unrelated agents must not bring each other down."""

    strategy: Strategy = Strategy.ONE_FOR_ONE
    intensity: int | None = 10  # restarts of all children together in a period; None: no limit
    period_secs: float = 60.0


ROOT = Supervision(intensity=None)
