"""Requests and their replies, over any broker: who waits for whom, until when, and what was answered.

In: a request with a deadline, later its reply, or the news that nobody will reply. Out: rows that are kept with the
caller's record, and whom to wake: the id of the request stands for whoever waits for it. The reply lies here, durably,
until the one who asked has it on its record; asked again with the same key, a request finds its former self. A reply
that nobody waits for any more is a dead letter `late`. A circle of waiting agents is refused at once.
"""

from typing import Any

import msgspec
from msgspec import Struct

from agent_os.abi.errors import EBUSY, EDEADLK, EDQUOT, EINVAL, ENOENT, EPERM, ESRCH, ETIMEDOUT, AgentOSError
from agent_os.drivers.store import Put
from agent_os.kernel.bus.broker import Broker, Change, Note
from agent_os.kernel.bus.message import Message, Now, Outgoing, check, stamped
from agent_os.kernel.bus.rows import Rows
from agent_os.kernel.bus.wheel import Wheel
from agent_os.kernel.table import bare

ASKS = "bus.asks"  # bucket
KEPT_S = 24 * 3600.0  # after its deadline: so long a late reply is known as one
MOST = 256  # open requests of one agent, waiting or overdue
_GRAIN = 1.0

_encode = msgspec.msgpack.Encoder().encode


class Ask(Struct, array_like=True, eq=False):
    id: str
    seq: int
    asker: str
    asked: str
    key: str | None
    sent_ns: int
    deadline_ms: int
    waits: bool = True
    answer: Message | None = None
    gone: bool = False  # whoever was asked has ended
    forget_at: float = 0.0  # of this kernel's life; while it is waited for, its deadline
    place: str = ""  # in the asker's program: asked there again, it is the same request

    def left_s(self, now: Now) -> float:
        """By the wall clock, across a restart."""
        return min(self.deadline_ms, (self.sent_ns - now.wall_ns) / 1e6 + self.deadline_ms) / 1000


_decode = msgspec.msgpack.Decoder(Ask).decode


class Answered(Struct):
    late: bool = False


