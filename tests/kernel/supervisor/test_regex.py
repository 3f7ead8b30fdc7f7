"""The same answers as Python's matcher, and never its worst times."""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.supervisor.regex import Regex


@pytest.mark.parametrize(
    ("regex", "line", "found"),
    [
        ("ready", "server ready.", True),
        ("ready", "server read", False),
        ("^ready$", "ready", True),
        ("^ready$", " ready", False),
        ("^ready$", "ready ", False),
        ("^$", "", True),
        ("^$", "x", False),
        ("$^", "", True),
        ("", "", True),
        ("listening on .*:\\d+", "INFO listening on 0.0.0.0:8080 (pid 3)", True),
        ("listening on .*:\\d+$", "listening on 0.0.0.0:8080 (pid 3)", False),
        ("(?i)READY", "is ready", True),
        ("up|ready|live", "it is live", True),
        ("^(up|ready|live)$", "lively", False),
        ("[Rr]eady [^a-z]", "Ready 1", True),
        ("[]x]+$", "a]", True),
        ("a{2,3}b", "aab", True),
        ("^a{2,3}b", "aaaab", False),
        ("^a{2}$", "aaa", False),
        ("a{,3}", "a{,3}", True),
        ("x{y", "x{y", True),
        ("^(?:ab)+?$", "abab", True),
        ("\\[\\d\\d:\\d\\d\\] up", "[12:30] up", True),
        ("größe\\s\\w+", "größe öl", True),
        ("(a*)*b", "aaab", True),
        ("()*x", "x", True),
    ],
)
def test_a_line_holds_a_match_or_not(regex: str, line: str, found: bool) -> None:
    assert Regex(regex).found_in(line) is found


ATOM = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", "\\w", "\\d", "\\.", "^", "$"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    signs = st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?", "+?"])
    return (
        st.tuples(inner, signs).map(lambda both: f"({both[0]}){both[1]}")
        | st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})")
    )


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(st.recursive(ATOM, _larger, max_leaves=6), st.lists(st.text("abc.1", max_size=8), min_size=1, max_size=4))
@example("(a|ab)(c|bcd)(d*)", ["abcd"])
def test_it_finds_exactly_what_python_finds(regex: str, lines: list[str]) -> None:
    ours, theirs = Regex(regex), re.compile(regex)
    for line in lines:
        assert ours.found_in(line) == bool(theirs.search(line)), (regex, line)


@pytest.mark.parametrize(
    ("regex", "says"),
    [
        ("(", "lacks a )"),
        (")", "too many"),
        ("[a", "lacks a ]"),
        ("*a", "repeats nothing"),
        ("a**", "repeats a repetition"),
        ("a|+", "repeats nothing"),
        ("a{3,2}", "repeats"),
        ("a{1,200}", "repeats more than 100"),
        ("a{1000}", "repeats"),
        ("(?=a)", "not supported"),
        ("(?P<n>a)", "not supported"),
        ("(a)\\1", "not supported"),
        ("\\bready", "not supported"),
        ("a\\", "not supported"),
        ("[z-a]", "bad character range"),
        ("[[a]", "nested set"),
        ("(a{100}){100}", "too large"),
        ("((((a?){9}){9}){9}){9}", "too large"),
        ("(" * 30 + ")" * 30, "too deeply"),
        ("a" * 257, "of at most 256"),
    ],
)
def test_what_is_not_understood_is_refused_in_words(regex: str, says: str) -> None:
    with pytest.raises(EINVAL) as caught:
        Regex(regex)
    assert says in caught.value.reason


@given(st.text("()[]{}?*+|^$\\a-z,019:", max_size=12))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        regex = Regex(text)
    except EINVAL:
        return
    regex.found_in("a(z)0")


@pytest.mark.parametrize(
    "regex", ["(a+)+$", "(a|a)*b", "(a|aa)+$", "a*a*a*a*a*a*b", "(((a*)*)*)*b", "(a?){50}a{50}b", "(.*)*x$"]
)
def test_expressions_that_would_stop_the_kernel_take_a_moment(regex: str) -> None:
    one = Regex(regex)
    line = "a" * 1000 + "!"
    began = time.process_time()
    assert not one.found_in(line)
    assert time.process_time() - began < 2.0
    assert one.steps < 1000 * 400


def test_nothing_repeated_often_is_read_at_once() -> None:
    began = time.process_time()
    assert Regex("((((((){99}){99}){99}){99}){99}){99}x").found_in("x")
    assert time.process_time() - began < 1.0


def test_steps_are_counted() -> None:
    one = Regex("abc")
    one.found_in("x" * 100)
    assert one.steps >= 100
