"""A question to a person: what it is about, so exactly that no other call can pass for it, and as it may be shown.

In: a call as the gate understood it, its label, and why it must be asked. Out: an `Ask`, with a digest over all of it,
and its arguments made short and free of secrets. Pure. What an agent wrote is data here; the doors mark it as such.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Protocol, cast

import msgspec
from msgspec import Struct

from agent_os.abi.syscalls import BY_NUMBER
from agent_os.kernel.authority.capability import Capability, missing, parse, together
from agent_os.kernel.authority.constraints import NO_FACTS
from agent_os.kernel.authority.labels import Label
from agent_os.kernel.calls import Need

DEADLINE_S = 15 * 60.0
SCOPES = ("once", "session", "always")
_LONGEST = 512  # characters of a text that are shown
_MOST = 64  # elements
_DEEPEST = 8
HOLDS = "holds"  # among the facts of a call that asks for more: what its agent has
SCHEMA = "schema"  # among the facts of a question: of the value that answers it
WANTS = "wants"  # among the facts of a call that needs nothing: what it is about
Redact = Callable[[str], str]


class Question(Struct, frozen=True):
    """One reason to ask. Who may answer, by when, and how far the answer may reach is the rule's to say."""

    rule: str  # with its layer, `operator:payments`: another layer's rule of that id is another rule
    reason: str
    approvers: Sequence[str] = ()  # empty: the operators
    deadline_s: float | None = None
    scopes: Sequence[str] = ()  # empty: all


class Asker(Struct, frozen=True):
    """Who wants to do it. `program` stands for its code: what it was started from, as a digest."""

    agent: str
    program: str = ""
    guest: bool = False


class Ask(Struct, frozen=True):
    """A call that needs a person's word."""

    asker: Asker
    op: int
    needs: Sequence[Need]
    args: Any
    label: Label
    questions: Sequence[Question]
    handle: int = 0
    facts: Mapping[str, Any] = NO_FACTS

    @property
    def rules(self) -> frozenset[str]:
        return frozenset(one.rule for one in self.questions)

    @property
    def capability(self) -> str:
        """The least authority that this is, in canonical form. What a standing answer is given for."""
        return " ".join(sorted({_least(need, self.facts).canonical for need in together(self.needs)}))

    @property
    def wants(self) -> str:
        """In a few words: `file.write /work/report.md`."""
        if not self.needs and WANTS in self.facts:
            return str(self.facts[WANTS])
        if not self.needs:
            return BY_NUMBER[self.op].name if self.op in BY_NUMBER else f"syscall {self.op}"
        first, *others = together(self.needs)
        more = f" and {len(others)} more" if others else ""
        return f"{first.kind}.{first.action} {first.target}{more}"

    @property
    def deadline_s(self) -> float:
        return min((one.deadline_s for one in self.questions if one.deadline_s is not None), default=DEADLINE_S)

    @property
    def approvers(self) -> list[list[str]]:
        """Somebody of each of these must be the one who answers."""
        return [sorted(one.approvers) for one in self.questions if one.approvers]

    @property
    def scopes(self) -> list[str]:
        """What all rules offer. `always` would bind to a program, and a guest's code is not in any digest."""
        offered = [one for one in SCOPES if all(one in (q.scopes or SCOPES) for q in self.questions)]
        if self.asker.guest or not self.asker.program:
            offered = [one for one in offered if one != "always"]
        return offered or ["once"]

    def digest(self) -> str:
        """Over agent, syscall, arguments (bodies by their hash), targets and classes of the label."""
        whole = sha256()
        parts = (self.asker.agent, self.op, self.args, [list(need) for need in self.needs], sorted(self.label.classes))
        _feed(whole, list(parts))
        return whole.hexdigest()


def _least(need: Need, facts: Mapping[str, Any]) -> Capability:
    """With the port and the scheme, where they are not those that a capability has by itself."""
    one = parse(missing(need))
    if need.kind != "http" or "port" not in facts:
        return one
    schemes = frozenset({facts["scheme"]} if "scheme" in facts else {"http", "https"})
    limits = {"port": frozenset({facts["port"]}), "scheme": schemes}
    usual = limits == {"port": frozenset({443}), "scheme": frozenset({"https"})}
    return one if usual else Capability(one.kind, one.target, one.actions, {**one.constraints, **limits})


