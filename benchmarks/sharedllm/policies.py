"""Who is served when: the product's queue, and everything it is compared with.

`ours` is the kernel's own code. The others that order know the end point's bucket and every call's true output, which
nobody has: that is in their favour. `naive` and `aios_fifo` know nothing and let clients retry.
"""

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from benchmarks.sharedllm.engine import EndPoint, Job, Policy, Sending, whole
from benchmarks.sharedllm.programs import DECODE, DEPTH, MAX_OUTPUT, RATE, SLOTS, Program, start_after

from agent_os.drivers.models import LimitSample
from agent_os.kernel.models.buckets import Buckets
from agent_os.kernel.models.call import Call
from agent_os.kernel.models.queue import Queue
from agent_os.kernel.models.retries import RetryShare, Tried, decide
from agent_os.kernel.models.sizes import Sizes

_TICK = 1.1
_SLICE = 1.0


class Ours(Policy):
    """The product. `told`: it knows what the key allows; else only what replies say."""

    def __init__(self, seed: int, *, told: bool) -> None:
        limits = Buckets.configured(0.0, tokens=(DEPTH, RATE)) if told else Buckets()
        self.queue = Queue(Sizes(), limits, slots=SLOTS)
        self._jobs: dict[str, Job] = {}
        self._share = RetryShare()
        self._rng = random.Random(seed)

    def join(self, job: Job, now: float) -> None:
        program = job.program
        self._jobs[job.id] = job
        call = Call(
            job.id, program.id, program.id, program.type, program.tenant, job.ask.prompt, MAX_OUTPUT,
            program.priority, program.deadline,  # type: ignore[arg-type]
        )  # fmt: skip
        self.queue.join(call, now)

    def next(self, now: float) -> Sending | None:
        call = self.queue.next(now)
        if call is None:
            return None
        job = self._jobs[call.id]
        self._share.sent(now, retry=job.attempts > 0)
        job.attempts += 1
        return whole(job)

    def wake(self, now: float) -> float | None:
        return self.queue.wake(now)

    def began(self, sending: Sending, remaining: float, now: float) -> None:
        sample = LimitSample(bucket="tokens", limit=int(DEPTH), remaining=int(remaining))
        self.queue.began(sending.job.id, now, sample)

    def ended(self, sending: Sending, now: float) -> None:
        end = self.queue.failed if sending.job.cancelled else self.queue.finished
        end(sending.job.id, sending.prompt, sending.output, now)
        self._jobs.pop(sending.job.id, None)

    def refused(self, sending: Sending, retry_after: float, now: float) -> None:
        call = self.queue.refused(sending.job.id, now, retry_after)
        assert call is not None
        tried = Tried(sending.job.attempts, "yes", retry_after, deadline=call.deadline, share=self._share)
        verdict = decide(tried, now, self._rng.random())
        # A caller that gets EAGAIN comes again, and so does a program of this benchmark.
        pause = verdict.pause if verdict.pause is not None else max(verdict.wait, 1.0)
        self.queue.again(call, now, now + pause)

    def cancel(self, job: Job, now: float) -> bool:
        return self.queue.cancel(job.id) is not None

    def program_done(self, program: Program, now: float, *, whole: bool) -> None:
        self.queue.program_done(program.id, program.type, now, whole=whole)

    def late(self, now: float) -> Iterable[Job]:
        return [self._jobs[call.id] for call in self.queue.late(now)]


class Rank(NamedTuple):
    """What the orders of others look at."""

    calls: Counter[str]  # sent, by program
    attained: Counter[str]  # tokens, by program
    tenants: Counter[str]


Order = Callable[[Job, Rank], float]


class Ordered(Policy):
    """The smallest first, then the one that came first; the first waits until it fits.

    An order may change when a call leaves, for those of its program (they are entered again) or for a whole tenant
    (then it only grows, which is seen when an entry comes to the top)."""

    def __init__(self, end_point: EndPoint, order: Order) -> None:
        self._end_point, self._order = end_point, order
        self._waiting: dict[str, Job] = {}
        self._programs: dict[str, dict[str, Job]] = {}
        self._heap: list[tuple[float, float, int, Job]] = []
        self._rank = Rank(Counter(), Counter(), Counter())
        self._count = 0

    def join(self, job: Job, now: float) -> None:
        self._waiting[job.id] = job
        self._programs.setdefault(job.program.id, {})[job.id] = job
        self._enter(job)

    def _enter(self, job: Job) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self._order(job, self._rank), job.arrived, self._count, job))

    def _first(self) -> Job:
        while True:
            was, _, _, job = self._heap[0]
            if job.id not in self._waiting:
                heapq.heappop(self._heap)
            elif self._order(job, self._rank) > was:
                heapq.heappop(self._heap)
                self._enter(job)
            else:
                return job

    def next(self, now: float) -> Sending | None:
        if not self._waiting or self._end_point.flying >= SLOTS:
            return None
        job = self._first()
        if self._end_point.fits_in(job.ask.tokens, now) > 0:
            return None
        self._take(job)
        self._rank.calls[job.program.id] += 1
        self._rank.attained[job.program.id] += job.ask.tokens
        self._rank.tenants[job.program.tenant] += job.ask.tokens
        for sibling in self._programs[job.program.id].values():
            self._enter(sibling)
        return whole(job)

    def _take(self, job: Job) -> None:
        del self._waiting[job.id]
        self._programs[job.program.id].pop(job.id, None)

    def wake(self, now: float) -> float | None:
        if not self._waiting or self._end_point.flying >= SLOTS:
            return None
        return now + self._end_point.fits_in(self._first().ask.tokens, now)

    def cancel(self, job: Job, now: float) -> bool:
        waits = job.id in self._waiting
        if waits:
            self._take(job)
        return waits

    def began(self, sending: Sending, remaining: float, now: float) -> None: ...
    def ended(self, sending: Sending, now: float) -> None: ...
    def refused(self, sending: Sending, retry_after: float, now: float) -> None: ...
    def program_done(self, program: Program, now: float, *, whole: bool) -> None: ...

    def late(self, now: float) -> Iterable[Job]:
        return ()


