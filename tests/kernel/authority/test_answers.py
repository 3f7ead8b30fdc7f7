"""The states of an approval are a table, and who may answer is decided in one place."""

import pwd
from dataclasses import dataclass
from itertools import product

import pytest

from agent_os.abi.errors import EAPPROVAL, ECONFLICT, EINVAL, EPERM
from agent_os.kernel.authority.answers import (
    NEXT,
    Approval,
    State,
    moved,
    names_of,
    news,
    outcome,
    require_may_decide,
    require_offered,
    require_pending,
    still_waiting,
)


@dataclass(frozen=True)
class Somebody:
    id: str
    operator: bool = True


def approval(**changes: object) -> Approval:
    facts: dict[str, object] = {
        **{"id": "q-1", "digest": "d", "agent": "default/a", "program": "p", "guest": False, "op": 5, "wants": "x"},
        **{"args": {}, "origins": {}, "capability": "c", "classes": [], "rules": ["r"], "reasons": ["why"]},
        **{"approvers": [], "scopes": ["once"], "created_seq": 1, "created_ns": 0, "deadline_ns": 1, **changes},
    }
    return Approval(**facts)  # pyright: ignore[reportArgumentType]


ALLOWED = {
    ("pending", "approved"),
    ("pending", "refused"),
    ("pending", "expired"),
    ("pending", "cancelled"),
    ("approved", "used"),
    ("approved", "void"),
}


@pytest.mark.parametrize(("before", "after"), list(product(State, State)))
def test_only_the_moves_of_the_table_happen(before: State, after: State) -> None:
    if (before, after) in ALLOWED:
        assert moved(approval(state=before), after) is after
    else:
        with pytest.raises(ECONFLICT):
            moved(approval(state=before), after)


def test_all_other_states_are_final() -> None:
    assert set(NEXT) == {State.PENDING, State.APPROVED}


def known(person: str) -> frozenset[str]:
    return frozenset({person, {"local:1": "user:anna", "local:2": "user:bob"}.get(person, "")})


@pytest.mark.parametrize(
    ("approvers", "person", "may"),
    [
        ([], Somebody("local:1"), True),
        ([], Somebody("default/a", operator=False), False),
        ([["user:anna"]], Somebody("local:1"), True),
        ([["user:anna"]], Somebody("local:2"), False),
        ([["local:2"]], Somebody("local:2"), True),
        ([["user:anna", "user:bob"], ["user:bob"]], Somebody("local:2"), True),
        ([["user:anna"], ["user:bob"]], Somebody("local:1"), False),
        ([["user:anna"]], Somebody("user:anna", operator=False), False),  # a name is not a person
    ],
)
def test_who_may_decide(approvers: list[list[str]], person: Somebody, may: bool) -> None:
    one = approval(approvers=approvers)
    if may:
        require_may_decide(one, person, known)
    else:
        with pytest.raises(EPERM):
            require_may_decide(one, person, known)


def test_over_an_expired_question_nobody_is_sent_to_somebody_else() -> None:
    late = approval(state=State.EXPIRED, approvers=[["user:anna"]])
    require_may_decide(late, Somebody("local:1"), names_of)
    with pytest.raises(EAPPROVAL, match="expired"):
        require_pending(late, "d")


def test_whoever_looks_on_hears_what_it_waits_for_and_that_nobody_answered() -> None:
    assert news(approval(wants="tool.call pay")) == "waits for you: tool.call pay   agentctl approve q-1"
    assert len(news(approval(wants=99 * "y"))) < 90
    assert news(approval(state=State.EXPIRED)) == "q-1 expired: nobody answered in time"
    assert news(approval(state=State.APPROVED)) == ""


def test_the_operator_of_this_machine_is_known_by_uid_and_by_name() -> None:
    somebody = pwd.getpwall()[0]
    assert names_of(f"local:{somebody.pw_uid}") == {f"local:{somebody.pw_uid}", f"user:{somebody.pw_name}"}
    assert names_of("local:4000000000") == {"local:4000000000"}
    assert names_of("default/user:anna") == {"default/user:anna"}
    assert names_of("local:anna") == {"local:anna"}


def test_an_answer_must_be_to_what_was_shown_and_still_open() -> None:
    require_pending(approval(), "d")
    with pytest.raises(ECONFLICT, match="something else"):
        require_pending(approval(), "another digest")
    with pytest.raises(EAPPROVAL, match="expired") as caught:
        require_pending(approval(state=State.EXPIRED), "d")
    assert caught.value.detail["outcome"] == "expired"
    with pytest.raises(ECONFLICT, match="approved by local:1 already"):
        require_pending(approval(state=State.APPROVED, decided_by="local:1"), "d")


def test_always_is_not_offered_for_guests() -> None:
    require_offered(approval(), "once")
    with pytest.raises(EINVAL, match="guest"):
        require_offered(approval(guest=True), "always")
    with pytest.raises(EINVAL):
        require_offered(approval(), "session")


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (State.REFUSED, "refused"),
        (State.EXPIRED, "expired"),
        (State.CANCELLED, "cancelled"),
        (State.VOID, "cancelled"),
        (State.USED, "cancelled"),
    ],
)
def test_an_expiry_is_never_told_as_a_persons_refusal(state: State, word: str) -> None:
    error = outcome(approval(state=state, note="because"))
    assert error.detail["outcome"] == word
    assert error.code == f"approval.{word}"
    assert not error.retryable
    assert ("person" in error.reason) is (state is State.REFUSED)
    assert error.reason.endswith("because")


def test_a_call_without_time_left_may_come_again() -> None:
    error = still_waiting(approval())
    assert error.retryable
    assert error.detail["approval"] == "q-1"
