"""The shape of policy: layers, modes, rules, and the tables of information flow, as plain data.

Filled by `reading` (TOML) and `security` (.agents/security.md), compiled by `index`, weighed by `layers`; the tables
class, source, sink and declassify are used by labels. Every part knows the file and line it came from. Nothing here
reads a file or decides a call.
"""

import re
from collections.abc import Iterable
from enum import IntEnum, StrEnum
from typing import Literal

from msgspec import Struct

from agent_os.abi.errors import EINVAL
from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.constraints import ROWS
from agent_os.kernel.authority.patterns import Flaw, Pattern
from agent_os.kernel.authority.policy.problems import Where

SCOPES = ("once", "session", "always")
MOST_BYTES = 8 << 20  # of a file
_LABEL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
_CUSTOM = re.compile(rf"custom(?:\(({_LABEL})\)|:({_LABEL}))", re.ASCII)
_NAMES = re.compile(r"[a-z0-9_.*/-]+")  # of agents, with their namespaces


class Layer(IntEnum):
    """Whose word it is, from the top. A lower one only narrows."""

    BUILTIN = 0
    ORGANISATION = 1
    OPERATOR = 2
    PROJECT = 3
    MANIFEST = 4


class Effect(StrEnum):
    ALLOW = "allow"
    ASK = "ask"
    FORBID = "forbid"


class Mode(StrEnum):
    """What a refusal means; from the mildest."""

    SHADOW = "shadow"  # recorded, and the call runs
    ENFORCE = "enforce"  # refused, the agent goes on
    STRICT = "strict"  # refused, and a forbid ends the agent


class Rate(Struct, frozen=True):
    count: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.count}/{self.seconds:g}s"

    @classmethod
    def parse(cls, text: str) -> "Rate":
        """`100/hour`, as in a capability."""
        try:
            count, per_ms = ROWS["rate"].read([text], 0)
        except Flaw:
            raise EINVAL("policy.rate", f"{text!r} is no rate", hint="100/hour; second, minute, hour or day") from None
        return cls(count, per_ms / 1000)


class Subject(Struct, frozen=True):
    """Whom a rule is about: agents by name, or all of a role."""

    text: str  # as written
    role: str = ""
    names: Pattern | None = None

    @classmethod
    def parse(cls, text: str) -> "Subject":
        """A name, a pattern of names, or `role:NAME`."""
        if text.startswith("role:"):
            role = text.removeprefix("role:")
            if custom := _CUSTOM.fullmatch(role):
                role = f"custom({custom[1] or custom[2]})"
            elif not role.replace("-", "").replace("_", "").isalnum():
                raise EINVAL("policy.agents", f"{text!r} names no role", hint="as in role:worker")
            return cls(text, role=role)
        if not text:
            raise EINVAL("policy.agents", "an empty name is nobody's", hint='everybody is "*"')
        if not _NAMES.fullmatch(text):
            hint = "lower-case letters, digits, '.', '_', '-', and a * for any"
            raise EINVAL("policy.agents", f"no agent is called {text!r}", hint=hint)
        return cls(text, names=Pattern.parse("agent", text, rule=True))

    def covers(self, name: str, role: str) -> bool:
        return self.role == role if self.names is None else self.names.matches(name)

    def within(self, other: "Subject") -> bool:
        """Proved: whoever this is about, the other is about."""
        if self.names is None or other.names is None:
            return self.role == other.role or (other.names is not None and other.names.anything)
        return self.names.within(other.names)


class Rule(Struct, frozen=True):
    id: str
    effect: Effect
    what: tuple[Capability, ...]
    agents: tuple[Subject, ...]
    where: Where
    reason: str = ""
    approvers: tuple[str, ...] = ()  # empty: the operators
    deadline_s: float | None = None
    scopes: tuple[str, ...] = ()  # empty: all
    rate: Rate | None = None  # per agent
    violation: Literal["", "kill", "refuse"] = ""  # of a forbid; empty: as the mode says
    layer: Layer = Layer.BUILTIN

    @property
    def name(self) -> str:
        """As nobody of another layer can call a rule: what a person has agreed to is bound to it."""
        return f"{self.layer.name.lower()}:{self.id}"

    def about(self, parties: Iterable[tuple[str, str]]) -> bool:
        """Of names with their roles, any."""
        return any(subject.covers(name, role) for name, role in parties for subject in self.agents)


class ClassRule(Struct, frozen=True):
    """`[[class]]`: a class of data and who may read it."""

    name: str
    readers: tuple[Capability, ...]
    where: Where


class SourceRule(Struct, frozen=True):
    """`[[source]]`: what comes from there is better, or worse, than its kind's default."""

    what: tuple[Capability, ...]
    integrity: Literal["trusted", "untrusted"]
    classes: frozenset[str]
    where: Where


class SinkRule(Struct, frozen=True):
    """`[[sink]]`: what may go there. `integrity` trusted: nothing untrusted; `classes`: only these, None for all."""

    what: tuple[Capability, ...]
    integrity: Literal["trusted", "untrusted"]
    classes: frozenset[str] | None
    otherwise: Literal["deny", "ask"]
    where: Where


class DeclassifyRule(Struct, frozen=True):
    """`[[declassify]]`: this closed type, from this agent to that one, does not carry its sender's label."""

    sender: Subject
    receiver: Subject
    type: str
    rate: Rate | None
    where: Where


class PolicyFile(Struct, frozen=True):
    """One file, checked. `signals`, `metrics` and `traces` come from an imported security.md; None: it says nothing."""

    file: str
    layer: Layer
    default: Literal["deny", "capability"]
    mode: Mode = Mode.STRICT
    mode_where: Where | None = None
    allow_in_process: bool = False
    rules: tuple[Rule, ...] = ()
    classes: tuple[ClassRule, ...] = ()
    sources: tuple[SourceRule, ...] = ()
    sinks: tuple[SinkRule, ...] = ()
    declassify: tuple[DeclassifyRule, ...] = ()
    signals: frozenset[str] | None = None
    metrics: bool | None = None
    traces: bool | None = None
    tried: bool = (
        False  # in one run, by its operator's word: its mode is shadow, whatever is above and whatever it says
    )
    text: bytes = b""  # as it was read; what the digest is made of


def parse_duration(text: str) -> float:
    """`15m` in seconds, as in a capability."""
    try:
        return ROWS["timeout"].read([text], 0) / 1000
    except Flaw:
        raise EINVAL("policy.duration", f"{text!r} is no duration", hint="15m; s, m, h or d") from None
