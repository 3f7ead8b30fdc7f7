"""`policy check` finds what is odd, and says nothing of what it cannot prove."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.kernel.authority import capability
from agent_os.kernel.authority.patterns import Pattern
from agent_os.kernel.authority.policy.findings import effective, findings, rule_of_two, witness
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Layer


def policy(*rules: str, layer: Layer = Layer.OPERATOR, default: str = "capability", mode: str = "strict") -> Policy:
    """`id effect what… [key = value …]`, one rule each."""
    text = f'version = 1\ndefault = "{default}"\nmode = "{mode}"\n'
    for rule in rules:
        head, _, more = rule.partition(" | ")
        name, effect, *what = head.split()
        text += f'[[rule]]\nid = "{name}"\neffect = "{effect}"\nwhat = {what!r}\n{more}\n'
    return Policy([read(text.encode(), "p.toml", layer)])


def kinds(policy: Policy, **known: object) -> list[tuple[str, str]]:
    return [(one.kind, one.rule) for one in findings(policy, **known)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["a forbid file:/work/**:read", "b allow file:/work/x:read"], [("unreachable", "b")]),
        (["b allow file:/work/x:read", "a forbid file:/work/**:read"], [("unreachable", "b")]),
        (["a forbid file:/work/**:read", "b ask file:/work/x:read"], [("unreachable", "b")]),
        (["a ask tool:*:call", "b allow tool:pay:call"], [("unreachable", "b")]),
        (["a allow tool:*:call", "b allow tool:pay:call"], [("unreachable", "b")]),
        (["b allow tool:pay:call", "a allow tool:*:call"], []),  # the narrow one is named where both hold
        (["a forbid file:/work/**/.env:read", "b allow file:/work/sub/.env:read"], [("unreachable", "b")]),
        (["a forbid http:*.x.com:*", "b allow http:api.x.com/v1/*:get"], [("unreachable", "b")]),
        (["a forbid file:/work/**:read", "b allow file:/work/x:read,write"], []),  # writing is left
        (["a forbid file:/work/**:read", "b allow file:/work/x:read file:/y:read"], [("allow-in-forbid", "b")]),
        (["a forbid file:/work/x:read", "b allow file:/work/**:read"], []),
        (["a forbid tool:pay:call{arg.n:1..5}", "b allow tool:pay:call"], []),
        (['a forbid tool:*:call | agents = ["anna"]', "b allow tool:pay:call"], []),
        (["a forbid tool:*:call", 'b allow tool:pay:call | agents = ["anna"]'], [("unreachable", "b")]),
        (['a forbid tool:*:call | agents = ["role:worker"]', 'b allow tool:x:call | agents = ["anna"]'], []),
        (["a allow tool:*:call", 'b allow tool:pay:call | rate = "1/hour"'], []),
        (["a forbid tool:*:call | violation = 'refuse'", "b forbid tool:pay:call"], []),  # this one kills
    ],
)
def test_a_rule_that_never_decides_is_found(rules: list[str], expected: list[tuple[str, str]]) -> None:
    assert kinds(policy(*rules)) == expected


def test_a_class_that_nobody_describes_is_found() -> None:
    text = """version = 1
