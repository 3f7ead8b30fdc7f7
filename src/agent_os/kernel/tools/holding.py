"""Holding one value against one schema that `schema.py` has understood.

In: the schema, its references and patterns, a value. Out: misfits with the place of each, or `TooMuch` where it takes
more steps than the kernel has. Every part of the work that a stranger can multiply is a step. Pure.
"""

import math
from collections.abc import Callable, Mapping, Sized
from typing import Any, cast

from msgspec import Struct, field

from agent_os.kernel.supervisor.regex import Regex

MOST_STEPS = 50_000  # about a tenth of a second
DEEPEST = 100  # schemas within schemas, references counted
MOST_MISFITS = 8  # told of
LONGEST_MATCHED = 4096  # characters that are held against a pattern
_LONGEST_SHOWN = 60
_LARGEST_WHOLE = 1 << 200  # beyond it nothing is taken for a number: to divide and to print it takes long
_COMBINING = frozenset({"allOf", "anyOf", "oneOf", "not", "if"})
_WORK_OF_A_MATCH = 4  # so many steps of a pattern are one of ours
_PARTS_OF_A_STEP = 16  # of an object or list, which are all passed by
_TEXT_OF_A_STEP = 1024  # characters that are copied
At = tuple[str | int, ...]


class TooMuch(Exception):
    """It cannot be found out in reasonable time."""


class Misfit(Struct, frozen=True):
    at: At
    expected: str
    value: Any

    @property
    def pointer(self) -> str:
        return "".join(f"/{str(one).replace('~', '~0').replace('/', '~1')}" for one in self.at)

    def told(self, tell: bool) -> dict[str, str]:
        return {"pointer": self.pointer, "expected": self.expected, "got": shown(self.value, tell)}


def shown(value: Any, tell: bool) -> str:
    """What came, in a few words; without `tell` its type alone."""
    kind = kind_of(value)
    if isinstance(value, dict | list | bytes):
        return f"{kind} of {len(cast('list[Any]', value))}"
    if not tell or (not isinstance(value, str | bool) and not is_number(value)):
        return kind
    text = repr(value) if not isinstance(value, str) else repr(value[: _LONGEST_SHOWN + 1])
    return f"{kind} {text}" if len(text) <= _LONGEST_SHOWN else f"{kind} {text[: _LONGEST_SHOWN - 1]}…"


class Seen(Struct):
    """What of a value some part has looked at and taken."""

    names: set[str] = field(default_factory=set[str])
    first: int = 0  # so many items from the beginning
    items: set[int] = field(default_factory=set[int])

    def add(self, other: "Seen") -> None:
        self.names |= other.names
        self.first = max(self.first, other.first)
        self.items |= other.items


class _Unseen(Seen):
    """Where nothing asks what was looked at, which is nearly everywhere."""

    def add(self, other: Seen) -> None: ...


_UNSEEN = _Unseen()
Found = list[Misfit]
Words = Mapping[str, Any]


