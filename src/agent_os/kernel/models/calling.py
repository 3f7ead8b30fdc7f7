"""One model call under way: its turns in the queue, its attempts, and its bill.

In: a call that the gate allowed, and a function that makes one attempt. Out: what the attempt gave, or the error that
its caller gets. Whatever was used is on the bill when this ends, however it ends: a reply, a fault, a kill. Only here
is a model call tried again, and never after its caller has seen some of the answer.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from agent_os.abi.errors import EAGAIN, EHOSTUNREACH, EIO, AgentOSError
from agent_os.abi.models import Usage
from agent_os.drivers.models import LimitSample, ModelFault, ModelInfo, ModelProvider
from agent_os.kernel.calls import Act, leave_of
from agent_os.kernel.models.call import Call
from agent_os.kernel.models.catalogue import Named
from agent_os.kernel.models.keys import Key
from agent_os.kernel.models.lane import Lane
from agent_os.kernel.models.prices import Rates
from agent_os.kernel.models.retries import Tried, Verdict, decide

if TYPE_CHECKING:
    from agent_os.kernel.models.gateway import Gateway
    from agent_os.kernel.table import Agent

T = TypeVar("T")
_SOON_MS = 1_000  # for who is told to come again, and not when
_LATER_MS = 30_000  # for a guest whose call had no turn


class Plan(Struct):
    """A call as it was weighed before the gate: what it may cost, and where it goes."""

    named: Named
    provider: ModelProvider
    info: ModelInfo
    raw: int  # tokens of the prompt, by its size alone
    prompt: int  # the same, as far as this model's counting is known
    max_output: int
    rates: Rates | None  # None: no price is known
    clamped: bool = False
    limited: bool = False  # somebody has said how much it may cost
    deadline: float | None = None  # of the loop's clock

    @property
    def cost(self) -> dict[str, float]:
        """To be reserved."""
        amounts: dict[str, float] = {"tokens": self.prompt + self.max_output, "model_calls": 1}
        if self.rates is not None:
            amounts["cost"] = self.rates.most(self.prompt, self.max_output)
        return amounts


class Calling:
    def __init__(self, gateway: "Gateway", agent: "Agent", plan: Plan, act: Act) -> None:
        self._gateway, self._agent, self.plan, self._act = gateway, agent, plan, act
        self.call: Call = gateway.stamped(agent, plan)
        self.key = Key()
        self.attempts = 0
        self.queued = 0.0  # seconds
        self.delivered = False  # its caller has seen some of the answer
        self.seen: Usage | None = None  # by this attempt so far; None: nothing has left
        self.total = Usage()  # of all attempts that ended
        self.cost: int | None = 0 if plan.rates else None
        self.patience: float | None = None  # seconds for a turn; None: as long as it takes
        self.waits = True  # also while its provider is left alone
        self._lane: Lane | None = None
        self._tries = 0  # of this round

    # Attempts.

    async def each(self, attempt: Callable[[str | None], Awaitable[T]]) -> T:
        """Until one gives something, or none is worth making. `attempt` gets the key, and says what it sees by
        `began`, `used` and, at its good end, `finished`."""
        loop = asyncio.get_running_loop()
        self.key = await self._gateway.keys.pick(self.plan.named.provider, self._agent, self.call.program)
        lane = self._lane = self._gateway.lane(self.plan, self.key)
        joined = loop.time()
        await self._turn(lane)
        waited = loop.time() - joined
        self.queued += waited
        self._gateway.used.queued.add(int(waited * 1e9))
        for self._tries in count(1):
            self.attempts += 1
            self.seen = None
            lane.share.sent(loop.time(), retry=self._tries > 1)
            try:
                leave_of(self._act).confirm()
                return await self._in_time(attempt)
            except ModelFault as fault:
                self._broke(lane, fault)
                pause = self._pause(lane, fault)
            except BaseException:
                self._left(lane)
                raise
            await self._turn(lane, loop.time() + pause)
        raise AssertionError("unreachable")

    async def _turn(self, lane: Lane, not_before: float | None = None) -> None:
        breaker, now = lane.queue.breaker, asyncio.get_running_loop().time()
        if not self.waits and not breaker.allows(now):
            reason = f"{self.plan.named.full} keeps failing and is left alone for a while"
            raise EHOSTUNREACH("provider", reason, retryable=True)
        if self.patience is None:
            await lane.turn(self.call, not_before=not_before)
            return
        try:
            async with asyncio.timeout(self.patience):
                await lane.turn(self.call, not_before=not_before)
        except TimeoutError:
            reason = f"the model is busy: this call has waited for {self.patience:.0f} s"
            raise EAGAIN("queue", reason, retry_after_ms=_LATER_MS) from None

    async def _in_time(self, attempt: Callable[[str | None], Awaitable[T]]) -> T:
        try:
            async with asyncio.timeout_at(self.plan.deadline):
                return await attempt(self.key.value)
        except TimeoutError:
            raise EIO("timeout", "the deadline passed while the model was answering; what it wrote is paid") from None

    # What an attempt says.

    def began(self, samples: Sequence[LimitSample] = ()) -> None:
        """The provider answers."""
        if self._lane:
            self._lane.began(self.call, samples)

    def sent(self) -> None:
        """From here on something may be charged."""
        self.used(Usage(input=self.plan.prompt, estimated=True))

    def unheard(self) -> None:
        """It was left before anybody could see how much it wrote: that may be all that was allowed."""
        self.used(Usage(input=self.plan.prompt, output=self.plan.max_output, estimated=True))

    def used(self, usage: Usage) -> None:
        """So far. An input that nobody has told is estimated."""
        if usage.estimated and not usage.input:
            usage = _with_input(usage, self.plan.prompt)
        self.seen = usage

    def finished(self, usage: Usage) -> Usage:
        """The whole answer is there."""
        self.used(usage)
        found = self.seen or usage
        if usage.input and not usage.estimated:
            self._gateway.counted(self._agent, self.plan, usage.input)
        if self._lane:
            self._lane.finished(self.call, found.input, found.output)
        self._add(found)
        return found

    # How it ended otherwise.

    def last(self, fault: ModelFault) -> bool:
        """Whether this fault is the caller's to see: no attempt follows."""
        return self._lane is None or self._verdict(self._lane, fault).pause is None

    def gone_wrong(self, fault: ModelFault) -> None:
        """The caller has the provider's own words of it."""
        if self._lane:
            self._broke(self._lane, fault)

    def _verdict(self, lane: Lane, fault: ModelFault) -> Verdict:
        now = asyncio.get_running_loop().time()
        wait = _seconds(fault.error)
        tried = Tried(self._tries, fault.again, wait, self.delivered, self.plan.deadline, lane.share)
        return decide(tried, now, random.random())

    def _broke(self, lane: Lane, fault: ModelFault) -> None:
        usage = fault.usage or (self.seen if fault.status is None and fault.sent else None)
        if not fault.sent:
            usage = None
        self.seen = None
        if usage is not None:
            self.used(usage)
        found = self.seen or Usage()
        self._tell(fault, found)
        if fault.samples:
            lane.began(self.call, fault.samples)
        if isinstance(fault.error, EAGAIN) and not found.output:
            lane.refused(self.call, _seconds(fault.error))
        else:
            lane.failed(self.call, found.input, found.output, counts=fault.breaks)
        self._add(found)
        if fault.status in (401, 403):
            self._gateway.keys.marked(self.key, self.plan.named.provider, self._agent)

    def _left(self, lane: Lane) -> None:
        """Nobody wants the rest, or it may not go on. What has come is paid."""
        found = self.seen or Usage()
        lane.failed(self.call, found.input, found.output, counts=False)
        self._add(found)

    def _add(self, usage: Usage) -> None:
        self.seen = None
        self.total = _sum(self.total, usage)
        if self.cost is not None and self.plan.rates is not None:
            more = self.plan.rates.cost(usage) if usage.input or usage.output else 0
            self.cost += more
            self._gateway.used.cost.add(self.plan.named.full, more)
        self._gateway.used.add(self.plan.named.full, usage)
        self._act.lost = self.spent

    @property
    def spent(self) -> dict[str, float]:
        """The bill."""
        amounts: dict[str, float] = {"tokens": self.total.input + self.total.output, "model_calls": 1}
        if self.cost is not None:
            amounts["cost"] = self.cost
        return amounts

    def _tell(self, fault: ModelFault, usage: Usage) -> None:
        """Every attempt that failed is part of the record."""
        told: dict[str, Any] = {"error": fault.error.name, "code": fault.error.code, "status": fault.status}
        if usage.input or usage.output:
            told |= {"input": usage.input, "output": usage.output}
        if fault.raw:
            told["raw"] = self._gateway.masked(fault.raw)
        self._act.record.setdefault("failed", []).append(told)

    def _pause(self, lane: Lane, fault: ModelFault) -> float:
        """Before the next attempt. Raises what the caller gets, where there is none."""
        verdict = self._verdict(lane, fault)
        if verdict.pause is not None:
            return verdict.pause
        error = self._gateway.clean(fault.error)
        if verdict.because in ("long", "deadline"):
            wait = max(_SOON_MS, round(verdict.wait * 1000))
            raise EAGAIN("rate", f"{error.reason}; it asks for {verdict.wait:.0f} s", retry_after_ms=wait) from fault
        if isinstance(error, EHOSTUNREACH):
            error.hint = error.hint or f"agentctl model test {self.plan.named.full}"
        raise error from fault


def _seconds(error: AgentOSError) -> float | None:
    return None if error.retry_after_ms is None else error.retry_after_ms / 1000


def _with_input(usage: Usage, tokens: int) -> Usage:
    return Usage(input=tokens, output=usage.output, reasoning=usage.reasoning, estimated=True)


def _sum(one: Usage, other: Usage) -> Usage:
    keys = ("input", "cached_read", "cache_write", "output", "reasoning")
    added = {key: getattr(one, key) + getattr(other, key) for key in keys}
    return Usage(**added, estimated=one.estimated or other.estimated)
