"""What lasts of an agent: its states as a table of moves, and its counters."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from agent_os.abi.errors import EBUSY
from agent_os.abi.states import AgentState
from agent_os.kernel.supervisor import record as moves
from agent_os.kernel.supervisor.decide import Act, Decision
from agent_os.kernel.supervisor.record import Record
from agent_os.kernel.supervisor.terms import ROOT, State, Supervision

NOW = 1000.0
NEW = Record("default/a", "system/root", 3)
Move = Callable[[Record], Record]


def be(state: State, **more: object) -> Record:
    return replace(NEW, state=state, incarnation=2, consecutive=3, **more)  # pyright: ignore[reportArgumentType]


PENDING, BLOCKED, ACTIVE, BACKOFF, STOPPED, COMPLETED, FAILED, QUARANTINED = State
GIVEN: dict[str, tuple[Move, dict[State, State]]] = {
    "begun": (moves.begun, {PENDING: ACTIVE, BLOCKED: ACTIVE, BACKOFF: ACTIVE}),
    "blocked": (lambda one: moves.blocked(one, "budget", 5.0), {PENDING: BLOCKED, BLOCKED: BLOCKED, BACKOFF: BLOCKED}),
    "failed": (lambda one: moves.failed(one, "dependency"), {PENDING: FAILED, BLOCKED: FAILED, BACKOFF: FAILED}),
    "to_stop": (
        moves.to_stop,
        {one: STOPPED if one in (PENDING, BLOCKED, BACKOFF) else one for one in State},
    ),
    "by_hand": (
        moves.by_hand,
        {one: ACTIVE if one is ACTIVE else PENDING for one in State if one is not QUARANTINED},
    ),
    "called": (
        moves.called,
        {PENDING: PENDING, BLOCKED: BLOCKED, ACTIVE: ACTIVE, BACKOFF: BACKOFF, COMPLETED: PENDING},
    ),
    "released": (moves.released, {QUARANTINED: STOPPED}),
}


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("state", State)
def test_exactly_these_moves_are_there(name: str, state: State) -> None:
    move, table = GIVEN[name]
    record = be(state)
    if state in table:
        assert move(record).state is table[state]
        return
    with pytest.raises(EBUSY, match="default/a is "):
        move(record)


def test_a_summons_starts_whom_nobody_has_started_yet_and_revives_nobody() -> None:
    assert moves.summoned(be(STOPPED, wanted=False, why=moves.MANUAL)).state is PENDING
    assert moves.summoned(be(COMPLETED)).state is PENDING
    with pytest.raises(EBUSY):
        moves.summoned(be(STOPPED, wanted=False))


ACTS = {
    Act.STOPPED: PENDING,
    Act.COMPLETE: COMPLETED,
    Act.FAIL: FAILED,
    Act.QUARANTINE: QUARANTINED,
    Act.BLOCK: BLOCKED,
    Act.START: PENDING,
    Act.RESTART: BACKOFF,
    Act.ESCALATE: PENDING,
}


@pytest.mark.parametrize("act", ACTS)
def test_each_decision_has_its_state_and_stores_the_count(act: Act) -> None:
    after = moves.after(be(ACTIVE), Decision(act, 4, "why", until=2000.0), NOW, 50.0)
    assert (after.state, after.consecutive, after.incarnation) == (ACTS[act], 4, 2)


def test_every_decision_is_in_that_table_and_late_news_change_nothing() -> None:
    assert set(ACTS) | {Act.IGNORE} == set(Act)
    assert moves.after(be(ACTIVE), Decision(Act.IGNORE, 9), NOW) == be(ACTIVE)


def test_no_two_lives_have_the_same_number() -> None:
    first = moves.begun(NEW)
    second = moves.begun(moves.after(first, Decision(Act.RESTART, 1), NOW))
    assert [NEW.incarnation, first.incarnation, second.incarnation] == [0, 1, 2]


def test_a_restart_is_noted_and_waits() -> None:
    after = moves.after(be(ACTIVE), Decision(Act.RESTART, 1, "error", delay_ms=100), NOW, 75.0)
    assert (after.last_restart, after.until) == (NOW, NOW + 0.075)


def test_who_was_asked_to_stop_stays_so_and_who_only_stepped_aside_comes_back() -> None:
    gone = Decision(Act.STOPPED, 3)
    assert moves.after(moves.to_stop(be(ACTIVE)), gone, NOW).state is STOPPED
    assert moves.after(be(ACTIVE), gone, NOW).state is PENDING
    with pytest.raises(EBUSY):
        moves.begun(moves.to_stop(be(PENDING)))


def test_a_start_by_hand_clears_the_counters_and_nothing_else_does() -> None:
    worn = be(FAILED, wanted=False, last_restart=5.0, restarts=(1.0, 2.0))
    fresh = moves.by_hand(worn)
    assert (fresh.consecutive, fresh.last_restart, fresh.restarts, fresh.wanted) == (0, None, (), True)
    assert fresh.incarnation == worn.incarnation
    for name in set(GIVEN) - {"by_hand"}:
        move, table = GIVEN[name]
        assert all(move(be(state)).consecutive == 3 for state in table)


def test_only_a_release_leads_out_of_quarantine_and_it_starts_nothing() -> None:
    held = moves.after(be(ACTIVE), Decision(Act.QUARANTINE, 3, "violation"), NOW)
    assert not held.to_revive
    with pytest.raises(EBUSY, match="quarantined: violation") as caught:
        moves.by_hand(held)
    assert caught.value.hint == "agentctl release a"
    free = moves.released(held)
    assert (free.state, free.to_revive) == (STOPPED, False)
    assert moves.by_hand(free).to_revive


def test_a_schedule_does_not_start_what_an_operator_stopped() -> None:
    for state in (STOPPED, COMPLETED):
        with pytest.raises(EBUSY):
            moves.called(moves.to_stop(be(state)))


@pytest.mark.parametrize("state", State)
def test_a_reconciler_revives_only_what_is_wanted_and_not_given_up(state: State) -> None:
    assert be(state).to_revive == (state in (PENDING, BLOCKED, ACTIVE, BACKOFF))
    assert not be(state, wanted=False).to_revive


def test_who_is_due_is_wanted_and_waits_for_no_time_and_nobody() -> None:
    due = {state for state in State if be(state, until=NOW).is_due(NOW)}
    assert due == {PENDING, BLOCKED, BACKOFF}
    assert be(PENDING).is_due(NOW)
    assert not be(PENDING, wanted=False).is_due(NOW)
    assert not be(BACKOFF, until=NOW + 0.1).is_due(NOW)
    assert not be(BLOCKED, why="approval").is_due(NOW)


def test_a_clock_that_was_set_back_does_not_make_a_back_off_last_for_a_year() -> None:
    waiting = moves.after(be(ACTIVE), Decision(Act.RESTART, 1), NOW, 100.0)
    assert not waiting.is_due(NOW)
    assert waiting.is_due(NOW - 3600)
    assert not be(BLOCKED, until=NOW, last_restart=NOW).is_due(NOW - 3600)


def test_the_five_words() -> None:
    seen = {state: be(state).seen for state in State}
    assert seen == {
        PENDING: AgentState.PENDING,
        BLOCKED: AgentState.PENDING,
        ACTIVE: AgentState.RUNNING,
        BACKOFF: AgentState.PENDING,
        STOPPED: AgentState.COMPLETED,
        COMPLETED: AgentState.COMPLETED,
        FAILED: AgentState.FAILED,
        QUARANTINED: AgentState.FAILED,
    }
    assert be(BLOCKED, why=moves.UNKNOWN).seen is AgentState.PAUSED


def test_states_are_printed_with_their_reason() -> None:
    assert str(be(BLOCKED, why="budget")) == "blocked(budget)"
    assert str(be(FAILED, why="max_restarts")) == "failed(max_restarts)"
    assert str(be(BACKOFF, why="error")) == "backoff"


def test_a_supervisor_keeps_the_restarts_of_its_children_until_it_gives_up() -> None:
    terms = Supervision(period_secs=60.0)
    one = moves.restarted_child(be(ACTIVE, restarts=(900.0, 990.0)), terms, NOW)
    assert one.restarts == (990.0, NOW)
    assert moves.escalated(one).restarts == ()
    assert moves.restarted_child(be(ACTIVE), ROOT, NOW).restarts == ()


def test_children_stand_in_the_order_of_their_first_start() -> None:
    listed = [replace(NEW, id=f"default/{number}", index=number) for number in (2, 0, 1)]
    assert [one.index for one in moves.in_order(listed)] == [0, 1, 2]


def test_a_record_is_read_as_it_was_stored() -> None:
    record = be(BACKOFF, why="error", until=NOW, last_restart=NOW, restarts=(1.0, 2.0))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Record) == record
