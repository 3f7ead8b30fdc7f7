"""What an agent tells and asks whoever it works for: questions, events, what it has left, and its result.

SYS_ASK waits at the gate as any call that a person must agree to, and is answered with a value in place of a yes; so it
outlives agent and kernel, expires, and is told apart from a refusal. SYS_EVENT is a line of the record. `agent.finish`
is a tool that changes nothing: it holds a result to the schema that the agent's manifest promised.
"""

import re
from typing import TYPE_CHECKING, Any, cast

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import EINVAL, EMSGSIZE
from agent_os.abi.syscalls import BY_REQUEST, Effect
from agent_os.abi.tools import ToolResult
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.authority.questions import SCHEMA, WANTS
from agent_os.kernel.calls import Act, Asked, Done, Way
from agent_os.kernel.table import Agent
from agent_os.kernel.tools.schema import Schema

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

FINISH = "agent.finish"  # in `syscalls`, too
LONGEST_QUESTION = 4000  # characters
_MOST_MS = 7 * 24 * 3600 * 1000
_LARGEST_EVENT = 32 << 10  # bytes
_KIND = re.compile(r"agent\.[a-z][a-z_]{0,40}")
_WHY = "it has a question for you"


def _ask(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Ask", asked.request)
    if not request.question.strip() or len(request.question) > LONGEST_QUESTION:
        raise EINVAL("body", f"SYS_ASK takes a question of up to {LONGEST_QUESTION} characters - at `$.question`")
    if not 0 < request.timeout_ms <= _MOST_MS:
        raise EINVAL("body", f"SYS_ASK waits 1 to {_MOST_MS} ms, a week - at `$.timeout_ms`")
    if request.schema is not None:
        Schema(request.schema)  # EINVAL: nobody could answer it

    def do() -> Done:
        found = kernel.approvals.find(act.approval)
        return Done({"value": found.value, "by": found.decided_by})

    facts = {WANTS: "an answer", SCHEMA: request.schema}
    act = Act(do, way=Way.STORE, effect=Effect.IDEMPOTENT, ask=_WHY, ask_s=request.timeout_ms / 1000, facts=facts)
    act.label = lambda: CLEAN  # a person said it
    return act


def _event(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Event", asked.request)
    if not _KIND.fullmatch(request.kind):
        raise EINVAL("body", "an event is called agent.WORD, of small letters - at `$.kind`")
    if len(asked.raw) > _LARGEST_EVENT:
        raise EMSGSIZE("event.size", f"an event has at most {_LARGEST_EVENT} bytes")
    return Act(Done)


def _left(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    def do() -> Done:
        ledger = kernel.budgets
        bounds = [
            {"account": one.id, "resource": name, "limit": limit, "used": one.used(name)}
            for one in map(ledger.account, ledger.chain(agent.id))
            for name, limit in one.limits.items()
        ]
        share, resource = min(((_share(one), str(one["resource"])) for one in bounds), default=(1.0, ""))
        return Done({"share": share, "resource": resource if share < 1 else "", "left": bounds})

    return Act(do, label=lambda: CLEAN)


def _share(bound: dict[str, Any]) -> float:
    limit = bound["limit"]
    return max(0.0, (limit - bound["used"]) / limit) if limit > 0 else 0.0


def finish(agent: Agent, request: abi.Exec) -> Act:
    """ETYPE: the result is not what was promised. Whoever promised nothing may hand over anything."""
    schema = Schema(_taken(agent), closed=True)
    schema.require(request.params, f"the parameters of {FINISH}", ran=False)
    kept = ToolResult(value={"finished": True}, tool=f"{FINISH}@1.0.0", digest=FINISH)
    return Act(
        lambda: Done(kept if request.whole else kept.value),
        cost={"calls": 0},
        facts={"args": request.params},
        label=lambda: CLEAN,
    )


def _taken(agent: Agent) -> dict[str, Any]:
    given = agent.order.get("input") if agent.order.get("model") else None  # ours, so it has its shape
    promised: Any = cast("dict[str, Any]", given)["terms"].get("output_schema") if given else None
    return {"type": "object", "properties": {"result": promised or {}}, "required": ["result"]}


CALLS = {BY_REQUEST[abi.Ask].number: _ask, BY_REQUEST[abi.Event].number: _event, BY_REQUEST[abi.Left].number: _left}
