"""Unit tests for rules, and what a change of rules would change.

Goes in: a policy and written cases, or two policies and recorded calls. Comes out: which cases hold, or which calls are
decided otherwise. Pure: nothing is called, charged or recorded. Decides what rules and labels decide; whether an agent
holds the capability is not asked here.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from msgspec import Struct, field

from agent_os.abi.errors import EINVAL, ELABEL, AgentOSError
from agent_os.abi.syscalls import BY_NAME
from agent_os.abi.syscalls import Effect as Class
from agent_os.kernel.authority import capability, flows
from agent_os.kernel.authority.labels import Label
from agent_os.kernel.authority.policy.layers import Decision, Policy
from agent_os.kernel.authority.policy.problems import Problems, Where, nearest
from agent_os.kernel.authority.policy.rules import Effect
from agent_os.kernel.calls import Need
from agent_os.manifest.lines import Path, TooDeep, toml_lines

_KEYS = ("name", "agent", "role", "call", "args", "label", "expect", "rule")
_REQUIRED = ("name", "agent", "call", "expect")
_LABEL = ("integrity", "classes", "sources")
_RECORDED = ("seq", "agent", "role", "kind", "action", "target")
_ROLE = "worker"
_OPS = {
    "write": "SYS_WRITE",
    "delete": "SYS_REMOVE",
    "spawn": "SYS_SPAWN",
    "signal": "SYS_SIGNAL",
    "share": "SYS_SHARE",
}
_LEAVING = {"http": "SYS_EXEC", "tool": "SYS_EXEC", "shell": "SYS_EXEC", "llm": "SYS_THINK"}
Table = Mapping[str, Any]


class Case(Struct, frozen=True):
    name: str
    agent: str
    role: str
    need: Need
    args: Mapping[str, Any]
    label: Label | None
    expect: Effect
    rule: str | None  # which must decide; None: any
    where: Where


class Outcome(NamedTuple):
    case: Case
    passed: bool
    effect: Effect
    rule: str  # which decided; empty: none
    why: str


class Recorded(Struct, frozen=True):
    """One call that was made, as far as rules look at it."""

    seq: int
    agent: str
    role: str
    need: Need
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Change(NamedTuple):
    call: Recorded
    before: Decision
    after: Decision


def read_cases(data: bytes, file: str) -> list[Case]:
    """`[[case]]` tables. EINVAL `policy.invalid` lists all that is wrong, with file and line."""
    problems = Problems(file)
    try:
        text = data.decode()
        lines = toml_lines(text)
        found: dict[str, Any] = tomllib.loads(text)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, TooDeep) as error:
        problems.add(0, f"not TOML: {error}")
        problems.settle()
        raise AssertionError from error
    for key in found:
        if key != "case":
            problems.add(lines[(key,)], f"the file has no key {key!r}{nearest(key, ('case',))}")
    tables: Any = found.get("case", [])
    if not isinstance(tables, list) or not tables or not all(isinstance(one, dict) for one in cast(list[Any], tables)):
        problems.add(lines.get(("case",), 1), "cases are tables: [[case]]")
        tables = []
    cases = [_case(table, ("case", number), lines, problems) for number, table in enumerate(cast(list[Table], tables))]
    problems.settle()
    return [case for case in cases if case is not None]


def _case(table: Table, path: Path, lines: Mapping[Path, int], problems: Problems) -> Case | None:
    wrong = [key for key in table if key not in _KEYS]
    for key in wrong:
        problems.add(lines.get((*path, key), lines[path]), f"a case has no key {key!r}{nearest(key, _KEYS)}")
    missing = [key for key in _REQUIRED if key not in table]
    for key in missing:
        problems.add(lines[path], f"a case needs the key {key!r}")
    for key, value in table.items():
        if key in _KEYS and not isinstance(value, dict if key in ("args", "label") else str):
            problems.add(lines[(*path, key)], f"{key!r} is a {'table' if key in ('args', 'label') else 'text'}")
            wrong.append(key)
    if wrong or missing:
        return None
    try:
        return Case(
            table["name"],
            table["agent"],
            table.get("role", _ROLE),
            _need(table["call"]),
            table.get("args", {}),
            _label(table["label"]) if "label" in table else None,
            _effect(table["expect"]),
            table.get("rule"),
            problems.where(lines[path]),
        )
    except AgentOSError as error:
        problems.add(lines[path], f"{error.reason} ({error.hint})" if error.hint else error.reason)
        return None


def _need(text: str) -> Need:
    """`kind:target:action`, one exact thing; a word alone is a tool."""
    if ":" not in text:
        return Need("tool", "call", text)
    kind, _, rest = text.partition(":")
    target, _, action = rest.rpartition(":")
    if action not in capability.ACTIONS.get(kind, ()):
        raise EINVAL("policy.case", f"{text!r} is no call", hint="kind:target:action, or the name of a tool")
    if target:
        capability.parse(capability.missing(Need(kind, action, target)))  # EINVAL where nothing is called that
    return Need(kind, action, target)


def _label(table: Table) -> Label:
    if wrong := [key for key in table if key not in _LABEL]:
        raise EINVAL("policy.case", f"a label has no key {wrong[0]!r}{nearest(wrong[0], _LABEL)}")
    integrity = table.get("integrity", "trusted")
    if integrity not in ("trusted", "untrusted"):
        raise EINVAL("policy.case", f"integrity is trusted or untrusted, not {integrity!r}")
    return Label(integrity, frozenset(table.get("sources", ())), frozenset(table.get("classes", ())))


def _effect(text: str) -> Effect:
    if text not in tuple(Effect):
        raise EINVAL("policy.case", f"'expect' is {text!r}, which is none of {', '.join(Effect)}")
    return Effect(text)


def run_cases(policy: Policy, cases: Iterable[Case], tools: Mapping[str, str | None] | None = None) -> list[Outcome]:
    return [_run(policy, case, tools or {}) for case in cases]


def _run(policy: Policy, case: Case, tools: Mapping[str, str | None]) -> Outcome:
    decision = policy.decide(case.agent, case.role, case.need, {**case.args, "args": case.args})
    effect, rule, why = decision.effect, decision.rule.id if decision.rule else "", decision.reason
    if effect is not Effect.FORBID and case.label is not None:
        try:
            doubts = _flow(policy, case, case.label, tools)
        except ELABEL as error:
            effect, rule, why = Effect.FORBID, str(error.detail.get("rule", error.code)), error.reason
        else:
            if doubts and effect is Effect.ALLOW:
                effect, rule, why = Effect.ASK, doubts[0].rule, doubts[0].reason
    passed = effect is case.expect and case.rule in (None, rule)
    return Outcome(case, passed, effect, rule, why)


def _flow(policy: Policy, case: Case, label: Label, tools: Mapping[str, str | None]) -> Sequence[flows.Doubt]:
    name = _LEAVING.get(case.need.kind) or _OPS.get(case.need.action, "SYS_READ")
    declared = tools.get(case.need.target) if case.need.kind == "tool" else None
    rules = flows.FlowRules(policy.classes, policy.sources, policy.sinks)
    return flows.decide(label, BY_NAME[name].number, [case.need], Class(declared or Class.OPAQUE), rules)


def read_recorded(data: bytes, file: str) -> list[Recorded]:
    """Recorded calls, one JSON object a line: seq, agent, role, kind, action, target, facts."""
    problems = Problems(file)
    calls: list[Recorded] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            calls.append(_recorded(json.loads(line)))
        except ValueError:
            problems.add(number, "this is no recorded call: one JSON object a line")
        except KeyError as missing:
            problems.add(number, f"this is no recorded call: it lacks {missing}")
        except TypeError:
            problems.add(number, f"this is no recorded call: an object with {', '.join(_RECORDED)}")
    problems.settle()
    return calls


def _recorded(one: Any) -> Recorded:
    seq, agent, role, *need = (one[key] for key in _RECORDED)
    return Recorded(int(seq), str(agent), str(role), Need(*map(str, need)), dict(one.get("facts", {})))


def diff(calls: Iterable[Recorded], before: Policy, after: Policy) -> list[Change]:
    """Every call that the two decide otherwise: another verdict, or another consequence for the agent."""
    changes: list[Change] = []
    for call in calls:
        one, other = (_decided(policy, call) for policy in (before, after))
        if (one.effect, one.violation) != (other.effect, other.violation):
            changes.append(Change(call, one, other))
    return changes


def _decided(policy: Policy, call: Recorded) -> Decision:
    """Of a request whose method nobody knows, the strictest that it could have been."""
    need = call.need
    every = capability.ACTIONS["http"] if (need.kind, need.action) == ("http", "request") else (need.action,)
    needs = [Need(need.kind, action, need.target) for action in sorted(every)]
    return policy.decide_all(call.agent, call.role, needs, call.facts)
