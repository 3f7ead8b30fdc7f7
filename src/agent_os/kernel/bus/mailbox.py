"""A mailbox: the direct messages of one agent, waiting and in hand, within bounds.

In: messages that were accepted. Out: a refusal before anything changed, items in the queues of their senders, and the
rows of the store. Full, it refuses and says when to come again; nothing is ever dropped to make room. Above half full
one sender holds at most a quarter, so a flood leaves room for the others. What is in hand still takes its place: only
an acknowledgement makes room.
"""

from typing import Protocol

from agent_os.abi.errors import EAGAIN
from agent_os.drivers.store import Put
from agent_os.kernel.bus.held import Consumer
from agent_os.kernel.bus.lanes import Item, Queue
from agent_os.kernel.bus.message import Message
from agent_os.kernel.bus.quota import Drain
from agent_os.kernel.table import bare

BOXES = "bus.box"  # bucket
MOST_MESSAGES, MOST_BYTES = 1000, 16 << 20
_SHARE = 4  # one sender's part above half full


class Owner(Protocol):
    """Whose an item is: a mailbox, or the cursor of a subscription."""

    number: int  # 0 of a mailbox
    ordered: bool  # what must wait holds up what is behind it

    def find(self, seq: int) -> Item | None: ...

    def enter(self, queue: Queue) -> list[str]:
        """The queue has something again: its consumers, by name."""
        ...

    def settle(self, item: Item, now: float) -> list[Put]:
        """It is over with the item, whatever became of it."""
        ...

    def row(self) -> Put | None:
        """What is kept of the owner itself and changed with its items."""
        ...


class _Sender:
    __slots__ = ("bytes", "count", "queues")

    def __init__(self) -> None:
        self.count = self.bytes = 0
        self.queues: list[Queue | None] = [None, None, None]


class Mailbox:
    number, ordered = 0, True

    def __init__(self, consumer: Consumer, now: float) -> None:
        self.consumer = consumer
        self.items: dict[int, Item] = {}
        self.bytes = 0
        self.drain = Drain(now)
        self.keys: dict[tuple[str, str], Item] = {}  # what is here under a key of its sender
        self._senders: dict[str, _Sender] = {}

    @property
    def agent(self) -> str:
        return self.consumer.agent

    def require_room(self, sender: str, weight: int, now: float, most: int = MOST_MESSAGES) -> None:
        count, size = len(self.items) + 1, self.bytes + weight
        if 2 * count <= most and 2 * size <= MOST_BYTES:
            return
        if count > most or size > MOST_BYTES:
            raise self._full(f"the mailbox of {bare(self.agent)} is full", size - MOST_BYTES, now, most)
        share = self._senders.get(sender)
        if share and ((share.count + 1) * _SHARE > most or (share.bytes + weight) * _SHARE > MOST_BYTES):
            what = f"the mailbox of {bare(self.agent)} is over half full, a quarter of it by {bare(sender)}"
            raise self._full(what, share.bytes + weight - MOST_BYTES // _SHARE, now, most)

    def _full(self, what: str, over: int, now: float, most: int) -> EAGAIN:
        """`over`: bytes that must go first; else one message must."""
        count = 1 if over <= 0 else 1 + over * len(self.items) // max(1, self.bytes)
        return EAGAIN(
            "bus.full",
            f"{what}: {len(self.items)} messages, {self.bytes} bytes; it holds {most} and {MOST_BYTES}",
            hint="send it again later; nothing was sent",
            retry_after_ms=self.drain.wait_ms(count, now),
            messages=len(self.items),
            bytes=self.bytes,
        )

    def add(self, message: Message, weight: int, expires: float) -> Item:
        """There is room. The item stands in its queue, and the queue in its lane."""
        sender = self._senders.get(message.sender)
        if sender is None:
            sender = self._senders[message.sender] = _Sender()
        queue = sender.queues[message.lane]
        if queue is None:
            queue = sender.queues[message.lane] = Queue(message.lane)
        item = Item(message, weight, expires, self, queue)
        sender.count += 1
        sender.bytes += weight
        self.bytes += weight
        self.items[message.seq] = item
        if message.key is not None:
            self.keys[message.sender, message.key] = item
        queue.add(item)
        self.consumer.lanes.enter(queue)
        return item

    def find(self, seq: int) -> Item | None:
        return self.items.get(seq)

    def enter(self, queue: Queue) -> list[str]:
        self.consumer.lanes.enter(queue)
        return [self.consumer.name]

    def settle(self, item: Item, now: float) -> list[Put]:
        message = item.message
        del self.items[message.seq]
        self.bytes -= item.weight
        sender = self._senders[message.sender]
        sender.count -= 1
        sender.bytes -= item.weight
        if not sender.count:
            del self._senders[message.sender]
            for queue in sender.queues:
                if queue is not None:
                    self.consumer.lanes.leave(queue)
        if message.key is not None:
            self.keys.pop((message.sender, message.key), None)
        self.drain.took(1, now)
        return [Put(BOXES, row_key(self.consumer.agent, message.seq), None)]

    def row(self) -> Put | None:
        return None


def row_key(agent: str, seq: int) -> str:
    return f"{agent}\0{seq:016x}"
