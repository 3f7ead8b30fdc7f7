"""What was handled already: the keys that senders gave, remembered at least seven days and at least as long as the
message could have lived.

In: a receiver, a sender and a key. Out: the id of the first message with it, and rows that are kept in the transaction
of the acknowledgement, so "handled" and "remembered" are one. A message without a key is the only one of its name and
is not remembered. Memory holds the newest; older ones are looked up.

Rows lie in generations of a week, by when they end: a generation that is over is removed piece by piece, without a
look at its rows.
"""

from collections import deque
from collections.abc import Iterator

import msgspec

from agent_os.drivers.store import Put
from agent_os.kernel.bus.message import Message, Now
from agent_os.kernel.bus.rows import Rows

REMEMBERED_S = 7 * 24 * 3600
_GENERATION_NS = REMEMBERED_S * 10**9
_META, _KEY = "bus", "seen"
_IN_MEMORY = 65_536
_COMMITTED_S = 60.0  # by then what was handed to the writer can be read
_REMOVED_AT_ONCE = 500

Seen = tuple[int, int, str]  # when it may be forgotten (wall), sequence number, id
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Seen).decode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode


class Dedup:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        known = rows.get(_META, _KEY)
        self._generations: set[int] = set(_decode_numbers(known)) if known else set()
        self._recent: dict[str, Seen] = {}
        self._order: deque[tuple[float, str]] = deque()

    def find(self, receiver: str, sender: str, key: str, now: Now) -> Seen | None:
        name = f"{receiver}\0{sender}\0{key}"
        seen = self._recent.get(name)
        if seen is None:
            for generation in self._generations:
                if row := self._rows.get(_bucket(generation), name):
                    seen = _decode(row)
        return seen if seen and seen[0] > now.wall_ns else None

    def remember(self, receiver: str, message: Message, now: Now) -> Iterator[Put]:
        if message.key is None:
            return
        until = now.wall_ns + max(_GENERATION_NS, message.ttl_ms * 10**6)
        name = f"{receiver}\0{message.sender}\0{message.key}"
        seen = self._recent[name] = (until, message.seq, message.id)
        self._order.append((now.mono, name))
        while len(self._order) > _IN_MEMORY and self._order[0][0] < now.mono - _COMMITTED_S:
            self._recent.pop(self._order.popleft()[1], None)
        generation = until // _GENERATION_NS
        if generation not in self._generations:
            self._generations.add(generation)
            yield self._known()
        yield Put(_bucket(generation), name, _encode(seen))

    def tend(self, now: Now) -> list[Put]:
        """A piece of the oldest generation that is over."""
        over = min(self._generations, default=0)
        if not self._generations or (over + 1) * _GENERATION_NS > now.wall_ns:
            return []
        puts: list[Put] = []
        for name, _ in self._rows.items(_bucket(over)):
            puts.append(Put(_bucket(over), name, None))
            if len(puts) == _REMOVED_AT_ONCE:
                return puts
        self._generations.discard(over)
        return [*puts, self._known()]

    def _known(self) -> Put:
        return Put(_META, _KEY, _encode(sorted(self._generations)))


def _bucket(generation: int) -> str:
    return f"bus.seen.{generation}"
