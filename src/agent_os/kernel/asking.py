"""What operators ask of approvals and budgets: look, decide, set limits, add up what was spent.

In: a recognised operator and a request of the operator range. Out: an `Act` for the gate. An answer leaves when it is
on disk: the entry of the decision goes to the journal before that of the operation, and is committed no later. Also
SYS_APPROVE_WAIT, with which an agent waits for a decision about a call of its own.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, ENOENT, ESRCH
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.drivers.store import Store
from agent_os.kernel.authority import budget
from agent_os.kernel.authority.answers import Approval, State
from agent_os.kernel.authority.approvals import Approvals
from agent_os.kernel.authority.budget import OPERATOR, Account, Ledger, Spending
from agent_os.kernel.calls import Act, Asked, Done
from agent_os.kernel.journal import Draft, Journal
from agent_os.kernel.reading import apart
from agent_os.kernel.table import NAMESPACE, Actor, Agent, qualified
from agent_os.kernel.tools.schema import Schema


class Desk(Protocol):
    """What of the kernel is needed here."""

    journal: Journal
    store: Store
    approvals: Approvals
    budgets: Ledger


Prepare = Callable[[Any, Any, Asked], Act]


# Approvals.


def _approvals(desk: Desk, caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Approvals", asked.request)
    agent = qualified(request.agent, strict=False) if request.agent else None

    def do() -> Done:
        found = desk.approvals.every() if request.all else desk.approvals.pending()
        return Done({"approvals": [told(one) for one in found if agent in (None, one.agent)]})

    return Act(do)


def _decide(desk: Desk, caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Decide", asked.request)

    def do() -> Done:
        decided = desk.approvals.decide(
            request.approval,
            caller,
            approve=request.outcome == "approve",
            digest=request.digest,
            scope=request.scope,
            note=request.reason,
            value=_answer(desk, request),
        )
        return Done(told(decided))

    return Act(do)


def _answer(desk: Desk, request: abi.Decide) -> Any:
    """To a question, a value of the type that was asked for; to anything else yes or no is all there is."""
    one = desk.approvals.find(request.approval)
    if one.syscall != "SYS_ASK":
        if request.value is not None:
            raise EINVAL("approval.value", f"{one.id} is no question: it takes a yes or a no", hint="agentctl approve")
        return None
    if request.outcome == "approve":
        Schema({"type": "string"} if one.schema is None else one.schema).require(request.value, "the answer", ran=False)
    return request.value


def told(one: Approval) -> dict[str, Any]:
    """An approval as doors show it. `args` and all in them is what an agent wrote."""
    now = time.time_ns()
    plain = ("id", "digest", "wants", "syscall", "args", "origins", "capability", "rules", "reasons", "scopes", "guest")
    facts = {
        name: getattr(one, name)
        for name in (*plain, "approvers", "created_seq", "decided_by", "scope", "note", "holds", "schema", "value")
    }
    return {
        **facts,
        "agent": one.agent.removeprefix(f"{NAMESPACE}/"),
        "state": str(one.state),
        "seconds": (now - one.created_ns) / 1e9,
        "left": (one.deadline_ns - now) / 1e9 if one.state is State.PENDING else None,
    }


def approve_wait(desk: Desk, agent: Agent, asked: Asked) -> Act:
    """SYS_APPROVE_WAIT: how a question of one's own was answered, or that it was not within the time given."""
    request = cast("abi.ApproveWait", asked.request)
    unknown = ENOENT("approval.unknown", f"you have no approval {request.request!r}")
    try:
        if desk.approvals.find(request.request).agent != agent.id:
            raise unknown
    except ENOENT:
        raise unknown from None

    async def do() -> Done:
        found = desk.approvals.find(request.request)
        if found.state is State.PENDING and request.wait_ms > 0:
            await _decided(desk.approvals, found.id, request.wait_ms / 1000)
            found = desk.approvals.find(found.id)
        return Done({"decision": str(found.state), "by": found.decided_by, "at": found.decided_ns})

    return Act(do)


async def _decided(approvals: Approvals, approval: str, seconds: float) -> None:
    """Cancelled or out of time, nobody is left in the line."""
    answered = asyncio.Event()
    end = approvals.watch(approval, answered.set)
    try:
        async with asyncio.timeout(seconds):
            await answered.wait()
    except TimeoutError:
        pass
    finally:
        end()


# Budgets.


def _budgets(desk: Desk, caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Budgets", asked.request)
    wanted = _account(desk, request.agent) if request.agent else None

    def do() -> Done:
        names = desk.budgets.chain(wanted) if wanted else _worth_telling(desk.budgets)
        return Done({"accounts": [_shown(desk.budgets.account(name)) for name in names]})

    return Act(do)


def _worth_telling(budgets: Ledger) -> list[str]:
    """Accounts with a limit or something spent, and everybody above them: what binds those is theirs."""
    used = [one for one in budgets if one.limits or any(map(one.used, budget.RESOURCES))]
    return list(dict.fromkeys(name for one in used for name in budgets.chain(one.id)))


def _limit(desk: Desk, caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Limit", asked.request)
    account = _account(desk, request.agent)

    def do() -> Done:
        cost = desk.budgets.limit(account, request.limits, more=request.more)
        body = frames.encode_body({"account": account, "limits": cost["limits"], "reason": request.reason})
        desk.journal.put(Draft(caller.id, Kind.BUDGET, cost=cost, body=body), sync=True)
        return Done(_shown(desk.budgets.account(account)))

    return Act(do)


def _account(desk: Desk, name: str) -> str:
    if name == OPERATOR:
        return OPERATOR
    account = qualified(name)
    if not desk.store.aseq(account) and not any(one.id == account for one in desk.budgets):
        raise ESRCH("agent.unknown", f"there is no agent {name!r}", hint="agentctl budget ls shows who has a budget")
    return account


def _shown(one: Account) -> dict[str, Any]:
    resources = [name for name in budget.RESOURCES if name in one.limits or one.used(name)]
    uses = [
        {
            "resource": name,
            "spent": one.spent.get(name, 0),
            "held": one.held.get(name, 0),
            "limit": one.limits.get(name),
        }
        for name in resources
    ]
    parent = one.parent.removeprefix(f"{NAMESPACE}/") if one.parent else None
    return {"account": one.id.removeprefix(f"{NAMESPACE}/"), "parent": parent, "uses": uses}


def _cost(desk: Desk, caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Cost", asked.request)
    by = list(dict.fromkeys(request.by)) or ["agent"]

    def add_up() -> dict[str, Any]:
        spending = Spending(by, request.since_ns)
        for entry, _ in desk.journal.scan():
            spending.add(entry)
        rows = [{**dict(zip(by, key, strict=True)), "spent": spent} for key, spent in sorted(spending.rows.items())]
        for row in rows:
            row["agent"] = str(row["agent"]).removeprefix(f"{NAMESPACE}/") if "agent" in row else ""
        total: dict[str, int] = {}
        for spent in spending.rows.values():
            for resource, amount in spent.items():
                total[resource] = total.get(resource, 0) + amount
        return {"by": by, "rows": rows, "total": total}

    async def do() -> Done:
        return Done(await apart(add_up))  # a long journal must not hold anybody up

    return Act(do)


_BY_TYPE: Mapping[type[abi.Body], Prepare] = {
    abi.Approvals: _approvals,
    abi.Decide: _decide,
    abi.Budgets: _budgets,
    abi.Limit: _limit,
    abi.Cost: _cost,
}
CALLS: dict[int, Prepare] = {30: approve_wait}
PREPARE: dict[int, Prepare] = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
