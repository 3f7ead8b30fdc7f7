"""What operators ask of the bus: send, look, follow a topic, and see to dead letters. Each as an `Act` for the gate.

In: a caller that the door has recognised. What an operator sends is trusted, and says so; a payload that is shown is
what an agent wrote.
"""

from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from agent_os.abi import syscalls as abi
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.abi.syscalls import BY_REQUEST
from agent_os.kernel.authority.labels import CLEAN
from agent_os.kernel.bus import doors, interfaces
from agent_os.kernel.bus.broker import Start
from agent_os.kernel.bus.cursors import Cursor
from agent_os.kernel.bus.hearing import LISTENERS
from agent_os.kernel.bus.message import LANES, Letter, Outgoing, lane
from agent_os.kernel.bus.shown import Received, received
from agent_os.kernel.bus.topics import check_filter, check_topic
from agent_os.kernel.calls import Act, Asked, Done, Way
from agent_os.kernel.table import Actor, bare

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel

Prepare = Callable[["Kernel", Any, Asked], Act]
_AT_ONCE = 64
_listeners = count(1)


def _post(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Post", asked.request)
    if bool(request.to) == bool(request.topic):
        raise EINVAL("body", "OP_POST goes to an agent or to a topic, one of them")
    doors.require_readable(request.payload)
    doors.require_free(request.schema)
    to = check_topic(request.topic) if request.topic else kernel.table.meant(request.to)
    draft = Outgoing(to, caller.id, bool(request.topic), request.payload, "event", request.schema, lane(request.lane))
    draft.labels, draft.key, draft.ttl_ms, draft.via = CLEAN.words(), request.key, request.ttl_ms, "operator"
    bus, longest = kernel.bus, request.deadline_ms
    if request.protocol:
        longest = int(interfaces.require_protocol(kernel, to, request.protocol).seconds * 1000)

    def post() -> Done:
        if not request.topic:
            bus.receiver(to)
        change = bus.broker.publish((draft,), bus.now)
        sent = change.value[0]
        if isinstance(sent, AgentOSError):
            raise sent
        return bus.done(change, {"id": sent.id, "seq": sent.seq, "duplicate": sent.duplicate})

    async def ask() -> Done:
        bus.receiver(to)
        draft.type, draft.deadline_ms = "request", min(request.deadline_ms, longest)
        answer = await doors.asking(kernel, caller, draft)
        return Done(doors.told_reply(answer.value), puts=answer.puts)

    if not request.wait:
        return Act(post, way=Way.STORE)
    if request.topic:
        raise EINVAL("body", "nobody answers for a topic; ask an agent")
    return Act(ask, way=Way.STORE)


def _look(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    agent = cast("abi.Bus", asked.request).agent
    wanted = kernel.table.meant(agent) if agent else None

    def do() -> Done:
        broker, letters = kernel.bus.broker, kernel.bus.broker.dead_letters(wanted)
        boxes = [one for one in broker.mailboxes() if wanted in (None, one)]
        asks = [one for one in kernel.bus.requests.every() if wanted in (None, one.asker, one.asked)]
        subs = [_sub(one) for one in broker.subscriptions(wanted)]
        reasons: dict[str, int] = {}
        for one in letters:
            reasons[one.reason] = reasons.get(one.reason, 0) + 1
        open_ones = [
            {"id": one.id, "from": bare(one.asker), "to": bare(one.asked), "waits": one.waits and one.answer is None}
            for one in asks
        ]
        return Done(
            {
                "mailboxes": [_box(kernel, one) for one in boxes],
                "subscriptions": subs,
                "requests": open_ones,
                "dead": reasons,
            }
        )

    return Act(do)


def _box(kernel: "Kernel", agent: str) -> dict[str, Any]:
    lag = kernel.bus.broker.lag(agent)
    facts = {"agent": bare(agent), "waiting": lag.waiting, "in_hand": lag.in_hand, "bytes": lag.bytes}
    return {**facts, "oldest_ns": lag.oldest_ns, "lanes": dict(zip(LANES, lag.lanes, strict=True))}


def _sub(one: Cursor) -> dict[str, Any]:
    facts = {"sub": one.name, "topic": one.pattern, "group": one.group.partition("/")[2]}
    return {**facts, "agents": [bare(name) for name in one.members], "waiting": len(one.open), "bytes": one.bytes}


def _dead(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.DeadLetters", asked.request)
    bus = kernel.bus
    if request.do == "list":
        agent = kernel.table.meant(request.agent) if request.agent else None

        def listing() -> Done:
            found = bus.broker.dead_letters(agent)
            wanted = set(request.letters)
            return Done({"letters": [_letter(one) for one in found if not wanted or one.id in wanted]})

        return Act(listing)
    if len(request.letters) != 1:
        raise EINVAL("body", f"OP_DEAD: {request.do} takes one letter at a time - at `$.letters`")
    name = request.letters[0]

    def redeliver() -> Done:
        letter = next((one for one in bus.broker.dead_letters() if one.id == name), None)
        if letter:
            bus.receiver(letter.receiver)
        change = bus.broker.redeliver(name, bus.now)
        return bus.done(change, {"id": change.value.id})

    def drop() -> Done:
        return bus.done(bus.broker.drop_letter(name, bus.now), {})

    return Act(redeliver if request.do == "redeliver" else drop, way=Way.STORE)


def _letter(one: Letter) -> dict[str, Any]:
    message = one.message
    return {
        "id": one.id,
        "message": message.id,
        "to": bare(message.to),
        "receiver": bare(one.receiver),
        "from": bare(message.sender),
        "tries": one.deliveries,
        "reason": one.reason,
        "detail": one.detail,
        "at_ns": one.at_ns,
        "schema": message.schema,
        "trace": message.trace,
        "payload": message.payload,
    }


def _topics(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request, bus = cast("abi.Topics", asked.request), kernel.bus
    if not request.topic:
        return Act(lambda: Done({"reliable": bus.broker.declared()}))

    def do() -> Done:
        change = bus.broker.declare(request.topic, bus.now, reliable=request.reliable)
        return bus.done(change, {"reliable": bus.broker.declared()})

    check_filter(request.topic)
    return Act(do, way=Way.STORE)


def _listen(kernel: "Kernel", caller: Actor, asked: Asked) -> Act:
    request = cast("abi.Listen", asked.request)
    pattern, stream = check_filter(request.topic), asked.stream
    if stream is None:
        raise EINVAL("stream", "there is no stream beside this call")

    async def do() -> Done:
        async for event in _events(kernel, f"{LISTENERS}{next(_listeners)}", pattern, request):
            await stream.send(event)
        return Done()

    return Act(do)


async def _events(kernel: "Kernel", listener: str, pattern: str, request: abi.Listen) -> AsyncIterator[Received]:
    """A subscription as anybody's, which ends with its operator. What it was given is done with at once."""
    bus = kernel.bus
    begun = bus.broker.subscribe(listener, pattern, bus.now, start=Start(request.start, request.at))
    bus.put("kernel", 0, Kind.STATE, {"event": "bus", "listens": pattern}, begun)
    try:
        while True:
            change = bus.broker.pull(listener, _AT_ONCE, bus.now)
            if not change.value:
                await bus.until(listener, None)
                continue
            done = bus.broker.ack(listener, [one.id for one in change.value], bus.now)
            change.puts += done.puts
            bus.put("kernel", 0, Kind.STATE, {"event": "bus", "listened": len(change.value)}, change)
            for one in change.value:
                yield received(one)
    finally:
        if not kernel.journal.failed:
            bus.leave(listener)


_BY_TYPE: dict[type[abi.Body], Prepare] = {
    abi.Post: _post,
    abi.Bus: _look,
    abi.DeadLetters: _dead,
    abi.Listen: _listen,
    abi.Topics: _topics,
}
PREPARE = {BY_REQUEST[kind].number: prepare for kind, prepare in _BY_TYPE.items()}
