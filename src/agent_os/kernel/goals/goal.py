"""A goal: what somebody wants done, as it is asked for, as it waits, and as doors show it.

In: text or a mapping from a front door. Out: a checked `Goal`, or EINVAL naming every problem at once. Who may submit,
who is meant and when it runs are for others.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast

from msgspec import Struct, field

from agent_os.abi.errors import EINVAL, EPERM
from agent_os.kernel.supervisor.terms import Priority

PRIORITIES: tuple[Priority, ...] = ("critical", "high", "normal", "low")  # in the order in which they are served
LONGEST_TEXT = 16 << 10  # characters; thousands of them may wait
MEMORY_MB = 256  # that an agent declares which says nothing
_KEYS = ("text", "agent", "tenant", "priority", "deadline", "budget", "memory_mb", "inputs")


class Goal(Struct, frozen=True):
    text: str
    agent: str | None = None  # named by whoever submits; else one is picked
    tenant: str = "default"
    priority: Priority = "normal"
    deadline: float | None = None  # seconds since 1970
    budget: Mapping[str, float] = field(default_factory=dict[str, float])
    memory_mb: int | None = None  # None: what the agent declares
    inputs: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Waiting(Struct, eq=False):
    """A goal with its agent, from the moment the journal holds it until it is done."""

    id: str
    seq: int  # ascending with arrival
    goal: Goal
    agent: str
    picked_by: str
    priority: Priority
    submitted_at: float
    memory_mb: int  # that the agent will take if it must be started
    passed_since: float | None = None  # others went first because they fitted and it did not

    @property
    def tenant(self) -> str:
        return self.goal.tenant

    @property
    def deadline(self) -> float | None:
        return self.goal.deadline


class PendingGoal(Struct, frozen=True):
    """A goal in the queue as doors show it. `waiting_for`: slots, memory, budget, agent or turn; empty: it starts."""

    id: str
    goal: str
    agent: str
    picked_by: str
    tenant: str
    priority: str
    submitted_at: float
    deadline: float | None
    position: int
    waiting_for: str


def read(asked: str | Mapping[str, Any]) -> Goal:
    """A goal as it was asked for; bare text is all of one."""
    given: Mapping[str, Any] = {"text": asked} if isinstance(asked, str) else asked
    problems = [*_unknown(given), *_wrong(given)]
    if problems:
        raise EINVAL("goal", "; ".join(problems), problems=problems, hint=f"a goal has {', '.join(_KEYS)}")
    return Goal(**{key: value for key, value in given.items() if value is not None})


def require_priority(word: object, *, operator: bool) -> Priority:
    """EINVAL names the four; EPERM: only an operator makes anything critical."""
    if word not in PRIORITIES:
        raise EINVAL("goal.priority", f"{word!r} is no priority", hint=f"one of {', '.join(PRIORITIES)}")
    if word == "critical" and not operator:
        raise EPERM("goal.critical", "only an operator makes a goal critical", hint="high is the next below")
    return word


def _unknown(given: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    for key in sorted(str(key)[:64] for key in given if key not in _KEYS):
        near = get_close_matches(key, _KEYS, n=1)
        problems.append(f"`{key}` unknown" + (f", did you mean `{near[0]}`?" if near else ""))
    return problems


def _wrong(given: Mapping[str, Any]) -> list[str]:
    text, priority = given.get("text"), given.get("priority")
    problems: list[str] = []
    if not isinstance(text, str) or not text.strip():
        problems.append("`text` must say what is to be done")
    elif len(text) > LONGEST_TEXT:
        problems.append(f"`text` has {len(text)} characters of at most {LONGEST_TEXT}")
    for key in ("agent", "tenant"):
        if not isinstance(given.get(key, "a"), str | None) or given.get(key) == "":
            problems.append(f"`{key}` must be a name")
    if priority is not None and priority not in PRIORITIES:
        problems.append(f"`priority` must be one of {', '.join(PRIORITIES)}")
    if not _is_number(given.get("deadline", 0.0)):
        problems.append("`deadline` must be a time in seconds since 1970")
    if not _is_count(given.get("memory_mb", 0)):
        problems.append("`memory_mb` must be a whole number of MiB")
    if not _is_amounts(given.get("budget")):
        problems.append("`budget` must be amounts by resource, none below zero")
    if not isinstance(given.get("inputs"), Mapping | None):
        problems.append("`inputs` must be values by name")
    return problems


def _is_number(value: object) -> bool:
    """A bool is none, nor is what compares with nothing."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15)


def _is_count(value: object) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def _is_amounts(value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, Mapping):
        return False
    amounts = cast(Mapping[object, Any], value)
    named = all(isinstance(key, str) for key in amounts)
    return named and all(one is not None and _is_number(one) and one >= 0 for one in amounts.values())
