"""Labels only grow, survive being written down, and are untrusted where nobody said otherwise."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_os.kernel.authority import capability
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.labels import (
    CLEAN,
    MANY,
    MOST_SOURCES,
    PRIVATE,
    UNLABELLED,
    Integrity,
    Label,
    Labels,
    joined,
    of_mount,
    of_source,
    of_words,
    packed,
    unpacked,
    untrusted,
)
from agent_os.kernel.calls import Need

unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the machine may be busy

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
some = st.frozensets(names, max_size=40)
labels = st.builds(lambda i, s, c: joined([Label(i, s, c)]), st.sampled_from(["trusted", "untrusted"]), some, some).map(
    lambda label: of_words(label.words())
)


@dataclass(frozen=True)
class Source:
    what: Sequence[Capability]
    integrity: Integrity = "untrusted"
    classes: frozenset[str] = frozenset()


@unhurried
@given(labels, labels, labels)
def test_a_join_is_associative_commutative_idempotent_and_never_loses(a: Label, b: Label, c: Label) -> None:
    assert a.join(b) == b.join(a)
    assert a.join(b).join(c) == a.join(b.join(c))
    assert a.join(a) == a
    assert a.join(CLEAN) == a
    together = a.join(b)
    assert together.holds(a)
    assert together.holds(b)
    assert together.untrusted is (a.untrusted or b.untrusted)
    assert together.classes == a.classes | b.classes


@unhurried
@given(labels, labels)
def test_whoever_holds_a_label_is_not_changed_by_it(a: Label, b: Label) -> None:
    assert a.holds(b) is (a.join(b) == a)


@unhurried
@given(labels)
def test_a_label_survives_an_entry_and_a_store(label: Label) -> None:
    assert of_words(label.words()) == label
    assert unpacked(packed(label)) == label


def test_the_thirty_third_source_makes_them_many_for_ever() -> None:
    all_of_them = [untrusted(f"http:host-{number}") for number in range(MOST_SOURCES + 1)]
    assert len(joined(all_of_them[:-1]).sources) == MOST_SOURCES
    many = joined(all_of_them)
    assert many.sources == {MANY}
    assert many.join(untrusted("http:another")).sources == {MANY}
    assert reduce(Label.join, reversed(all_of_them)) == many


@pytest.mark.parametrize(
    "words", [[], ["clean"], ["from:x", "trusted"], ["trusted", "sink:x"], ["Trusted"], ["trusted", ""]]
)
def test_what_cannot_be_read_as_a_label_is_untrusted(words: list[str]) -> None:
    assert of_words(words) == UNLABELLED


@pytest.mark.parametrize("data", [None, b"", b"\xc0", b"\x91\xa1\xff", b"\x92\x01\x02", b"trusted"])
def test_what_lies_in_the_store_without_a_readable_label_is_untrusted(data: bytes | None) -> None:
    assert unpacked(data).untrusted


def test_clean_is_written_out_because_nothing_written_means_untrusted() -> None:
    assert CLEAN.words() == ["trusted"]
    assert not of_words(CLEAN.words()).untrusted


@pytest.mark.parametrize(
    ("need", "label"),
    [
        (Need("file", "read", "/work/src/a.py"), untrusted("file:/work", PRIVATE)),
        (Need("mem", "read", "/mem/working/x/y"), untrusted("mem:/mem/working", PRIVATE)),
        (Need("tool", "call", "search"), untrusted("tool:search")),
        (Need("http", "get", "api.github.com/repos"), untrusted("http:api.github.com")),
        (Need("http", "post", "api.github.com/repos"), untrusted("http:api.github.com")),
        (Need("llm", "call", "anthropic/claude"), CLEAN),
        (Need("mem", "read", "/policy/rules"), CLEAN),
        (Need("mem", "read", "/proc/self/status"), CLEAN),
        (Need("mem", "read", "/proc/other"), untrusted("mem:/proc", PRIVATE)),
        (Need("mem", "read", "/policyX/rules"), untrusted("mem:/policyX", PRIVATE)),
        (Need("ipc", "subscribe", "topic/a"), untrusted("ipc:topic/a")),
        (Need("nothing known", "x", "y"), untrusted("nothing known:y")),
    ],
)
def test_what_comes_from_where_has_which_label(need: Need, label: Label) -> None:
    assert of_source(need) == label


def test_the_operator_may_call_a_source_better_and_only_that_one() -> None:
    rules = [Source([capability.parse("tool:clock:call")], "trusted"), Source([capability.parse("file:/work/**:read")])]
    assert of_source(Need("tool", "call", "clock"), rules) == CLEAN
    assert of_source(Need("tool", "call", "clocks"), rules) == untrusted("tool:clocks")
    assert of_source(Need("file", "read", "/work/a"), rules) == untrusted("file:/work")
    assert of_mount("/work", rules) == untrusted("file:/work")
    assert of_mount("/data", rules) == untrusted("file:/data", PRIVATE)


def test_an_agent_is_born_with_its_parents_label_and_that_of_its_mounts() -> None:
    carried = Labels()
    carried.begin("default/planner", CLEAN)
    assert carried.of("default/planner") == CLEAN
    carried.begin("default/reader", carried.of("default/planner"), [of_mount("/work")])
    assert carried.of("default/reader") == untrusted("file:/work", PRIVATE)
    carried.begin("default/child", carried.of("default/reader"))
    assert carried.of("default/child").holds(carried.of("default/reader"))


def test_an_agent_that_nobody_labelled_is_untrusted() -> None:
    assert Labels().of("default/stranger") == UNLABELLED


def test_a_label_is_written_when_it_changes_and_only_then_and_survives_a_restart() -> None:
    carried = Labels()
    stored = {put.key: put.value for put in carried.begin("default/a", CLEAN)}
    news = carried.take_in("default/a", untrusted("tool:search"))
    assert len(news) == 1
    stored |= {put.key: put.value for put in news}
    assert carried.take_in("default/a", untrusted("tool:search")) == []
    again = Labels((key, value) for key, value in stored.items() if value is not None)
    assert again.of("default/a") == untrusted("tool:search")
    gone = again.forget("default/a")
    assert [put.value for put in gone] == [None]
    assert again.of("default/a") == UNLABELLED
