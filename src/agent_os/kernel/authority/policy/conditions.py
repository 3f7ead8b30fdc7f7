"""Constraints inside a rule: which make sense there, and whether a call meets them.

A capability's constraint narrows what is granted; a rule is only matched, so it may carry two sorts: *conditions* on
facts of the call (`arg.NAME`, `port`, `scheme`, `allowlist`) and, where it lets something through, *limits* that the
kernel puts on the call (`timeout`, `max_size`). Any other is refused when the file is read, and so is a limit to which
nobody would hold that call.

What is not known counts against the caller: an allow whose condition cannot be judged does not hold, a forbid or an
ask whose condition cannot be judged does.
"""

import re
from collections.abc import Callable, Collection, Mapping
from math import isfinite
from typing import Any, cast

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.capability import ACTIONS, Capability
from agent_os.kernel.authority.constraints import Argument, Facts, argument_fits
from agent_os.kernel.authority.policy.rules import Effect

LIMITS = ("timeout", "max_size", "tokens")
# By limit and kind: the actions that are held to it. A connection is not, and what changes a real file is not stopped
# half way; no model is called by the kernel.
_DOORS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "timeout": {"tool": ACTIONS["tool"], "mem": ACTIONS["mem"], "file": frozenset({"read"})},
    "max_size": {kind: ACTIONS[kind] for kind in ("tool", "mem", "file")},
    "tokens": {},
}
_TOPS = frozenset({"mem", "state", "policy", "proc", "ipc", "work"})
_NETWORK = re.compile(r"(?:\d+\.\d+\.\d+\.\d+|\[[0-9a-f:.]+\])/\d{1,3}")
_CONDITIONS = ("port", "scheme", "allowlist")
_INSTEAD = {"rate": 'the rule\'s own key, rate = "100/hour"'}
Judge = Callable[[Facts], bool]


def rule_capability(text: str, effect: Effect | None) -> Capability:
    """A capability text as a rule writes it. `effect` None: it only names something, so it carries no constraint."""
    parsed = capability.parse(text, rule=True)
    for name in parsed.constraints:
        if effect is not None and (name in _CONDITIONS or name.startswith("arg.")):
            continue
        if effect in (Effect.ALLOW, Effect.ASK) and name in LIMITS:
            if why := not_held(name, parsed.kind, parsed.actions):
                raise EINVAL("policy.limit", f"{text!r}: {why}")
            continue
        raise EINVAL("policy.constraint", f"{text!r}: {_why(name, effect)}", hint=_INSTEAD.get(name, ""))
    target = parsed.target
    if any(wild and segment.count("*") > 1 for segment, wild in zip(target.segments, target.wild, strict=True)):
        raise EINVAL("policy.pattern", f"{text!r}: in a rule a segment has a literal star or a wildcard, not both")
    return parsed


def require_real(one: Capability, text: str) -> None:
    """What nothing is ever called is the name of a rule that never holds, and is believed."""
    target = one.target
    if one.kind == "mem" and target.segments and not target.wild[0] and target.segments[0] not in _TOPS:
        hint = f"there is {', '.join(f'/{top}' for top in sorted(_TOPS))}"
        raise EINVAL("policy.target", f"{text!r}: nothing of an agent's memory lies there", hint=hint)
    if one.kind == "http" and _NETWORK.fullmatch(f"{target.host}/{'/'.join(target.segments)}"):
        reason = f"{text!r} is the page of one address; a rule cannot be about a network"
        raise EINVAL("policy.target", reason, hint="name its addresses, or forbid all and allow the others")


def held_to(limit: str, kind: str) -> frozenset[str]:
    """The actions of that kind which the kernel holds to such a limit."""
    return _DOORS[limit].get(kind, frozenset())


def not_held(limit: str, kind: str, actions: Collection[str]) -> str:
    """Why a rule cannot put such a limit on these; empty: it can."""
    doors = _DOORS[limit]
    if not (loose := sorted(set(actions) - held_to(limit, kind))):
        return ""
    held = ", ".join(kind if some == ACTIONS[kind] else f"{kind}:{'|'.join(some)}" for kind, some in doors.items())
    return f"no {kind}:{loose[0]} is held to a {limit!r} yet" + (f", only {held}" if held else "")


def _why(name: str, effect: Effect | None) -> str:
    if effect is None:
        return f"{name!r} says nothing here, where something is only named"
    if name in LIMITS:
        return f"{name!r} limits what is let through; this forbids"
    return f"{name!r} is kept by a capability, not by a rule"


def limits_of(one: Capability) -> dict[str, int]:
    return {name: one.constraints[name] for name in LIMITS if name in one.constraints}


def judge_of(one: Capability, effect: Effect) -> Judge | None:
    """Whether a call with these facts is meant; None: any call is."""
    tests = [_test(name, value, effect) for name, value in one.constraints.items() if name not in LIMITS]
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else lambda facts: all(test(facts) for test in tests)


def _test(name: str, value: Any, effect: Effect) -> Judge:
    unknown = effect is not Effect.ALLOW
    if name == "port":
        return lambda facts: facts["port"] in value if "port" in facts else unknown
    if name == "scheme":
        return lambda facts: facts["scheme"] in value if "scheme" in facts else unknown
    if name == "allowlist":
        return lambda facts: _runs(value, facts["program"]) if facts.get("program") else unknown
    return _argument(name.removeprefix("arg."), value, unknown)


def _runs(named: frozenset[str], program: Any) -> bool:
    names = {program} if isinstance(program, str) else set(cast(tuple[str, ...], program))
    return not named.isdisjoint(names)


def _argument(name: str, value: Argument, unknown: bool) -> Judge:
    def test(facts: Facts) -> bool:
        args = cast(Mapping[str, Any], facts.get("args", {}))
        if name not in args or not _judgeable(value, args[name]):
            return unknown
        return argument_fits(value, args[name])

    return test


def _judgeable(value: Argument, given: object) -> bool:
    """A list or an object is not looked into, text is no number, nor is what lies in no range; and a path that climbs
    may lead anywhere."""
    if value.range is not None:
        return isinstance(given, int | float) and not isinstance(given, bool) and isfinite(given)
    return isinstance(given, bool | int | float | str) and ".." not in str(given).split("/")
