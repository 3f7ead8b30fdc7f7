"""The policy again, as slowly and plainly as possible: every rule is tried, from its text, for every call.

Shares nothing with the index but the shape of a rule file's values. What the two say must be the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class PlainRule:
    id: str
    effect: str
    what: list[tuple[str, str, list[str], str]]  # kind, target, actions, constraint or ""
    agents: list[str]
    violation: str = ""

    def toml(self) -> str:
        texts = [
            f"{kind}:{target}{':' if target else ''}{','.join(actions)}{more}"
            for kind, target, actions, more in self.what
        ]
        lines = [f'id = "{self.id}"', f'effect = "{self.effect}"', f"what = {texts!r}", f"agents = {self.agents!r}"]
        if self.violation:
            lines.append(f'violation = "{self.violation}"')
        return "[[rule]]\n" + "\n".join(lines) + "\n"


@dataclass
class PlainFile:
    default: str
    mode: str
    rules: list[PlainRule] = field(default_factory=list)

    def toml(self) -> str:
        return f'version = 1\ndefault = "{self.default}"\nmode = "{self.mode}"\n' + "".join(
            r.toml() for r in self.rules
        )


def glob(pattern: str, text: str) -> bool:
    begin, star, end = pattern.partition("*")
    if not star:
        return pattern == text
    return len(text) >= len(begin) + len(end) and text[: len(begin)] == begin and text[len(text) - len(end) :] == end


def segments(pattern: Sequence[str], target: Sequence[str]) -> bool:
    """A last star of either sort is everything below; a `**` before it is any number of segments."""
    if not pattern:
        return not target
    if len(pattern) == 1 and pattern[0] in ("*", "**"):
        return len(target) >= 1
    if pattern[0] == "**":
        return any(segments(pattern[1:], target[at:]) for at in range(len(target) + 1))
    return bool(target) and glob(pattern[0], target[0]) and segments(pattern[1:], target[1:])


def matches(kind: str, pattern: str, action: str, target: str) -> bool:
    if kind in ("file", "mem"):
        wanted, given = [p for p in pattern.split("/") if p], [p for p in target.split("/") if p]
        lists = action == "read" and wanted and wanted[-1] in ("*", "**") and "**" not in wanted[:-1]
        return segments(wanted, given) or bool(
            lists and len(given) == len(wanted) - 1 and all(map(glob, wanted, given))
        )
    if pattern in ("", "*", "**"):
        return True
    if kind == "http":
        host, slash, path = pattern.partition("/")
        other, _, there = target.partition("/")
        if host != "*" and not (host == other or (host.startswith("*.") and other.endswith(host[1:]))):
            return False
        if not slash or path in ("*", "**"):
            return True
        return segments(path.split("/") if path else [], there.split("/") if there else [])
    if kind == "ipc":
        head, _, rest = pattern.partition("/")
        other, _, there = target.partition("/")
        between = "." if head == "topic" else "/"
        return head == other and segments(rest.split(between), there.split(between))
    if kind == "tool":
        return glob(pattern, target)
    return segments(pattern.split("/"), target.split("/"))


def condition(more: str, effect: str, args: dict[str, object]) -> bool:
    """Only `{arg.n:LOW..HIGH}` occurs."""
    if not more:
        return True
    low, _, high = more.removeprefix("{arg.n:").removesuffix("}").partition("..")
    given = args.get("n")
    if isinstance(given, bool) or not isinstance(given, int | float):
        return effect != "allow"
    return int(low) <= given <= int(high)


def about(rule: PlainRule, who: tuple[str, str], call: tuple[str, str, str], args: dict[str, object]) -> bool:
    name, role = who
    kind, action, target = call
    if not any(one == f"role:{role}" or (":" not in one and glob(one, name)) for one in rule.agents):
        return False
    return any(
        kind == k and action in actions and matches(k, pattern, action, target) and condition(more, rule.effect, args)
        for k, pattern, actions, more in rule.what
    )


def decide(
    files: Sequence[PlainFile], who: tuple[str, str], call: tuple[str, str, str], args: dict[str, object]
) -> tuple[str, str, str, frozenset[str]]:
    """Effect, the rule that decided ("" for none), what becomes of the agent, and every rule that asks."""
    found = [(file, rule) for file in files for rule in file.rules if about(rule, who, call, args)]
    active = [(file, rule) for file, rule in found if file.mode != "shadow" or rule.effect == "allow"]
    forbids = [
        (rule.violation or ("kill" if file.mode == "strict" else "refuse"), rule)
        for file, rule in active
        if rule.effect == "forbid"
    ]
    for consequence in ("kill", "refuse"):
        for said, rule in forbids:
            if said == consequence:
                return "forbid", rule.id, consequence, frozenset()
    for file in files:
        if file.default == "deny" and file.mode != "shadow" and not any(one is file for one, _ in found):
            return "forbid", "", "refuse", frozenset()
    for effect in ("ask", "allow"):
        for _, rule in active:
            if rule.effect == effect:
                asks = frozenset(rule.id for _, rule in active if rule.effect == "ask")
                return effect, rule.id, "", asks
    return "allow", "", "", frozenset()
