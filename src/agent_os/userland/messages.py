"""Messages, for an author: send and receive, publish and subscribe, ask and answer.

Every method is one syscall. What was received is in hand until something is said of it: `ack`, `nack`, `reject`, or
`reply` for a request; said of nothing for 30 seconds, it comes again. `messages` and `serve` say it for the author.
"""

import random
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, Literal, cast

import msgspec
from msgspec import Raw, Struct

from agent_os.abi import syscalls
from agent_os.abi.errors import EINVAL, EIO, ENOENT, AgentOSError
from agent_os.abi.syscalls import Lane
from agent_os.userland.results import Spawned, read_as
from agent_os.userland.session import Session

_DAY_S = 24 * 3600.0
_MOST_SAID = 4000  # characters of why something failed; what failed may quote what it was given
_MOST_GIVEN = 4096  # more than can be in hand
_encode = msgspec.msgpack.Encoder().encode


class Sent(Struct, frozen=True):
    id: str
    seq: int = 0
    duplicate: bool = False  # its receiver has it, or had it; nothing was sent
    ids: tuple[str, ...] = ()  # of several


class _Facts(Struct, frozen=True):
    """As the kernel tells them."""

    id: str
    seq: int = 0
    sent_ns: int = 0
    sender: str = ""
    to: str = ""
    type: str = "event"
    payload: Any = None
    labels: list[str] = []
    isolation: str = ""
    schema: str = ""
    lane: str = "normal"
    corr: str | None = None
    reply_to: str | None = None
    trace: str | None = None
    ttl_ms: int = 0
    deadline_ms: int | None = None
    key: str | None = None
    deliveries: int = 1
    sub: str | None = None
    via: str = ""
    error: str | None = None


class _Replied(Struct, frozen=True):
    late: bool = False


class _Subscribed(Struct, frozen=True):
    sub: str


class Message:
    """What somebody sent. The sender, the labels and the isolation are the kernel's word; the rest is the sender's."""

    def __init__(self, ctx: "Messages", facts: _Facts) -> None:
        self._ctx, self._facts = ctx, facts
        self.settled = False  # something was said of it
        self.returned = False  # that it is to come again

    def __getattr__(self, name: str) -> Any:
        return getattr(self._facts, name)

    def __repr__(self) -> str:
        return f"<{self._facts.type} {self._facts.id} from {self._facts.sender}>"

    @property
    def id(self) -> str:
        return self._facts.id

    @property
    def payload(self) -> Any:
        return self._facts.payload

    @property
    def sender(self) -> str:
        return self._facts.sender

    @property
    def is_request(self) -> bool:
        """Somebody waits for `reply`."""
        return self._facts.type == "request"

    async def ack(self) -> None:
        """Done with it."""
        self.settled = True
        await self._ctx.ack(self)

    async def nack(self, reason: str = "", *, delay: float = 0.0) -> None:
        """Not done: again, after a while."""
        self.settled = self.returned = True
        await self._ctx.nack(self, reason=reason, delay=delay)

    async def reject(self, reason: str = "") -> None:
        """Never again: a dead letter."""
        self.settled = True
        await self._ctx.syscall(syscalls.Ack(ids=[self.id], verb="reject", reason=reason))

    async def extend(self, seconds: float = 30.0) -> None:
        """It takes longer."""
        await self._ctx.syscall(syscalls.Ack(ids=[self.id], verb="extend", delay_ms=_ms(seconds)))

    async def reply(self, payload: Any = None, *, schema: str = "", error: str | None = None) -> bool:
        """Answer a request, which is done with by that. False: nobody waits for it any more."""
        request = syscalls.Reply(request=self.id, payload=_raw(payload), schema=schema, error=error)
        try:
            late = read_as(_Replied, await self._ctx.syscall(request)).late
        except ENOENT:  # it was over long ago, which must not end whoever took long
            late = True
        self.settled = True
        return not late


