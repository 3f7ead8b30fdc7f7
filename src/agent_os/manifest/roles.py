"""The words of seed 4 that have no parts: roles, priorities, restart policies, protocols, response modes.

Each is a value that prints as people write it. `read` takes every accepted spelling: `worker`, `Worker`,
`custom(analytics)`, `custom:analytics`, `{"Custom": "analytics"}`. Names exist twice, as Python writes constants and as
seed 4 does, and are the same objects.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, ClassVar, cast

from agent_os.manifest.problems import Flaw, nearest, shown
from agent_os.manifest.values import Kind, snake, str_of

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_CUSTOM = re.compile(r"(?i)custom(?:\((.*)\)|:(.*))", re.DOTALL)
_TOPIC = re.compile(r"(?i)topic:(.*)", re.DOTALL)


@dataclass(frozen=True)
class AgentRole:
    """What an agent is in the tree. `AgentRole("worker")`, `AgentRole.WORKER` or `AgentRole.custom("analytics")`."""

    word: str
    label: str = ""  # of a custom role

    ROOT: ClassVar["AgentRole"]
    SUPERVISOR: ClassVar["AgentRole"]
    SERVICE: ClassVar["AgentRole"]
    WORKER: ClassVar["AgentRole"]
    USER: ClassVar["AgentRole"]
    Root: ClassVar["AgentRole"]
    Supervisor: ClassVar["AgentRole"]
    Service: ClassVar["AgentRole"]
    Worker: ClassVar["AgentRole"]
    User: ClassVar["AgentRole"]

    def __post_init__(self) -> None:
        if not self.label and (match := _CUSTOM.fullmatch(self.word)):
            object.__setattr__(self, "label", match[1] or match[2] or "")
            object.__setattr__(self, "word", "custom")
        if self.word not in _ROLES:
            raise ValueError(f"no role {self.word!r}")
        if (self.word == "custom") != bool(self.label) or (self.label and not _LABEL.fullmatch(self.label)):
            raise ValueError(f"a custom role has a label, as in custom(analytics), not {self.label!r}")

    @classmethod
    def custom(cls, label: str) -> "AgentRole":
        return cls("custom", label)

    Custom = custom

    @property
    def is_custom(self) -> bool:
        return self.word == "custom"

    @classmethod
    def read(cls, value: object) -> "AgentRole":
        """Every accepted spelling, or a Flaw."""
        if isinstance(value, AgentRole):
            return value
        word, label = _tagged(value, "custom")
        if label is None and (match := _CUSTOM.fullmatch(word)):
            word, label = "custom", match[1] or match[2] or ""
        word = snake(word)
        if word not in _ROLES:
            raise Flaw(f"{shown(value)} is no role", nearest(word, _ROLES) or f"there is {', '.join(_ROLES)}")
        try:
            return cls(word, label or "")
        except ValueError as error:
            raise Flaw(str(error)) from None

    def seed(self) -> object:
        return {"Custom": self.label} if self.is_custom else self.word.capitalize()

    def __str__(self) -> str:
        return f"custom({self.label})" if self.is_custom else self.word


_ROLES = ("root", "supervisor", "service", "worker", "user", "custom")
AgentRole.ROOT = AgentRole.Root = AgentRole("root")
AgentRole.SUPERVISOR = AgentRole.Supervisor = AgentRole("supervisor")
AgentRole.SERVICE = AgentRole.Service = AgentRole("service")
AgentRole.WORKER = AgentRole.Worker = AgentRole("worker")
AgentRole.USER = AgentRole.User = AgentRole("user")


class AgentPriority(Enum):
    """Ordered: low is below critical."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    CRITICAL = "critical"
    Low, Normal, High, Critical = LOW, NORMAL, HIGH, CRITICAL

    @property
    def weight(self) -> int:
        """Of cpu and io, against its siblings."""
        return {"low": 25, "normal": 100, "high": 300, "critical": 800}[self.value]

    def __lt__(self, other: "AgentPriority") -> bool:
        return self.weight < other.weight

    def __le__(self, other: "AgentPriority") -> bool:
        return self.weight <= other.weight

    def __gt__(self, other: "AgentPriority") -> bool:
        return self.weight > other.weight

    def __ge__(self, other: "AgentPriority") -> bool:
        return self.weight >= other.weight

    def __str__(self) -> str:
        return self.value


class AgentRestartPolicy(StrEnum):
    NEVER = "never"
    ON_FAILURE = "on_failure"
    ALWAYS = "always"
    Never, OnFailure, Always = NEVER, ON_FAILURE, ALWAYS


class InterfaceProtocol(StrEnum):
    """`grpc` is known and refused in a manifest until it is built."""

    IPC = "ipc"
    REST = "rest"
    GRPC = "grpc"
    MCP = "mcp"
    Ipc, Rest, Grpc, Mcp = IPC, REST, GRPC, MCP


@dataclass(frozen=True)
class ResponseMode:
    """Where an answer goes: to the sender, to all subscribers, or to one topic."""

    word: str = "direct"
    topic_name: str = ""

    DIRECT: ClassVar["ResponseMode"]
    BROADCAST: ClassVar["ResponseMode"]
    Direct: ClassVar["ResponseMode"]
    Broadcast: ClassVar["ResponseMode"]

    @classmethod
    def topic(cls, name: str) -> "ResponseMode":
        return cls("topic", name)

    Topic = topic

    @classmethod
    def read(cls, value: object) -> "ResponseMode":
        if isinstance(value, ResponseMode):
            return value
        word, name = _tagged(value, "topic")
        if name is None and (match := _TOPIC.fullmatch(word)):
            word, name = "topic", match[1]
        word = snake(word)
        if word not in ("direct", "broadcast", "topic"):
            hint = nearest(word, ("direct", "broadcast")) or "there is direct, broadcast, topic:<name>"
            raise Flaw(f"{shown(value)} unknown", hint)
        if (word == "topic") != bool(name):
            raise Flaw("a response to a topic names it", 'as in "topic:events"')
        return cls(word, name or "")

    def seed(self) -> object:
        return {"Topic": self.topic_name} if self.word == "topic" else self.word.capitalize()

    def __str__(self) -> str:
        return f"topic:{self.topic_name}" if self.word == "topic" else self.word


ResponseMode.DIRECT = ResponseMode.Direct = ResponseMode("direct")
ResponseMode.BROADCAST = ResponseMode.Broadcast = ResponseMode("broadcast")


class Role(Kind):
    says = "supervisor|service|worker|user|custom:<label>"

    def read(self, value: object) -> AgentRole:
        return AgentRole.read(value)

    def write(self, value: Any) -> object:
        return str(value)

    def seed(self, value: Any) -> object:
        return value.seed()


class Response(Role):
    says = "direct|broadcast|topic:<name>"

    def read(self, value: object) -> Any:
        return ResponseMode.read(value)


def _tagged(value: object, tag: str) -> tuple[str, str | None]:
    """A word, or the one pair that serde writes for a word with a part: `{"Custom": "x"}`."""
    if isinstance(value, Mapping):
        pairs = list(cast(Mapping[object, object], value).items())
        if len(pairs) == 1 and isinstance(pairs[0][0], str) and snake(pairs[0][0]) == tag:
            return tag, str_of(pairs[0][1])
        raise Flaw(f"{shown(cast(object, value))} unknown", f'as in {{"{tag.capitalize()}": "name"}}')
    return str_of(value), None
