"""The strictest layer decides, lower ones only narrow, and a bad reload changes nothing."""

import pytest
from msgspec.structs import replace

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.policy.layers import Current, Decision, Policy, strictest
from agent_os.kernel.authority.policy.reading import read
from agent_os.kernel.authority.policy.rules import Effect, Layer, Mode, PolicyFile, Rate
from agent_os.kernel.calls import Need

PAY = Need("tool", "call", "pay")


def file(layer: Layer, *rules: str, default: str = "capability", mode: str = "strict") -> PolicyFile:
    text = f'version = 1\ndefault = "{default}"\nmode = "{mode}"\n'
    for number, rule in enumerate(rules):
        effect, _, more = rule.partition(" ")
        text += f'[[rule]]\nid = "{layer.name.lower()}-{number}"\neffect = "{effect}"\n'
        text += more.replace(";", "\n") if "what" in more else f'what = ["tool:pay:call"]\n{more.replace(";", chr(10))}'
        text += "\n"
    return read(text.encode(), f"{layer.name.lower()}.toml", layer)


def decide(*files: PolicyFile, need: Need = PAY) -> Decision:
    return Policy(files).decide("anna", "worker", need)


ORG, OP, PROJECT, MANIFEST = Layer.ORGANISATION, Layer.OPERATOR, Layer.PROJECT, Layer.MANIFEST


@pytest.mark.parametrize("upper", ["allow", "ask", "forbid"])
@pytest.mark.parametrize("lower", ["allow", "ask", "forbid"])
def test_the_strictest_layer_decides_whichever_it_is(upper: str, lower: str) -> None:
    order = ["allow", "ask", "forbid"]
    decision = decide(file(OP, upper), file(PROJECT, lower))
    assert decision.effect == max(upper, lower, key=order.index)
    assert decision.rule
    assert decision.rule.id == ("operator-0" if order.index(upper) >= order.index(lower) else "project-0")
    assert decision.where
    assert decision.where.line == 4


def test_an_empty_policy_leaves_it_to_the_capability() -> None:
    assert decide() == Decision(Effect.ALLOW, reason="no rule is about it: the capability decides")


def test_a_layer_that_denies_by_default_needs_its_own_allow() -> None:
    closed = file(PROJECT, default="deny")
    missed = decide(file(OP, "allow"), closed)
    assert (missed.effect, missed.rule, missed.layer, missed.violation) == (Effect.FORBID, None, PROJECT, "refuse")
    assert "project.toml" in missed.reason
    assert decide(closed, file(MANIFEST, "allow")).effect is Effect.FORBID
    assert decide(file(OP, "allow"), file(PROJECT, "allow", default="deny")).effect is Effect.ALLOW
    assert decide(file(PROJECT, "ask", default="deny")).effect is Effect.ASK


def test_what_every_agent_holds_is_taken_away_by_an_explicit_forbid_only() -> None:
    own = Need("mem", "read", "/mem/working/x")
    closed = file(OP, default="deny")
    assert decide(closed, need=Need("mem", "read", "/mem/episodic/x")).effect is Effect.FORBID
    assert decide(closed, need=own).effect is Effect.ALLOW
    taken = file(OP, 'forbid what = ["mem:/mem/working/**:read"]')
    assert decide(taken, need=own).effect is Effect.FORBID


@pytest.mark.parametrize(
    ("mode", "violation", "expected"),
    [
        ("strict", "", "kill"),
        ("strict", "refuse", "refuse"),
        ("enforce", "", "refuse"),
        ("enforce", "kill", "kill"),
    ],
)
def test_what_a_forbid_means_follows_from_its_mode_unless_it_says(mode: str, violation: str, expected: str) -> None:
    said = f'forbid violation = "{violation}"' if violation else "forbid"
    decision = decide(file(OP, said, mode=mode))
    assert (decision.effect, decision.violation, decision.mode) == (Effect.FORBID, expected, mode)


def test_of_two_forbids_the_one_that_kills_decides() -> None:
    decision = decide(file(OP, 'forbid violation = "refuse"', 'forbid violation = "kill"'))
    assert (decision.rule and decision.rule.id, decision.violation) == ("operator-1", "kill")


def test_shadow_lets_a_call_run_and_tells_what_it_would_have_said() -> None:
    shadow = file(OP, "forbid", "ask", mode="shadow", default="deny")
    decision = decide(shadow)
    assert decision.effect is Effect.ALLOW
    assert [(one.effect, one.rule and one.rule.id) for one in decision.would] == [
        (Effect.FORBID, "operator-0"),
        (Effect.ASK, "operator-1"),
    ]
    unmatched = decide(file(OP, mode="shadow", default="deny"))
    assert unmatched.effect is Effect.ALLOW
    assert [(one.effect, one.rule, one.layer) for one in unmatched.would] == [(Effect.FORBID, None, OP)]


def test_shadow_in_one_layer_relaxes_no_other() -> None:
    assert decide(file(OP, mode="shadow"), file(PROJECT, "forbid")).violation == "kill"


@pytest.mark.parametrize(("upper", "lower"), [("strict", "enforce"), ("strict", "shadow"), ("enforce", "shadow")])
def test_a_lower_layer_may_only_be_stricter(upper: str, lower: str) -> None:
    Policy([file(OP, mode=lower), file(PROJECT, mode=upper)])
    with pytest.raises(EINVAL) as caught:
        Policy([file(OP, mode=upper), file(PROJECT, mode=lower)])
    assert caught.value.reason.startswith(f"project.toml:3: mode {lower} is milder than {upper} of operator.toml")


