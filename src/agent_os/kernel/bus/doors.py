"""What agents ask of the bus: SYS_SEND to SYS_REPLY, each as an `Act` for the gate.

In: a request, decoded. Out: what it needs, how it is recorded, and the deed. The kernel says who sends, what that
carries and how it is isolated; a payload is looked at only to see that its receiver can read it. Whether there is such
a receiver is said only to whoever may send to it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Raw

from agent_os.abi import frames
from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAGAIN, EDEADLK, EINVAL, ESRCH, ETIMEDOUT, ETYPE, AgentOSError
from agent_os.abi.syscalls import BY_REQUEST, Effect
from agent_os.kernel.authority.labels import CLEAN, Label, joined, of_words
from agent_os.kernel.bus.broker import Change, Sent, Start, together
from agent_os.kernel.bus.hearing import subscribing
from agent_os.kernel.bus.interfaces import interface_of
from agent_os.kernel.bus.message import LANES, Delivery, Message, Now, Outgoing, lane
from agent_os.kernel.bus.messaging import streaming
from agent_os.kernel.bus.requests import Ask
from agent_os.kernel.bus.shown import received, shown
from agent_os.kernel.bus.topics import check_filter, check_topic, target
from agent_os.kernel.calls import Act, Asked, Done, Need, Way
from agent_os.kernel.pipes.schemas import canonical, require_fit
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Agent, bare

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Asked], Act]
ERROR = "agent-os.error"  # the schema of a response that says why there is none
OWN = "agent-os."  # names that only the kernel gives
MOST_AT_ONCE = 256  # messages of one SYS_RECV, ids of one SYS_ACK
MOST_CREDIT = 1024
TOPIC = "topic/"  # before a topic to which a request goes
STREAM_MESSAGES, STREAM_BYTES = 64, 256 << 10  # of one stream that its receiver has not acknowledged
_LONGEST_MS = 12 * 3600 * 1000
_NONE = {"messages": 0}


# Sending.


def _send(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Send", asked.request)
    to, needs = addressed(kernel, agent, request.to, request.lane)
    draft = _draft(kernel, agent, to, request.payload, request.schema, request.lane)
    draft.type, draft.corr, draft.reply_to, draft.trace = request.type, request.corr, request.reply_to, request.trace
    draft.ttl_ms, draft.deadline_ms, draft.key = request.ttl_ms, request.deadline_ms, request.key
    if len(request.more) >= MOST_AT_ONCE:
        raise EINVAL("body", f"SYS_SEND: at most {MOST_AT_ONCE} messages at once - at `$.more`")
    for payload in request.more:
        require_readable(payload)
    payloads = [typed(kernel, agent, request.schema, payload) for payload in request.more]
    more = [msgspec.structs.replace(draft, payload=payload, key=None) for payload in payloads]
    act = _sending(kernel, agent, [draft, *more], needs, lambda: kernel.bus.receiver(to))
    if request.type == "stream":
        act.do = _flowing(kernel, agent, draft, act.do)
    return act


def _flowing(kernel: "Kernel", agent: Agent, draft: Outgoing, send: Callable[[], Any]) -> Callable[[], Any]:
    """A stream goes on as its receiver acknowledges: the call waits, and whoever reads slowly slows down whoever
    writes. Cancelled, nothing was sent."""
    bus = kernel.bus

    async def do() -> Done:
        while True:
            bus.receiver(draft.to)
            count, size = bus.broker.load(agent.id, draft.to, draft.corr)
            if count < STREAM_MESSAGES and size < STREAM_BYTES:
                return send()
            await bus.until(streaming(draft.to), None)

    return do


def _publish(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Publish", asked.request)
    topic = target(check_topic(request.topic))
    needs = [Need("ipc", "publish", topic), *_urgent(topic, request.lane)]
    draft = _draft(kernel, agent, request.topic, request.payload, request.schema, request.lane)
    draft.topic, draft.corr, draft.trace = True, request.corr, request.trace
    draft.ttl_ms, draft.key = request.ttl_ms, request.key
    return _sending(kernel, agent, [draft], needs, lambda: None)


def addressed(kernel: "Kernel", agent: Agent, name: str, lane: str) -> tuple[str, list[Need]]:
    """The id that is meant, and what sending there needs. Nothing is said of whether somebody has that id."""
    to = kernel.table.meant(name, agent.namespace)
    place = f"agent/{bare(to)}"
    return to, [Need("ipc", "send", place), *_urgent(place, lane)]


def _urgent(place: str, lane: str) -> list[Need]:
    return [Need("ipc", "urgent", place)] if lane == LANES[0] else []


def _draft(kernel: "Kernel", agent: Agent, to: str, payload: Raw, schema: str, word: str) -> Outgoing:
    require_readable(payload)
    require_free(schema)
    payload = typed(kernel, agent, schema, payload)
    label = kernel.authority.labels.of(agent.id)
    return Outgoing(
        to, agent.id, False, payload, "event", schema, lane(word), labels=label.words(), isolation=agent.isolation
    )


def require_readable(payload: Raw) -> None:
    """EINVAL or EPROTO: whoever gets it could not decode it."""
    try:
        frames.nesting(decode_any(payload))
    except frames.UNREADABLE as problem:
        raise EINVAL("bus.payload", f"the payload cannot be read: {problem}") from None


def require_free(schema: str) -> None:
    if schema.startswith(OWN):
        raise EINVAL("bus.schema", f"{schema!r}: names that begin with {OWN!r} are the kernel's")


def typed(kernel: "Kernel", agent: Agent, schema: str, payload: Raw) -> Raw:
    """The payload, as what was checked and nothing else. ETYPE: it is not what it says it is. Only for names that
    somebody has registered."""
    if not schema or not kernel.bus.types.knows(agent.namespace, schema):
        return payload
    value = decode_any(payload)
    require_fit(schema, kernel.bus.types.find(agent.namespace, schema).schema, value)
    return canonical(value)


def _sending(
    kernel: "Kernel", agent: Agent, drafts: Sequence[Outgoing], needs: Sequence[Need], require: Callable[[], None]
) -> Act:
    """All up to the first that is refused; only if that is the very first, the call is. A mailbox that is full is its
    owner's doing: who hears of it carries what the owner carries."""
    heard = CLEAN

    def do() -> Done:
        nonlocal heard
        require()
        words = kernel.authority.labels.of(agent.id).words()  # as it is now: it may have waited for a person
        for draft in drafts:
            draft.labels = words
        change = kernel.bus.broker.publish(drafts, kernel.bus.now, whole=False)
        refused = next((one for one in change.value if isinstance(one, AgentOSError)), None)
        if refused and refused.code in ("bus.full", "bus.lag"):
            heard = _label_of(kernel, drafts[0])
        sent = [one for one in change.value if isinstance(one, Sent)]
        if refused and not sent:
            raise refused
        done = kernel.bus.done(change, _sent(sent, refused if len(drafts) > 1 else None))
        done.spent = {"messages": len(sent)} if act.cost else None
        return done

    act = Act(do, needs, Way.STORE, Effect.IDEMPOTENT, label=lambda: heard)
    act.facts = {"size": sum(len(memoryview(draft.payload)) for draft in drafts)}
    if is_counted(kernel, agent):
        act.cost, act.lost = {"messages": len(drafts)}, _NONE
    return act


