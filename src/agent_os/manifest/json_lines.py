"""On which line of a JSON text each key and each element stands, and whether a key is there twice.

`json` checks the syntax and gives the values but no positions, and of two equal keys it silently keeps the last. Goes
in: text. Comes out: line numbers by path, as `lines` has them. Where the text is no JSON the walk ends, and `json`
will say why. It runs first: what is nested deeper than any manifest is refused here, before recursion hurts.
"""

import re
from contextlib import suppress
from json.decoder import scanstring  # pyright: ignore[reportUnknownVariableType, reportAttributeAccessIssue]
from typing import cast

Path = tuple[str | int, ...]
DEEPEST = 16
_BLANK = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"[^\s,\]}]+")


class BadJson(Exception):
    """Something that `json` would let pass."""

    def __init__(self, line: int, message: str, key: Path = ()) -> None:
        super().__init__(message)
        self.line, self.message, self.key = line, message, key


class _NoJson(Exception):
    """The walk cannot go on."""


def json_lines(text: str) -> dict[Path, int]:
    """The line of every key and element, counted from 1."""
    walk = _Walk(text)
    with suppress(_NoJson, ValueError):
        walk.value(())
    return walk.found


class _Walk:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._line, self._counted = text, 0, 1, 0
        self.found: dict[Path, int] = {}

    def value(self, path: Path) -> None:
        if len(path) > DEEPEST:
            raise BadJson(self._here(), f"nothing here is nested deeper than {DEEPEST}", path[:2])
        match self._next():
            case "{":
                self._members(path)
            case "[":
                self._elements(path)
            case '"':
                self._string()
            case _:
                match = _SCALAR.match(self._text, self._at)
                if not match:
                    raise _NoJson
                self._at = match.end()

    def _members(self, path: Path) -> None:
        self._at += 1
        while self._next() != "}":
            line = self._here()
            key = self._string()
            if (*path, key) in self.found:
                raise BadJson(line, f"`{key}` is there twice, first on line {self.found[(*path, key)]}", (*path, key))
            self.found[(*path, key)] = line
            self._expect(":")
            self.value((*path, key))
            self._comma("}")
        self._at += 1

    def _elements(self, path: Path) -> None:
        self._at += 1
        number = 0
        while self._next() != "]":
            self.found[(*path, number)] = self._here()
            self.value((*path, number))
            number += 1
            self._comma("]")
        self._at += 1

    def _string(self) -> str:
        if self._next() != '"':
            raise _NoJson
        text, self._at = cast(tuple[str, int], scanstring(self._text, self._at + 1, True))
        return text

    def _next(self) -> str:
        match = _BLANK.match(self._text, self._at)
        self._at = match.end() if match else self._at
        if self._at >= len(self._text):
            raise _NoJson
        return self._text[self._at]

    def _expect(self, char: str) -> None:
        if self._next() != char:
            raise _NoJson
        self._at += 1

    def _comma(self, end: str) -> None:
        if self._next() != end:
            self._expect(",")

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line
