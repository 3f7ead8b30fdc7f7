"""A message as whoever gets it sees it.

In: messages and deliveries of the broker. Out: `Received`, for the wire and the record. Changes nothing.
"""

from msgspec import Raw, Struct

from agent_os.kernel.bus.message import LANES, Delivery, Message
from agent_os.kernel.table import bare


class Received(Struct, omit_defaults=True):
    """A message as its receiver sees it."""

    id: str
    seq: int
    sent_ns: int
    sender: str
    to: str
    type: str
    payload: Raw
    labels: list[str]
    deliveries: int  # this one included
    isolation: str = ""
    schema: str = ""
    lane: str = "normal"
    corr: str | None = None
    reply_to: str | None = None
    trace: str | None = None
    ttl_ms: int = 0
    deadline_ms: int | None = None  # what is left
    key: str | None = None
    sub: str | None = None
    via: str = ""


def received(one: Delivery) -> Received:
    return shown(one.message, one.id, one.deliveries, one.left_ms, one.sub)


def shown(
    message: Message, name: str, deliveries: int = 1, left: int | None = None, sub: str | None = None
) -> Received:
    return Received(
        name,
        message.seq,
        message.sent_ns,
        bare(message.sender),
        bare(message.to),
        message.type,
        message.payload,
        message.labels,
        deliveries,
        message.isolation,
        message.schema,
        LANES[message.lane],
        message.corr,
        message.reply_to,
        message.trace,
        message.ttl_ms,
        left,
        message.key,
        sub,
        message.via,
    )
