"""Whose turn it is: lanes that cannot starve each other, and senders in a lane that cannot either.

A `Queue` is what one sender (or one subscription) has waiting in one lane, in order. `Lanes` are a consumer's: of 16
deliveries the high lane gets up to 12, the normal one 3, the low one 1, and a turn that nobody uses passes on to the
highest lane that has something. Within a lane the senders take turns, so one that floods delays the others by one
message each and not by its whole queue. Nothing here knows what a message says or when it ends.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from agent_os.kernel.bus.message import HIGH, LOW, NORMAL, Message

if TYPE_CHECKING:
    from agent_os.kernel.bus.held import Consumer, Hand
    from agent_os.kernel.bus.mailbox import Owner

TURNS = (HIGH,) * 4 + (NORMAL,) + (HIGH,) * 4 + (NORMAL,) + (HIGH,) * 4 + (NORMAL, LOW)
_ORDER: tuple[Sequence[int], ...] = (
    (HIGH, NORMAL, LOW),
    (NORMAL, HIGH, LOW),
    (LOW, HIGH, NORMAL),
)  # first, then others
_MANY_LOST = 64


class Item(Struct, eq=False):
    """One message on its way to one consumer."""

    message: Message
    weight: int  # bytes, as all bounds count them
    expires: float
    owner: "Owner"
    queue: "Queue"
    deliveries: int = 0
    deaths: int = 0  # lives of its receiver that ended with it in hand
    not_before: float = 0.0
    hand: "Hand | None" = None  # in which delivery it last went out
    holder: "Consumer | None" = None  # None: it waits
    until: float = 0.0  # when the holder's time is over
    gone: bool = False  # settled while it waited; its queue forgets it when it comes to it
    parked: bool = False  # it waits for its time outside its queue, and holds nobody up

    @property
    def seq(self) -> int:
        return self.message.seq


class Queue:
    """In order of sequence numbers. What came back comes before what never went out, and if it must wait, so does all
    that is behind it: that is what order means."""

    __slots__ = ("_back", "_fresh", "_lost", "lane", "shut")

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.shut = False  # what never went out stays for the present
        self._fresh: deque[Item] = deque()
        self._back: list[tuple[int, int, Item]] = []  # a heap: by place, and where two have the same by number
        self._lost = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._back) - self._lost

    def add(self, item: Item) -> None:
        self._fresh.append(item)

    def put_back(self, item: Item, place: int | None = None) -> None:
        """Before all that never went out; among what came back by its number, or where it is said to belong."""
        seq = item.message.seq
        heapq.heappush(self._back, (seq if place is None else place, seq, item))

    def forget(self, item: Item) -> None:
        """It waits, and is not to come out any more."""
        item.gone = True
        if item.parked:
            return
        self._lost += 1
        if self._lost > _MANY_LOST and self._lost > len(self):  # where nobody pulls, nobody else would clear it
            self._fresh = deque(one for one in self._fresh if not one.gone)
            self._back = [one for one in self._back if not one[2].gone]
            heapq.heapify(self._back)
            self._lost = 0

    def head(self) -> Item | None:
        while self._back:
            item = self._back[0][2]
            if not item.gone:
                return item
            heapq.heappop(self._back)
            self._lost -= 1
        fresh = self._fresh
        while fresh:
            if not fresh[0].gone:
                return fresh[0]
            fresh.popleft()
            self._lost -= 1
        return None

    def take(self) -> None:
        """The head leaves."""
        if self._back:
            heapq.heappop(self._back)
        else:
            self._fresh.popleft()


class Lanes:
    """The queues of one consumer that have something for it. A queue that sleeps or is shut falls out when its turn
    comes; whoever wakes it lets it enter again."""

    __slots__ = ("_rings", "_turn")

    def __init__(self) -> None:
        self._rings: tuple[OrderedDict[Queue, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self._turn = 0

    def enter(self, queue: Queue) -> None:
        self._rings[queue.lane].setdefault(queue, None)

    def leave(self, queue: Queue) -> None:
        self._rings[queue.lane].pop(queue, None)

    def next(self, lanes: Collection[int], now: float) -> Item | None:
        """Whose turn it is. It stays where it is until `took`."""
        for lane in _ORDER[TURNS[self._turn]]:
            if lane in lanes and self._rings[lane] and (item := self._first(self._rings[lane], now)):
                return item
        return None

    def took(self, queue: Queue) -> None:
        """The head of that queue went out: its sender has had its turn, and so has a lane."""
        queue.take()
        self._turn = (self._turn + 1) % len(TURNS)
        self._rings[queue.lane].move_to_end(queue)

    @staticmethod
    def _first(ring: OrderedDict[Queue, None], now: float) -> Item | None:
        while ring:
            queue = next(iter(ring))
            item = queue.head()
            if item is not None and item.not_before <= now and (item.deliveries or not queue.shut):
                return item
            ring.popitem(last=False)
        return None
