import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EAGAIN, EEXIST, EMSGSIZE, ETIMEDOUT
from agent_os.drivers.models import LimitSample
from agent_os.kernel.models.queue import Queue
from agent_os.kernel.models.sizes import Sizes
from agent_os.kernel.models.waits import Urgency
from kernel.models.calls import call, joined, leaving, queue, serial


def test_a_call_that_fits_leaves_at_once():
    one = queue()
    (only,) = joined(one, call())
    assert one.next(0.0) is only
    assert one.next(0.0) is None
    assert one.in_flight == 1


def test_the_first_in_order_waits_until_it_fits_and_nobody_smaller_slips_by():
    one = queue(capacity=10_000, rate=1_000)
    joined(one, call(9_000, max_output=0))
    assert leaving(one)
    large, small = joined(one, call(5_000, max_output=0), call(6_000, max_output=0))
    assert leaving(one) == []  # 1,000 are left
    assert one.wake(0.0) == pytest.approx(4.0)
    assert leaving(one, 4.0) == [large]
    assert leaving(one, 4.0) == []
    assert leaving(one, 10.0) == [small]


def test_smaller_work_overtakes_by_its_score():
    one = queue()
    joined(one, call(8_000, max_output=0))
    leaving(one)
    large, small = joined(one, call(7_000), call(500))
    assert leaving(one) == [small]
    assert large.id in {place.id for place in one.places(0.0)}


def test_no_more_calls_are_in_flight_than_there_are_slots():
    one = queue(slots=2)
    a, b, c = joined(one, call(10), call(20), call(30))
    assert leaving(one) == [a, b]
    assert one.wake(0.0) is None  # only an event helps
    one.finished(a.id, 10, 5, 1.0)
    assert leaving(one, 1.0) == [c]


def test_a_prompt_above_the_whole_limit_is_refused_at_once_with_both_numbers():
    with pytest.raises(EMSGSIZE) as refused:
        queue(capacity=10_000).join(call(10_001), 0.0)
    assert refused.value.code == "context"
    assert refused.value.detail == {"prompt": 10_001, "limit": 10_000}


def test_sixty_four_calls_of_an_agent_wait_and_no_more():
    one = queue(slots=0)
    joined(one, *(call(agent="a") for _ in range(64)))
    with pytest.raises(EAGAIN) as refused:
        one.join(call(agent="a"), 0.0)
    assert refused.value.retry_after_ms
    joined(one, call(agent="b"))


def test_ten_thousand_calls_wait_and_no_more():
    one = queue(slots=0)
    joined(one, *(call(1) for _ in range(10_000)))
    with pytest.raises(EAGAIN):
        one.join(call(1), 0.0)


def test_a_call_is_here_once():
    one = queue()
    (only,) = joined(one, call())
    with pytest.raises(EEXIST):
        one.join(only, 0.0)
    leaving(one)
    with pytest.raises(EEXIST):
        one.join(only, 0.0)


# Deadlines.


def test_a_call_whose_deadline_has_passed_is_never_sent():
    one = queue(slots=0)
    with pytest.raises(ETIMEDOUT):
        one.join(call(deadline=5.0), 5.0)
    (late,) = joined(one, call(deadline=5.0), now=1.0)
    assert one.wake(1.0) == 5.0
    assert one.late(4.9) == []
    assert one.late(5.0) == [late]
    one.slots.now = 1
    assert one.next(5.0) is None


def test_feasible_deadlines_go_earliest_first_before_everybody_else():
    one = queue(capacity=100_000)
    small, later, sooner = joined(one, call(10), call(5_000, deadline=90.0), call(6_000, deadline=60.0))
    assert leaving(one) == [sooner, later, small]


def test_a_deadline_that_cannot_be_met_gains_nothing():
    one = queue(slots=1)
    blind, small = joined(one, call(5_000, deadline=3.0), call(10))
    assert one.next(0.0) is small  # a call takes about five seconds
    assert blind.id in {place.id for place in one.places(0.0)}


def test_a_tenant_beyond_its_slack_gains_nothing_by_deadlines():
    one = queue(capacity=1_000_000, rate=1_000_000)
    for _ in range(4):
        joined(one, call(50_000, tenant="greedy", max_output=0))
        for each in leaving(one):
            one.finished(each.id, each.prompt, 0, 0.0)
    honest, hasty = joined(one, call(100, tenant="honest"), call(90, tenant="greedy", deadline=60.0))
    # Back from being away it is no worse than whoever waits; only what it takes from now on counts.
    assert leaving(one) == [hasty, honest]
    joined(
        one, call(100, tenant="honest", max_output=0), *(call(60_000, tenant="greedy", max_output=0) for _ in range(3))
    )
    one.slots.now = 0
    joined(one, call(100, tenant="honest"))
    one.slots.now = 32
    assert leaving(one)[0].tenant == "honest"


