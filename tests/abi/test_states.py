"""The states of one incarnation: exactly the moves of the table, and how they are printed."""

from itertools import pairwise

import pytest

from agent_os.abi.errors import EBUSY
from agent_os.abi.states import Incarnation, moved, printed

S = Incarnation
ALLOWED = {
    (S.STARTING, S.RUNNING),
    (S.STARTING, S.STOPPING),
    (S.STARTING, S.EXITED),
    (S.RUNNING, S.SUSPENDED),
    (S.RUNNING, S.STOPPING),
    (S.RUNNING, S.EXITED),
    (S.SUSPENDED, S.RUNNING),
    (S.SUSPENDED, S.STOPPING),
    (S.SUSPENDED, S.EXITED),
    (S.STOPPING, S.EXITED),
}


def test_a_whole_life_passes() -> None:
    """S-33."""
    for old, new in pairwise((S.STARTING, S.RUNNING, S.STOPPING, S.EXITED)):
        assert moved(old, new) is new


@pytest.mark.parametrize("old", S)
@pytest.mark.parametrize("new", S)
def test_exactly_the_moves_of_the_table_are_there(old: Incarnation, new: Incarnation) -> None:
    """S-38, S-34."""
    if (old, new) in ALLOWED:
        assert moved(old, new) is new
        return
    with pytest.raises(EBUSY, match=f"{old} cannot become {new}") as refused:
        moved(old, new)
    assert refused.value.code == "state"


def test_states_are_printed_in_lower_case_and_an_end_with_its_code() -> None:
    """S-37."""
    assert [printed(one) for one in S] == ["starting", "running", "suspended", "stopping", "exited"]
    assert [printed(S.EXITED, code) for code in (0, 42, -1, -9)] == [
        "exited(0)",
        "exited(42)",
        "exited(-1)",
        "exited(-9)",
    ]
    assert printed(S.RUNNING, 3) == "running"
