"""JSON Schema in the kernel: what annotations give is understood, what is not is refused, and values are held to it."""

import datetime
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL, ETYPE
from agent_os.kernel.authority.declassify import open_part
from agent_os.kernel.pipes.schemas import require_fit, require_understood
from agent_os.userland.schemas import schema_of


class Tree(msgspec.Struct):
    name: str
    below: list["Tree"] = []


class Paper(msgspec.Struct):
    title: Annotated[str, msgspec.Meta(max_length=80)]
    year: Annotated[int, msgspec.Meta(ge=1900, le=2100)]
    tags: set[str] = set()
    found: datetime.date | None = None
    score: float = 0.0


@dataclass
class Found:
    papers: list[Paper]
    kind: Literal["web", "book"] = "web"


class Word(TypedDict):
    text: str


class Verdict(msgspec.Struct):
    safe: bool
    grade: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0
    day: datetime.date | None = None


def fits(schema: Any, value: Any) -> bool:
    require_understood(schema)
    try:
        require_fit("T", schema, value)
    except ETYPE:
        return False
    return True


PAPER = {"title": "On pipes", "year": 1973}
CASES: list[tuple[Any, Any, bool]] = [
    (Paper, PAPER, True),
    (Paper, {**PAPER, "found": "1973-02-01", "score": 1, "tags": ["a", "b"]}, True),
    (Paper, {**PAPER, "tags": ["a", "a"]}, False),
    (Paper, {**PAPER, "found": "1973-2-1"}, False),
    (Paper, {**PAPER, "found": "yesterday"}, False),
    (Paper, {**PAPER, "note": "smuggled"}, False),
    (Paper, {"title": "On pipes"}, False),
    (Paper, {**PAPER, "year": 1899}, False),
    (Paper, {**PAPER, "year": True}, False),
    (Paper, {**PAPER, "year": 1973.0}, False),
    (Paper, {**PAPER, "title": "x" * 81}, False),
    (Paper, {**PAPER, "score": math.nan}, False),
    (Paper, {**PAPER, "score": "1"}, False),
    (Paper, [PAPER], False),
    (Paper, {**PAPER, 1: 2}, False),
    (Found, {"papers": [PAPER], "kind": "book"}, True),
    (Found, {"papers": [PAPER, {}]}, False),
    (Found, {"papers": [], "kind": "note"}, False),
    (Word, {"text": "hello"}, True),
    (Word, {}, False),
    (Tree, {"name": "a", "below": [{"name": "b", "below": []}]}, True),
    (Tree, {"name": "a", "below": [{"name": 1}]}, False),
    (tuple[int, str], [1, "a"], True),
    (tuple[int, str], [1, "a", 2], False),
    (dict[str, int], {"a": 1}, True),
    (dict[str, int], {"a": "1"}, False),
    (Literal[1], True, False),
    (bool, 1, False),
    (int, 3, True),
    (None, None, True),
    (str | None, b"", False),
]


@pytest.mark.parametrize(("kind", "value", "expected"), CASES)
def test_a_value_fits_or_does_not(kind: Any, value: Any, expected: bool) -> None:
    assert fits(schema_of(kind), value) is expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "text"},
        {"not": {}},
        {"$ref": "#/$defs/None"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"$defs": {"A": {"anyOf": [{"$ref": "#/$defs/B"}]}, "B": {"allOf": [{"$ref": "#/$defs/A"}]}}},
        {"type": "string", "format": "email"},
        {"enum": []},
        {"properties": []},
        {"minimum": "1"},
        {"maxItems": -1},
        {"multipleOf": 0},
        {"items": [1]},
        {"enum": list(range(3000))},
        [],
        None,
        {"format": []},
        {"type": ["string"] * 9},
        {"properties": {"x" * 256: {}}},
    ],
)
def test_a_schema_that_would_not_be_checked_is_refused(schema: Any) -> None:
    with pytest.raises(EINVAL) as caught:
        require_understood(schema)
    assert caught.value.code == "type.schema"


def test_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100):
        schema = {"items": schema}
    with pytest.raises(EINVAL):
        require_understood(schema)


def test_alternatives_that_multiply_end_soon() -> None:
    again = {"type": "array", "items": {"$ref": "#/$defs/T"}}
    schema = {"$ref": "#/$defs/T", "$defs": {"T": {"anyOf": [again, again, {"const": 1}]}}}
    value: Any = 2
    for _ in range(60):
        value = [value]
    began = time.monotonic()
    assert not fits(schema, value)
    assert time.monotonic() - began < 5


MANY_NAMES = [f"{number:x}" for number in range(9000)]
LARGE = [[0] * 1000] * 20


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "array", "items": {"anyOf": [{"enum": list(range(1000, 1900))}, True]}}, [1] * 5000),
        ({"allOf": [{"anyOf": [{"enum": [number]}, True]} for number in range(250)]}, LARGE),
        ({"allOf": [{"anyOf": [{"const": number}, True]} for number in range(250)]}, LARGE),
        ({"allOf": [{"anyOf": [{"uniqueItems": True}, True]} for _ in range(250)]}, LARGE),
        ({"type": "array", "items": {"anyOf": [{"required": MANY_NAMES}, True]}}, [{}] * 5000),
    ],
)
def test_no_schema_makes_everybody_wait_for_one_value(schema: Any, value: Any) -> None:
    require_understood(schema)
    begun = time.process_time()
    with suppress(ETYPE):
        require_fit("T", schema, value)
    assert time.process_time() - begun < 2.0


def test_a_refusal_tells_nothing_of_the_value() -> None:
    for value in ({"title": "secret", "year": "secret"}, {**PAPER, "secret": 1}, {**PAPER, "found": "secret"}):
        with pytest.raises(ETYPE) as caught:
            require_fit("Paper", schema_of(Paper), value)
        assert "secret" not in str(caught.value)


def test_what_annotations_close_is_closed_for_a_crossing() -> None:
    class Closed(msgspec.Struct):
        safe: bool
        grade: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0

    assert open_part(schema_of(Closed)) == ""
    assert "free text" in open_part(schema_of(Word))


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 3000) | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["title", "year", "x"]), inner),
    max_leaves=8,
)


@given(plain)
def test_what_fits_can_be_read_as_its_type(value: Any) -> None:
    if fits(schema_of(Paper), value):
        msgspec.convert(value, Paper)
    if fits(schema_of(Verdict), value):
        msgspec.convert(value, Verdict)
