"""How one agent is watched: what its manifest says of READY, checks, deadlines, repetition, its share of the machine.

In: an `AgentManifest`. Out: one value for each part that watches. EINVAL names the key that cannot be understood, so
whoever declares an agent reads this first. Reads no file and watches nobody.
"""

from typing import TYPE_CHECKING

from msgspec import Struct, field

from agent_os.abi.errors import EINVAL
from agent_os.kernel.supervisor.health import Settings
from agent_os.kernel.supervisor.readiness import Ready, by_default, parse

if TYPE_CHECKING:
    from agent_os.manifest.model import AgentManifest

_SHORTEST_INTERVAL = 0.1  # each check is a process, or two entries of the journal
WEIGHTS = {"low": 25, "normal": 100, "high": 300, "critical": 800}  # of cpu and io


class Watched(Struct, frozen=True):
    settings: Settings = field(default_factory=Settings)
    ready: Ready = field(default_factory=lambda: Ready("immediate"))
    watchdog_secs: float | None = None
    max_repeats: int | None = None  # equal tool calls in a row
    run_secs: float | None = None  # of one incarnation
    weight: int = WEIGHTS["normal"]

    @property
    def asks(self) -> bool:
        """Whether something is asked of it again and again, to see whether it can serve."""
        return self.ready.way in ("exec", "port")


def of(manifest: "AgentManifest") -> Watched:
    from agent_os.manifest.settling import runtime

    health = manifest.health
    ready = _ready(health.ready, runtime(manifest.program))
    return Watched(
        Settings(
            check_interval_secs=max(_SHORTEST_INTERVAL, float(health.check_interval_secs)),
            timeout_secs=float(health.timeout_secs),
            failure_threshold=health.failure_threshold,
            success_threshold=health.success_threshold,
            start_timeout_secs=float(health.start_timeout_secs),
        ),
        ready,
        _seconds(health.watchdog_secs),
        health.max_repeat_calls,
        _seconds(manifest.resources.max_runtime_secs),
        WEIGHTS[str(manifest.resources.priority)],
    )


def _ready(text: str, kind: str) -> Ready:
    try:
        ready = parse(text) if text else by_default(kind)
    except EINVAL as error:
        raise EINVAL(error.code, f"health.ready: {error.reason}", hint=error.hint) from None
    if ready.way == "notify" and kind == "exec":
        reason = "health.ready: a command has no way to say that it is ready"
        raise EINVAL("health.ready", reason, hint='"immediate", "log:<regex>", "exec:<command>" or "port:<number>"')
    return ready


def _seconds(value: float | None) -> float | None:
    return None if value is None else float(value)
