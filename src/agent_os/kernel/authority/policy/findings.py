"""What is odd about a policy that loads: rules that never decide, names nobody has, lists that allow everything.

Goes in: a policy, and which agents and tools there are. Comes out: findings with file and line, and the policy as it
holds for one agent. Nothing here refuses: a file with findings is legal, only probably not what was meant. A rule is
called unreachable only where that is proved; what cannot be proved is not reported.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from msgspec import Struct

from agent_os.abi.syscalls import Effect as Class
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.labels import PRIVATE
from agent_os.kernel.authority.patterns import ROOTED, Pattern
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.problems import Where, nearest
from agent_os.kernel.authority.policy.rules import Effect, Layer, Mode, PolicyFile, Rule, Subject
from agent_os.kernel.authority.policy.security import Tools
from agent_os.kernel.authority.policy.trie import Trie

# Any of these runs whatever it is told to, so a list that holds one allows everything.
POWERFUL = frozenset(
    "sh bash dash zsh ash fish busybox env find git tar xargs awk gawk mawk perl python node nodejs ruby php lua "
    "make ssh vi vim ed sed nice nohup timeout time script sudo su doas docker podman npm npx pip uv rsync zip".split()
)
_FRESH = "\x01"  # a name that no pattern can hold: what matches it, matches by a wildcard
_SEVERITY = {Effect.ALLOW: 0, Effect.ASK: 1, Effect.FORBID: 2}


class Finding(Struct, frozen=True, order=True):
    where: Where
    kind: str  # unreachable, allow-in-forbid, unknown-agent, unknown-tool, unknown-class, powerful-list, rule-of-two
    rule: str
    what: str


class Line(Struct, frozen=True):
    """One rule as it holds for one agent."""

    layer: Layer
    effect: Effect
    what: tuple[str, ...]
    id: str
    where: Where
    mode: Mode


class _Clause(Struct, frozen=True):
    slot: int
    order: int
    file: PolicyFile
    rule: Rule
    what: Capability
    subject: Subject


def findings(
    policy: Policy,
    *,
    agents: Mapping[str, str] | None = None,
    tools: Collection[str] | None = None,
    classes: Tools | None = None,
    held: Mapping[str, Sequence[Capability]] | None = None,
) -> list[Finding]:
    """`agents`: role by name. `held`: what agents hold. `classes`: what tools declare. Where nothing is given, nothing
    is known, and no name is called unknown."""
    found = [*_covered(policy), *_all_three(policy, held or {}, classes or {}), *_unknown_classes(policy)]
    for _, rule in policy.rules():
        if agents is not None:
            found += _unknown_agents(rule, agents)
        if tools is not None:
            found += _unknown_tools(rule, tools)
        found += _powerful(rule)
    return sorted(found)


def _all_three(policy: Policy, held: Mapping[str, Sequence[Capability]], tools: Tools) -> Iterable[Finding]:
    """Agents that hold all three of the rule of two, and files that must allow and allow somebody all three."""
    for agent, capabilities in held.items():
        if why := rule_of_two(agent, capabilities, tools):
            yield Finding(Where("agents", 0), "rule-of-two", agent, why)
    for file in policy.files:
        if file.default != "deny":
            continue
        allowed: dict[str, list[Rule]] = {}
        for rule in file.rules:
            for subject in rule.agents if rule.effect is Effect.ALLOW else ():
                allowed.setdefault(subject.text, []).append(rule)
        for subject, rules in allowed.items():
            everybody = allowed.get("*", []) if subject != "*" else []
            what = [one for rule in (*everybody, *rules) for one in rule.what]
            if why := rule_of_two("everybody" if subject == "*" else subject, what, tools):
                yield Finding(rules[0].where, "rule-of-two", rules[0].id, why)


def effective(policy: Policy, parties: Sequence[tuple[str, str]]) -> list[Line]:
    """Every rule about an agent, or about those above it, each a name and a role; from the top."""
    return [
        Line(file.layer, rule.effect, tuple(str(what) for what in rule.what), rule.id, rule.where, file.mode)
        for file, rule in policy.rules()
        if rule.about(parties)
    ]


def rule_of_two(agent: str, held: Iterable[Capability], tools: Tools) -> str | None:
    """Why an agent that holds these can come to ask a person at every step: it can read what outsiders wrote, hold
    private data, and act outside. Two of the three do not meet the rule."""
    held = list(held)
    untrusted = [one for one in held if one.kind in ("file", "http", "tool", "ipc")]
    private = [one for one in held if one.kind in ROOTED and "read" in one.actions]
    acting = [one for one in held if _acts_outside(one, tools)]
    if not (untrusted and private and acting):
        return None
    return (
        f"{agent} can read untrusted data ({untrusted[0]}), carry private data ({private[0]}) "
        f"and act outside ({acting[0]}): then a person is asked each time"
    )


def _acts_outside(one: Capability, tools: Tools) -> bool:
    if one.kind == "http":
        return bool(one.actions - {"get", "head", "options"})
    if one.kind == "tool":
        return any(declared != Class.PURE for name, declared in tools.items() if one.target.matches(name))
    return one.kind == "ipc" and "publish" in one.actions


def _clauses(policy: Policy) -> list[_Clause]:
    order = 0
    made: list[_Clause] = []
    for slot, file in enumerate(policy.files):
        for rule in file.rules:
            made += [_Clause(slot, order, file, rule, what, one) for what in rule.what for one in rule.agents]
            order += 1
    return made


def _covered(policy: Policy) -> Iterable[Finding]:
    """A rule is unreachable if each of its clauses lies within a rule that is stricter, or earlier and the same."""
    clauses = _clauses(policy)
    tries: dict[tuple[str, str], Trie[_Clause]] = {}
    for one in clauses:
        for action in one.what.actions:
            trie = tries.setdefault((one.what.kind, action), Trie(one.what.kind))
            trie.add(one.what.target, "", one)
    covers: dict[int, list[tuple[_Clause, _Clause | None]]] = {}
    for one in clauses:
        covers.setdefault(one.order, []).append((one, _cover(one, tries)))
    for pairs in covers.values():
        yield from _judged(pairs)


def _judged(pairs: Sequence[tuple[_Clause, _Clause | None]]) -> Iterable[Finding]:
    rule = pairs[0][0].rule
    above = list({over.order: over for _, over in pairs if over}.values())
    names = ", ".join(f"{over.rule.id!r} ({over.rule.where})" for over in above)
    if all(over for _, over in pairs):
        yield Finding(
            rule.where, "unreachable", rule.id, f"it never decides: {names} {_VERB[above[0].rule.effect]} it all"
        )
        return
    for one, over in pairs:
        if over and rule.effect is Effect.ALLOW and over.rule.effect is Effect.FORBID:
            what = f"{one.what} is allowed in vain: {over.rule.id!r} ({over.rule.where}) forbids it"
            yield Finding(rule.where, "allow-in-forbid", rule.id, what)


_VERB = {Effect.ALLOW: "allows", Effect.ASK: "asks about", Effect.FORBID: "forbids"}


def _cover(one: _Clause, tries: Mapping[tuple[str, str], Trie[_Clause]]) -> _Clause | None:
    """One clause that takes all of this one's calls away from it, whatever the action."""
    target = witness(one.what.target)
    first: _Clause | None = None
    for action in one.what.actions:
        candidates = tries[one.what.kind, action].find(target, ("",))
        over = next((other for other in sorted(candidates, key=_by_order) if _takes(other, one)), None)
        if over is None:
            return None
        first = first or over
    return first


