"""The bus of a running kernel: one broker, its requests, who waits for what, and what the lives of agents do to it.

In: what the doors understood, the news that an agent ended, stopped or goes on, and the clock. Out: answers with what
the store must hold beside their entries, and wake-ups at the very moment that something is there: whoever is woken is
recorded after whoever woke it, so nobody is told of something that a crash then takes back. Decides nothing about
authority: the gate has done so before anything comes here.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EPERM, ESRCH, AgentOSError
from agent_os.abi.states import ExitClass
from agent_os.drivers.store import Put
from agent_os.kernel.authority.labels import of_words
from agent_os.kernel.bus.broker import Change, Note, together
from agent_os.kernel.bus.hearing import LISTENERS, Hearing, subscribing
from agent_os.kernel.bus.local import LocalBroker
from agent_os.kernel.bus.message import Now
from agent_os.kernel.bus.requests import Requests
from agent_os.kernel.bus.shown import received
from agent_os.kernel.bus.terms import USUAL, Terms
from agent_os.kernel.calls import Done, Need
from agent_os.kernel.journal import Draft
from agent_os.kernel.passing import QUARANTINE
from agent_os.kernel.pipes.running import Running
from agent_os.kernel.pipes.types import Types
from agent_os.kernel.supervisor.decide import InHand
from agent_os.kernel.table import SYSTEM, Agent, Ended, bare

if TYPE_CHECKING:
    from agent_os.kernel.kernel import Kernel
    from agent_os.kernel.supervisor.specs import Spec

_LONGEST_REST_S = 60.0
_NO_FAULT = (ExitClass.NORMAL, ExitClass.REQUESTED, ExitClass.LOST)  # no message is to blame for such an end
log = logging.getLogger("agent_os.bus")


class Messaging:
    def __init__(self, kernel: "Kernel") -> None:
        self._kernel, self._journal = kernel, kernel.journal
        node, now = kernel.journal.log_id.hex()[:8], _now()
        self.hearing = Hearing(kernel)
        self.broker = LocalBroker(kernel.store, now, node=node, terms=self._terms, hears=self.hearing.hears)
        self.requests = Requests(kernel.store, self.broker, now)
        self.types = Types(kernel.store, lambda agent: kernel.table.over(agent))
        self.pipes = Running(kernel.store)
        self._known: dict[str, tuple[Spec, Terms]] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}  # consumer, or the id of a request
        self._draining: set[str] = set()
        self._served: set[str] = set()  # agents that were done with something in this life
        self._rests: dict[str, tuple[int, float]] = {}  # ended without, so often in a row; not called before
        self._ends: dict[
            tuple[str, str], float
        ] = {}  # agent and subscription: when what allows it expires, by the wall
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    # For the doors.

    @property
    def now(self) -> Now:
        return _now()

    def done(self, change: Change[Any], value: Any = None, **more: Any) -> Done:
        """What an operation gave, for the record of the call; whoever waits for it is woken."""
        self.wake(change.wake)
        self._arm()
        return Done(value, puts=change.puts, beside=_told(change.notes) if change.notes else (), **more)

    def put(self, agent: str, incarnation: int, kind: Kind, facts: dict[str, Any], change: Change[Any]) -> None:
        """The same in the midst of a call: an entry of its own."""
        draft = Draft(agent, kind, incarnation, body=frames.encode_body(facts))
        self._journal.put(draft, sync=True, puts=change.puts)
        for one in _told(change.notes):
            self._journal.put(one, sync=True)
        self.wake(change.wake)
        self._arm()

    def shut(self, agent_id: str, allowed: Callable[[Need], bool]) -> list[Put]:
        """End the subscriptions that are not allowed any more, with all that waits in them. The rest is done when the
        entry that tells of it has its number."""
        wrong = [one.name for one in self.broker.subscriptions(agent_id) if not allowed(subscribing(one.pattern))]
        change = together([self.broker.unsubscribe(agent_id, name, _now()) for name in wrong], None)
        for name in wrong:
            self.hearing.forget(agent_id, name)
        if change.wake or change.notes:
            asyncio.get_running_loop().call_soon(self._tell, change)
        return change.puts

    def receiver(self, agent_id: str) -> None:
        """ESRCH: there is nobody of that id, nor will there be. EPERM: it is in quarantine."""
        kernel = self._kernel
        row = kernel.table.row(agent_id)
        if row and not row.exit and not row.quarantined:
            return
        if (row and row.quarantined) or kernel.store.get(QUARANTINE, agent_id) is not None:
            raise EPERM("quarantined", f"{bare(agent_id)} is in quarantine, and gets no messages")
        if (row and row.lasting) or self._is_to_live(agent_id):
            return
        if row or kernel.fleet.spec(agent_id):
            raise ESRCH("agent.ended", f"{bare(agent_id)} has ended")
        hint = "agentctl ps lists who is running"
        raise ESRCH("agent.unknown", f"there is no agent {bare(agent_id)!r}", hint=hint)

    def server(self, topic: str, namespace: str) -> str:
        """The least busy of those whose manifests say that requests come on that topic, and who may hear it. ESRCH:
        there is none."""
        found: list[tuple[int, str]] = []
        for spec in self._kernel.fleet.kept.specs.values():
            if spec.tree["interface"].get("request_topic") == topic and spec.tree["namespace"] in (namespace, SYSTEM):
                with suppress(ESRCH, EPERM):
                    self.receiver(spec.id)
                    if self.hearing.serves(spec, topic):
                        lag = self.broker.lag(spec.id)
                        found.append((lag.waiting + lag.in_hand, spec.id))
        if not found:
            raise ESRCH("bus.unserved", f"nobody answers requests on {topic}", hint="interface.request_topic says who")
        return min(found)[1]

    def _is_to_live(self, agent_id: str) -> bool:
        fleet = self._kernel.fleet
        record, spec = fleet.record(agent_id), fleet.spec(agent_id)
        if record and spec:
            return record.to_revive or (record.wanted and spec.is_called)
        return self._kernel.store.get("agents", agent_id) is not None

    def _terms(self, agent_id: str) -> Terms:
        spec = self._kernel.fleet.spec(agent_id)
        if spec is None:
            return USUAL
        known = self._known.get(agent_id)
        if known is None or known[0] is not spec:
            known = self._known[agent_id] = (spec, _terms_of(spec))
        return known[1]

    # Waiting.

    def gives(self, agent: Agent) -> bool:
        """Whether it gets anything new: not while it finishes what it has, in order to end, nor in quarantine."""
        return agent.id not in self._draining and not agent.quarantined

    async def until(self, of: str, seconds: float | None) -> bool:
        """Until somebody wakes that consumer, or request; whether that happened in time."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.setdefault(of, []).append(future)
        timer = loop.call_later(seconds, _is_over, future) if seconds is not None else None
        try:
            await future
        except TimeoutError:
            return False
        finally:
            if timer:
                timer.cancel()
            if others := self._waiting.get(of):
                with suppress(ValueError):
                    others.remove(future)
                if not others:
                    del self._waiting[of]
        return True

    def wake(self, those: Sequence[str]) -> None:
        for one in those:
            futures = self._waiting.pop(one, None)
            if futures:
                for future in futures:
                    if not future.done():
                        future.set_result(None)
            elif "#" in one:  # events are pushed to it: after the entry of whoever wakes it
                asyncio.get_running_loop().call_soon(self._push, one)
            else:
                self._call(one)

    def _call(self, agent_id: str) -> None:
        """Something is there for an agent that does not ask. One that is started by messages is started."""
        spec = self._kernel.fleet.spec(agent_id)
        _, rests_until = self._rests.get(agent_id, (0, 0.0))
        if spec and spec.activation == "on_message" and time.monotonic() >= rests_until:
            self._kernel.fleet.called(agent_id)

    def _rest(self, agent_id: str) -> None:
        """It ended and left what waits for it: called at once, it might do so for ever."""
        times = self._rests.get(agent_id, (0, 0.0))[0] + 1
        seconds = min(_LONGEST_REST_S, 2.0 ** min(times - 1, 16))
        self._rests[agent_id] = (times, time.monotonic() + seconds)
        asyncio.get_running_loop().call_later(seconds + 0.01, self._call, agent_id)

    # Pushing.

    def _push(self, consumer: str) -> None:
        """What waits for a subscription that is pushed, as far as its credit goes."""
        agent_id, lives = consumer.partition("#")[0], self._kernel.lives
        agent = self._kernel.table.living(agent_id)
        if agent is None or not lives.listens(agent) or not self.gives(agent) or self._journal.failed:
            self._call(agent_id)
            return
        while self.broker.credit(consumer):
            change = self.broker.pull(consumer, 1, _now())
            for one in change.value:
                lives.deliver(agent, received(one), of_words(one.message.labels), change.puts)
            if not change.value:
                if change.puts or change.notes:
                    self.put(agent_id, agent.incarnation, Kind.STATE, {"event": "bus"}, change)
                break
            for told in _told(change.notes):
                self._journal.put(told, sync=False)
        self._arm()

    def resume(self, agent_id: str) -> None:
        """It listens again, or has room for more."""
        for one in self.broker.subscriptions(agent_id):
            if agent_id in one.credits:
                self._push(f"{agent_id}#{one.name}")

    # The clock.

    def open(self) -> None:
        """Agents can be started from here on: those that messages wait for are."""
        for one in self.broker.subscriptions():
            for agent in [name for name in one.members if name.startswith(LISTENERS)]:
                self._end(agent, "its operator is gone")  # of an earlier kernel
        for agent in self.broker.mailboxes():
            self._call(agent)
        for one in self.broker.subscriptions():
            for agent in one.members:
                self.hearing.until_expiry(agent, one.name, one.pattern)
                if one.open:
                    self._call(agent)
        self._arm()

    def _arm(self) -> None:
        due = _earlier(self.broker.next_tend, self.requests.next_tend)
        due = _earlier(due, self.hearing.next_end)
        if due is None or (self._timer and self._due <= due):
            return
        if self._timer:
            self._timer.cancel()
        self._due = due
        with suppress(RuntimeError):  # no loop, so nothing waits
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, due - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._journal.failed:
            return
        now = _now()
        change = together(
            [self.broker.tend(now), self.requests.tend(now), *self.hearing.expired(self.broker, now)], None
        )
        if change.puts or change.notes:
            facts = {"event": "bus", "rows": len(change.puts), "notes": len(change.notes)}
            self.put("kernel", 0, Kind.STATE, facts, change)
        else:
            self.wake(change.wake)
            self._arm()

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()

    # Lives.

    def in_hand(self, agent_id: str) -> InHand | None:
        """The message that has cost most lives, the one that just ended included."""
        held = self.broker.in_hand(agent_id)
        return max((InHand(name, deaths + 1) for name, deaths in held), key=lambda one: one.deaths, default=None)

    def left(self, agent: Agent, ended: Ended, *, again: bool) -> tuple[list[Put], Callable[[], None]]:
        """A life is over; `again`: there is another. What the entry of its exit must hold, and what is done then."""
        self._draining.discard(agent.id)
        resumes, blamed = again and agent.kind == "native", ended.exit_class not in _NO_FAULT
        died = self.broker.died(agent.id, _now(), keeps=resumes, blamed=blamed)
        changes: list[Change[Any]] = [died]
        if not again and not self._is_to_live(agent.id):
            changes += [self.requests.ended(agent.id), Change(None, self.pipes.ended(agent.id))]
        # Its record would lead it to the message that kills it: the next life begins a run of its own.
        anew = [Put("lives", agent.id, str(self._journal.aseq(agent.id) + 2).encode())] if died.value else []
        change = together(changes, None)

        def then() -> None:
            self._tell(change)
            served = agent.id in self._served
            self.settled(agent.id)  # nobody waits for what it will not do
            self._served.discard(agent.id)
            if served:
                self._rests.pop(agent.id, None)
            if self.broker.lag(agent.id).waiting:
                self._call(agent.id) if served else self._rest(agent.id)

        return [*change.puts, *anew], then

    def buried(self, agent_id: str) -> list[Put]:
        """It ended for good: what waits for it are dead letters, and whoever asked it hears so. The rest is done when
        the entry that tells of its end has its number."""
        self.hearing.forget(agent_id)
        self._rests.pop(agent_id, None)
        self._served.discard(agent_id)
        ended = Change(None, self.pipes.ended(agent_id))
        change = together([self.broker.gone(agent_id, _now()), self.requests.ended(agent_id), ended], None)
        if change.notes or change.wake:
            asyncio.get_running_loop().call_soon(self._tell, change)
        if streaming(agent_id) in self._waiting:
            asyncio.get_running_loop().call_soon(self.wake, [streaming(agent_id)])
        return change.puts

    def _tell(self, change: Change[None]) -> None:
        with suppress(AgentOSError):  # a journal that failed has told everybody
            for one in _told(change.notes):
                self._journal.put(one, sync=False)
        self.wake(change.wake)
        self._arm()

    def _end(self, agent_id: str, why: str) -> None:
        """Somebody who is no agent is gone."""
        change = self.broker.gone(agent_id, _now())
        self.put("kernel", 0, Kind.STATE, {"event": "bus", "gone": agent_id, "why": why}, change)

    def leave(self, listener: str) -> None:
        self._end(listener, "it listens no more")

    def freeze(self, agent_id: str) -> None:
        self.broker.freeze(agent_id, _now())

    def thaw(self, agent_id: str) -> None:
        self.broker.thaw(agent_id, _now())
        self._arm()

    async def drain(self, agent: Agent, seconds: float) -> None:
        """It is to end: requests that it has may be finished, and nothing new comes to it."""
        self._draining.add(agent.id)
        if self.broker.requests_in_hand(agent.id):
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while self.broker.requests_in_hand(agent.id) and not agent.exit:
                        await self.until(_settled(agent.id), 1.0)

    def settled(self, agent_id: str) -> None:
        """It is done with something: whoever waits for that goes on, and what is pushed to it may be more."""
        self._served.add(agent_id)
        for name in (_settled(agent_id), streaming(agent_id)):
            if name in self._waiting:
                self.wake([name])
        if any(agent_id in one.credits for one in self.broker.subscriptions(agent_id)):
            asyncio.get_running_loop().call_soon(self.resume, agent_id)


def _now() -> Now:
    return Now(time.monotonic(), time.time_ns())


def _is_over(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def _earlier(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return one if one < other else other


def _settled(agent_id: str) -> str:
    return f"settled {agent_id}"


def streaming(to: str) -> str:
    """What whoever sends it a stream waits for."""
    return f"stream {to}"


def _told(notes: Sequence[Note]) -> list[Draft]:
    """What happened beside a call, each as an entry of whom it concerns."""
    return [
        Draft(one.agent or "kernel", Kind.DEAD, body=frames.encode_body({"event": one.kind, **one.facts}))
        for one in notes
    ]


def _terms_of(spec: "Spec") -> Terms:
    own: dict[str, Any] = spec.tree["interface"]
    most = spec.tree["resources"]["max_concurrent_requests"] if own["reentrant"] else 1
    return Terms(own["max_queue"], own["max_deliveries"], own["max_deaths"], most)
