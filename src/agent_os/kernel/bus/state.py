"""All that the local broker holds in memory, and one operation on it.

`State` is the parts and how to find things in them. An `Operation` gathers what must be kept, who must be woken and
what the record should tell, while the broker takes a call through the parts; cursors that moved are written once, at
its end. Neither waits, neither reads a clock.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from agent_os.abi.errors import ENOENT
from agent_os.drivers.store import Put
from agent_os.kernel.bus import held
from agent_os.kernel.bus.broker import Change, Note
from agent_os.kernel.bus.cursors import Cursor, Gap
from agent_os.kernel.bus.held import Consumer
from agent_os.kernel.bus.lanes import Item
from agent_os.kernel.bus.log import Log
from agent_os.kernel.bus.mailbox import Mailbox, Owner
from agent_os.kernel.bus.message import Letter, Message, Now, Reason
from agent_os.kernel.bus.quota import Accounts
from agent_os.kernel.bus.rows import Rows
from agent_os.kernel.bus.topics import Index
from agent_os.kernel.bus.wheel import Wheel

# Dead letters: messages that will not be delivered, each with its reason, until somebody looks or thirty days pass.
# In: a message and why. Out: its row, and what must go for it: a receiver has at most a thousand, all together
# twenty thousand, and then the oldest of the sender with most of them is forgotten, which is told: a flood drowns
# its own, not what others have there. Memory holds names and dates only; letters are read from the store.

DEAD = "bus.dead"  # bucket
KEPT_NS = 30 * 24 * 3600 * 10**9
MOST_OF_ONE, MOST = 1000, 20_000
_AT_ONCE = 500
_Numbers = OrderedDict[int, None]  # of letters, the oldest first


_decode_letter = msgspec.msgpack.Decoder(Letter).decode


class Letters:
    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._all: OrderedDict[int, tuple[str, str, int]] = OrderedDict()  # number → receiver, sender, when
        self._of: dict[str, dict[str, _Numbers]] = {}  # by receiver and sender
        self._by: dict[str, _Numbers] = {}  # by sender
        self.buried = 0  # since the kernel began
        for _, row in rows.items(DEAD):
            self._add(_decode_letter(row))

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
        return _decode_letter(row)

    def each(self, receiver: str | None = None) -> Iterator[Letter]:
        """The oldest first."""
        mine = self._of.get(receiver or "", {}).values()
        for number in list(self._all) if receiver is None else sorted(number for one in mine for number in one):
            if row := self._rows.get(DEAD, _key(number)):
                yield _decode_letter(row)

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


# What was handled already: the keys that senders gave, remembered at least seven days and at least as long as the
# message could have lived. In: a receiver, a sender and a key. Out: the id of the first message with it, and rows
# that are kept in the transaction of the acknowledgement, so "handled" and "remembered" are one. A message without
# a key is the only one of its name and is not remembered. Memory holds the newest; older ones are looked up.

REMEMBERED_S = 7 * 24 * 3600
_GENERATION_NS = REMEMBERED_S * 10**9
_META, _KEY = "bus", "seen"
_IN_MEMORY = 65_536
_COMMITTED_S = 60.0  # by then what was handed to the writer can be read
_REMOVED_AT_ONCE = 500

Seen = tuple[int, int, str]  # when it may be forgotten (wall), sequence number, id
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


META, SEQ = "bus", "seq"
TOPICS = "bus.topics"  # bucket: filters whose topics are reliable
_RESERVED = 1 << 20  # numbers taken at once: only then the newest must be written
_FINE, _COARSE = 0.05, 1.0  # seconds

T = TypeVar("T")
_encode = msgspec.msgpack.Encoder().encode
_decode_number = msgspec.msgpack.Decoder(int).decode


class State:
    def __init__(self, rows: Rows, node: str) -> None:
        self.rows, self.node = rows, node
        reserved = rows.get(META, SEQ)
        self.seq = self.reserved = _decode_number(reserved) if reserved else 0
        self.boxes: dict[str, Mailbox] = {}
        self.consumers: dict[str, Consumer] = {}
        self.cursors: dict[int, Cursor] = {}
        self.groups: dict[tuple[str, str], Cursor] = {}
        self.index: Index[Cursor] = Index()
        self.declared: set[str] = set()
        self.reliable: Index[str] = Index()
        for pattern, _ in rows.items(TOPICS):
            self.declared.add(pattern)
            self.reliable.add(pattern, pattern)
        self.log = Log(rows)
        self.dedup = Dedup(rows)
        self.letters = Letters(rows)
        self.accounts = Accounts()
        self.hands: Wheel[Item] = Wheel(_FINE)  # deliveries, by when they are over
        self.delays: Wheel[Item] = Wheel(_FINE)  # what came back and must wait
        self.ends: Wheel[Item] = Wheel(_COARSE)  # direct messages, by when they expire
        self.left_over: list[Put] = []  # found at the start, and kept with the first operation
        self._subscribed: dict[str, dict[int, Cursor]] = {}

    def name(self, seq: int) -> str:
        return f"{self.node}-{seq:x}"

    def box(self, agent: str, now: float) -> Mailbox:
        box = self.boxes.get(agent)
        if box is None:
            box = self.boxes[agent] = Mailbox(self.consumer(agent, agent), now)
        return box

    def consumer(self, name: str, agent: str) -> Consumer:
        consumer = self.consumers.get(name)
        if consumer is None:
            consumer = self.consumers[name] = Consumer(name, agent)
        return consumer

    def find(self, agent: str, name: str) -> Item | None:
        """By the id under which it was delivered to the agent."""
        message, _, sub = name.partition(":")
        owner: Owner | None = self.boxes.get(agent)
        if sub:
            cursor = self.cursor(sub)
            owner = cursor if cursor and agent in cursor.members else None
        number = _hex(message.rpartition("-")[2])
        item = owner.find(number) if owner and number is not None else None
        return item if item and item.message.id == message else None

    # Subscriptions.

    def cursor(self, name: str) -> Cursor | None:
        number = _hex(name.removeprefix("s"))
        return None if number is None else self.cursors.get(number)

    def add(self, cursor: Cursor) -> None:
        self.cursors[cursor.number] = cursor
        self.index.add(cursor.pattern, cursor)
        if cursor.group:
            self.groups[cursor.group, cursor.pattern] = cursor

    def remove(self, cursor: Cursor) -> None:
        del self.cursors[cursor.number]
        self.index.remove(cursor.pattern, cursor)
        if cursor.group:
            del self.groups[cursor.group, cursor.pattern]

    def join(self, cursor: Cursor, agent: str, alone: bool, now: float) -> None:
        name = f"{agent}#{cursor.name}" if alone else agent
        account = self.accounts.of(agent, now)
        cursor.join(self.consumer(name, agent), alone, account)
        self._subscribed.setdefault(agent, {})[cursor.number] = cursor
        account.subscriptions += 1

    def leave(self, cursor: Cursor, agent: str, now: float) -> None:
        consumer, alone = cursor.members[agent]
        cursor.leave(agent)
        mine = self._subscribed[agent]
        del mine[cursor.number]
        if not mine:
            del self._subscribed[agent]
        if alone:
            del self.consumers[consumer.name]
        self.accounts.of(agent, now).subscriptions -= 1

    def cursors_of(self, agent: str) -> list[Cursor]:
        return list(self._subscribed.get(agent, {}).values())

    def consumers_of(self, agent: str) -> Iterator[Consumer]:
        if agent in self.consumers:
            yield self.consumers[agent]
        for cursor in self.cursors_of(agent):
            consumer, alone = cursor.members[agent]
            if alone:
                yield consumer


class Operation:
    __slots__ = ("_expired", "_moved", "_state", "notes", "puts", "wake")

    def __init__(self, state: State) -> None:
        self._state = state
        self.puts: list[Put] = []
        self.wake: dict[str, None] = {}
        self.notes: list[Note] = []
        self._moved: dict[Owner, None] = {}
        self._expired: dict[Cursor, list[Message]] = {}
        if state.left_over:
            self.puts, state.left_over = state.left_over, []

    def change(self, value: T, now: Now) -> Change[T]:
        for cursor, missing in self._expired.items():
            self._told(cursor, cursor.tell(missing, self.number(), now, "expired"))
            self.wake.update((consumer.name, None) for consumer, _ in cursor.members.values())
        for owner in self._moved:
            if row := owner.row():
                self.puts.append(row)
        return Change(value, self.puts, tuple(self.wake), self.notes)

    def put(self, bucket: str, key: str, value: bytes | None) -> None:
        self.puts.append(Put(bucket, key, value))

    def number(self) -> int:
        """The next one, for a message or anything else that needs a name. Never given twice, whatever ends when."""
        state = self._state
        state.seq += 1
        if state.seq > state.reserved:
            state.reserved += _RESERVED
            self.put(META, SEQ, _encode(state.reserved))
        return state.seq

    def settle(self, item: Item, now: Now) -> None:
        """It is over with the item, wherever it is."""
        state, owner = self._state, item.owner
        if item.holder is not None:
            held.let_go(item, state.hands)
        else:
            item.queue.forget(item)
        if item.hand is not None:
            self.puts += held.leave_hand(item)
        held_up = item.queue.shut or item.not_before > 0
        if item.not_before:
            state.delays.drop(item, item.not_before)
        self.puts += owner.settle(item, now.mono)
        if held_up and item.queue and not item.queue.shut:  # what was behind it need not wait any more
            self.wake.update(dict.fromkeys(owner.enter(item.queue)))
        if owner.number:
            self._moved[owner] = None
        else:
            state.ends.drop(item, item.expires)
            state.accounts.of(item.message.sender, now.mono).unacked -= item.weight

    def bury(self, item: Item, now: Now, reason: Reason, detail: str) -> None:
        """A dead letter."""
        owner, message = item.owner, item.message
        receiver = item.holder.agent if item.holder else ""
        if isinstance(owner, Mailbox):
            receiver = owner.agent
        sub = owner.name if isinstance(owner, Cursor) else None
        if isinstance(owner, Cursor) and not receiver:
            receiver = next(iter(owner.members), owner.pattern)
        self.settle(item, now)
        self.letter(message, receiver, reason, detail, item.deliveries, now, sub)

    def letter(
        self,
        message: Message,
        receiver: str,
        reason: Reason,
        detail: str,
        deliveries: int,
        now: Now,
        sub: str | None = None,
    ) -> None:
        letter = Letter(self.number(), message, receiver, reason, detail, now.wall_ns, deliveries, sub)
        puts, notes = self._state.letters.put(letter)
        self.puts += puts
        self.notes += notes

    def expire(self, item: Item, now: Now) -> None:
        """It waits, and its time is over. Of events that never went out one gap tells."""
        owner = item.owner
        if isinstance(owner, Cursor) and not item.deliveries:
            self._expired.setdefault(owner, []).append(item.message)
            self.settle(item, now)
        else:
            self.bury(item, now, "expired", f"nobody took it for {item.message.lasts_ms} ms")

    def make_room(self, cursor: Cursor, now: Now) -> None:
        puts, gap = cursor.drop_oldest(self.number(), now)
        self.puts += puts
        if gap:
            self._told(cursor, gap)

    def _told(self, cursor: Cursor, gap: Gap) -> None:
        self._moved[cursor] = None
        facts = {"sub": cursor.name, "from": gap.first, "to": gap.last, "count": gap.count, "reason": gap.reason}
        self.notes += [Note("gap", agent, facts) for agent in cursor.members]

    def end(self, cursor: Cursor) -> None:
        """The last one left."""
        state = self._state
        for item in cursor.open.values():
            item.gone = True
            if item.holder:
                held.let_go(item, state.hands)
            if item.hand:
                self.puts += held.leave_hand(item)
            if item.not_before:
                state.delays.drop(item, item.not_before)
        self.puts += cursor.removals()
        self._moved.pop(cursor, None)
        state.remove(cursor)


def _hex(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None
