"""The pattern language: what is accepted, what it matches, and that it agrees with an independent reading."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.patterns import Pattern

CANONICAL = [
    ("file", "/home/user/data/*", "/home/user/data/**"),
    ("file", "/home/user/data/**", "/home/user/data/**"),
    ("file", "/*", "/**"),
    ("file", "/", "/"),
    ("file", "/logs/app-*.txt", "/logs/app-*.txt"),
    ("file", "/a/*/c", "/a/*/c"),
    ("mem", "/mem/working/*", "/mem/working/**"),
    ("http", "API.Example.COM.", "api.example.com/**"),
    ("http", "api.example.com/", "api.example.com/"),
    ("http", "api.example.com/v1/", "api.example.com/v1/"),
    ("http", "*.example.com/v1/*", "*.example.com/v1/**"),
    ("http", "*", "*/**"),
    ("http", "[2606:4700:0::1]/x", "[2606:4700::1]/x"),
    ("shell", "", ""),
    ("shell", "*", ""),
    ("agent", "", ""),
    ("agent", "*", "*"),
    ("agent", "team/*", "team/**"),
    ("tool", "web.*", "web.*"),
    ("tool", "**", "*"),
    ("ipc", "agent/*", "agent/**"),
    ("ipc", "topic/orders.*", "topic/orders.**"),
    ("ipc", "topic/orders.+", "topic/orders.+"),
    ("ipc", "topic/+", "topic/+"),
    ("ipc", "topic/*.created", "topic/*.created"),
    ("llm", "anthropic/*", "anthropic/**"),
    ("secret", "OPENAI_API_KEY", "OPENAI_API_KEY"),
]

MATCHES = [
    ("file", "/data/working/**", "/data/working/x", True),
    ("file", "/data/working/**", "/data/working/x/y", True),
    ("file", "/data/working/**", "/data/working", False),
    ("file", "/data/working/**", "/data/workingX", False),
    ("file", "/data/working", "/data/working", True),
    ("file", "/data/working", "/data/working/x", False),
    ("file", "/**", "/", False),
    ("file", "/**", "/x", True),
    ("file", "/a/*/c", "/a/b/c", True),
    ("file", "/a/*/c", "/a/b/b/c", False),
    ("file", "/app-*.txt", "/app-.txt", True),
    ("file", "/ab*ba", "/aba", False),
    ("file", "/.env", "/.ENV", False),
    ("http", "h.com", "h.com/", True),
    ("http", "h.com", "h.com", True),
    ("http", "h.com", "h.com/a/b", True),
    ("http", "h.com/", "h.com/a", False),
    ("http", "h.com/v1/**", "h.com/v1", False),
    ("http", "h.com/v1/**", "h.com/v1/", True),
    ("http", "h.com", "h.com.evil.org/", False),
    ("http", "*.h.com", "a.b.h.com/x", True),
    ("http", "*.h.com", "h.com/x", False),
    ("http", "*.h.com", "evilh.com/x", False),
    ("http", "*", "anything.org/", True),
    ("tool", "web.*", "web.search", True),
    ("tool", "web.*", "webs", False),
    ("ipc", "topic/orders.*", "topic/orders.eu.new", True),
    ("ipc", "topic/orders.*", "topic/orders", False),
    ("ipc", "topic/orders.+", "topic/orders.new", True),
    ("ipc", "topic/orders.+", "topic/orders.eu.new", False),
    ("ipc", "topic/orders.+", "topic/orders", False),
    ("ipc", "topic/orders.+", "topic/orders.*", True),
    ("ipc", "topic/orders.+", "topic/orders.>", False),
    ("ipc", "topic/orders.**", "topic/orders.>", True),
    ("ipc", "topic/*.*.+", "topic/orders.>", False),
    ("ipc", "topic/*.created", "topic/orders.created", True),
    ("ipc", "agent/*", "agent/x", True),
    ("ipc", "agent/*", "topic/x", False),
    ("llm", "anthropic/*", "anthropic/claude", True),
    ("llm", "*/small", "openai/small", True),
    ("shell", "*", "/usr/bin/ls", True),
    ("agent", "", "anybody", False),
]

BAD = [
    ("file", "", 0),
    ("file", "data", 0),
    ("file", "*", 0),
    ("file", "/a//b", 3),
    ("file", "/a/", 3),
    ("file", "/a/../b", 3),
    ("file", "/a/./b", 3),
    ("file", "/a*b*c", 4),
    ("file", "/a/**/b", 3),
    ("file", "/a/x**", 5),
    ("file", "/a\n", 2),
    ("file", "/cafe\u0301", 4),
    ("file", "/a" * 65, 1),
    ("file", "/" + "x" * 5000, 0),
    ("http", "/x", 0),
    ("http", "a.*.com", 2),
    ("http", "*.*.com", 2),
    ("http", "a*.com", 1),
    ("http", "*.10.0.0.1", 2),
    ("http", "127.1", 0),
    ("http", "0x7f.0.0.1", 0),
    ("http", "2130706433", 0),
    ("http", "good.com@evil.com/x", 0),
    ("http", "good.com:80:evil", 0),
    ("http", "h.com/a/../b", 8),
    ("http", "faß.de", 0),
    ("shell", "/usr/bin/ls", 0),
    ("ipc", "orders", 0),
    ("ipc", "mail/x", 0),
    ("ipc", "topic/a..b", 8),
    ("ipc", "topic/a.+.b", 8),
    ("llm", "openai//x", 7),
]


@pytest.mark.parametrize(("kind", "text", "canonical"), CANONICAL)
def test_a_pattern_has_one_text(kind: str, text: str, canonical: str) -> None:
    assert str(Pattern.parse(kind, text)) == canonical
    assert Pattern.parse(kind, canonical) == Pattern.parse(kind, text)


@pytest.mark.parametrize(("kind", "pattern", "target", "expected"), MATCHES)
def test_what_a_pattern_matches(kind: str, pattern: str, target: str, expected: bool) -> None:
    assert Pattern.parse(kind, pattern).matches(target) is expected


@pytest.mark.parametrize(("kind", "text", "position"), BAD)
def test_what_is_no_pattern_is_refused_at_its_position(kind: str, text: str, position: int) -> None:
    with pytest.raises(EINVAL) as caught:
        Pattern.parse(kind, text)
    assert caught.value.detail["position"] == position
    assert f"position {position}" in caught.value.reason


@pytest.mark.parametrize(
    ("pattern", "target", "expected"),
    [
        ("/work/**/.env", "/work/.env", True),
        ("/work/**/.env", "/work/a/b/.env", True),
        ("/work/**/.env", "/work/a/.env/x", False),
        ("/work/**/.env", "/other/.env", False),
        ("/**/secret-*", "/a/b/secret-1", True),
        ("/work/**/node_modules/**", "/work/a/node_modules/x", True),
        ("/work/**/node_modules/**", "/work/a/node_modules", False),
        ("/work/**/a/**", "/work/a/a", True),
        ("", "/anything", True),
    ],
)
def test_a_rule_may_have_a_gap_in_the_middle(pattern: str, target: str, expected: bool) -> None:
    assert Pattern.parse("file", pattern, rule=True).matches(target) is expected


def test_a_rule_has_one_gap() -> None:
    for text in ("/a/**/b/**/c", "/a/**/**", "/a/**/*"):
        with pytest.raises(EINVAL):
            Pattern.parse("file", text, rule=True)


def test_a_forbid_can_be_compared_without_regard_to_case() -> None:
    rule = Pattern.parse("file", "/work/**/.Env", rule=True)
    assert rule.folded().matches("/Work/a/.ENV".casefold())


WITHIN = [
    ("file", "/a/**", "/**", True),
    ("file", "/a/b", "/a/**", True),
    ("file", "/a", "/a/**", False),
    ("file", "/a/**", "/a/*/**", False),
    ("file", "/a/b/**", "/a/*/**", True),
    ("file", "/a/x-*.log", "/a/x*", True),
    ("file", "/a/x*", "/a/x-*.log", False),
    ("file", "/a/**", "/a/b", False),
    ("http", "h.com/x", "h.com", True),
    ("http", "h.com/", "h.com", True),
    ("http", "*.a.h.com", "*.h.com", True),
    ("http", "*.h.com", "*.a.h.com", False),
    ("http", "h.com", "*.h.com", False),
    ("http", "*", "*.h.com", False),
    ("http", "*.h.com", "*", True),
    ("agent", "", "*", True),
    ("agent", "*", "", False),
    ("agent", "", "", True),
    ("tool", "web.search", "web.*", True),
    ("ipc", "topic/a.b.*", "topic/a.*", True),
    ("ipc", "topic/a.+", "topic/a.*", True),
    ("ipc", "topic/a.*", "topic/a.+", False),
    ("ipc", "topic/a.b", "topic/a.+", True),
    ("ipc", "topic/a.b.c", "topic/a.+", False),
    ("ipc", "topic/a", "agent/*", False),
]


@pytest.mark.parametrize(("kind", "one", "other", "expected"), WITHIN)
def test_when_a_pattern_lies_within_another(kind: str, one: str, other: str, expected: bool) -> None:
    assert Pattern.parse(kind, one).within(Pattern.parse(kind, other)) is expected


SEGMENTS = st.sampled_from(["a", "b", "*", "a*", "*b", "a*b", "ab*", "ba"])
NAMES = st.sampled_from(["a", "b", "ab", "acb", "ba", "abb", "c", "aab"])
PATHS = st.lists(NAMES, max_size=5).map(lambda parts: "/" + "/".join(parts))


@st.composite
def rule_texts(draw: st.DrawFn) -> str:
    parts = draw(st.lists(SEGMENTS, min_size=1, max_size=4))
    if draw(st.booleans()) and parts[-1] != "*":
        parts.insert(draw(st.integers(0, len(parts) - 1)), "**")
    if draw(st.booleans()) and parts[-1] != "**":
        parts.append("**")
    return "/" + "/".join(parts)


def as_regex(text: str) -> str:
    """Another reading of the same language, only for comparing."""
    parts = text[1:].split("/")
    found = ""
    for index, part in enumerate(parts):
        if index == len(parts) - 1 and part in ("*", "**"):
            found += "(/[^/]+)+"
        elif part == "**":
            found += "(/[^/]+)*"
        else:
            found += "/" + re.escape(part).replace(r"\*", "[^/]*")
    return found


@given(rule_texts(), PATHS)
def test_matching_agrees_with_a_regular_expression(text: str, path: str) -> None:
    try:
        pattern = Pattern.parse("file", text, rule=True)
    except EINVAL:
        return
    assert pattern.matches(path) is bool(re.fullmatch(as_regex(text), path))
    if pattern.matches(path) or pattern.is_base(path):
        assert path.startswith(pattern.stem)
    if pattern.prefix and path.startswith(pattern.prefix) and path != pattern.prefix:
        assert pattern.matches(path)


@given(rule_texts(), PATHS, st.lists(NAMES, min_size=1, max_size=3))
def test_following_a_path_step_by_step_ends_where_matching_does(text: str, folder: str, rest: list[str]) -> None:
    pattern = Pattern.parse("file", text, rule=True)
    if pattern.matches("/".join([folder.rstrip("/"), *rest])):
        assert pattern.reaches(folder)
    used = {0}
    for segment in folder.strip("/").split("/") if folder != "/" else ():
        used = {after for before in used for after in pattern.after(before, segment)}
    if not pattern.subtree:  # which is strictly below its base
        assert (len(pattern.segments) in used) is pattern.matches(folder)


@pytest.mark.parametrize(
    ("text", "folder", "reached"),
    [
        ("/work/customers/**", "/work", True),
        ("/work/customers/**", "/work/customers", True),
        ("/work/customers/**", "/work/customers/x", True),
        ("/work/customers/**", "/work/other", False),
        ("/work/file", "/work", True),
        ("/work/file", "/work/file", False),
        ("/work/**/x", "/work/a/b", True),
        ("/data/**/x", "/work", False),
        ("/**", "/", True),
        ("/*/x", "/work", True),
    ],
)
def test_a_pattern_knows_whether_it_may_match_below_a_folder(text: str, folder: str, reached: bool) -> None:
    assert Pattern.parse("file", text, rule=True).reaches(folder) is reached


@given(rule_texts(), rule_texts(), st.lists(PATHS, max_size=50))
def test_rules_proved_within_each_other_really_are(one: str, other: str, paths: list[str]) -> None:
    try:
        small, large = Pattern.parse("file", one, rule=True), Pattern.parse("file", other, rule=True)
    except EINVAL:
        return
    if small.within(large):
        assert not [path for path in paths if small.matches(path) and not large.matches(path)]


@pytest.mark.parametrize(
    ("text", "host", "inside"),
    [("a.test/x", "a.test", True), ("*.test/x", "a.test", True), ("*", "a.test", True), ("b.test/**", "a.test", False)],
)
def test_a_pattern_knows_whether_anything_of_a_host_is_in_it(text: str, host: str, inside: bool) -> None:
    assert Pattern.parse("http", text).matches_host(host) is inside
