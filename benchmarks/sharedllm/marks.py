"""The pass marks, each met or missed, from the averages over seeds. The bounds are the specification's."""

from benchmarks.measure import Goal
from benchmarks.sharedllm.capped import Spent
from benchmarks.sharedllm.metrics import Figures

Table = dict[tuple[str, str], Figures]  # by scenario and policy
LOADS = ("A 0.7", "A 0.9", "A 1.1")
SHARED = (*LOADS, "B noisy", "C herd")


def marks(table: Table) -> list[Goal]:
    """Those whose rows are there."""
    goals: list[Goal] = []
    for scenario in SHARED:
        if (scenario, "ours") in table:
            goals += _of_scenario(table, scenario)
    if ("E kill", "ours") in table:
        goals.append(Goal("E calls sent after the kill", table["E kill", "ours"].after_kill, "≤", 0, ""))
    ours, srpt, calm = (
        table.get(row) for row in (("F deadline", "ours"), ("F deadline", "srpt"), ("F unmarked", "ours"))
    )
    if ours and srpt:
        goals.append(Goal("F deadlines met / srpt's", ours.hits / max(1e-9, srpt.hits), "≥", 0.95, "×"))
    if ours and calm:
        goals.append(Goal("F others' mean JCT / without F", ours.others_mean / calm.others_mean, "≤", 1.05, "×"))
    return goals


def _of_scenario(table: Table, scenario: str) -> list[Goal]:
    ours = table[scenario, "ours"]
    goals = [Goal(f"{scenario} 429s, told", ours.refusals, "≤", 0, "")]
    if learned := table.get((scenario, "ours_learned")):
        goals.append(Goal(f"{scenario} 429s, learned", learned.refusals, "≤", 10, ""))
        goals.append(Goal(f"{scenario} mean JCT, learned / told", learned.mean / ours.mean, "≤", 1.05, "×"))
    if naive := table.get((scenario, "naive")):
        goals.append(Goal(f"{scenario} mean JCT / naive", ours.mean / naive.mean, "≤", 1, "×"))
    if (srpt := table.get((scenario, "srpt"))) and scenario in LOADS:
        goals.append(Goal(f"{scenario} mean JCT / srpt", ours.mean / srpt.mean, "≤", 1.15, "×"))
    if scenario == "B noisy":
        goals.append(Goal("B quiet tenants, mean slowdown", ours.quiet_mean, "≤", 1.2, "×"))
    if fifo := table.get((scenario, "fifo")):
        if better := {"B noisy": 1.15, "C herd": 1.5}.get(scenario):
            goals.append(Goal(f"{scenario} fifo's mean JCT / ours", fifo.mean / ours.mean, "≥", better, "×"))
        if scenario == "A 1.1":
            goals.append(Goal("A 1.1 max slowdown / fifo's", ours.slow_max / fifo.slow_max, "≤", 0.5, "×"))
        goals.append(Goal(f"{scenario} makespan / fifo's", ours.makespan / fifo.makespan, "≤", 1.02, "×"))
    return goals


def budget_mark(spent: list[Spent]) -> Goal:
    beyond = max(one.over - one.error for one in spent)
    return Goal("D used beyond the cap, less the estimate's error", beyond, "≤", 0, "tokens")


def decision_marks(cost: dict[int, float]) -> list[Goal]:
    bounds = {1_000: 50.0, 10_000: 150.0}
    return [Goal(f"decision with {n} waiting", cost[n], "≤", bound, "µs") for n, bound in bounds.items() if n in cost]