# Classes.


def test_a_better_class_goes_first():
    one = queue(capacity=100_000)
    calls = joined(one, *(call(10, priority=word) for word in ("low", "normal", "high", "critical")))
    assert leaving(one) == [*reversed(calls)]


def test_a_lower_class_that_waits_gets_a_tenth_of_the_tokens():
    one = queue(capacity=4_000, rate=1_000)
    served, now = {"high": 0, "normal": 0, "low": 0}, 0.0
    while now < 300.0:
        now += 0.25
        waiting = {place.priority for place in one.places(now)}
        for word in ("high", "low"):
            if word not in waiting:
                joined(one, call(900, priority=word, max_output=100), now=now)  # type: ignore[arg-type]
        for each in leaving(one, now):
            served[each.priority] += each.need
            one.finished(each.id, each.prompt, 100, now)
    assert served["low"] / sum(served.values()) == pytest.approx(0.1, abs=0.02)


def test_a_class_is_owed_nothing_for_the_time_in_which_it_had_nothing_to_send():
    one = queue(capacity=1_000_000)
    for _ in range(200):
        joined(one, call(1_000, priority="high"))
        for each in leaving(one):
            one.finished(each.id, 1_000, 10, 0.0)
    low, high = joined(one, call(10, priority="low"), call(1_000, priority="high"))
    assert leaving(one) == [high, low]


# Inheritance.


def test_whoever_is_waited_for_is_served_in_the_class_of_who_waits_and_falls_back_after():
    one = queue(slots=0)
    slow, other = joined(one, call(5_000, agent="b", priority="low"), call(10, priority="normal"))
    one.waits.begin("a", "b", Urgency(1))
    one.reconsider("b", 0.0)
    assert [place.id for place in one.places(0.0)] == [slow.id, other.id]
    assert one.places(0.0)[0].priority == "high"
    one.waits.end("a", "b")
    one.reconsider("b", 0.0)
    assert [place.id for place in one.places(0.0)] == [other.id, slow.id]


def test_a_call_that_joins_while_its_agent_is_waited_for_inherits():
    one = queue(slots=0)
    one.waits.begin("a", "b", Urgency(0, due=50.0))
    slow, other = joined(one, call(5_000, agent="b", priority="low"), call(10, priority="high"))
    assert [place.id for place in one.places(0.0)] == [slow.id, other.id]


def test_a_deadline_that_was_inherited_orders_and_does_not_end_a_call():
    one = queue(slots=0)
    one.waits.begin("a", "b", Urgency(1, due=50.0))
    (slow,) = joined(one, call(agent="b"))
    assert one.late(51.0) == []
    one.slots.now = 1
    assert one.next(51.0) is slow


def test_prioritising_an_agent_moves_the_calls_that_wait():
    one = queue(slots=0)
    mine, other = joined(one, call(5_000, agent="a", priority="low"), call(10))
    one.prioritize("a", "high", 0.0)
    assert [place.id for place in one.places(0.0)] == [mine.id, other.id]


# Cancelling and stopping.


def test_a_killed_agents_calls_are_gone_before_the_kill_returns():
    one = queue(slots=1)
    joined(one, call(1, agent="a"))
    (flying,) = leaving(one)
    joined(one, *(call(10, agent="a") for _ in range(20)), call(500, agent="b"))
    gone, in_flight = one.cancel_agent("a")
    assert len(gone) == 20
    assert in_flight == [flying]
    assert len(one) == 1
    one.failed(flying.id, 10, 3, 1.0, counts=False)
    assert [each.agent for each in leaving(one, 1.0)] == ["b"]


def test_ten_thousand_that_wait_are_cancelled_and_nothing_stays_behind():
    one = queue(slots=0)
    calls = joined(one, *(call(number % 97 + 1, agent=f"a{number % 500}") for number in range(10_000)))
    for number in range(500):
        one.cancel_agent(f"a{number}")
    one.slots.now = 32
    assert len(one) == 0
    assert one.next(1.0) is None
    assert one.wake(1.0) is None
    assert one.cancel(calls[0].id) is None


