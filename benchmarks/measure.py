"""How figures are taken: many samples, sorted; always beside a baseline of the same run.

What is compared is sampled in turn (`in_turn`), not one after the other: on a busy machine both meet the same load.
"""

import asyncio
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Work = Callable[[], Awaitable[float]]  # does the thing once; returns its milliseconds
Step = tuple[Callable[[int], Any], Callable[[Any], object]]  # prepares one sample by its number; does it
ROW = 200
WARM = 10  # calls before each row of samples: what ran before has the caches


@dataclass
class Series:
    """Samples of one thing in one unit."""

    name: str
    unit: str
    samples: list[float] = field(default_factory=list[float])

    @property
    def p50(self) -> float:
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        return sorted(self.samples)[max(0, round(len(self.samples) * 0.95) - 1)]


@dataclass(frozen=True)
class Goal:
    name: str
    value: float
    sense: Literal["≤", "≥"]
    bound: float
    unit: str

    @property
    def met(self) -> bool:
        return self.value <= self.bound if self.sense == "≤" else self.value >= self.bound

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{self.name:<58} {self.value:9.2f} {self.unit:<6} goal {self.sense} {self.bound:g}: {verdict}"


class Report:
    """Collects series, ratios and goals, prints them as they come, and writes them as JSON. What is `quiet` is printed
    by the benchmark itself, as a table."""

    def __init__(self) -> None:
        self._series: list[Series] = []
        self._ratios: dict[str, float] = {}
        self._skipped: dict[str, str] = {}
        self._notes: list[str] = []
        self.failed: dict[str, str] = {}
        self.goals: list[Goal] = []

    def add(self, series: Series, *, quiet: bool = False) -> Series:
        self._series.append(series)
        line = f"  {series.name:<58} {series.p50:9.2f} {series.unit:<6}"
        if not quiet:
            print(line + (f" p95 {series.p95:9.2f}" if len(series.samples) > 1 else ""), flush=True)
        return series

    def figure(self, name: str, value: float, unit: str) -> Series:
        return self.add(Series(name, unit, [value]))

    def ratio(self, name: str, of: Series, to: Series, *, quiet: bool = False) -> float:
        self._ratios[name] = of.p50 / to.p50
        if not quiet:
            print(f"  {name:<58} {self._ratios[name]:9.2f} ×", flush=True)
        return self._ratios[name]

    def goal(
        self, name: str, value: float, sense: Literal["≤", "≥"], bound: float, unit: str, *, quiet: bool = False
    ) -> Goal:
        goal = Goal(name, value, sense, bound, unit)
        self.goals.append(goal)
        if not quiet:
            print(f"  {goal}", flush=True)
        return goal

    def skip(self, name: str, reason: str) -> None:
        self._skipped[name] = reason
        print(f"  {name:<58} skipped: {reason}", flush=True)

    def fail(self, name: str, reason: str) -> None:
        """A benchmark that could not be taken to its end: a defect, not a figure."""
        self.failed[name] = reason
        print(f"  {name:<58} FAILED: {reason}", flush=True)

    def note(self, text: str) -> None:
        self._notes.append(text)
        print(f"  note: {text}", flush=True)

    def write(self, path: Path, mode: str, arguments: Sequence[str]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        facts = {
            "mode": mode,
            "machine": platform.machine(),
            "kernel": platform.release(),
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
            "python": sys.version.split()[0],
            "arguments": list(arguments),
            "goals": [vars(goal) | {"met": goal.met} for goal in self.goals],
            "ratios": self._ratios,
            "series": [
                {"name": s.name, "unit": s.unit, "n": len(s.samples), "p50": s.p50, "p95": s.p95} for s in self._series
            ],
            "skipped": self._skipped,
            "failed": self.failed,
            "notes": self._notes,
        }
        path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


async def in_turn(subjects: Mapping[str, Work], rounds: int) -> dict[str, Series]:
    """One sample of each, again and again. The first round warms up and is not counted."""
    series = {name: Series(name, "ms") for name in subjects}
    for turn in range(rounds + 1):
        for name, work in subjects.items():
            took = await work()
            if turn:
                series[name].samples.append(took)
    return series


def in_rows(subjects: Mapping[str, Step], rounds: int, after: Callable[[], None] = lambda: None) -> dict[str, Series]:
    """Short work, a row of samples of each in turn, in the time of this thread: neighbours do not count. `after` is
    called between the rounds."""
    series = {name: Series(name, "µs") for name in subjects}
    gc.collect()
    gc.disable()  # a collection in the middle of a sample is nobody's cost here
    try:
        for turn in range(rounds):
            for name, (prepare, work) in subjects.items():
                samples = series[name].samples
                for number in range(-WARM, ROW):
                    given = prepare(turn * ROW + number)
                    began = time.thread_time_ns()
                    work(given)
                    took = time.thread_time_ns() - began
                    if number >= 0:
                        samples.append(took / 1000)
            after()
            gc.collect()
    finally:
        gc.enable()
    return series


def timed(work: Callable[[], object]) -> Work:
    """A blocking piece of work as a subject. Nothing else runs on the loop meanwhile."""

    async def once() -> float:
        await asyncio.sleep(0)  # lets the loop finish what the subject before left to do
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1000

    return once
