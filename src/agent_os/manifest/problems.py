"""What is wrong with a manifest, and where: all of it in one error.

Owns the shape of a problem, the nearest known name, and `ManifestError`. A value that is made in a program has no file
and no line; `reading` knows both and adds them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches

from agent_os.abi.errors import EINVAL

LATER = "is not supported yet"
MOST_LISTED = 100  # of the problems that travel with the error; `problems` has all
_LONGEST = 64  # of a word that could be a misspelt name


class Flaw(Exception):
    """Why a value cannot be what its key needs. `at`: where inside the value, such as the number of an element."""

    def __init__(self, message: str, hint: str = "", at: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message, self.hint, self.at = message, hint, at


@dataclass(frozen=True, order=True)
class Problem:
    file: str
    line: int  # from 1; 0: there is no line
    key: str  # with dots, as it is written: `health.max_restarts`
    message: str
    hint: str = ""

    def __str__(self) -> str:
        line = (f":{self.line}" if self.file else f"line {self.line}") if self.line else ""
        where = f"{self.file}{line}"
        parts = [part for part in (where, self.key) if part]
        return ": ".join([*parts, ", ".join(part for part in (self.message, self.hint) if part)])


class ManifestError(EINVAL):
    """EINVAL `manifest`: the first problem is the reason, all of them are in `problems`."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        listed = [asdict(one) for one in problems[:MOST_LISTED]]
        super().__init__("manifest", f"{problems[0]}{more}", hint="agentctl manifest lint lists all", problems=listed)

    @property
    def name(self) -> str:
        return "EINVAL"  # what the wire and the exit codes know it by


def nearest(word: str, known: Iterable[str]) -> str:
    """`did you mean …?` or nothing."""
    near = get_close_matches(word, list(known), n=1, cutoff=0.6) if len(word) <= _LONGEST else []
    return f"did you mean `{near[0]}`?" if near else ""


def shown(value: object) -> str:
    """A stranger's value, short enough for a sentence."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or what is nested as deep
        text = f"such {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}…"
