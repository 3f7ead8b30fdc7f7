"""JSON of strangers."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.strict_json import json_object
from agent_os.drivers.models.values import count, decoded, items, mapping, text, tool_call

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_a_sound_object_is_read_alike_by_both(value: dict[str, object]) -> None:
    data = msgspec.json.encode(value)
    assert decoded(data) == json_object(data) == value


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":2}',
        b'{"a":1,"\\u0061":2}',
        b'{"x":{"a":1,"a":2}}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b"[1]",
        b"",
        b"{}{}",
        b"\xff{}",
        '{"a":1}'.encode("utf-16"),
        b'{"a":' * 100_000,
    ],
)
def test_an_object_that_two_could_read_differently_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        json_object(data)


@settings(deadline=None)
@given(JSON)
def test_any_value_is_something_of_the_kind_that_was_asked_for(value: object) -> None:
    assert isinstance(mapping(value), dict)
    assert isinstance(items(value), list)
    assert isinstance(text(value), str)
    assert count(value) is None or count(value) == value


@settings(deadline=None)
@given(st.text() | JSON.map(lambda value: msgspec.json.encode(value).decode()))
def test_whatever_a_model_writes_is_a_call(written: str) -> None:
    call = tool_call("1", "a.b", written)
    assert (call.args_error is None) or call.raw == written


def test_arguments_nested_without_end_are_an_error_of_the_call() -> None:
    assert tool_call("1", "a.b", "[" * 100_000).args_error is not None
