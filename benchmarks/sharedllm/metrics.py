"""What a run is judged by, and the bound that nobody can beat."""

import heapq
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.sharedllm.engine import Outcome
from benchmarks.sharedllm.programs import DEPTH, QUIET, RATE, Program


@dataclass
class Figures:
    """Seconds, unless they are counts or ratios. JCT: completion time of a program."""

    mean: float
    p95: float
    p99: float
    slow_mean: float  # slowdown: JCT / JCT on a machine of its own
    slow_max: float
    quiet_mean: float  # slowdown of quiet tenants
    quiet_p95: float
    chat_p95: float
    refusals: float
    wasted: float
    makespan: float
    jain: float  # of 1/slowdown
    decision_us: float
    bound: float  # on the mean
    hits: float  # share of deadlines met
    others_mean: float  # JCT of those without one
    after_kill: float  # calls sent


def figures(programs: list[Program], outcome: Outcome) -> Figures:
    ended = [one for one in programs if one.id in outcome.done]
    jct = {one.id: outcome.done[one.id] - one.arrival for one in ended}
    slow = {one.id: jct[one.id] / one.isolated for one in ended}
    quiet = [slow[one.id] for one in ended if one.tenant in QUIET]
    chats = [jct[one.id] for one in ended if one.type == "chat"]
    marked = [one for one in programs if one.id.endswith("!")]
    fair = [1 / value for value in slow.values()]
    return Figures(
        mean=statistics.fmean(jct.values()),
        p95=quantile(jct.values(), 0.95),
        p99=quantile(jct.values(), 0.99),
        slow_mean=statistics.fmean(slow.values()),
        slow_max=max(slow.values()),
        quiet_mean=statistics.fmean(quiet),
        quiet_p95=quantile(quiet, 0.95),
        chat_p95=quantile(chats, 0.95),
        refusals=outcome.refusals,
        wasted=outcome.wasted,
        makespan=outcome.makespan - min(one.arrival for one in programs),
        jain=sum(fair) ** 2 / (len(fair) * sum(value * value for value in fair)),
        decision_us=outcome.decision_secs / max(1, outcome.decisions) * 1e6,
        bound=lower_bound(programs),
        hits=statistics.fmean(jct.get(one.id, float("inf")) <= 30.0 for one in marked) if marked else 1.0,
        others_mean=statistics.fmean(jct[one.id] for one in ended if not one.id.endswith("!")),
        after_kill=outcome.sent_after_kill,
    )


def quantile(values: Iterable[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def averaged(runs: list[Figures]) -> Figures:
    return Figures(**{name: statistics.fmean(getattr(run, name) for run in runs) for name in vars(runs[0])})


def lower_bound(programs: list[Program]) -> float:
    """On the mean: nobody is faster than alone, and all tokens pass one bucket that begins full."""
    alone = statistics.fmean(one.isolated for one in programs)
    ends = shortest_first(programs)
    shared = statistics.fmean(max(0.0, ends[one.id] - one.arrival - DEPTH / RATE) for one in programs)
    return max(alone, shared)


def shortest_first(programs: list[Program]) -> dict[str, float]:
    """Preemptive shortest remaining time on one machine of speed R: when each program ends."""
    ends: dict[str, float] = {}
    waiting: list[tuple[float, str]] = []
    coming = sorted(programs, key=lambda one: one.arrival)
    now = 0.0
    for number, one in enumerate(coming):
        now = max(now, one.arrival)
        heapq.heappush(waiting, (one.tokens / RATE, one.id))
        until = coming[number + 1].arrival if number + 1 < len(coming) else float("inf")
        while waiting and now < until:
            left, name = heapq.heappop(waiting)
            worked = min(left, until - now)
            now += worked
            if left > worked:
                heapq.heappush(waiting, (left - worked, name))
            else:
                ends[name] = now
    return ends
