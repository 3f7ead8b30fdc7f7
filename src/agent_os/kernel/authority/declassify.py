"""Typed declassification: when a message from a tainted agent leaves its receiver clean.

Only what has no room for a text may cross: booleans, bounded numbers, dates, one of at most 256 words, ids that the
kernel holds a list of, and short lists and records of these. In: the registered schema, the value, the rules of the
policy. Out: whether this crossing is one, or ETYPE for a value that is not what its type says. Free text never crosses.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from typing import Any, Protocol, cast

from msgspec import Struct

from agent_os.abi.errors import EAGAIN, ETYPE
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import CLEAN, Label, Labels

MOST_WORDS = 256
MOST_ITEMS = 256  # values in one message, over all its lists
IDS = "x-ids"  # in a schema: the name of a list that the kernel holds
_NUMBERS = ("integer", "number")
_LARGEST = 1 << 53  # a whole number without a bound could spell out a text
_RATE = (60, 60.0)  # crossings in seconds, where a rule names none
_ABOUT = frozenset({"title", "description", "$schema", "$id", "deprecated"})  # says nothing of values
_KEYS = {
    "boolean": frozenset({"type"}),
    "integer": frozenset({"type", "minimum", "maximum"}),
    "number": frozenset({"type", "minimum", "maximum"}),
    "string": frozenset({"type", "format"}),
    "array": frozenset({"type", "items", "maxItems", "minItems"}),
    "object": frozenset({"type", "properties", "required", "additionalProperties"}),
}
Schema = Mapping[str, Any]
Ids = Mapping[str, Collection[str]]  # the lists of ids that the kernel holds


def open_part(schema: Any) -> str:
    """Where a schema leaves room for a text, with the reason; empty if it is closed everywhere."""
    try:
        return "" if _room(schema, "$") <= MOST_ITEMS else f"$: more than {MOST_ITEMS} values in one message"
    except _Open as found:
        return str(found)


class _Open(Exception):
    pass


def _room(schema: Any, at: str) -> int:
    """How many closed values it holds at most, one at least: how many empty ones a list has is a value too. A keyword
    that is not known here could mean anything: not closed."""
    if not isinstance(schema, Mapping):
        raise _Open(f"{at}: anything fits")
    one = {str(key): value for key, value in cast("Mapping[Any, Any]", schema).items() if key not in _ABOUT}
    if "enum" in one or "const" in one:
        return _words(one, at)
    if IDS in one:
        _only(one, frozenset({IDS, "type"}), at)
        return 1
    kind = one.get("type")
    if not isinstance(kind, str) or kind not in _KEYS:
        raise _Open(f"{at}: its type is not one that is closed")
    _only(one, _KEYS[kind], at)
    if kind in _NUMBERS and not all(_is_number(bound) and abs(bound) <= _LARGEST for bound in _bounds(one)):
        raise _Open(f"{at}: a number needs a minimum and a maximum, neither beyond 2^53")
    if kind == "string" and one.get("format") != "date":
        raise _Open(f"{at}: free text")
    if kind == "array":
        return _items(one, at)
    return _fields(one, at) if kind == "object" else 1


def _bounds(one: Mapping[str, Any]) -> tuple[Any, Any]:
    return one.get("minimum"), one.get("maximum")


def _words(one: Mapping[str, Any], at: str) -> int:
    _only(one, frozenset({"enum", "const", "type"}), at)
    words = one["enum"] if "enum" in one else [one["const"]]
    if not isinstance(words, list) or not 1 <= len(cast("list[Any]", words)) <= MOST_WORDS:
        raise _Open(f"{at}: an enum has 1 to {MOST_WORDS} values")
    if not all(isinstance(word, str | int | bool) for word in cast("list[Any]", words)):
        raise _Open(f"{at}: an enum is of words and whole numbers")
    return 1


def _items(one: Mapping[str, Any], at: str) -> int:
    most = one.get("maxItems")
    if not isinstance(most, int) or isinstance(most, bool) or most < 0:
        raise _Open(f"{at}: a list needs maxItems")
    return max(1, most * _room(one.get("items"), f"{at}[]"))


def _fields(one: Mapping[str, Any], at: str) -> int:
    fields = one.get("properties", {})
    if one.get("additionalProperties") is not False or not isinstance(fields, Mapping):
        raise _Open(f"{at}: additionalProperties must be false")
    named = cast("Mapping[str, Any]", fields).items()
    return max(1, sum(_room(each, f"{at}.{name}") for name, each in named))


def _only(one: Mapping[str, Any], known: frozenset[str], at: str) -> None:
    if more := sorted(set(one) - known):
        raise _Open(f"{at}: {more[0]!r} is not understood in a closed type")


def require_fit(schema: Schema, value: Any, ids: Ids) -> None:
    """ETYPE names the place where a value is not what its closed type says."""
    if not _fits(schema, value, ids):
        raise ETYPE("declassify.value", "the message does not fit its closed type; nothing of it was delivered")


def _fits(schema: Any, value: Any, ids: Ids) -> bool:
    if "enum" in schema:
        return any(type(word) is type(value) and word == value for word in schema["enum"])
    if "const" in schema:
        return type(schema["const"]) is type(value) and schema["const"] == value
    if IDS in schema:
        return isinstance(value, str) and value in ids.get(schema[IDS], ())
    return _FITS[schema["type"]](schema, value, ids)


def _is_number(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


def _is_bounded(schema: Any, value: Any, ids: Ids) -> bool:
    whole = schema["type"] == "number" or isinstance(value, int)
    return _is_number(value) and whole and schema["minimum"] <= value <= schema["maximum"]


def _is_date(schema: Any, value: Any, ids: Ids) -> bool:
    try:
        return isinstance(value, str) and date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_list(schema: Any, value: Any, ids: Ids) -> bool:
    if not isinstance(value, list) or not schema.get("minItems", 0) <= len(cast("list[Any]", value)):
        return False
    each = cast("list[Any]", value)
    return len(each) <= schema["maxItems"] and all(_fits(schema["items"], one, ids) for one in each)


def _is_record(schema: Any, value: Any, ids: Ids) -> bool:
    if not isinstance(value, dict):
        return False
    fields, known = cast("dict[str, Any]", value), schema.get("properties", {})
    named = set(fields) <= set(known) and set(schema.get("required", ())) <= set(fields)
    return named and all(_fits(known[name], one, ids) for name, one in fields.items())


_FITS: Mapping[str, Callable[[Any, Any, Ids], bool]] = {
    "boolean": lambda schema, value, ids: isinstance(value, bool),
    "integer": _is_bounded,
    "number": _is_bounded,
    "string": _is_date,
    "array": _is_list,
    "object": _is_record,
}


# Who may.


class Whom(Protocol):
    def covers(self, name: str, role: str) -> bool: ...


class Rate(Protocol):
    @property
    def count(self) -> int: ...

    @property
    def seconds(self) -> float: ...


class DeclassifyRule(Protocol):
    """`[[declassify]]`: messages of this type between these two."""

    @property
    def sender(self) -> Whom: ...

    @property
    def receiver(self) -> Whom: ...

    @property
    def type(self) -> str: ...

    @property
    def rate(self) -> Rate | None: ...


Parties = Sequence[tuple[str, str]]  # an agent's name and role, and those of all above it


class Crossings:
    """Decides each message of a typed pipe, and how many cross."""

    def __init__(self, rules: Callable[[], Sequence[DeclassifyRule]], clock: Callable[[], float]) -> None:
        self._rules, self._clock = rules, clock
        self._bucket: dict[tuple[str, str, str], tuple[float, float]] = {}  # crossings left, as of when

    def crosses(self, sender: Parties, receiver: Parties, kind: str, schema: Schema, value: Any, ids: Ids) -> bool:
        """True: the receiver's label is not joined, and the crossing is to be recorded. False: a message like any
        other. ETYPE: not what its type says. EAGAIN: too many, so that bits cannot be sent one by one for ever."""
        rule = self._named(sender, receiver, kind)
        if rule is None or open_part(schema):
            return False
        require_fit(schema, value, ids)
        count, seconds = (rule.rate.count, rule.rate.seconds) if rule.rate else _RATE
        self._take((sender[0][0], receiver[0][0], kind), count, seconds)
        return True

    def _named(self, sender: Parties, receiver: Parties, kind: str) -> DeclassifyRule | None:
        fitting = (one for one in self._rules() if one.type == kind and _is_about(one.sender, sender))
        return next((one for one in fitting if _is_about(one.receiver, receiver)), None)

    def _take(self, pair: tuple[str, str, str], count: int, seconds: float) -> None:
        now = self._clock()
        left, since = self._bucket.get(pair, (float(count), now))
        left = min(float(count), left + (now - since) * count / seconds)
        if left < 1:
            wait = max(1, math.ceil((1 - left) * seconds / count * 1000))
            reason = (
                f"{count} declassified messages of {pair[2]} in {seconds:g} s are allowed from {pair[0]} to {pair[1]}"
            )
            raise EAGAIN("declassify.rate", reason, retry_after_ms=wait)
        self._bucket[pair] = (left - 1, now)


def _is_about(whom: Whom, parties: Parties) -> bool:
    """A child chooses its own name and role, so who may send what it carries away must be its family's as well."""
    return all(whom.covers(name, role) for name, role in parties)