@pytest.mark.parametrize("layer", [ORG, OP])
@pytest.mark.parametrize("mode", ["strict", "enforce"])
def test_a_file_that_is_tried_restricts_nothing_and_loosens_nothing_above_it(layer: Layer, mode: str) -> None:
    tried = replace(file(PROJECT, "forbid", default="deny"), mode=Mode.SHADOW, tried=True)
    alone = decide(file(layer, mode=mode), tried)
    assert (alone.effect, [one.rule and one.rule.id for one in alone.would]) == (Effect.ALLOW, ["project-0"])
    held = decide(file(layer, "forbid", mode=mode), tried)
    assert (held.effect, held.layer, held.mode) == (Effect.FORBID, layer, mode)
    assert decide(file(layer, "ask", mode=mode), tried).effect is Effect.ASK
    assert decide(file(layer, mode=mode, default="deny"), tried).effect is Effect.FORBID
    assert decide(file(layer, mode=mode), tried, file(MANIFEST, "forbid", mode=mode)).layer is MANIFEST
    assert decide(file(layer, mode=mode), replace(tried, mode=Mode.STRICT, tried=False)).effect is Effect.FORBID


def test_every_rule_that_asks_must_be_satisfied() -> None:
    decision = decide(
        file(OP, 'ask approvers = ["user:anna", "user:ben"];deadline = "10m";scopes = ["once", "session"]'),
        file(PROJECT, 'ask approvers = ["user:ben"];deadline = "5m"', "ask"),
    )
    assert [rule.id for rule in decision.asks] == ["operator-0", "project-0", "project-1"]
    assert (decision.approvers, decision.deadline_s, decision.scopes) == ({"user:ben"}, 300.0, ("once", "session"))
    alone = decide(file(OP, "ask"))
    assert (alone.approvers, alone.deadline_s, alone.scopes) == (None, 900.0, ("once", "session", "always"))
    nobody = decide(file(OP, 'ask approvers = ["user:anna"]'), file(PROJECT, 'ask approvers = ["user:mallory"]'))
    assert nobody.approvers == frozenset()


def test_rates_and_limits_of_all_rules_that_let_it_through_hold() -> None:
    decision = decide(
        file(OP, 'allow what = ["tool:pay:call{timeout:30s,max_size:2kB}"];rate = "100/hour"'),
        file(PROJECT, 'allow what = ["tool:*:call{timeout:10s}"]', 'ask rate = "3/minute"'),
    )
    assert [rule.rate for rule in decision.rates] == [Rate(3, 60), Rate(100, 3600)]
    assert decision.limits == {"timeout": 10_000, "max_size": 2000}


def test_a_call_that_needs_several_things_gets_the_strictest_answer() -> None:
    policy = Policy(
        [file(OP, "ask", 'forbid what = ["tool:rm:call"];violation = "refuse"', 'ask what = ["tool:mail:call"]')]
    )
    needs = [PAY, Need("tool", "call", "mail"), Need("tool", "call", "look")]
    both = policy.decide_all("anna", "worker", needs)
    assert (both.effect, [rule.id for rule in both.asks]) == (Effect.ASK, ["operator-0", "operator-2"])
    assert policy.decide_all("anna", "worker", [*needs, Need("tool", "call", "rm")]).rule is policy.files[1].rules[1]
    assert policy.decide_all("anna", "worker", []).effect is Effect.ALLOW
    assert strictest([both]) is both


def test_what_an_agent_adds_lies_on_top_of_the_common_policy() -> None:
    common = Policy([file(OP, "allow")])
    own = Policy([file(PROJECT, "forbid")], common)
    assert common.decide("anna", "worker", PAY).effect is Effect.ALLOW
    assert own.decide("anna", "worker", PAY).effect is Effect.FORBID
    assert own.digest != common.digest
    with pytest.raises(EINVAL, match="belongs above"):
        Policy([file(ORG)], own)


def test_the_digest_is_of_what_the_files_say() -> None:
    one, same, other = (Policy([file(layer, "allow")]) for layer in (OP, OP, ORG))
    assert one.digest == same.digest != other.digest
    assert Policy().digest != one.digest


@pytest.mark.parametrize(
    ("org", "operator", "expected"), [(None, True, True), (True, True, True), (False, True, False), (None, None, False)]
)
def test_agents_in_the_kernel_s_process_need_the_word_of_every_layer(
    org: bool | None, operator: bool | None, expected: bool
) -> None:
    def saying(layer: Layer, word: bool) -> PolicyFile:
        return read(f'version=1\ndefault="capability"\nallow_in_process={str(word).lower()}'.encode(), "p", layer)

    said = [saying(layer, word) for layer, word in ((ORG, org), (OP, operator)) if word is not None]
    assert Policy(said).allow_in_process is expected


def test_a_bad_reload_leaves_the_old_policy_in_force() -> None:
    texts = [b'version = 1\ndefault = "deny"\n']
    current = Current(lambda: Policy([read(texts[0], "p.toml", OP)]))
    old = current.policy
    texts[0] = b'version = 1\ndefault = "deny"\nmood = 1\n'
    with pytest.raises(EINVAL, match=r"p\.toml:3"):
        current.reload()
    assert (current.policy, current.version, current.alarm is not None) == (old, 1, True)
    texts[0] = b'version = 1\ndefault = "capability"\n'
    assert current.reload() is current.policy
    assert (current.policy.files[1].default, current.version, current.alarm) == ("capability", 2, None)


def test_a_policy_that_is_bad_at_the_start_is_not_survived() -> None:
    with pytest.raises(EINVAL):
        Current(lambda: Policy([read(b"version = 1", "p.toml", OP)]))


def test_the_mode_of_the_whole_is_the_strictest() -> None:
    assert Policy([file(OP, mode="shadow"), file(PROJECT, mode="enforce")]).mode is Mode.ENFORCE
    assert Policy().mode is Mode.STRICT
