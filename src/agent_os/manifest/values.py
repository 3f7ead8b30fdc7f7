"""The kinds of values a manifest has: how each is read, how it is written, and what it is called.

In: what TOML, JSON or a program gives (`30`, `"30s"`, `"256MiB"`, `"OnFailure"`). Out: the plain Python value, or a
`Flaw`. A kind stands as the annotation of its field, with the sentence that `agentctl manifest explain` shows. Knows
nothing of which keys there are.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, cast

from agent_os.manifest.problems import LATER, Flaw, nearest, shown

UNLIMITED = "unlimited"
OFF = "off"
U64_MAX = 2**64 - 1  # seed 4's "no limit"
MOST = 2**63 - 1  # the largest whole number that TOML can write
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
ID = re.compile(rf"(?:{NAME.pattern}/)?{NAME.pattern}")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_MEBIBYTES = {"b": 2**-20, "kib": 2**-10, "mib": 1, "gib": 2**10, "tib": 2**20}
_AMOUNT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # halves of a pair stand for nothing
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def snake(word: str) -> str:
    """camelCase, PascalCase and kebab-case as this project writes names."""
    return _HUMP.sub("_", word.strip()).replace("-", "_").lower()


def pascal(word: str) -> str:
    """As seed 4's JSON writes the words of an enum."""
    return "".join(part.capitalize() for part in word.split("_"))


class Kind:
    """Text: the base of all kinds, and a kind of its own."""

    says = "text"

    def __init__(self, about: str, *, form: re.Pattern[str] | None = None, example: str = "", absent: bool = False):
        self.about, self._form, self._example, self._absent = about, form, example, absent

    def read(self, value: object) -> Any:
        if self._absent and value in (None, ""):
            return None
        text = str_of(value)
        if self._form and text and not self._form.fullmatch(text):
            raise Flaw(f"{shown(text)} is malformed", f"as in {self._example}")
        return text

    def write(self, value: Any) -> object:
        """As TOML has it. None: leave the key out."""
        return value

    def seed(self, value: Any) -> object:
        """As seed 4's JSON has it."""
        return self.write(value)


Text = Kind


class Name(Kind):
    says = "name"

    def read(self, value: object) -> str:
        text = str_of(value)
        if not text:
            raise Flaw("a name is not empty", 'as in "researcher"')
        if "@" in text:
            raise Flaw(f"{shown(text)}: an instance of a template {LATER}")
        if not NAME.fullmatch(text):
            raise Flaw(f"{shown(text)} is no name", "a-z, 0-9, '_', '.', '-', at most 63, a letter or digit first")
        return text


class Flag(Kind):
    says = "true or false"

    def read(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise Flaw(f"is true or false, not {shown(value)}")
        return value


class Whole(Kind):
    """A whole number. `none` is the word that stands for None, such as "unlimited"."""

    says = "a whole number"

    def __init__(self, about: str, *, least: int = 0, most: int = MOST, none: str = ""):
        super().__init__(about)
        self._least, self._most, self._none = least, most, none
        if none:
            self.says = f'{self.says} or "{none}"'

    def read(self, value: object) -> int | float | None:
        if self._none and _is_none(value, self._none):
            return None
        number = self._number(value)
        if number < self._least:
            raise Flaw(f"is at least {self._least}, not {shown(number)}", f'or "{self._none}"' if self._none else "")
        if number > self._most:
            raise Flaw(f"is at most {self._most}, not {shown(number)}")
        return number

    def write(self, value: Any) -> object:
        return self._none if value is None else value

    def _number(self, value: object) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int):
            raise Flaw(f"is {self.says}, not {shown(value)}")
        return value


