"""A manifest as people write it: TOML or JSON in, an `AgentManifest` out, or every problem in one `ManifestError`.

Owns the way from text to value: which spellings are accepted (`aliases`), where each key stands, what a misspelt one
was meant to be. What a value must be is said by its kind (`values`), what a whole manifest must be by `checks`. Nothing
is ignored: a key that is not known, or not yet, is a problem. Reads one file, and never another.
"""

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from json.decoder import scanstring  # pyright: ignore[reportUnknownVariableType, reportAttributeAccessIssue]
from pathlib import Path as FilePath
from typing import Any, NamedTuple, TypeVar, cast

from agent_os.manifest import checks
from agent_os.manifest.agency import DEFAULT_CHILDREN, Agency, base
from agent_os.manifest.capabilities import IpcScope, peer
from agent_os.manifest.lines import TooDeep, toml_lines
from agent_os.manifest.model import AgentManifest
from agent_os.manifest.problems import LATER, Flaw, ManifestError, Problem, nearest, shown
from agent_os.manifest.roles import AgentRole
from agent_os.manifest.sections import Key, Path, Rows, Section, dotted, keys_of
from agent_os.manifest.values import List, snake

# Which other spellings of a key are read, and which words are kept for later. Every path on the left of `ALIASES`
# is read as the one on the right; a path that is only the beginning of one is a table that exists for its aliases
# alone. Camel case is not here: every key may be written so.

Names = tuple[str, ...]
_LISTS = ("tools", "tools_deny", "topics_publish", "topics_subscribe", "filesystem_access")
_COUNTS = ("tool_calls", "messages", "tokens")

ALIASES: dict[Names, Names] = {
    **{("agent", key): (key,) for key in ("name", "namespace", "version", "description", "role", "base_role")},
    **{("capabilities", key): (key,) for key in _LISTS},
    ("health", "check_interval"): ("health", "check_interval_secs"),
    ("health", "timeout"): ("health", "timeout_secs"),
    ("model", "name"): ("program", "model"),
    ("goal",): ("program", "goal"),
    ("cron",): ("lifecycle", "schedule"),
    ("lifecycle", "cron"): ("lifecycle", "schedule"),
    **{("resources", "budget", f"max_{key}"): ("budget", key) for key in _COUNTS},
    ("resources", "budget", "max_cost_usd"): ("budget", "usd"),
    **{("resources", "budget", key): ("budget", key) for key in (*_COUNTS, "usd", "per", "on_exhausted")},
    ("stop_grace_s",): ("lifecycle", "grace_secs"),
    ("lifecycle", "stop_grace_s"): ("lifecycle", "grace_secs"),
}
TABLES = {path[:-1] for path in ALIASES} | {("resources", "budget")}
CRON = {("cron",), ("lifecycle", "cron")}  # these say when it starts as well

ELSEWHERE_CALLED: dict[str, Names] = {  # what other tools' files say; not read, but answered
    **dict.fromkeys(("command", "cmd", "args", "exec", "run", "entrypoint"), ("program", "argv")),
    **dict.fromkeys(("environment", "env_vars"), ("program", "env")),
    **dict.fromkeys(("cwd", "workdir", "working_directory"), ("program", "working_dir")),
    **dict.fromkeys(("depends_on", "needs"), ("dependencies", "requires")),
    **dict.fromkeys(("restart", "on_failure"), ("health", "restart_policy")),
    "memory": ("resources", "max_memory_mb"),
    "volumes": ("mounts",),
}
RESERVED = frozenset(
    {
        "idle_secs",
        "replicas",
        "pool",
        "auto_shutdown",
        "significant",
        "before",
        "part_of",
        "conflicts",
        "image",
        "signature",
        "signatures",
    }
)


# On which line of a JSON text each key and each element stands, and whether a key is there twice. `json` checks the
# syntax and gives the values but no positions, and of two equal keys it silently keeps the last. Goes in: text.
# Comes out: line numbers by path, as `lines` has them. Where the text is no JSON the walk ends, and `json` will say
# why. It runs first: what is nested deeper than any manifest is refused here, before recursion hurts.

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


MOST_BYTES = 256 << 10
MOST_HINTS = 100  # looking for the nearest name takes a millisecond, and a stranger's file may have many to look for
SUFFIX = ".agent.toml"
_PEERS = Key("ipc_peers", List("ids, with ipc_scope = peers", peer), None, list)
_RESTS_ON = {"supervision": "agency"}  # what a check of a whole table looks at, where it is another table
S = TypeVar("S", bound=Section)


