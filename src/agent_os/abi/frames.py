"""The frames of the one wire: what agents say on descriptor 3 and operators' programs on the control socket.

A frame is a 4-byte little-endian length and a msgpack array whose first element is the kind. Arrays grow only at the
end: trailing fields that a reader does not know are ignored, missing ones take their defaults. The sender is the
socket, never a field. `split` cuts a buffer into frames and looks at a length before anything is allocated for it.
"""

from collections.abc import Iterable
from struct import Struct as Layout
from typing import Any

import msgspec
from msgspec import Raw, Struct

from agent_os.abi import errors
from agent_os.abi.errors import EMSGSIZE, EPROTO, AgentOSError, FailureSeverity

ABI_MIN, ABI_MAX = 1, 1  # the current major version and the previous one, once there is one
MAX_FRAME = 1 << 20
MAX_BODY = 8 << 20  # of a call that may come in parts, and of its answer
MAX_NESTING = 64
PART = 512 << 10
LENGTH = 4
_read_length = Layout("<I").unpack_from
NIL = Raw(b"\xc0")
# What decoding a foreign value can raise: msgspec leaves text that is no UTF-8 to the standard library.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Hello(Struct, array_like=True, tag=0):
    abi_min: int
    abi_max: int
    features: list[str] = []
    token: str | None = None  # control socket only
    build: str = ""  # control socket only: which code the client is of


class Welcome(Struct, array_like=True, tag=1):
    abi: int
    agent: str
    incarnation: int
    limits: dict[str, int]
    features: list[str] = []
    replaying: bool = False
    input: Raw = NIL  # what the agent was started with
    checkpoint: str = ""  # the one with a state that this run begins from, if any
    state: Raw = NIL
    build: str = ""  # of the kernel, for operators


STAYS = "stays"  # among the features: this kernel does not end with its last client


class Call(Struct, array_like=True, tag=2):
    id: int
    op: int
    body: Raw = NIL
    cap: int | None = None  # a handle, in the kernel
    deadline_ms: int | None = None
    key: str | None = None  # idempotency
    pos: str | None = None  # the call's place in the program, for replay
    seen: int | None = None  # answers and pushes that the agent had handled by then, of this connection


class Reply(Struct, array_like=True, tag=3):
    id: int
    body: Raw = NIL


class Error(Struct, array_like=True, tag=4):
    id: int
    code: int
    severity: int
    retryable: bool
    reason: str
    retry_after_ms: int | None = None
    detail: dict[str, Any] = {}


class Chunk(Struct, array_like=True, tag=5):
    id: int
    n: int  # counts from 0 in each direction
    data: Raw


class End(Struct, array_like=True, tag=6):
    id: int
    n: int
    error: list[Any] | None = None  # code, severity, retryable, reason, retry_after_ms, detail: as in Error


class Credit(Struct, array_like=True, tag=7):
    id: int
    bytes: int


class Cancel(Struct, array_like=True, tag=8):
    id: int


class Push(Struct, array_like=True, tag=9):
    n: int
    what: str  # signal, message, notice
    body: Raw = NIL


class Bye(Struct, array_like=True, tag=11):
    code: int
    reason: str


class Part(Struct, array_like=True, tag=12):
    """A piece of a body that no frame could hold. The CALL or REPLY that it belongs to follows, with no other body."""

    id: int
    data: bytes


Frame = Hello | Welcome | Call | Reply | Error | Chunk | End | Credit | Cancel | Push | Bye | Part
FromAgent = Hello | Call | Chunk | End | Credit | Cancel | Part
FromKernel = Welcome | Reply | Error | Chunk | End | Credit | Push | Bye | Part

_encoder = msgspec.msgpack.Encoder()
encode_body = _encoder.encode
_decode_from_agent = msgspec.msgpack.Decoder(FromAgent).decode
_decode_from_kernel = msgspec.msgpack.Decoder(FromKernel).decode
_UINT_SIZES = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
_NOT_RESERVED = 128  # kinds from here on are ignored by whoever does not know them


def encode(frame: Frame) -> bytes:
    """One frame with its length in front."""
    data = _encoder.encode(frame)
    return len(data).to_bytes(LENGTH, "little") + data


def body(value: object) -> Raw:
    """A value as the body of a frame."""
    return Raw(_encoder.encode(value))


def parts(call: int, body: Raw) -> list[Part]:
    """A body, cut."""
    data = bytes(body)
    return [Part(call, data[at : at + PART]) for at in range(0, len(data), PART)]


def decode_from_agent(data: bytes | memoryview) -> FromAgent | None:
    """None: a kind that is not for us and may be ignored."""
    try:
        return _decode_from_agent(data)
    except UNREADABLE as problem:
        return _ignored(data, problem)


def decode_from_kernel(data: bytes | memoryview) -> FromKernel | None:
    try:
        return _decode_from_kernel(data)
    except UNREADABLE as problem:
        return _ignored(data, problem)