ORDERS: dict[str, Order] = {
    "fifo": lambda job, rank: 0.0,
    "rr_prog": lambda job, rank: rank.calls[job.program.id],
    "vtc": lambda job, rank: rank.tenants[job.program.tenant],
    "plas": lambda job, rank: rank.attained[job.program.id],
    "scf": lambda job, rank: job.ask.prompt,
    "srpt": lambda job, rank: job.program.tokens - rank.attained[job.program.id],
}


class Naive(Policy):
    """No scheduler: everybody sends, and whoever is refused comes again later."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._ready: list[tuple[float, int, Job]] = []
        self._gone: set[str] = set()
        self._count = 0

    def _later(self, job: Job, moment: float) -> None:
        self._count += 1
        heapq.heappush(self._ready, (moment, self._count, job))

    def join(self, job: Job, now: float) -> None:
        self._later(job, now)

    def next(self, now: float) -> Sending | None:
        while self._ready and self._ready[0][0] <= now:
            _, _, job = heapq.heappop(self._ready)
            if job.id not in self._gone:
                return whole(job)
        return None

    def wake(self, now: float) -> float | None:
        return self._ready[0][0] if self._ready else None

    def refused(self, sending: Sending, retry_after: float, now: float) -> None:
        job = sending.job
        pause = 0.5 * 2 ** min(job.attempts, 6) * self._rng.uniform(0.5, 1.5)
        job.attempts += 1
        self._later(job, now + pause)

    def cancel(self, job: Job, now: float) -> bool:
        waits = any(job is one for _, _, one in self._ready)
        if waits:
            self._gone.add(job.id)
        return waits

    def began(self, sending: Sending, remaining: float, now: float) -> None: ...
    def ended(self, sending: Sending, now: float) -> None: ...
    def program_done(self, program: Program, now: float, *, whole: bool) -> None: ...

    def late(self, now: float) -> Iterable[Job]:
        return ()


class Batches(Naive):
    """Like AIOS: what waits at a tick is sent together, the next batch when all of it has come back. Who is refused
    comes again as a client does."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._batch: list[Job] = []
        self._out = 0
        self._tick = 0.0

    def next(self, now: float) -> Sending | None:
        if not self._batch and self._out == 0 and now >= self._tick:
            while job := super().next(now):
                self._batch.append(job.job)
            # The next tick after this one, whether or not anybody was there.
            self._tick = (int((now + 1e-9) / _TICK) + 1) * _TICK
        while self._batch:
            job = self._batch.pop(0)
            if job.id not in self._gone:
                self._out += 1
                return whole(job)
        return None

    def wake(self, now: float) -> float | None:
        if self._out or not self._ready:
            return None
        return max(self._tick, self._ready[0][0])

    def ended(self, sending: Sending, now: float) -> None:
        self._out -= 1

    def refused(self, sending: Sending, retry_after: float, now: float) -> None:
        self._out -= 1
        super().refused(sending, retry_after, now)


class Slices(Ordered):
    """A second of output each, in turn. With `paid` the prompt and the text so far are sent again for every slice."""

    def __init__(self, end_point: EndPoint, *, paid: bool) -> None:
        super().__init__(end_point, ORDERS["fifo"])
        self._paid = paid

    def join(self, job: Job, now: float) -> None:
        self._waiting[job.id] = job

    def cancel(self, job: Job, now: float) -> bool:
        return self._waiting.pop(job.id, None) is not None

    def _slice(self, job: Job) -> Sending:
        output = min(int(_SLICE * DECODE), job.ask.output - job.generated)
        again = job.ask.prompt + job.generated if job.generated else 0
        last = job.generated + output >= job.ask.output
        if not again:
            return Sending(job, job.ask.prompt, output, start_after(job.ask.prompt), last)
        if self._paid:
            return Sending(job, again, output, start_after(again), last, wasted=again)
        return Sending(job, 0, output, 0.0, last)

    def next(self, now: float) -> Sending | None:
        if not self._waiting or self._end_point.flying >= SLOTS:
            return None
        sending = self._slice(next(iter(self._waiting.values())))
        if self._end_point.fits_in(sending.prompt + sending.output, now) > 0:
            return None
        del self._waiting[sending.job.id]
        return sending

    def wake(self, now: float) -> float | None:
        if not self._waiting or self._end_point.flying >= SLOTS:
            return None
        sending = self._slice(next(iter(self._waiting.values())))
        return now + self._end_point.fits_in(sending.prompt + sending.output, now)

    def ended(self, sending: Sending, now: float) -> None:
        sending.job.generated += sending.output
        if not sending.last and not sending.job.cancelled:
            self._waiting[sending.job.id] = sending.job


BASELINES = ("naive", "fifo", "rr_prog", "vtc", "plas", "scf", "aios_fifo", "rr_text", "rr_ideal", "srpt")
OURS = ("ours", "ours_learned")


def policy(name: str, seed: int, end_point: EndPoint) -> Policy:
    match name:
        case "ours" | "ours_learned":
            return Ours(seed, told=name == "ours")
        case "naive":
            return Naive(seed)
        case "aios_fifo":
            return Batches(seed)
        case "rr_text" | "rr_ideal":
            return Slices(end_point, paid=name == "rr_text")
        case _:
            return Ordered(end_point, ORDERS[name])
