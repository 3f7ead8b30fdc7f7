"""Capabilities: the grammar, the one canonical text, what covers a call, and when one lies within another.

A capability is a kind, some actions, a target pattern and constraints. In: a text in the short form
(`file:/data/**:read{rate:5/s}`) or as a URI (`capability://file/data/**?action=read&rate=5/s`). Out: a `Capability`, or
EINVAL with the position of what is not understood, because ignoring it would widen. Pure: who holds what is `handles`.
"""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agent_os.kernel.authority.constraints import (
    DEFAULT_DEPTH,
    LITERAL_STAR,
    NO_FACTS,
    ROWS,
    Facts,
    checks,
    first_wider,
    inherited,
    row_of,
)
from agent_os.kernel.authority.patterns import KINDS, MOST_BYTES, ROOTED, Flaw, Pattern, compiled, first_control
from agent_os.kernel.calls import Need

ACTIONS: dict[str, frozenset[str]] = {
    "agent": frozenset({"spawn", "signal", "inspect"}),
    "file": frozenset({"read", "write", "delete"}),
    "http": frozenset({"get", "head", "post", "put", "patch", "delete", "options"}),
    "ipc": frozenset({"send", "publish", "subscribe", "urgent", "replay"}),
    "llm": frozenset({"call", "embed"}),
    "mem": frozenset({"read", "write", "delete", "search", "share"}),
    "secret": frozenset({"use"}),
    "shell": frozenset({"execute"}),
    "tool": frozenset({"call"}),
}
_SCHEME = "capability://"
_ALL_HTTP = "request"  # what the first design calls all methods
_STRANGE = re.compile(r"[{}?&%]")  # only the URI form can hold these
_SPECIAL = str.maketrans({char: f"%{ord(char):02X}" for char in "%?&{},|"} | {LITERAL_STAR: "%2A"})
_SPAWN = frozenset({"spawn"})
_USUAL = (("port", 443), ("scheme", "https"))  # of requests
_PORT = re.compile(r":(\d{1,5})\Z", re.ASCII)
_DEFAULT_CHECKS = {kind: tuple(checks(kind, {})) for kind in KINDS}


