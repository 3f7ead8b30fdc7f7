"""The index says what a plain walk over all rules says, and finds names as the pitfalls demand."""

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Effect, Layer
from agent_os.kernel.calls import Need
from kernel.authority.policy import reference
from kernel.authority.policy.reference import PlainFile, PlainRule

NAMES = ["crawler", "crawler-2", "writer", "w"]
ROLES = ["worker", "service"]
PARTS = ["work", "a", "b", ".env", "ab", "app-1.txt"]
HOSTS = ["x.com", "a.x.com", "b.a.x.com", "yx.com", "10.0.0.1"]

segment = st.sampled_from([*PARTS, "*", "a*", "*.txt", "app-*.txt", "*b", "ab*b"])
path_pattern = st.lists(segment, max_size=3).flatmap(
    lambda parts: st.tuples(st.integers(0, len(parts)), st.sampled_from(["", "**", "*"]), st.booleans()).map(
        lambda how: spelled(parts, *how)
    )
)


def spelled(parts: list[str], gap: int, end: str, middle: bool) -> str:
    """With a `**` in the middle where there is something behind it."""
    behind = [*parts[gap:], end] if end else parts[gap:]
    if middle and gap < len(parts) and behind != ["*"]:
        parts = [*parts[:gap], "**", *parts[gap:]]
    return "/".join([*parts, end] if end else parts)


def clause(kind: str, targets: st.SearchStrategy[str], actions: list[str]) -> st.SearchStrategy[Any]:
    some = st.lists(st.sampled_from(actions), min_size=1, max_size=len(actions), unique=True)
    more = st.sampled_from(["", "", "{arg.n:1..5}", "{arg.n:3..9}"]) if kind == "tool" else st.just("")
    return st.tuples(st.just(kind), targets, some, more)


names = st.sampled_from([*NAMES, "craw*", "*r", "*"])
clauses = st.one_of(
    clause("file", path_pattern.map(lambda text: f"/{text}"), ["read", "write", "delete"]),
    clause("file", path_pattern.map(lambda text: f"/{text}"), ["read", "write"]),
    clause("mem", path_pattern.map(lambda text: f"/mem/{text}".rstrip("/")), ["read", "search"]),
    clause(
        "http",
        st.tuples(st.sampled_from([*HOSTS, "*.x.com", "*.com", "*"]), st.none() | path_pattern).map(
            lambda both: both[0] if both[1] is None else f"{both[0]}/{both[1]}"
        ),
        ["get", "post"],
    ),
    clause("tool", st.sampled_from(["pay", "pay-*", "*", "*-big"]), ["call"]),
    clause(
        "ipc",
        st.sampled_from(["topic/a.*", "topic/a.b", "topic/*.b", "topic/**.c", "agent/w*", "*"]),
        ["send", "publish"],
    ),
    clause("agent", st.sampled_from(["", "w", "craw*", "*"]), ["spawn", "signal"]),
)
subjects = st.lists(
    st.sampled_from([*NAMES, "craw*", "*r", "*", "role:worker", "role:service"]), min_size=1, max_size=2
)


@st.composite
def policies(draw: st.DrawFn) -> list[PlainFile]:
    modes = sorted(
        draw(st.lists(st.sampled_from(["strict", "enforce", "shadow"]), min_size=1, max_size=3)), key=MILD.index
    )
    files: list[PlainFile] = []
    for mode in modes:
        file = PlainFile(draw(st.sampled_from(["capability", "capability", "deny"])), mode)
        for number in range(draw(st.integers(0, 7))):
            effect = draw(st.sampled_from(["allow", "allow", "ask", "forbid"]))
            violation = draw(st.sampled_from(["", "kill", "refuse"])) if effect == "forbid" else ""
            what = draw(st.lists(clauses, min_size=1, max_size=3))
            file.rules.append(PlainRule(f"{len(files)}-{number}", effect, what, draw(subjects), violation))
        files.append(file)
    return files


MILD = ["shadow", "enforce", "strict"]
LAYERS = [Layer.ORGANISATION, Layer.OPERATOR, Layer.PROJECT]
ARGUMENTS: list[dict[str, object]] = [{}, {"n": 2}, {"n": 4}, {"n": 12}, {"n": "4"}, {"n": [4]}]
Request = tuple[tuple[str, str], tuple[str, str, str], dict[str, object]]


def request(chance: random.Random) -> Request:
    path = "/" + "/".join(chance.choices(PARTS, k=chance.randrange(5)))
    call = chance.choice(
        [
            ("file", chance.choice(["read", "write", "delete"]), path),
            ("mem", chance.choice(["read", "search"]), f"/mem{path}".rstrip("/")),
            ("http", chance.choice(["get", "post"]), chance.choice(HOSTS) + path),
            ("tool", "call", chance.choice(["pay", "pay-1", "pay-big", "other"])),
            (
                "ipc",
                chance.choice(["send", "publish"]),
                chance.choice(["topic/a", "topic/a.b", "topic/a.b.c", "agent/w"]),
            ),
            ("agent", chance.choice(["spawn", "signal"]), chance.choice(NAMES)),
        ]
    )
    return (chance.choice(NAMES), chance.choice(ROLES)), call, chance.choice(ARGUMENTS)