class _Hash(Protocol):
    def update(self, data: bytes, /) -> object: ...


def _feed(whole: _Hash, value: Any) -> None:
    """Every value by its type, length and content: no two values are fed alike."""
    if isinstance(value, str | bytes):
        data = value.encode(errors="surrogatepass") if isinstance(value, str) else value
        whole.update((b"s" if isinstance(value, str) else b"b") + _length(data) + sha256(data).digest())
    elif value is None or isinstance(value, bool):
        whole.update({None: b"n", True: b"t", False: b"f"}[value])
    elif isinstance(value, int):
        digits = b"%d" % value
        whole.update(b"i" + _length(digits) + digits)
    elif isinstance(value, float):
        whole.update(b"d" + struct.pack("<d", value))
    elif isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value)
        whole.update(b"m" + _length(items))
        for key in sorted(items, key=lambda key: (type(key).__name__, str(key))):
            _feed(whole, key)
            _feed(whole, items[key])
    elif isinstance(value, Sequence):
        each = cast("Sequence[Any]", value)
        whole.update(b"a" + _length(each))
        for one in each:
            _feed(whole, one)
    elif isinstance(value, msgspec.Struct):
        _feed(whole, msgspec.structs.asdict(value))
    else:
        data = repr(value).encode()
        whole.update(b"x" + _length(data) + data)


def _length(value: Any) -> bytes:
    return struct.pack("<Q", len(value))


def arguments(args: Any, redact: Redact = str) -> Any:
    """The arguments as they may be shown and kept: secrets out, long texts and bytes by size and hash."""
    return _shown(msgspec.structs.asdict(args) if isinstance(args, msgspec.Struct) else args, redact, 0)


def _shown(value: Any, redact: Redact, depth: int) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        clean = redact(value)
        return clean if len(clean) <= _LONGEST else _stands_for(value.encode(errors="surrogatepass"), clean[:_LONGEST])
    if isinstance(value, bytes):
        try:
            text = redact(value.decode())
        except UnicodeDecodeError:
            return _stands_for(value, "")
        return text if len(text) <= _LONGEST else _stands_for(value, text[:_LONGEST])
    if isinstance(value, Mapping):
        return _shown_map(cast("Mapping[Any, Any]", value), redact, depth)
    if isinstance(value, Sequence):
        each = cast("Sequence[Any]", value)
        if depth >= _DEEPEST:
            return _left_out(each)
        few = [_shown(one, redact, depth + 1) for one in each[:_MOST]]
        return [*few, _left_out(each[_MOST:])] if len(each) > _MOST else few
    return _shown(repr(value), redact, depth)


def _shown_map(value: Mapping[Any, Any], redact: Redact, depth: int) -> dict[str, Any]:
    if depth >= _DEEPEST:
        return {"…": _left_out(value)}
    shown: dict[str, Any] = {}
    for key in list(value)[:_MOST]:
        shown[_name(key, shown, redact)] = _shown(value[key], redact, depth + 1)
    if len(value) > _MOST:
        shown[_name("…", shown, redact)] = _left_out({key: value[key] for key in list(value)[_MOST:]})
    return shown


def _name(key: Any, taken: Mapping[str, Any], redact: Redact) -> str:
    """Of an entry of a map: what is no text says so, and none takes the place of another."""
    text = str(_shown(key, redact, _DEEPEST))
    name = text if isinstance(key, str) else f"{type(key).__name__} {text}"
    while name in taken:
        name += " (again)"
    return name


def _left_out(value: Any) -> str:
    whole = sha256()
    _feed(whole, value)
    return f"… {len(value)} more, sha256 {whole.hexdigest()}"


def _stands_for(data: bytes, begins: str) -> dict[str, Any]:
    facts = {"size": len(data), "sha256": sha256(data).hexdigest()}
    return {"begins": begins, **facts} if begins else facts
