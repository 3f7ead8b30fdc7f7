"""SpawnSpec: the one JSON object that crosses from the kernel to the launcher, checked strictly on arrival.

Owns shapes and defaults only. `descriptors` names, in order, the descriptors that travel with the message; every other
field refers to them by that name.
"""

import functools
import json
import typing
from collections.abc import Callable, Collection
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, NamedTuple, cast

Kind = Literal["native", "guest", "tool"]
Net = Literal["none", "proxy", "unix"]
Level = Literal["S0", "S1", "S2", "S3", "S4"]
LEVELS: tuple[Level, ...] = ("S0", "S1", "S2", "S3", "S4")
PROXY_PORT = 3128
FIRST_HOST_UID, HOST_UIDS = 200_000, 4096  # root mode: the range that agents have uids of
MAX_BYTES, MAX_DESCRIPTORS = 192 * 1024, 250  # of one order


class SpecError(ValueError):
    """A field of the spec is wrong; says which and why."""


class Config(NamedTuple):
    """What a launcher is started with."""

    entry: str  # module:function that runs a native agent; its import is the preload
    path: list[str]  # added to sys.path, because -S leaves site-packages out
    prefixes: list[str]  # of the interpreter, shown to native agents
    root_mode: bool
    landlock_abi: int | None = None  # simulate an older kernel
    without: tuple[str, ...] = ()  # leave layers out: tests and probes only; lowers the level
    fail_at: str = ""  # fail at this step: tests only


class Limits(NamedTuple):
    """None means unlimited. `memory_mb` and `cpu_pct` need a cgroup controller; the spawn record says who enforces."""

    memory_mb: int | None = 256
    as_mb: int | None = 2048
    pids: int = 64
    cpu_pct: int | None = None
    cpu_s: int | None = None
    wall_s: float | None = None
    nofile: int = 256
    fsize_mb: int | None = 64
    disk_mb: int = 1024
    tmp_mb: int = 64
    weight: int | None = None  # its share of cpu and io among others, 100 being usual


GUEST_LIMITS = Limits(memory_mb=None, as_mb=None, pids=512, nofile=1000, fsize_mb=None, disk_mb=8192, tmp_mb=2048)


class Workspace(NamedTuple):
    """overlay: descriptors `lower` and `upper` (a directory holding upper/ and work/); bind: descriptor `lower`."""

    mode: Literal["tmpfs", "overlay", "bind"] = "tmpfs"
    at: str = "/work"
    size_mb: int = 64
    inodes: int = 16384


class Bind(NamedTuple):
    """A descriptor of the host's, seen at a path inside."""

    fd: str
    dst: str
    rw: bool = False
    exec: bool = True


class Cover(NamedTuple):
    """What must not be done to a path inside: `hide` it is empty, `freeze` it cannot be written, `keep` it can neither
    be removed nor renamed. The folders above it cannot be renamed in any case, as they would take it along.

    With an inode it must be there, and be that one. Without a device any file system will do: an overlay's is its own.
    """

    path: str
    how: Literal["hide", "freeze", "keep"] = "hide"
    device: int = 0
    inode: int = 0


@dataclass(frozen=True)
class SpawnSpec:
    """What one agent is made of."""

    spawn_id: str
    kind: Kind = "native"
    isolation: Literal["warm", "exec"] = "warm"
    argv: list[str] = field(default_factory=list[str])
    env: dict[str, str] = field(default_factory=dict[str, str])
    cwd: str = "/work"
    net: Net = "none"
    forward: list[int] = field(
        default_factory=list[int]
    )  # ports of its own loopback that the kernel serves; `proxy` only
    tty: list[int] | None = None  # rows and columns of a terminal of its own in place of the streams; guests only
    workspace: Workspace = field(default_factory=Workspace)
    binds: list[Bind] = field(default_factory=list[Bind])
    masks: list[str] = field(default_factory=list[str])  # hidden, if they are there
    covers: list[Cover] = field(default_factory=list[Cover])
    limits: Limits = field(default_factory=Limits)
    exec_allow: list[str] | None = None
    exec_memfd: bool = False
    controllers: bool = False  # the kernel's word that a cgroup caps this agent as a whole: the child cannot know
    beside: bool = False  # its init runs commands beside it for the kernel; not for warm ones, which have none
    min_level: Level = "S2"
    uid: int = 1  # within the launcher's range; root mode only
    descriptors: list[str] = field(default_factory=list[str])

    @property
    def warm(self) -> bool:
        return self.kind == "native" and self.isolation == "warm"

    @property
    def mounted(self) -> list[str]:
        """Where its workspace and its binds are. If one of them is below /work, that is no alias of the workspace."""
        return [self.workspace.at, *(bind.dst for bind in self.binds)]


