"""The pass marks as part of `make bench`: three seeds, or with `--long` all ten.

The whole table is printed by `python -m benchmarks.sharedllm`.
"""

from benchmarks.measure import Report
from benchmarks.sharedllm import capped, decisions, marks, scenarios

_BESIDE = ("naive", "fifo", "srpt", *scenarios.OURS)


async def run(report: Report, long: bool) -> None:
    seeds = range(1, 11 if long else 4)
    table: marks.Table = {}
    for scenario in scenarios.SCENARIOS:
        for name in _BESIDE:
            row = table[scenario, name] = scenarios.row(scenario, name, seeds).figures
            report.figure(f"{scenario}, {name}: mean JCT ({row.refusals:.0f} 429s)", row.mean, "s")
    cost = {count: decisions.decision_us(count) for count in (1_000, 10_000)}
    spent = [capped.loop_under_cap(seed) for seed in seeds]
    for goal in (*marks.marks(table), *marks.decision_marks(cost), marks.budget_mark(spent)):
        report.goal(goal.name, goal.value, goal.sense, goal.bound, goal.unit)