asked = 0
seen: set[tuple[str, str, bool]] = set()


def compiled(files: list[PlainFile]) -> Policy:
    return Policy(
        [
            read(one.toml().encode(), f"{n}.toml", layer)
            for n, (one, layer) in enumerate(zip(files, LAYERS, strict=False))
        ]
    )


@settings(max_examples=130, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(policies(), st.integers(0, 2**32))
def agree(files: list[PlainFile], seed: int) -> None:
    global asked
    policy, chance = compiled(files), random.Random(seed)
    for who, call, args in (request(chance) for _ in range(80)):
        decision = policy.decide(*who, Need(*call), {"args": args})
        told = (
            str(decision.effect),
            decision.rule.id if decision.rule else "",
            decision.violation,
            frozenset(rule.id for rule in decision.asks),
        )
        assert told == reference.decide(files, who, call, args), (who, call, args)
        asked += 1
        seen.add((told[0], told[2], bool(told[1])))


@pytest.mark.long
def test_ten_thousand_random_calls_are_decided_as_by_a_walk_over_all_rules() -> None:
    agree()
    assert asked >= 10_000
    kinds = {("allow", "", True), ("allow", "", False), ("ask", "", True), ("forbid", "refuse", False)}
    assert seen >= kinds | {("forbid", "kill", True), ("forbid", "refuse", True)}, "the test must reach every verdict"


def policy_of(what: str, effect: str = "forbid") -> Policy:
    text = f'version=1\ndefault="capability"\n[[rule]]\nid="r"\neffect="{effect}"\nwhat=["{what}"]'
    return Policy([read(text.encode(), "p", Layer.OPERATOR)])


def rule_on(policy: Policy, target: str, *, folds: bool = False, kind: str = "file", action: str = "read") -> bool:
    return policy.decide("a", "worker", Need(kind, action, target), folds=folds).rule is not None


@pytest.mark.parametrize(
    ("what", "target", "expected"),
    [
        ("file:/data/working/**:read", "/data/workingX", False),
        ("file:/data/working/**:read", "/data/workingX/a", False),
        ("file:/data/working/**:read", "/data/working/X", True),
        ("file:/data/working/**:read", "/data/working", True),  # its names are told by listing it
        ("file:/work/**/.env:read", "/work/.env", True),
        ("file:/work/**/.env:read", "/work/a/b/.env", True),
        ("file:/work/**/.env:read", "/work/a/.env/b", False),
        ("file:/work/**/.env:read", "/workX/.env", False),
        ("file:/work/**/keys/**:read", "/work/a/keys/b", True),
        ("file:/work/**/keys/**:read", "/work/a/keys", False),
        ("file:/work/**/*.pem:read", "/work/deep/er/x.pem", True),
        ("file:/work/**/*.pem:read", "/work/.pem", True),
        ("file:/work/**/work/x:read", "/work/x", False),  # one segment cannot be two
        ("file:/work/ab*b:read", "/work/ab", False),  # nor one letter
        ("file:/work/**/ab*b:read", "/work/ab", False),
        ("file:/work/ab*b:read", "/work/abb", True),
    ],
)
def test_a_name_is_matched_by_whole_segments(what: str, target: str, expected: bool) -> None:
    assert rule_on(policy_of(what), target) is expected


def test_a_forbid_holds_without_regard_to_case_where_the_file_system_has_none() -> None:
    policy = policy_of("file:/work/**/.env:read")
    assert not rule_on(policy, "/work/.ENV")
    assert rule_on(policy, "/work/.ENV", folds=True)
    assert rule_on(policy, "/WORK/Sub/.Env", folds=True)
    assert rule_on(policy_of("file:/work/Straße/**:read", "ask"), "/work/STRASSE/x", folds=True)


def test_an_allow_is_always_compared_exactly() -> None:
    policy = policy_of("file:/work/Public/**:read", "allow")
    assert rule_on(policy, "/work/Public/x", folds=True)
    assert not rule_on(policy, "/work/public/x", folds=True)


@pytest.mark.parametrize(
    "name", ["e\u0301", "a\\u0000b", "a\\u0007b", "a\\u009bb"], ids=["not NFC", "NUL", "bell", "C1"]
)
def test_a_name_that_could_not_occur_is_refused_in_a_rule(name: str) -> None:
    with pytest.raises(EINVAL) as caught:
        policy_of(f"file:/work/{name}:read")
    assert "p:6:" in caught.value.reason


def test_who_a_rule_is_about_is_remembered_for_many_agents_and_still_right() -> None:
    data = b'version=1\ndefault="capability"\n[[rule]]\nid="r"\neffect="forbid"\nwhat=["tool:x:call"]\nagents=["a-*"]'
    policy = Policy([read(data, "p", Layer.OPERATOR)])
    for number in range(5000):
        assert rule_on(policy, "x", kind="tool", action="call") is False
        decision = policy.decide(f"a-{number}", "worker", Need("tool", "call", "x"))
        assert decision.effect is Effect.FORBID
