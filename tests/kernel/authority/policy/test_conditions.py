"""What is not known of a call counts against the caller."""

import pytest

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.policy.conditions import judge_of, limits_of, rule_capability
from agent_os.kernel.authority.policy.rules import Effect


def holds(text: str, effect: Effect, **facts: object) -> bool:
    judge = judge_of(rule_capability(text, effect), effect)
    return judge is None or judge(facts)


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [
        ("tool:pay:call{arg.amount:1..100}", {"args": {"amount": 50}}, True),
        ("tool:pay:call{arg.amount:1..100}", {"args": {"amount": 101}}, False),
        ("tool:pay:call{arg.to:anna|ben}", {"args": {"to": "ben"}}, True),
        ("tool:pay:call{arg.to:anna|ben}", {"args": {"to": "eve"}}, False),
        ("tool:get:call{arg.path:/data/*}", {"args": {"path": "/etc/x"}}, False),
        ("capability://http/x.com:8443/**?action=get", {"port": 8443}, True),
        ("capability://http/x.com:8443/**?action=get", {"port": 443}, False),
        ("http:x.com:get{scheme:http}", {"scheme": "https"}, False),
        ("shell:execute{allowlist:ls|cat}", {"program": ("ls", "/bin/ls")}, True),
        ("shell:execute{allowlist:ls|cat}", {"program": ("rm", "/bin/rm")}, False),
    ],
)
def test_a_known_fact_decides_for_every_effect_alike(text: str, facts: dict[str, object], expected: bool) -> None:
    assert {holds(text, effect, **facts) for effect in Effect} == {expected}


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("tool:pay:call{arg.amount:1..100}", {}),
        ("tool:pay:call{arg.amount:1..100}", {"args": {}}),
        ("tool:pay:call{arg.amount:1..100}", {"args": {"amount": "50"}}),
        ("tool:pay:call{arg.amount:1..100}", {"args": {"amount": True}}),
        ("tool:pay:call{arg.amount:1..100}", {"args": {"amount": float("nan")}}),
        ("tool:pay:call{arg.amount:1..100}", {"args": {"amount": float("inf")}}),
        ("tool:pay:call{arg.to:anna}", {"args": {"to": ["anna"]}}),
        ("tool:pay:call{arg.to:anna}", {"args": {"to": None}}),
        ("tool:get:call{arg.path:/data/*}", {"args": {"path": "/tmp/../data/x"}}),
        ("http:x.com:get{scheme:http}", {}),
        ("capability://http/x.com:80/**?action=get", {}),
        ("shell:execute{allowlist:ls}", {}),
    ],
)
def test_an_unknown_fact_keeps_a_forbid_and_drops_an_allow(text: str, facts: dict[str, object]) -> None:
    assert holds(text, Effect.FORBID, **facts)
    assert holds(text, Effect.ASK, **facts)
    assert not holds(text, Effect.ALLOW, **facts)


def test_every_condition_of_a_rule_must_hold() -> None:
    text = "tool:pay:call{arg.amount:1..100,arg.to:anna}"
    assert holds(text, Effect.ALLOW, args={"amount": 5, "to": "anna"})
    assert not holds(text, Effect.ALLOW, args={"amount": 5, "to": "eve"})


def test_limits_are_no_conditions() -> None:
    one = rule_capability("tool:pay:call{max_size:5kB,timeout:30s}", Effect.ALLOW)
    assert limits_of(one) == {"max_size": 5000, "timeout": 30_000}
    assert judge_of(one, Effect.ALLOW) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("llm:anthropic/*:call{tokens:500}", r"no llm:call is held to a 'tokens' yet$"),
        ("http:x.com:get{max_size:1MB}", "no http:get is held to a 'max_size' yet, only tool, mem, file"),
        ("http:x.com:post{timeout:1s}", "no http:post is held to a 'timeout' yet, only tool, mem, file:read"),
        ("file:/work/**:read,write{timeout:1s}", "no file:write is held to a 'timeout'"),
        ("shell:execute{timeout:1s}", "no shell:execute is held"),
    ],
)
@pytest.mark.parametrize("effect", [Effect.ALLOW, Effect.ASK])
def test_a_limit_that_nobody_holds_a_call_to_is_refused(text: str, why: str, effect: Effect) -> None:
    with pytest.raises(EINVAL, match=why):
        rule_capability(text, effect)


@pytest.mark.parametrize(
    ("text", "effect"),
    [
        ("tool:x:call{expiry:1h}", Effect.ALLOW),
        ("tool:x:call{count:3}", Effect.FORBID),
        ("agent:spawn{max:3}", Effect.ALLOW),
        ("http:x.com:get{private:10.0.0.0/8}", Effect.ALLOW),
        ("tool:x:call{depth:1}", Effect.ASK),
        ("tool:x:call{arg.a:1}", None),
        ("capability://file/a/%2Ab*?action=read", Effect.FORBID),
    ],
)
def test_a_constraint_that_a_rule_cannot_keep_is_refused(text: str, effect: Effect | None) -> None:
    with pytest.raises(EINVAL):
        rule_capability(text, effect)


def test_a_literal_star_is_a_name() -> None:
    one = rule_capability("capability://file/a/%2A.txt?action=read", Effect.FORBID)
    assert one.target.matches("/a/*.txt")
    assert not one.target.matches("/a/b.txt")
