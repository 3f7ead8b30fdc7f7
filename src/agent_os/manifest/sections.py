"""What every table of a manifest has in common: its keys are known from its fields, and it checks itself when made.

A table is a dataclass whose fields are annotated with their kind (`values`) or are tables themselves. Made in a program
or by `reading`, it takes every accepted spelling and holds plain values; `ManifestError` lists all that does not fit.
It remembers which keys were given, because some of the others follow from the rest of the manifest.
"""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, Field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast, get_args, get_origin, get_type_hints

from agent_os.manifest.problems import Flaw, ManifestError, Problem, shown
from agent_os.manifest.values import Kind

Path = tuple[str | int, ...]


class Key(NamedTuple):
    name: str
    kind: Kind | None  # None: a table of its own
    table: "type[Section] | None"  # of a table, and of the rows of a list of tables
    default: Callable[[], Any] | None  # None: it must be given

    @property
    def about(self) -> str:
        return self.kind.about if self.kind else (self.table.__doc__ or "" if self.table else "")


class Section:
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    given: frozenset[str]

    def __new__(cls, *_args: object, **keys: object) -> Self:
        made = super().__new__(cls)
        made.given = frozenset(keys)
        return made

    def __post_init__(self) -> None:
        problems: list[Problem] = []
        for key in keys_of(type(self)).values():
            try:
                setattr(self, key.name, taken(key, getattr(self, key.name)))
            except Flaw as flaw:
                problems.append(Problem("", 0, dotted((key.name, *flaw.at)), flaw.message, flaw.hint))
        if problems:
            raise ManifestError(problems)


class Rows(Kind):
    """A list of tables."""

    def __init__(self, about: str, table: type[Section]) -> None:
        super().__init__(about)
        self.table = table
        self.says = "list of tables"

    def read(self, value: object) -> list[Any]:
        if not isinstance(value, list | tuple) or not all(
            isinstance(one, self.table) for one in cast(list[object], value)
        ):
            raise Flaw(f"is a list of {self.table.__name__}, not {shown(cast(object, value))}")
        return list(cast(list[Any], value))


def taken(key: Key, value: object) -> Any:
    """The value as its key holds it, or a Flaw."""
    if key.kind:
        return key.kind.read(value)
    assert key.table
    if not isinstance(value, key.table):
        raise Flaw(f"is {key.table.__name__}, not {shown(value)}")
    return value


@cache
def keys_of(table: type[Section]) -> dict[str, Key]:
    hints = get_type_hints(table, include_extras=True)
    return {key.name: key for key in _keys(table, hints)}


def _keys(table: type[Section], hints: dict[str, Any]) -> Iterator[Key]:
    for field in fields(table):
        hint = hints[field.name]
        default = field.default_factory if field.default_factory is not MISSING else None
        if field.default is not MISSING:
            default = lambda value=field.default: value  # noqa: E731
        if get_origin(hint) is Annotated:
            kind = next(one for one in get_args(hint)[1:] if isinstance(one, Kind))
            yield Key(field.name, kind, kind.table if isinstance(kind, Rows) else None, default)
        else:
            yield Key(field.name, None, hint, default)


def dotted(path: Path) -> str:
    return ".".join(map(str, path))
