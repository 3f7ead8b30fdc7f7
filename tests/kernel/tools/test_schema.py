"""JSON Schema for tools: what is understood, what fits, what is told, and that nothing takes long."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EINVAL, ETYPE
from agent_os.kernel.tools.schema import LARGEST, Schema

TABLE: list[tuple[dict[str, Any], list[Any], list[Any]]] = [
    ({"type": "integer"}, [1, 1.0, -3], [1.5, True, "1", None]),
    ({"type": ["string", "null"]}, ["", None], [0, [], {}]),
    ({"const": 1}, [1, 1.0], [True, "1"]),
    ({"enum": [{"a": [1]}, 0]}, [{"a": [1.0]}, 0], [False, {"a": [True]}]),
    ({"multipleOf": 0.1}, [0.3, 1, -0.7], [0.35]),
    ({"minimum": 0, "exclusiveMaximum": 1}, [0, 0.99, "text"], [-1, 1]),
    ({"minLength": 2, "maxLength": 3}, ["ab", "äöü", 7], ["a", "abcd"]),
    ({"pattern": "^a+b$"}, ["aab", 5], ["b", "aabb"]),
    ({"prefixItems": [{"type": "string"}], "items": False}, [["a"], []], [["a", 1], [1]]),
    ({"items": {"type": "integer"}, "uniqueItems": True}, [[1, 2]], [[1, 1.0], ["a"]]),
    ({"contains": {"const": 1}, "maxContains": 2}, [[1, 0], [1, 1]], [[0], [1, 1, 1]]),
    ({"required": ["a"], "properties": {"a": {}}, "additionalProperties": False}, [{"a": 1}], [{}, {"a": 1, "b": 2}]),
    ({"patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": False}, [{"x-a": 1}], [{"x-a": "1"}]),
    ({"propertyNames": {"maxLength": 2}}, [{"ab": 1}], [{"abc": 1}]),
    ({"dependentRequired": {"a": ["b"]}}, [{"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}}, [{"c": 1}], [{"a": 1}, {}]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, [1, 2.5], [3]),
    ({"not": {"type": "string"}}, [1], ["a"]),
    ({"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False}, [{"a": 1}], [{"b": 1}]),
    ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"k": {"$ref": "#/$defs/n"}}}}}, [{}], [1]),
    ({"$ref": "#here", "$defs": {"x": {"$anchor": "here", "type": "string"}}}, ["a"], [1]),
]


@pytest.mark.parametrize(("schema", "fit", "misfit"), TABLE)
def test_what_fits_and_what_does_not(schema: dict[str, Any], fit: list[Any], misfit: list[Any]) -> None:
    understood = Schema(schema)
    assert [value for value in fit if not understood.fits(value)] == []
    assert [value for value in misfit if understood.fits(value)] == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "other.json#/x"},
        {"properties": {"a": {"$id": "https://example.com/", "$ref": "x"}}},
        {"$dynamicRef": "https://example.com/#x"},
    ],
)
def test_a_reference_never_leads_out(schema: dict[str, Any]) -> None:
    for foreign in (False, True):
        with pytest.raises(EINVAL) as caught:
            Schema(schema, foreign=foreign)
        assert caught.value.code == "tool.schema"


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        ({"properties": {"a": {"type": "text"}}}, "/properties/a/type"),
        ({"properties": {"a": {"minimum": "1"}}}, "/properties/a/minimum"),
        ({"requird": ["a"]}, "/requird"),
        ({"$ref": "#/$defs/nobody"}, "/$ref"),
        ({"pattern": "(?=a)b"}, "/pattern"),
        ({"properties": {"a/b": {"pattern": "("}}}, "/properties/a~1b/pattern"),
        ({"anyOf": []}, "/anyOf"),
        ({"$schema": "http://json-schema.org/draft-03/schema#"}, "/$schema"),
        ({"multipleOf": 0}, "/multipleOf"),
    ],
)
def test_what_is_not_understood_names_its_place(schema: dict[str, Any], where: str) -> None:
    with pytest.raises(EINVAL) as caught:
        Schema(schema)
    assert caught.value.detail["pointer"] == where


def test_of_a_stranger_what_cannot_be_checked_is_let_be_and_named() -> None:
    schema = {"properties": {"mail": {"type": "string", "pattern": r"^(?!\.)\S+@\S+$"}}, "x-order": 1}
    understood = Schema(schema, foreign=True)
    assert understood.unchecked == ["/properties/mail/pattern", "/x-order"]
    assert understood.fits({"mail": "anything"})
    assert not understood.fits({"mail": 1})


def test_a_misfit_tells_where_what_was_expected_and_what_came() -> None:
    schema = Schema({"properties": {"rows": {"items": {"required": ["n"], "properties": {"n": {"type": "integer"}}}}}})
    with pytest.raises(ETYPE) as caught:
        schema.require({"rows": [{"n": 1}, {"n": "two"}, {}]}, "the parameters", ran=False)
    detail = caught.value.detail
    assert (detail["pointer"], detail["expected"], detail["got"]) == ("/rows/1/n", "integer", "string 'two'")
    assert detail["errors"] == [{"pointer": "/rows/2/n", "expected": "a value, which is required", "got": "nothing"}]
    assert detail["ran"] is False
    assert "/rows/1/n" in caught.value.reason


def test_a_union_tells_of_the_form_that_was_nearly_met() -> None:
    cat = {"required": ["kind"], "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}}
    schema = Schema({"properties": {"pet": {"anyOf": [{"type": "null"}, cat]}}})
    with pytest.raises(ETYPE) as caught:
        schema.require({"pet": {"kind": "cat", "lives": "nine"}}, "it", ran=False)
    assert caught.value.detail["pointer"] == "/pet/lives"
    with pytest.raises(ETYPE) as caught:
        Schema({"anyOf": [{"type": "null"}, {"type": "integer"}]}).require("x", "it", ran=False)
    assert caught.value.detail["expected"] == "null or integer"


def test_a_result_that_does_not_fit_is_not_quoted() -> None:
    with pytest.raises(ETYPE) as caught:
        Schema({"properties": {"n": {"type": "integer"}}}).require({"n": "s3cret"}, "the result", ran=True, tell=False)
    assert "s3cret" not in repr((caught.value.reason, caught.value.detail))


def test_parameters_that_nobody_declared_are_refused_unless_it_says_otherwise() -> None:
    plain = {"type": "object", "properties": {"a": {}}}
    assert not Schema(plain, closed=True).fits({"a": 1, "b": 2})
    assert Schema(plain | {"additionalProperties": True}, closed=True).fits({"a": 1, "b": 2})
    both = {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}
    assert Schema(both, closed=True).fits({"a": 1, "b": 2})
    assert not Schema(both, closed=True).fits({"c": 1})


def bomb_of_unions() -> tuple[Any, Any]:
    defs = {f"n{i}": {"anyOf": [{"$ref": f"#/$defs/n{i + 1}"}] * 4} for i in range(40)}
    return {"$ref": "#/$defs/n0", "$defs": {**defs, "n40": {"type": "string"}}}, 1


HOSTILE: dict[str, tuple[Any, Any]] = {
    "unions in unions": bomb_of_unions(),
    "itself": ({"$ref": "#"}, 1),
    "itself through another": ({"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}, 1),
    "a pattern that explodes": ({"pattern": "^(a+)+$"}, "a" * 4000 + "!"),
    "alternatives that explode": ({"pattern": "^(a|a|aa|a?)*c$"}, "a" * 4000),
    "many patterns for many names": (
        {"patternProperties": {f"(x|y)*{i}$": {} for i in range(150)}},
        {f"{'xy' * 50}{i}": 0 for i in range(3000)},
    ),
    "a long list of records that must differ": ({"uniqueItems": True}, [{"a": i} for i in range(200_000)]),
    "a deep value": ({"items": {"$ref": "#"}}, None),
    "unevaluated at every level": (
        {
            "anyOf": [{"properties": {"a": {"$ref": "#"}}}, {"properties": {"a": {"$ref": "#"}}}],
            "unevaluatedProperties": False,
        },
        None,
    ),
    "a choice of many for each of many": ({"items": {"enum": list(range(4000))}}, [-1] * 100_000),
    "every item wrong": ({"items": {"type": "string"}}, [0] * 1_000_000),
    "every name unknown": ({"additionalProperties": False}, {str(i): 0 for i in range(300_000)}),
    "a number with many digits": ({"multipleOf": 7}, 10**100_000),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_or_value_is_answered_soon(name: str) -> None:
    schema, value = HOSTILE[name]
    if value is None:
        value = "end"
        for _ in range(90):
            value = {"a": value} if "anyOf" in schema else [value]
    began = time.process_time()
    Schema(schema).fits(value)
    assert time.process_time() - began < 2.0  # of the processor, and with room for a slow one


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {str(i): {} for i in range(6000)}},
        {"description": "x" * LARGEST},
        {"enum": list(range(6000))},
        {"patternProperties": {f"a{i}": {} for i in range(300)}},
        {"const": object()},
        [],
        None,
    ],
)
def test_a_schema_without_bounds_is_refused(schema: Any) -> None:
    with pytest.raises(EINVAL):
        Schema(schema)


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"items": schema}
    with pytest.raises(EINVAL):
        Schema(schema)


# The usual library as a second opinion.

leaves: Any = st.sampled_from(
    [
        *({"type": one} for one in ("null", "boolean", "integer", "number", "string", "array", "object")),
        {"const": 1}, {"enum": [True, "a", None]}, {"minimum": 1}, {"exclusiveMaximum": 2}, {"multipleOf": 2},
        {"minLength": 1}, {"maxLength": 1}, {"pattern": "^a"}, {"maxItems": 1}, {"uniqueItems": True},
        {"required": ["a"]}, {"minProperties": 2}, {"dependentRequired": {"a": ["b"]}}, True, False, {},
    ]
)  # fmt: skip


def grown(inner: Any) -> Any:
    some = st.lists(inner, min_size=1, max_size=3)
    fields = st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    return st.one_of(
        st.builds(lambda one: {"allOf": one}, some),
        st.builds(lambda one: {"anyOf": one}, some),
        st.builds(lambda one: {"oneOf": one}, some),
        st.builds(lambda one: {"not": one}, inner),
        st.builds(lambda one, two, three: {"if": one, "then": two, "else": three}, inner, inner, inner),
        st.builds(lambda one, two: {"properties": one, "additionalProperties": two}, fields, inner),
        st.builds(lambda one, two: {"anyOf": [{"properties": one}], "unevaluatedProperties": two}, fields, inner),
        st.builds(lambda one: {"patternProperties": {"^[ab]": one}}, inner),
        st.builds(lambda one: {"propertyNames": one}, inner),
        st.builds(lambda one, two: {"dependentSchemas": {"a": one}, "properties": two}, inner, fields),
        st.builds(lambda one, two: {"prefixItems": one, "items": two}, some, inner),
        st.builds(lambda one, two: {"allOf": [{"prefixItems": one}], "unevaluatedItems": two}, some, inner),
        st.builds(lambda one: {"contains": one, "minContains": 1, "maxContains": 2}, inner),
    )


values: Any = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 1.0, 2.5, "", "a", "ab", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.recursive(leaves, grown, max_leaves=6), values)
def test_the_usual_library_says_the_same(schema: Any, value: Any) -> None:
    validators = pytest.importorskip("jsonschema.validators", reason="jsonschema, a second opinion, is not installed")
    assert Schema(schema).fits(value) == validators.Draft202012Validator(schema).is_valid(value)
