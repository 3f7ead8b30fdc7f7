"""The subset test against brute force: every pair of capabilities is compared over a finite universe of calls.

Unsound: proved, and yet the child covers a call that its parent does not. None may exist. A refusal needs a witness,
such a call; the few that have none are refusals we chose, and each is listed here with its reason.
"""

import random
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import product
from typing import Any

import pytest

from agent_os.kernel.authority.capability import ACTIONS, Capability, parse
from agent_os.kernel.authority.constraints import inherited
from agent_os.kernel.authority.patterns import Pattern
from agent_os.kernel.calls import Need

PAIRS = 20_000
SEED = 5

SEGMENTS = ("a", "*", "a*", "*b", "a*b")
NAMES = ("a", "ab", "acb", "ac", "cb", "c")
HOSTS = ("x.com", "a.x.com", "*.x.com", "*.a.x.com", "*", "*.com", "y.org")
HOST_NAMES = ("x.com", "a.x.com", "b.a.x.com", "z.x.com", "ax.com", "y.org", "a.y.org")
HTTP_PATHS = ("", "/", "/v1", "/v1/", "/v1/**", "/v*", "/*/x", "/v*/x", "/**")
HTTP_NAMES = ("", "v1", "v2", "x", "v1/", "v1/x", "v2/x", "w/x", "v1/x/y", "/")
AGENTS = ("", "*", "w-1", "w-*", "team/*", "team/a")
AGENT_NAMES = ("w-1", "w-2", "x", "team/a", "team/b", "team/a/b")

# Rows that look at a call: what may be written, and the facts of the calls that tell values apart.
WRITTEN: dict[str, dict[str, tuple[str, ...]]] = {
    "http": {
        "port": ("443", "80", "80|443", "8080"),
        "scheme": ("http", "https", "http|https"),
        "private": ("10.0.0.0/8", "10.1.0.0/16", "192.168.0.0/16|10.0.0.0/8"),
        "tunnel": ("true", "false"),
    },
    "shell": {"allowlist": ("ls", "ls|cat", "cat|rm", "rm")},
    "llm": {"server_tools": ("search", "search|fetch", "fetch")},
    "tool": {
        "arg.n": ("1..5", "2..4", "0..9", "3", "3|4", "*", "3*", "x|3"),
        "arg.p": ("/d/*", "/d/e/*", "/d/e", "/d/../x", "*", "/d/*.txt", "/d/e/f.txt|/d/e"),
    },
}
FACTS: dict[str, list[dict[str, Any]]] = {
    "http": [
        {"port": port, "scheme": scheme, "private": private, "tunnel": tunnel}
        for port, scheme, private, tunnel in product(
            (443, 80, 8080), ("http", "https"), (None, "10.0.0.1", "10.1.0.1", "192.168.0.1"), (True, False)
        )
    ],
    "shell": [{"program": name} for name in ("ls", "cat", "rm", "dd")],
    "llm": [{"server_tools": some} for some in ((), ("search",), ("fetch",), ("search", "fetch"), ("x",))],
    "tool": [
        {"args": {"n": n, "p": p}}
        for n, p in product(
            (1, 3, 4, 5, 9, 3.5, "3", "4", "30", "x", "y", True),
            ("/d/e", "/d/e/f", "/d/x.txt", "/d/e/f.txt", "/d/../x", "q", 7),
        )
    ],
}
# Rows that are a number each: at most so much, and more of it tells two apart.
NUMBERS = {
    "count": ("0", "3", "7"),
    "timeout": ("1s", "2s", "1m"),
    "max_size": ("10", "1kB", "1KiB"),
    "expiry": ("2027-01-01T00:00:00Z", "2028-01-01T00:00:00Z"),
    "rate": ("1/s", "10/s", "10/h", "100/m"),
}