def test_a_stopped_agents_calls_are_held_and_go_on_where_they_were():
    one = queue()
    mine, other = call(10, agent="a"), call(20, agent="b")
    one.stop("a")
    joined(one, mine, other)
    assert leaving(one) == [other]
    assert [place.reason for place in one.places(0.0)] == ["stopped"]
    one.go_on("a", 3.0)
    assert leaving(one, 3.0) == [mine]
    one.stop("a")  # nothing waits, and what comes is held
    (held,) = joined(one, call(agent="a"), now=4.0)
    assert leaving(one, 4.0) == []
    assert one.cancel(held.id) is held


# What providers say.


def test_without_limits_a_key_is_tried_with_a_few_calls_until_it_answers():
    one = Queue(Sizes())
    calls = joined(one, *(call(10) for _ in range(20)))
    assert len(leaving(one)) == 8
    one.began(calls[0].id, 0.3, LimitSample("tokens", 100_000, 99_000))
    assert len(leaving(one, 0.3)) == 12


def test_limits_learned_from_a_reply_hold_the_next_call():
    one = Queue(Sizes())
    first, _ = joined(one, call(10, max_output=10), call(5_000, max_output=10))
    one.next(0.0)
    one.began(first.id, 0.1, LimitSample("tokens", 6_000, 1_000, 5.0))
    assert leaving(one, 0.1) == []
    assert one.wake(0.1) == pytest.approx(0.1 + 4.02, abs=0.05)  # 1,000 a second, as `reset` says


def test_a_refused_call_comes_back_and_nobody_leaves_before_it_would_fit():
    one = queue()
    first, second = joined(one, call(100), call(200))
    assert one.next(0.0) is first
    assert one.refused(first.id, 0.0, 3.0) is first
    assert one.next(2.9) is None
    one.again(first, 0.0, 3.2)
    assert [place.reason for place in one.places(0.0)] == ["rate", "retry"]
    assert one.wake(0.0) == pytest.approx(3.1)  # it is a little larger than the one that would fit after three seconds
    assert leaving(one, 3.11) == [second]
    assert leaving(one, 4.0) == [first]


def test_refusals_that_no_limit_explains_halve_the_calls_in_flight_and_successes_win_them_back():
    one = Queue(Sizes())
    calls = joined(one, call(10), call(20))
    leaving(one)
    one.refused(calls[0].id, 0.0)
    assert one.slots.now == 16
    one.finished(calls[1].id, 20, 5, 1.0)
    for _ in range(19):
        joined(one, call(10), now=5.0)
        (each,) = leaving(one, 5.0)
        one.finished(each.id, 10, 5, 5.0)
    assert one.slots.now == 17


def test_an_open_breaker_holds_everybody_and_lets_one_try():
    one = queue(capacity=100_000)
    joined(one, *(call(10) for _ in range(7)))
    for each in leaving(one)[:5]:
        one.failed(each.id, 0, 0, 0.0)
    joined(one, call(10), call(10))
    assert leaving(one, 1.0) == []
    assert {place.reason for place in one.places(1.0)} == {"breaker"}
    assert one.wake(1.0) == 15.0
    (probe,) = leaving(one, 15.0)
    one.finished(probe.id, 10, 5, 16.0)
    assert len(leaving(one, 16.0)) == 1


def test_a_call_that_is_over_is_over_once():
    one = queue()
    (only,) = joined(one, call())
    leaving(one)
    assert one.finished(only.id, 10, 10, 1.0) is only
    assert one.finished(only.id, 10, 10, 1.0) is None
    assert one.failed(only.id, 10, 10, 1.0) is None
    assert one.refused(only.id, 1.0) is None
    one.began(only.id, 1.0, LimitSample("tokens", 10, 0))
    assert one.in_flight == 0


def test_a_clock_that_is_an_hour_off_holds_a_key_for_a_minute_at_most():
    """`reset` as a time of day, read by a clock that is an hour slow, says that the bucket is full in an hour."""
    one = Queue(Sizes())
    first, second = joined(one, call(1_000, max_output=10), call(2_000, max_output=10))
    assert one.next(0.0) is first
    one.began(first.id, 1.0, LimitSample("tokens", 10_000, 0, 3_600.0))
    assert leaving(one, 2.0) == []
    one.finished(first.id, 1_000, 10, 5.0)
    assert one.wake(5.0) == pytest.approx(61.0)
    assert leaving(one, 61.0) == [second]
    joined(one, call(2_000, max_output=10), now=62.0)
    assert leaving(one, 62.0) == []  # one at a time: the one in flight will tell


