"""A goal finds its agent by words, and says why."""

import pytest

from agent_os.abi.errors import ENOENT, ESRCH
from agent_os.kernel.goals.goal import Goal
from agent_os.kernel.goals.matching import Candidate, pick, words

WRITER = Candidate("default/writer", skills=("write reports", "summarise"))
ANALYST = Candidate("default/analyst", {"team": "sales"}, ("analyse", "reports", "sales figures"))
LOADED = Candidate("default/a-loaded", {"team": "sales"}, ("analyse", "reports", "sales figures"), load=3)
FOREIGN = Candidate("lab/analyst", skills=("analyse", "sales", "figures", "reports", "yearly"))
ALL = [LOADED, WRITER, FOREIGN, ANALYST]


def test_the_agent_with_most_equal_words_is_picked_and_the_words_are_told() -> None:
    choice = pick(Goal("Summarise the REPORTS, please write!"), ALL)
    assert choice == (WRITER, "matches reports, summarise, write")


def test_among_equals_the_least_loaded_is_picked() -> None:
    choice = pick(Goal("Analyse the sales figures"), ALL)
    assert choice == (ANALYST, "matches analyse, figures, sales; least loaded of 2 (0)")


def test_among_equals_in_everything_the_order_of_the_list_does_not_matter() -> None:
    twins = [Candidate(f"default/{name}", skills=("dig",)) for name in "cab"]
    assert pick(Goal("dig"), twins).candidate.id == pick(Goal("dig"), twins[::-1]).candidate.id == "default/a"


def test_a_word_said_often_counts_once() -> None:
    shouter = Candidate("default/shouter", skills=("dig dig dig", "DIG"))
    digger = Candidate("default/digger", skills=("dig", "hole"))
    assert pick(Goal("dig dig dig a hole"), [shouter, digger]).candidate is digger


def test_labels_match_with_key_and_value() -> None:
    labelled = Candidate("default/l", {"language": "python"})
    assert pick(Goal("some Python"), [labelled, WRITER]).candidate is labelled
    assert pick(Goal("which LANGUAGE is this"), [labelled, WRITER]).candidate is labelled


def test_agents_of_other_tenants_and_agents_that_are_not_ready_are_not_picked() -> None:
    busy = Candidate("default/ready-never", skills=("yearly", "analyse"), ready=False)
    assert pick(Goal("Analyse yearly"), [FOREIGN, busy, ANALYST]).candidate is ANALYST


def test_nobody_matches_and_the_choices_are_listed() -> None:
    with pytest.raises(ENOENT) as caught:
        pick(Goal("Bake a cake"), ALL)
    assert caught.value.detail["choices"] == ["default/a-loaded", "default/analyst", "default/writer"]
    assert "writer (reports, summarise, write)" in caught.value.reason
    assert "yearly" not in caught.value.reason, "what other tenants have is not told"


def test_nobody_is_there_at_all() -> None:
    with pytest.raises(ENOENT) as caught:
        pick(Goal("Bake", tenant="empty"), ALL)
    assert "no agent of empty is ready" in caught.value.reason


@pytest.mark.parametrize(
    ("name", "tenant", "found"),
    [
        ("writer", "default", "default/writer"),
        ("analyst", "lab", "lab/analyst"),
        ("default/writer", "lab", "default/writer"),
        ("clock", "lab", "system/clock"),
    ],
)
def test_a_named_agent_is_taken_whatever_the_goal_says(name: str, tenant: str, found: str) -> None:
    clock = Candidate("system/clock", ready=False)
    choice = pick(Goal("Bake a cake", agent=name, tenant=tenant), [*ALL, clock])
    assert (choice.candidate.id, choice.picked_by) == (found, "named")


def test_a_name_that_nobody_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ESRCH) as caught:
        pick(Goal("x", agent="writter"), ALL)
    assert caught.value.hint == "did you mean writer?"


def test_the_nearest_name_is_never_one_of_another_tenant() -> None:
    with pytest.raises(ESRCH) as caught:
        pick(Goal("x", agent="secret-projec"), [Candidate("lab/secret-project")])
    assert "secret-project" not in caught.value.hint


def test_words_are_folded_and_cut_at_everything_that_is_no_letter_or_digit() -> None:
    assert words("Straße, data_base; GPT-4 …") == {"strasse", "data", "base", "gpt", "4"}
