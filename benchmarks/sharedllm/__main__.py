"""`python -m benchmarks.sharedllm`: many programs share one rate-limited key; ours beside every other way of sharing
it.

Virtual time, the product's own ordering code. Prints a table per scenario, then the pass marks, met or missed, and
writes JSON to `.cache/sharedllm.json`. Client retry without any scheduler (`naive`) is always in the table: its mean is
better than FIFO's, and it pays with thousands of refusals. `--wall` runs a small herd over loopback HTTP in real time
instead.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "src"))

from benchmarks.measure import Goal  # noqa: E402 (the path is set above)
from benchmarks.sharedllm import capped, decisions, marks, programs, scenarios, wall  # noqa: E402
from benchmarks.sharedllm.metrics import Figures  # noqa: E402

QUEUED = (10, 1_000, 10_000)
COST_PROGRAMS = (250, 500, 1_000, 2_000)  # of a herd that is only run for its cost


def main() -> int:
    given = _arguments()
    if given.wall:
        return asyncio.run(wall.main(given.seed[0], given.programs, given.speed))
    table: marks.Table = {}
    for scenario in given.scenario:
        print(f"\n{scenario}, mean of seeds {', '.join(map(str, given.seed))}\n{_HEAD}")
        for name in given.policy:
            row = table[scenario, name] = scenarios.row(scenario, name, given.seed).figures
            print(_line(name, row), flush=True)
        some = next(iter(figures for (where, _), figures in table.items() if where == scenario))
        print(f"  {'lower bound':<14}{some.bound:9.1f}")
    goals = marks.marks(table)
    if not given.quick:
        goals += _cost()
        goals.append(marks.budget_mark([capped.loop_under_cap(seed) for seed in given.seed]))
    print()
    for goal in goals:
        print(f"  {goal}")
    _write(given.json, given.seed, table, goals)
    return 0 if all(goal.met for goal in goals) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharedllm", description=__doc__)
    parser.add_argument("--policy", nargs="+", default=scenarios.POLICIES, choices=scenarios.POLICIES, metavar="POLICY")
    parser.add_argument("--scenario", nargs="+", default=[*scenarios.SCENARIOS], choices=scenarios.SCENARIOS)
    parser.add_argument("--seed", nargs="+", type=int, default=[*range(1, 11)])
    parser.add_argument("--quick", action="store_true", help="without scenario D and the cost of decisions")
    parser.add_argument("--wall", action="store_true", help="a small herd over loopback HTTP, in real time")
    parser.add_argument("--programs", type=int, default=40, help="with --wall: how many (default 40)")
    parser.add_argument("--speed", type=float, default=10.0, help="with --wall: how much faster than the end point's")
    parser.add_argument("--json", type=Path, default=ROOT / ".cache" / "sharedllm.json")
    return parser.parse_args()


def _cost() -> list[Goal]:
    print("\nCost of a decision, CPU")
    cost = {count: decisions.decision_us(count) for count in QUEUED}
    for count, micros in cost.items():
        print(f"  {count:>6} waiting {micros:9.1f} µs")
    for count in COST_PROGRAMS:
        outcome = scenarios.run("ours", programs.herd(1, count), 1)
        mean = outcome.decision_secs / outcome.decisions * 1e6
        print(f"  herd of {count:>5}  {mean:9.1f} µs, at most {outcome.most_waiting} waiting")
    return marks.decision_marks(cost)


_HEAD = (
    "  policy         mean JCT      p95      p99  slowdown     max   quiet  q. p95 chat p95    429s"
    "  wasted Mt  makespan  Jain   µs"
)


def _line(name: str, f: Figures) -> str:
    return (
        f"  {name:<14}{f.mean:9.1f}{f.p95:9.1f}{f.p99:9.1f}{f.slow_mean:10.2f}{f.slow_max:8.1f}{f.quiet_mean:8.2f}"
        f"{f.quiet_p95:8.2f}{f.chat_p95:9.1f}{f.refusals:8.1f}{f.wasted / 1e6:11.2f}{f.makespan:10.0f}{f.jain:6.2f}"
        f"{f.decision_us:5.0f}"
    )


def _write(path: Path, seeds: list[int], table: marks.Table, goals: list[Goal]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    facts = {
        "seeds": seeds,
        "rows": [{"scenario": where, "policy": name, **vars(row)} for (where, name), row in table.items()],
        "marks": [vars(goal) | {"met": goal.met} for goal in goals],
    }
    path.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