class Capability:
    """Never changed after it is made. Equal capabilities have equal canonical text."""

    __slots__ = ("_checks", "actions", "constraints", "kind", "plain", "target")

    def __init__(
        self, kind: str, target: Pattern, actions: frozenset[str], constraints: Mapping[str, Any] | None = None
    ) -> None:
        self.kind, self.target, self.actions = kind, target, actions
        self.constraints: Mapping[str, Any] = constraints or {}
        self._checks = tuple(checks(kind, self.constraints)) if constraints else _DEFAULT_CHECKS[kind]
        self.plain = not self._checks and not target.own  # the need alone decides, whatever the facts are

    @property
    def sure(self) -> str:
        """Whatever begins so, and goes on, is covered, whatever the facts are; empty: there is no such beginning."""
        return self.target.prefix if self.plain and self.kind in ROOTED else ""

    def covers(self, need: Need, facts: Facts = NO_FACTS) -> bool:
        return self.misfit(need, facts) is None

    def misfit(self, need: Need, facts: Facts = NO_FACTS) -> str | None:
        """The first row in which it does not cover a call: kind, target, actions, a constraint; None: it does."""
        kind, action, target = need
        if kind != self.kind:
            return "kind"
        if self.target.own:
            if action != "spawn" and not facts.get("descendant"):  # a new child is a descendant
                return "target"
        elif not self.target.matches(target) and not (action == "read" and self._lists(target)):
            return "target"
        if action not in self.actions:
            return "actions"
        for name, fits, value in self._checks:
            if not fits(value, facts):
                return name
        return None

    def _lists(self, target: str) -> bool:
        return self.kind in ROOTED and self.target.is_base(target)

    def reaches(self, kind: str, action: str, folder: str) -> bool:
        """Whether it may cover something below a folder."""
        return kind == self.kind and action in self.actions and self.target.reaches(folder)

    def covers_host(self, host: str, facts: Facts = NO_FACTS) -> bool:
        """A tunnel hides method and path, so all of both must be granted."""
        whole = Pattern("http", (), subtree=True, host=host)
        if self.kind != "http" or self.actions != ACTIONS["http"] or not whole.within(self.target):
            return False
        return all(fits(value, facts) for _, fits, value in self._checks)

    def wider_than(self, parent: "Capability") -> str | None:
        """The first row in which this is not proved to lie within the other; None: proved."""
        if self.kind != parent.kind:
            return "kind"
        if not self.actions <= parent.actions:
            return "actions"
        if not self.target.within(parent.target) and not (parent.target.own and self.actions == _SPAWN):
            return "target"  # whoever starts one has it as its own, whatever the name
        return first_wider(self.constraints, parent.constraints)

    def within(self, parent: "Capability") -> bool:
        return self.wider_than(parent) is None

    def under(self, ceiling: "Capability") -> bool:
        """Within what somebody may hold at most. A ceiling is no parent, so it may be as deep."""
        deep = {**ceiling.constraints, "depth": ceiling.constraints.get("depth", DEFAULT_DEPTH) + 1}
        return self.within(Capability(ceiling.kind, ceiling.target, ceiling.actions, deep))

    def below(self, parent: "Capability") -> "Capability":
        """What is handed on: with all that it inherits. Call it after `wider_than` has proved it."""
        return Capability(self.kind, self.target, self.actions, inherited(self.constraints, parent.constraints))

    def only(self, actions: frozenset[str]) -> "Capability":
        return Capability(self.kind, self.target, actions, self.constraints)

    @property
    def canonical(self) -> str:
        target = str(self.target)
        if target and self.kind not in ROOTED:
            target = f"/{target}"
        params = [f"action={','.join(sorted(self.actions))}"]
        params += [f"{name}={','.join(words)}" for name, words in self._words()]
        return f"{_SCHEME}{self.kind}{target}?{'&'.join(params)}"

    def __str__(self) -> str:
        """The short form, where there is one; else the canonical text."""
        target, words = str(self.target), self._words()
        if "%" in target or any("%" in word for _, several in words for word in several):
            return self.canonical
        short = ":".join([self.kind, *([target] if target else []), ",".join(sorted(self.actions))])
        inner = ",".join(f"{name}:{'|'.join(several)}" for name, several in words)
        return f"{short}{{{inner}}}" if inner else short

    def _words(self) -> list[tuple[str, list[str]]]:
        shown: list[tuple[str, list[str]]] = []
        for name in sorted(self.constraints):
            row = row_of(name)
            assert row is not None
            shown.append((name, [word.translate(_SPECIAL) for word in row.show(self.constraints[name])]))
        return shown

    def __repr__(self) -> str:
        return f"<{self}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Capability):
            return NotImplemented
        return (self.target, self.actions, self.constraints) == (other.target, other.actions, other.constraints)

    def __hash__(self) -> int:
        return hash((self.target, self.actions, frozenset(self.constraints.items())))


def parse(text: str, *, rule: bool = False, now: float | None = None) -> Capability:
    """Either form. `rule`: patterns may have `**` once in the middle. `now`: what a relative expiry counts from."""
    moment = time.time() if now is None else now
    try:
        if len(text) > MOST_BYTES or (not text.isascii() and len(text.encode(errors="surrogatepass")) > MOST_BYTES):
            raise Flaw(MOST_BYTES, f"a capability has at most {MOST_BYTES} bytes")
        if LITERAL_STAR in text:
            raise Flaw(text.index(LITERAL_STAR), "a control character stands for nothing here")
        if text.startswith(_SCHEME):
            return _Uri(text, rule, moment).read()
        return _short(text, rule, moment)
    except Flaw as flaw:
        raise flaw.error(text, "cap.malformed") from None


def missing(need: Need, facts: Facts = NO_FACTS) -> str:
    """The least capability that would cover a call, as a person can write it."""
    kind, action, target = need
    more = _unusual(facts) if kind == "http" else []
    starred = kind in ROOTED and "*" in target  # there it is a letter of a name
    if starred or _STRANGE.search(target):
        encoded = (target.replace("*", LITERAL_STAR) if starred else target).translate(_SPECIAL)
        params = "&".join([f"action={action}", *(one.replace(":", "=", 1) for one in more)])
        return f"{_SCHEME}{kind}{'' if kind in ROOTED else '/'}{encoded}?{params}"
    short = f"{kind}:{target}:{action}" if target else f"{kind}:{action}"
    return f"{short}{{{','.join(more)}}}" if more else short


