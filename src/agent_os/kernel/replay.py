"""Replay: a program is started again, and its calls are answered from the record until the record ends.

No driver runs and nothing is decided anew. A call is matched by its place in the program (`pos`), its number and the
digest of its body. Deliveries go out in the recorded order, delivery k not before every recorded call that had seen
fewer than k of them has come again: so the program meets the same world in the same order. A call at a place the record
does not know was on its way when the world ended; it waits and goes live after the last recorded delivery.

In: the agent's entries in order. Out: answers, and one word: live, or what differed.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from agent_os.abi import frames
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.errors import ENONDET, AgentOSError
from agent_os.abi.signals import AgentSignal, seen_by_agents
from agent_os.abi.syscalls import BY_NUMBER
from agent_os.kernel.authority.labels import Label
from agent_os.kernel.calls import Answer, Asked
from agent_os.kernel.recorded import Recorded, digest

PATIENCE = 30.0  # seconds without a step forward
_SHOWN = 500  # characters of a body
_ANSWERS = (Kind.RESULT, Kind.OUTCOME, Kind.DECISION)
_PUSHES: dict[int, str] = {Kind.SIGNAL: "signal", Kind.DELIVER: "notice"}
MESSAGE = "message"  # the only key of what is recorded of a pushed message; a notice has a `type`
_decode = msgspec.msgpack.Decoder().decode


class Delivery(Struct):
    """One thing that was given to the agent: the answer to a call, or a push."""

    seq: int
    pos: str | None = None
    op: int = 0
    digest: bytes = b""
    seen: int = 0
    value: Raw = field(default_factory=lambda: frames.NIL)
    error: AgentOSError | None = None
    push: Any = None
    request: Raw = field(default_factory=lambda: frames.NIL)
    answer: Answer | None = None  # the call has come again


class Replay:
    def __init__(
        self,
        line: list[Delivery],
        *,
        live: "Callable[[list[tuple[Asked, Answer]]], None]",
        push: Callable[[str, Any], None],
        differs: Callable[[ENONDET], None],
    ) -> None:
        """`live` is called once, with the calls that waited for it; `differs` once, if the program does something else.
        Neither is called from here."""
        self._line = line
        self._by_pos = {one.pos: one for one in self._line if one.pos is not None}
        self._early = sorted(one.seen for one in self._by_pos.values())  # of calls that have not come again
        self._held: list[tuple[Asked, Answer]] = []
        self._live, self._push, self._differs = live, push, differs
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None
        self.over = False
        self.finished = asyncio.Event()  # it is live, or never will be
        self.later: list[tuple[dict[str, Any], Label]] = []  # notices that came meanwhile

    @property
    def total(self) -> int:
        return len(self._line)

    def start(self) -> None:
        """The program is there: deliver what needs no call of it."""
        self._advance()

    def call(self, asked: Asked, answer: Answer) -> None:
        recorded = self._by_pos.get(asked.pos) if asked.pos is not None else None
        if recorded is None:
            self._held.append((asked, answer))
            return
        if recorded.answer is not None or recorded.op != asked.op or recorded.digest != digest(asked.raw):
            self._fail(_difference(recorded, asked))
            return
        recorded.answer = answer
        self._early.remove(recorded.seen)
        self._advance()

    def ended(self) -> None:
        """The program ended while its record goes on."""
        if short := self.short():
            self._fail(short)

    def short(self) -> ENONDET | None:
        """What of the record the program has not come to."""
        if self.over:
            return None
        left = self._line[self._next]
        reason = f"it ended before {_name(left)} of its record (entry {left.seq})"
        return ENONDET("replay.short", reason, **_side_by_side(left, None))

    def stop(self) -> None:
        self.over = True
        self.finished.set()
        if self._timer:
            self._timer.cancel()

    def _advance(self) -> None:
        while self._next < len(self._line):
            delivery = self._line[self._next]
            number = self._next + 1
            if self._early and self._early[0] < number:
                break  # a recorded call that came before this delivery has not come again
            if delivery.push is None and delivery.answer is None:
                break
            self._next += 1
            if delivery.answer:
                delivery.answer(delivery.value, delivery.error)
            elif delivery.push:
                self._push(*delivery.push)
        if self._next == len(self._line):
            self.stop()
            self._live(self._held)
        else:
            self._wait()

    def _wait(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._give_up)

    def _give_up(self) -> None:
        left = self._line[self._next]
        reason = f"it did not come to {_name(left)} of its record (entry {left.seq})"
        self._fail(ENONDET("replay.stuck", reason, **_side_by_side(left, None)))

    def _fail(self, error: ENONDET) -> None:
        if not self.over:
            self.stop()
            self._differs(error)


def deliveries(history: Iterable[tuple[Entry, bytes | None]]) -> list[Delivery]:
    """What an agent was given, in order."""
    found: list[Delivery] = []
    for entry, body in history:
        if not is_delivery(entry, body):
            continue
        if entry.kind in _ANSWERS:
            kept = Recorded.of(body)
            about = (entry.seq, entry.pos, entry.op, kept.digest, entry.seen, kept.value, kept.error)
            found.append(Delivery(*about, request=kept.request))
        else:
            said = _decode(body or b"")
            is_message = entry.kind == Kind.DELIVER and said.keys() == {MESSAGE}
            push = ("message", said[MESSAGE]) if is_message else (_PUSHES[entry.kind], said)
            found.append(Delivery(entry.seq, push=push))
    return found


def is_delivery(entry: Entry, body: bytes | None) -> bool:
    """An answer without a place in the program cannot be asked for again; other signals just happened to it."""
    if entry.kind in _ANSWERS:
        return entry.pos is not None
    if entry.kind == Kind.SIGNAL and body is not None:
        said = _decode(body)
        return "signal" in said and seen_by_agents(AgentSignal(said["signal"]))
    return entry.kind == Kind.DELIVER and body is not None


def _name(delivery: Delivery) -> str:
    return BY_NUMBER[delivery.op].name if delivery.op in BY_NUMBER else "a delivery"


def _difference(recorded: Delivery, asked: Asked) -> ENONDET:
    was, now = _name(recorded), BY_NUMBER[asked.op].name if asked.op in BY_NUMBER else str(asked.op)
    same = "another body" if was == now else f"{now} instead"
    reason = f"at {asked.pos} the record has {was} (entry {recorded.seq}), the program makes {same}"
    hint = "time, randomness and files must come from the Context; agentctl trace shows the record"
    return ENONDET("replay.differs", reason, hint=hint, **_side_by_side(recorded, asked))


def _side_by_side(recorded: Delivery, asked: Asked | None) -> dict[str, Any]:
    """The record and the call, each with the beginning of its body."""
    facts = {"pos": recorded.pos, "entry": recorded.seq, "recorded": _name(recorded), "called": None}
    facts["recorded_body"] = _beginning(bytes(recorded.request))
    if asked:
        facts["called"] = BY_NUMBER[asked.op].name if asked.op in BY_NUMBER else str(asked.op)
        facts["called_body"] = _beginning(asked.raw)
    return facts


def _beginning(raw: bytes) -> str:
    try:
        return repr(_decode(raw))[:_SHOWN]
    except frames.UNREADABLE:
        return repr(raw[:_SHOWN])