def test_a_limit_that_is_smaller_than_what_was_just_taken_closes_nothing():
    one = Queue(Sizes())
    (first,) = joined(one, call(5_000))
    leaving(one)
    one.began(first.id, 0.5, LimitSample("tokens", 1, 0))
    assert one.buckets.ignored == 1
    joined(one, call(5_000), now=1.0)
    assert len(leaving(one, 1.0)) == 1


def test_a_provider_that_asks_for_an_hour_gets_a_minute():
    one = queue()
    first, _ = joined(one, call(100), call(200))
    one.next(0.0)
    one.refused(first.id, 0.0, 3_600.0)
    assert one.next(59.0) is None
    assert one.wake(0.0) <= 61.0  # type: ignore[operator]
    assert len(leaving(one, 61.0)) == 1


def test_deadlines_of_calls_that_left_are_not_remembered():
    one = queue(capacity=10**9)
    for _ in range(1_000):
        joined(one, call(1, deadline=10**6))
        for each in leaving(one):
            one.finished(each.id, 1, 1, 0.0)
    assert len(vars(one)["_deadlines"]) < 200
    assert one.late(10**6) == []


# Where everybody stands.


def test_places_tell_position_and_reason():
    one = queue(capacity=1_000, rate=1, slots=1)
    joined(one, call(900, max_output=0))
    leaving(one)
    low, normal = joined(one, call(100, priority="low"), call(100))
    assert [(place.id, place.position, place.reason) for place in one.places(0.0)] == [
        (normal.id, 1, "slots"),
        (low.id, 2, "class"),
    ]
    one.slots.now = 5
    assert [place.reason for place in one.places(2.0)] == ["rate", "class"]
    assert one.places(2.0, most=1)[0].waited_ms == 2_000


ACTS = st.sampled_from(
    ["join", "join", "join", "next", "finish", "refuse", "cancel", "stop", "go", "kill", "wait", "move"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ACTS, st.integers(0, 7), st.integers(1, 3_000)), max_size=80))
def test_no_call_is_lost_sent_twice_or_sent_after_it_was_cancelled(acts: list[tuple[str, int, int]]):
    one, now = queue(capacity=5_000, rate=500, slots=4), 0.0
    known, sent, over = dict[str, str](), set[str](), set[str]()
    flying: list[str] = []
    for act, who, size in acts:
        now += size / 1_000
        agent = f"a{who % 4}"
        match act:
            case "join":
                words = ("low", "normal", "high", "critical")
                each = call(size, agent=agent, tenant=f"t{who % 2}", priority=words[who % 4])  # type: ignore[arg-type]
                one.join(each, now)
                known[each.id] = agent
            case "next":
                for each in leaving(one, now):
                    assert each.id not in sent
                    assert each.id not in over
                    sent.add(each.id)
                    flying.append(each.id)
            case "finish" if flying:
                done = flying.pop(who % len(flying))
                one.finished(done, size, 10, now)
                over.add(done)
            case "refuse" if flying:
                back = flying.pop(who % len(flying))
                again = one.refused(back, now, size / 1_000)
                assert again is not None
                sent.discard(back)
                one.again(again, now, now + size / 500)
            case "cancel" if known:
                name = sorted(known)[who % len(known)]
                if one.cancel(name):
                    over.add(name)
            case "stop":
                one.stop(agent)
            case "go":
                one.go_on(agent, now)
            case "kill":
                over.update(each.id for each in one.cancel_agent(agent)[0])
            case "move":
                one.prioritize(agent, "high", now)
            case _:
                one.wake(now)
        assert len(one) + one.in_flight + len(over) == len(known)
        assert len(one.places(now)) == len(one)
    for who in range(4):
        one.go_on(f"a{who}", now)
    for name in flying:
        one.finished(name, 10, 10, now)
    rest = serial(one, now)
    assert len(rest) == len(set(rest))
    assert not over & set(rest)
    assert len(rest) + len(over) + len(flying) == len(known)


@pytest.mark.parametrize(("share", "first"), [(1.0, "quiet"), (100.0, "loud")])
def test_a_share_that_is_given_later_holds_for_a_queue_that_is_there(share: float, first: str) -> None:
    weights: dict[str, float] = {}
    one = queue(capacity=1_000_000, slots=1, weights=weights)
    weights["loud"] = share
    joined(one, call(500_000, tenant="loud"))
    [large] = leaving(one)
    joined(one, call(2000, tenant="quiet"), call(1500, tenant="loud"))  # by its size alone, the second would be first
    one.finished(large.id, 500_000, 10, 1.0)
    assert [each.tenant for each in leaving(one, 1.0)] == [first]
