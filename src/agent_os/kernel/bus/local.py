"""The local broker: mailboxes, cursors and dead letters in the kernel's own store.

What is true is true in memory first, and kept by the puts of the very operation: whoever calls commits them with its
record before it answers. Operations are recorded in the order in which they happened here, so nobody can be told of
something that a crash then takes back. Memory is rebuilt from the store at the start (`restoring.py`): what was in hand
is visible again and keeps its count of deliveries and deaths. The end of the kernel is no death of a receiver.

This file takes each operation through the parts; the rules are in them.
"""

from collections.abc import Callable, Sequence
from typing import cast

from msgspec.structs import replace

from agent_os.abi.errors import EINVAL, ENOENT, AgentOSError
from agent_os.kernel.bus import held
from agent_os.kernel.bus.broker import (
    MOST_PULLED_BYTES,
    NEW,
    VISIBLE_S,
    Change,
    Lag,
    Sent,
    Start,
    Subscribed,
)
from agent_os.kernel.bus.cursors import (
    CURSORS,
    SUBSCRIPTIONS,
    Cursor,
    decode_place,
    decode_subscription,
)
from agent_os.kernel.bus.held import HANDS, Consumer, Hand, stored
from agent_os.kernel.bus.lanes import Item
from agent_os.kernel.bus.mailbox import BOXES, Mailbox, row_key
from agent_os.kernel.bus.message import (
    ALL_LANES,
    LONGEST_NAME,
    Delivery,
    Letter,
    Message,
    Now,
    Outgoing,
    Reason,
    check,
    decode,
    encode,
    stamped,
)
from agent_os.kernel.bus.rows import Rows
from agent_os.kernel.bus.state import TOPICS, Operation, State
from agent_os.kernel.bus.terms import Terms, usual
from agent_os.kernel.bus.topics import check_filter, check_topic, matches, target

# The local broker's memory, rebuilt from its rows at the start. Everything that was accepted and not acknowledged
# is there again, in order, waiting, with its deliveries and deaths; of rows that speak of nothing any more the
# first operation rids the store. What is left of a message's life counts by the wall clock, because nobody measured
# the time between.

_Tried = dict[tuple[int, int], tuple[int, int, Hand]]


def restore(state: State, now: Now) -> State:
    hands = [(Hand(key, {}), tried) for key, tried in stored(state.rows.items(HANDS))]
    known: _Tried = {}
    for hand, tried in hands:  # in the order in which they went out, so the last one counts
        known |= {(number, seq): (deliveries, deaths, hand) for number, seq, deliveries, deaths in tried}
    _boxes(state, known, now)
    _cursors(state, known, now)
    state.left_over += [hand.removal() for hand, _ in hands if not hand.items]
    state.left_over += state.log.trim()
    return state


def _boxes(state: State, known: _Tried, now: Now) -> None:
    for key, row in state.rows.items(BOXES):
        message = decode(row)
        agent = key.rpartition("\0")[0]
        item = state.box(agent, now.mono).add(message, len(row), now.mono + message.left(now))
        state.ends.set(item, item.expires)
        state.accounts.of(message.sender, now.mono).unacked += len(row)
        _remember(item, known)


def _cursors(state: State, known: _Tried, now: Now) -> None:
    places = dict(state.rows.items(CURSORS))
    for name, row in state.rows.items(SUBSCRIPTIONS):
        kept = decode_subscription(row)
        cursor = Cursor(kept.number, kept.pattern, kept.group, state.log, 0, now.mono)
        state.add(cursor)
        for agent, alone in kept.members:
            state.join(cursor, agent, alone, now.mono)
        cursor.credits = kept.credits
        cursor.restore(decode_place(places[name]), now)
    for event in state.log.since(0):
        for cursor in state.index.find(event.message.to):
            tried = (cursor.number, event.message.seq) in known
            item = cursor.restore_event(event, now.mono + event.message.left(now), tried)
            if item:
                _remember(item, known)
                cursor.enter(item.queue)
    for cursor in state.cursors.values():
        cursor.restored()
        for item in cursor.open.values():
            if cursor.is_gap(item):
                _remember(item, known)


def _remember(item: Item, known: _Tried) -> None:
    if found := known.get((item.owner.number, item.message.seq)):
        item.deliveries, item.deaths, hand = found
        item.hand = hand
        hand.items[item] = None