default = "capability"
[[class]]
name = "customer"
readers = []
[[source]]
what = ["file:/work/c/**:read"]
integrity = "trusted"
classes = ["custmer", "private"]
[[sink]]
what = ["http:a.example:post"]
classes = ["customer", "other"]
"""
    found = findings(Policy([read(text.encode(), "p.toml", Layer.OPERATOR)]))
    assert [(one.where.line, one.rule, one.what) for one in found] == [
        (6, "source", "no [[class]] is called 'custmer'; did you mean 'customer'?"),
        (10, "sink", "no [[class]] is called 'other'"),
    ]


def test_a_rule_in_shadow_hides_nothing() -> None:
    assert kinds(policy("a forbid tool:*:call", "b allow tool:pay:call", mode="shadow")) == []


def test_an_allow_that_a_closed_layer_needs_is_not_unreachable() -> None:
    upper = read(
        b'version=1\ndefault="capability"\n[[rule]]\nid="a"\neffect="ask"\nwhat=["tool:*:call"]', "o", Layer.OPERATOR
    )
    lower = b'version=1\ndefault="deny"\n[[rule]]\nid="b"\neffect="allow"\nwhat=["tool:x:call"]'
    assert kinds(Policy([upper, read(lower, "p", Layer.PROJECT)])) == []
    assert kinds(Policy([upper, read(lower.replace(b"deny", b"capability"), "p", Layer.PROJECT)])) == [
        ("unreachable", "b")
    ]


def test_a_finding_names_both_places() -> None:
    (one,) = findings(policy("a forbid tool:*:call", "b allow tool:pay:call"))
    assert (str(one.where), "'a' (p.toml:4)" in one.what) == ("p.toml:9", True)


def test_names_that_nobody_has_are_found_where_it_is_known_who_there_is() -> None:
    rules = policy(
        'a forbid tool:pya:call tool:*:call tool:p*:call | agents = ["crawlr", "craw*", "role:boss", "*"]',
    )
    assert kinds(rules) == []
    told = findings(rules, agents={"crawler": "worker"}, tools=["pay"])
    assert [(one.kind, one.what) for one in told] == [
        ("unknown-agent", "nobody is 'crawlr'; did you mean 'crawler'?"),
        ("unknown-agent", "nobody is 'role:boss'; did you mean 'role:worker'?"),
        ("unknown-tool", "there is no tool 'pya'; did you mean 'pay'?"),
    ]


@pytest.mark.parametrize(("listed", "odd"), [("ls|cat", False), ("ls|git", True), ("/usr/bin/python3.11", True)])
def test_a_list_with_an_interpreter_allows_everything(listed: str, odd: bool) -> None:
    assert bool(kinds(policy(f"a allow shell:execute{{allowlist:{listed}}}"))) is odd
    assert kinds(policy(f"a forbid shell:execute{{allowlist:{listed}}}")) == []


def test_the_policy_of_one_agent_is_what_is_about_it() -> None:
    rules = policy(
        "a forbid tool:x:call", 'b allow tool:y:call | agents = ["anna"]', 'c ask tool:z:call | agents = ["role:boss"]'
    )
    assert [line.id for line in effective(rules, [("anna", "worker")])] == ["a", "b"]
    assert [line.id for line in effective(rules, [("ben", "boss")])] == ["a", "c"]
    assert str(effective(rules, [("ben", "boss")])[1].where) == "p.toml:14"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["file:/work/**:read", "http:x.com:post"], True),
        (["file:/work/**:read", "http:x.com:get"], False),
        (["http:x.com:*"], False),
        (["file:/work/**:read", "tool:send:call"], True),
        (["file:/work/**:read", "tool:look:call"], False),
    ],
)
def test_who_can_hold_all_three_of_the_rule_of_two_is_found(texts: list[str], expected: bool) -> None:
    held = [capability.parse(text) for text in texts]
    assert bool(rule_of_two("anna", held, {"send": "o", "look": "p"})) is expected


segments = st.lists(st.sampled_from(["a", "b", "*", "a*", "*b"]), min_size=1, max_size=3)
patterns = st.tuples(segments, st.sampled_from(["", "/**"]), st.integers(0, 4)).map(
    lambda how: (
        "/"
        + "/".join([*how[0][: how[2]], "**", *how[0][how[2] :]] if 0 < how[2] < len(how[0]) - 1 else how[0])
        + how[1]
    )
)


@settings(max_examples=300, deadline=None)
@given(patterns, patterns)
def test_whatever_covers_a_pattern_matches_its_witness(one: str, other: str) -> None:
    small, large = (Pattern.parse("file", text, rule=True) for text in (one, other))
    assert small.matches(witness(small))
    assert large.matches(witness(small)) or not small.within(large)


def test_thousands_of_rules_are_checked_in_seconds() -> None:
    rules = [f"r{n} {'forbid' if n % 2 else 'allow'} file:/work/p{n}/**:read" for n in range(3000)]
    big = policy(*rules)
    began = time.process_time()
    assert findings(big) == []
    assert time.process_time() - began < 5


def test_agents_that_hold_all_three_of_the_rule_of_two_are_found() -> None:
    held = {
        "mailer": ["file:/work/**:read", "http:api.x.com:post"],
        "reader": ["file:/work/**:read", "http:api.x.com:get"],
        "payer": ["mem:/mem/**:read", "tool:pay:call"],
    }
    known = {name: [capability.parse(text) for text in texts] for name, texts in held.items()}
    assert kinds(policy(), held=known) == [("rule-of-two", "mailer")]  # what `pay` does is not known
    assert kinds(policy(), held=known, classes={"pay": "o"}) == [("rule-of-two", "mailer"), ("rule-of-two", "payer")]
    assert kinds(policy(), held=known, classes={"pay": "p"}) == [("rule-of-two", "mailer")]


def test_a_file_that_must_allow_and_allows_somebody_all_three_is_found() -> None:
    rules = ["a allow file:/work/**:read", "b allow http:x.com:post | agents = ['mailer']"]
    assert kinds(policy(*rules, default="deny")) == [("rule-of-two", "b")]
    assert kinds(policy(*rules)) == []  # there it is the capability that counts
    assert kinds(policy(rules[0], "b forbid http:x.com:post", default="deny")) == []
