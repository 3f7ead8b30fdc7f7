"""The message as the kernel keeps it, and the bounds of one.

In: what a sender wants sent (`Outgoing`), already stamped by the kernel with who sends and what that carries. Out: the
`Message`, its form in the store, and what a receiver is given (`Delivery`). A payload is bytes that the sender encoded:
nobody here looks inside, so a hostile one costs nothing. Data and bounds only; who gets it is decided elsewhere.

Live, time is monotonic, so a clock that is set moves nobody; only what is left across a restart counts by the wall.
"""

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from agent_os.abi.errors import EINVAL, EMSGSIZE

LARGEST = 256 << 10  # bytes of a payload
TTL_MS = 24 * 3600 * 1000
LONGEST_MS = (1 << 32) - 1
LONGEST_NAME = 255  # bytes of a key, a schema, …
HIGH, NORMAL, LOW = 0, 1, 2
LANES = ("high", "normal", "low")
ALL_LANES = (HIGH, NORMAL, LOW)
# amb's six, whose `high` is our `normal`.
PRIORITIES = {"critical": HIGH, "urgent": HIGH, "high": NORMAL, "normal": NORMAL, "low": LOW, "background": LOW}
Type = Literal["request", "response", "event", "stream"]
TYPES = ("request", "response", "event", "stream")
Reason = Literal["handler_error", "expired", "rejected", "schema", "late", "receiver_gone", "unknown"]
NIL = Raw(b"\xc0")
_NAMES = ("to", "sender", "schema", "key", "corr", "reply_to", "trace")


class Now(Struct, frozen=True):
    """The moment of an operation. Nothing here looks at a clock by itself."""

    mono: float  # seconds
    wall_ns: int


class Outgoing(Struct):
    """What is to be sent: to an agent, or to whoever subscribed to a topic."""

    to: str
    sender: str
    topic: bool = False  # that is what `to` names
    payload: Raw = NIL
    type: Type = "event"
    schema: str = ""
    lane: int = NORMAL
    corr: str | None = None
    reply_to: str | None = None
    trace: str | None = None
    ttl_ms: int = TTL_MS
    deadline_ms: int | None = None  # from now
    key: str | None = None  # None: it is its own, and no other message can be the same
    labels: list[str] = []
    isolation: str = ""
    via: str = ""  # "host": trusted code of the host named the sender


class Message(Struct, array_like=True, frozen=True, gc=False):
    """As it is stored: grows only at its end."""

    seq: int
    id: str
    sender: str
    to: str
    type: Type
    schema: str
    payload: Raw
    lane: int
    sent_ns: int
    ttl_ms: int
    deadline_ms: int | None
    key: str | None
    corr: str | None
    reply_to: str | None
    trace: str | None
    labels: list[str]
    isolation: str
    via: str

    @property
    def lasts_ms(self) -> int:
        """After that nobody wants it any more."""
        return self.ttl_ms if self.deadline_ms is None else min(self.ttl_ms, self.deadline_ms)

    def left(self, now: Now) -> float:
        """Seconds, by the wall clock: across a restart there is no other. Never more than it had in the beginning."""
        return min(self.lasts_ms, (self.sent_ns - now.wall_ns) / 1e6 + self.lasts_ms) / 1000


class Delivery(Struct):
    """A message in a receiver's hand."""

    id: str  # to be acknowledged by; of an event it also names the subscription
    message: Message
    deliveries: int  # this one included
    left_ms: int | None = None  # until the sender's deadline
    sub: str | None = None


class Letter(Struct, array_like=True):
    """A dead one, and why."""

    number: int
    message: Message
    receiver: str
    reason: Reason
    detail: str
    at_ns: int
    deliveries: int
    sub: str | None = None

    @property
    def id(self) -> str:
        return f"d{self.number:x}"


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Message).decode


def encode(message: Message) -> bytes:
    return _encode(message)


def stamped(draft: Outgoing, seq: int, name: str, wall_ns: int) -> Message:
    """The message, with what only the kernel may say. Its payload is copied: what was read from a socket is a piece of
    a larger buffer, which a waiting message would keep alive."""
    return Message(
        seq,
        name,
        draft.sender,
        draft.to,
        draft.type,
        draft.schema,
        draft.payload.copy(),
        draft.lane,
        wall_ns,
        draft.ttl_ms,
        draft.deadline_ms,
        draft.key,
        draft.corr,
        draft.reply_to,
        draft.trace or name,
        draft.labels,
        draft.isolation,
        draft.via,
    )


def check(draft: Outgoing) -> None:
    """Everything that can be said without knowing the receiver."""
    size = len(memoryview(draft.payload))
    if size > LARGEST:
        raise EMSGSIZE(
            "bus.size",
            f"the payload has {size} bytes, and a message carries at most {LARGEST}",
            hint="send it as a stream, or share a file and send its path",
            size=size,
            cap=LARGEST,
        )
    if draft.type not in TYPES:
        raise EINVAL("bus.type", f"{draft.type!r} is no type of message", hint=f"there is {', '.join(TYPES)}")
    if draft.lane not in ALL_LANES:
        raise EINVAL("bus.lane", f"there is no lane {draft.lane!r}", hint=f"there is {', '.join(LANES)}")
    if draft.deadline_ms is not None and not 1 <= draft.deadline_ms <= LONGEST_MS:  # first: a request's ttl follows it
        raise _outside("deadline_ms", draft.deadline_ms)
    if not 1 <= draft.ttl_ms <= LONGEST_MS:
        raise _outside("ttl_ms", draft.ttl_ms)
    together = f"{draft.to}{draft.sender}{draft.schema}{draft.key}{draft.corr}{draft.reply_to}{draft.trace}"
    if len(together) > LONGEST_NAME or "\0" in together:  # only then each is worth a look
        for name in _NAMES:
            text = getattr(draft, name) or ""
            if len(text) > LONGEST_NAME or "\0" in text:
                raise EINVAL(f"bus.{name}", f"{name} has at most {LONGEST_NAME} characters, none of them NUL")


def _outside(name: str, value: int) -> EINVAL:
    return EINVAL(f"bus.{name}", f"{name} is {value}; it goes from 1 to {LONGEST_MS}")


def lane(word: str) -> int:
    if word not in LANES:
        raise EINVAL("bus.lane", f"there is no lane {word!r}", hint=f"there is {', '.join(LANES)}")
    return LANES.index(word)


def lane_of_priority(word: str) -> int:
    """Of the six priorities that amb has."""
    if word not in PRIORITIES:
        raise EINVAL("bus.priority", f"there is no priority {word!r}", hint=f"there is {', '.join(PRIORITIES)}")
    return PRIORITIES[word]
