"""`MessageBus`, the message bus of the first design: a view of a kernel in your own program.

Your code is trusted, so it may say who sends; what it sends passes no gate, and the record says `via: host`. Agents
themselves use their context.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any, cast

import msgspec

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EIO, AgentOSError
from agent_os.kernel.authority.labels import of_words
from agent_os.kernel.bus.doors import asking, told_reply
from agent_os.kernel.bus.hearing import LISTENERS
from agent_os.kernel.bus.message import Delivery, Outgoing
from agent_os.kernel.bus.topics import check_topic
from agent_os.kernel.journal import Draft
from agent_os.space import KernelSpace

Handler = Callable[[Any], Awaitable[Any] | None]
_numbers = count(1)
_decode = msgspec.msgpack.Decoder().decode


class MessageBus:
    """The message bus of the first design, as a view of a kernel. Code of the host names who sends; that is recorded
    with the message, which says `via: host`. It carries what that agent carries."""

    def __init__(self, kernel: KernelSpace) -> None:
        self._kernel = kernel._kernel  # pyright: ignore[reportPrivateUsage]
        self._handlers: set[asyncio.Task[Any]] = set()

    async def send(self, from_agent: str, to_agent: str, message: Any) -> None:
        """Returns when it is durable. EAGAIN: its mailbox is full; ESRCH: there is nobody."""
        to = self._kernel.table.meant(to_agent)
        self._kernel.bus.receiver(to)
        await self._publish(self._draft(from_agent, to, message))

    async def broadcast(self, from_agent: str, event: Any) -> None:
        """To everybody who subscribed to its type: `event.<type>`, where `event` is a mapping with a `type`."""
        kind = cast("Mapping[str, Any]", event).get("type", "event") if isinstance(event, Mapping) else "event"
        draft = self._draft(from_agent, check_topic(f"event.{kind}"), event)
        draft.topic = True
        await self._publish(draft)

    async def subscribe(self, agent_id: str, event_type: str, handler: Handler) -> Callable[[], None]:
        """The handler hears of events of a type (`*` one token, `>` the rest) in this process, in order, while it
        lasts; what is returned ends that. One that raises gets the same again, five times at the most."""
        bus, name = self._kernel.bus, f"{LISTENERS}{self._kernel.table.find(agent_id).id}/{next(_numbers)}"
        begun = bus.broker.subscribe(name, f"event.{event_type}", bus.now)
        bus.put("kernel", 0, Kind.STATE, {"event": "bus", "listens": event_type, "for": agent_id}, begun)
        task = asyncio.get_running_loop().create_task(self._handle(name, handler))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

        def end() -> None:
            task.cancel()

        return end

    async def request(self, from_agent: str, to_agent: str, request: Any, *, timeout: float = 60.0) -> Any:
        """The payload of the response. EIO: it could not be done, in the words of whoever was asked."""
        caller, to = self._kernel.table.find_alive(from_agent), self._kernel.table.meant(to_agent)
        self._kernel.bus.receiver(to)
        draft = self._draft(from_agent, to, request)
        draft.type, draft.deadline_ms = "request", max(1, round(timeout * 1000))
        answer = await asking(self._kernel, caller, draft)
        told = told_reply(answer.value)
        answer.puts += self._kernel.authority.labels.take_in(caller.id, of_words(answer.value.labels))
        self._kernel.bus.put(caller.id, caller.incarnation, Kind.ACCEPT, {"answered": answer.value.corr}, answer)
        if told.get("error") is not None:
            raise EIO("bus.reply", f"{told['sender']} says: {told['error']}", retryable=False)
        return _decode(answer.value.payload)

    def _draft(self, sender: str, to: str, payload: Any) -> Outgoing:
        agent = self._kernel.table.find_alive(sender)
        label = self._kernel.authority.labels.of(agent.id)
        body = frames.body(payload)
        return Outgoing(to, agent.id, payload=body, labels=label.words(), isolation=agent.isolation, via="host")

    async def _publish(self, draft: Outgoing) -> None:
        bus = self._kernel.bus
        change = bus.broker.publish((draft,), bus.now)
        sent = change.value[0]
        if isinstance(sent, AgentOSError):
            raise sent
        facts = {"to": draft.to, "via": "host", "message": sent.id}
        told = Draft(draft.sender, Kind.ACCEPT, body=frames.encode_body(facts), label=draft.labels)
        bus.wake(change.wake)
        await self._kernel.journal.record(told, sync=True, puts=change.puts)

    async def _handle(self, name: str, handler: Handler) -> None:
        bus = self._kernel.bus
        try:
            while True:
                change = bus.broker.pull(name, 1, bus.now)
                if not change.value:
                    await bus.until(name, None)
                    continue
                bus.put("kernel", 0, Kind.STATE, {"event": "bus", "heard": change.value[0].id}, change)
                await self._heard(name, change.value[0], handler)
        finally:
            if not self._kernel.journal.failed and not self._kernel.halting:
                bus.leave(name)

    async def _heard(self, name: str, one: Delivery, handler: Handler) -> None:
        bus = self._kernel.bus
        try:
            waits = handler(_decode(one.message.payload))
            if waits is not None:
                await waits
        except Exception as problem:  # the host's own code; the event is there again, or at last a dead letter
            done = bus.broker.nack(name, [one.id], bus.now, reason=repr(problem)[:200])
        else:
            done = bus.broker.ack(name, [one.id], bus.now)
        bus.put("kernel", 0, Kind.ACK, {"ids": [one.id]}, done)
