"""JSON Schema, as much of it as annotations give: a schema is understood once, then values are held against it.

In: a schema that somebody wrote, and values as they came over the wire. Out: EINVAL for a schema with a word that is
not known here, ETYPE with the place where a value does not fit. A word that is not known would be a check that does not
happen, so there are none. No `pattern`: a hostile one takes for ever. Both sides may be hostile, so schemas are bounded
and so is the work for one value.
"""

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from typing import Any, cast
from uuid import UUID

import msgspec
from msgspec import Raw

from agent_os.abi.errors import EINVAL, ETYPE
from agent_os.kernel.authority.declassify import IDS

MOST_PARTS = 2000  # of a schema
DEEPEST = 32
LONGEST_NAME = 255  # of a field: every place below it is told by it
MOST_STEPS = 50_000  # for one value: alternatives within alternatives multiply, and everybody waits meanwhile
_DEFS = "#/$defs/"
_ABOUT = frozenset({"title", "description", "default", "examples", "deprecated", "discriminator", "$schema", "$id"})
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
Schema = Mapping[str, Any]


def _is_day(text: str) -> bool:
    return date.fromisoformat(text).isoformat() == text


_FORMATS: Mapping[str, Callable[[str], object]] = {
    "date": _is_day,
    "date-time": datetime.fromisoformat,
    "time": time.fromisoformat,
    "uuid": UUID,
}


# Understanding a schema.


def require_understood(schema: Any) -> None:
    """EINVAL: it says something that nobody here would check, or it is too large."""
    if not isinstance(schema, Mapping):
        raise _unclear("$", "a schema is a map")
    whole = cast("Schema", schema)
    defs: Any = whole.get("$defs", {})
    if not isinstance(defs, Mapping):
        raise _unclear("$.$defs", "must be a map")
    reader = _Reader({str(name) for name in cast("Mapping[Any, Any]", defs)})
    for name, one in cast("Mapping[Any, Any]", defs).items():
        reader.read(one, f"$.$defs.{name}")
    reader.read({key: value for key, value in whole.items() if key != "$defs"}, "$")
    _require_no_circle(whole)


class _Reader:
    def __init__(self, defs: set[str]) -> None:
        self._defs, self._parts = defs, 0

    def read(self, schema: Any, at: str, depth: int = 0) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS or depth > DEEPEST:
            raise _unclear(at, f"a schema has at most {MOST_PARTS} parts, {DEEPEST} deep")
        if isinstance(schema, bool):
            return
        if not isinstance(schema, Mapping):
            raise _unclear(at, "must be a map, true or false")
        for key, value in cast("Mapping[Any, Any]", schema).items():
            self._word(key, value, f"{at}.{key}", depth)

    def _word(self, key: Any, value: Any, at: str, depth: int) -> None:
        match key:
            case _ if key in _ABOUT:
                pass
            case "type":
                words = cast("list[Any]", value if isinstance(value, list) else [value])
                few = 1 <= len(words) <= len(_TYPES)
                _require(few and all(word in _TYPES for word in words), at, f"is one of {', '.join(_TYPES)}")
            case "enum":
                self._count(value, at)
            case "const":
                pass
            case "$ref":
                known = isinstance(value, str) and value.startswith(_DEFS) and value.removeprefix(_DEFS) in self._defs
                _require(known, at, "points to something below its own $defs")
            case "properties":
                _require(isinstance(value, Mapping), at, "is a map")
                for name, one in cast("Mapping[Any, Any]", value).items():
                    _require(isinstance(name, str) and len(name) <= LONGEST_NAME, at, "has names")
                    self.read(one, f"{at}.{name}", depth + 1)
            case "anyOf" | "oneOf" | "allOf" | "prefixItems":
                self._count(value, at)
                for one in value:
                    self.read(one, at, depth + 1)
            case "items" | "additionalProperties" | "propertyNames":
                self.read(value, at, depth + 1)
            case "required":
                _require(isinstance(value, list) and all(isinstance(one, str) for one in _list(value)), at, "are names")
            case "uniqueItems":
                _require(isinstance(value, bool), at, "is true or false")
            case "format":
                _require(isinstance(value, str) and value in _FORMATS, at, f"is one of {', '.join(_FORMATS)}")
            case "contentEncoding":
                _require(value == "base64", at, "is base64")
            case _ if key == IDS:
                _require(isinstance(value, str), at, "names a list")
            case _ if key in _LIMITS:
                _require(_is_number(value) and (key != "multipleOf" or value > 0), at, "is a number")
            case _ if key in _COUNTS:
                _require(isinstance(value, int) and not isinstance(value, bool) and value >= 0, at, "is a count")
            case _:
                raise _unclear(at, "is not understood, and would not be checked")

    def _count(self, value: Any, at: str) -> None:
        _require(isinstance(value, list) and bool(_list(value)), at, "is a list of at least one")
        self._parts += len(_list(value))
        _require(self._parts <= MOST_PARTS, at, f"a schema has at most {MOST_PARTS} parts")


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value)