class Read(NamedTuple):
    manifest: AgentManifest
    warnings: list[Problem]
    located: Callable[[checks.Found], Problem]  # where in the file something stands that is found later


class Given(NamedTuple):
    value: object
    path: Path  # as it is written


def load(path: str | os.PathLike[str]) -> Read:
    """From a file: JSON if its name ends so, else TOML."""
    file = FilePath(path)
    data = _bytes(file)
    stem = file.name.removesuffix(SUFFIX)
    if (beside := file.with_name(f"{stem}.agent.d")).exists():
        raise ManifestError([Problem(str(beside), 0, "", f"a directory of drop-ins {LATER}", "write one file")])
    read = (from_json if file.suffix == ".json" else from_toml)(data, str(file))
    if file.name.endswith(SUFFIX) and stem != read.manifest.name:
        message = f"is {read.manifest.name!r}, and the file is called {file.name}"
        read.warnings.append(Problem(str(file), 0, "name", message, f"{read.manifest.name}{SUFFIX}"))
    return read


def _bytes(file: FilePath) -> bytes:
    """No more than a manifest has: in a stranger's folder it may be a pipe, or a link to a device without end."""
    try:
        with open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise ManifestError([Problem(str(file), 0, "", "is no file")])
            return opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise ManifestError([Problem(str(file), 0, "", f"cannot be read: {error.strerror}")]) from None


def from_toml(text: str | bytes, file: str = "") -> Read:
    return _manifest(*_toml(text, file), file)


def from_json(text: str | bytes, file: str = "") -> Read:
    return _manifest(*_json(text, file), file)


def from_dict(tree: Mapping[str, Any], file: str = "") -> Read:
    return _manifest(tree, {}, file)


def read_section(table: type[S], text: str | bytes) -> S:
    """One table for itself, in seed 4's JSON."""
    tree, lines = _json(text, "")
    reader = Reader(table, tree, lines, "")
    made = reader.made()
    reader.settle()
    assert made
    return made


def _manifest(tree: Mapping[str, Any], lines: Mapping[Path, int], file: str) -> Read:
    reader = Reader(AgentManifest, tree, lines, file)
    manifest = reader.made()
    reader.settle()
    assert manifest
    return Read(manifest, sorted(map(reader.located, checks.oddities(manifest))), reader.located)


def _toml(data: str | bytes, file: str) -> tuple[Mapping[str, Any], Mapping[Path, int]]:
    text = _text(data, file)
    try:
        lines = toml_lines(text)  # first: it refuses what `tomllib` would take very long for
        return tomllib.loads(text), lines
    except TooDeep as error:
        problem = Problem(file, error.line, "", str(error))
    except ValueError as error:  # the decoder's own, and that of a number of thousands of digits
        # `tomllib` writes the place at the end of its sentence, and "end of document" where that is meant.
        sentence, _, place = str(error).rpartition(" (at ")
        number = place.removeprefix("line ").partition(",")[0]
        end = text.count("\n") + 1 if isinstance(error, tomllib.TOMLDecodeError) else 0
        line = int(number) if number.isdigit() else end
        problem = Problem(file, line, "", f"not TOML: {sentence or error}")
    raise ManifestError([problem])


def _json(data: str | bytes, file: str) -> tuple[Mapping[str, Any], Mapping[Path, int]]:
    text = _text(data, file)
    try:
        lines, tree = json_lines(text), json.loads(text)
    except BadJson as error:
        problem = Problem(file, error.line, dotted(error.key), error.message)
    except json.JSONDecodeError as error:
        problem = Problem(file, error.lineno, "", f"not JSON: {error.msg}")
    except ValueError as error:  # a number of thousands of digits
        problem = Problem(file, 0, "", f"not JSON: {error}")
    else:
        if isinstance(tree, dict):
            return cast(dict[str, Any], tree), lines
        problem = Problem(file, 1, "", f"is a JSON object, not {shown(tree)}", '{"name": "researcher", …}')
    raise ManifestError([problem])