class Holding:
    """One value's check."""

    def __init__(self, refs: Mapping[str, Any], patterns: Mapping[str, Regex | None], tracks: bool) -> None:
        self._refs, self._patterns, self._tracks = refs, patterns, tracks
        self._steps = 0

    def hold(self, schema: Any, value: Any, at: At, found: Found, depth: int = 0) -> Seen:
        """Adds what does not fit to `found`; gives what was looked at."""
        self._steps += 1 + (len(cast("Sized", value)) // _PARTS_OF_A_STEP if isinstance(value, dict | list) else 0)
        if depth > DEEPEST or self._steps > MOST_STEPS:
            self._work(0)
            raise TooMuch(f"it is more than {DEEPEST} deep")
        seen = Seen() if self._tracks else _UNSEEN
        if schema is False:
            found.append(Misfit(at, "nothing here", value))
        if schema is False or schema is True or len(found) >= MOST_MISFITS:
            return seen
        if "$ref" in schema:
            seen.add(self.hold(self._refs[schema["$ref"]], value, at, found, depth + 1))
        if "$dynamicRef" in schema:
            seen.add(self.hold(self._refs[schema["$dynamicRef"]], value, at, found, depth + 1))
        if not self._plain(schema, value, at, found):
            return seen
        if not _COMBINING.isdisjoint(schema):
            self._combined(schema, value, at, found, depth, seen)
        if isinstance(value, dict):
            self._fields(schema, cast("dict[Any, Any]", value), at, found, depth, seen)
        elif isinstance(value, list):
            self._items(schema, cast("list[Any]", value), at, found, depth, seen)
        elif isinstance(value, str):
            self._text(schema, value, at, found)
        elif isinstance(value, bytes):
            _counted(schema, "Length", len(value), "bytes", at, found, value)
        elif is_number(value):
            _number(schema, value, at, found)
        return seen

    def _work(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MOST_STEPS:
            raise TooMuch(f"it takes more than {MOST_STEPS:,} steps")

    def _plain(self, schema: Words, value: Any, at: At, found: Found) -> bool:
        """False: it is something else altogether, and nothing more is said of it."""
        if "type" in schema:
            kinds = schema["type"]
            if not (TYPES[kinds](value) if isinstance(kinds, str) else any(TYPES[one](value) for one in kinds)):
                words = [kinds] if isinstance(kinds, str) else list[str](kinds)
                if not (isinstance(value, bytes) and "string" in words and "contentEncoding" in schema):
                    found.append(Misfit(at, " or ".join(words), value))
                    return False
        if "enum" in schema:
            choices: list[Any] = schema["enum"]
            self._work(len(choices))
            if not any(is_same(one, value, self._work) for one in choices):
                found.append(Misfit(at, f"one of {_listed(choices)}", value))
        if "const" in schema and not is_same(schema["const"], value, self._work):
            found.append(Misfit(at, _listed([schema["const"]]), value))
        return True

    def _combined(self, schema: Words, value: Any, at: At, found: Found, depth: int, seen: Seen) -> None:
        for one in schema.get("allOf", ()):
            seen.add(self.hold(one, value, at, found, depth + 1))
        if "anyOf" in schema:
            self._any(schema["anyOf"], value, at, found, depth, seen)
        if "oneOf" in schema:
            tried = [self._tried(one, value, at, depth) for one in schema["oneOf"]]
            fitting = [one for one in tried if one is not None]
            if len(fitting) == 1:
                seen.add(fitting[0])
            else:
                expected = f"exactly one of {len(schema['oneOf'])} forms, and {len(fitting) or 'none'} fit"
                found.append(Misfit(at, expected, value))
        if "not" in schema and self._tried(schema["not"], value, at, depth) is not None:
            found.append(Misfit(at, "something else", value))
        if "if" in schema:
            seen_by = self._tried(schema["if"], value, at, depth)
            if seen_by is not None:
                seen.add(seen_by)
            branch = "then" if seen_by is not None else "else"
            if branch in schema:
                seen.add(self.hold(schema[branch], value, at, found, depth + 1))

    def _any(self, forms: list[Any], value: Any, at: At, found: Found, depth: int, seen: Seen) -> None:
        nearest: Found = []
        wanted: dict[str, None] = {}
        fits = False
        for one in forms:
            mine: Found = []
            seen_by = self.hold(one, value, at, mine, depth + 1)
            if mine:
                wanted[mine[0].expected] = None
                nearest = nearest if nearest and len(nearest[0].at) >= len(mine[0].at) else mine
                continue
            fits = True
            seen.add(seen_by)
            if not self._tracks:
                return
        if fits:
            return
        if len(nearest[0].at) > len(at):  # one of them was meant, it seems
            found += nearest
        else:
            found.append(Misfit(at, " or ".join(wanted)[:300], value))

    def _tried(self, schema: Any, value: Any, at: At, depth: int) -> Seen | None:
        found: Found = []
        seen = self.hold(schema, value, at, found, depth + 1)
        return None if found else seen

    # Objects.

    def _fields(self, schema: Words, value: dict[Any, Any], at: At, found: Found, depth: int, seen: Seen) -> None:
        if not all(isinstance(name, str) for name in value):
            found.append(Misfit(at, "an object whose names are texts", value))
            return
        _counted(schema, "Properties", len(value), "properties", at, found, value)
        self._required(schema, value, at, found)
        known: Words = schema.get("properties", {})
        mine: set[str] = set()
        simple = "propertyNames" not in schema and "patternProperties" not in schema
        for name, one in value.items():
            if simple:
                if name in known:
                    self.hold(known[name], one, (*at, name), found, depth + 1)
                    mine.add(name)
            elif self._field(schema, known, name, one, (*at, name), found, depth):
                mine.add(name)
        for name, more in schema.get("dependentSchemas", {}).items():
            if name in value:
                seen.add(self.hold(more, value, at, found, depth + 1))
        if "additionalProperties" in schema:
            others = [name for name in value if name not in mine]
            self._unknown(schema["additionalProperties"], known, others, value, at, found, depth)
            mine = set(value) if self._tracks else mine
        if self._tracks:
            seen.names |= mine
        if "unevaluatedProperties" in schema:
            others = [name for name in value if name not in seen.names]
            self._unknown(schema["unevaluatedProperties"], known, others, value, at, found, depth)
            seen.names |= value.keys()

    def _required(self, schema: Words, value: dict[str, Any], at: At, found: Found) -> None:
        for name in schema.get("required", ()):
            self._work(1)
            if name not in value and len(found) < MOST_MISFITS:
                found.append(Misfit((*at, name), "a value, which is required", _ABSENT))
        for name, others in schema.get("dependentRequired", {}).items():
            if name in value:
                self._work(len(others))
                absent = (one for one in others if one not in value)
                found += [Misfit((*at, one), f"a value, which {name!r} requires", _ABSENT) for one in absent]

    def _field(
        self, schema: Words, known: Words, name: str, one: Any, at: At, found: Found, depth: int
    ) -> bool:  # whether something says what it is
        if "propertyNames" in schema and self._tried(schema["propertyNames"], name, at, depth) is None:
            found.append(Misfit(at, "another name", name))
        told = name in known
        if told:
            self.hold(known[name], one, at, found, depth + 1)
        for text, more in schema.get("patternProperties", {}).items():
            self._work(1)
            matches = self._matches(text, name)
            told = told or matches is not False  # what nobody can tell is let be
            if matches:
                self.hold(more, one, at, found, depth + 1)
        return told

    def _unknown(
        self, schema: Any, known: Words, names: list[str], value: dict[str, Any], at: At, found: Found, depth: int
    ) -> None:
        for name in names:
            if len(found) >= MOST_MISFITS:
                return
            if schema is False:
                there = f"only {', '.join(list(known)[:20])}" if known else "no property"
                found.append(Misfit((*at, name), f"{there} here", value[name]))
            else:
                self.hold(schema, value[name], (*at, name), found, depth + 1)

    # Lists.

    def _items(self, schema: Words, value: list[Any], at: At, found: Found, depth: int, seen: Seen) -> None:
        _counted(schema, "Items", len(value), "items", at, found, value)
        if schema.get("uniqueItems"):
            self._unique(value, at, found)
        rest = schema.get("items")
        first: list[Any] = schema.get("prefixItems", [])
        if isinstance(rest, list):  # as drafts before 2020 have it
            first, rest = cast("list[Any]", rest), schema.get("additionalItems")
        for number, (one, each) in enumerate(zip(first, value, strict=False)):
            self.hold(one, each, (*at, number), found, depth + 1)
        if self._tracks:
            seen.first = len(value) if rest is not None else max(seen.first, min(len(first), len(value)))
        if rest is not None:
            for number in range(len(first), len(value)):
                self.hold(rest, value[number], (*at, number), found, depth + 1)
        if "contains" in schema:
            self._contains(schema, value, at, found, depth, seen)
        if "unevaluatedItems" in schema:
            for number in range(seen.first, len(value)):
                if number not in seen.items:
                    self.hold(schema["unevaluatedItems"], value[number], (*at, number), found, depth + 1)
            seen.first = len(value)

    def _contains(self, schema: Words, value: list[Any], at: At, found: Found, depth: int, seen: Seen) -> None:
        fitting = {
            number
            for number, one in enumerate(value)
            if self._tried(schema["contains"], one, (*at, number), depth) is not None
        }
        if self._tracks:
            seen.items |= fitting
        least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
        if not least <= len(fitting) <= most:
            found.append(Misfit(at, f"{least} to {most} items of a kind that {len(fitting)} are", value))

    def _unique(self, value: list[Any], at: At, found: Found) -> None:
        known: set[str] = set()
        for number, one in enumerate(value):
            key = self._key(one)
            if key in known:
                found.append(Misfit((*at, number), "something that is not there already", one))
                return
            known.add(key)

    def _key(self, value: Any, depth: int = 0) -> str:
        """The same text for the same value, as JSON counts it: 1 is 1.0 and not true."""
        self._work(1)
        if depth > DEEPEST:
            raise TooMuch(f"it is more than {DEEPEST} deep")
        if isinstance(value, list):
            return f"[{','.join(self._key(one, depth + 1) for one in cast('list[Any]', value))}]"
        if isinstance(value, dict):
            fields = cast("dict[Any, Any]", value).items()
            return f"{{{','.join(sorted(f'{name!r}:{self._key(one, depth + 1)}' for name, one in fields))}}}"
        if isinstance(value, float) and value.is_integer():
            return repr(int(value))
        text = repr(value)
        self._work(len(text) // _TEXT_OF_A_STEP)
        return text

    # Texts.

    def _text(self, schema: Words, value: str, at: At, found: Found) -> None:
        _counted(schema, "Length", len(value), "characters", at, found, value)
        if "pattern" not in schema:
            return
        matches = self._matches(schema["pattern"], value)
        if matches is False:
            found.append(Misfit(at, f"a text that matches {schema['pattern'][:100]}", value))

    def _matches(self, pattern: str, text: str) -> bool | None:
        """None: nobody here can tell."""
        regex = self._patterns[pattern]
        if regex is None:
            return None
        if len(text) > LONGEST_MATCHED:
            raise TooMuch(f"a text of {len(text)} characters is too long for a pattern, which takes {LONGEST_MATCHED}")
        before = regex.steps
        matches = regex.found_in(text)
        self._work((regex.steps - before) // _WORK_OF_A_MATCH + 1)
        return matches


# Numbers, counts and what is the same.


def _number(schema: Words, value: Any, at: At, found: Found) -> None:
    for word, fits, told in _BOUNDS:
        if word in schema and not fits(value, schema[word]):
            found.append(Misfit(at, f"a number {told} {schema[word]}", value))


def _is_multiple(value: Any, of: Any) -> bool:
    if abs(value) > _LARGEST_WHOLE:  # a float
        return False
    from fractions import Fraction

    return (Fraction(str(value)) / Fraction(str(of))).denominator == 1


_BOUNDS: tuple[tuple[str, Callable[[Any, Any], bool], str], ...] = (
    ("minimum", lambda value, bound: value >= bound, "of at least"),
    ("maximum", lambda value, bound: value <= bound, "of at most"),
    ("exclusiveMinimum", lambda value, bound: value > bound, "above"),
    ("exclusiveMaximum", lambda value, bound: value < bound, "below"),
    ("multipleOf", _is_multiple, "that is a multiple of"),
)


def _counted(schema: Words, what: str, count: int, told: str, at: At, found: Found, value: Any) -> None:
    least, most = schema.get("min" + what, 0), schema.get("max" + what, count)
    if count < least:
        found.append(Misfit(at, f"at least {least:g} {told}", value))
    elif count > most:
        found.append(Misfit(at, f"at most {most:g} {told}", value))


def is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_WHOLE


def is_count(value: Any) -> bool:
    return is_number(value) and value >= 0 and value == int(value)


def is_same(one: Any, other: Any, work: Callable[[int], None]) -> bool:
    """As JSON has it: 1 is 1.0 and not true. `work` is told of the parts that are compared."""
    if isinstance(one, dict) and isinstance(other, dict):
        mine, theirs = cast("dict[Any, Any]", one), cast("dict[Any, Any]", other)
        if len(mine) != len(theirs):
            return False
        work(len(mine))
        return mine.keys() == theirs.keys() and all(is_same(mine[name], theirs[name], work) for name in mine)
    if isinstance(one, list) and isinstance(other, list):
        mine, theirs = cast("list[Any]", one), cast("list[Any]", other)
        if len(mine) != len(theirs):
            return False
        work(len(mine))
        return all(is_same(*pair, work) for pair in zip(mine, theirs, strict=True))
    if is_number(one) and is_number(other):
        return bool(one == other)
    return type(cast("object", one)) is type(cast("object", other)) and bool(one == other)


class _Absent:
    """What is not there."""


_ABSENT = _Absent()
_KINDS = {
    bool: "boolean",
    str: "string",
    list: "array",
    dict: "object",
    bytes: "bytes",
    int: "integer",
    float: "number",
}
TYPES: Mapping[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: is_number(value) and (isinstance(value, int) or value.is_integer()),
    "number": is_number,
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
}


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    return "nothing" if value is _ABSENT else _KINDS.get(cast("type[Any]", type(value)), "something else")


def _short(choice: Any) -> str:
    if isinstance(choice, dict | list):
        return f"{kind_of(choice)} of {len(cast('list[Any]', choice))}"
    return repr(choice[:40] if isinstance(choice, str) else choice)[:40]


def _listed(choices: list[Any]) -> str:
    some = ", ".join(map(_short, choices[:10]))
    return some if len(choices) <= 10 else f"{some} and {len(choices) - 10} more"