def _label_of(kernel: "Kernel", draft: Outgoing) -> Label:
    """Of whoever does not take it."""
    names = [draft.to]
    if draft.topic:
        names = [agent for one in kernel.bus.broker.subscriptions() for agent in one.members]
    return joined(kernel.authority.labels.of(name) for name in names)


def is_counted(kernel: "Kernel", agent: Agent) -> bool:
    """Whether messages count against somebody's budget; for most they do not."""
    ledger = kernel.budgets
    return any("messages" in ledger.account(one).limits for one in ledger.chain(agent.id))


def _sent(sent: Sequence[Sent], refused: AgentOSError | None) -> dict[str, Any]:
    """Of several: all that were sent, and why there are not more."""
    first = sent[0]
    said: dict[str, Any] = {"id": first.id, "seq": first.seq}
    if first.duplicate:
        said["duplicate"] = True
    if len(sent) > 1 or refused:
        said["ids"] = [one.id for one in sent]
    if refused:
        said["refused"] = {"code": refused.code, "reason": refused.reason, "retry_after_ms": refused.retry_after_ms}
    return said


# Receiving.


def _recv(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Recv", asked.request)
    if not 1 <= request.max <= MOST_AT_ONCE:
        raise EINVAL("body", f"SYS_RECV gives 1 to {MOST_AT_ONCE} messages - at `$.max`")
    if not 1 <= request.visible_ms <= _LONGEST_MS:
        raise EINVAL("body", f"SYS_RECV: a message is in hand for 1 to {_LONGEST_MS} ms - at `$.visible_ms`")
    if request.wait_ms is not None and request.wait_ms < 0:
        raise EINVAL("body", "SYS_RECV waits 0 ms or more - at `$.wait_ms`")
    _require_few(request.ack)
    bus, lanes = kernel.bus, [lane(one) for one in request.lanes or LANES]

    def pull(now: Now) -> Change[list[Delivery]]:
        count = request.max if bus.gives(agent) else 0
        return bus.broker.pull(agent.id, count, now, lanes=lanes, visible_s=request.visible_ms / 1000)

    def do() -> Any:
        now = bus.now
        acked = bus.broker.ack(agent.id, request.ack, now) if request.ack else None
        change = pull(now)
        if acked:
            bus.settled(agent.id)
        if not change.value and request.wait_ms != 0:
            if acked:
                bus.put(agent.id, agent.incarnation, Kind.ACK, {"ids": request.ack}, acked)
            return wait(change)
        return _given(kernel, together([acked, change], change.value) if acked else change)

    async def wait(change: Change[list[Delivery]]) -> Done:
        seconds = None if request.wait_ms is None else request.wait_ms / 1000
        end = None if seconds is None else bus.now.mono + seconds
        while True:
            if change.puts:  # something expired
                bus.put(agent.id, agent.incarnation, Kind.STATE, {"event": "bus"}, change)
            change = pull(bus.now)  # it may have come before this began
            if change.value:
                return _given(kernel, change)
            left = None if end is None else end - bus.now.mono
            if (left is not None and left <= 0) or not await bus.until(agent.id, left):
                return Done([], label=CLEAN)

    return Act(do)


def _given(kernel: "Kernel", change: Change[list[Delivery]]) -> Done:
    found = change.value
    label = joined(of_words(one.message.labels) for one in found) if found else CLEAN
    return kernel.bus.done(change, [received(one) for one in found], label=label)


def _ack(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Ack", asked.request)
    _require_few(request.ids)
    if not 0 <= request.delay_ms <= _LONGEST_MS:
        raise EINVAL("body", f"SYS_ACK: 0 to {_LONGEST_MS} ms - at `$.delay_ms`")
    bus, ids, reason = kernel.bus, request.ids, request.reason[:1000]

    def do() -> Done:
        broker, now = bus.broker, bus.now
        match request.verb:
            case "ack":
                change = broker.ack(agent.id, ids, now)
            case "nack":
                change = broker.nack(agent.id, ids, now, delay_ms=request.delay_ms, reason=reason)
            case "extend":
                change = broker.extend(agent.id, ids, now, more_s=(request.delay_ms or 30_000) / 1000)
            case "reject":
                change = broker.reject(agent.id, ids, now, detail=reason)
        done = bus.done(change, {"unknown": change.value})
        bus.settled(agent.id)
        return done

    return Act(do, way=Way.STORE, effect=Effect.IDEMPOTENT)


def _require_few(ids: Sequence[str]) -> None:
    if len(ids) > MOST_AT_ONCE:
        raise EINVAL("body", f"at most {MOST_AT_ONCE} ids at once, not {len(ids)}")


def _subscribe(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Subscribe", asked.request)
    bus = kernel.bus
    if request.end:

        def leave() -> Done:
            change = bus.broker.unsubscribe(agent.id, request.sub, bus.now)
            bus.hearing.forget(agent.id, request.sub)
            return bus.done(change)

        return Act(leave, way=Way.STORE, effect=Effect.IDEMPOTENT)
    if not 0 <= request.credit <= MOST_CREDIT:
        raise EINVAL("body", f"SYS_SUBSCRIBE: 0 to {MOST_CREDIT} messages - at `$.credit`")
    if request.sub:

        def grant() -> Done:
            return bus.done(bus.broker.grant(agent.id, request.sub, request.credit, bus.now))

        return Act(grant, way=Way.STORE, effect=Effect.IDEMPOTENT)
    pattern = check_filter(request.topic)
    needs = [subscribing(pattern)]
    if request.start != "new":
        needs.append(Need("ipc", "replay", target(pattern)))
    group = f"{agent.namespace}/{request.group}" if request.group else ""
    start = Start(request.start, request.at)

    def do() -> Done:
        change = bus.broker.subscribe(agent.id, pattern, bus.now, group=group, start=start, credit=request.credit)
        bus.hearing.until_expiry(agent.id, change.value.sub, pattern)
        return bus.done(change, {"sub": change.value.sub})

    return Act(do, needs, Way.STORE, Effect.IDEMPOTENT)


# Requests.


def _request(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Request", asked.request)
    topic = request.to.removeprefix(TOPIC) if request.to.startswith(TOPIC) else ""
    if topic:
        place_of = target(check_topic(topic))
        to, needs = "", [Need("ipc", "publish", place_of), *_urgent(place_of, request.lane)]
    else:
        to, needs = addressed(kernel, agent, request.to, request.lane)
    draft = _draft(kernel, agent, to, request.payload, request.schema, request.lane)
    draft.type, draft.trace, draft.key = "request", request.trace, request.key
    draft.deadline_ms = draft.ttl_ms = request.deadline_ms
    place = f"{agent.first_aseq}/{asked.pos}" if asked.pos else ""
    heard = CLEAN

    async def do() -> Done:
        nonlocal heard
        if topic:
            known = kernel.bus.requests.known(agent.id, draft.key, place)
            draft.to = known.asked if known else kernel.bus.server(topic, agent.namespace)
        else:
            kernel.bus.receiver(to)
        draft.labels = kernel.authority.labels.of(agent.id).words()
        try:
            with kernel.models.lends(agent, [draft.to]):
                answer = await asking(kernel, agent, draft, place, lambda: setattr(act, "lost", None))
        except (EAGAIN, EDEADLK, ESRCH, ETIMEDOUT, TimeoutError):
            heard = kernel.authority.labels.of(draft.to)  # that nothing came is the doing of whoever was asked
            raise
        return Done(told_reply(answer.value), puts=answer.puts, label=of_words(answer.value.labels))

    act = Act(do, needs, Way.STORE, Effect.IDEMPOTENT, label=lambda: heard)
    act.facts = {"size": len(memoryview(draft.payload))}
    if is_counted(kernel, agent):
        act.cost, act.lost = {"messages": 1}, _NONE
    return act


async def asking(
    kernel: "Kernel", caller: Any, draft: Outgoing, place: str = "", asked: Callable[[], None] = lambda: None
) -> Change[Message]:
    """Send a request and wait for its response, which is there for good with the record that it came. `asked` hears
    when it is on its way. ETYPE: one of the two is not what the manifest of whoever is asked promises."""
    bus, promised = kernel.bus, interface_of(kernel, draft.to)
    if promised:
        promised.take(draft.payload)
    change = bus.requests.ask(draft, bus.now, place)
    asked()
    ask = change.value
    if change.puts:
        bus.put(caller.id, caller.incarnation, Kind.ACCEPT, {"request": ask.id, "to": ask.asked}, change)
    if ask.answer is None and not ask.gone:
        try:
            came = await bus.until(ask.id, ask.deadline_ms / 1000)
        except BaseException:
            if getattr(caller, "line", caller) is not None:  # it gave up; whoever is dead may ask again
                _give_up(kernel, caller, ask)
            raise
        if not came and ask.answer is None:
            _give_up(kernel, caller, ask)
            reason = f"{bare(ask.asked)} did not answer within {ask.deadline_ms} ms"
            raise ETIMEDOUT("bus.deadline", reason, request=ask.id, retryable=False)
    answer = bus.requests.collect(ask.id)
    if isinstance(answer.value, ESRCH):
        bus.put(caller.id, caller.incarnation, Kind.ACCEPT, {"request": ask.id, "ended": ask.asked}, answer)
        raise answer.value
    if promised and answer.value.schema != ERROR:
        try:
            promised.give(answer.value.payload)
        except ETYPE:
            bus.put(caller.id, caller.incarnation, Kind.ACCEPT, {"request": ask.id, "unfit": True}, answer)
            raise
    return cast("Change[Message]", answer)


def _give_up(kernel: "Kernel", caller: Any, ask: Ask) -> None:
    if not kernel.journal.failed:
        change = kernel.bus.requests.give_up(ask.id, kernel.bus.now)
        kernel.bus.put(caller.id, caller.incarnation, Kind.ACCEPT, {"request": ask.id, "given_up": True}, change)


def told_reply(message: Message) -> dict[str, Any]:
    """A response; `error` says in a sentence why there is none."""
    told = msgspec.structs.asdict(shown(message, message.id))
    if message.schema == ERROR:
        return {**told, "error": decode_any(message.payload), "payload": None}
    return told


def _reply(kernel: "Kernel", agent: Agent, asked: Asked) -> Act:
    request = cast("abi.Reply", asked.request)
    draft = _draft(kernel, agent, "", request.payload, request.schema, "normal")
    if request.error is not None:
        draft.schema, draft.payload = ERROR, frames.body(request.error)
    told = _told_to(kernel, agent)
    needs = [Need("ipc", "publish", target(told))] if told else []

    def do() -> Done:
        bus, now = kernel.bus, kernel.bus.now
        draft.labels = kernel.authority.labels.of(agent.id).words()
        change = bus.requests.reply(draft, request.request, now)
        late = {"late": True} if change.value.late else {}
        if told:
            event = msgspec.structs.replace(draft, to=told, topic=True, corr=request.request)
            change = together([change, bus.broker.publish((event,), now)], None)
        done = bus.done(change, late)
        bus.settled(agent.id)
        return done

    return Act(do, needs, Way.STORE, Effect.IDEMPOTENT)


def _told_to(kernel: "Kernel", agent: Agent) -> str:
    """The topic on which its responses are published beside, if its manifest says so."""
    spec = kernel.fleet.spec(agent.id)
    mode: str = spec.tree["interface"]["response_mode"] if spec else "direct"
    if mode == "broadcast":
        return "event.response"
    return mode.removeprefix("topic:") if mode.startswith("topic:") else ""


_BY_TYPE: dict[type[abi.Body], Prepare] = {
    abi.Send: _send,
    abi.Recv: _recv,
    abi.Ack: _ack,
    abi.Subscribe: _subscribe,
    abi.Publish: _publish,
    abi.Request: _request,
    abi.Reply: _reply,
}
CALLS = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