class Requests:
    def __init__(self, rows: Rows, broker: Broker, now: Now) -> None:
        self._broker = broker
        self._asks: dict[str, Ask] = {}
        self._keys: dict[tuple[str, str], Ask] = {}
        self._places: dict[tuple[str, str], Ask] = {}
        self._of: dict[str, dict[str, Ask]] = {}  # by who asked
        self._at: dict[str, dict[str, Ask]] = {}  # by who was asked
        self._ends: Wheel[Ask] = Wheel(_GRAIN)
        for _, row in rows.items(ASKS):
            self._add(_decode(row), now)

    def ask(self, draft: Outgoing, now: Now, place: str = "") -> Change[Ask]:
        """The request is on its way, or was already: then the same is waited for once more, until its new deadline."""
        if draft.deadline_ms is None:
            raise EINVAL("bus.deadline", "a request needs a deadline", hint="give deadline_ms")
        known = self.known(draft.sender, draft.key, place)
        if known and known.asked != draft.to:
            raise EINVAL("bus.key", f"a request with the key {draft.key!r} was put to another", hint="use another key")
        if known:
            return self._again(known, draft.deadline_ms, now)
        self._require_no_circle(draft.sender, draft.to)
        if len(self._of.get(draft.sender, ())) >= MOST:
            raise EDQUOT(
                "bus.requests", f"{MOST} requests of this agent are open, which is the most", used=MOST, limit=MOST
            )
        change = self._broker.publish([draft], now)
        sent = change.value[0]
        if isinstance(sent, AgentOSError):
            raise sent
        if sent.duplicate:
            raise ETIMEDOUT(
                "bus.late",
                f"the request with the key {draft.key!r} was handled, and nobody waited for its reply",
                hint="its reply is among the dead letters; to have it handled again, ask with another key",
                retryable=False,
            )
        ask = Ask(sent.id, sent.seq, draft.sender, draft.to, draft.key, now.wall_ns, draft.deadline_ms, place=place)
        self._add(ask, now)
        return Change(ask, [*change.puts, _row(ask)], change.wake, change.notes)

    def known(self, sender: str, key: str | None, place: str) -> Ask | None:
        """The request that this one is once more."""
        by_key = self._keys.get((sender, key)) if key is not None else None
        return by_key or (self._places.get((sender, place)) if place else None)

    def _again(self, ask: Ask, deadline_ms: int, now: Now) -> Change[Ask]:
        if ask.answer is not None or ask.gone:
            return Change(ask)
        self._require_no_circle(ask.asker, ask.asked)
        ask.waits, ask.sent_ns, ask.deadline_ms = True, now.wall_ns, deadline_ms
        self._schedule(ask, now.mono + deadline_ms / 1000)
        return Change(ask, [_row(ask)])

    def _require_no_circle(self, asker: str, asked: str) -> None:
        """Whether the one asked waits, for whomever, for the asker."""
        way: list[tuple[str, tuple[str, ...]]] = [(asked, (asker, asked))]
        seen = {asked}
        while way:
            agent, path = way.pop()
            if agent == asker:
                raise EDEADLK(
                    "bus.circle",
                    f"{bare(asker)} would wait for itself: {' → '.join(map(bare, path))}",
                    hint="answer the request that is in hand first, or send a message and do not wait",
                    circle=list(path),
                )
            for one in self._of.get(agent, {}).values():
                if one.waits and one.answer is None and one.asked not in seen:
                    seen.add(one.asked)
                    way.append((one.asked, (*path, one.asked)))

    def reply(self, draft: Outgoing, request: str, now: Now) -> Change[Answered]:
        """`draft.to` does not matter: it goes to whoever asked. The request is acknowledged with it."""
        ask = self._asks.get(request)
        if ask is None:
            return self._unawaited(draft, request, now)
        if ask.asked != draft.sender:
            raise EPERM("bus.request", f"{request} was not asked of {bare(draft.sender)}")
        if ask.answer is not None:
            raise EBUSY("bus.answered", f"{request} has been answered")
        acked = self._acked(draft, ask.asker, ask.id, now)
        if not ask.waits or now.mono >= ask.forget_at:
            self._remove(ask)
            late = self._late(draft, f"the deadline of {ask.id} had passed", acked, now)
            late.puts.append(_removal(ask))
            return late
        ask.answer = stamped(draft, ask.seq, f"{ask.id}.r", now.wall_ns)
        self._schedule(ask, now.mono)
        return Change(Answered(), [*acked.puts, _row(ask)], (*acked.wake, ask.id), acked.notes)

    def _acked(self, draft: Outgoing, asker: str, request: str, now: Now) -> Change[int]:
        draft.to, draft.type, draft.corr, draft.topic = asker, "response", request, False
        check(draft)
        return self._broker.ack(draft.sender, [request], now)

    def _unawaited(self, draft: Outgoing, request: str, now: Now) -> Change[Answered]:
        """One that is in hand, and was sent without waiting, or once more by an operator, or whose asker has ended:
        whoever handled it is done with it like with any other."""
        message = self._broker.held(draft.sender, request)
        if message is None or message.type != "request":
            raise ENOENT("bus.request", f"there is no request {request!r}, or it was over long ago")
        acked = self._acked(draft, message.sender, request, now)
        return self._late(draft, f"nobody waits for the answer to {request}", acked, now)

    def _late(self, draft: Outgoing, why: str, acked: Change[int], now: Now) -> Change[Answered]:
        buried = self._broker.bury(draft, draft.to, "late", why, now)
        return Change(Answered(late=True), [*acked.puts, *buried.puts], acked.wake, [*acked.notes, *buried.notes])

    def collect(self, request: str) -> Change[Message | ESRCH]:
        """The reply, for the record of the one who asked; from then on it is there. ESRCH: nobody will answer."""
        ask = self._asks[request]
        if ask.answer is None and not ask.gone:
            raise EBUSY("bus.waiting", f"{request} has no answer yet")
        self._remove(ask)
        answer = ask.answer or ESRCH("bus.ended", f"{bare(ask.asked)} ended before it answered")
        return Change(answer, [_removal(ask)])

    def give_up(self, request: str, now: Now) -> Change[None]:
        """Nobody waits any more; a reply is late from now on."""
        ask = self._asks.get(request)
        if ask is None:
            return Change(None)
        ask.waits = False
        self._schedule(ask, now.mono)
        return Change(None, [_row(ask)])

    def ended(self, agent: str) -> Change[list[str]]:
        """It ended for good: whoever waits for it hears so at once, and what it asked itself is nobody's."""
        puts: list[Put] = []
        for ask in list(self._of.get(agent, {}).values()):
            self._remove(ask)
            puts.append(_removal(ask))
        woken: list[str] = []
        for ask in self._at.get(agent, {}).values():
            if ask.answer is None:
                ask.gone = True
                woken.append(ask.id)
                puts.append(_row(ask))
        return Change(woken, puts, tuple(woken))

    def find(self, request: str) -> Ask | None:
        return self._asks.get(request)

    def every(self) -> list[Ask]:
        return list(self._asks.values())

    def tend(self, now: Now) -> Change[None]:
        """Deadlines that nobody watched over, and requests that were over long ago."""
        puts: list[Put] = []
        notes: list[Note] = []
        for ask in self._ends.due(now.mono):
            if ask.waits and ask.answer is None and not ask.gone:
                ask.waits = False
                self._schedule(ask, now.mono)
                puts.append(_row(ask))
                continue
            self._remove(ask)
            puts.append(_removal(ask))
            if ask.answer is not None:
                facts: dict[str, Any] = {"request": ask.id, "why": "nobody came for the reply"}
                notes.append(Note("forgotten", ask.asker, facts))
        return Change(None, puts, (), notes)

    @property
    def next_tend(self) -> float | None:
        return self._ends.next

    def _add(self, ask: Ask, now: Now) -> None:
        self._asks[ask.id] = ask
        self._of.setdefault(ask.asker, {})[ask.id] = ask
        self._at.setdefault(ask.asked, {})[ask.id] = ask
        if ask.key is not None:
            self._keys[ask.asker, ask.key] = ask
        if ask.place:
            self._places[ask.asker, ask.place] = ask
        self._schedule(ask, now.mono + ask.left_s(now))

    def _schedule(self, ask: Ask, deadline: float) -> None:
        if ask.forget_at:
            self._ends.drop(ask, ask.forget_at)
        ask.forget_at = deadline + (0 if ask.waits and ask.answer is None else KEPT_S)
        self._ends.set(ask, ask.forget_at)

    def _remove(self, ask: Ask) -> None:
        self._ends.drop(ask, ask.forget_at)
        del self._asks[ask.id]
        if ask.key is not None:
            del self._keys[ask.asker, ask.key]
        if self._places.get((ask.asker, ask.place)) is ask:
            del self._places[ask.asker, ask.place]
        for table, name in ((self._of, ask.asker), (self._at, ask.asked)):
            del table[name][ask.id]
            if not table[name]:
                del table[name]


def _row(ask: Ask) -> Put:
    return Put(ASKS, f"{ask.seq:016x}", _encode(ask))


def _removal(ask: Ask) -> Put:
    return Put(ASKS, f"{ask.seq:016x}", None)
