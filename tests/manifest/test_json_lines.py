"""Lines of JSON are those where a key or an element begins."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.manifest.reading import BadJson, json_lines

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def test_keys_and_elements_have_their_lines() -> None:
    text = '{\n "a": 1,\n "b": [\n  1,\n  {"c": "\\n"}\n ]\n}'
    assert json_lines(text) == {("a",): 2, ("b",): 3, ("b", 0): 4, ("b", 1): 5, ("b", 1, "c"): 5}


def test_a_key_that_is_there_twice_is_refused() -> None:
    with pytest.raises(BadJson, match="twice, first on line 1") as caught:
        json_lines('{"a": {"b": 1,\n"b": 2}}')
    assert (caught.value.line, caught.value.key) == (2, ("a", "b"))


@given(TREES)
def test_every_key_has_a_line(tree: object) -> None:
    def paths(value: object, at: tuple[str | int, ...]) -> set[tuple[str | int, ...]]:
        pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        return {at} | {path for key, one in pairs for path in paths(one, (*at, key))}

    assert set(json_lines(json.dumps(tree, indent=1))) == paths(tree, ()) - {()}


@given(st.text())
def test_any_text_is_walked_without_harm(text: str) -> None:
    json_lines(text)