def texts(kind: str, chance: random.Random) -> str:
    match kind:
        case "file":
            depth = chance.randint(1, 3)
            path = "/" + "/".join(chance.choice(SEGMENTS) for _ in range(depth))
            return path + chance.choice(("", "", "/**"))
        case "http":
            return chance.choice(HOSTS) + chance.choice(HTTP_PATHS)
        case "ipc":
            row = ".".join(chance.choice(SEGMENTS) for _ in range(chance.randint(1, 2)))
            one = f"topic/{row.partition('.')[0]}.+"
            return chance.choice((f"topic/{row}", f"topic/{row}.**", one, "agent/a*", "agent/*", "topic/*"))
        case "agent":
            return chance.choice(AGENTS)
        case "tool":
            return chance.choice(("*", "a*", "*b", "ab", "a*b"))
        case "llm":
            return chance.choice(("a/*", "a/c", "*", "*/c", "a*/c"))
        case _:
            return ""


def drawn(kind: str, chance: random.Random, like: Capability | None = None) -> Capability:
    """Any capability; or one that is near another, so that many pairs are within each other."""
    target = texts(kind, chance)
    if like is not None and chance.random() < 0.6:
        target = chance.choice((str(like.target), target))
        if kind == "file" and target.endswith("/**") and chance.random() < 0.7:
            target = target[:-2] + chance.choice(("a", "a*", "a/**", "*/a", "a*b/**"))
    actions = chance.sample(sorted(ACTIONS[kind]), chance.randint(1, len(ACTIONS[kind])))
    if like is not None and chance.random() < 0.7:
        actions = chance.sample(sorted(like.actions), chance.randint(1, len(like.actions)))
    rows = {**WRITTEN.get(kind, {}), **(NUMBERS if kind not in ("agent", "secret") else {})}
    names = [name for name in rows if chance.random() < 0.25]
    inner = ",".join(f"{name}:{chance.choice(rows[name])}" for name in names)
    head = f"{kind}:{target}:" if target else f"{kind}:"
    return parse(f"{head}{','.join(actions)}" + (f"{{{inner}}}" if inner else ""))


def _paths() -> list[str]:
    return ["/" + "/".join(parts) for depth in range(5) for parts in product(NAMES, repeat=depth)]


TARGETS: dict[str, list[str]] = {
    "file": _paths(),
    "http": [f"{host}/{path}" for host, path in product(HOST_NAMES, HTTP_NAMES)],
    "ipc": [f"topic/{'.'.join(row)}" for depth in (1, 2, 3) for row in product(NAMES, repeat=depth)]
    + [f"agent/{name}" for name in NAMES],
    "agent": list(AGENT_NAMES),
    "tool": list(NAMES),
    "llm": [f"{one}/{other}" for one, other in product(NAMES, NAMES)] + ["a/c/c"],
    "shell": ["/usr/bin/ls"],
}


def reached(one: Capability) -> Mapping[str, int]:
    """For each action the targets that it covers, whatever its constraints, as bits."""
    special = one.actions & {"read", "spawn"}  # the others are all alike
    return {action: reached_by(one.target, action if action in special else "") for action in one.actions}


@cache
def reached_by(target: Pattern, action: str) -> int:
    kind = target.kind
    bare = Capability(kind, target, ACTIONS[kind])
    facts: list[dict[str, Any]] = [{"descendant": True}, {}] if kind == "agent" else [{}]
    action = action or max(ACTIONS[kind] - {"read", "spawn"})
    calls = product(TARGETS[kind], facts)
    return int("".join("1" if bare.covers(Need(kind, action, name), fact) else "0" for name, fact in calls), 2)


@cache
def fitting(constrained: Capability) -> int:
    """The facts that fit the constraints, whatever the target."""
    need = Need(constrained.kind, next(iter(constrained.actions)), "x")
    facts = FACTS.get(constrained.kind, [{}])
    return int("".join("1" if constrained.covers(need, fact) else "0" for fact in facts), 2)