def _by_order(one: _Clause) -> int:
    return one.order


def _takes(other: _Clause, one: _Clause) -> bool:
    """Whether the other decides whatever this one could: it is about all of it, on no further condition."""
    if other.order == one.order or other.file.mode is Mode.SHADOW:
        return False
    if other.what.constraints and other.what.constraints != one.what.constraints:
        return False
    if not one.subject.within(other.subject) or not one.what.target.within(other.what.target):
        return False
    mine, theirs = _SEVERITY[one.rule.effect], _SEVERITY[other.rule.effect]
    if one.rule.effect is Effect.ALLOW and other.rule.effect is Effect.ASK:
        # In a file that must allow, an allow is needed even where another file asks.
        return (other.slot == one.slot or one.file.default != "deny") and one.rule.rate is None
    if theirs != mine:
        return theirs > mine
    return other.slot == one.slot and other.order < one.order and _same(other.rule, one.rule)


def _same(one: Rule, other: Rule) -> bool:
    """Nothing is lost without the other: who is asked, how often and what follows are alike."""
    return (one.rate, one.violation, one.approvers, one.deadline_s, one.scopes) == (
        other.rate,
        other.violation,
        other.approvers,
        other.deadline_s,
        other.scopes,
    )


def witness(pattern: Pattern) -> str:
    """A target that the pattern matches and that another matches if it covers the pattern."""
    parts = [
        segment.replace("*", _FRESH, 1) if wild else segment
        for segment, wild in zip(pattern.segments, pattern.wild, strict=True)
    ]
    if pattern.middle is not None:
        parts.insert(pattern.middle, _FRESH)
    if pattern.subtree:
        parts.append(_FRESH)
    if pattern.kind == "http":
        return f"{pattern.host.replace('*', _FRESH)}/{'/'.join(parts)}"
    if pattern.kind == "ipc" and parts[0] == "topic":
        return f"topic/{'.'.join(parts[1:])}"
    return ("/" if pattern.kind in ROOTED | {"shell"} else "") + "/".join(parts)


def _unknown_agents(rule: Rule, agents: Mapping[str, str]) -> Iterable[Finding]:
    for subject in rule.agents:
        if not any(subject.covers(name, role) for name, role in agents.items()) and subject.text != "*":
            known = [f"role:{role}" for role in agents.values()] if subject.role else list(agents)
            what = f"nobody is {subject.text!r}{nearest(subject.text, known)}"
            yield Finding(rule.where, "unknown-agent", rule.id, what)


def _unknown_tools(rule: Rule, tools: Collection[str]) -> Iterable[Finding]:
    for what in rule.what:
        if what.kind == "tool" and not what.target.anything and not any(what.target.matches(name) for name in tools):
            name = str(what.target)
            yield Finding(rule.where, "unknown-tool", rule.id, f"there is no tool {name!r}{nearest(name, tools)}")


def _unknown_classes(policy: Policy) -> Iterable[Finding]:
    """Data of a class that no [[class]] describes has no readers at all, which nobody means."""
    known = {PRIVATE, *(one.name for file in policy.files for one in file.classes)}
    for file in policy.files:
        named = [("source", one.where, one.classes) for one in file.sources]
        named += [("sink", one.where, one.classes or frozenset()) for one in file.sinks]
        for table, where, classes in named:
            for name in sorted(classes - known):
                yield Finding(where, "unknown-class", table, f"no [[class]] is called {name!r}{nearest(name, known)}")


def _powerful(rule: Rule) -> Iterable[Finding]:
    for what in rule.what if rule.effect is not Effect.FORBID else ():
        named: Collection[str] = what.constraints.get("allowlist", ())
        if strong := sorted(one for one in named if one.rpartition("/")[2].rstrip("0123456789.") in POWERFUL):
            text = (
                f"the allowlist holds {', '.join(strong)}, which runs anything: the sandbox is the limit, not the list"
            )
            yield Finding(rule.where, "powerful-list", rule.id, text)
