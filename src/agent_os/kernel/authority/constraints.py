"""The constraints that a capability can carry, as a table: which kinds, how written, when narrower, when a call fits.

In: words of a text, values of a child and its parent, facts about a call. Out: values (hashable, in one unit), text, or
which row fails. What is spent over time (count, rate, max …) is kept by the handles; here are only its limits.

Facts a row reads: `port`, `scheme`, `tunnel`, `private` (the private address a name resolved to), `loopback` (the
endpoint of the host itself), `program` (every name of the resolved binary), `args`, `size`, `server_tools`.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple, cast

from msgspec import Struct

from agent_os.kernel.authority.patterns import KINDS, Flaw

LITERAL_STAR = "\0"  # a star that stands for itself, between decoding and reading; NUL itself is refused before
TOP_DEPTH, DEFAULT_DEPTH = 8, 3
Facts = Mapping[str, Any]
NO_FACTS: Facts = {}

_MOST = 10**15
_LENGTHS = ((1, "ms"), (1000, "s sec second"), (60_000, "m min minute"), (3_600_000, "h hour"), (86_400_000, "d day"))
_MS = {name: length for length, names in _LENGTHS for name in names.split()}
_BYTES = {"": 1, "B": 1, "kB": 1000} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, base in (("B", 1000), ("iB", 1024))
}
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)([A-Za-z]*)", re.ASCII)
_NUMBER = r"-?\d{1,18}(?:\.\d{1,9})?"
_RANGE = re.compile(rf"({_NUMBER})\.\.({_NUMBER})", re.ASCII)
_HALF_RANGE = re.compile(rf"{_NUMBER}\.\.|\.\.{_NUMBER}", re.ASCII)
_WORD = re.compile(r"[^\s\0*,|&?={}%]+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)


class Rate(NamedTuple):
    most: int
    per_ms: int


class Argument(NamedTuple):
    """What an argument of a tool may be: one of some literals, a number in a range, or text around a star."""

    literals: frozenset[str] | None = None
    range: tuple[Decimal, Decimal] | None = None
    glob: tuple[str, str] = ("", "")


class Row(Struct, frozen=True):
    kinds: frozenset[str]
    read: Callable[[Sequence[str], float], Any]  # words, and the time in seconds; raises a Flaw
    show: Callable[[Any], Sequence[str]]
    inside: Callable[[Any, Any], bool]  # child, parent
    default: Any = None  # what holds where it is not written; None: no limit
    fits: Callable[[Any, Facts], bool] | None = None  # a call; None: kept elsewhere


def _one(words: Sequence[str]) -> str:
    if len(words) != 1 or not words[0]:
        raise Flaw(0, "one value is needed here")
    return words[0]


def _whole(least: int, most: int) -> Callable[[Sequence[str], float], int]:
    def read(words: Sequence[str], now: float) -> int:
        text = _one(words)
        if not re.fullmatch(r"\d{1,16}", text, re.ASCII) or not least <= int(text) <= most:
            raise Flaw(0, f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return read


def _scaled(text: str, units: Mapping[str, int], what: str, hint: str) -> int:
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2] not in units or not Decimal(match[1]):
        raise Flaw(0, f"{text!r} is not {what}", hint)
    return max(1, int(Decimal(match[1]) * units[match[2]]))


def _duration(text: str) -> int:
    return _scaled(text, _MS, "a length of time above zero", "500ms, 30s, 5m, 1h or 2d")


def _read_duration(words: Sequence[str], now: float) -> int:
    return _duration(_one(words))


def _read_size(words: Sequence[str], now: float) -> int:
    return _scaled(_one(words), _BYTES, "a size above zero", "4096, 10kB, 10KiB, 1MB or 1GiB")


def _read_cost(words: Sequence[str], now: float) -> int:
    """In millionths, so that sums are exact."""
    text = _one(words)
    if not re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text, re.ASCII):
        raise Flaw(0, f"{text!r} is not an amount", "0.50 or 12")
    return int(Decimal(text) * 1_000_000)


def _read_rate(words: Sequence[str], now: float) -> Rate:
    text = _one(words)
    count, slash, per = text.partition("/")
    if not slash or not re.fullmatch(r"[1-9]\d{0,8}", count, re.ASCII):
        raise Flaw(0, f"{text!r} is not a rate", "100/min, 5/s or 3/10m")
    return Rate(int(count), _duration(per if per[:1].isdigit() else f"1{per}"))


def _read_expiry(words: Sequence[str], now: float) -> int:
    """Milliseconds since the epoch; a length of time counts from now."""
    text = _one(words)
    if _AMOUNT.fullmatch(text):
        when = int(now * 1000) + _duration(text)
        if when > _LATEST_MS:
            raise Flaw(0, f"{text!r} is too far away", "at the latest in the year 9999")
        return when
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Flaw(0, f"{text!r} is not a time", "2027-01-31T12:00:00Z, or 30m from now") from None
    if moment.tzinfo is None:
        raise Flaw(0, f"{text!r} has no time zone", f"{text}Z")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _show_expiry(value: int) -> list[str]:
    moment = _EPOCH + timedelta(milliseconds=value)
    return [moment.isoformat(timespec="milliseconds" if value % 1000 else "seconds").replace("+00:00", "Z")]


def _read_words(words: Sequence[str], now: float) -> frozenset[str]:
    for word in words:
        if not _WORD.fullmatch(word):
            raise Flaw(0, f"{word!r} is not a name", "a list of names, each at least one character")
    return frozenset(words)


def _read_schemes(words: Sequence[str], now: float) -> frozenset[str]:
    if unknown := sorted(set(words) - {"http", "https"}):
        raise Flaw(0, f"{unknown[0]!r} is not a scheme", "http or https")
    return frozenset(words)


def _read_ports(words: Sequence[str], now: float) -> frozenset[int]:
    read = _whole(1, 65535)
    return frozenset(read([word], now) for word in words)


def _read_networks(words: Sequence[str], now: float) -> frozenset[str]:
    try:
        return frozenset(str(ip_network(word)) for word in words)
    except ValueError as error:
        raise Flaw(0, f"not a network: {error}", "10.1.2.0/24") from None


def _networks_inside(child: frozenset[str], parent: frozenset[str]) -> bool:
    return all(any(_subnet(one, other) for other in parent) for one in child)


def _subnet(one: str, other: str) -> bool:
    small, large = ip_network(one), ip_network(other)
    return small.version == large.version and small.subnet_of(large)  # pyright: ignore[reportArgumentType]


def _in_networks(value: frozenset[str], facts: Facts) -> bool:
    address = facts.get("private")
    return address is None or any(ip_address(str(address)) in ip_network(one) for one in value)


def _is_address_in(value: frozenset[str], facts: Facts) -> bool:
    """Not a name, whatever it leads to: an address that is written as one."""
    address = facts.get("address")
    return address is not None and any(ip_address(str(address)) in ip_network(one) for one in value)


def _read_flag(words: Sequence[str], now: float) -> bool:
    text = _one(words)
    if text not in ("true", "false"):
        raise Flaw(0, f"{text!r} is neither true nor false")
    return text == "true"


def _read_endpoint(words: Sequence[str], now: float) -> str:
    text = _one(words)
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        address = None
    if address is None or not address.is_loopback or not re.fullmatch(r"[1-9]\d{0,4}", port) or int(port) > 65535:
        raise Flaw(0, f"{text!r} is not an endpoint of the host's loopback", "127.0.0.1:8080")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _read_argument(words: Sequence[str], now: float) -> Argument:
    if len(words) == 1 and (match := _RANGE.fullmatch(words[0])):
        low, high = Decimal(match[1]), Decimal(match[2])
        if low > high:
            raise Flaw(0, f"{words[0]!r} is empty: the lower end comes first")
        return Argument(range=(low, high))
    if any(_HALF_RANGE.fullmatch(word) for word in words):
        raise Flaw(0, "a range has two ends", "1..100")
    stars = sum(word.count("*") for word in words)
    if not stars:
        return Argument(frozenset(word.replace(LITERAL_STAR, "*") for word in words))
    if stars > 1 or len(words) > 1:
        raise Flaw(0, "one * in one text, or a list of literals", "/data/*, 1..100, or red|green")
    begin, _, end = words[0].partition("*")
    return Argument(glob=(begin.replace(LITERAL_STAR, "*"), end.replace(LITERAL_STAR, "*")))


def _show_argument(value: Argument) -> Sequence[str]:
    if value.range is not None:
        low, high = (f"{end.normalize():f}" if end else "0" for end in value.range)
        return [f"{low}..{high}"]
    if value.literals is not None:
        return sorted(one.replace("*", LITERAL_STAR) for one in value.literals)
    begin, end = (part.replace("*", LITERAL_STAR) for part in value.glob)
    return [f"{begin}*{end}"]


def _argument_inside(child: Argument, parent: Argument) -> bool:
    if parent.range is not None:
        return child.range is not None and parent.range[0] <= child.range[0] and child.range[1] <= parent.range[1]
    if parent.literals is not None:
        return child.literals is not None and child.literals <= parent.literals
    if child.range is not None:
        return parent.glob == ("", "")
    if child.literals is not None:
        return all(_globbed(one, parent.glob) for one in child.literals)
    return child.glob[0].startswith(parent.glob[0]) and child.glob[1].endswith(parent.glob[1])


def _globbed(text: str, glob: tuple[str, str]) -> bool:
    """A star in a path does not climb out of it: `/data/*` is not `/data/../etc`."""
    begin, end = glob
    if ("/" in begin or "/" in end) and ".." in text.split("/"):
        return False
    return len(text) >= len(begin) + len(end) and text.startswith(begin) and text.endswith(end)


def argument_fits(value: Argument, given: object) -> bool:
    """Only scalars fit: what is inside a list or an object is not looked at, so it is refused."""
    if value.range is not None:
        if isinstance(given, bool) or not isinstance(given, int | float) or given != given:  # the last: NaN
            return False
        return value.range[0] <= given <= value.range[1]
    if isinstance(given, bool):
        text = "true" if given else "false"
    elif isinstance(given, str | int | float):
        text = str(given)
    else:
        return False
    return text in value.literals if value.literals is not None else _globbed(text, value.glob)


def _at_most(child: int, parent: int) -> bool:
    return child <= parent


def _subset(child: frozenset[Any], parent: frozenset[Any]) -> bool:
    return child <= parent


def _never(child: object, parent: object) -> bool:
    return False


def _slower(child: Rate, parent: Rate) -> bool:
    return child.most <= parent.most and child.most * parent.per_ms <= parent.most * child.per_ms


def _text(value: object) -> list[str]:
    return [str(value)]


def _cost_text(value: int) -> list[str]:
    return [f"{(Decimal(value) / 1_000_000).normalize():f}" if value else "0"]


def _rate_text(value: Rate) -> list[str]:
    return [f"{value.most}/{value.per_ms}ms"]


def _length_text(value: int) -> list[str]:
    return [f"{value}ms"]


def _flag_text(value: bool) -> list[str]:
    return ["true" if value else "false"]


def _texts(value: frozenset[Any]) -> list[str]:
    return [str(one) for one in sorted(value)]


def _with_tunnel(value: bool, facts: Facts) -> bool:
    return value or not facts.get("tunnel")


def _names_program(value: frozenset[str], facts: Facts) -> bool:
    names = cast(object, facts.get("program", ()))
    return not value.isdisjoint([names] if isinstance(names, str) else cast(Collection[str], names))


_ALL = frozenset(KINDS)
_CALLS = _ALL - {"agent", "secret"}
_HTTP, _LLM, _SHELL = frozenset({"http"}), frozenset({"llm"}), frozenset({"shell"})
_ARGUMENT = Row(frozenset({"tool"}), _read_argument, _show_argument, _argument_inside)
_NONE: frozenset[str] = frozenset()

# In the order in which a proof names what fails.
ROWS: dict[str, Row] = {
    "expiry": Row(_ALL, _read_expiry, _show_expiry, _at_most),
    "count": Row(_ALL, _whole(0, _MOST), _text, _at_most),
    "bytes": Row(_CALLS, _read_size, _text, _at_most),
    "tokens": Row(_LLM, _whole(0, _MOST), _text, _at_most),
    "cost": Row(frozenset({"llm", "http", "tool", "shell"}), _read_cost, _cost_text, _at_most),
    "max": Row(frozenset({"agent", "shell"}), _whole(0, 1_000_000), _text, _at_most),
    "rate": Row(_ALL, _read_rate, _rate_text, _slower),
    "timeout": Row(_CALLS, _read_duration, _length_text, _at_most),
    "max_size": Row(_CALLS, _read_size, _text, _at_most, fits=lambda value, facts: facts.get("size", 0) <= value),
    "allowlist": Row(_SHELL, _read_words, _texts, _subset, fits=_names_program),
    "port": Row(
        _HTTP, _read_ports, _texts, _subset, frozenset({443}), lambda value, facts: facts.get("port", 443) in value
    ),
    "scheme": Row(
        *(_HTTP, _read_schemes, _texts, _subset, frozenset({"https"})),
        lambda value, facts: facts.get("scheme", "https") in value,
    ),
    "private": Row(_HTTP, _read_networks, _texts, _networks_inside, _NONE, _in_networks),
    "network": Row(_HTTP, _read_networks, _texts, _networks_inside, fits=_is_address_in),
    "tunnel": Row(_HTTP, _read_flag, _flag_text, _at_most, False, _with_tunnel),
    "server_tools": Row(
        _LLM, _read_words, _texts, _subset, _NONE, lambda value, facts: value.issuperset(facts.get("server_tools", ()))
    ),
    "loopback": Row(_HTTP, _read_endpoint, _text, _never, "", lambda value, facts: facts.get("loopback", "") == value),
    "depth": Row(_ALL, _whole(0, TOP_DEPTH), _text, lambda child, parent: child < parent, DEFAULT_DEPTH),
}
_FITTING = {
    kind: [(name, row.fits, row.default) for name, row in ROWS.items() if row.fits is not None and kind in row.kinds]
    for kind in KINDS
}
_ORDER = {name: place for place, name in enumerate(ROWS)}


def row_of(name: str) -> Row | None:
    if name.startswith("arg."):
        return _ARGUMENT if _WORD.fullmatch(name[4:]) else None
    return ROWS.get(name)


def place(name: str) -> int:
    """Where it stands in a proof; arguments with the programs."""
    return _ORDER.get(name, _ORDER["allowlist"])


def first_wider(child: Mapping[str, Any], parent: Mapping[str, Any]) -> str | None:
    """The first row in which the child is not proved to be within its parent. What the child does not write it
    inherits, so only a depth that is used up and an endpoint that is never handed on can fail unwritten."""
    if "loopback" in parent:
        return "loopback"
    if parent.get("depth", DEFAULT_DEPTH) == 0:
        return "depth"
    if not child:
        return None
    for name in sorted(child, key=lambda name: (place(name), name)):
        row = row_of(name)
        if row is None:
            return name
        theirs = parent.get(name, row.default)
        if theirs is not None and not row.inside(child[name], theirs):
            return name
    return None


def inherited(child: Mapping[str, Any], parent: Mapping[str, Any]) -> dict[str, Any]:
    """All that holds for the child: what it wrote, what its parent has besides, one step less deep."""
    return {**parent, "depth": parent.get("depth", DEFAULT_DEPTH) - 1, **child}


def checks(kind: str, constraints: Mapping[str, Any]) -> list[tuple[str, Callable[[Any, Facts], bool], Any]]:
    """What a call must fit, written or by default, with the name of each row."""
    found: list[tuple[str, Callable[[Any, Facts], bool], Any]] = []
    named = frozenset({"port", "scheme"}) - constraints.keys() if "loopback" in constraints else ()
    for name, fits, default in _FITTING[kind]:
        value = constraints.get(name, default)
        if value is not None and name not in named:  # an endpoint says its port itself
            found.append((name, fits, value))
    if kind == "tool":
        arguments = [name for name in constraints if name.startswith("arg.")]
        found += [(name, _argument_check(name[4:]), constraints[name]) for name in arguments]
    return found


def _argument_check(name: str) -> Callable[[Any, Facts], bool]:
    def fits(value: Argument, facts: Facts) -> bool:
        given = facts.get("args", NO_FACTS)
        return name in given and argument_fits(value, given[name])

    return fits
