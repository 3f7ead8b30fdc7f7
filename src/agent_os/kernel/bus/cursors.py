"""A subscription is a cursor: how far it is in the log of events, lane by lane, alone or as a group.

In: events that its filter takes. Out: items in its three queues, and one small row that says what is behind it. Of a
group each event goes to one member, and the members share the cursor. Acknowledged out of order, an event is remembered
until all before it are; a thousand of those, and nothing new goes out in that lane until the gap closes. Nor does it
while a thousand or 16 MiB went out and are not acknowledged: those cannot be dropped, whatever else comes.

A subscriber that lags 10,000 events or 64 MiB, over all it has subscribed to, loses the oldest that never went out, an
eighth at a time, and is told so by one gap that names them; while the gap waits it grows, so it stays one.
"""

from collections import deque
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Raw, Struct

from agent_os.abi.errors import EAGAIN
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import joined, of_words
from agent_os.kernel.bus.held import Consumer
from agent_os.kernel.bus.lanes import Item, Queue
from agent_os.kernel.bus.log import Event, Log
from agent_os.kernel.bus.message import ALL_LANES, NORMAL, Message, Now, Outgoing, stamped
from agent_os.kernel.bus.quota import Account, Drain

CURSORS, SUBSCRIPTIONS = "bus.cursors", "bus.subs"  # buckets
MOST_EVENTS, MOST_BYTES = 10_000, 64 << 20
WINDOW = 1000
MOST_OUT = 16 << 20  # bytes, as a mailbox has
GAP = "agent-os.gap"  # the schema of what tells of one
_PART = 8  # of the bound is dropped at once
_FOR_EVER = float("inf")


class Gap(Struct, array_like=True):
    seq: int  # its own, to be acknowledged by
    first: int
    last: int
    count: int
    reason: str = "lag"
    labels: list[str] = []  # of what is missing: how much that is was up to whoever published it


class Place(Struct, array_like=True):
    """What is kept of a cursor that moves."""

    floors: list[int]  # by lane: everything up to here is over
    done: list[list[int]]  # beyond it
    skipped: list[tuple[int, int]]  # from, to: what never went out by then was dropped
    gaps: list[Gap]


class Subscription(Struct, array_like=True):
    """What is kept of a cursor that stays."""

    number: int
    pattern: str
    group: str
    members: list[tuple[str, bool]]  # agent, alone
    credits: dict[str, int] = {}


_encode = msgspec.msgpack.Encoder().encode
decode_place = msgspec.msgpack.Decoder(Place).decode
decode_subscription = msgspec.msgpack.Decoder(Subscription).decode


class _Track:
    """One lane."""

    __slots__ = ("done", "dropped", "floor", "line", "out", "out_bytes", "queue")

    def __init__(self, lane: int, floor: int) -> None:
        self.queue, self.floor = Queue(lane), floor
        self.line: deque[int] = deque()  # beyond the floor, in order
        self.done: set[int] = set()
        self.dropped: set[int] = set()
        self.out = self.out_bytes = 0  # tried, and not settled

    def tried(self, count: int, weight: int) -> None:
        self.out += count
        self.out_bytes += weight
        self.shut()

    def shut(self) -> None:
        self.queue.shut = len(self.done) >= WINDOW or self.out >= WINDOW or self.out_bytes >= MOST_OUT

    def advance(self) -> None:
        line, done, dropped = self.line, self.done, self.dropped
        while line and (line[0] in done or line[0] in dropped):
            self.floor = line.popleft()
            done.discard(self.floor)
            dropped.discard(self.floor)


