"""Finds secret values in bytes and masks them: in a text at once, or in a stream whatever its chunk borders.

In: values, then bytes. Out: the same number of bytes, in which every occurrence is stars, so that no framing changes. A
value is found as it is, URL-encoded or JSON-escaped (all of it or some characters), in hex, and in base64 (plain or
URL-safe, in one line or in many) at each of the three places it can have among other bytes. What was compressed or
encrypted is not seen; who wants to be sure must not let it pass. Holds no names, logs nothing, touches no file.

Escapes are undone first, in a second view of the data that knows where each of its bytes comes from; then everything
is a plain search. Regular expressions with all spellings took twenty times as long.
"""

import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

MASK = b"*"
_ESCAPE = re.compile(rb"%([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\([\"\\/nrt])")
_HALF_ESCAPE = re.compile(rb"(?:%[0-9a-fA-F]?|\\(?:u[0-9a-fA-F]{0,3})?)\Z")
_SHORT = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
_ONE_ALPHABET = bytes.maketrans(b"-_", b"+/")  # of base64
_LONGEST_ESCAPE = len(b"\\u0000")
_BREAK = re.compile(rb"[\r\n]+")
Span = tuple[int, int]


class Needles:
    """What is looked for. Made once for a set of values, used for any number of texts and streams."""

    def __init__(self, values: Iterable[bytes]) -> None:
        known = [value for value in dict.fromkeys(values) if value]
        spaced = [value.replace(b" ", b"+") for value in known if b" " in value]  # as forms write it
        self._plain = (*known, *spaced)
        self._hex = tuple(value.hex().encode() for value in known)
        self._base64 = tuple(_base64(value, shift) for value in known for shift in range(3))
        every = (*self._plain, *self._hex, *self._base64)
        self._longest = max(map(len, every), default=0) * _LONGEST_ESCAPE

    def __bool__(self) -> bool:
        return bool(self._plain)

    def within(self, data: bytes) -> bool:
        return bool(self.spans(data))

    def mask(self, data: bytes) -> bytes:
        return _masked(data, self.spans(data))

    def mask_text(self, text: str) -> str:
        """Of an error or a record; odd characters survive."""
        return self.mask(text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")

    def spans(self, data: bytes) -> list[Span]:
        """Where they are. Occurrences may overlap, and each counts."""
        found: list[Span] = []
        for view in _views(data):
            for text, needles in self._spellings(view):
                for needle in needles:
                    at = text.find(needle)
                    while at >= 0:
                        found.append(view.span(at, len(needle)))
                        at = text.find(needle, at + 1)
        return found

    def begun(self, data: bytes) -> int:
        """The first place from which on `data` may be the beginning of one; its length if there is none."""
        first = max(0, len(data) - self._longest)
        tail = data[first:]
        half = _HALF_ESCAPE.search(tail)
        places = [half.start() if half else len(tail)]
        for view in _views(tail[: half.start()] if half else tail, *([tail] if half else [])):
            for text, needles in self._spellings(view):
                places += [view.origin(at) for needle in needles if (at := _beginning(text, needle)) is not None]
        return first + min(places)

    def _spellings(self, view: "_View") -> Iterator[tuple[bytes, Sequence[bytes]]]:
        if not isinstance(view, _Joined):
            yield view.text, self._plain
            yield view.text.lower(), self._hex
        yield view.text.translate(_ONE_ALPHABET), self._base64


class Redactor:
    """One stream. Holds back only what may be the beginning of a value, never more than the longest spelling of one,
    so an event that ends in anything else is passed on whole and at once."""

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._held = b""
        self._known = 0  # so many bytes of what is held belong to an occurrence that began before
        self.found = 0

    def feed(self, data: bytes) -> bytes:
        if not self._needles:
            return data
        data = self._held + data
        return self._pass(data, self._needles.begun(data))

    def end(self) -> bytes:
        return self._pass(self._held, len(self._held))

    def _pass(self, data: bytes, upto: int) -> bytes:
        spans = self._needles.spans(data)
        out = _masked(data, [(0, self._known), *spans])[:upto]
        ends = [end for start, end in spans if start < upto]
        self.found += len(ends)
        self._held, self._known = data[upto:], max(0, self._known - upto, max(ends, default=0) - upto)
        return out


class _View:
    """Bytes, and for each the place where it was found."""

    def __init__(self, text: bytes, steps: Sequence[Span] = ()) -> None:
        self.text = text
        self._steps = steps  # (here, there): from here on, up to the next step, both run alike
        self._here = [here for here, _ in steps]

    def origin(self, at: int) -> int:
        if not self._steps:
            return at
        here, there = self._steps[bisect_right(self._here, at) - 1]
        return there + at - here

    def span(self, at: int, length: int) -> Span:
        return self.origin(at), self.origin(at + length)


class _Joined(_View):
    """A view without its line breaks, as base64 is read. Where they were is looked up when something is found."""

    def __init__(self, view: _View) -> None:
        super().__init__(view.text.translate(None, b"\r\n"))
        self._view = view

    @cached_property
    def _lines(self) -> tuple[list[int], list[int]]:
        """Where each line begins: here, and in the view."""
        here, there, removed = [0], [0], 0
        for match in _BREAK.finditer(self._view.text):
            removed += match.end() - match.start()
            here.append(match.end() - removed)
            there.append(match.end())
        return here, there

    def _at(self, at: int) -> int:
        here, there = self._lines
        line = bisect_right(here, at) - 1
        return there[line] + at - here[line]

    def origin(self, at: int) -> int:
        return self._view.origin(self._at(at))

    def span(self, at: int, length: int) -> Span:
        """The break behind its last character is not part of it."""
        return self.origin(at), self._view.origin(self._at(at + length - 1) + 1)


def _views(*texts: bytes) -> list[_View]:
    """Each text as it is and, if it has escapes, with these undone; and each of those as if it were one line."""
    views: list[_View] = []
    for data in texts:
        views.append(_View(data))
        if (b"%" in data or b"\\" in data) and (undone := _undone(data)) is not None:
            views.append(undone)
    return [*views, *(_Joined(view) for view in views if b"\n" in view.text or b"\r" in view.text)]


def _undone(data: bytes) -> _View | None:
    pieces: list[bytes] = []
    steps: list[Span] = [(0, 0)]
    here = there = 0
    for match in _ESCAPE.finditer(data):
        char = _meant(match)
        pieces += [data[there : match.start()], char]
        here += match.start() - there
        steps.append((here, match.start()))
        here, there = here + len(char), match.end()
        steps.append((here, there))
    if not there:
        return None
    pieces.append(data[there:])
    return _View(b"".join(pieces), steps)


def _meant(escape: "re.Match[bytes]") -> bytes:
    percent, unicode, short = escape.groups()
    if percent is not None:
        return bytes([int(percent, 16)])
    if unicode is not None:
        return chr(int(unicode, 16)).encode("utf-8", "surrogatepass")
    return _SHORT.get(short, short)


def _base64(value: bytes, shift: int) -> bytes:
    """The characters that depend on the value alone, after `shift` bytes of something else in its first group."""
    begin, end = (0, 2, 3)[shift], (shift + len(value)) * 8 // 6
    return b64encode(bytes(shift) + value)[begin:end]


def _beginning(text: bytes, needle: bytes) -> int | None:
    """Where `text` ends in a beginning of `needle`, the longest one; not a whole one."""
    at = text.find(needle[:1], max(0, len(text) - len(needle) + 1))
    while at >= 0:
        if needle.startswith(text[at:]):
            return at
        at = text.find(needle[:1], at + 1)
    return None


def _masked(data: bytes, spans: Sequence[Span]) -> bytes:
    if not any(end > start for start, end in spans):
        return data
    out = bytearray(data)
    for start, end in spans:
        out[start:end] = MASK * (end - start)
    return bytes(out)
