"""Every goal is in exactly one place, whatever moves it makes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_os.abi.errors import ESRCH
from agent_os.kernel.goals.goal import Goal
from agent_os.kernel.goals.kept import Kept, State
from agent_os.kernel.goals.scheduler import Book

STATES: list[State] = ["waiting", "working", "done", "failed", "late", "withdrawn"]


def kept(number: int, state: State = "waiting", agent: str = "t/a") -> Kept:
    facts = {"picked_by": "named", "priority": "normal", "submitted_at": 0.0, "memory_mb": 1, "by": "x"}
    return Kept(id=f"g-{number}", seq=number, goal=Goal("do it"), agent=agent, state=state, **facts)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([*STATES, "dropped"]))))
def test_a_goal_is_where_its_state_says_and_nowhere_else(moves: list[tuple[int, State]]) -> None:
    goals = [kept(number, agent=f"t/{number % 2}") for number in range(6)]
    book, expected = Book(), dict[str, State]()
    for number, state in moves:
        one = goals[number]
        if state not in STATES:
            book.drop(one)
            expected.pop(one.id, None)
            continue
        one.state = expected[one.id] = state
        book.move(one)
    for place, states in (("waiting", ["waiting"]), ("working", ["working"]), ("ended", STATES[2:])):
        found = {one.id for one in getattr(book, place)()}
        assert found == {name for name, state in expected.items() if state in states}
    for agent in ("t/0", "t/1"):
        assert all(one.agent == agent and one.state == "working" for one in book.of(agent))
    assert len(book.of("t/0")) + len(book.of("t/1")) == len(book.working())


def test_a_goal_that_nobody_knows_is_an_error_that_says_where_to_look() -> None:
    with pytest.raises(ESRCH, match="no goal 'g-7'") as unknown:
        Book([kept(1)]).find("g-7")
    assert "agentctl queue" in str(unknown.value.hint)
