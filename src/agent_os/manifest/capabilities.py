"""What an agent may do, as seed 4 writes it: switches, the scope of its messages, limits; and the lists beside them.

`AgentCapabilities` is the table `[capabilities]`; `CapabilityCeiling` is the same with the lists that a manifest keeps
at its top, for `[agency.capability_ceiling]`. By default nothing is granted. These are words of a manifest: what holds
is decided by the kernel from the handles that they become (`granting`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Annotated, Any, ClassVar, cast

from agent_os.manifest.problems import Flaw, nearest, shown
from agent_os.manifest.sections import Section
from agent_os.manifest.values import U64_MAX, UNLIMITED, Flag, Kind, List, Whole, agent_id, snake, str_of

SWITCHES = ("can_spawn", "can_ipc", "can_exec_tools", "can_network")
_SCOPES = ("all", "parent", "peers", "topics", "none")
_ALSO = {"explicit": "peers", "restricted": "peers", "parent_only": "parent", "topic": "topics"}
_SEED = {"all": "All", "parent": "ParentOnly", "topics": "Topic", "none": "None"}


@dataclass(frozen=True)
class IpcScope:
    """Whom an agent may send to directly. Topics are open only where they are listed, whatever the scope."""

    word: str = "none"
    peers: tuple[str, ...] = ()  # ids, of the scope `peers`

    ALL: ClassVar["IpcScope"]
    PARENT: ClassVar["IpcScope"]
    TOPICS: ClassVar["IpcScope"]
    NONE: ClassVar["IpcScope"]
    All: ClassVar["IpcScope"]
    ParentOnly: ClassVar["IpcScope"]
    Topic: ClassVar["IpcScope"]

    @classmethod
    def restricted(cls, peers: Iterable[str]) -> "IpcScope":
        return cls("peers", tuple(peers))

    Restricted = restricted

    def reaches(self, target: str, *, parent: str | None = None) -> bool:
        """May a direct message go to this id?"""
        if self.word == "parent":
            return parent is not None and target == parent
        return self.word == "all" or (self.word == "peers" and target in self.peers)

    @classmethod
    def read(cls, value: object) -> "IpcScope":
        if isinstance(value, IpcScope):
            return value
        peers: list[str] = []
        if isinstance(value, Mapping):
            value, peers = _restricted(cast(Mapping[object, object], value))
        word = snake(str_of(value))
        word = _ALSO.get(word, word)
        if word not in _SCOPES:
            raise Flaw(f"{shown(value)} unknown", nearest(word, _SCOPES) or f"there is {', '.join(_SCOPES)}")
        return cls(word, tuple(peers))

    def seed(self) -> object:
        return {"Restricted": list(self.peers)} if self.word == "peers" else _SEED[self.word]

    def __str__(self) -> str:
        return self.word


IpcScope.ALL = IpcScope.All = IpcScope("all")
IpcScope.PARENT = IpcScope.ParentOnly = IpcScope("parent")
IpcScope.TOPICS = IpcScope.Topic = IpcScope("topics")
IpcScope.NONE = IpcScope("none")


def _restricted(value: Mapping[object, object]) -> tuple[str, list[str]]:
    (tag, peers), *more = list(value.items()) or [("", None)]
    if more or not isinstance(tag, str) or snake(tag) not in ("restricted", "peers", "explicit"):
        raise Flaw(f"{shown(dict(value))} unknown", 'as in {"Restricted": ["researcher"]}')
    return "peers", List("", peer).read(peers)


def peer(value: object) -> str:
    if isinstance(value, int):
        raise Flaw(f"{shown(value)} is a pid, which does not outlive a restart", "name the agent by its id")
    return agent_id(value)


def service(value: object) -> str:
    return "*" if value == "*" else peer(value)


class Scope(Kind):
    says = "all|parent|peers|topics|none"

    def read(self, value: object) -> IpcScope:
        return IpcScope.read(value)

    def write(self, value: Any) -> object:
        return str(value)

    def seed(self, value: Any) -> object:
        return value.seed()


class _Bytes(Whole):
    """As seed 4 counts: no limit is the largest number."""

    def __init__(self, about: str) -> None:
        super().__init__(about, most=U64_MAX, none=UNLIMITED)

    def read(self, value: object) -> int | float | None:
        number = super().read(value)
        return U64_MAX if number is None else number

    def write(self, value: Any) -> object:
        return UNLIMITED if value == U64_MAX else value

    def seed(self, value: Any) -> object:
        return value


@dataclass(kw_only=True)
class ResourceLimits(Section):
    """Seed 4's limits, in bytes and milliseconds. Inclusive: use that equals a limit is within it."""

    max_memory_bytes: Annotated[int, _Bytes("memory, in bytes")] = 256 << 20
    max_cpu_time_ms: Annotated[int, _Bytes("cpu time, in milliseconds")] = 300_000
    max_tool_calls: Annotated[int, _Bytes("tool calls")] = 1000
    max_messages: Annotated[int, _Bytes("messages sent")] = 5000
    max_disk_bytes: Annotated[int, _Bytes("bytes written and kept")] = 1024 << 20

    @classmethod
    def unlimited(cls) -> "ResourceLimits":
        return cls(
            max_memory_bytes=U64_MAX,
            max_cpu_time_ms=U64_MAX,
            max_tool_calls=U64_MAX,
            max_messages=U64_MAX,
            max_disk_bytes=U64_MAX,
        )

    def allows(self, resource: str, amount: int) -> bool:
        """Is this much in use within the limit? `resource`: a field's name without `max_`."""
        limit: int = getattr(self, f"max_{resource}")
        return limit == U64_MAX or amount <= limit


