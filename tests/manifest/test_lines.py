"""Every key of a TOML file is found on the line where it stands."""

import tomllib
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.manifest.lines import toml_lines

TRICKY = '''# a [[rule]] in a comment
version = 1   # "quote
text = """
[[rule]]
id = "not a key"
"""
literal = \'\'\'
x = 1 \\\'\'\'
escaped = "a \\" = [ # no comment"
multi = """two quotes at the end\\""""""
many = [ # [
  "a", # , "b"
  "[c",

  ["d", 4],
]
inline = { a = 1, b = { "c d" = [1, 2] } }
dotted . key = 2024-01-01T00:00:00Z

[[rule]]
id = "one"
[rule.inner]
x = 1
[[rule]]
"id" = 'two'
what = ["a",
        "b"]
[[rule.sub]]
y = 1
[[rule.sub]]
y = 2
["quoted table"]
z = 0
'''


def test_strings_comments_and_nesting_hide_nothing_and_invent_nothing() -> None:
    parsed, lines = tomllib.loads(TRICKY), toml_lines(TRICKY)
    assert set(paths(parsed)) == set(lines)
    assert [lines[path] for path in (("text",), ("literal",), ("escaped",), ("multi",), ("many",))] == [3, 7, 9, 10, 11]
    assert [lines["many", number] for number in range(3)] == [12, 13, 15]
    assert lines["many", 2, 1] == 15
    assert lines["inline", "b", "c d", 1] == 17
    assert lines["dotted", "key"] == 18
    assert [lines["rule", 0], lines["rule", 0, "inner"], lines["rule", 1], lines["rule", 1, "id"]] == [20, 22, 24, 25]
    assert lines["rule", 1, "what", 1] == 27
    assert [lines["rule", 1, "sub", number, "y"] for number in (0, 1)] == [29, 31]
    assert lines["quoted table", "z"] == 33


def paths(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        found += [one for key, inner in value.items() for one in paths(inner, (*path, key))]
    if isinstance(value, list):
        found += [one for key, inner in enumerate(value) for one in paths(inner, (*path, key))]
    return found


texts = st.text(st.sampled_from("ab\"'\\#[]{}=,.\n\t é"), max_size=8)


def written(text: str, style: int) -> str:
    """One of the four ways to write a text, where it can be written that way."""
    if style == 1 and "'" not in text and "\n" not in text:
        return f"'{text}'"
    if style == 2 and "'''" not in text and not text.endswith("'") and not text.startswith("\n"):
        return f"'''{text}'''"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
    if style == 3:
        return '"""\n' + escaped + '"""'
    return '"' + escaped.replace("\n", "\\n") + '"'


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), texts, st.lists(texts, max_size=3), texts), max_size=6))
def test_keys_are_found_whatever_their_values_hold(rules: list[tuple[int, str, list[str], str]]) -> None:
    text = ""
    expected: dict[tuple[str | int, ...], int] = {}
    for number, (style, value, items, remark) in enumerate(rules):
        text += f"[[rule]] # {remark.splitlines()[0] if remark.splitlines() else ''}".replace("\t", " ") + "\n"
        for key, shown in (("id", written(value, style)), ("what", None)):
            expected["rule", number, key] = text.count("\n") + 1
            if shown is not None:
                text += f"{key} = {shown}\n"
                continue
            text += f"{key} = [\n"
            for place, item in enumerate(items):
                expected["rule", number, key, place] = text.count("\n") + 1
                text += f"  {written(item, style)}, # ]\n"
            text += "]\n"
    parsed = tomllib.loads(text)
    assert [rule["id"] for rule in parsed.get("rule", [])] == [value for _, value, _, _ in rules]
    lines = toml_lines(text)
    assert {path: lines[path] for path in expected} == expected
