import random

import pytest

from agent_os.kernel.models.call import Call
from agent_os.kernel.models.lines import SLACK, Lines
from agent_os.kernel.models.sizes import Sizes
from kernel.models.calls import call

NORMAL = 2


def lines(*calls: Call, sizes: Sizes | None = None, weights: dict[str, float] | None = None) -> Lines:
    found = Lines(sizes or Sizes(), weights or {})
    for number, each in enumerate(calls):
        each.seq = number
        found.add(each, each.arrived)
    return found


def aged(prompt: int, arrived: float, **facts: str) -> Call:
    one = call(prompt, **facts)  # type: ignore[arg-type]
    one.arrived = arrived
    return one


def drained(one: Lines, now: float) -> list[Call]:
    found: list[Call] = []
    while len(one):
        found.append(one.first(one.waiting()[0], now))
        one.remove(found[-1])
    return found


def test_what_has_least_to_come_goes_first():
    a, b, c = call(300), call(100), call(200)
    assert drained(lines(a, b, c), 0.0) == [b, c, a]


def test_among_equals_the_one_that_came_first():
    calls = [call(100) for _ in range(5)]
    assert drained(lines(*calls), 0.0) == calls


def test_a_short_program_goes_before_a_long_one_with_a_smaller_prompt():
    sizes = Sizes()
    for type, count in (("chat@1", 3), ("coder@1", 30)):
        for number in range(count):
            sizes.sent(f"{type}.{number}", type, 100)
        for _ in range(count):
            sizes.sent(type, type, 100)
        sizes.finished(type, type)
    chat, coder = call(900, type="chat@1"), call(400, type="coder@1")
    assert drained(lines(coder, chat, sizes=sizes), 0.0) == [chat, coder]


def test_a_tenant_that_is_ahead_steps_back_and_weights_say_what_ahead_is():
    for weights, first in (({}, "quiet"), ({"loud": 100.0}, "loud")):
        quiet, loud = call(1_500, tenant="quiet"), call(1_000, tenant="loud")
        one = lines(quiet, loud, weights=weights)
        one.shares.served("loud", int(3 * SLACK))
        assert one.first(NORMAL, 0.0).tenant == first


def test_inside_its_slack_a_tenant_is_not_held_back():
    quiet, loud = call(1_500, tenant="quiet"), call(1_000, tenant="loud")
    one = lines(quiet, loud)
    one.shares.served("loud", int(SLACK))
    assert one.first(NORMAL, 0.0) is loud


def test_who_was_away_does_not_come_back_with_credit():
    one = lines(call(1_000, tenant="here"))
    one.shares.served("here", 10_000_000)
    late = call(1_000, tenant="new")
    one.add(late, 0.0)
    one.shares.served("new", int(SLACK * 1.5))
    assert one.shares.ahead("new", one.shares.least(0.0)) == pytest.approx(SLACK / 2)


def test_whoever_waited_long_goes_before_smaller_work():
    old, small = aged(1_000, 0.0), aged(100, 560.0)
    assert drained(lines(old, small), 569.0) == [old, small]  # a twentieth of 1,000 is less than 100
    old, small = aged(1_000, 0.0), aged(100, 200.0)
    assert drained(lines(old, small), 210.0) == [small, old]


def test_what_has_the_least_age_is_ordered_among_itself():
    calls = [aged(size, moment) for size, moment in ((300, 0.0), (100, 40.0), (200, 90.0))]
    assert [each.prompt for each in drained(lines(*calls), 10_000.0)] == [100, 200, 300]


def test_a_program_that_has_made_progress_moves_up():
    sizes = Sizes()
    for number in range(3):
        for _ in range(10):
            sizes.sent(f"p{number}", "t@1", 100)
        sizes.finished(f"p{number}", "t@1")
    ahead, fresh = call(120, program="ahead", type="t@1"), call(100, program="fresh", type="t@1")
    one = lines(ahead, fresh, sizes=sizes)
    assert one.first(NORMAL, 0.0) is fresh
    for _ in range(8):
        sizes.sent("ahead", "t@1", 100)
    one.progressed("ahead", 0.0)
    assert one.first(NORMAL, 0.0) is ahead


def test_what_is_learned_of_a_type_changes_the_order_of_those_that_wait():
    sizes = Sizes()
    long, short = call(100, type="long@1"), call(150, type="short@1")
    one = lines(long, short, sizes=sizes)
    assert one.first(NORMAL, 0.0) is long
    for type, count in (("long@1", 50), ("short@1", 2)):
        for _ in range(count):
            sizes.sent(type, type, 100)
        sizes.finished(type, type)
        one.learned(type, 0.0)
    assert one.first(NORMAL, 0.0) is short


def test_with_many_tenants_the_choice_is_that_of_a_look_at_all():
    """As long as nothing changed for a second; until then it may be a little old."""
    rng = random.Random(3)
    calls = [aged(rng.randint(1, 10**6), 0.0, tenant=f"t{number % 300}") for number in range(2_000)]
    one = lines(*calls)
    for number in range(40):
        now = 2.0 * number
        chosen = one.first(NORMAL, now)
        assert chosen is one.in_order(now)[0]
        one.remove(chosen)


def test_a_new_arrival_is_seen_at_once_whatever_the_number_of_tenants():
    one = lines(*(aged(1_000, 0.0, tenant=f"t{number}") for number in range(300)))
    one.first(NORMAL, 0.0)
    tiny = aged(1, 0.1, tenant="late")
    one.add(tiny, 0.1)
    assert one.first(NORMAL, 0.1) is tiny


def test_calls_that_were_moved_and_scored_often_are_not_served_from_an_old_place():
    sizes = Sizes()
    one = lines(*(call(100 + number, program=f"p{number}") for number in range(20)), sizes=sizes)
    for number in range(2_000):
        one.progressed(f"p{number % 20}", float(number % 7))
    assert [each.prompt for each in drained(one, 7.0)] == [100 + number for number in range(20)]


def test_entries_of_calls_that_were_scored_anew_do_not_pile_up():
    sizes = Sizes()
    hurried = [call(100 + number, program=f"p{number}", deadline=500.0) for number in range(20)]
    for each in hurried:
        each.due = each.deadline
    one = lines(*hurried, sizes=sizes)
    for number in range(5_000):
        one.progressed(f"p{number % 20}", 1.0)
    (lane,) = vars(one)["_classes"][NORMAL].values()
    assert len(lane.due) < 200
    assert sum(len(heap) for heap in lane.cohorts.values()) < 200
    assert len(drained(one, 1.0)) == 20
