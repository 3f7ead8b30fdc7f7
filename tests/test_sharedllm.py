"""The benchmark of the shared key, small: that it runs the product, repeats itself, and that its bound bounds."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.sharedllm import capped, programs, scenarios
from benchmarks.sharedllm.metrics import Figures, figures, lower_bound


def ran(name: str, made: list[programs.Program], seed: int = 1) -> Figures:
    return figures(made, scenarios.run(name, made, seed))


@pytest.mark.parametrize("name", scenarios.POLICIES)
def test_every_policy_serves_all_programs_and_none_beats_the_bound(name: str):
    made = programs.under_load(4, 1.1, 40)
    assert ran(name, made).mean >= lower_bound(made)


def test_a_run_repeats_itself():
    first, second = (ran("ours_learned", programs.herd(2, 40)) for _ in range(2))
    assert (first.mean, first.p99, first.refusals) == (second.mean, second.p99, second.refusals)


def test_told_what_the_key_allows_nothing_is_refused_and_learning_it_costs_little():
    told, learned = (ran(name, programs.herd(3, 50)) for name in scenarios.OURS)
    assert told.refusals == 0
    assert learned.refusals <= 10
    assert learned.mean <= 1.05 * told.mean


def test_clients_that_retry_are_refused_and_slices_pay_again():
    assert ran("naive", programs.herd(3, 50)).refusals > 100
    assert ran("rr_text", programs.herd(3, 40)).wasted > 1_000_000
    assert ran("rr_ideal", programs.herd(3, 40)).wasted == 0


def test_no_call_of_a_killed_program_is_sent():
    made = programs.mortal(5)
    outcome = scenarios.run("ours", made, 5)
    assert len(outcome.killed) == sum(one.dies_at is not None for one in made) == 40
    assert outcome.sent_after_kill == 0


def test_deadlines_are_met_at_more_load_than_there_is_room():
    assert ran("ours", programs.hurried(2)).hits >= 0.95


def test_an_agent_that_loops_for_ever_uses_no_more_than_its_cap_and_an_estimates_error():
    for seed in range(20):
        spent = capped.loop_under_cap(seed)
        assert spent.over <= spent.error
        assert spent.used > 0.95 * capped.CAP
