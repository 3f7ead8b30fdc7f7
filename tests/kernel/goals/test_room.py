"""What a round of starts may take."""

from agent_os.kernel.goals.goal import Goal, Waiting
from agent_os.kernel.goals.room import NONE, RESERVE_SECS, Allotment, Facts, Room, Turn, Wanted, Work, note_passed


def waiting(name: str, mb: int = 10, agent: str = "") -> Waiting:
    return Waiting(name, 1, Goal("do it", tenant="t"), agent or f"t/{name}", "named", "normal", 0.0, mb)


def allotment(
    whole: Room, goals: list[Waiting], facts: Facts | None = None, *work: Work, now: float = 0.0
) -> Allotment:
    wanted = Wanted({one.agent for one in goals}, min(one.memory_mb for one in goals))
    return Allotment(whole, work, facts or Facts(), wanted, now)


def lacks(round: Allotment, goals: list[Waiting]) -> list[str]:
    return [round.turn(one).waiting_for for one in goals]


def test_room_is_used_to_the_last_and_not_beyond() -> None:
    goals = [waiting("a", 60), waiting("b", 41), waiting("c", 40), waiting("d", 1)]
    round = allotment(Room(9, 100), goals)
    assert lacks(round, goals) == ["", "memory", "", "memory"]


def test_goals_at_work_and_other_agents_hold_theirs() -> None:
    goals = [waiting("a"), waiting("b")]
    at_work = Work(waiting("w"), Room(1, 50))
    assert lacks(allotment(Room(3, 100), goals, Facts(held=Room(1, 0)), at_work), goals) == ["", "slots"]
    assert lacks(allotment(Room(9, 100), goals, Facts(held=Room(1, 41)), at_work), goals) == ["memory", "memory"]


def test_a_round_is_over_when_nothing_can_start_any_more_and_not_before() -> None:
    goals = [waiting("a", 60), waiting("b", 50), waiting("c", 50)]
    round = allotment(Room(9, 100), goals)
    assert not round.over
    round.turn(goals[0])
    assert round.over, "the smallest does not fit"
    assert allotment(Room(1, 100), goals, Facts(held=Room(1, 0))).over
    alive = Facts(held=Room(1, 0), live=frozenset({"t/b"}))
    assert not allotment(Room(1, 100), goals, alive).over, "one that lives needs no room"
    sleepy = Facts(held=Room(1, 0), live=frozenset({"t/b"}), unready=frozenset({"t/b"}))
    assert allotment(Room(1, 100), goals, sleepy).over


def test_an_agent_that_was_just_started_takes_more_if_it_can() -> None:
    goals = [waiting("a", agent="t/x"), waiting("b", agent="t/x"), waiting("c", agent="t/x")]
    round = allotment(Room(1, 100), goals, Facts(at_once={"t/x": 2}))
    assert round.turn(goals[0]) == Turn(goals[0], "", Room(1, 10))
    assert not round.over
    assert round.turn(goals[1]) == Turn(goals[1], "", NONE)
    assert round.over
    assert round.turn(goals[2]).waiting_for == "agent"


def test_whoever_was_passed_for_a_minute_keeps_the_room_from_those_behind() -> None:
    big, small = waiting("big", 90), waiting("small", 10)
    at_work = Work(waiting("w"), Room(1, 50))
    big.passed_since = 0.0
    early = allotment(Room(9, 100), [big, small], None, at_work, now=RESERVE_SECS - 1)
    assert lacks(early, [big, small]) == ["memory", ""]
    late = allotment(Room(9, 100), [big, small], None, at_work, now=RESERVE_SECS)
    assert lacks(late, [big, small]) == ["memory", "turn"]
    assert late.over


def test_room_is_kept_for_nobody_whom_it_would_not_help() -> None:
    big, small = waiting("big", 90), waiting("small", 10)
    big.passed_since = 0.0
    round = allotment(Room(9, 100), [big, small], Facts(held=Room(0, 20)), now=1e6)
    assert lacks(round, [big, small]) == ["memory", ""]


def test_passed_is_who_stood_before_one_that_took_room() -> None:
    first, second, third, fourth = (waiting(name) for name in "abcd")
    taken = Turn(second, "", Room(1, 10))
    note_passed([Turn(first, "memory"), taken, Turn(third, "memory"), Turn(fourth, "", NONE)], 7.0)
    assert (first.passed_since, third.passed_since) == (7.0, None)
    note_passed([Turn(first, "memory"), taken], 99.0)
    assert first.passed_since == 7.0
    note_passed([Turn(third, "budget"), taken], 9.0)
    assert third.passed_since is None, "room would not have helped"


def test_a_round_is_over_when_nobody_who_is_waited_for_takes_another() -> None:
    goals = [waiting("a", agent="t/x"), waiting("b", agent="t/x"), waiting("c", agent="t/y")]
    busy = Facts(live=frozenset({"t/x"}), at_once={"t/x": 0}, unready=frozenset({"t/y"}))
    assert allotment(Room(9, 1000), goals, busy).over, "there is room, and nobody to use it"
    idle = Facts(live=frozenset({"t/x"}), at_once={"t/x": 0})
    round = allotment(Room(9, 1000), goals, idle)
    assert not round.over, "one without a process can have one"
    assert round.turn(goals[2]) == Turn(goals[2], "", Room(1, 10))
    assert round.over