def _text(data: str | bytes, file: str) -> str:
    raw = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    if len(raw) > MOST_BYTES:
        raise ManifestError(
            [Problem(file, 0, "", f"a manifest has at most {MOST_BYTES >> 10} KiB, not {len(raw)} bytes")]
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManifestError([Problem(file, raw[: error.start].count(b"\n") + 1, "", "this is no UTF-8")]) from None


class Reader:
    """Walks one tree. A problem is noted and the walk goes on, so that all of them are found; nothing is made of a
    tree with problems."""

    def __init__(
        self, table: type[Section], tree: Mapping[str, Any], lines: Mapping[Path, int], file: str, top: Path = ()
    ) -> None:
        self._table, self._lines, self._file, self._top = table, lines, file, top
        self._is_manifest = table is AgentManifest
        self._keys = _known(table)
        self._found: dict[Names, list[Given]] = {}
        self._written: dict[Names, Path] = {(): top}  # how a key that was found is written
        self._values: dict[Names, Any] = {}
        self.problems: list[Problem] = []
        self._collect(tree, top, ())

    def settle(self) -> None:
        """Raise what was found, if anything was."""
        if self.problems:
            raise ManifestError(sorted(self.problems))

    def made(self) -> Any:
        """The table, or None where something is wrong with it."""
        self._found.pop(("agency", "children"), None)  # pids of another life
        for path, given in self._found.items():
            self._convert(path, given)
        self._need(self._table)
        self._fold_peers()
        bad = {self._section(one.key) for one in self.problems}
        if self.problems and not (self._is_manifest and ("role",) in self._values):
            return None
        if self._is_manifest:
            self._values.setdefault(("name",), "nameless")  # so that the rest is checked as well
        try:
            return self._build(self._table, ())
        except ManifestError as error:
            for one in error.problems:
                table = one.key.partition(".")[0]
                if _RESTS_ON.get(table, table) not in bad:  # else it would only tell of what is missing because of that
                    self._note(self._as_written(one.key), one.message, one.hint)
            return None

    def located(self, found: checks.Found) -> Problem:
        path = self._as_written(dotted(found.key))
        return Problem(self._file, self._line(path), dotted(path), found.message, found.hint)

    def _collect(self, tree: Mapping[Any, Any], written: Path, at: Names) -> None:
        for word, value in tree.items():
            path = (*written, str(word))
            here = (*at, snake(str(word)))
            target = ALIASES.get(here, here) if self._is_manifest else here
            key = self._keys.get(target)
            if key is None and not (self._is_manifest and here in TABLES):
                self._unknown(str(word), path, at)
            elif key and key.kind:
                self._take(target, value, path)
                if here in CRON and self._is_manifest:
                    self._take(("lifecycle", "activation"), "on_schedule", path)
            elif target == ("agency",) and isinstance(value, str) and self._is_manifest:
                self._written[target] = path
                self._values[target] = value
            elif isinstance(value, Mapping):
                self._written.setdefault(target, path)
                self._collect(cast(Mapping[Any, Any], value), path, target)
            else:
                self._note(path, f"is a table, not {shown(value)}", f"write [{dotted(target)}]")

    def _take(self, target: Names, value: object, path: Path) -> None:
        for length in range(1, len(target) + 1):  # an alias may be all that there is of its table
            self._written.setdefault(target[:length], path)
        self._found.setdefault(target, []).append(Given(value, path))

    def _unknown(self, word: str, path: Path, at: Names) -> None:
        name = snake(word)
        if name in RESERVED:
            self._note(path, f"`{word}` {LATER}", "leave it out")
            return
        here = [known[-1] for known in (*self._keys, *(ALIASES if self._is_manifest else ())) if known[:-1] == at]
        hint = ""
        if len(self.problems) < MOST_HINTS:
            hint = self._elsewhere(name) or _called_here(name) or nearest(name, here) or self._near_elsewhere(name)
        self._note(path, f"`{word}` unknown", hint)

    def _elsewhere(self, name: str) -> str:
        places = [path[:-1] for path in self._keys if path[-1] == name and len(path) <= 2]
        return f"it belongs {_in(places[0])}" if len(places) == 1 else ""

    def _near_elsewhere(self, name: str) -> str:
        names = {path[-1]: path for path in self._keys}
        near = nearest(name, names)
        return f"{near[:-1]} {_in(names[near.split('`')[1]][:-1])}?" if near else ""

    def _convert(self, target: Names, given: Sequence[Given]) -> None:
        key = self._keys[target]
        assert key.kind
        values: list[Any] = []
        for one in given:
            try:
                values.append(self._rows(key.kind, one) if isinstance(key.kind, Rows) else key.kind.read(one.value))
            except Flaw as flaw:
                self._note((*one.path, *flaw.at), flaw.message, flaw.hint)
        if any(value != values[0] for value in values[1:]):
            both = " and ".join(f"`{dotted(one.path)}` is {shown(one.value)}" for one in given)
            self._note(given[-1].path, f"given twice with different values: {both}", "leave one out")
        elif values:
            self._values[target] = values[0]

    def _rows(self, kind: Rows, given: Given) -> list[Section]:
        value = given.value
        if not isinstance(value, list) or not all(isinstance(row, Mapping) for row in cast(list[object], value)):
            raise Flaw(f"is a list of tables, not {shown(cast(object, value))}", f"write [[{dotted(given.path)}]]")
        made: list[Section] = []
        for number, row in enumerate(cast(list[Mapping[str, Any]], value)):
            reader = Reader(kind.table, row, self._lines, self._file, (*given.path, number))
            one = reader.made()
            self.problems += reader.problems
            made += [one] if one and not reader.problems else []
        return made

    def _need(self, table: type[Section]) -> None:
        for key in keys_of(table).values():
            if key.default is None and (key.name,) not in self._found:
                self._note((*self._top, key.name), f"`{key.name}` is missing", f"{key.name} = …")

    def _fold_peers(self) -> None:
        """`ipc_scope = "peers"` and its list are one value; the list alone says the scope as well."""
        for path in [path for path in self._values if path[-1] == "ipc_peers"]:
            peers, target = self._values.pop(path), (*path[:-1], "ipc_scope")
            scope = self._values.get(target, IpcScope("peers" if peers else "none"))
            if scope.word != "peers" and peers:
                self._note(self._written[path], f"says nothing with ipc_scope = {scope}", 'ipc_scope = "peers"')
            elif scope.peers and list(scope.peers) != peers:
                self._note(self._written[path], "given twice with different values", "leave one out")
            else:
                self._values[target] = IpcScope(scope.word, tuple(peers))

    def _build(self, table: type[S], at: Names) -> S:
        parts: dict[str, Any] = {}
        for key in keys_of(table).values():
            path = (*at, key.name)
            if key.kind and path in self._values:
                parts[key.name] = self._values[path]
            elif key.table and not key.kind and path in self._written:
                agency = path == ("agency",) and self._is_manifest
                parts[key.name] = self._agency() if agency else self._build(key.table, path)
        return table(**parts)

    def _agency(self) -> Agency:
        """A word, or a table in which a missing number of children is the role's."""
        role: AgentRole = self._values["role",]
        base_role: AgentRole = self._values.get(("base_role",), AgentRole.WORKER)
        word = self._values.get(("agency",))
        if word is None:
            usual = DEFAULT_CHILDREN.get(base(role, base_role).word, 0)
            self._values.setdefault(("agency", "max_children"), usual)
            return self._build(Agency, ("agency",))
        if snake(word) not in ("role", "none"):
            hint = nearest(word, ("role", "none")) or 'there is "role", "none", or a table'
            raise ManifestError([Problem("", 0, "agency", f"{shown(word)} unknown", hint)])
        return Agency.of_role(role, base_role) if snake(word) == "role" else Agency.none()

    def _section(self, key: str) -> str:
        """The top-level key, in its usual spelling, that a problem is about."""
        parts = key.split(".")
        return next((path[0] for path, written in self._written.items() if path and dotted(written) == key), parts[0])

    def _as_written(self, key: str) -> Path:
        parts = key.split(".")
        for count in range(len(parts), 0, -1):
            if (known := tuple(parts[:count])) in self._written:
                return (*self._written[known], *(int(part) if part.isdigit() else part for part in parts[count:]))
        return (*self._top, *parts)

    def _note(self, path: Path, message: str, hint: str = "") -> None:
        self.problems.append(Problem(self._file, self._line(path), dotted(path), message, hint))

    def _line(self, path: Path) -> int:
        """Where it stands, or the nearest thing around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1 if self._lines else 0)


@cache
def _known(table: type[Section]) -> Mapping[Names, Key]:
    return dict(_flat(table, ()))


def _flat(table: type[Section], at: Names) -> Iterator[tuple[Names, Key]]:
    for key in keys_of(table).values():
        yield (*at, key.name), key
        if key.table and not key.kind:
            yield from _flat(key.table, (*at, key.name))
        if key.name == "ipc_scope":
            yield (*at, _PEERS.name), _PEERS


def _called_here(name: str) -> str:
    path = ELSEWHERE_CALLED.get(name)
    return f"say `{path[-1]}` {_in(path[:-1])}" if path else ""


def _in(table: Names) -> str:
    return f"in [{dotted(table)}]" if table else "at the top"
