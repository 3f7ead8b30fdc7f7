"""On which line of a TOML file each key and each list element stands.

`tomllib` checks the syntax and gives the values but no positions, and a refusal without a line is no help in a file of
a thousand rules. So the text is walked apart from it. Goes in: text. Comes out: line numbers by path, such as
("rule", 2, "what", 0). Never interprets a value; where the text is no TOML the walk ends, and `tomllib` will say why.

It runs first, because `tomllib` takes quadratic time for keys with very many dots: what is nested deeper than any
policy or manifest is refused here.
"""

import re

Path = tuple[str | int, ...]
DEEPEST = 16
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACES = re.compile(r"[ \t]*")
_BARE = re.compile(r"[^\s.=\]\"'#]+")
_SCALAR = re.compile(r"[^,\]}#\r\n]+")
_STRING = re.compile(
    r'"{3}(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}'  # up to two of the last quotes belong to the text
    r"|'{3}(?:[^']|'{1,2}(?!'))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


class TooDeep(Exception):
    def __init__(self, line: int) -> None:
        super().__init__(f"nothing here is nested deeper than {DEEPEST}")
        self.line = line


class _NoToml(Exception):
    """The walk cannot go on."""


def toml_lines(text: str) -> dict[Path, int]:
    """The line of every table header, key and list element, counted from 1."""
    return _Walk(text).run()


class _Walk:
    def __init__(self, text: str) -> None:
        self._text, self._at, self._line = text, 0, 1
        self._found: dict[Path, int] = {}
        self._counts: dict[Path, int] = {}  # of the arrays of tables: the number of the newest

    def run(self) -> dict[Path, int]:
        table: Path = ()
        try:
            while self._skip(_BLANK):
                if self._next() == "[":
                    table = self._header()
                else:
                    self._pair(table)
        except _NoToml:
            pass
        return self._found

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip(self, what: re.Pattern[str]) -> bool:
        """False: nothing is left behind it."""
        match = what.match(self._text, self._at)
        if match:
            self._line += match[0].count("\n")
            self._at = match.end()
        return self._at < len(self._text)

    def _expect(self, word: str) -> None:
        if not self._text.startswith(word, self._at):
            raise _NoToml
        self._at += len(word)

    def _header(self) -> Path:
        line = self._line
        many = self._text.startswith("[[", self._at)
        self._expect("[[" if many else "[")
        path: Path = ()
        for word in self._words():
            # A name that stands for an array of tables means its newest element.
            path = (*path, self._counts[path]) if path in self._counts else path
            path = (*path, word)
        self._expect("]]" if many else "]")
        if many:
            self._found.setdefault(path, line)
            self._counts[path] = self._counts.get(path, -1) + 1
            path = (*path, self._counts[path])
        self._found[path] = line
        return path

    def _pair(self, table: Path) -> None:
        line, path = self._line, table
        for word in self._words():
            path = (*path, word)
            self._found.setdefault(path, line)
        self._expect("=")
        self._value(path)

    def _words(self) -> list[str]:
        """The parts of a dotted key. Escapes stay as written: no key of ours has one."""
        words: list[str] = []
        while True:
            self._skip(_SPACES)
            begin = self._at
            quoted = self._next() in ("'", '"')
            self._skip(_STRING if quoted else _BARE)
            if self._at == begin:
                raise _NoToml
            words.append(self._text[begin + 1 : self._at - 1] if quoted else self._text[begin : self._at])
            if len(words) > DEEPEST:
                raise TooDeep(self._line)
            self._skip(_SPACES)
            if self._next() != ".":
                return words
            self._at += 1

    def _value(self, path: Path) -> None:
        if len(path) > DEEPEST:
            raise TooDeep(self._line)
        self._skip(_SPACES)
        begin, char = self._at, self._next()
        if char == "[":
            self._list(path)
        elif char == "{":
            self._inline(path)
        else:
            self._skip(_STRING if char in ("'", '"') else _SCALAR)
        if self._at == begin:
            raise _NoToml

    def _list(self, path: Path) -> None:
        self._expect("[")
        number = 0
        while self._skip(_BLANK) and self._next() != "]":
            self._found[(*path, number)] = self._line
            self._value((*path, number))
            number += 1
            self._comma()
        self._expect("]")

    def _inline(self, path: Path) -> None:
        self._expect("{")
        while self._skip(_BLANK) and self._next() != "}":
            self._pair(path)
            self._comma()
        self._expect("}")

    def _comma(self) -> None:
        self._skip(_BLANK)
        if self._next() == ",":
            self._at += 1
