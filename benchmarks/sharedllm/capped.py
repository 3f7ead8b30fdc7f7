"""Scenario D: one agent loops for ever under a cap, with the kernel's ledger and its estimates.

How many bytes a token has differs from call to call, and the estimate learns only the mean. What the agent used beyond
its cap may be no more than what the last estimate was wrong by.
"""

import random
from dataclasses import dataclass

from benchmarks.sharedllm.programs import MAX_OUTPUT

from agent_os.abi.errors import EBUDGET
from agent_os.abi.models import LEAST_OUTPUT
from agent_os.kernel.authority.budget import Ledger
from agent_os.kernel.models.estimate import BYTES_PER_TOKEN, Estimates

CAP = 1_000_000  # tokens


@dataclass
class Spent:
    calls: int
    used: int
    over: int  # beyond the cap
    error: int  # the largest that an estimate of a prompt was too low by


def loop_under_cap(seed: int) -> Spent:
    rng = random.Random(seed)
    ledger, estimates = Ledger(), Estimates()
    ledger.open("agent", limits={"tokens": CAP})
    spent = Spent(0, 0, 0, 0)
    while (allowed := _reserve(ledger, estimates, bytes_ := rng.randint(2_000, 60_000))) is not None:
        held, estimate, most = allowed
        prompt = int(bytes_ / rng.uniform(2.2, 4.8))
        output = min(most, int(rng.expovariate(1 / 400)) + 20)
        ledger.settle(held, {"tokens": prompt + output})
        estimates.reported("model", bytes_ // BYTES_PER_TOKEN, prompt)
        spent.calls += 1
        spent.used += prompt + output
        spent.error = max(spent.error, prompt - estimate)
    spent.over = max(0, spent.used - CAP)
    return spent


def _reserve(ledger: Ledger, estimates: Estimates, bytes_: int):
    """The reservation, what the prompt was thought to be, and the output that fits; None: the budget is used up."""
    estimate = estimates.estimate("model", bytes_ // BYTES_PER_TOKEN)
    most = min(MAX_OUTPUT, ledger.room("agent", "tokens") - estimate)
    if most < LEAST_OUTPUT:
        return None
    try:
        return ledger.reserve("agent", {"tokens": estimate + most}), estimate, most
    except EBUDGET:
        return None
