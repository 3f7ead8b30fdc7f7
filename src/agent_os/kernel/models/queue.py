"""The queue of one key and one model: calls join, leave when it is their turn and the key allows it, and end.

A call that was sent cannot be taken back without paying again, so this orders, holds and cancels; it never slices. The
order is said in `lines.py`, what the key allows in `buckets.py`, what a provider that fails allows in `breaker.py`.

In: calls, what replies say, moments of one steady clock. Out: which call leaves now, which came too late, when to look
again, and where each stands. Sends nothing, sleeps nowhere, and knows no budget: whoever drives it asks `next` after
every event and at `wake`.

Only the first call in order may leave. If it does not fit, tokens gather for it, and smaller work overtakes by its
score alone; so a large call is not starved by small ones that always fit.
"""

import heapq
import math
from collections.abc import Mapping

from msgspec import Struct

from agent_os.abi.errors import EAGAIN, EEXIST, EMSGSIZE, ETIMEDOUT
from agent_os.drivers.models import LimitSample
from agent_os.kernel.goals.goal import PRIORITIES
from agent_os.kernel.models.breaker import Breaker
from agent_os.kernel.models.buckets import Buckets
from agent_os.kernel.models.call import RANKS, Call, Place, Reason
from agent_os.kernel.models.lines import Lines
from agent_os.kernel.models.sizes import Sizes
from agent_os.kernel.models.waits import Urgency, Waits
from agent_os.kernel.supervisor.terms import Priority

MOST_WAITING = 10_000
MOST_OF_AGENT = 64
REMOTE_SLOTS, LOCAL_SLOTS = 32, 4
LONGEST_BLOCK_SECS = 60.0  # that a refusal keeps everybody: a provider may ask for an hour, and be wrong
FLOOR = 0.1  # of the tokens, for every class in which calls wait
_SUCCESSES = 20  # that earn a slot back
_RETRY_MS = 5_000
_TAKES_SECS = 5.0  # that a call is thought to need, before one has ended
_BLIND_SLOTS = 8  # while nothing is known of a key


