"""Results of any size: bounded for the agent, whole in the blob, and never torn."""

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EIO, EMSGSIZE
from agent_os.abi.tools import LARGEST_OUTPUT
from agent_os.kernel.tools.output import bound, cut, part

LIMIT = 64 << 10


def test_what_fits_is_as_it_was() -> None:
    value = {"a": [1, "two", None]}
    found = bound(value, LIMIT)
    assert found.result.value is value
    assert not found.result.cut
    assert found.blob is None


def test_a_long_text_keeps_its_beginning_its_end_and_its_true_size() -> None:
    text = "B" * 100 + "x" * 300_000 + "E" * 100
    result, blob = bound(text, LIMIT)
    assert result.value.startswith("B" * 100)
    assert result.value.endswith("E" * 100)
    assert "of 300,200 bytes left out" in result.value
    head, _, tail = result.value.partition("\n[…")
    assert len(head) == 48 << 10
    assert len(tail.partition("…]\n")[2]) == 16 << 10
    assert blob == text.encode()
    assert result.blob == sha256(blob).hexdigest()
    assert result.size == 300_200


def test_a_record_keeps_its_shape_and_its_short_texts() -> None:
    value = {"exit": 0, "stdout": "o" * 500_000, "stderr": "a short warning", "rows": [1, 2]}
    result, blob = bound(value, LIMIT)
    assert (result.value["exit"], result.value["stderr"], result.value["rows"]) == (0, "a short warning", [1, 2])
    assert len(json.dumps(result.value)) <= LIMIT
    assert len(result.value["stdout"]) > LIMIT // 2
    assert json.loads(blob or b"") == value


def test_what_has_no_long_text_is_told_as_a_text() -> None:
    value = list(range(100_000))
    result, blob = bound(value, LIMIT)
    assert result.value is None
    assert result.text.startswith("[0,1,2")
    assert result.text.endswith("99999]")
    assert json.loads(blob or b"") == value


def test_texts_that_json_makes_longer_are_bounded_as_json() -> None:
    result, _ = bound({"a": "\x01" * 100_000, "b": '"' * 100_000}, LIMIT)
    assert len(json.dumps(result.value if result.value is not None else result.text)) <= 7 * LIMIT
    assert result.value is None or len(json.dumps(result.value).encode()) <= LIMIT + 16


def test_more_than_is_kept_at_all_is_an_error() -> None:
    with pytest.raises(EMSGSIZE):
        bound("x" * (LARGEST_OUTPUT + 1), LIMIT)


def test_what_json_cannot_hold_is_an_error_of_the_tool() -> None:
    with pytest.raises(EIO):
        bound({"a": object()}, LIMIT)


def test_bytes_that_are_no_text_are_kept_as_they_are() -> None:
    raw = b"\xff\xfe\x00"
    result, blob = bound(raw.decode(errors="replace"), LIMIT, raw)
    assert blob == raw
    assert result.blob == sha256(raw).hexdigest()


def test_a_range_of_what_was_kept() -> None:
    assert part(b"0123456789", 2, 3) == {"text": "234", "offset": 2, "size": 10, "more": True}
    assert part(b"ab\xff", 0, 9)["replaced"] is True
    assert part(b"abc", 99, 5) == {"text": "", "offset": 99, "size": 3, "more": False}


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1, max_size=300), st.integers(1, 20), st.integers(512, 4096))
def test_no_character_is_torn(text: str, times: int, limit: int) -> None:
    long = text * times * 20
    small = cut(long, limit)
    head, marked, tail = small.partition("\n[… ")
    if not marked:
        assert small == long
        return
    assert long.startswith(head)
    assert long.endswith(tail.partition(" …]\n")[2])
    assert len(small.encode()) <= limit + 80


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=4000),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner, max_size=6),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(json_values)
def test_whatever_it_is_the_agent_gets_no_more_than_the_limit(value: Any) -> None:
    result, blob = bound(value, 2048)
    told = result.text or result.value
    size = (
        len(told.encode(errors="replace"))
        if isinstance(told, str)
        else len(json.dumps(told, ensure_ascii=False).encode(errors="replace"))
    )
    assert size <= 2048 + 600  # json here has more spaces
    assert result.cut == (blob is not None)
