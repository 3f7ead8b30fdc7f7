"""Programs, a policy and an end point in virtual time. Nothing waits; a run of minutes takes a second or two.

The end point admits a call if its prompt and its actual output are in the bucket and a slot is free, and says 429 with
`retry-after` otherwise. What is left in the bucket is told when a stream starts. What was cancelled stays charged.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.sharedllm.programs import DECODE, DEPTH, RATE, SLOTS, Ask, Program, start_after

_CLOSE = 1e-6  # tokens and seconds that do not matter


@dataclass(eq=False)
class Job:
    """One call of a program."""

    id: str
    program: Program
    ask: Ask
    arrived: float
    attempts: int = 0
    generated: int = 0  # of its output, where it is cut in slices
    cancelled: bool = False


@dataclass(eq=False)
class Sending:
    """What goes to the end point: a whole call, or a slice of one."""

    job: Job
    prompt: int
    output: int
    starts_after: float
    last: bool = True  # the job is done when this is
    wasted: int = 0  # of its tokens, those paid before
    ends: float = 0.0


def whole(job: Job) -> Sending:
    return Sending(job, job.ask.prompt, job.ask.output, start_after(job.ask.prompt))


class EndPoint:
    def __init__(self) -> None:
        self.level, self.at, self.flying = DEPTH, 0.0, 0

    def refill(self, now: float) -> float:
        self.level, self.at = min(DEPTH, self.level + (now - self.at) * RATE), now
        return self.level

    def fits_in(self, tokens: int, now: float) -> float:
        """Seconds until the bucket holds that much."""
        return max(0.0, (tokens - self.refill(now) - _CLOSE) / RATE)

    def admit(self, tokens: int, now: float) -> float | None:
        """None: taken. Else `retry-after`."""
        wait = self.fits_in(tokens, now)
        if wait > 0 or self.flying >= SLOTS:
            return wait or 1.0
        self.level -= tokens
        self.flying += 1
        return None


class Policy(Protocol):
    def join(self, job: Job, now: float) -> None: ...
    def next(self, now: float) -> Sending | None: ...
    def wake(self, now: float) -> float | None: ...
    def began(self, sending: Sending, remaining: float, now: float) -> None: ...
    def ended(self, sending: Sending, now: float) -> None: ...
    def refused(self, sending: Sending, retry_after: float, now: float) -> None: ...
    def cancel(self, job: Job, now: float) -> bool:
        """True: it waited and is gone."""
        ...

    def program_done(self, program: Program, now: float, *, whole: bool) -> None: ...
    def late(self, now: float) -> Iterable[Job]: ...


@dataclass
class Outcome:
    done: dict[str, float] = field(default_factory=dict[str, float])  # when, by program
    killed: dict[str, float] = field(default_factory=dict[str, float])
    missed: set[str] = field(default_factory=set[str])  # deadlines that ended a program
    refusals: int = 0
    wasted: int = 0
    sent: int = 0
    sent_after_kill: int = 0
    open_after_kill: float = 0.0  # the longest that a connection stayed, in seconds
    decisions: int = 0
    decision_secs: float = 0.0
    most_waiting: int = 0
    makespan: float = 0.0


class Engine:
    def __init__(self, programs: list[Program], policy: Policy, end_point: EndPoint) -> None:
        self.programs, self.policy, self.end_point = programs, policy, end_point
        self.outcome = Outcome()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._count = itertools.count()
        self._wakes: set[float] = set()
        self._open: dict[str, dict[str, Job]] = {}  # jobs of a program that wait or fly
        self._sendings: dict[str, Sending] = {}
        self._stage: dict[str, int] = {}
        self._served: dict[str, int] = {}
        self._waiting = 0

    def run(self) -> Outcome:
        for program in self.programs:
            self._at(program.arrival, lambda now, program=program: self._begin(program, 0, now))
        while self._events:
            now, _, happen = heapq.heappop(self._events)
            happen(now)
            for job in self.policy.late(now):
                self._give_up(job.program, now)
            self._send(now)
        return self.outcome

    def _at(self, moment: float, happen: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._count), happen))

    # Programs.

    def _begin(self, program: Program, stage: int, now: float) -> None:
        if program.id in self.outcome.killed or program.id in self.outcome.missed:
            return
        self._stage[program.id] = stage
        jobs = {
            f"{program.id}.{stage}.{number}": Job(f"{program.id}.{stage}.{number}", program, ask, now)
            for number, ask in enumerate(program.stages[stage].asks)
        }
        self._open[program.id] = jobs
        for job in jobs.values():
            self._waiting += 1
            self.policy.join(job, now)
        self.outcome.most_waiting = max(self.outcome.most_waiting, self._waiting)

    def _job_done(self, job: Job, now: float) -> None:
        program = job.program
        self._served[program.id] = self._served.get(program.id, 0) + job.ask.tokens
        jobs = self._open[program.id]
        del jobs[job.id]
        if program.dies_at is not None and self._served[program.id] >= program.dies_at:
            self._kill(program, now)
        elif not jobs:
            stage = self._stage[program.id]
            if stage + 1 == len(program.stages):
                self.outcome.done[program.id] = self.outcome.makespan = now
                self.policy.program_done(program, now, whole=True)
            else:
                pause = program.stages[stage].pause
                self._at(now + pause, lambda at: self._begin(program, stage + 1, at))

    def _kill(self, program: Program, now: float) -> None:
        self.outcome.killed[program.id] = now
        self._cut(program, now)

    def _give_up(self, program: Program, now: float) -> None:
        self.outcome.missed.add(program.id)
        self._cut(program, now)

    def _cut(self, program: Program, now: float) -> None:
        for job in list(self._open.pop(program.id, {}).values()):
            job.cancelled = True
            if self.policy.cancel(job, now):
                self._waiting -= 1
            elif sending := self._sendings.pop(job.id, None):
                self.end_point.flying -= 1
                self.outcome.wasted += sending.prompt + sending.output
                self.policy.ended(sending, now)
        self.policy.program_done(program, now, whole=False)

    # Calls.

    def _send(self, now: float) -> None:
        while True:
            began = time.thread_time()
            sending = self.policy.next(now)
            self.outcome.decision_secs += time.thread_time() - began
            self.outcome.decisions += 1
            if sending is None:
                break
            self._sent(sending, now)
        moment = self.policy.wake(now)
        if moment is not None:
            moment = max(moment, now) + _CLOSE
            if not any(now < known <= moment for known in self._wakes):
                self._wakes = {known for known in self._wakes if known > now} | {moment}
                self._at(moment, self._woken)

    def _woken(self, now: float) -> None:
        self._wakes.discard(now)

    def _sent(self, sending: Sending, now: float) -> None:
        job = sending.job
        if job.program.id in self.outcome.killed:
            self.outcome.sent_after_kill += 1
        retry_after = self.end_point.admit(sending.prompt + sending.output, now)
        if retry_after is not None:
            self.outcome.refusals += 1
            self.policy.refused(sending, retry_after, now)
            return
        self.outcome.sent += 1
        self.outcome.wasted += sending.wasted
        self._waiting -= 1
        self._sendings[job.id] = sending
        begins = now + sending.starts_after
        sending.ends = begins + sending.output / DECODE
        self._at(begins, lambda at: self._began(sending, at))
        self._at(sending.ends, lambda at: self._ended(sending, at))

    def _began(self, sending: Sending, now: float) -> None:
        if self._sendings.get(sending.job.id) is sending:
            self.policy.began(sending, self.end_point.refill(now), now)

    def _ended(self, sending: Sending, now: float) -> None:
        if self._sendings.get(sending.job.id) is not sending:
            return  # cancelled
        del self._sendings[sending.job.id]
        self.end_point.flying -= 1
        if not sending.last:
            self._waiting += 1
        self.policy.ended(sending, now)
        if sending.last:
            self._job_done(sending.job, now)