class Slots(Struct):
    """How many calls may be in flight. Halved by a refusal of a provider that tells no limits, won back one by one."""

    most: int
    now: int = 0
    successes: int = 0

    def __post_init__(self) -> None:
        self.now = self.most

    def succeeded(self) -> None:
        self.successes += 1
        if self.successes >= _SUCCESSES:
            self.successes = 0
            self.now = min(self.most, self.now + 1)

    def halve(self) -> None:
        self.successes = 0
        self.now = max(1, self.now // 2)


class Queue:
    def __init__(
        self,
        sizes: Sizes,
        buckets: Buckets | None = None,
        *,
        slots: int = REMOTE_SLOTS,
        weights: Mapping[str, float] | None = None,
        breaker: Breaker | None = None,
        waits: Waits | None = None,
    ) -> None:
        """`weights`: of tenants, 1 for those not named. They and `waits` may be shared by the queues of all keys."""
        self.buckets = buckets or Buckets()
        self.breaker = breaker or Breaker()
        self.slots = Slots(slots)
        self.waits = waits or Waits()
        self._sizes = sizes
        self._lines = Lines(sizes, {} if weights is None else weights)
        self._calls: dict[str, Call] = {}  # that wait, wherever
        self._agents: dict[str, dict[str, Call]] = {}
        self._stopped: dict[str, dict[str, Call]] = {}  # by agent: held by SIGSTOP
        self._later: list[tuple[float, int, Call]] = []  # to be tried again, not before
        self._delayed: dict[str, Call] = {}
        self._deadlines: list[tuple[float, int, Call]] = []
        self._flying: dict[str, Call] = {}
        self._credit = [0.0] * len(PRIORITIES)  # tokens that a class may take before a more urgent one
        self._arrivals = 0
        self._dispatches = 0
        self._blocked_until = -math.inf
        self._heard = self.buckets.by_kind != {}  # something is known of the key
        self._takes = _TAKES_SECS
        self._gathering: Call | None = None  # the first in order, when `next` last looked: tokens gather for it

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def in_flight(self) -> int:
        return len(self._flying)

    # Coming.

    def join(self, call: Call, now: float) -> None:
        """EMSGSIZE: it could never leave. EAGAIN: too many wait. ETIMEDOUT: it is too late for it."""
        self._require_room(call)
        self._require_sense(call, now)
        self._arrivals += 1
        call.seq, call.arrived = self._arrivals, now
        self._admit(call, now)

    def again(self, call: Call, now: float, not_before: float) -> None:
        """A call that came back is tried once more. It keeps its arrival, and nobody asks whether there is room."""
        call.left = None
        if not_before <= now:
            self._admit(call, now)
            return
        self._enlist(call)
        self._delayed[call.id] = call
        heapq.heappush(self._later, (not_before, call.seq, call))

    def _require_room(self, call: Call) -> None:
        if call.id in self._calls or call.id in self._flying:
            raise EEXIST("model.call", f"the call {call.id} is here already")
        of_agent = len(self._agents.get(call.agent, ()))
        for count, most, whose in ((of_agent, MOST_OF_AGENT, f"{call.agent}'s"), (len(self), MOST_WAITING, "all")):
            if count >= most:
                reason = f"{count} model calls wait, which is as many of {whose} as may"
                raise EAGAIN("model.queue", reason, retry_after_ms=_RETRY_MS, limit=most)

    def _require_sense(self, call: Call, now: float) -> None:
        largest = self.buckets.largest()
        if call.prompt > largest:
            reason = f"the prompt is about {call.prompt} tokens, and the key allows {largest:.0f} at once"
            raise EMSGSIZE("context", reason, hint="send less", prompt=call.prompt, limit=int(largest))
        if call.deadline is not None and call.deadline <= now:
            raise ETIMEDOUT("model.deadline", "the deadline passed before the call was sent", retryable=True)

    def _enlist(self, call: Call) -> None:
        self._calls[call.id] = call
        self._agents.setdefault(call.agent, {})[call.id] = call
        if call.deadline is not None:
            heapq.heappush(self._deadlines, (call.deadline, call.seq, call))
            self._drop_met()

    def _drop_met(self) -> None:
        """Calls that left long before their deadline are not remembered until then."""
        if len(self._deadlines) > 2 * len(self._calls) + 64:
            self._deadlines = [entry for entry in self._deadlines if self._calls.get(entry[2].id) is entry[2]]
            heapq.heapify(self._deadlines)

    def _admit(self, call: Call, now: float) -> None:
        self._enlist(call)
        if call.agent in self._stopped:
            self._stopped[call.agent][call.id] = call
            return
        self._line_up(call, now)

    def _line_up(self, call: Call, now: float) -> None:
        call.rank, call.due = self.waits.urgency(call.agent, _own(call))
        self._lines.add(call, now)

    # Leaving.

    def next(self, now: float) -> Call | None:
        """The call that leaves now, if one does. It is in flight until `finished`, `refused` or `failed`."""
        self._due(now)
        if not len(self._lines) or self._held_up(now):
            return None
        call = self._first(now)
        if self._fits_in(call, now) > 0:
            self._gathering = call
            return None
        self._dispatch(call, now)
        return call

    def _fits_in(self, call: Call, now: float) -> float:
        return self.buckets.fits_in(call.prompt, call.room, now, idle=not self._flying)

    def _held_up(self, now: float) -> Reason | None:
        """What keeps everybody."""
        if not self.breaker.allows(now):
            return "breaker"
        if now < self._blocked_until:
            return "rate"
        slots = self.slots.now if self._heard else min(self.slots.now, _BLIND_SLOTS)
        return "slots" if len(self._flying) >= slots else None

    def _first(self, now: float) -> Call:
        ranks = self._lines.waiting()
        call = self._sized(self._lines.first(ranks[0], now, self._takes))
        for rank in ranks[1:]:
            if self._credit[rank] > 0:
                lower = self._sized(self._lines.first(rank, now, self._takes))
                if self._credit[rank] >= lower.need:
                    return lower
        return call

    def _sized(self, call: Call) -> Call:
        """What is reserved is exceeded by one reply in a hundred, and that one would be refused by a key that is just
        full enough. So there must be room for twice as much, which costs a moment once and no throughput."""
        most = int(min(call.max_output, self.buckets.output_room(call.prompt)))
        call.output = self._sizes.longest_output(call.type, most)
        call.room = min(most, 2 * call.output)
        return call

    def _dispatch(self, call: Call, now: float) -> None:
        self._lines.remove(call)
        self._forget(call)
        self._dispatches += 1
        call.order, call.left = self._dispatches, now
        self._flying[call.id] = call
        likely = self._sizes.likely_output(call.type, call.max_output)
        self.buckets.reserve(call.order, call.prompt, call.output, now, likely)
        self._sizes.sent(call.program, call.type, call.prompt)
        self._lines.shares.served(call.tenant, call.prompt)
        self._lines.progressed(call.program, now)
        self._share_out(call)
        self.breaker.left(call.id, now)

    def _share_out(self, call: Call) -> None:
        """A tenth of what leaves is owed to every class that waits. Nobody is owed anything for a time in which it had
        nothing to send."""
        waiting = self._lines.waiting()
        for rank in range(len(self._credit)):
            self._credit[rank] = self._credit[rank] + FLOOR * call.need if rank in waiting else 0.0
        self._credit[call.rank] = max(0.0, self._credit[call.rank] - call.need)

    # What replies say.

    def began(self, call_id: str, now: float, *samples: LimitSample) -> None:
        """The provider begins to answer."""
        call = self._flying.get(call_id)
        if call is None:
            return
        self._heard = True
        for sample in samples:
            self.buckets.sample(call.order, sample, now)

    def finished(self, call_id: str, prompt: int, output: int, now: float) -> Call | None:
        """It was answered, and took that many tokens. None: it was over before."""
        call = self._land(call_id, prompt, output, now)
        if call is not None:
            self._heard = True
            self._takes += 0.05 * (now - (call.left or now) - self._takes)
            self._sizes.replied(call.type, output)
            self.slots.succeeded()
            self.breaker.succeeded(call_id, now)
        return call

    def failed(self, call_id: str, prompt: int, output: int, now: float, *, counts: bool = True) -> Call | None:
        """It ended badly or was cancelled, and took that many tokens. `counts`: a failure that may pass by itself; the
        breaker looks at those."""
        call = self._land(call_id, prompt, output, now)
        if call is not None:
            self.breaker.failed(call_id, now, counts=counts)
        return call

    def _land(self, call_id: str, prompt: int, output: int, now: float) -> Call | None:
        call = self._flying.pop(call_id, None)
        if call is not None:
            self.buckets.settle(call.order, prompt, output, now)
            self._lines.shares.served(call.tenant, prompt + output - call.prompt)
        return call

    def refused(self, call_id: str, now: float, retry_after: float | None = None) -> Call | None:
        """The provider had no room for it (429): nobody leaves before it would fit."""
        call = self._flying.pop(call_id, None)
        if call is None:
            return None
        wait = min(retry_after or 0.0, LONGEST_BLOCK_SECS)
        self.buckets.refused(call.order, wait, now)
        self._sizes.taken_back(call.program)
        self._lines.shares.served(call.tenant, -call.prompt)
        self._lines.progressed(call.program, now)
        if not self.buckets.sampled:
            self.slots.halve()
        self._blocked_until = max(self._blocked_until, now + (wait or 1.0))
        self.breaker.busy(call_id, now)
        return call

    def program_done(self, program: str, type: str, now: float, *, whole: bool = True) -> None:
        """`whole`: it came to its own end."""
        self._sizes.finished(program, type, whole=whole)
        self._lines.learned(type, now)

    # Going without having left.

    def cancel(self, call_id: str) -> Call | None:
        """Taken out before this returns. None: it does not wait. One in flight is ended by whoever holds its
        connection, and then `failed`."""
        call = self._calls.get(call_id)
        if call is None:
            return None
        if call.id in self._delayed:
            del self._delayed[call.id]
        elif call.id in self._stopped.get(call.agent, ()):
            del self._stopped[call.agent][call.id]
        else:
            self._lines.remove(call)
        self._forget(call)
        return call

    def cancel_agent(self, agent: str) -> tuple[list[Call], list[Call]]:
        """It was killed: its calls that waited, which are gone, and those in flight, to be ended."""
        gone = [call for call_id in list(self._agents.get(agent, ())) if (call := self.cancel(call_id))]
        self._stopped.pop(agent, None)
        return gone, [call for call in self._flying.values() if call.agent == agent]

    def _forget(self, call: Call) -> None:
        del self._calls[call.id]
        mine = self._agents[call.agent]
        del mine[call.id]
        if not mine:
            del self._agents[call.agent]

    def late(self, now: float) -> list[Call]:
        """Those whose deadline passed while they waited. They were not sent and will not be: ETIMEDOUT."""
        found: list[Call] = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, call = heapq.heappop(self._deadlines)
            if self._calls.get(call.id) is call and self.cancel(call.id):
                found.append(call)
        return found

    def stop(self, agent: str) -> None:
        """SIGSTOP: its calls are held. What is in flight goes on."""
        held = self._stopped.setdefault(agent, {})
        for call in self._agents.get(agent, {}).values():
            if call.id not in held and call.id not in self._delayed:
                self._lines.remove(call)
                held[call.id] = call

    def go_on(self, agent: str, now: float) -> None:
        """SIGCONT."""
        for call in self._stopped.pop(agent, {}).values():
            self._line_up(call, now)

    # Urgency.

    def prioritize(self, agent: str, priority: Priority, now: float) -> None:
        """From the next call on, which is every call that waits."""
        for call in self._agents.get(agent, {}).values():
            call.priority = priority
        self.reconsider(agent, now)

    def reconsider(self, agent: str, now: float) -> None:
        """Somebody began or ceased to wait for the agent, or it became more or less urgent (`waits` knows already)."""
        for one in self.waits.touched(agent):
            for call in self._agents.get(one, {}).values():
                urgency = self.waits.urgency(one, _own(call))
                if call.id in self._delayed or call.id in self._stopped.get(one, ()):
                    continue  # asked anew when it lines up
                if urgency != (call.rank, call.due):
                    self._lines.move(call, *urgency, now)

    # When to look, and where everybody stands.

    def wake(self, now: float) -> float | None:
        """When `next` or `late` may have something new though nothing has happened since `next` gave nobody. None: only
        after an event."""
        self._due(now)
        moments = [self._later[0][0]] if self._later else []
        if self._deadlines:
            moments.append(self._deadlines[0][0])
        if len(self._lines):
            match self._held_up(now):
                case "slots":
                    pass
                case "breaker":
                    moments.append(self.breaker.again_at(now))
                case _:
                    first = self._gathering
                    if first is None or first.id not in self._calls:
                        first = self._first(now)
                    moments.append(max(now + self._fits_in(first, now), self._blocked_until))
        soonest = min(moments, default=math.inf)
        return soonest if soonest < math.inf else None

    def places(self, now: float, most: int | None = None) -> list[Place]:
        """The queue as it stands, first in order first; whoever is stopped or pauses, last. Changes nothing."""
        held_up = self._held_up(now)
        ordered = self._lines.in_order(now, self._takes)
        best = ordered[0].rank if ordered else 0
        standing: list[tuple[Call, Reason]] = [(call, _reason(call, best, held_up)) for call in ordered]
        standing.extend((call, "retry") for call in self._delayed.values())
        standing.extend((call, "stopped") for held in self._stopped.values() for call in held.values())
        return [_place(call, reason, number, now) for number, (call, reason) in enumerate(standing[:most], 1)]

    def _due(self, now: float) -> None:
        """Calls whose pause is over line up again."""
        while self._later and self._later[0][0] <= now:
            _, _, call = heapq.heappop(self._later)
            if self._delayed.pop(call.id, None) is call:
                if call.agent in self._stopped:
                    self._stopped[call.agent][call.id] = call
                else:
                    self._line_up(call, now)


def _own(call: Call) -> Urgency:
    return Urgency(RANKS[call.priority], call.deadline)


def _reason(call: Call, best: int, held_up: Reason | None) -> Reason:
    if held_up == "breaker":
        return held_up
    return "class" if call.rank > best else held_up or "rate"


def _place(call: Call, reason: Reason, number: int, now: float) -> Place:
    shown = PRIORITIES[call.rank]
    return Place(call.id, call.agent, call.tenant, shown, number, reason, round((now - call.arrived) * 1000))