# What a message brings.


class Agent(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def parties(self) -> Parties: ...


class Received(Struct, frozen=True):
    """For the entry that tells of the delivery."""

    label: Label  # what the message brought
    crossed: bool  # without what its sender carries
    puts: Sequence[Put]


class Border:
    """Where a message reaches its receiver, whichever way it went: the one place that joins the two labels."""

    def __init__(self, labels: Labels, crossings: Crossings) -> None:
        self._labels, self._crossings = labels, crossings

    def receive(self, sender: Agent, receiver: Agent) -> Received:
        """A message like any other: it carries what its sender carries."""
        return self._joined(self._labels.of(sender.id), receiver)

    def receive_typed(
        self, sender: Agent, receiver: Agent, kind: str, schema: Schema, value: Any, ids: Ids
    ) -> Received:
        """One of a typed pipe. ETYPE, EAGAIN: nothing of it may be delivered."""
        label = self._labels.of(sender.id)
        if label is CLEAN:  # there is nothing to leave behind
            return Received(CLEAN, False, ())
        if self._crossings.crosses(sender.parties, receiver.parties, kind, schema, value, ids):
            return Received(CLEAN, True, ())
        return self._joined(label, receiver)

    def crosses(self, sender: Parties, receiver: Parties, kind: str, schema: Schema, value: Any) -> bool:
        """The same for one whose label travels with it. The kernel holds no lists of ids for pipes."""
        return self._crossings.crosses(sender, receiver, kind, schema, value, {})

    def _joined(self, label: Label, receiver: Agent) -> Received:
        return Received(label, False, self._labels.take_in(receiver.id, label))