class Subscription:
    """With credit, `async for message in subscription`: each is acknowledged when the next is asked for, unless
    something was said of it."""

    def __init__(self, ctx: "Messages", sub: str, topic: str, credit: int = 0) -> None:
        self._ctx, self.sub, self.topic, self._credit = ctx, sub, topic, credit
        self._last: Message | None = None
        self._given: dict[str, None] = {}  # what a crash of the kernel may bring once more, beside the record of it

    async def end(self) -> None:
        await self._ctx.syscall(syscalls.Subscribe(sub=self.sub, end=True))
        self._ctx.arrivals.forget(self.sub)

    async def grant(self, credit: int) -> None:
        """So many may be unacknowledged from now on; 0: nothing more comes."""
        await self._ctx.syscall(syscalls.Subscribe(sub=self.sub, credit=credit))

    def __aiter__(self) -> "Subscription":
        if not self._credit:
            raise EINVAL("bus.credit", "its events come by `recv`", hint="subscribe(topic, credit=16)")
        return self

    async def __anext__(self) -> Message:
        last, self._last = self._last, None
        if last and not last.settled:
            await last.ack()
        elif last and last.returned:
            self._given.pop(last.id, None)
        while (facts := read_as(_Facts, await self._ctx.arrivals.next(self.sub))).id in self._given:
            pass
        self._given[facts.id] = None
        if len(self._given) > _MOST_GIVEN:
            del self._given[next(iter(self._given))]
        self._last = Message(self._ctx, facts)
        return self._last

    async def __aenter__(self) -> "Subscription":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()


Handler = Callable[[Message], Awaitable[Any]]


class Messages(Session):
    """The part of a context that talks to other agents."""

    async def send(
        self,
        to: str | Spawned,
        payload: Any = None,
        *,
        schema: str = "",
        lane: Lane = "normal",
        key: str | None = None,
        ttl: float = _DAY_S,
        type: Literal["event", "request", "response", "stream"] = "event",
        corr: str | None = None,
        reply_to: str | None = None,
        trace: str | None = None,
    ) -> Sent:
        """Returns when it is durable. EAGAIN: its mailbox is full, `retry_after_ms` says how long. Of two with the same
        `key` its receiver handles one."""
        request = syscalls.Send(
            to=_name(to),
            payload=_raw(payload),
            schema=schema,
            lane=lane,
            key=key,
            ttl_ms=_ms(ttl),
            type=type,
            corr=corr,
            reply_to=reply_to,
            trace=trace,
        )
        return read_as(Sent, await self.syscall(request))

    async def send_all(
        self,
        to: str | Spawned,
        payloads: Iterable[Any],
        *,
        schema: str = "",
        lane: Lane = "normal",
        ttl: float = _DAY_S,
    ) -> list[str]:
        """Several at once, at most 256, in order; their ids. Fewer ids than payloads: the mailbox is full, and nothing
        from there on was sent."""
        raws = [_raw(one) for one in payloads]
        if not raws:
            return []
        request = syscalls.Send(to=_name(to), payload=raws[0], more=raws[1:], schema=schema, lane=lane, ttl_ms=_ms(ttl))
        sent = read_as(Sent, await self.syscall(request))
        return list(sent.ids or [sent.id])

    async def recv(
        self,
        *,
        wait: float | None = None,
        max: int = 1,
        lanes: Iterable[Lane] = (),
        ack: Iterable[Message | str] = (),
        visible: float = 30.0,
    ) -> list[Message]:
        """What waits, up to `max`; without `wait`, until something comes. `ack`: done with these first. `visible`: so
        long it is in hand before it counts as not handled."""
        done = [one.id if isinstance(one, Message) else one for one in ack]
        wait_ms = None if wait is None else _ms(wait)
        request = syscalls.Recv(max=max, wait_ms=wait_ms, lanes=list(lanes), ack=done, visible_ms=_ms(visible))
        found = cast("list[Any]", await self.syscall(request))
        return [Message(self, read_as(_Facts, one)) for one in found]

    async def ack(self, *messages: Message | str) -> None:
        """Done with these. Saying so twice harms nobody."""
        await self.syscall(syscalls.Ack(ids=_settled(messages)))

    async def nack(self, *messages: Message | str, reason: str = "", delay: float = 0.0) -> None:
        request = syscalls.Ack(ids=_settled(messages), verb="nack", reason=reason, delay_ms=_ms(delay))
        await self.syscall(request)

    async def messages(self, *, batch: int = 1, lanes: Iterable[Lane] = ()) -> AsyncGenerator[Message, None]:
        """One after the other, for ever: `async for message in ctx.messages()`. Each is acknowledged when the next is
        asked for, unless something was said of it. One whose turn raised is not, and comes again."""
        wanted = list(lanes)
        done: list[str] = []
        rest: list[Message] = []
        held: set[str] = set()  # given, and not known to the kernel as done: it may come twice after a crash
        try:
            while True:
                rest = await self.recv(max=batch, lanes=wanted, ack=done)
                held.difference_update(done)
                done = []
                rest = [one for one in rest if one.id not in held]
                held.update(one.id for one in rest)
                while rest:
                    message = rest.pop(0)
                    yield message
                    if message.settled:
                        held.discard(message.id)
                    else:
                        done.append(message.id)
        finally:
            if done:
                await self.ack(*done)
            if rest:
                await self.nack(*rest, reason="left before its turn")

    async def serve(self, handler: Handler, *, batch: int = 1, lanes: Iterable[Lane] = ()) -> None:
        """Handle what comes, one at a time, for ever. What the handler returns is the response to a request; what it
        raises is told to whoever asked, and any other message comes again, five times at the most."""
        async for message in self.messages(batch=batch, lanes=lanes):
            try:
                result = await handler(message)
                if message.is_request and not message.settled:
                    await message.reply(result)
            except Exception as problem:  # of the handler, or of what it returned: too large, say
                await _failed(message, problem)

    async def publish(
        self,
        topic: str,
        payload: Any = None,
        *,
        schema: str = "",
        lane: Lane = "normal",
        key: str | None = None,
        ttl: float = _DAY_S,
        trace: str | None = None,
    ) -> Sent:
        """An event for whoever subscribed: dotted tokens, as in `research.done`."""
        request = syscalls.Publish(
            topic=topic, payload=_raw(payload), schema=schema, lane=lane, key=key, ttl_ms=_ms(ttl), trace=trace
        )
        return read_as(Sent, await self.syscall(request))

    async def subscribe(
        self,
        topic: str,
        *,
        group: str = "",
        start: Literal["new", "first", "seq", "time"] = "new",
        at: int = 0,
        credit: int = 0,
    ) -> Subscription:
        """Events come by `recv`: `*` is one token, `>` the rest. In a group each goes to one member. `credit`: they
        come by themselves, `async for message in subscription`, so many at a time. It lasts over restarts, until
        `end`."""
        request = syscalls.Subscribe(topic=topic, group=group, start=start, at=at, credit=credit)
        return Subscription(self, read_as(_Subscribed, await self.syscall(request)).sub, topic, credit)

    async def send_stream(
        self, to: str | Spawned, pieces: AsyncIterable[Any] | Iterable[Any], *, schema: str = "", lane: Lane = "normal"
    ) -> str:
        """One message after the other, all with the same `corr`, which is returned; then an event with that `corr` and
        no payload. Whoever reads slowly slows this down: at most 64 are unacknowledged."""
        corr = f"{random.getrandbits(64):016x}"  # seeded by the kernel: the same in a replay
        async for piece in _each(pieces):
            await self.send(to, piece, schema=schema, lane=lane, type="stream", corr=corr)
        await self.send(to, None, lane=lane, corr=corr)
        return corr

    async def request(
        self,
        to: str | Spawned,
        payload: Any = None,
        *,
        timeout: float = 60.0,
        schema: str = "",
        lane: Lane = "normal",
        key: str | None = None,
        trace: str | None = None,
    ) -> Message:
        """Ask, and wait for the response. EIO `bus.reply`: it could not be done, in the words of whoever was asked;
        ETIMEDOUT, ESRCH, EDEADLK: nobody answers."""
        request = syscalls.Request(
            to=_name(to),
            payload=_raw(payload),
            deadline_ms=_ms(timeout),
            schema=schema,
            lane=lane,
            key=key,
            trace=trace,
        )
        facts = read_as(_Facts, await self.syscall(request))
        if facts.error is not None:
            raise EIO("bus.reply", f"{facts.sender} says: {facts.error}", retryable=False)
        return Message(self, facts)


