"""JSON Schema 2020-12 for tools: understood once when one is registered, then parameters and results are held to it.

In: a schema that somebody wrote, perhaps a stranger, and values. Out: EINVAL for what cannot be understood, ETYPE with
a JSON pointer, what was expected and what came instead. Both sides may be hostile and the kernel has one thread, so all
of it is bounded: parts and depth of a schema, steps and depth of a check. Patterns are matched in linear time, and a
reference leads to another part of the same schema: nothing is ever fetched.

Why not a library: the usual one compiles patterns with Python's own matcher, prints whole values into its messages and
compares lists in quadratic time, none of which can be bounded from outside; the tests use it to compare answers.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast
from urllib.parse import unquote

import msgspec

from agent_os.abi.errors import EINVAL, ETYPE, AgentOSError
from agent_os.kernel.supervisor.regex import Regex
from agent_os.kernel.tools.holding import MOST_MISFITS, TYPES, Holding, Misfit, TooMuch, is_count, is_number

LARGEST = 256 << 10  # bytes of a schema
MOST_PARTS = 5000
MOST_DEEP = 48
MOST_PATTERNS = 200
MOST_OF_PATTERNS = 4096  # characters of all of them, which are made ready one by one
_DRAFTS = re.compile(r"https?://json-schema\.org/(draft/2020-12|draft/2019-09|draft-07|draft-06)/schema#?")
_ABOUT = frozenset(
    "title description default examples deprecated readOnly writeOnly $comment $schema $id $anchor $dynamicAnchor "
    "$vocabulary contentEncoding contentMediaType contentSchema format".split()
)
_SCHEMAS = frozenset(
    "not if then else contains additionalProperties propertyNames unevaluatedItems unevaluatedProperties "
    "additionalItems".split()
)
_LISTS = frozenset("allOf anyOf oneOf prefixItems".split())
_MAPS = frozenset("properties patternProperties dependentSchemas $defs definitions".split())
_COUNTS = frozenset("minItems maxItems minLength maxLength minProperties maxProperties minContains maxContains".split())
_NUMBERS = frozenset("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split())
_CLOSED = ("additionalProperties", "unevaluatedProperties", "patternProperties")
_canonical = msgspec.json.Encoder(order="deterministic").encode


class Schema:
    """A schema that was understood. `unchecked` names what a stranger's says that nobody here holds values to."""

    def __init__(self, written: Any, *, foreign: bool = False, closed: bool = False) -> None:
        """`foreign`: words and patterns that are not known here are let be, and named. `closed`: parameters that it
        does not know are refused, unless it says itself what becomes of those."""
        _require(isinstance(written, Mapping | bool), (), "a schema is a map, true or false")
        size = len(_encoded(written))
        _require(size <= LARGEST, (), f"has {size} bytes of at most {LARGEST}")
        self.written: Any = written
        self.refs: dict[str, Any] = {}
        self.patterns: dict[str, Regex | None] = {}
        self.tracks = False  # something in it is about what nothing else has looked at
        self.unchecked: list[str] = []
        self._anchors: dict[str, Any] = {}
        self._wanted: dict[str, tuple[str, ...]] = {}
        self._foreign, self._parts = foreign, 0
        self._known: set[int] = set()  # parts that were read; a reference may lead to one
        self._read(written, ())
        self._resolve()
        if closed and isinstance(written, Mapping):
            self.written = _closed(cast("dict[str, Any]", written))
            self.tracks = self.tracks or "unevaluatedProperties" in self.written

    def require(self, value: Any, what: str, *, ran: bool, tell: bool = True) -> None:
        """ETYPE says where a value does not fit. Without `tell` nothing of the value is in it. `ran`: something has
        happened by now."""
        misfits, bound = self._misfits(value)
        if bound:
            raise ETYPE("tool.check", f"{what} cannot be checked: {bound}", pointer="", ran=ran)
        if not misfits:
            return
        first = misfits[0]
        told = [one.told(tell) for one in misfits[:MOST_MISFITS]]
        where = first.pointer or "the whole"
        reason = f"{what}: at {where} expected {first.expected}, got {told[0]['got']}"
        if len(misfits) > 1:
            reason += f" (and {len(misfits) - 1} more)"
        detail: dict[str, Any] = {**told[0], "errors": told[1:]}
        raise ETYPE("tool.type", reason, ran=ran, **detail)

    def fits(self, value: Any) -> bool:
        misfits, bound = self._misfits(value)
        return not misfits and not bound

    def _misfits(self, value: Any) -> tuple[list[Misfit], str]:
        found: list[Misfit] = []
        try:
            Holding(self.refs, self.patterns, self.tracks).hold(self.written, value, (), found)
        except TooMuch as problem:
            return found, "" if found else str(problem)
        except RecursionError:
            return found, "it is too deep"
        return found, ""

    # Understanding it.

    def _read(self, schema: Any, at: tuple[str, ...]) -> None:
        self._parts += 1
        _require(self._parts <= MOST_PARTS, at, f"a schema has at most {MOST_PARTS} parts")
        _require(len(at) <= 2 * MOST_DEEP, at, f"a schema is at most {MOST_DEEP} deep")
        if isinstance(schema, bool):
            return
        _require(isinstance(schema, Mapping), at, "must be a schema: a map, true or false")
        if id(schema) in self._known:
            return
        self._known.add(id(schema))
        words = cast("Mapping[Any, Any]", schema)
        _require(all(isinstance(word, str) for word in words), at, "has a word that is no text")
        if at and "$id" in words:
            raise _wrong(at, "has an $id of its own, so that references in it would mean something else")
        for word, value in words.items():
            self._word(word, value, (*at, word), words)

    def _word(self, word: str, value: Any, at: tuple[str, ...], around: Mapping[str, Any]) -> None:
        if word in _SCHEMAS or (word == "items" and not _is_list(value)):
            self._read(value, at)
            self.tracks = self.tracks or word.startswith("unevaluated")
        elif word in _LISTS or word == "items":
            _require(_is_list(value) and (bool(value) or word == "items"), at, "is a list of at least one")
            for number, one in enumerate(cast("list[Any]", value)):
                self._read(one, (*at, str(number)))
        elif word in _MAPS:
            _require(isinstance(value, Mapping), at, "is a map")
            for name, one in cast("Mapping[Any, Any]", value).items():
                _require(isinstance(name, str), at, "has names")
                self._read(one, (*at, name))
                if word == "patternProperties":
                    self._pattern(name, (*at, name))
        elif word == "pattern":
            _require(isinstance(value, str), at, "is a text")
            self._pattern(value, at)
        elif word in ("$ref", "$dynamicRef"):
            _require(isinstance(value, str), at, "is a text")
            self._wanted[value] = at
        elif word in _ABOUT:
            self._about(word, value, at, around)
        else:
            self._plain(word, value, at)

    def _plain(self, word: str, value: Any, at: tuple[str, ...]) -> None:
        """Words whose value is no schema."""
        if word == "type":
            words = cast("list[Any]", value if isinstance(value, list) else [value])
            _require(bool(words) and all(one in TYPES for one in words), at, f"is one of {', '.join(TYPES)}")
        elif word == "enum":
            _require(isinstance(value, list), at, "is a list")
            self._parts += len(cast("list[Any]", value))
            _require(self._parts <= MOST_PARTS, at, f"a schema has at most {MOST_PARTS} parts")
        elif word == "required":
            _require(_are_names(value), at, "is a list of names")
        elif word == "dependentRequired":
            fine = isinstance(value, Mapping) and all(map(_are_names, cast("Mapping[Any, Any]", value).values()))
            _require(fine, at, "is a map of lists of names")
        elif word == "uniqueItems":
            _require(isinstance(value, bool), at, "is true or false")
        elif word in _COUNTS:
            _require(is_count(value), at, "is a count")
        elif word in _NUMBERS:
            _require(is_number(value) and (word != "multipleOf" or value > 0), at, "is a number")
        elif word != "const":
            self._leave(at, "is not a word of JSON Schema 2020-12, and would not be checked")

    def _about(self, word: str, value: Any, at: tuple[str, ...], around: Mapping[str, Any]) -> None:
        if word == "$schema":
            known = isinstance(value, str) and bool(_DRAFTS.fullmatch(value))
            _require(known, at, "is not a draft that is known here", "https://json-schema.org/draft/2020-12/schema")
        elif word in ("$anchor", "$dynamicAnchor"):
            _require(isinstance(value, str), at, "is a text")
            _require(value not in self._anchors, at, "is there twice")
            self._anchors[value] = around

    def _pattern(self, text: str, at: tuple[str, ...]) -> None:
        if text in self.patterns:
            return
        _require(len(self.patterns) < MOST_PATTERNS, at, f"a schema has at most {MOST_PATTERNS} patterns")
        if sum(map(len, self.patterns)) + len(text) > MOST_OF_PATTERNS:
            self.patterns[text] = None
            self._leave(at, f"is too much: all patterns together have at most {MOST_OF_PATTERNS} characters")
            return
        try:
            self.patterns[text] = Regex(text)
        except AgentOSError as problem:
            self.patterns[text] = None
            self._leave(at, f"cannot be matched in linear time: {problem.reason}", problem.hint)

    def _leave(self, at: tuple[str, ...], why: str, hint: str = "") -> None:
        if not self._foreign:
            raise _wrong(at, why, hint)
        self.unchecked.append(_pointer(at))

    def _resolve(self) -> None:
        """Each reference once. What it leads to is a schema too, wherever it lies, and may lead on."""
        while self._wanted:
            ref, at = self._wanted.popitem()
            if ref not in self.refs:
                self.refs[ref] = self._target(ref, at)

    def _target(self, ref: str, at: tuple[str, ...]) -> Any:
        base = self.written.get("$id", "")
        inside = ref.removeprefix(base) if base and isinstance(base, str) else ref
        _require(inside.startswith("#"), at, "leads out of this schema; nothing is fetched", "write it below $defs")
        name = unquote(inside[1:])
        if name and not name.startswith("/"):
            _require(name in self._anchors, at, f"there is no anchor {name!r}")
            return self._anchors[name]
        node: Any = self.written
        for token in _tokens(name):
            if isinstance(node, Mapping) and token in node:
                node = cast("Mapping[str, Any]", node)[token]
            elif isinstance(node, list) and token.isdigit() and int(token) < len(cast("list[Any]", node)):
                node = cast("list[Any]", node)[int(token)]
            else:
                raise _wrong(at, f"there is nothing at {name!r}")
        self._read(node, tuple(_tokens(name))[:MOST_DEEP])  # it may lie below a word that is not known
        return node


