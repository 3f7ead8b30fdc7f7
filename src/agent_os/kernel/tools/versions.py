"""Versions of tools: semantic versions, ranges of them, and `name@range` as callers write it.

In: texts. Out: a `Version` that orders as semver 2.0 says, a `Range` that takes versions or not, or EINVAL with a right
form. Build metadata is kept apart from the order, as semver wants it. Pure.
"""

import re
from collections.abc import Callable, Iterable
from functools import total_ordering

from msgspec import Struct

from agent_os.abi.errors import EINVAL

LONGEST = 100  # characters of a version or range
_MOST_PARTS = 16  # of a range
_NUMBER = r"(0|[1-9]\d{0,8})"
_WORD = r"(?:0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)"
_VERSION = re.compile(
    rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_WORD}(?:\.{_WORD})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?", re.ASCII
)
_PARTIAL = re.compile(rf"v?(?:{_NUMBER}|[xX*])(?:\.(?:{_NUMBER}|[xX*]))?(?:\.(?:{_NUMBER}|[xX*]))?", re.ASCII)
_SIGNS = ("^", "~", ">=", "<=", ">", "<", "=")
_FORMS = "1.2.3, ^1.2, ~1.2.3, >=1.0 <2.0, 1.x or *"


@total_ordering
class Version:
    __slots__ = ("_key", "build", "numbers", "pre", "text")

    def __init__(self, text: str) -> None:
        found = _VERSION.fullmatch(text) if len(text) <= LONGEST else None
        if found is None:
            raise EINVAL("tool.version", f"{text[:LONGEST]!r} is not a semantic version", hint="as 1.2.3 or 2.0.0-rc.1")
        self.text = text
        self.numbers = int(found[1]), int(found[2]), int(found[3])
        self.pre = tuple(found[4].split(".")) if found[4] else ()
        self.build = found[5] or ""
        # A release is above its pre-releases; numbers are below words; a longer row is above its beginning.
        self._key = (self.numbers, not self.pre, tuple(_ordered(word) for word in self.pre))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._key == other._key

    def __lt__(self, other: "Version") -> bool:
        return self._key < other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Version({self.text!r})"


def _ordered(word: str) -> tuple[bool, int, str]:
    return (False, int(word), "") if word.isdigit() else (True, 0, word)


class _Bound(Struct, frozen=True):
    takes: "Callable[[Version], bool]"
    version: Version | None = None  # as it is written out in full: its pre-releases are meant, too


class Range:
    """`^1.2`, `~1.2.3`, `>=1 <2 || 3.x`, `*`. A pre-release is taken only where the range names one of the same three
    numbers: whoever writes `^1.0` has not asked for an unfinished 2.0.0-rc.1 nor 1.5.0-beta."""

    def __init__(self, text: str) -> None:
        self.text = text.strip() or "*"
        if len(text) > LONGEST:
            raise EINVAL("tool.range", f"a range has at most {LONGEST} characters", hint=_FORMS)
        self._ways = [self._all_of(way) for way in self.text.split("||")]

    def takes(self, version: Version) -> bool:
        return any(
            all(bound.takes(version) for bound in way) and (not version.pre or _names_pre(way, version))
            for way in self._ways
        )

    def best(self, versions: Iterable[Version]) -> Version | None:
        """The highest that it takes."""
        return max(filter(self.takes, versions), default=None)

    def __str__(self) -> str:
        return self.text

    def _all_of(self, text: str) -> list[_Bound]:
        words = text.split()
        for sign in _SIGNS:  # `>= 1.2` is one word
            words = list(_joined(words, sign))
        if not words or len(words) > _MOST_PARTS:
            raise self._wrong(text)
        return [bound for word in words for bound in self._bounds(word)]

    def _bounds(self, word: str) -> list[_Bound]:
        sign = next((one for one in _SIGNS if word.startswith(one)), "")
        rest = word[len(sign) :]
        if _VERSION.fullmatch(rest):
            version = Version(rest)
            return _exactly(sign, version)
        numbers = self._partial(rest)
        if not numbers:  # any
            if sign in ("<", ">"):
                raise self._wrong(word)
            return [_Bound(lambda version: True)]
        low, above = _floor(numbers), _floor((*numbers[:-1], numbers[-1] + 1))
        match sign:
            case "" | "=":
                return [_at_least(low), _below(above)]
            case "~":
                return [_at_least(low), _below(_floor((*numbers[:1], numbers[1] + 1)) if numbers[1:] else above)]
            case "^":
                return [_at_least(low), _below(_next_breaking(numbers))]
            case ">=":
                return [_at_least(low)]
            case "<":
                return [_below(low)]
            case ">":
                return [_at_least(above)]
            case _:
                return [_below(above)]

    def _partial(self, text: str) -> tuple[int, ...]:
        found = _PARTIAL.fullmatch(text)
        if found is None:
            raise self._wrong(text)
        numbers: list[int] = []
        for group in found.groups():
            if group is None:
                break
            numbers.append(int(group))
        return tuple(numbers)

    def _wrong(self, what: str) -> EINVAL:
        return EINVAL("tool.range", f"{what.strip()!r} is not a range of versions", hint=_FORMS)


def _joined(words: list[str], sign: str) -> Iterable[str]:
    waiting = ""
    for word in words:
        if word == sign:
            waiting = word
        else:
            yield waiting + word
            waiting = ""
    if waiting:
        yield waiting


def _exactly(sign: str, version: Version) -> list[_Bound]:
    """What is written out in full."""
    numbers = version.numbers
    match sign:
        case "^":
            return [_at_least(version), _below(_next_breaking(numbers))]
        case "~":
            return [_at_least(version), _below(_floor((numbers[0], numbers[1] + 1)))]
        case ">=":
            return [_at_least(version)]
        case "<":
            return [_Bound(lambda one: one < version, version)]
        case ">":
            return [_Bound(lambda one: one > version, version)]
        case "<=":
            return [_Bound(lambda one: one <= version, version)]
        case _:
            return [_Bound(lambda one: one == version, version)]


def _next_breaking(numbers: tuple[int, ...]) -> Version:
    """The first that may break what worked: below 1.0.0 every step of the first number that is not zero."""
    for place, number in enumerate(numbers):
        if number or place == len(numbers) - 1:
            return _floor((*numbers[:place], number + 1))
    return _floor((1,))


def _floor(numbers: tuple[int, ...]) -> Version:
    return Version(".".join(map(str, (*numbers, 0, 0)[:3])))


def _at_least(low: Version) -> _Bound:
    return _Bound(lambda one: one >= low, low)


def _below(high: Version) -> _Bound:
    """Of an upper end that nobody wrote, pre-releases are not below it: ^1.2 never means 2.0.0-rc.1."""
    return _Bound(lambda one: one < high and one.numbers != high.numbers)


def _names_pre(way: list[_Bound], version: Version) -> bool:
    named = (bound.version for bound in way if bound.version is not None)
    return any(one.pre and one.numbers == version.numbers for one in named)


def reference(text: str) -> tuple[str, Range]:
    """`name`, `name@1.2.3`, `name@^1.2`."""
    name, at, wanted = text.partition("@")
    if not name or (at and not wanted.strip()):
        raise EINVAL("tool.name", f"{text[:LONGEST]!r} names no tool", hint="as file.read or file.read@^1.2")
    return name, Range(wanted)