def _require(holds: bool, at: str, what: str) -> None:
    if not holds:
        raise _unclear(at, what)


def _unclear(at: str, what: str) -> EINVAL:
    return EINVAL("type.schema", f"{at[:200]}: {what}")


def _require_no_circle(whole: Schema) -> None:
    """A schema that is itself, without anything in between, says nothing and is never done."""
    defs: Mapping[str, Any] = whole.get("$defs", {})
    for name in defs:
        seen: set[str] = set()
        line = [name]
        while line:
            one = line.pop()
            if one in seen:
                continue
            seen.add(one)
            for other in _same_value(defs[one]):
                if other == name:
                    raise _unclear(f"$.$defs.{name}", "is defined by itself alone")
                line.append(other)


def _same_value(schema: Any) -> list[str]:
    """The definitions that the very same value is held against."""
    if not isinstance(schema, Mapping):
        return []
    one = cast("Schema", schema)
    found = [str(one["$ref"]).removeprefix(_DEFS)] if "$ref" in one else []
    for key in ("anyOf", "oneOf", "allOf"):
        found += [name for each in one.get(key, ()) for name in _same_value(each)]
    return found


# Holding a value against it.

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_encode_as_it_is = msgspec.msgpack.Encoder().encode


def canonical(value: Any) -> Raw:
    """Bytes that say this and nothing else. As they came they may say more than whoever decodes them sees: of a field
    that is there twice only the last counts, and their order spells something too."""
    try:
        return Raw(_encode(value))
    except TypeError:  # names that are no text, which no closed type has
        return Raw(_encode_as_it_is(value))


class _Misfit(Exception):
    def __init__(self, at: str, why: str) -> None:
        super().__init__(f"{at}: {why}")


def require_fit(name: str, schema: Schema, value: Any) -> None:
    """ETYPE says where, in the schema's own words: nothing of the value is told."""
    try:
        _Checker(schema.get("$defs", {})).hold(schema, value, "$")
    except _Misfit as misfit:
        raise ETYPE("type.value", f"this is no {name}: {misfit}", type=name) from None


