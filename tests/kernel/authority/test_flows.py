"""Every syscall names its join; what carries too much does not go out unasked."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from agent_os.abi.errors import ELABEL
from agent_os.abi.syscalls import BY_NAME, TABLE, Effect, Syscall
from agent_os.kernel.authority import capability
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.flows import (
    FLOWS,
    NO_RULES,
    RULE_OF_TWO,
    Brings,
    FlowRules,
    Stamps,
    brought,
    changes_outside,
    decide,
)
from agent_os.kernel.authority.labels import CLEAN, PRIVATE, UNLABELLED, Integrity, Label, untrusted
from agent_os.kernel.calls import Need

EXEC, READ, WRITE, WAIT = (BY_NAME[name].number for name in ("SYS_EXEC", "SYS_READ", "SYS_WRITE", "SYS_WAIT"))
SPAWN, SIGNAL, SLEEP = (BY_NAME[name].number for name in ("SYS_SPAWN", "SYS_SIGNAL", "SYS_SLEEP"))
POST, GET = Need("http", "post", "api.github.com/x"), Need("http", "get", "api.github.com/x")
PAY = Need("tool", "call", "pay")
TAINTED = untrusted("file:/work", PRIVATE)
PUBLIC = untrusted("http:example.com")  # untrusted, and nothing private in it
TRUSTED_PRIVATE = Label("trusted", frozenset(), frozenset({PRIVATE}))


@dataclass(frozen=True)
class Class:
    name: str
    readers: Sequence[Capability]


@dataclass(frozen=True)
class Sink:
    what: Sequence[Capability]
    integrity: Integrity = "untrusted"
    classes: frozenset[str] | None = None
    otherwise: Literal["deny", "ask"] = "deny"
    where: object = "policy.toml:7"


def caps(*texts: str) -> list[Capability]:
    return [capability.parse(text) for text in texts]


@pytest.mark.parametrize("one", TABLE, ids=lambda one: one.name)
def test_every_syscall_names_its_join(one: Syscall) -> None:
    assert one.number in FLOWS, f"{one.name} is new: say in flows.FLOWS what it brings and stamps"


def test_no_join_is_named_for_what_is_no_syscall() -> None:
    assert set(FLOWS) == {one.number for one in TABLE}


def test_a_syscall_without_a_join_brings_the_worst_and_goes_nowhere() -> None:
    assert brought(127, [PAY], NO_RULES) == UNLABELLED
    with pytest.raises(ELABEL, match="nobody has said"):
        decide(CLEAN, 127, [PAY], Effect.PURE)


@pytest.mark.parametrize(
    ("name", "brings", "stamps"),
    [
        ("SYS_READ", Brings.ENTRY, Stamps.NOTHING),
        ("SYS_LIST", Brings.NAMES, Stamps.NOTHING),
        ("SYS_WAIT", Brings.AGENT, Stamps.NOTHING),
        ("SYS_SIGNAL", Brings.AGENT, Stamps.AGENT),
        ("SYS_EXEC", Brings.SOURCE, Stamps.NOTHING),
        ("SYS_WRITE", Brings.ENTRY, Stamps.ENTRY),
        ("SYS_SPAWN", Brings.NOTHING, Stamps.CHILD),
        ("SYS_SHARE", Brings.NOTHING, Stamps.AGENT),
        ("SYS_WATCH", Brings.NOTICES, Stamps.NOTHING),
        ("SYS_CHECKPOINT", Brings.NOTHING, Stamps.CHECKPOINT),
        ("OP_RUN", Brings.PERSON, Stamps.CHILD),
    ],
)
def test_the_flows_that_the_specification_names(name: str, brings: Brings, stamps: Stamps) -> None:
    flow = FLOWS[BY_NAME[name].number]
    assert (flow.brings, flow.stamps) == (brings, stamps)


@pytest.mark.parametrize(
    ("op", "needs", "carried", "label"),
    [
        (READ, [Need("file", "read", "/work/a")], None, TAINTED),
        (READ, [Need("mem", "read", "/mem/working/a")], CLEAN, CLEAN),
        (READ, [Need("mem", "read", "/mem/working/a")], None, untrusted("mem:/mem/working", PRIVATE)),
        (READ, [], None, UNLABELLED),  # by a handle whose entry nobody named
        (EXEC, [PAY], None, untrusted("tool:pay")),  # what a write tool hands back
        (WAIT, [], TAINTED, TAINTED),
        (WAIT, [], None, UNLABELLED),
        (SLEEP, [], None, CLEAN),
    ],
)
def test_what_a_call_brings(op: int, needs: list[Need], carried: Label | None, label: Label) -> None:
    assert brought(op, needs, NO_RULES, carried) == label


@pytest.mark.parametrize(
    ("need", "effect", "outside"),
    [
        (POST, Effect.OPAQUE, True),
        (Need("http", "request", "h/x"), Effect.OPAQUE, True),
        (GET, Effect.PURE, False),
        (PAY, Effect.OPAQUE, True),
        (PAY, Effect.IDEMPOTENT, True),
        (PAY, Effect.PURE, False),
        (Need("file", "write", "/work/out"), Effect.IDEMPOTENT, False),
        (Need("file", "write", "/workX/out"), Effect.IDEMPOTENT, True),
        (Need("file", "delete", "/data/out"), Effect.IDEMPOTENT, True),
        (Need("file", "read", "/data/out"), Effect.PURE, False),
        (Need("mem", "write", "/mem/shared/x"), Effect.IDEMPOTENT, False),
        (Need("llm", "call", "a/b"), Effect.PURE, False),
        (Need("agent", "spawn", "x"), Effect.VERIFIABLE, False),
    ],
)
def test_what_acts_outside(need: Need, effect: Effect, outside: bool) -> None:
    assert changes_outside(need, effect) is outside


@pytest.mark.parametrize(
    ("label", "asks"), [(TAINTED, True), (PUBLIC, False), (TRUSTED_PRIVATE, False), (CLEAN, False), (UNLABELLED, False)]
)
def test_the_rule_of_two_asks_with_an_empty_policy_where_both_meet(label: Label, asks: bool) -> None:
    for need in (POST, PAY):
        doubts = decide(label, EXEC, [need], Effect.OPAQUE)
        assert [one.rule for one in doubts] == ([RULE_OF_TWO] if asks else [])
    if asks:
        assert "file:/work" in decide(label, EXEC, [POST], Effect.OPAQUE)[0].reason


def test_what_stays_inside_is_never_asked_about() -> None:
    for need in (Need("mem", "write", "/mem/working/x"), Need("file", "write", "/work/x")):
        assert decide(TAINTED, WRITE, [need], Effect.IDEMPOTENT) == []
    assert decide(TAINTED, WRITE, [GET], Effect.PURE) == []
    assert decide(TAINTED, SIGNAL, [Need("agent", "signal", "x")], Effect.IDEMPOTENT) == []


def test_handing_a_capability_to_a_child_is_not_using_it() -> None:
    assert decide(TAINTED, SPAWN, [Need("agent", "spawn", "x"), POST], Effect.VERIFIABLE) == []


def test_a_host_that_a_person_named_for_this_run_counts_as_answered() -> None:
    assert decide(TAINTED, EXEC, [POST], Effect.OPAQUE, answered={"api.github.com"}) == []
    assert decide(TAINTED, EXEC, [POST], Effect.OPAQUE, answered={"github.com"}) != []
    assert decide(TAINTED, EXEC, [PAY], Effect.OPAQUE, answered={"pay"}) != []


@pytest.mark.parametrize("kind", ["file", "mem"])
def test_no_label_lets_an_agent_write_its_policy(kind: str) -> None:
    with pytest.raises(ELABEL, match="no agent changes"):
        decide(CLEAN, WRITE, [Need(kind, "write", "/policy/rules.toml")], Effect.IDEMPOTENT)


CUSTOMER = Label("trusted", frozenset(), frozenset({"customer"}))
READERS = FlowRules(classes=[Class("customer", caps("http:crm.example.com:*", "llm:local/*:call"))])


@pytest.mark.parametrize(
    ("need", "passes"),
    [
        (Need("http", "post", "crm.example.com/x"), True),
        (Need("http", "get", "evil.com/x"), False),  # a question mark carries as much as a body
        (Need("llm", "call", "local/llama"), True),
        (Need("llm", "call", "cloud/gpt"), False),
        (Need("tool", "call", "mail"), False),
        (Need("file", "write", "/data/x"), False),
        (Need("file", "write", "/work/x"), True),
        (Need("mem", "write", "/mem/shared/x"), True),
    ],
)
def test_a_class_goes_to_its_readers_and_nowhere_else(need: Need, passes: bool) -> None:
    if passes:
        assert decide(CUSTOMER, EXEC, [need], Effect.PURE, READERS) == []
    else:
        with pytest.raises(ELABEL, match="customer"):
            decide(CUSTOMER, EXEC, [need], Effect.PURE, READERS)


def test_a_class_that_no_rule_names_any_more_has_no_readers() -> None:
    with pytest.raises(ELABEL, match="no rule names"):
        decide(CUSTOMER, EXEC, [GET], Effect.PURE)


def test_two_layers_both_bind() -> None:
    both = FlowRules(classes=[*READERS.classes, Class("customer", caps("http:*.example.com:get"))])
    decide(CUSTOMER, EXEC, [Need("http", "get", "crm.example.com/x")], Effect.PURE, both)
    with pytest.raises(ELABEL):
        decide(CUSTOMER, EXEC, [Need("http", "post", "crm.example.com/x")], Effect.PURE, both)


def test_private_is_bound_only_where_a_rule_says_who_reads_it() -> None:
    assert decide(TRUSTED_PRIVATE, EXEC, [POST], Effect.OPAQUE) == []
    tight = FlowRules(classes=[Class(PRIVATE, caps("tool:notes:call"))])
    with pytest.raises(ELABEL, match="private"):
        decide(TRUSTED_PRIVATE, EXEC, [POST], Effect.OPAQUE, tight)


@pytest.mark.parametrize(
    ("sink", "label", "expected"),
    [
        (Sink(caps("tool:pay:call"), "trusted"), PUBLIC, "deny"),
        (Sink(caps("tool:pay:call"), "trusted"), CLEAN, "go"),
        (Sink(caps("tool:pay:call"), "trusted", otherwise="ask"), PUBLIC, "ask"),
        (Sink(caps("tool:pay:call"), classes=frozenset()), TRUSTED_PRIVATE, "deny"),
        (Sink(caps("tool:pay:call"), classes=frozenset({PRIVATE})), TRUSTED_PRIVATE, "go"),
        (Sink(caps("tool:other:call"), "trusted"), PUBLIC, "go"),
    ],
)
def test_a_sink_rule_tightens(sink: Any, label: Label, expected: str) -> None:
    rules = FlowRules(sinks=[sink])
    if expected == "deny":
        with pytest.raises(ELABEL) as caught:
            decide(label, EXEC, [PAY], Effect.PURE, rules)
        assert caught.value.detail["rule"] == "sink policy.toml:7"
    else:
        doubts = decide(label, EXEC, [PAY], Effect.PURE, rules)
        assert [one.rule for one in doubts] == (["sink policy.toml:7"] if expected == "ask" else [])


def test_a_sink_rule_binds_what_stays_inside_as_well() -> None:
    rules = FlowRules(sinks=[Sink(caps("agent:banker:signal"), "trusted")])
    with pytest.raises(ELABEL):
        decide(PUBLIC, SIGNAL, [Need("agent", "signal", "banker")], Effect.IDEMPOTENT, rules)
