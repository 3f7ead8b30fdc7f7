"""The local broker's memory, rebuilt from its rows at the start.

Everything that was accepted and not acknowledged is there again, in order, waiting, with its deliveries and deaths; of
rows that speak of nothing any more the first operation rids the store. What is left of a message's life counts by the
wall clock, because nobody measured the time between.
"""

from agent_os.kernel.bus.cursors import (
    CURSORS,
    SUBSCRIPTIONS,
    Cursor,
    decode_place,
    decode_subscription,
)
from agent_os.kernel.bus.held import HANDS, Hand, stored
from agent_os.kernel.bus.lanes import Item
from agent_os.kernel.bus.mailbox import BOXES
from agent_os.kernel.bus.message import Now, decode
from agent_os.kernel.bus.state import State

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