class _Checker:
    def __init__(self, defs: Mapping[str, Any]) -> None:
        self._defs, self._steps = defs, 0
        self._words: dict[int, frozenset[Any]] = {}  # of an enum, by its identity

    def _step(self, at: str) -> None:
        self._steps += 1
        if self._steps > MOST_STEPS:
            self._steps = MOST_STEPS + 1
            raise _Misfit(at, "it takes too long to find out")

    def hold(self, schema: Any, value: Any, at: str) -> None:
        self._step(at)
        if schema is True:
            return
        if schema is False:
            raise _Misfit(at, "nothing may be here")
        if "$ref" in schema:
            self.hold(self._defs[schema["$ref"].removeprefix(_DEFS)], value, at)
        if "type" in schema:
            words = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            if not any(_IS[word](value) for word in words):
                raise _Misfit(at, f"must be {' or '.join(words)}")
        if "enum" in schema and self._key(value, at) not in self._among(schema["enum"], at):
            raise _Misfit(at, "is none of the values there are")
        if "const" in schema and self._key(value, at) != self._key(schema["const"], at):
            raise _Misfit(at, "is not the one value there is")
        if IDS in schema:
            raise _Misfit(at, f"the kernel holds no list {schema[IDS]!r}")
        self._alternatives(schema, value, at)
        if isinstance(value, str):
            _text(schema, value, at)
        elif _is_number(value):
            _number(schema, value, at)
        elif isinstance(value, list):
            self._items(schema, _list(value), at)
        elif isinstance(value, dict):
            self._fields(schema, cast("dict[Any, Any]", value), at)

    def _alternatives(self, schema: Schema, value: Any, at: str) -> None:
        for each in schema.get("allOf", ()):
            self.hold(each, value, at)
        if "anyOf" in schema and not any(self._fits(each, value, at) for each in schema["anyOf"]):
            raise _Misfit(at, "fits none of the types that it may have")
        if "oneOf" in schema and sum(self._fits(each, value, at) for each in schema["oneOf"]) != 1:
            raise _Misfit(at, "must fit exactly one of its types")

    def _fits(self, schema: Any, value: Any, at: str) -> bool:
        try:
            self.hold(schema, value, at)
        except _Misfit:
            if self._steps > MOST_STEPS:
                raise
            return False
        return True

    def _items(self, schema: Schema, value: list[Any], at: str) -> None:
        _counted(schema, "Items", len(value), at)
        first = schema.get("prefixItems", [])
        for number, (one, each) in enumerate(zip(first, value, strict=False)):
            self.hold(one, each, f"{at}[{number}]")
        if "items" in schema:
            for number, each in enumerate(value[len(first) :], len(first)):
                self.hold(schema["items"], each, f"{at}[{number}]")
        if schema.get("uniqueItems") and len({self._key(one, at) for one in value}) < len(value):
            raise _Misfit(at, "has something twice")

    def _fields(self, schema: Schema, value: dict[Any, Any], at: str) -> None:
        if not all(isinstance(name, str) for name in value):
            raise _Misfit(at, "has a field whose name is no text")
        _counted(schema, "Properties", len(value), at)
        known: Mapping[str, Any] = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in value:
                raise _Misfit(at, f"{name!r} is missing")
        for name, each in value.items():
            if "propertyNames" in schema:
                self.hold(schema["propertyNames"], name, f"{at} (a name)")
            if name in known:
                self.hold(known[name], each, f"{at}.{name}")
            elif schema.get("additionalProperties") is False:
                raise _Misfit(at, "has a field that is not among its own")
            elif "additionalProperties" in schema:
                self.hold(schema["additionalProperties"], each, f"{at} (a value)")

    def _among(self, words: list[Any], at: str) -> frozenset[Any]:
        found = self._words.get(id(words))
        if found is None:
            found = self._words[id(words)] = frozenset(self._key(one, at) for one in words)
        return found

    def _key(self, value: Any, at: str) -> Any:
        """What is equal where values are, and not as Python has it: there, true is one. Every part of it is a step."""
        self._step(at)
        if isinstance(value, dict):
            fields = cast("dict[Any, Any]", value).items()
            return frozenset((self._key(name, at), self._key(each, at)) for name, each in fields)
        if isinstance(value, list):
            return tuple(self._key(one, at) for one in _list(value))
        return type(value).__name__, value if isinstance(value, str | bytes | int) else repr(value)


def _text(schema: Schema, value: str, at: str) -> None:
    _counted(schema, "Length", len(value), at)
    if "format" in schema:
        try:
            fits = _FORMATS[schema["format"]](value)
        except ValueError:
            fits = False
        if not fits:
            raise _Misfit(at, f"is no {schema['format']}")


def _number(schema: Schema, value: Any, at: str) -> None:
    fits = (
        schema.get("minimum", value) <= value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and ("exclusiveMaximum" not in schema or value < schema["exclusiveMaximum"])
        and ("multipleOf" not in schema or value % schema["multipleOf"] == 0)
    )
    if not fits:
        raise _Misfit(at, "is a number outside its bounds")


def _counted(schema: Schema, what: str, count: int, at: str) -> None:
    if not schema.get(f"min{what}", 0) <= count <= schema.get(f"max{what}", count):
        raise _Misfit(at, "is longer or shorter than it may be")


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


_IS: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": _is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}
