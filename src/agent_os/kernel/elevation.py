"""SYS_ELEVATE: an agent asks for more than it holds, and a person answers.

In: capabilities, a reason and for how long. Out: an `Act` that waits at the gate like any other call that a person must
agree to, its question holding what the agent has, what it asks for and why; then handles that expire by themselves.
None of it is automatic: what exceeds the grant is always asked about, and whatever a rule forbids stays forbidden.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EINVAL, EPERM
from agent_os.abi.syscalls import BY_REQUEST, Effect
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.questions import HOLDS
from agent_os.kernel.calls import Act, Asked, Done, Way
from agent_os.kernel.table import Agent

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

MOST_CAPABILITIES, LONGEST_REASON = 32, 1000
_MOST_MS = 24 * 3600 * 1000  # a day; for longer there are manifests
_WHY = "it asks for more than it holds"


def _elevate(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Elevate", asked.request)
    wanted = _understood(request)

    def do() -> Done:
        ends_ms = _now_ms() + request.ttl_ms
        lacks = _missing(agent, wanted, ends_ms) if exceeds else []  # what ended since, nobody was asked about
        granted = [kernel.authority.elevate(agent.id, _until(one, ends_ms)) for one in lacks]
        ends_ns = ends_ms * 1_000_000 if granted else None
        return Done({"granted": [f"c-{one.id}" for one in granted], "expires_ns": ends_ns})

    exceeds = bool(_missing(agent, wanted, _now_ms() + request.ttl_ms))
    held = [str(one.capability) for one in agent.holdings if not one.revoked and not one.starting]
    return Act(do, way=Way.STORE, effect=Effect.IDEMPOTENT, ask=_WHY if exceeds else "", facts={HOLDS: held})


def _understood(request: abi.Elevate) -> list[Capability]:
    if not 0 < len(request.caps) <= MOST_CAPABILITIES:
        raise EINVAL("body", f"SYS_ELEVATE takes 1 to {MOST_CAPABILITIES} capabilities - at `$.caps`")
    if not request.reason.strip() or len(request.reason) > LONGEST_REASON:
        raise EINVAL("body", f"SYS_ELEVATE takes a reason of up to {LONGEST_REASON} characters - at `$.reason`")
    if not 0 < request.ttl_ms <= _MOST_MS:
        raise EINVAL("body", f"SYS_ELEVATE is for 1 to {_MOST_MS} ms, a day - at `$.ttl_ms`")
    wanted = [capability.parse(text) for text in request.caps]
    if any("loopback" in one.constraints for one in wanted):
        raise EPERM("cap.loopback", "an endpoint of the host itself is granted by the operator only", hint="--net")
    return wanted


def _missing(agent: Agent, wanted: Sequence[Capability], ends_ms: int) -> list[Capability]:
    """What of it the agent does not hold until then: no handle covers an action of it."""
    return [one for one in wanted if not all(_holds(agent, _until(one, ends_ms), each) for each in one.actions)]


def _holds(agent: Agent, one: Capability, action: str) -> bool:
    alone = Capability(one.kind, one.target, frozenset({action}), {**one.constraints, "depth": 0})
    return agent.holdings.holding(alone) is not None


def _until(one: Capability, ends_ms: int) -> Capability:
    """Its own end may be earlier."""
    ends = min(ends_ms, one.constraints.get("expiry", ends_ms))
    return Capability(one.kind, one.target, one.actions, {**one.constraints, "expiry": ends})


def _now_ms() -> int:
    return int(time.time() * 1000)


CALLS = {BY_REQUEST[abi.Elevate].number: _elevate}
