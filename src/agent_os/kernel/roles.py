"""Which role may ask what.

One literal table with every operation of operators, by name; one that is not in it nobody may ask. A viewer sees how
things are, an auditor also what was said, an operator does things. Where an operation both looks and changes, a look is
what its request says.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from agent_os.abi.errors import EPERM
from agent_os.abi.syscalls import BY_NAME, BY_NUMBER
from agent_os.kernel.table import Actor
from agent_os.kernel.tokens import RANKS


class Rule(Struct, frozen=True):
    role: str  # who may ask it
    changes: Callable[[Any], bool] | bool = False  # it, or this request of it, changes something: that is an operator's
    tells: Callable[[Any], bool] | None = None  # this request of it is about what was said: that is an auditor's


def _does(*looks: str) -> Callable[[Any], bool]:
    return lambda request: request.do not in looks


def _has(field: str) -> Callable[[Any], bool]:
    return lambda request: bool(getattr(request, field))


VIEWER, AUDITOR, OPERATOR = Rule("viewer"), Rule("auditor"), Rule("operator", changes=True)

TABLE: Mapping[str, Rule] = {
    "OP_STATUS": VIEWER,
    "OP_LIST": VIEWER,
    "OP_INSPECT": VIEWER,
    "OP_RUN": OPERATOR,
    "OP_EXEC": OPERATOR,
    "OP_SIGNAL": OPERATOR,
    "OP_HOLD": OPERATOR,
    "OP_SNAPSHOT": OPERATOR,
    "OP_WAIT": VIEWER,
    "OP_DOWN": OPERATOR,
    "OP_RESOLVE": OPERATOR,
    "OP_EVENTS": VIEWER,
    "OP_HEAD": VIEWER,
    "OP_PROVE": AUDITOR,
    "OP_CONSISTENCY": AUDITOR,
    "OP_EXPORT": AUDITOR,
    "OP_CHECKPOINT": OPERATOR,
    "OP_REPLAY": Rule("operator"),  # it runs a program
    "OP_BACKUP": Rule("operator"),  # it holds keys
    "OP_LOGS": AUDITOR,
    "OP_RELEASE": OPERATOR,
    "OP_PANIC": OPERATOR,
    "OP_LEAVE": Rule("viewer", _has("adopt")),
    "OP_WORK": Rule("auditor", _does("list", "diff")),
    "OP_TOKENS": Rule("auditor", _does("list")),
    "OP_SESSION": VIEWER,
    "OP_WHOAMI": VIEWER,
    "OP_METRICS": VIEWER,
    "OP_DOCTOR": VIEWER,
    "OP_GATEWAY": Rule("viewer", _does("look")),
    "OP_APPROVALS": VIEWER,
    "OP_DECIDE": OPERATOR,
    "OP_BUDGETS": VIEWER,
    "OP_LIMIT": OPERATOR,
    "OP_COST": VIEWER,
    "OP_SECRETS": Rule("auditor", _does("list")),
    "OP_CAPABILITIES": VIEWER,
    "OP_GRANT": OPERATOR,
    "OP_REVOKE": OPERATOR,
    "OP_EXPLAIN": AUDITOR,
    "OP_RULES": AUDITOR,
    "OP_APPLY_RULES": OPERATOR,
    "OP_MODELS": Rule("viewer", _does("list")),
    "OP_APPLY": OPERATOR,
    "OP_DELETE": OPERATOR,
    "OP_START": OPERATOR,
    "OP_STOP": OPERATOR,
    "OP_RESTART": OPERATOR,
    "OP_DECLARED": VIEWER,
    "OP_HISTORY": VIEWER,
    "OP_REACH": VIEWER,
    "OP_HEALTH": VIEWER,
    "OP_SUBMIT": OPERATOR,
    "OP_PRIORITIZE": OPERATOR,
    "OP_QUEUE": VIEWER,
    "OP_GOAL": VIEWER,
    "OP_WITHDRAW": OPERATOR,
    "OP_LINKS": VIEWER,
    "OP_POST": OPERATOR,
    "OP_BUS": VIEWER,
    "OP_DEAD": Rule("viewer", _does("list")),
    "OP_LISTEN": Rule("operator"),  # it subscribes, and a reliable topic waits for whoever does
    "OP_TOPICS": Rule("viewer", _has("topic")),
    "OP_MEMORY": Rule("viewer", _does("list", "read", "history", "search", "export"), _does("list", "read", "history")),
    "OP_TOOLS": VIEWER,
    "OP_CALL": OPERATOR,
    "OP_MCP": Rule("viewer", _does("list")),
    "OP_CLIENTS": Rule("viewer", _does("list")),
}
_BY_NUMBER = {BY_NAME[name].number: rule for name, rule in TABLE.items() if name in BY_NAME}
_STOPS = {BY_NAME[name].number for name in ("OP_SIGNAL", "OP_HOLD", "OP_STOP", "OP_DOWN", "OP_PANIC")}
_WITH_A_CODE = {BY_NAME[name].number for name in ("OP_SESSION", "OP_WHOAMI")}


def changes(op: int, request: Any) -> bool:
    how = _BY_NUMBER.get(op, OPERATOR).changes
    return how(request) if callable(how) else how


def announced(op: int, request: Any) -> Literal["", "first", "beside"]:
    """How a change is told of ahead: `first`, so that it is on disk before anything happens, or `beside` what it
    begins, because whoever stops an agent must not wait for a disk."""
    return "" if not changes(op, request) else "beside" if op in _STOPS else "first"


def require(actor: Actor, op: int, request: Any) -> None:
    """EPERM `role.low`: its role may not ask this, and which one may."""
    rule = _BY_NUMBER.get(op, OPERATOR)
    needed = "operator" if changes(op, request) else "auditor" if rule.tells and rule.tells(request) else rule.role
    if actor.via == "code" and (op not in _WITH_A_CODE or getattr(request, "do", "enter") != "enter"):
        raise EPERM("role.low", "a code only gives a session: OP_SESSION with do = enter")
    if RANKS[actor.role] < RANKS[needed]:
        hint = f"agentctl token add NAME --role {needed} makes a token that may"
        raise EPERM(
            "role.low", f"{BY_NUMBER[op].name} needs the role {needed}; {actor.name} is {actor.role}", hint=hint
        )
