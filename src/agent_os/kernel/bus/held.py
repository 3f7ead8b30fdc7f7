"""What consumers have in hand: who has it, until when, how often it went out, and who died with it.

In: items that go out or come back. Out: rows. One delivery of many messages is one row, written when it goes out and
removed when nothing of it is left: by it the next kernel knows how often each was tried. Nothing here decides what
becomes of a message that was tried too often.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct

from agent_os.drivers.store import Put
from agent_os.kernel.bus.lanes import Item, Lanes
from agent_os.kernel.bus.wheel import Wheel

HANDS = "bus.hands"  # bucket

Tried = tuple[int, int, int, int]  # owner's number, sequence number, deliveries, deaths
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Tried]).decode


class Hand(Struct, eq=False):
    """One delivery: all that went out together and is not settled, nor went out again."""

    key: str
    items: dict[Item, None]

    def row(self) -> Put:
        tried = [(one.owner.number, one.message.seq, one.deliveries, one.deaths) for one in self.items]
        return Put(HANDS, self.key, _encode(tried))

    def removal(self) -> Put:
        return Put(HANDS, self.key, None)


class Consumer:
    """Whoever pulls: an agent with its mailbox and subscriptions, or one subscription that stands alone."""

    __slots__ = ("agent", "frozen", "in_hand", "lanes", "name")

    def __init__(self, name: str, agent: str) -> None:
        self.name, self.agent = name, agent
        self.lanes = Lanes()
        self.in_hand: dict[Item, None] = {}
        self.frozen: float | None = None  # since when its time stands still


def let_go(item: Item, wheel: Wheel[Item]) -> None:
    """Nobody has it in hand any more. How often it went out is still kept."""
    consumer, item.holder = item.holder, None
    if consumer:
        consumer.in_hand.pop(item, None)
        wheel.drop(item, item.until)


def leave_hand(item: Item) -> Sequence[Put]:
    """It is settled or goes out again, so its last delivery says nothing any more."""
    hand, item.hand = item.hand, None
    if hand:
        del hand.items[item]
        if not hand.items:
            return (hand.removal(),)
    return ()


def hand_out(consumer: Consumer, items: Iterable[Item], key: str, until: float, wheel: Wheel[Item]) -> list[Put]:
    """All of one pull. What went out before leaves its former delivery, in the same transaction."""
    hand, puts = Hand(key, {}), list[Put]()
    for item in items:
        if item.hand:
            puts += leave_hand(item)
        item.hand, item.holder, item.until = hand, consumer, until
        item.deliveries += 1
        hand.items[item] = None
        consumer.in_hand[item] = None
        if consumer.frozen is None:
            wheel.set(item, until)
    puts.append(hand.row())
    return puts


def extend(item: Item, until: float, wheel: Wheel[Item]) -> None:
    if item.holder and item.holder.frozen is None:
        wheel.drop(item, item.until)
        wheel.set(item, until)
    item.until = until


def freeze(consumer: Consumer, now: float, wheel: Wheel[Item]) -> None:
    if consumer.frozen is None:
        consumer.frozen = now
        for item in consumer.in_hand:
            wheel.drop(item, item.until)


def thaw(consumer: Consumer, now: float, wheel: Wheel[Item]) -> None:
    since, consumer.frozen = consumer.frozen, None
    if since is not None:
        for item in consumer.in_hand:
            item.until += now - since
            wheel.set(item, item.until)


def stored(rows: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, list[Tried]]]:
    return ((key, _decode(value)) for key, value in rows)