async def _failed(message: Message, problem: Exception) -> None:
    if message.settled:
        return
    said = in_words(problem)
    if message.is_request:
        await message.reply(error=said)
    elif isinstance(problem, AgentOSError) and not problem.retryable:
        await message.reject(said)
    else:
        await message.nack(said)


def in_words(problem: Exception) -> str:
    """For whoever asked: one of ours says its name itself."""
    said = str(problem) if isinstance(problem, AgentOSError) else f"{type(problem).__name__}: {problem}"
    return said[:_MOST_SAID]


async def _each(pieces: AsyncIterable[Any] | Iterable[Any]) -> AsyncGenerator[Any, None]:
    if isinstance(pieces, AsyncIterable):
        async for one in pieces:
            yield one
    else:
        for one in pieces:
            yield one


def _name(agent: str | Spawned) -> str:
    return agent.agent if isinstance(agent, Spawned) else agent


def _settled(messages: Iterable[Message | str]) -> list[str]:
    found: list[str] = []
    for one in messages:
        if isinstance(one, Message):
            one.settled = True
        found.append(one.id if isinstance(one, Message) else one)
    return found


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _raw(payload: Any) -> Raw:
    try:
        return Raw(_encode(payload))
    except (TypeError, ValueError, RecursionError) as problem:
        raise EINVAL("bus.payload", f"this cannot be sent: {problem}") from None
