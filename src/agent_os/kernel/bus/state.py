"""All that the local broker holds in memory, and one operation on it.

`State` is the parts and how to find things in them. An `Operation` gathers what must be kept, who must be woken and
what the record should tell, while the broker takes a call through the parts; cursors that moved are written once, at
its end. Neither waits, neither reads a clock.
"""

from collections.abc import Iterator
from typing import TypeVar

import msgspec

from agent_os.drivers.store import Put
from agent_os.kernel.bus import held
from agent_os.kernel.bus.broker import Change, Note
from agent_os.kernel.bus.cursors import Cursor, Gap
from agent_os.kernel.bus.dead import Letters
from agent_os.kernel.bus.dedup import Dedup
from agent_os.kernel.bus.held import Consumer
from agent_os.kernel.bus.lanes import Item
from agent_os.kernel.bus.log import Log
from agent_os.kernel.bus.mailbox import Mailbox, Owner
from agent_os.kernel.bus.message import Letter, Message, Now, Reason
from agent_os.kernel.bus.quota import Accounts
from agent_os.kernel.bus.rows import Rows
from agent_os.kernel.bus.topics import Index
from agent_os.kernel.bus.wheel import Wheel

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