def _ignored(data: bytes | memoryview, problem: Exception) -> None:
    kind = _kind(data)
    if kind is not None and kind >= _NOT_RESERVED:
        return None
    raise EPROTO("frame", f"this is no frame of ours: {problem}") from problem


def _kind(data: bytes | memoryview) -> int | None:
    """The first element of an array that could not be decoded as a whole, if it is a number."""
    head = bytes(data[:16])
    start = 1 if head and 0x90 < head[0] <= 0x9F else 3 if head[:1] == b"\xdc" else 5 if head[:1] == b"\xdd" else 0
    if not start or len(head) <= start or not any(head[1:start] or b"\x01"):
        return None
    first, rest = head[start], head[start + 1 :]
    if first < 0x80:
        return first
    size = _UINT_SIZES.get(first, len(rest) + 1)
    return int.from_bytes(rest[:size], "big") if size <= len(rest) else None


class Splitter:
    """Cuts what a socket delivers into frames. `partial` says that a frame has begun and is not whole yet."""

    __slots__ = ("_buffer", "_limit", "_needed")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._buffer: bytearray | None = None  # the beginning of a frame; it grows in place, however small the pieces
        self._needed = 0  # bytes of it until there is something to look at
        self._limit = limit

    @property
    def partial(self) -> bool:
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now. A length over the limit is EMSGSIZE before a byte of it is kept."""
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return []
            data = bytes(self._buffer)
        found: list[bytes] = []
        at, end, self._needed = 0, len(data), LENGTH
        while end - at >= LENGTH:
            (size,) = _read_length(data, at)
            if size > self._limit:
                raise EMSGSIZE("frame", f"a frame of {size} bytes is over the limit of {self._limit}", size=size)
            if end - at - LENGTH < size:
                self._needed = LENGTH + size
                break
            found.append(data[at + LENGTH : at + LENGTH + size])
            at += LENGTH + size
        self._buffer = bytearray(data[at:]) if at < end else None
        return found


class Gathered:
    """The parts of one body at a time, until its frame is there."""

    __slots__ = ("_call", "_data")

    def __init__(self) -> None:
        self._call, self._data = 0, bytearray()

    def take(self, part: Part) -> None:
        self._require(part.id)
        if len(self._data) + len(part.data) > MAX_BODY:
            raise EMSGSIZE("body", f"a body of more than {MAX_BODY} bytes")
        self._call = part.id
        self._data += part.data

    def whole(self, call: int, own: Raw) -> Raw:
        """The body of a frame: its own, or what was gathered for it."""
        self._require(call)
        if not self._data:
            return own
        whole, self._data = Raw(bytes(self._data)), bytearray()
        return whole

    def _require(self, call: int) -> None:
        if self._data and call != self._call:
            raise EPROTO("part", f"the body of {self._call} had begun, and this is {call}")


def from_error(call: int, error: AgentOSError) -> Error:
    return Error(call, *facts(error))


def end_of(call: int, n: int, error: AgentOSError | None = None) -> End:
    return End(call, n, list(facts(error)) if error else None)


def facts(error: AgentOSError) -> tuple[int, int, bool, str, int | None, dict[str, Any]]:
    """What travels of an error. A path that is no UTF-8 must not keep it from doing so."""
    detail: dict[str, Any] = {"code": error.code, **error.detail}
    if error.hint:
        detail["hint"] = error.hint
    safe = {name: _safe(value) if isinstance(value, str) else value for name, value in detail.items()}
    return error.number, error.severity, error.retryable, _safe(error.reason), error.retry_after_ms, safe


def _safe(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def to_error(frame: Error | Iterable[Any]) -> AgentOSError:
    """The exception that the kernel meant. A number we do not know yet is told as EIO, with its own number kept."""
    if isinstance(frame, Error):
        frame = (frame.code, frame.severity, frame.retryable, frame.reason, frame.retry_after_ms, frame.detail)
    number, severity, retryable, reason, retry_after_ms, facts = frame
    detail = dict(facts)
    kind = errors.BY_NUMBER.get(number, errors.EIO)
    code, hint = str(detail.pop("code", "unknown")), str(detail.pop("hint", ""))
    reserved = {name: detail.pop(name) for name in ("reason", "retryable", "retry_after_ms") if name in detail}
    error = kind(code, reason, hint=hint, retryable=retryable, retry_after_ms=retry_after_ms, **detail)
    error.detail.update(reserved)
    error.severity = FailureSeverity(severity)
    return error


def nesting(value: Any, most: int = MAX_NESTING) -> None:
    """EPROTO for a value nested deeper than allowed. For bodies whose shape a schema does not bound."""
    layer: list[Any] = [value]
    for _ in range(most):
        # Only what can hold more is kept: a frame may hold a million values, and everybody waits for this.
        layer = [inner for outer in layer for inner in _inside(outer) if isinstance(inner, (dict, list))]
        if not layer:
            return
    raise EPROTO("nesting", f"a value is nested deeper than {most}")


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return value if isinstance(value, list) else ()  # pyright: ignore[reportUnknownVariableType]
