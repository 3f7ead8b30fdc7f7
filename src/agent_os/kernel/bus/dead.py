"""Dead letters: messages that will not be delivered, each with its reason, until somebody looks or thirty days pass.

In: a message and why. Out: its row, and what must go for it: a receiver has at most a thousand, all together twenty
thousand, and then the oldest of the sender with most of them is forgotten, which is told: a flood drowns its own, not
what others have there. Memory holds names and dates only; letters are read from the
store.
"""

from collections import OrderedDict
from collections.abc import Iterator

import msgspec

from agent_os.abi.errors import ENOENT
from agent_os.drivers.store import Put
from agent_os.kernel.bus.broker import Note
from agent_os.kernel.bus.message import Letter, Now
from agent_os.kernel.bus.rows import Rows

DEAD = "bus.dead"  # bucket
KEPT_NS = 30 * 24 * 3600 * 10**9
MOST_OF_ONE, MOST = 1000, 20_000
_AT_ONCE = 500
_Numbers = OrderedDict[int, None]  # of letters, the oldest first


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Letter).decode


class Letters:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._all: OrderedDict[int, tuple[str, str, int]] = OrderedDict()  # number → receiver, sender, when
        self._of: dict[str, dict[str, _Numbers]] = {}  # by receiver and sender
        self._by: dict[str, _Numbers] = {}  # by sender
        self.buried = 0  # since the kernel began
        for _, row in rows.items(DEAD):
            self._add(_decode(row))

    def __len__(self) -> int:
        return len(self._all)

    def count(self, receiver: str) -> int:
        return sum(map(len, self._of.get(receiver, {}).values()))

    def put(self, letter: Letter) -> tuple[list[Put], list[Note]]:
        facts = {"letter": letter.id, "message": letter.message.id, "sender": letter.message.sender}
        facts |= {"to": letter.message.to, "reason": letter.reason, "detail": letter.detail}
        puts, notes = [Put(DEAD, _key(letter.number), _encode(letter))], [Note("dead", letter.receiver, facts)]
        self._add(letter)
        self.buried += 1
        too_many = self.count(letter.receiver) > MOST_OF_ONE
        if too_many or len(self._all) > MOST:
            senders = self._of[letter.receiver] if too_many else self._by
            number = next(iter(max(senders.values(), key=len)))
            notes.append(Note("forgotten", self._all[number][0], {"letter": f"d{number:x}", "why": "too many"}))
            puts.append(self._remove(number))
        return puts, notes

    def find(self, name: str) -> Letter:
        """ENOENT: there is none of that name, or no more."""
        try:
            number = int(name.removeprefix("d"), 16)
        except ValueError:
            number = -1
        row = self._rows.get(DEAD, _key(number)) if number in self._all else None
        if row is None:
            raise ENOENT("bus.dead", f"there is no dead letter {name!r}", hint="`agentctl bus dead` lists them")
        return _decode(row)

    def each(self, receiver: str | None = None) -> Iterator[Letter]:
        """The oldest first."""
        mine = self._of.get(receiver or "", {}).values()
        for number in list(self._all) if receiver is None else sorted(number for one in mine for number in one):
            if row := self._rows.get(DEAD, _key(number)):
                yield _decode(row)

    def drop(self, letter: Letter) -> Put:
        return self._remove(letter.number)

    def tend(self, now: Now) -> tuple[list[Put], list[Note]]:
        """Some of those that were kept long enough."""
        puts: list[Put] = []
        notes: list[Note] = []
        while self._all and len(puts) < _AT_ONCE:
            number, (receiver, _, at_ns) = next(iter(self._all.items()))
            if at_ns + KEPT_NS > now.wall_ns:
                break
            notes.append(Note("forgotten", receiver, {"letter": f"d{number:x}", "why": "kept 30 days"}))
            puts.append(self._remove(number))
        return puts, notes

    def _add(self, letter: Letter) -> None:
        receiver, sender = letter.receiver, letter.message.sender
        self._all[letter.number] = (receiver, sender, letter.at_ns)
        self._of.setdefault(receiver, {}).setdefault(sender, OrderedDict())[letter.number] = None
        self._by.setdefault(sender, OrderedDict())[letter.number] = None

    def _remove(self, number: int) -> Put:
        receiver, sender, _ = self._all.pop(number)
        mine = self._of[receiver]
        for senders in (mine, self._by):
            del senders[sender][number]
            if not senders[sender]:
                del senders[sender]
        if not mine:
            del self._of[receiver]
        return Put(DEAD, _key(number), None)


def _key(number: int) -> str:
    return f"{number:016x}"