def whatever(kind: str, constraints: Mapping[str, Any]) -> Capability:
    any_target = {"file": "file:/**:read", "http": "http:*:get", "shell": "shell:execute"}
    bare = parse(any_target.get(kind, f"{kind}:*:{min(ACTIONS[kind])}"))
    return Capability(kind, bare.target, bare.actions, {k: v for k, v in constraints.items() if k != "depth"})


def allows(constraints: Mapping[str, Any], row: str, amount: Any) -> bool:
    if row not in constraints:
        return True
    if row == "rate":
        burst, per_ms = amount
        rate = constraints[row]
        return burst <= rate.most and burst * rate.per_ms <= rate.most * per_ms
    return amount <= constraints[row]


AMOUNTS: dict[str, Iterable[Any]] = {
    "count": range(9),
    "timeout": (500, 1000, 1500, 2000, 60_000, 60_001),
    "max_size": (1, 10, 1000, 1024, 1025),
    "expiry": (0, parse("file:/a:read{expiry:2027-06-01T00:00:00Z}").constraints["expiry"], 10**14),
    "rate": tuple(product((1, 2, 10, 50, 100, 101), (1, 100, 1000, 6000, 60_000, 3_600_000, 10**9))),
}


def witness(child: Capability, constraints: Mapping[str, Any], parent: Capability) -> bool:
    """Whether some call is covered by the child, with what it inherits, and not by the parent."""
    kind = child.kind
    mine, theirs = reached(child), reached(parent)
    beyond = any(bits & ~theirs.get(action, 0) for action, bits in mine.items())
    if kind in FACTS:
        fits = fitting(whatever(kind, constraints))
        if not fits or not any(mine.values()):
            return False  # it covers nothing at all
        beyond = beyond or bool(fits & ~fitting(whatever(kind, parent.constraints)))
    for row, amounts in AMOUNTS.items():
        beyond = beyond or any(allows(constraints, row, a) and not allows(parent.constraints, row, a) for a in amounts)
    return beyond


def reason_for(child: Capability, parent: Capability, row: str) -> str | None:
    """Why a refusal without a witness is right all the same."""
    if row == "target" and child.kind in ("file", "mem") and child.actions == {"read"}:
        return "reading the base of a subtree is listing it; as a target of its own it could be a file"
    if row.startswith("arg."):
        mine, theirs = child.constraints[row], parent.constraints[row]
        if mine.literals is not None and theirs.range is not None:
            return "a literal is text as well as a number, a range is numbers only"
        if mine.range is not None:
            return "the universe has too few numbers to tell a range from a list or a text"
        return "a glob that happens to leave its path, or has one text in this universe"
    if not fitting(whatever(child.kind, inherited(child.constraints, parent.constraints))):
        return "the child covers no call of this universe"
    return None


@pytest.mark.long
def test_the_subset_test_is_sound_and_its_refusals_have_a_witness_or_a_reason() -> None:
    chance = random.Random(SEED)
    unsound: list[str] = []
    unexplained: list[str] = []
    counted: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for _ in range(PAIRS):
        kind = chance.choice(sorted(TARGETS))
        parent = drawn(kind, chance)
        child = drawn(kind, chance, parent)
        row = child.wider_than(parent)
        constraints = inherited(child.constraints, parent.constraints)
        beyond = witness(child, constraints, parent)
        counted["proved" if row is None else "refused"] += 1
        if row is None:
            if beyond:
                unsound.append(f"{child} in {parent}")
            assert child.below(parent).constraints == constraints
        elif not beyond:
            if reason := reason_for(child, parent, row):
                reasons[reason] += 1
            else:
                unexplained.append(f"{row}: {child} in {parent}")
    assert not unsound, unsound[:10]
    assert not unexplained, (len(unexplained), unexplained[:10])
    assert counted["proved"] > PAIRS // 20, counted  # else the test says nothing about soundness
    assert counted["refused"] > PAIRS // 4, counted
    assert sum(reasons.values()) < PAIRS // 20, reasons
