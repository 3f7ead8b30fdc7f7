"""Written cases and recorded calls are decided as a call would be."""

import json
import re
from pathlib import Path

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.policy.cases import diff, read_cases, read_recorded, run_cases
from agent_os.kernel.authority.policy.layers import Policy
from agent_os.kernel.authority.policy.loading import problems_of
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Layer

RULES = """version = 1
default = "capability"
[[rule]]
id = "no-env"
effect = "forbid"
what = ["file:/work/**/.env:read"]
[[rule]]
id = "big"
effect = "ask"
what = ["tool:pay:call{arg.amount:100..100000}"]
[[class]]
name = "customer"
readers = ["http:crm.example.com:*"]
"""
CASES = """[[case]]
name = "the env file is closed"
agent = "a"
call = "file:/work/x/.env:read"
expect = "forbid"
rule = "no-env"
[[case]]
name = "small sums pass"
agent = "a"
call = "pay"
args = { amount = 5 }
expect = "allow"
[[case]]
name = "large sums are asked about"
agent = "a"
call = "pay"
args = { amount = 500 }
expect = "ask"
rule = "big"
[[case]]
name = "customer data leaves to nobody else"
agent = "a"
call = "http:evil.com/x:post"
label = { classes = ["customer"] }
expect = "forbid"
[[case]]
name = "the rule of two asks"
agent = "a"
call = "http:evil.com/x:post"
label = { integrity = "untrusted", classes = ["private"], sources = ["file:/work"] }
expect = "ask"
rule = "rule-of-two"
"""


def policy(text: str = RULES) -> Policy:
    return Policy([read(text.encode(), "p.toml", Layer.OPERATOR)])


def test_cases_that_hold_pass() -> None:
    done = run_cases(policy(), read_cases(CASES.encode(), "t.toml"))
    assert [(one.case.name, one.effect) for one in done if not one.passed] == []
    assert len(done) == 5


@pytest.mark.parametrize(
    ("before", "after"), [('expect = "forbid"', 'expect = "allow"'), ('rule = "no-env"', 'rule = "other"')]
)
def test_a_case_that_does_not_hold_fails_and_says_what_happened(before: str, after: str) -> None:
    first = run_cases(policy(), read_cases(CASES.replace(before, after, 1).encode(), "t.toml"))[0]
    assert (first.passed, first.effect, first.rule, str(first.case.where)) == (False, "forbid", "no-env", "t.toml:1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = ", "not TOML"),
        ("", "t.toml:1: cases are tables"),
        ("[[test]]\nname = 'x'", "t.toml:1: the file has no key 'test'"),
        ("[[case]]\nname = 'x'\nagent = 'a'\ncall = 'y'", "t.toml:1: a case needs the key 'expect'"),
        (
            "[[case]]\nname = 'x'\nagent = 'a'\ncall = 'y'\nexpct = 'allow'",
            "t.toml:5: a case has no key 'expct'; did you",
        ),
        ("[[case]]\nname = 'x'\nagent = 'a'\ncall = 'file:/x:eat'\nexpect = 'allow'", "'file:/x:eat' is no call"),
        ("[[case]]\nname = 'x'\nagent = 'a'\ncall = 'file:work:read'\nexpect = 'allow'", "t.toml:1: 'file:work:read'"),
        ("[[case]]\nname = 'x'\nagent = 'a'\ncall = 'y'\nexpect = 'maybe'", "'expect' is 'maybe'"),
        ("[[case]]\nname = 3\nagent = 'a'\ncall = 'y'\nexpect = 'allow'", "t.toml:2: 'name' is a text"),
        (
            "[[case]]\nname = 'x'\nagent = 'a'\ncall = 'y'\nexpect = 'allow'\nlabel = {klass = 'x'}",
            "a label has no key",
        ),
    ],
)
def test_a_bad_file_of_cases_is_refused(text: str, expected: str) -> None:
    with pytest.raises(EINVAL) as caught:
        read_cases(text.encode(), "t.toml")
    assert any(expected in str(one) for one in problems_of(caught.value))


def test_the_examples_of_the_documentation_hold() -> None:
    page = (Path(__file__).parents[4] / "docs" / "policy.md").read_text(encoding="utf-8")
    rules, cases = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert [one.passed for one in run_cases(policy(rules), read_cases(cases.encode(), "t.toml"))] == [True]


def recorded(*targets: str) -> bytes:
    return b"".join(
        json.dumps(
            {"seq": seq, "agent": "a", "role": "worker", "kind": "file", "action": "read", "target": target}
        ).encode()
        + b"\n"
        for seq, target in enumerate(targets, 1)
    )


def test_only_calls_that_are_decided_otherwise_are_listed() -> None:
    calls = read_recorded(recorded("/work/.env", "/work/a", "/work/keys/x"), "calls")
    after = policy(RULES.replace('"no-env"', '"other-id"').replace(".env:read", "keys/**:read"))
    changes = diff(calls, policy(), after)
    assert [(one.call.seq, one.before.effect, one.after.effect) for one in changes] == [
        (1, "forbid", "allow"),
        (3, "allow", "forbid"),
    ]
    assert diff(calls, policy(), policy(RULES.replace("no-env", "renamed"))) == []
    milder = diff(calls, policy(), policy(RULES.replace('"capability"', '"capability"\nmode = "enforce"', 1)))
    assert [(one.before.violation, one.after.violation) for one in milder] == [("kill", "refuse")]


@pytest.mark.parametrize(("action", "found"), [("request", ["allow"]), ("post", ["allow"]), ("get", [])])
def test_a_request_of_an_unknown_method_is_the_strictest_it_could_have_been(action: str, found: list[str]) -> None:
    line = {"seq": 1, "agent": "a", "role": "worker", "kind": "http", "action": action, "target": "a.test/**"}
    after = policy(RULES + '[[rule]]\nid = "no-post"\neffect = "forbid"\nwhat = ["http:a.test:post"]\n')
    changes = diff(read_recorded(json.dumps(line).encode(), "calls"), policy(), after)
    assert [one.before.effect for one in changes] == found


@pytest.mark.parametrize("line", [b"no json", b"[]", b'{"seq": 1}', b'{"seq": "x", "agent": 1, "role": 1}'])
def test_a_line_that_is_no_recorded_call_is_refused_by_number(line: bytes) -> None:
    with pytest.raises(EINVAL, match=r"calls:2: this is no recorded call"):
        read_recorded(recorded("/a") + line, "calls")