class Cursor:
    def __init__(self, number: int, pattern: str, group: str, log: Log, floor: int, now: float) -> None:
        self.number, self.pattern, self.group = number, pattern, group
        self.ordered = not group
        self.members: dict[str, tuple[Consumer, bool]] = {}  # by agent; whether it stands alone
        self._accounts: dict[str, Account] = {}  # of the members
        self.credits: dict[str, int] = {}  # of members to whom events are pushed: how many at a time
        self.open: dict[int, Item] = {}  # waiting or in hand
        self.bytes = 0
        self.passed_over = False  # some member may not have what is first, and waits until another took it
        self.drain = Drain(now)
        self._log = log
        self._tracks = [_Track(lane, floor) for lane in ALL_LANES]
        self._skipped: list[tuple[int, int]] = []
        self._gaps: dict[int, Gap] = {}

    @property
    def name(self) -> str:
        return f"s{self.number:x}"

    # Members.

    def join(self, consumer: Consumer, alone: bool, account: Account) -> None:
        self.members[consumer.agent] = (consumer, alone)
        self._accounts[consumer.agent] = account
        account.behind += len(self.open)
        account.behind_bytes += self.bytes
        for track in self._tracks:
            if track.queue:
                consumer.lanes.enter(track.queue)

    def leave(self, agent: str) -> None:
        consumer, _ = self.members.pop(agent)
        account = self._accounts.pop(agent)
        account.behind -= len(self.open)
        account.behind_bytes -= self.bytes
        self.credits.pop(agent, None)
        for track in self._tracks:
            consumer.lanes.leave(track.queue)

    def enter(self, queue: Queue) -> list[str]:
        for consumer, _ in self.members.values():
            consumer.lanes.enter(queue)
        return [consumer.name for consumer, _ in self.members.values()]

    # Events.

    @property
    def lagging(self) -> bool:
        """By itself, or because nobody who has it has room: of a group one may be full, and the others are not."""
        if len(self.open) >= MOST_EVENTS or self.bytes >= MOST_BYTES:
            return True
        full = [one.behind >= MOST_EVENTS or one.behind_bytes >= MOST_BYTES for one in self._accounts.values()]
        return bool(full) and all(full)

    def _count(self, events: int, weight: int) -> None:
        self.bytes += weight
        for one in self._accounts.values():
            one.behind += events
            one.behind_bytes += weight

    def require_room(self, now: float) -> None:
        """For topics that must lose nothing."""
        if self.lagging:
            raise EAGAIN(
                "bus.lag",
                f"the topic is reliable, and a subscriber of {self.pattern!r} is {len(self.open)} events behind",
                hint="publish it again later; nothing was published",
                retry_after_ms=self.drain.wait_ms(1, now),
                events=len(self.open),
                bytes=self.bytes,
            )

    def add(self, message: Message, weight: int, expires: float, *, tried: bool = False) -> Item:
        """The event is counted as needed by whoever published it."""
        track = self._tracks[message.lane]
        item = Item(message, weight, expires, self, track.queue)
        self.open[message.seq] = item
        self._count(1, weight)
        track.line.append(message.seq)
        if tried:
            track.queue.put_back(item)
            track.tried(1, weight)
        else:
            track.queue.add(item)
        return item

    def goes_out(self, item: Item) -> None:
        """For the first time."""
        if not self.is_gap(item):
            self._tracks[item.message.lane].tried(1, item.weight)

    def find(self, seq: int) -> Item | None:
        return self.open.get(seq)

    def settle(self, item: Item, now: float) -> list[Put]:
        seq = item.message.seq
        del self.open[seq]
        self._count(-1, -item.weight)
        self.drain.took(1, now)
        if self._gaps.pop(seq, None):
            return []
        track = self._tracks[item.message.lane]
        track.done.add(seq)
        track.advance()
        track.tried(-1, -item.weight) if item.deliveries else track.shut()
        return self._log.release(seq)

    # What is lost.

    def drop_oldest(self, number: int, now: Now) -> tuple[list[Put], Gap | None]:
        """Make room. `number` is the gap's, if a new one is needed. No gap: everything is in hand or was."""
        lost: list[Item] = []
        size = 0
        for item in self.open.values():
            if len(lost) * _PART >= MOST_EVENTS or size * _PART >= MOST_BYTES:
                break
            if not item.deliveries and item.holder is None and item.message.seq not in self._gaps:
                lost.append(item)
                size += item.weight
        if not lost:
            return [], None
        return self._lose(lost), self.tell([item.message for item in lost], number, now, "lag")

    def _lose(self, items: Sequence[Item]) -> list[Put]:
        """These wait and never went out, in order, and nothing of that kind is between them: so a range says which."""
        puts: list[Put] = []
        for item in items:
            seq = item.message.seq
            item.queue.forget(item)
            del self.open[seq]
            self._count(-1, -item.weight)
            track = self._tracks[item.message.lane]
            track.dropped.add(seq)
            track.advance()
            puts += self._log.release(seq)
        floor = min(track.floor for track in self._tracks)
        self._skipped = [one for one in self._skipped if one[1] > floor]
        self._skipped.append((items[0].message.seq, items[-1].message.seq))
        return puts

    def tell(self, missing: Sequence[Message], number: int, now: Now, reason: str) -> Gap:
        """Of events that it will not get: one gap, which grows while nobody has heard of it."""
        seqs = [one.seq for one in missing]
        first, last, labels = min(seqs), max(seqs), {tuple(one.labels) for one in missing}
        for gap in self._gaps.values():
            item = self.open[gap.seq]
            if item.holder is None and not item.deliveries and gap.reason == reason:
                gap.first, gap.last, gap.count = min(gap.first, first), max(gap.last, last), gap.count + len(seqs)
                gap.labels = _joined({*labels, tuple(gap.labels)})
                item.message = self._gap_message(gap, now)
                return gap
        gap = Gap(number, first, last, len(seqs), reason, _joined(labels))
        self.restore_gap(gap, now)
        return gap

    def restore_gap(self, gap: Gap, now: Now) -> None:
        queue = self._tracks[NORMAL].queue
        item = Item(self._gap_message(gap, now), 0, _FOR_EVER, self, queue)
        self._gaps[gap.seq] = gap
        self.open[gap.seq] = item
        self._count(1, 0)
        queue.put_back(item, gap.first)
        self.enter(queue)

    def _gap_message(self, gap: Gap, now: Now) -> Message:
        said = {"from": gap.first, "to": gap.last, "count": gap.count, "reason": gap.reason}
        draft = Outgoing(
            self.pattern, "kernel", payload=Raw(_encode(said)), schema=GAP, labels=gap.labels, via="kernel"
        )
        return stamped(draft, gap.seq, f"gap-{gap.seq:x}", now.wall_ns)

    def is_gap(self, item: Item) -> bool:
        return item.message.seq in self._gaps

    # What is kept.

    def row(self) -> Put | None:
        floors, done = [track.floor for track in self._tracks], [sorted(track.done) for track in self._tracks]
        return Put(CURSORS, self.name, _encode(Place(floors, done, self._skipped, list(self._gaps.values()))))

    def rows(self) -> list[Put]:
        """Everything, for a new cursor or new members."""
        members = [(agent, alone) for agent, (_, alone) in self.members.items()]
        one = Subscription(self.number, self.pattern, self.group, members, self.credits)
        place = self.row()
        return [Put(SUBSCRIPTIONS, self.name, _encode(one)), *([place] if place else [])]

    def removals(self) -> list[Put]:
        puts = [Put(SUBSCRIPTIONS, self.name, None), Put(CURSORS, self.name, None)]
        for seq in self.open:
            if seq not in self._gaps:
                puts += self._log.release(seq)
        return puts

    def restore(self, place: Place, now: Now) -> None:
        for track, floor, done in zip(self._tracks, place.floors, place.done, strict=True):
            track.floor, track.done = floor, set(done)
        self._skipped = [(first, last) for first, last in place.skipped]
        for gap in place.gaps:
            self.restore_gap(gap, now)

    def restore_event(self, event: Event, expires: float, tried: bool) -> Item | None:
        """The item, if the cursor still wants the event. `tried`: it went out once, so it was not dropped."""
        seq, track = event.message.seq, self._tracks[event.message.lane]
        if seq <= track.floor or seq not in self._log.events:
            return None
        if seq in track.done or (not tried and any(first <= seq <= last for first, last in self._skipped)):
            if seq in track.done:
                track.line.append(seq)
            return None
        self._log.need(seq)
        return self.add(event.message, event.weight, expires, tried=tried)

    def restored(self) -> None:
        """All events were shown. What was acknowledged and is not in the log any more need not be remembered."""
        for track in self._tracks:
            track.done.intersection_update(track.line)
            track.advance()


def _joined(labels: Iterable[Sequence[str]]) -> list[str]:
    return joined(map(of_words, labels)).words()
