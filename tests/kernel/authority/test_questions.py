"""A question is about exactly one call, and shows it without giving anything away."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_os.abi.syscalls import Exec, Write
from agent_os.kernel.authority.labels import CLEAN, PRIVATE, Label, untrusted
from agent_os.kernel.authority.questions import Ask, Asker, Question, arguments
from agent_os.kernel.calls import Need

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

ASKER = Asker("default/a", "program")
PAY = (Need("tool", "call", "pay"),)
ASKS = Question("big-payments", "it is dear")


def asks(args: Any = None, **changes: Any) -> Ask:
    facts: dict[str, Any] = {"asker": ASKER, "op": 5, "needs": PAY, "args": args, "label": CLEAN, "questions": [ASKS]}
    return Ask(**{**facts, **changes})


@pytest.mark.parametrize(
    "other",
    [
        asks({"amount": 101}),
        asks({"amount": 100.0}),
        asks({"amount": "100"}),
        asks({"amount": True}),
        asks({"amount": 100, "to": None}),
        asks({"amount": 100}, asker=Asker("default/b", "program")),
        asks({"amount": 100}, op=6),
        asks({"amount": 100}, needs=(Need("tool", "call", "pay2"),)),
        asks({"amount": 100}, label=untrusted("x", PRIVATE)),
    ],
)
def test_whatever_differs_is_another_question(other: Ask) -> None:
    assert asks({"amount": 100}).digest() != other.digest()


@pytest.mark.parametrize(
    "same",
    [
        asks({"b": 1, "a": 2}),
        asks({"a": 2, "b": 1}, questions=[Question("another-rule", "and again")]),
        asks({"a": 2, "b": 1}, label=Label("untrusted", frozenset({"http:x"}))),
        asks({"a": 2, "b": 1}, handle=9),
    ],
)
def test_what_does_not_change_the_act_does_not_change_the_question(same: Ask) -> None:
    assert asks({"a": 2, "b": 1}).digest() == same.digest()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def same(a: Any, b: Any) -> bool:
    """Equal in type, too: 1, True and 1.0 are three values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return repr(a) == repr(b)


@unhurried
@given(values, values)
def test_digests_are_equal_where_arguments_are_and_nowhere_else(a: Any, b: Any) -> None:
    assert (asks(a).digest() == asks(b).digest()) is same(a, b)


def test_a_body_is_in_the_digest_and_only_its_hash_is_shown() -> None:
    large, other = Write(path="/work/x", data=b"x" * 5000), Write(path="/work/x", data=b"x" * 4999 + b"y")
    assert asks(large).digest() != asks(other).digest()
    shown = arguments(large)
    assert shown["path"] == "/work/x"
    assert shown["data"]["size"] == 5000
    assert len(shown["data"]["sha256"]) == 64
    assert len(shown["data"]["begins"]) == 512


def test_long_deep_and_odd_arguments_are_shortened() -> None:
    shown = arguments({"many": list(range(100)), "bytes": b"\xff\x00", "map": {str(n): n for n in range(100)}})
    assert shown["many"][-1].startswith("… 36 more, sha256 ")
    assert set(shown["bytes"]) == {"size", "sha256"}
    assert shown["map"]["…"].startswith("… 36 more, sha256 ")
    deep: Any = "bottom"
    for _ in range(50):
        deep = [deep]
    assert "bottom" not in repr(arguments(deep))
    assert repr(arguments(deep)) != repr(arguments([deep])), "what is cut has a hash"


@pytest.mark.parametrize(
    ("args", "keys"),
    [
        ({b"to": "first", "to": "second"}, ["bytes to", "to"]),
        ({1: "first", "1": "second"}, ["int 1", "1"]),
        ({True: "first", "True": "second"}, ["bool True", "True"]),
        ({b"to": "first", "bytes to": "second"}, ["bytes to", "bytes to (again)"]),
        ({"hunter22": "first", "hunter23": "second"}, ["[secret]", "[secret] (again)"]),
    ],
)
def test_no_argument_hides_another_of_the_same_spelling(args: Any, keys: list[str]) -> None:
    shown = arguments({"params": args}, lambda text: "[secret]" if text.startswith("hunter") else text)
    assert list(shown["params"].items()) == list(zip(keys, ["first", "second"], strict=True))


def test_a_standing_answer_is_for_one_port_and_one_scheme() -> None:
    needs = (Need("http", "post", "site.test/pay"),)
    facts = [{"port": 443, "scheme": "https"}, {"port": 8080, "scheme": "http"}, {"port": 8081, "scheme": "http"}]
    asked = [asks(needs=needs, facts=one).capability for one in (*facts, {"port": 8080})]
    assert len(set(asked)) == 4
    assert asked[0] == "capability://http/site.test/pay?action=post"
    assert asked[1] == "capability://http/site.test/pay?action=post&port=8080&scheme=http"


def test_secrets_are_taken_out_of_what_is_shown_wherever_they_are() -> None:
    def redact(text: str) -> str:
        return text.replace("hunter22", "[secret]")

    request = Exec(tool="curl", params={"hunter22": ["x hunter22", b"hunter22"], "long": "hunter22" * 200})
    assert "hunter22" not in repr(arguments(request, redact))
    assert "[secret]" in repr(arguments(request, redact))


def test_the_strictest_of_several_rules_binds() -> None:
    first = Question("a", "x", approvers=["user:anna"], deadline_s=60, scopes=["once", "session"])
    second = Question("b", "y", approvers=["user:bob", "user:anna"], deadline_s=30)
    ask = asks(questions=[first, second])
    assert ask.rules == {"a", "b"}
    assert ask.deadline_s == 30
    assert ask.scopes == ["once", "session"]
    assert ask.approvers == [["user:anna"], ["user:anna", "user:bob"]]
    assert asks().deadline_s == 15 * 60
    assert asks().approvers == []


@pytest.mark.parametrize(
    ("asker", "scopes"),
    [
        (ASKER, ["once", "session", "always"]),
        (Asker("default/a", "program", guest=True), ["once", "session"]),
        (Asker("default/a"), ["once", "session"]),
    ],
)
def test_always_needs_a_program_that_a_digest_covers(asker: Asker, scopes: list[str]) -> None:
    assert asks(asker=asker).scopes == scopes


def test_what_it_wants_is_in_words_and_as_a_canonical_capability() -> None:
    assert asks().wants == "tool.call pay"
    assert asks().capability == "capability://tool/pay?action=call"
    assert asks(needs=()).wants == "SYS_EXEC"
    assert asks(needs=(*PAY, Need("http", "post", "a.com/x"))).wants == "tool.call pay and 1 more"
