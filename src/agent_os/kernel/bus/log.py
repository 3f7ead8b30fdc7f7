"""The log of events: each is stored once, however many wait for it, and stays a while when nobody does any more.

In: events, and who needs them (a count). Out: rows. An event that somebody has not acknowledged stays: how far behind
one may be is bounded where it waits (`cursors.py`). Beyond that the log is history, for subscribers that begin in the
past: at most 10,000 events, 32 MiB and seven days, and of one topic a quarter of that, the oldest going first.
"""

from collections import OrderedDict
from collections.abc import Iterator

from msgspec import Struct

from agent_os.drivers.store import Put
from agent_os.kernel.bus.message import Message, Now, decode
from agent_os.kernel.bus.rows import Rows

LOG = "bus.log"  # bucket
HISTORY_EVENTS, HISTORY_BYTES = 10_000, 32 << 20
HISTORY_NS = 7 * 24 * 3600 * 10**9
_OF_ONE_TOPIC = 4  # its part
_AT_ONCE = 500


class Event(Struct, eq=False):
    message: Message
    weight: int
    needed: int = 0  # by so many cursors


class _Past:
    """Events that nobody needs, in the order in which that became so."""

    __slots__ = ("bytes", "events")

    def __init__(self) -> None:
        self.events: OrderedDict[int, Event] = OrderedDict()
        self.bytes = 0

    def add(self, event: Event) -> None:
        self.events[event.message.seq] = event
        self.bytes += event.weight

    def remove(self, event: Event) -> None:
        del self.events[event.message.seq]
        self.bytes -= event.weight

    def over(self, part: int) -> bool:
        return len(self.events) * part > HISTORY_EVENTS or self.bytes * part > HISTORY_BYTES


class Log:
    def __init__(self, rows: Rows) -> None:
        self.events: dict[int, Event] = {}
        self._past = _Past()
        self._topics: dict[str, _Past] = {}
        for key, row in rows.items(LOG):
            self._rest(self.events.setdefault(int(key, 16), Event(decode(row), len(row))))

    def add(self, message: Message, row: bytes, needed: int) -> list[Put]:
        event = self.events[message.seq] = Event(message, len(row), needed)
        puts = [Put(LOG, _key(message.seq), row)]
        if not needed:
            self._rest(event)
            puts += self._trim(message.to)
        return puts

    def need(self, seq: int) -> None:
        """Once more."""
        event = self.events[seq]
        if not event.needed:
            self._past.remove(event)
            self._topic(event).remove(event)
        event.needed += 1

    def release(self, seq: int) -> list[Put]:
        event = self.events[seq]
        event.needed -= 1
        if event.needed:
            return []
        self._rest(event)
        return self._trim(event.message.to)

    def since(self, seq: int) -> Iterator[Event]:
        return (event for event in list(self.events.values()) if event.message.seq > seq)

    def first_at(self, wall_ns: int) -> int:
        """The number before the first event of that time or later."""
        later = (event.message.seq for event in self.events.values() if event.message.sent_ns >= wall_ns)
        return min(later, default=1 << 62) - 1

    def tend(self, now: Now) -> list[Put]:
        """Some of those that are too old."""
        puts: list[Put] = []
        for event in list(self._past.events.values())[:_AT_ONCE]:
            if event.message.sent_ns + HISTORY_NS <= now.wall_ns:
                puts.append(self._forget(event))
        return puts

    def trim(self) -> list[Put]:
        """Everything within bounds again, after a start under other ones."""
        return [put for topic in list(self._topics) for put in self._trim(topic)]

    def _rest(self, event: Event) -> None:
        self._past.add(event)
        topic = event.message.to
        if topic not in self._topics:
            self._topics[topic] = _Past()
        self._topics[topic].add(event)

    def _trim(self, topic: str) -> list[Put]:
        puts: list[Put] = []
        while (past := self._topics.get(topic)) and past.over(_OF_ONE_TOPIC):
            puts.append(self._forget(next(iter(past.events.values()))))
        while self._past.over(1):
            puts.append(self._forget(next(iter(self._past.events.values()))))
        return puts

    def _forget(self, event: Event) -> Put:
        self._past.remove(event)
        self._topic(event).remove(event)
        if not self._topics[event.message.to].events:
            del self._topics[event.message.to]
        del self.events[event.message.seq]
        return Put(LOG, _key(event.message.seq), None)

    def _topic(self, event: Event) -> _Past:
        return self._topics[event.message.to]


def _key(seq: int) -> str:
    return f"{seq:016x}"