def _closed(schema: dict[str, Any]) -> dict[str, Any]:
    if schema.get("type", "object") != "object" or any(word in schema for word in _CLOSED):
        return schema
    if any(word in schema for word in ("allOf", "anyOf", "oneOf", "if", "$ref", "dependentSchemas")):
        return schema | {"unevaluatedProperties": False}
    return schema | {"additionalProperties": False}


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in cast("list[Any]", value))


def _encoded(written: Any) -> bytes:
    try:
        return _canonical(written)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise EINVAL("tool.schema", f"a schema is what JSON can hold: {problem}") from None


def _tokens(pointer: str) -> Iterator[str]:
    return (token.replace("~1", "/").replace("~0", "~") for token in pointer.split("/")[1:])


def _pointer(at: tuple[str, ...]) -> str:
    return "".join(f"/{one.replace('~', '~0').replace('/', '~1')}" for one in at)[:200]


def _require(holds: bool, at: tuple[str, ...], what: str, hint: str = "") -> None:
    if not holds:
        raise _wrong(at, what, hint)


def _wrong(at: tuple[str, ...], what: str, hint: str = "") -> EINVAL:
    return EINVAL("tool.schema", f"the schema at {_pointer(at) or 'its top'} {what}", hint=hint, pointer=_pointer(at))