LONGEST_S = 12 * 3600.0  # that a delivery may be extended, or come back later
_TIDY_S, _TIDY_SOON_S = 3600.0, 1.0


class LocalBroker:
    def __init__(
        self,
        rows: Rows,
        now: Now,
        *,
        node: str = "m",
        terms: Callable[[str], Terms] = usual,
        hears: Callable[[str, str], bool] = lambda agent, topic: True,
    ) -> None:
        """`node` begins the ids of messages. `hears`: whether an agent may have the events of a topic, asked whenever
        one is about to be given to it."""
        self._state, self._terms, self._hears = restore(State(rows, node), now), terms, hears
        self._tidy_at = now.mono + _TIDY_SOON_S

    # Sending.

    def publish(self, batch: Sequence[Outgoing], now: Now, *, whole: bool = True) -> Change[list[Sent | AgentOSError]]:
        op = Operation(self._state)
        results: list[Sent | AgentOSError] = []
        for draft in batch:
            try:
                results.append((self._to_topic if draft.topic else self._to_agent)(op, draft, now))
            except AgentOSError as error:
                results.append(error)
                if not whole:
                    break
        return op.change(results, now)

    def _to_agent(self, op: Operation, draft: Outgoing, now: Now) -> Sent:
        check(draft)
        state = self._state
        account = state.accounts.of(draft.sender, now.mono)
        account.require_turn(now.mono)
        box = state.box(draft.to, now.mono)
        if draft.key is not None and (first := self._known(box, draft, draft.key, now)):
            return first
        seq = state.seq + 1
        message = stamped(draft, seq, state.name(seq), now.wall_ns)
        row = encode(message)
        account.require_unacked(len(row))
        box.require_room(draft.sender, len(row), now.mono, self._terms(draft.to).queue)
        op.number()
        account.spend()
        account.unacked += len(row)
        item = box.add(message, len(row), now.mono + message.lasts_ms / 1000)
        state.ends.set(item, item.expires)
        op.put(BOXES, row_key(draft.to, seq), row)
        op.wake[draft.to] = None
        return Sent(message.id, seq)

    def _known(self, box: Mailbox, draft: Outgoing, key: str, now: Now) -> Sent | None:
        if item := box.keys.get((draft.sender, key)):
            return Sent(item.message.id, item.message.seq, duplicate=True)
        if seen := self._state.dedup.find(draft.to, draft.sender, key, now):
            return Sent(seen[2], seen[1], duplicate=True)
        return None

    def _to_topic(self, op: Operation, draft: Outgoing, now: Now) -> Sent:
        topic = check_topic(draft.to)
        check(draft)
        state = self._state
        account = state.accounts.of(draft.sender, now.mono)
        account.require_turn(now.mono)
        receiver = target(topic)
        if draft.key is not None and (seen := state.dedup.find(receiver, draft.sender, draft.key, now)):
            return Sent(seen[2], seen[1], duplicate=True)
        cursors = state.index.find(topic)
        if state.reliable.find(topic):
            for cursor in cursors:
                cursor.require_room(now.mono)
        account.spend()
        seq = op.number()
        message = stamped(draft, seq, state.name(seq), now.wall_ns)
        row = encode(message)
        expires = now.mono + message.lasts_ms / 1000
        for cursor in cursors:
            if cursor.lagging:
                op.make_room(cursor, now)
            item = cursor.add(message, len(row), expires)
            op.wake.update(dict.fromkeys(cursor.enter(item.queue)))
        op.puts += state.log.add(message, row, len(cursors))
        op.puts += state.dedup.remember(receiver, message, now)
        return Sent(message.id, seq)

    def declare(self, pattern: str, now: Now, *, reliable: bool) -> Change[None]:
        op, state = Operation(self._state), self._state
        check_filter(pattern)
        if reliable != (pattern in state.declared):
            (state.reliable.add if reliable else state.reliable.remove)(pattern, pattern)
            (state.declared.add if reliable else state.declared.discard)(pattern)
            op.put(TOPICS, pattern, b"" if reliable else None)
        return op.change(None, now)

    def declared(self) -> list[str]:
        return sorted(self._state.declared)

    # Receiving.

    def pull(
        self,
        consumer: str,
        n: int,
        now: Now,
        *,
        lanes: Sequence[int] = ALL_LANES,
        visible_s: float = VISIBLE_S,
    ) -> Change[list[Delivery]]:
        op = Operation(self._state)
        whom = self._state.consumers.get(consumer)
        items = self._take(op, whom, n, now, lanes) if whom else []
        if whom and items:
            until = now.mono + min(visible_s, LONGEST_S)
            op.puts += held.hand_out(whom, items, f"{op.number():016x}", until, self._state.hands)
        return op.change([_delivery(item, now.mono) for item in items], now)

    def _take(self, op: Operation, whom: Consumer, n: int, now: Now, lanes: Sequence[int]) -> list[Item]:
        items: list[Item] = []
        size, ring = 0, whom.lanes
        most = self._terms(whom.agent).requests
        room = None if most is None else most - sum(one.message.type == "request" for one in whom.in_hand)
        while len(items) < n and (item := ring.next(lanes, now.mono)):
            if item.expires <= now.mono:
                op.expire(item, now)
                continue
            if item.owner.number and not self._hears(whom.agent, item.message.to):
                self._pass_over(op, whom, item, now)
                continue
            if room is not None and item.message.type == "request":
                if room <= 0:  # it has enough to do; nothing overtakes
                    break
                room -= 1
            size += item.weight
            if items and size > MOST_PULLED_BYTES:
                break
            ring.took(item.queue)
            items.append(item)
            if isinstance(item.owner, Cursor) and not item.deliveries:
                item.owner.goes_out(item)
            if isinstance(item.owner, Cursor) and item.owner.passed_over:
                item.owner.passed_over = False
                op.wake.update(dict.fromkeys(item.owner.enter(item.queue)))
        return items

    def _pass_over(self, op: Operation, whom: Consumer, item: Item, now: Now) -> None:
        """It may not have this event. What nobody of the subscription may have is over; else it waits for the others,
        and until one of them has taken it nothing behind it comes here."""
        cursor = cast("Cursor", item.owner)
        others = [one for one, _ in cursor.members.values() if one is not whom]
        others = [one for one in others if self._hears(one.agent, item.message.to)]
        if others:
            whom.lanes.leave(item.queue)
            cursor.passed_over = True
            op.wake.update((one.name, None) for one in others)
        else:
            op.settle(item, now)

    def ack(self, agent: str, ids: Sequence[str], now: Now) -> Change[int]:
        def done(op: Operation, item: Item) -> None:
            op.settle(item, now)
            self._remember(op, agent, item, now)

        return self._each(agent, ids, now, done)

    def nack(self, agent: str, ids: Sequence[str], now: Now, *, delay_ms: int = 0, reason: str = "") -> Change[int]:
        def back(op: Operation, item: Item) -> None:
            self._come_back(op, item, now, "handler_error", reason, delay_ms / 1000)

        return self._each(agent, ids, now, back, in_hand=True)

    def extend(self, agent: str, ids: Sequence[str], now: Now, *, more_s: float = VISIBLE_S) -> Change[int]:
        until = now.mono + min(max(more_s, 0.0), LONGEST_S)
        return self._each(agent, ids, now, lambda _, item: held.extend(item, until, self._state.hands), in_hand=True)

    def reject(
        self, agent: str, ids: Sequence[str], now: Now, *, reason: Reason = "rejected", detail: str = ""
    ) -> Change[int]:
        def buried(op: Operation, item: Item) -> None:
            op.bury(item, now, reason, detail)
            self._remember(op, agent, item, now)

        return self._each(agent, ids, now, buried)

    def _each(
        self,
        agent: str,
        ids: Sequence[str],
        now: Now,
        do: Callable[[Operation, Item], None],
        *,
        in_hand: bool = False,
    ) -> Change[int]:
        """What was delivered is looked up one by one: an id that stands twice is unknown the second time."""
        op, unknown = Operation(self._state), 0
        for name in ids:
            item = self._went_out(agent, name)
            if item is None or (in_hand and item.holder is None):
                unknown += 1
            else:
                do(op, item)
        return op.change(unknown, now)

    def _remember(self, op: Operation, agent: str, item: Item, now: Now) -> None:
        if not item.owner.number:
            op.puts += self._state.dedup.remember(agent, item.message, now)

    def _went_out(self, agent: str, name: str) -> Item | None:
        """What the agent has in hand under that id, or had: late is better than twice. What another member of a group
        has by now is that member's."""
        item = self._state.find(agent, name)
        if item is None or not item.deliveries or (item.holder and item.holder.agent != agent):
            return None
        return item

    def _come_back(self, op: Operation, item: Item, now: Now, reason: Reason, detail: str, delay: float = 0.0) -> None:
        """It was not handled. Tried often enough, it is dead; a gap is told until it is heard."""
        state, owner = self._state, item.owner
        gap = isinstance(owner, Cursor) and owner.is_gap(item)
        terms = self._terms(item.holder.agent if item.holder else "")
        if not gap and item.deaths >= terms.deaths:
            op.bury(item, now, "handler_error", f"{item.deaths} lives of the receiver ended with it in hand")
        elif not gap and item.deliveries >= terms.deliveries:
            op.bury(item, now, reason, detail or f"delivered {item.deliveries} times")
        elif item.expires <= now.mono:
            op.bury(item, now, "expired", "its time was over when it came back")
        else:
            held.let_go(item, state.hands)
            if delay > 0:
                item.not_before = now.mono + min(delay, LONGEST_S)
                state.delays.set(item, item.not_before)
            if delay > 0 and not owner.ordered:
                item.parked = True
                return
            item.queue.put_back(item)
            op.wake.update(dict.fromkeys(owner.enter(item.queue)))

    # Subscriptions.

    def subscribe(
        self,
        agent: str,
        pattern: str,
        now: Now,
        *,
        group: str = "",
        start: Start = NEW,
        alone: bool = False,
        credit: int = 0,
    ) -> Change[Subscribed]:
        op, state = Operation(self._state), self._state
        check_filter(pattern)
        if len(group) > LONGEST_NAME or "\0" in group:
            raise EINVAL("bus.group", f"the name of a group has at most {LONGEST_NAME} characters, none of them NUL")
        cursor = state.groups.get((group, pattern)) if group else None
        if cursor and agent in cursor.members:
            return op.change(Subscribed(cursor.name, True, len(cursor.open)), now)
        state.accounts.of(agent, now.mono).require_subscription()
        joined, floor = cursor is not None, None
        if cursor is None:
            cursor, floor = self._new_cursor(op, pattern, group, start, now)
        state.join(cursor, agent, alone or credit > 0, now.mono)
        if floor is not None and start.kind != "new":
            self._replay(op, cursor, floor, now)
        if credit:
            cursor.credits[agent] = credit
        op.puts += cursor.rows()
        if cursor.open:
            op.wake[cursor.members[agent][0].name] = None
        return op.change(Subscribed(cursor.name, joined, len(cursor.open)), now)

    def _new_cursor(self, op: Operation, pattern: str, group: str, start: Start, now: Now) -> tuple[Cursor, int]:
        """The cursor, and what it begins after."""
        state, number = self._state, op.number()
        floors = {"new": number, "first": 0, "seq": start.value - 1}
        floor = state.log.first_at(start.value) if start.kind == "time" else floors[start.kind]
        floor = min(max(floor, 0), number)
        cursor = Cursor(number, pattern, group, state.log, floor, now.mono)
        state.add(cursor)
        return cursor, floor

    def _replay(self, op: Operation, cursor: Cursor, floor: int, now: Now) -> None:
        for event in self._state.log.since(floor):
            if matches(cursor.pattern, event.message.to):
                if cursor.lagging:
                    op.make_room(cursor, now)
                item = cursor.restore_event(event, now.mono + event.message.left(now), False)
                if item:
                    cursor.enter(item.queue)

    def unsubscribe(self, agent: str, sub: str, now: Now) -> Change[None]:
        op = Operation(self._state)
        self._leave(op, self._subscription(agent, sub), agent, now)
        return op.change(None, now)

    def grant(self, agent: str, sub: str, credit: int, now: Now) -> Change[None]:
        op, cursor = Operation(self._state), self._subscription(agent, sub)
        consumer, alone = cursor.members[agent]
        if not alone:
            raise EINVAL("bus.credit", f"the events of {sub} come by SYS_RECV", hint="subscribe with credit")
        cursor.credits[agent] = credit
        op.puts += cursor.rows()
        op.wake[consumer.name] = None
        return op.change(None, now)

    def credit(self, consumer: str) -> int:
        whom, cursor = self._state.consumers.get(consumer), self._state.cursor(consumer.partition("#")[2])
        if whom is None or cursor is None:
            return 0
        return max(0, cursor.credits.get(whom.agent, 0) - len(whom.in_hand))

    def load(self, sender: str, to: str, corr: str | None) -> tuple[int, int]:
        box = self._state.boxes.get(to)
        found = [
            item.weight
            for item in (box.items.values() if box else ())
            if item.message.type == "stream" and item.message.sender == sender and item.message.corr == corr
        ]
        return len(found), sum(found)

    def _subscription(self, agent: str, sub: str) -> Cursor:
        cursor = self._state.cursor(sub)
        if cursor is None or agent not in cursor.members:
            raise ENOENT("bus.sub", f"{agent} has no subscription {sub!r}", hint="/ipc lists what it has")
        return cursor

    def _leave(self, op: Operation, cursor: Cursor, agent: str, now: Now) -> None:
        state, consumer = self._state, cursor.members[agent][0]
        for item in [one for one in consumer.in_hand if one.owner is cursor]:
            self._come_back(op, item, now, "unknown", "")
        state.leave(cursor, agent, now.mono)
        if cursor.members:
            op.puts += cursor.rows()
        else:
            op.end(cursor)

    # Lives of receivers.

    def died(self, agent: str, now: Now, *, keeps: bool = False, blamed: bool = True) -> Change[int]:
        op, dead, most = Operation(self._state), 0, self._terms(agent).deaths
        for consumer in self._state.consumers_of(agent):
            held.thaw(consumer, now.mono, self._state.hands)
            hands = {item.hand: None for item in consumer.in_hand}
            for item in list(consumer.in_hand):
                item.deaths += blamed
                dead += item.deaths >= most
                if keeps and item.deaths < most:
                    held.extend(item, now.mono + VISIBLE_S, self._state.hands)
                else:
                    self._come_back(op, item, now, "unknown", "its receiver ended with it in hand")
            op.puts += [hand.row() for hand in hands if hand and hand.items]
        return op.change(dead, now)

    def in_hand(self, agent: str) -> list[tuple[str, int]]:
        """The ids of what it has, with the lives that each has cost."""
        found = (item for consumer in self._state.consumers_of(agent) for item in consumer.in_hand)
        return [(item.message.id, item.deaths) for item in found]

    def held(self, agent: str, name: str) -> Message | None:
        item = self._went_out(agent, name)
        return item.message if item else None

    def requests_in_hand(self, agent: str) -> int:
        found = (item for consumer in self._state.consumers_of(agent) for item in consumer.in_hand)
        return sum(item.message.type == "request" for item in found)

    def gone(self, agent: str, now: Now) -> Change[None]:
        op, state = Operation(self._state), self._state
        for cursor in state.cursors_of(agent):
            self._leave(op, cursor, agent, now)
        if box := state.boxes.pop(agent, None):
            for item in list(box.items.values()):
                op.bury(item, now, "receiver_gone", f"{agent} has ended")
        state.consumers.pop(agent, None)
        return op.change(None, now)

    def freeze(self, agent: str, now: Now) -> None:
        for consumer in self._state.consumers_of(agent):
            held.freeze(consumer, now.mono, self._state.hands)

    def thaw(self, agent: str, now: Now) -> None:
        for consumer in self._state.consumers_of(agent):
            held.thaw(consumer, now.mono, self._state.hands)

    # Dead letters.

    def dead_letters(self, receiver: str | None = None) -> list[Letter]:
        return list(self._state.letters.each(receiver))

    def bury(self, draft: Outgoing, receiver: str, reason: Reason, detail: str, now: Now) -> Change[Sent]:
        check(draft)
        op = Operation(self._state)
        seq = op.number()
        message = stamped(draft, seq, self._state.name(seq), now.wall_ns)
        op.letter(message, receiver, reason, detail, 0, now)
        return op.change(Sent(message.id, seq), now)

    def redeliver(self, name: str, now: Now) -> Change[Sent]:
        op, state = Operation(self._state), self._state
        letter = state.letters.find(name)
        box = state.box(letter.receiver, now.mono)
        seq, message = state.seq + 1, letter.message
        again = replace(message, seq=seq, id=state.name(seq), sent_ns=now.wall_ns, key=None, deadline_ms=None)
        row = encode(again)
        box.require_room(message.sender, len(row), now.mono, self._terms(letter.receiver).queue)
        op.number()
        state.accounts.of(message.sender, now.mono).unacked += len(row)
        item = box.add(again, len(row), now.mono + again.lasts_ms / 1000)
        state.ends.set(item, item.expires)
        op.put(BOXES, row_key(letter.receiver, seq), row)
        op.puts.append(state.letters.drop(letter))
        op.wake[letter.receiver] = None
        return op.change(Sent(again.id, seq), now)

    def drop_letter(self, name: str, now: Now) -> Change[None]:
        op = Operation(self._state)
        op.puts.append(self._state.letters.drop(self._state.letters.find(name)))
        return op.change(None, now)

    # Time.

    def tend(self, now: Now) -> Change[None]:
        op, state = Operation(self._state), self._state
        for item in state.delays.due(now.mono):
            if not item.gone:
                if item.parked:
                    item.parked = False
                    item.queue.put_back(item)
                op.wake.update(dict.fromkeys(item.owner.enter(item.queue)))
        for item in state.hands.due(now.mono):
            self._come_back(op, item, now, "unknown", "its receiver did not say what became of it")
        for item in state.ends.due(now.mono):
            if item.holder is None:
                op.expire(item, now)
        if now.mono >= self._tidy_at:
            self._tidy(op, now)
        return op.change(None, now)

    def _tidy(self, op: Operation, now: Now) -> None:
        state, before = self._state, len(op.puts)
        op.puts += state.dedup.tend(now)
        op.puts += state.log.tend(now)
        puts, notes = state.letters.tend(now)
        op.puts += puts
        op.notes += notes
        self._tidy_at = now.mono + (_TIDY_SOON_S if len(op.puts) > before else _TIDY_S)

    @property
    def next_tend(self) -> float | None:
        soonest = self._tidy_at
        for wheel in (self._state.hands, self._state.delays, self._state.ends):  # asked after every operation
            due = wheel.next
            if due is not None and due < soonest:
                soonest = due
        return soonest

    # The rest.

    def mailboxes(self) -> list[str]:
        """Whoever has something waiting or in hand."""
        return [agent for agent, box in self._state.boxes.items() if box.items]

    def subscriptions(self, agent: str | None = None) -> list[Cursor]:
        state = self._state
        return list(state.cursors.values()) if agent is None else state.cursors_of(agent)

    def lag(self, consumer: str) -> Lag:
        state = self._state
        whom = state.consumers.get(consumer)
        if whom is None:
            return Lag(0, 0, 0)
        box = state.boxes.get(consumer)
        owned: list[Item] = list(box.items.values()) if box else []
        for cursor in state.cursors_of(whom.agent):
            if cursor.members[whom.agent][0] is whom:
                owned += cursor.open.values()
        waiting = [item for item in owned if item.holder is None]
        oldest = min((item.message.sent_ns for item in waiting), default=None)
        lanes = tuple(sum(item.message.lane == lane for item in waiting) for lane in ALL_LANES)
        return Lag(len(waiting), len(whom.in_hand), sum(item.weight for item in owned), oldest, lanes)

    def depth(self) -> list[int]:
        state, found = self._state, [0] * len(ALL_LANES)
        for owned in (*(box.items for box in state.boxes.values()), *(one.open for one in state.cursors.values())):
            for item in owned.values():
                found[item.message.lane] += 1
        return found

    @property
    def buried(self) -> int:
        return self._state.letters.buried

    def close(self) -> None:
        """Everything is kept already."""


def _delivery(item: Item, mono: float) -> Delivery:
    message, owner = item.message, item.owner
    left = None if message.deadline_ms is None else max(0, int((item.expires - mono) * 1000))
    if isinstance(owner, Cursor):
        return Delivery(f"{message.id}:{owner.name}", message, item.deliveries, left, owner.name)
    return Delivery(message.id, message, item.deliveries, left)