def _unusual(facts: Facts) -> list[str]:
    """What a capability for that request must say besides: where nothing is said, it is for https on its own port. An
    endpoint of the host itself says all of it."""
    if "loopback" in facts:
        return [f"loopback:{facts['loopback']}"]
    return [f"{name}:{facts[name]}" for name, usual in _USUAL if facts.get(name, usual) != usual]


def together(needs: Sequence[Need]) -> list[Need]:
    """Needs of the same target as one with all their actions, as a person can write it."""
    found: dict[tuple[str, str], set[str]] = {}
    for kind, action, target in needs:
        found.setdefault((kind, target), set()).add(action)
    return [
        Need(kind, _ALL_HTTP if kind == "http" and actions >= ACTIONS[kind] else ",".join(sorted(actions)), target)
        for (kind, target), actions in found.items()
    ]


def _short(text: str, rule: bool, now: float) -> Capability:
    end = text.find("{") if text.endswith("}") else len(text)
    strange = _STRANGE.search(text, 0, end) if end >= 0 else None
    if end < 0 or strange:
        at = strange.start() if strange else len(text) - 1
        if text[at] == "{" and "}" not in text[at:]:
            raise Flaw(len(text), "the } that ends the conditions is missing", f"{text}}}")
        hint = "capability://kind/target?action=…&name=value"
        raise Flaw(at, f"{text[at]!r} has no place here; a target that holds it needs the URI form", hint)
    first, last = text.find(":", 0, end), text.rfind(":", 0, end)
    kind = _kind(text[:first] if first >= 0 else text[:end], 0)
    if first < 0:
        raise Flaw(end, "the actions are missing", f"{kind}:TARGET:{','.join(sorted(ACTIONS[kind]))}")
    actions = _actions(kind, text[last + 1 : end], last + 1)
    target = _target(kind, text[first + 1 : last] if last > first else "", first + 1, rule)
    found: dict[str, Any] = {}
    at = end + 1
    for item in text[at:-1].split(",") if end < len(text) else ():
        name, colon, value = item.partition(":")
        if not colon:
            raise Flaw(at, f"{item!r} is not name:value", "a list inside braces is written with |")
        _constrain(found, kind, name, value.split("|"), (at, at + len(name) + 1), now)
        at += len(item) + 1
    return Capability(kind, target, actions, found)


class _Uri:
    """`capability://kind/target?action=…&name=value`, read from left to right."""

    def __init__(self, text: str, rule: bool, now: float) -> None:
        self._text, self._rule, self._now = text, rule, now
        self._found: dict[str, Any] = {}

    def read(self) -> Capability:
        text, begin = self._text, len(_SCHEME)
        end = text.find("?", begin)
        if end < 0:
            raise Flaw(len(text), "action is required", "…?action=read")
        slash = text.find("/", begin, end)
        kind = _kind(text[begin : slash if slash >= 0 else end], begin)
        target = self._target(kind, slash, end)
        actions: frozenset[str] | None = None
        at = end + 1
        for item in text[at:].split("&"):
            name, equals, value = item.partition("=")
            if not equals:
                raise Flaw(at, f"{item!r} is not name=value")
            place = at + len(name) + 1
            if name == "constraint":
                name, colon, value = value.partition(":")
                if not colon:
                    raise Flaw(place, "constraint=name:value is written with a colon")
                at, place = place, place + len(name) + 1
            if name == "action":
                if actions is not None:
                    raise Flaw(at, "action is written twice", "one list: action=read,write")
                actions = _actions(kind, value, place)
            else:
                words = [_decoded(word, place)[0] for word in value.split(",")]
                _constrain(self._found, kind, name, words, (at, place), self._now)
            at = place + len(value) + 1
        if actions is None:
            raise Flaw(end + 1, "action is required", "…?action=read")
        return Capability(kind, target, actions, self._found)

    def _target(self, kind: str, slash: int, end: int) -> Pattern:
        if slash < 0:
            return _target(kind, "", end, self._rule)
        decoded, where = _decoded(self._text[slash + 1 : end], slash + 1)
        if kind in ROOTED:
            decoded, where = f"/{decoded}", [slash, *where]
        if kind == "http":
            host, rest, path = decoded.partition("/")
            if port := _PORT.search(host):
                place = where[port.start(1)]
                _constrain(self._found, kind, "port", [port[1]], (place, place), self._now)
                decoded = host[: port.start()] + rest + path
                where = where[: port.start()] + where[port.end() :]
        where.append(end)
        literal = frozenset(at for at, char in enumerate(decoded) if char == LITERAL_STAR)
        try:
            return compiled(kind, decoded.replace(LITERAL_STAR, "*"), rule=self._rule, literal=literal)
        except Flaw as flaw:
            raise Flaw(where[flaw.position], flaw.why, flaw.hint) from None


