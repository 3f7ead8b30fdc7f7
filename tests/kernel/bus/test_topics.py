"""Topics, filters, and the index against the plain rule."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.patterns import Pattern
from agent_os.kernel.bus.topics import Index, check_filter, check_topic, matches, target

TOKENS = st.sampled_from(["a", "b", "c"])
TOPICS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)


@st.composite
def filters(draw: st.DrawFn) -> str:
    tokens = draw(st.lists(st.sampled_from(["a", "b", "c", "*"]), max_size=3))
    rest = draw(st.booleans())
    return ".".join([*tokens, ">"] if rest or not tokens else tokens)


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.b.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b", "a.b", True),
        ("*.b", "a.c", False),
        ("*.*.>", "a.b", False),
        ("*.*.>", "a.b.c", True),
    ],
)
def test_a_star_is_one_token_and_the_rest_is_one_or_more(pattern: str, topic: str, expected: bool) -> None:
    assert matches(pattern, topic) is expected
    index: Index[str] = Index()
    index.add(pattern, "x")
    assert (list(index.find(topic)) == ["x"]) is expected


@given(st.lists(filters()), TOPICS, st.data())
def test_the_index_finds_what_the_rule_says_also_after_some_are_removed(
    patterns: list[str], topic: str, data: st.DataObject
) -> None:
    index: Index[int] = Index()
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)
    assert sorted(index.find(topic)) == [number for number, one in enumerate(patterns) if matches(one, topic)]
    gone = data.draw(st.sets(st.sampled_from(range(len(patterns))))) if patterns else set[int]()
    for number in gone:
        index.remove(patterns[number], number)
    left = [number for number, one in enumerate(patterns) if matches(one, topic) and number not in gone]
    assert sorted(index.find(topic)) == left
    for number in set(range(len(patterns))) - gone:
        index.remove(patterns[number], number)
    assert index._root.empty  # pyright: ignore[reportPrivateUsage]


@given(
    filters(),
    st.lists(TOPICS, min_size=10),
    st.lists(st.sampled_from(["a", "b", "*", "a*"]), max_size=3),
    st.booleans(),
)
def test_a_capability_that_covers_the_text_of_a_filter_covers_its_topics(
    pattern: str, topics: list[str], tokens: list[str], subtree: bool
) -> None:
    held = Pattern.parse("ipc", "topic/" + ".".join([*tokens, "**"] if subtree or not tokens else tokens))
    if held.matches(target(pattern)):
        assert all(held.matches(target(topic)) for topic in topics if matches(pattern, topic))


@pytest.mark.parametrize(
    ("text", "position"),
    [("", 0), ("a..b", 2), (".a", 0), ("a.", 2), ("a.b c", 3), ("a.b*", 3), ("a\x00", 1), ("a/b", 1), ("a.>.b", 2)],
)
def test_what_is_no_filter_is_named_with_its_place_and_what_to_write(text: str, position: int) -> None:
    with pytest.raises(EINVAL) as refused:
        check_filter(text)
    assert refused.value.detail["position"] == position
    assert refused.value.hint


@pytest.mark.parametrize(("text", "position"), [("a.*", 2), (">", 0), ("a.>", 2)])
def test_wildcards_are_for_subscribers(text: str, position: int) -> None:
    assert check_filter(text) == text
    with pytest.raises(EINVAL, match="subscribers") as refused:
        check_topic(text)
    assert refused.value.detail["position"] == position


def test_a_topic_is_bounded() -> None:
    check_topic(".".join("x" * 32))
    for text in (".".join("x" * 33), "é" * 128):
        with pytest.raises(EINVAL, match="at most"):
            check_topic(text)


def test_finding_costs_the_matches_and_not_the_subscriptions() -> None:
    index: Index[int] = Index()
    for number in range(20_000):
        index.add(f"t.{number}.x", number)
    index.add("t.*.y", -1)
    visited = 0

    class Counted(dict):  # type: ignore[type-arg]
        def __contains__(self, key: object) -> bool:
            nonlocal visited
            visited += 1
            return super().__contains__(key)

    root = index._root  # pyright: ignore[reportPrivateUsage]
    root.below = Counted(root.below)
    root.below["t"].below = Counted(root.below["t"].below)
    assert list(index.find("t.77.x")) == [77]
    assert visited <= 4
