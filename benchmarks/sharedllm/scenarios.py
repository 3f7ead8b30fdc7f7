"""The scenarios A to F, each under every policy, averaged over seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.sharedllm import programs
from benchmarks.sharedllm.engine import EndPoint, Engine, Outcome
from benchmarks.sharedllm.metrics import Figures, averaged, figures
from benchmarks.sharedllm.policies import BASELINES, OURS, policy
from benchmarks.sharedllm.programs import Program

Make = Callable[[int], list[Program]]


def _calm(seed: int) -> list[Program]:
    return programs.hurried(seed, marked=False)


SCENARIOS: dict[str, Make] = {
    "A 0.7": lambda seed: programs.under_load(seed, 0.7),
    "A 0.9": lambda seed: programs.under_load(seed, 0.9),
    "A 1.1": lambda seed: programs.under_load(seed, 1.1),
    "B noisy": programs.beside_noise,
    "C herd": programs.herd,
    "E kill": programs.mortal,
    "F deadline": programs.hurried,
    "F unmarked": _calm,  # the same programs, none of them in a hurry
}
POLICIES = BASELINES + OURS


@dataclass
class Row:
    scenario: str
    policy: str
    figures: Figures


def run(name: str, made: list[Program], seed: int) -> Outcome:
    end_point = EndPoint()
    outcome = Engine(made, policy(name, seed, end_point), end_point).run()
    over = len(outcome.done) + len(outcome.killed) + len(outcome.missed)
    if over != len(made):
        raise RuntimeError(f"{name}, seed {seed}: {len(made) - over} programs never ended")
    return outcome


def row(scenario: str, name: str, seeds: Sequence[int]) -> Row:
    runs: list[Figures] = []
    for seed in seeds:
        made = SCENARIOS[scenario](seed)
        runs.append(figures(made, run(name, made, seed)))
    return Row(scenario, name, averaged(runs))
