"""What is wrong with a policy file, and where: collected, so that one look shows all of it, then raised as one error.

Owns the place of a thing in a file and the nearest known name. Never reads a file.
"""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NoReturn

from msgspec import Struct

from agent_os.abi.errors import EINVAL


class Where(Struct, frozen=True, order=True):
    file: str
    line: int  # from 1; 0: the file as a whole

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


class Problem(Struct, frozen=True, order=True):
    where: Where
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


class Problems:
    """All that was found in one file."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._found: list[Problem] = []

    def add(self, line: int, what: str) -> None:
        self._found.append(Problem(Where(self._file, line), what))

    def where(self, line: int) -> Where:
        return Where(self._file, line)

    def settle(self) -> None:
        """Raise what was found, if anything was."""
        if self._found:
            refuse(sorted(self._found))


def refuse(problems: Sequence[Problem]) -> NoReturn:
    """All or nothing: the first is the reason, every one is in the detail."""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    listed = [{"file": one.where.file, "line": one.where.line, "what": one.what} for one in problems]
    raise EINVAL("policy.invalid", f"{problems[0]}{more}", hint="agentctl policy check lists all", problems=listed)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` or nothing."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""