def endpoint(value: object) -> str:
    """`host`, `host:port` or `*`."""
    text = str_of(value).lower()
    host, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    host = host if colon else text
    if _is_loopback(host.rstrip(".")):
        raise Flaw(f"{shown(text)}: the loopback is never given by a manifest", "agentctl run --net HOST:PORT")
    if not host or "/" in host or "@" in host or not host.isprintable() or " " in host:
        raise Flaw(f"{shown(text)} is no host", 'as in "api.example.org:443"')
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port[:6]) < 65536):
        raise Flaw(f"{shown(text)} has no port between 1 and 65535", 'as in "api.example.org:443"')
    return text


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def access(value: object) -> str:
    """`ro:/data/in`, `rw:out`, or a path, which is read-only. Relative ones lie below /work."""
    text = str_of(value)
    path = text[3:] if text[:3] in ("ro:", "rw:") else text
    if text != "*" and (not path or ".." in path.split("/")):
        raise Flaw(f"{shown(text)} is no path", 'as in "ro:/data/in" or "rw:out", without ".."')
    return text


def topic(value: object) -> str:
    """A name, with `*` for one level and `>` for the rest; `*` alone: all that is allowed."""
    text = str_of(value)
    parts = text.split(".")
    if not all(parts) or any(char.isspace() for char in text) or ">" in parts[:-1] or "+" in parts:
        raise Flaw(f"{shown(text)} is no topic", "as in research.done, research.*.done or research.>")
    return text


@dataclass(kw_only=True)
class AgentCapabilities(Section):
    """What the agent may do. A switch that is left out follows its list; false beats the list."""

    can_spawn: Annotated[bool, Flag("start children; follows [agency]")] = False
    can_ipc: Annotated[bool, Flag("messages; follows ipc_scope, topics and services")] = False
    can_exec_tools: Annotated[bool, Flag("call tools; follows tools")] = False
    can_network: Annotated[bool, Flag("reach hosts; follows network")] = False
    ipc_scope: Annotated[IpcScope, Scope("whom it may send to directly")] = IpcScope.NONE
    services: Annotated[list[str], List("services it may call", service)] = field(default_factory=list[str])
    network: Annotated[list[str], List("hosts it may reach, port 443 unless given", endpoint)] = field(
        default_factory=list[str]
    )
    secrets: Annotated[list[str], List("secrets the kernel attaches for it; it never sees them")] = field(
        default_factory=list[str]
    )
    models: Annotated[list[str], List("models it may call, as provider/name")] = field(default_factory=list[str])
    approval: Annotated[list[str], List("tools whose calls wait for a person")] = field(default_factory=list[str])
    resource_limits: ResourceLimits = field(default_factory=ResourceLimits)

    @classmethod
    def root(cls) -> "AgentCapabilities":
        """Everything, without limit."""
        return cls(**_everything())

    @property
    def ipc_peers(self) -> list[str]:
        return list(self.ipc_scope.peers)

    def can_message(self, target: str, *, parent: str | None = None) -> bool:
        """May it send to this id? No switch, no message, whatever the scope."""
        return self.can_ipc and self.ipc_scope.reaches(target, parent=parent)

    def to_json(self) -> str:
        """As seed 4 writes it."""
        from agent_os.manifest.writing import section_json

        return section_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> "AgentCapabilities":
        from agent_os.manifest.reading import read_section

        return read_section(cls, text)


@dataclass(kw_only=True)
class CapabilityCeiling(AgentCapabilities):
    """What children may hold at most, within what the agent holds itself. Empty: nothing."""

    tools: Annotated[list[str], List("tools, ['*']: all that the agent has")] = field(default_factory=list[str])
    topics_publish: Annotated[list[str], List("topics to publish to", topic)] = field(default_factory=list[str])
    topics_subscribe: Annotated[list[str], List("topics to subscribe to", topic)] = field(default_factory=list[str])
    filesystem_access: Annotated[list[str], List("paths, as ro:PATH or rw:PATH", access)] = field(
        default_factory=list[str]
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        followed = {
            "can_ipc": self.ipc_scope != IpcScope.NONE
            or bool(self.topics_publish or self.topics_subscribe or self.services),
            "can_exec_tools": bool(self.tools),
            "can_network": bool(self.network),
        }
        for switch, on in followed.items():
            if switch not in self.given:
                setattr(self, switch, on)

    @classmethod
    def root(cls) -> "CapabilityCeiling":
        everything = ("tools", "topics_publish", "topics_subscribe", "filesystem_access")
        anything: dict[str, Any] = {key: [">" if key.startswith("topics") else "*"] for key in everything}
        return cls(**_everything(), **anything)


def _everything() -> dict[str, Any]:
    return {
        **dict.fromkeys(SWITCHES, True),
        "ipc_scope": IpcScope.ALL,
        **{key: ["*"] for key in ("services", "network", "secrets", "models")},
        "resource_limits": ResourceLimits.unlimited(),
    }