def _kind(text: str, at: int) -> str:
    if text not in ACTIONS:
        raise Flaw(at, f"there is no kind {text!r}", f"one of {', '.join(KINDS)}")
    return text


def _actions(kind: str, text: str, at: int) -> frozenset[str]:
    """`*` is written out here and now, so that an action that comes later does not widen what was granted before."""
    known, found = ACTIONS[kind], set[str]()
    if text == "*":
        return known
    for action in text.split(","):
        if action == _ALL_HTTP and kind == "http" and not found and "," not in text:
            return known
        if action not in known:
            raise Flaw(at, f"{kind} has no action {action!r}", f"there is {', '.join(sorted(known))}, and * for all")
        if action in found:
            raise Flaw(at, f"{action} is written twice")
        found.add(action)
        at += len(action) + 1
    return frozenset(found)


def _target(kind: str, text: str, at: int, rule: bool) -> Pattern:
    try:
        return compiled(kind, text, rule=rule)
    except Flaw as flaw:
        hint = flaw.hint
        if kind == "http" and _PORT.search(text.partition("/")[0]):
            hint = f"a port needs the URI form: {_SCHEME}http/{text}?action=…"
        raise Flaw(at + flaw.position, flaw.why, hint) from None


def _constrain(
    found: dict[str, Any], kind: str, name: str, words: Sequence[str], at: tuple[int, int], now: float
) -> None:
    row = row_of(name)
    if row is None or kind not in row.kinds:
        known = [one for one, row in ROWS.items() if kind in row.kinds] + (["arg.NAME"] if kind == "tool" else [])
        raise Flaw(at[0], f"{kind} has no constraint {name!r}", f"there is {', '.join(known)}")
    if name in found:
        raise Flaw(at[0], f"{name} is written twice")
    if bad := next((word for word in words if first_control(word.replace(LITERAL_STAR, "")) >= 0), None):
        raise Flaw(at[1], f"{bad!r} holds a control character")
    try:
        found[name] = row.read(words, now)
    except Flaw as flaw:
        raise Flaw(at[1] + flaw.position, f"{name}: {flaw.why}", flaw.hint) from None


def _decoded(text: str, at: int) -> tuple[str, list[int]]:
    """Percent-decoded once, with where each character came from."""
    if "%" not in text:
        return text, list(range(at, at + len(text)))
    chars: list[str] = []
    where: list[int] = []
    place = 0
    while place < len(text):
        begin, raw = place, bytearray()
        while text[place : place + 1] == "%":
            digits = text[place + 1 : place + 3]
            if not re.fullmatch(r"[0-9A-Fa-f]{2}", digits, re.ASCII):
                raise Flaw(at + place, "% is followed by two hexadecimal digits", "a percent sign itself is %25")
            if digits.upper() in ("2F", "00"):
                raise Flaw(at + place, f"%{digits} would hide what is meant")
            raw += bytes.fromhex(digits)
            place += 3
        if raw:
            try:
                some = raw.decode().replace("*", LITERAL_STAR)
            except UnicodeDecodeError:
                raise Flaw(at + begin, "what is encoded is not UTF-8") from None
            chars += some
            where += [at + begin] * len(some)
        else:
            chars.append(text[place])
            where.append(at + place)
            place += 1
    return "".join(chars), where


def of(kind: str, target: str, actions: Iterable[str]) -> Capability:
    return Capability(kind, compiled(kind, target), frozenset(actions))


# What every agent holds without asking; only an explicit forbid takes it away.
STARTING_SET = (
    of("mem", "/mem/working/**", ("read", "write", "delete")),
    of("mem", "/state/checkpoints/**", ("read",)),
    of("mem", "/policy/**", ("read",)),
    of("mem", "/proc/self/**", ("read",)),
    of("mem", "/ipc/**", ("read",)),
)
