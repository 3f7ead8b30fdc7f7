"""The rule file: TOML in, checked rules out.

Owns which keys and tables there are, what each accepts, and in which layer. Goes in: bytes, and the name to call the
file by. Comes out: a `PolicyFile`, or one EINVAL that lists every problem with file and line. A key that is not known
is an error: a rule that is read only in part would hold only in part.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Literal, TypeVar, cast

from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.policy.conditions import require_real, rule_capability
from agent_os.kernel.authority.policy.problems import Problems, nearest
from agent_os.kernel.authority.policy.rules import (
    MOST_BYTES,
    SCOPES,
    ClassRule,
    DeclassifyRule,
    Effect,
    Layer,
    Mode,
    PolicyFile,
    Rate,
    Rule,
    SinkRule,
    SourceRule,
    Subject,
    parse_duration,
)
from agent_os.manifest.lines import Path, TooDeep, toml_lines

VERSION = 1
MOST_BYTES_BELOW = 256 << 10  # of a stranger's file, which the kernel reads while others wait
_TABLES: dict[str, tuple[str, ...]] = {
    "rule": ("id", "effect", "what", "agents", "reason", "approvers", "deadline", "scopes", "rate", "violation"),
    "class": ("name", "readers"),
    "source": ("what", "integrity", "classes"),
    "sink": ("what", "integrity", "classes", "else"),
    "declassify": ("from", "to", "type", "rate"),
}
_TOP = ("version", "default", "mode", "allow_in_process", *_TABLES)
_TRUSTED = (Layer.BUILTIN, Layer.ORGANISATION, Layer.OPERATOR)
_ONLY_ABOVE = ("allow_in_process", "source", "declassify")  # a cloned repository must not widen
_ONLY_WITH: dict[str, tuple[Effect, ...]] = {
    "approvers": (Effect.ASK,),
    "deadline": (Effect.ASK,),
    "scopes": (Effect.ASK,),
    "rate": (Effect.ALLOW, Effect.ASK),
    "violation": (Effect.FORBID,),
}
_WHEN = "a condition needs Cedar, which is not part of this version: the file is refused, not read without it"
Table = Mapping[str, Any]
T = TypeVar("T")


def read(data: bytes, file: str, layer: Layer, *, roles: Sequence[str] = ()) -> PolicyFile:
    """One policy file. EINVAL `policy.invalid`: all that is wrong with it. `roles`: those that there are, beside custom
    ones; none: whatever is written."""
    import tomllib

    problems = Problems(file)
    most = MOST_BYTES if layer in _TRUSTED else MOST_BYTES_BELOW
    if len(data) > most:
        problems.add(0, f"a policy file has at most {most >> 10} kB here")
        problems.settle()
    try:
        text = data.decode()
        lines, found = toml_lines(text), tomllib.loads(text)
    except UnicodeDecodeError as error:
        problems.add(data[: error.start].count(b"\n") + 1, "this is no UTF-8")
    except tomllib.TOMLDecodeError as error:
        problems.add(*_syntax(str(error), data))
    except TooDeep as error:
        problems.add(error.line, str(error))
    else:
        subject = partial(_subject, roles) if roles else Subject.parse
        policy = _Reader(found, lines, problems, layer, subject).file(file, data)
        problems.settle()
        return policy
    problems.settle()
    raise AssertionError("a problem was added and not raised")


def _syntax(message: str, data: bytes) -> tuple[int, str]:
    """`tomllib` writes the line at the end of its sentence, and "end of document" where that is meant."""
    sentence, _, place = message.rpartition(" (at ")
    number = place.removeprefix("line ").partition(",")[0]
    line = int(number) if number.isdigit() else max(len(data.splitlines()), 1)
    return line, f"not TOML: {sentence or message}"


class _Reader:
    """Walks what was parsed. A problem is noted and something harmless put in its place: nothing of a file with
    problems is used."""

    def __init__(
        self,
        found: Table,
        lines: Mapping[Path, int],
        problems: Problems,
        layer: Layer,
        subject: Callable[[str], Subject],
    ) -> None:
        self._found, self._lines, self._problems, self._layer = found, lines, problems, layer
        self._subject = subject

    def file(self, file: str, data: bytes) -> PolicyFile:
        found = self._found
        self._check_keys(found, (), _TOP, required=("version", "default"))
        if repr(version := found.get("version", VERSION)) != repr(VERSION):  # True would be equal to 1
            self._add(("version",), f"version is {version!r}; this program knows {VERSION}")
        for key in _ONLY_ABOVE:
            if key in found and self._layer not in _TRUSTED:
                self._add((key,), f"{key!r} is accepted in the operator's and organisation's layers only")
        mode = self._word(found, (), "mode", tuple(Mode), Mode.STRICT)
        return PolicyFile(
            file,
            self._layer,
            cast(Literal["deny", "capability"], self._word(found, (), "default", ("deny", "capability"), "deny")),
            Mode(mode),
            self._problems.where(self._line(("mode",))) if "mode" in found else None,
            self._flag(found, (), "allow_in_process"),
            self._rules(),
            tuple(self._tables("class", self._class)),
            tuple(self._tables("source", self._source)),
            tuple(self._tables("sink", self._sink)),
            tuple(self._tables("declassify", self._declassify)),
            text=data,
        )

    def _tables(self, name: str, read: Callable[[Table, Path], T]) -> list[T]:
        tables: Any = self._found.get(name, [])
        if not isinstance(tables, list) or not all(isinstance(one, dict) for one in cast(list[Any], tables)):
            self._add((name,), f"{name!r} is a list of tables", f"write [[{name}]]")
            return []
        return [read(table, (name, number)) for number, table in enumerate(cast(list[Table], tables))]

    def _rules(self) -> tuple[Rule, ...]:
        rules = self._tables("rule", self._rule)
        first: dict[str, Rule] = {}
        for number, rule in enumerate(rules):
            known = first.setdefault(rule.id, rule)
            if rule.id and known is not rule:
                self._add(("rule", number, "id"), f"there is a rule {rule.id!r} already, at {known.where}")
        return tuple(rules)

    def _rule(self, table: Table, path: Path) -> Rule:
        if "when" in table:
            self._add((*path, "when"), _WHEN)
            table = {key: value for key, value in table.items() if key != "when"}
        self._check_keys(table, path, _TABLES["rule"], required=("id", "effect", "what"))
        effect = Effect(self._word(table, path, "effect", tuple(Effect), Effect.FORBID))
        for key, effects in _ONLY_WITH.items():
            if key in table and effect not in effects:
                self._add((*path, key), f"{key!r} says nothing on a rule that {_VERBS[effect]}")
        violation = self._word(table, path, "violation", ("kill", "refuse"), "")
        return Rule(
            self._id(table, path),
            effect,
            self._capabilities(table, path, "what", effect),
            self._list(table, path, "agents", self._subject) or (Subject.parse("*"),),
            self._problems.where(self._line(path)),
            self._text(table, path, "reason"),
            self._list(table, path, "approvers", _approver),
            self._one(table, path, "deadline", parse_duration),
            self._list(table, path, "scopes", _scope),
            self._one(table, path, "rate", Rate.parse),
            cast(Literal["", "kill", "refuse"], violation),
            self._layer,
        )

    def _class(self, table: Table, path: Path) -> ClassRule:
        self._check_keys(table, path, _TABLES["class"], required=("name", "readers"))
        readers = self._capabilities(table, path, "readers", None, empty=True)
        return ClassRule(self._text(table, path, "name"), readers, self._problems.where(self._line(path)))

    def _source(self, table: Table, path: Path) -> SourceRule:
        self._check_keys(table, path, _TABLES["source"], required=("what", "integrity"))
        what = self._capabilities(table, path, "what", None)
        classes = frozenset(self._list(table, path, "classes", str, empty=True))
        return SourceRule(what, self._integrity(table, path), classes, self._problems.where(self._line(path)))

    def _sink(self, table: Table, path: Path) -> SinkRule:
        self._check_keys(table, path, _TABLES["sink"], required=("what",))
        if "integrity" not in table and "classes" not in table:
            self._add(path, "a sink says which 'integrity' or which 'classes' may reach it")
        classes = frozenset(self._list(table, path, "classes", str, empty=True)) if "classes" in table else None
        otherwise = self._word(table, path, "else", ("deny", "ask"), "deny")
        return SinkRule(
            self._capabilities(table, path, "what", None),
            self._integrity(table, path),
            classes,
            cast(Literal["deny", "ask"], otherwise),
            self._problems.where(self._line(path)),
        )

    def _declassify(self, table: Table, path: Path) -> DeclassifyRule:
        self._check_keys(table, path, _TABLES["declassify"], required=("from", "to", "type"))
        everybody = Subject.parse("*")
        return DeclassifyRule(
            self._one(table, path, "from", self._subject) or everybody,
            self._one(table, path, "to", self._subject) or everybody,
            self._text(table, path, "type"),
            self._one(table, path, "rate", Rate.parse),
            self._problems.where(self._line(path)),
        )

    def _id(self, table: Table, path: Path) -> str:
        name = self._text(table, path, "id")
        if "id" in table and (not name or len(name) > 100 or not name.isprintable()):
            self._add((*path, "id"), "an id has 1 to 100 printable characters")
        return name

    def _integrity(self, table: Table, path: Path) -> Literal["trusted", "untrusted"]:
        word = self._word(table, path, "integrity", ("trusted", "untrusted"), "untrusted")
        return cast(Literal["trusted", "untrusted"], word)

    def _check_keys(self, table: Table, path: Path, known: Collection[str], required: Sequence[str]) -> None:
        inside = f"[[{path[0]}]]" if path else "the file"
        for key in table:
            if key not in known:
                self._add((*path, key), f"{inside} has no key {key!r}{nearest(key, known)}")
        for key in required:
            if key not in table:
                self._add(path, f"{inside} needs the key {key!r}")

    def _word(self, table: Table, path: Path, key: str, known: Sequence[str], default: str) -> str:
        if key not in table:
            return default
        word: Any = table[key]
        if isinstance(word, str) and word in known:
            return word
        near = nearest(word, known) if isinstance(word, str) else ""
        self._add((*path, key), f"{key!r} is {word!r}, which is none of {', '.join(known)}{near}")
        return default

    def _flag(self, table: Table, path: Path, key: str) -> bool:
        if isinstance(value := table.get(key, False), bool):
            return value
        self._add((*path, key), f"{key!r} is true or false, not {value!r}")
        return False

    def _text(self, table: Table, path: Path, key: str) -> str:
        if isinstance(value := table.get(key, ""), str):
            return value
        self._add((*path, key), f"{key!r} is a text, not {value!r}")
        return ""

    def _one(self, table: Table, path: Path, key: str, parse: Callable[[str], T]) -> T | None:
        text = self._text(table, path, key)
        return self._parsed((*path, key), text, parse) if isinstance(table.get(key), str) else None

    def _list(
        self, table: Table, path: Path, key: str, parse: Callable[[str], T], *, empty: bool = False
    ) -> tuple[T, ...]:
        values: Any = table.get(key)
        if values is None:
            return ()
        if not isinstance(values, list) or not all(isinstance(one, str) for one in cast(list[Any], values)):
            self._add((*path, key), f"{key!r} is a list of texts, not {values!r}")
            return ()
        texts = cast(list[str], values)
        if not texts and not empty:
            self._add((*path, key), f"{key!r} is empty, so the rule would never hold")
        parsed = (self._parsed((*path, key, number), text, parse) for number, text in enumerate(texts))
        return tuple(one for one in parsed if one is not None)

    def _capabilities(
        self, table: Table, path: Path, key: str, effect: Effect | None, *, empty: bool = False
    ) -> tuple[Capability, ...]:
        def real(text: str) -> Capability:
            one = rule_capability(text, effect)
            require_real(one, text)
            return one

        return self._list(table, path, key, real, empty=empty)

    def _parsed(self, path: Path, text: str, parse: Callable[[str], T]) -> T | None:
        try:
            return parse(text)
        except AgentOSError as error:
            self._add(path, error.reason, error.hint)
            return None

    def _add(self, path: Path, what: str, hint: str = "") -> None:
        self._problems.add(self._line(path), f"{what} ({hint})" if hint else what)

    def _line(self, path: Path) -> int:
        """Where it stands, or the nearest thing around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


_VERBS = {Effect.ALLOW: "allows", Effect.ASK: "asks", Effect.FORBID: "forbids"}


def _subject(roles: Sequence[str], text: str) -> Subject:
    """A rule about a role that nobody can have would never hold, and be believed."""
    found = Subject.parse(text)
    if found.role and found.role not in roles and not found.role.startswith("custom("):
        near = nearest(found.role, roles) or f"; there is {', '.join(roles)} and custom(LABEL)"
        raise EINVAL("policy.agents", f"{text!r}: there is no such role{near}")
    return found


def _approver(text: str) -> str:
    if not text.startswith("user:") or not text[5:].isprintable() or not text[5:].strip():
        raise EINVAL("policy.approver", f"{text!r} names nobody", hint="as in user:anna")
    return text


def _scope(text: str) -> str:
    if text not in SCOPES:
        raise EINVAL("policy.scope", f"{text!r} is none of {', '.join(SCOPES)}{nearest(text, SCOPES)}")
    return text