class Number(Whole):
    says = "a number"

    def _number(self, value: object) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Flaw(f"is {self.says}, not {shown(value)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise Flaw(f"is {self.says}, not {value}")
        return value


class Seconds(Number):
    says = 'seconds or "500ms", "5m"'

    def _number(self, value: object) -> int | float:
        return super()._number(_in_units(value, _SECONDS))


class Above(Seconds):
    """A duration that cannot be nothing."""

    def read(self, value: object) -> int | float | None:
        if (seconds := super().read(value)) == 0:
            raise Flaw("is more than 0")
        return seconds


class Mebibytes(Whole):
    says = 'MiB or "2GiB"'

    def _number(self, value: object) -> int | float:
        amount = _in_units(value, _MEBIBYTES)
        if amount is not value and not isinstance(amount, int):
            raise Flaw(f"{shown(value)} is no whole number of MiB")
        return super()._number(amount)


class Word(Kind):
    """One of some words, in any case. `later`: words that are known and refused; `also`: other spellings."""

    says = "one of"

    def __init__(
        self,
        about: str,
        words: Sequence[str] | type[Enum],
        *,
        later: Sequence[str] = (),
        also: Mapping[str, str] | None = None,
    ):
        super().__init__(about)
        self._enum = words if isinstance(words, type) else None
        known = [one.value for one in words] if isinstance(words, type) else list(words)
        self.words = [word for word in known if word not in later]
        self._known = {snake(word): word for word in self.words}
        self._later, self._also = tuple(later), dict(also or {})
        self.says = "|".join(word or '""' for word in self.words)

    def read(self, value: object) -> Any:
        if self._enum and isinstance(value, self._enum):
            value = value.value
        text = snake(str_of(value))
        text = self._also.get(text, text)
        if text in self._later:
            raise Flaw(f"`{text}` {LATER}", f"there is {', '.join(filter(None, self.words))}")
        word = self._known.get(text)
        if word is None:
            hint = nearest(text, self._known) or f"there is {', '.join(filter(None, self.words))}"
            raise Flaw(f"{shown(value)} unknown", hint)
        return self._enum(word) if self._enum else word

    def write(self, value: Any) -> object:
        return value.value if self._enum else value

    def seed(self, value: Any) -> object:
        return pascal(value.value) if self._enum else value


class List(Kind):
    """A list whose elements are read by `one`."""

    def __init__(self, about: str, one: Callable[[object], Any] | None = None, *, says: str = "list of texts"):
        super().__init__(about)
        self._one, self.says = one or str_of, says

    def read(self, value: object) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise Flaw(f"is a {self.says}, not {shown(value)}", f"write [{value!r}]" if isinstance(value, str) else "")
        found: list[Any] = []
        for number, one in enumerate(cast(Sequence[object], value)):
            try:
                found.append(self._one(one))
            except Flaw as flaw:
                raise Flaw(flaw.message, flaw.hint, (number, *flaw.at)) from None
        return found

    def write(self, value: Any) -> object:
        return list(value)


class Texts(Kind):
    """A table of texts that the author names."""

    says = "table of texts"

    def read(self, value: object) -> dict[str, str]:
        if not isinstance(value, Mapping):
            raise Flaw(f"is a {self.says}, not {shown(value)}")
        found: dict[str, str] = {}
        for key, one in cast(Mapping[object, object], value).items():
            if not isinstance(key, str) or not isinstance(one, str):
                raise Flaw(f"is a {self.says}; {shown(key)} is {shown(one)}", at=(str(key),))
            found[key] = one
        return found

    def write(self, value: Any) -> object:
        return dict(value)


def str_of(value: object) -> str:
    if not isinstance(value, str):
        raise Flaw(f"is a text, not {shown(value)}")
    if _NO_TEXT.search(value):
        raise Flaw(f"{shown(value)} holds a character that no text can")
    return value


def agent_id(value: object) -> str:
    """`name` or `namespace/name`."""
    text = str_of(value)
    if "@" in text:
        raise Flaw(f"{shown(text)}: an instance of a template {LATER}")
    if not ID.fullmatch(text):
        raise Flaw(f"{shown(text)} is no id of an agent", 'as in "researcher" or "default/researcher"')
    return text


def exit_code(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -64 <= value <= 255:
        raise Flaw(f"an exit code is 0 to 255, or -n for signal n, not {shown(value)}")
    return value


def _is_none(value: object, word: str) -> bool:
    if word == OFF and value == 0 and not isinstance(value, bool):
        return True
    return value is None or value == U64_MAX or (isinstance(value, str) and value.strip().lower() == word)


def _in_units(value: object, units: Mapping[str, float]) -> object:
    """The number that a text such as "5m" means; anything else as it is."""
    if not isinstance(value, str):
        return value
    match = _AMOUNT.fullmatch(value.strip())
    factor = units.get(match[2].lower()) if match else None
    if not match or factor is None:
        raise Flaw(f"{shown(value)} is no amount", f"a number, or one followed by {', '.join(units)}")
    amount = float(match[1]) * factor
    return round(amount) if math.isfinite(amount) and abs(amount - round(amount)) < 1e-9 else amount