def encode(spec: SpawnSpec) -> bytes:
    """The id on a line of its own, then the object: the launcher must know the one and never reads the other."""
    inside = {"workspace": spec.workspace._asdict(), "limits": spec.limits._asdict()}
    several = {"binds": [one._asdict() for one in spec.binds], "covers": [one._asdict() for one in spec.covers]}
    message = f"{spec.spawn_id}\n{json.dumps({**vars(spec), **inside, **several})}".encode()
    if len(message) > MAX_BYTES:
        raise SpecError(f"the spawn request is {len(message)} bytes, more than {MAX_BYTES}: shorten argv or env")
    return message


def decode(message: bytes) -> SpawnSpec:
    spec = reader()(json.loads(message.partition(b"\n")[2]), "spec")
    mounted = [bind.dst for bind in spec.binds] + [cover.path for cover in spec.covers]
    for path in (spec.cwd, spec.workspace.at, *mounted, *spec.masks):
        if not path.startswith("/") or ".." in path.split("/") or "\0" in path:
            raise SpecError(f"{path!r} is not an absolute path without '..'")
    if spec.workspace.at == "/":
        raise SpecError("workspace.at may not be /")
    if not 1 <= spec.uid < 4096:
        raise SpecError(f"uid {spec.uid} is outside 1..4095")
    if not spec.argv:
        raise SpecError("argv is empty")
    if spec.beside and spec.warm:
        raise SpecError("commands beside it need an init, which a warm agent has not")
    if spec.tty is not None and spec.kind != "guest":
        raise SpecError("tty is for guests")
    if spec.tty is not None and (len(spec.tty) != 2 or not all(0 <= size < 65536 for size in spec.tty)):
        raise SpecError(f"tty {spec.tty} must be rows and columns")
    if len(spec.forward) > 16 or not all(0 < port < 65536 and port != PROXY_PORT for port in spec.forward):
        raise SpecError(f"forward {spec.forward} must be at most 16 ports, none of them {PROXY_PORT}")
    return spec


Reader = Callable[[Any, str], Any]  # a JSON value and where it stands → the typed value


def _reader(shape: Any) -> Reader:
    """How to read one type; an unknown field, a missing one or a wrong type names itself."""
    origin, arguments = typing.get_origin(shape), typing.get_args(shape)
    if shape is SpawnSpec:
        optional = [one.name for one in fields(shape) if (one.default, one.default_factory) != (MISSING, MISSING)]
        return _record_reader(shape, optional)
    if hasattr(shape, "_field_defaults"):
        return _record_reader(shape, shape._field_defaults)
    if origin is Literal:
        return _choice_reader(arguments)
    if origin is list:
        return _list_reader(_reader(arguments[0]))
    if origin is dict:
        return _dict_reader(_reader(arguments[1]))
    if arguments:  # a union with None
        inner = _reader(next(a for a in arguments if a is not type(None)))
        return lambda value, where: None if value is None else inner(value, where)
    return _plain_reader(shape, (int, float) if shape is float else (shape,))


def _plain_reader(shape: Any, accepted: tuple[type, ...]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if type(value) not in accepted:
            raise SpecError(f"{where} must be {shape.__name__}, not {type(value).__name__}")
        return value

    return read


def _choice_reader(choices: tuple[Any, ...]) -> Reader:
    def read(value: Any, where: str) -> Any:
        if value not in choices:
            raise SpecError(f"{where} is {value!r}, not one of {', '.join(map(str, choices))}")
        return value

    return read


def _list_reader(item: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, list):
            raise SpecError(f"{where} must be list, not {type(value).__name__}")
        return [item(each, f"{where}[{index}]") for index, each in enumerate(cast(list[Any], value))]

    return read


def _dict_reader(item: Reader) -> Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise SpecError(f"{where} must be dict, not {type(value).__name__}")
        return {key: item(each, f"{where}.{key}") for key, each in cast(dict[str, Any], value).items()}

    return read


def _record_reader(shape: Any, optional: Collection[str]) -> Reader:
    readers = {name: _reader(hint) for name, hint in typing.get_type_hints(shape).items()}
    required = [name for name in readers if name not in optional]

    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            raise SpecError(f"{where} must be an object, not {type(value).__name__}")
        given = cast(dict[str, Any], value)
        if unknown := sorted(given.keys() - readers.keys()):
            raise SpecError(f"{where} has no field {unknown[0]!r}")
        if missing := [name for name in required if name not in given]:
            raise SpecError(f"{where} needs {missing[0]}")
        return shape(**{name: readers[name](item, f"{where}.{name}") for name, item in given.items()})

    return read


@functools.cache
def reader() -> Reader:
    """Of an order. Made before the first: every spawn reads its order in a fresh copy of the launcher, which could keep
    nothing that it worked out about types."""
    return _reader(SpawnSpec)
