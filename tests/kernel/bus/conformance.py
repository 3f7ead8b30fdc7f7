"""What every broker must do. Written against the interface only: a back end passes it, or is none.

A back end's test file derives a class from each of these and gives a fixture `bench`.
"""

from collections.abc import Callable
from itertools import groupby

import pytest

from agent_os.abi.errors import EAGAIN, EDQUOT, EINVAL, EMSGSIZE, ENOENT
from agent_os.kernel.bus.broker import Start
from agent_os.kernel.bus.message import HIGH, LARGEST, LOW, NORMAL, Outgoing
from kernel.bus.bench import HOUR, Bench, said


def until_refused(send: Callable[[int], object]) -> EAGAIN:
    for count in range(100_000):
        try:
            send(count)
        except EAGAIN as refused:
            return refused
    raise AssertionError("nothing was refused")


class Delivering:
    def test_what_was_sent_is_there_until_it_is_acknowledged(self, bench: Bench) -> None:
        sent = bench.send("b", {"x": 1}, schema="s", corr="c")
        assert "b" in bench.woken
        (got,) = bench.pull()
        assert (got.message.id, got.message.sender, got.message.schema, got.message.corr) == (sent.id, "a", "s", "c")
        assert said([got]) == [{"x": 1}]
        assert got.deliveries == 1
        assert bench.pull() == []
        assert bench.ack(got) == 0
        bench.sleep(HOUR)
        assert bench.pull() == []

    def test_nobody_gets_what_is_anothers(self, bench: Bench) -> None:
        bench.send("b", 1)
        assert bench.pull("c") == []
        (got,) = bench.pull("b")
        assert bench.ack(got, agent="c") == 1
        bench.sleep(31)
        assert said(bench.pull("b")) == [1]

    def test_a_delivery_that_is_not_acknowledged_in_time_comes_again(self, bench: Bench) -> None:
        bench.send("b", 1)
        bench.pull()
        bench.sleep(29)
        assert bench.pull() == []
        bench.sleep(2)
        (again,) = bench.pull()
        assert again.deliveries == 2

    def test_a_receiver_that_says_so_has_more_time(self, bench: Bench) -> None:
        bench.send("b", 1)
        (got,) = bench.pull()
        bench.sleep(20)
        assert bench.keep(bench.broker.extend("b", [got.id], bench.now)) == 0
        bench.sleep(20)
        assert bench.pull() == []
        bench.sleep(11)
        assert len(bench.pull()) == 1

    def test_time_stands_still_for_a_receiver_that_is_stopped(self, bench: Bench) -> None:
        bench.send("b", 1)
        bench.pull()
        bench.sleep(20)
        bench.broker.freeze("b", bench.now)
        bench.sleep(HOUR)
        bench.broker.thaw("b", bench.now)
        bench.sleep(9)
        assert bench.pull() == []
        bench.sleep(2)
        assert len(bench.pull()) == 1

    def test_acknowledged_late_or_twice_it_is_acknowledged_once(self, bench: Bench) -> None:
        bench.send("b", 1)
        (got,) = bench.pull()
        bench.sleep(31)
        assert bench.ack(got) == 0
        assert bench.ack(got) == 1
        assert bench.pull() == []

    @pytest.mark.parametrize("name", ["", "x", "m-", "m-zz", "m-1:s", "m-ffff:s1", ":", "\0", "m-1:s1:2"])
    def test_an_id_that_nobody_gave_out_is_only_counted(self, bench: Bench, name: str) -> None:
        bench.send("b", 1)
        bench.pull()
        for verb in (bench.broker.ack, bench.broker.nack, bench.broker.extend, bench.broker.reject):
            assert bench.keep(verb("b", [name], bench.now)) == 1

    def test_what_was_never_handed_out_cannot_be_acknowledged(self, bench: Bench) -> None:
        sent = bench.send("b", 1)
        assert bench.keep(bench.broker.ack("b", [sent.id], bench.now)) == 1
        assert len(bench.pull()) == 1

    def test_a_pull_fits_into_a_frame_and_gives_at_least_one(self, bench: Bench) -> None:
        for _ in range(6):
            bench.send("b", b"x" * 250_000)
        counts = [len(bench.pull()) for _ in range(3)]
        assert counts == [3, 3, 0]

    def test_lag_says_what_waits_and_what_is_in_hand(self, bench: Bench) -> None:
        for number in range(5):
            bench.send("b", number)
        bench.pull(n=2)
        lag = bench.broker.lag("b")
        assert (lag.waiting, lag.in_hand) == (3, 2)
        assert sum(lag.lanes) == 3
        assert lag.bytes > 0


class Ordering:
    def test_the_messages_of_one_sender_in_one_lane_come_in_order(self, bench: Bench) -> None:
        for number in range(30):
            bench.send("b", number, sender=f"s{number % 3}", lane=(HIGH, NORMAL, LOW)[number // 3 % 3])
        got = [(one.message.sender, one.message.lane, one.message.seq) for one in bench.pull()]
        assert len(got) == 30
        for _, group in groupby(sorted(got, key=lambda one: one[:2]), key=lambda one: one[:2]):
            seqs = [seq for _, _, seq in group]
            assert seqs == sorted(seqs)

    def test_what_comes_back_comes_before_what_was_behind_it(self, bench: Bench) -> None:
        for number in range(4):
            bench.send("b", number)
        first, second = bench.pull(n=2)
        bench.nack(second)
        bench.nack(first)
        assert said(bench.pull()) == [0, 1, 2, 3]

    def test_what_must_wait_holds_up_its_own_sender_and_lane_only(self, bench: Bench) -> None:
        bench.send("b", "held")
        bench.send("b", "behind")
        bench.send("b", "other lane", lane=HIGH)
        bench.send("b", "other sender", sender="c")
        (held,) = bench.pull(n=1, lanes=[NORMAL])
        assert said([held]) == ["held"]
        bench.nack(held, delay_ms=5000)
        assert set(said(bench.pull())) == {"other lane", "other sender"}
        bench.sleep(4)
        assert bench.pull() == []
        bench.sleep(1.2)
        assert said(bench.pull()) == ["held", "behind"]

    def test_what_waited_behind_one_that_is_acknowledged_after_all_waits_no_longer(self, bench: Bench) -> None:
        bench.send("b", "held")
        bench.send("b", "behind")
        (held,) = bench.pull(n=1)
        bench.nack(held, delay_ms=60_000)
        assert bench.pull() == []
        bench.woken.clear()
        assert bench.ack(held) == 0
        assert bench.woken == ["b"]
        assert said(bench.pull()) == ["behind"]

    def test_of_sixteen_deliveries_each_lane_gets_its_share(self, bench: Bench) -> None:
        for lane in (LOW, NORMAL, HIGH):
            for _ in range(40):
                bench.send("b", sender=f"s{lane}", lane=lane)
        for _ in range(2):
            lanes = [bench.pull(n=1)[0].message.lane for _ in range(16)]
            assert [lanes.count(one) for one in (HIGH, NORMAL, LOW)] == [12, 3, 1]

    def test_turns_that_nobody_uses_pass_on(self, bench: Bench) -> None:
        for lane in (LOW, NORMAL):
            for _ in range(16):
                bench.send("b", lane=lane)
        assert len(bench.pull(n=32)) == 32

    def test_a_flood_of_any_lane_starves_no_other(self, bench: Bench) -> None:
        for flood in (LOW, HIGH):
            for number in range(240):
                bench.send("b", sender=f"f{number % 2}", lane=flood)
            bench.send("b", "quiet", sender="quiet", lane=LOW if flood == HIGH else HIGH)
            got = said(bench.pull(n=32))
            assert "quiet" in got[:17]
            for _ in range(8):
                bench.ack(*bench.pull(n=100))
            bench.sleep(31)
            bench.ack(*bench.pull(n=100))

    def test_senders_of_a_lane_take_turns(self, bench: Bench) -> None:
        for _ in range(200):
            bench.send("b", "loud", sender="loud")
        bench.send("b", "quiet", sender="quiet")
        assert "quiet" in said(bench.pull(n=2))

    def test_only_the_lanes_that_are_asked_for_are_given(self, bench: Bench) -> None:
        bench.send("b", "low", lane=LOW)
        bench.send("b", "high", lane=HIGH)
        assert said(bench.pull(lanes=[LOW])) == ["low"]


class Bounding:
    def test_a_full_mailbox_refuses_and_says_when_to_come_again(self, bench: Bench) -> None:
        for number in range(1000):
            bench.send("b", number, sender=f"s{number % 10}")
        with pytest.raises(EAGAIN, match="full") as refused:
            bench.send("b", "more", sender="s0")
        assert 10 <= (refused.value.retry_after_ms or 0) <= 60_000
        assert bench.broker.lag("b").waiting == 1000
        bench.ack(*bench.pull(n=1))
        bench.send("b", "more", sender="s0")

    def test_bytes_fill_it_as_well(self, bench: Bench) -> None:
        refused = until_refused(lambda count: bench.send("b", b"x" * 250_000, sender=f"s{count % 9}"))
        assert "full" in refused.reason
        count = refused.detail["messages"]
        assert count == (16 << 20) // 250_100

    def test_what_is_in_hand_still_takes_its_place(self, bench: Bench) -> None:
        for number in range(1000):
            bench.send("b", number, sender=f"s{number % 10}")
        while bench.pull(n=100):
            pass
        with pytest.raises(EAGAIN):
            bench.send("b", "more")

    def test_above_half_one_sender_has_a_quarter_and_others_still_have_room(self, bench: Bench) -> None:
        for number in range(500):
            bench.send("b", number, sender="loud")
        with pytest.raises(EAGAIN, match="quarter"):
            bench.send("b", "more", sender="loud")
        for number in range(250):
            bench.send("b", number, sender="quiet")
        with pytest.raises(EAGAIN, match="quarter"):
            bench.send("b", "more", sender="quiet")

    def test_a_mailbox_that_drains_fast_asks_for_less_patience(self, bench: Bench) -> None:
        def refusal(drained_each_second: int) -> int:
            for _ in range(20):
                bench.seconds += 1
                bench.ack(*bench.pull(n=drained_each_second))
                refused = until_refused(lambda count: bench.send("b", sender=f"s{count % 10}"))
            return refused.retry_after_ms or 0

        slow = refusal(1)
        fast = refusal(50)
        assert 500 <= slow <= 2000
        assert 10 <= fast <= 50

    def test_a_payload_beyond_the_cap_is_refused_with_size_and_cap(self, bench: Bench) -> None:
        with pytest.raises(EMSGSIZE) as refused:
            bench.send("b", b"x" * LARGEST)
        assert refused.value.detail["cap"] == LARGEST
        assert refused.value.detail["size"] == LARGEST + 5
        bench.send("b", b"x" * (LARGEST - 5))

    def test_a_sender_has_a_rate_and_a_burst(self, bench: Bench) -> None:
        for number in range(2000):
            bench.send(f"r{number % 10}")
        with pytest.raises(EAGAIN) as refused:
            bench.send("r0")
        assert refused.value.code == "bus.rate"
        assert refused.value.retry_after_ms == 10
        bench.send("r0", sender="other")
        bench.seconds += 0.5
        for number in range(500):
            bench.send(f"r{number % 10}")
        with pytest.raises(EAGAIN):
            bench.send("r0")

    def test_what_a_sender_left_unacknowledged_everywhere_is_bounded(self, bench: Bench) -> None:
        refused = until_refused(lambda count: bench.send(f"r{count // 30}", b"x" * 250_000))
        assert refused.code == "bus.unacked"
        assert (64 << 20) - 250_100 < refused.detail["used"] <= 64 << 20  # type: ignore[operator]
        bench.ack(*bench.pull("r0", n=1), agent="r0")
        bench.send("fresh", b"x" * 250_000)

    def test_the_bounds_hold_after_a_crash(self, bench: Bench) -> None:
        for number in range(500):
            bench.send("b", number)
        bench.crash()
        with pytest.raises(EAGAIN, match="quarter"):
            bench.send("b", "more")

    def test_one_refusal_in_a_batch_is_its_own(self, bench: Bench) -> None:
        drafts = [Outgoing("b", "a"), Outgoing("b", "a", ttl_ms=0), Outgoing("b", "a")]
        first, second, third = bench.keep(bench.broker.publish(drafts, bench.now))
        assert isinstance(second, EINVAL)
        assert [one.message.id for one in bench.pull()] == [first.id, third.id]  # type: ignore[union-attr]


class Deduplicating:
    def test_the_same_key_again_is_the_same_message(self, bench: Bench) -> None:
        first = bench.send("b", 1, key="k")
        again = bench.send("b", 1, key="k")
        assert (again.id, again.duplicate) == (first.id, True)
        assert len(bench.pull()) == 1

    def test_also_in_hand_after_the_acknowledgement_and_after_a_crash(self, bench: Bench) -> None:
        first = bench.send("b", 1, key="k")
        (got,) = bench.pull()
        assert bench.send("b", 1, key="k").duplicate
        bench.ack(got)
        assert bench.send("b", 1, key="k").id == first.id
        bench.crash()
        assert bench.send("b", 1, key="k").duplicate
        assert bench.pull() == []

    def test_a_key_belongs_to_its_sender_and_its_receiver(self, bench: Bench) -> None:
        bench.send("b", 1, key="k")
        assert not bench.send("b", 1, key="k", sender="c").duplicate
        assert not bench.send("d", 1, key="k").duplicate

    def test_an_acknowledgement_that_was_not_kept_remembers_nothing(self, bench: Bench) -> None:
        bench.send("b", 1, key="k")
        (got,) = bench.pull()
        bench.broker.ack("b", [got.id], bench.now)
        bench.crash()
        assert [one.deliveries for one in bench.pull()] == [2]

    def test_it_is_remembered_seven_days_and_not_for_ever(self, bench: Bench) -> None:
        bench.send("b", 1, key="k")
        bench.ack(*bench.pull())
        bench.crash()
        bench.sleep(7 * 24 * HOUR - 60)
        assert bench.send("b", 1, key="k").duplicate
        bench.sleep(120)
        assert not bench.send("b", 1, key="k").duplicate

    def test_or_as_long_as_the_message_could_have_lived(self, bench: Bench) -> None:
        bench.send("b", 1, key="k", ttl_ms=20 * 24 * 3600 * 1000)
        bench.ack(*bench.pull())
        bench.sleep(19 * 24 * HOUR)
        assert bench.send("b", 1, key="k").duplicate

    def test_an_event_published_twice_under_a_key_comes_once(self, bench: Bench) -> None:
        bench.subscribe("t.>")
        first = bench.publish("t.x", 1, key="k")
        assert bench.publish("t.x", 1, key="k").id == first.id
        assert len(bench.pull()) == 1


class Dying:
    def test_a_poison_message_is_tried_five_times_and_then_a_dead_letter(self, bench: Bench) -> None:
        bench.send("b", "poison")
        tried = 0
        while got := bench.pull():
            tried += 1
            bench.nack(*got, reason="boom")
        assert tried == 5
        (letter,) = bench.broker.dead_letters("b")
        assert (letter.reason, letter.detail, letter.deliveries) == ("handler_error", "boom", 5)
        assert [note.kind for note in bench.notes] == ["dead"]

    def test_so_is_one_whose_receiver_never_says_anything(self, bench: Bench) -> None:
        bench.send("b", "poison")
        for _ in range(5):
            assert len(bench.pull()) == 1
            bench.sleep(31)
        assert bench.pull() == []
        assert bench.reasons() == ["unknown"]

    def test_one_that_three_lives_ended_with_is_not_given_to_a_fourth(self, bench: Bench) -> None:
        bench.send("b", "poison")
        for _ in range(3):
            assert len(bench.pull()) == 1
            bench.keep(bench.broker.died("b", bench.now))
        assert bench.pull() == []
        assert bench.reasons() == ["handler_error"]

    def test_deliveries_and_deaths_are_counted_across_a_crash(self, bench: Bench) -> None:
        bench.send("b", "poison")
        bench.pull()
        bench.keep(bench.broker.died("b", bench.now))
        bench.crash()
        bench.pull()
        bench.keep(bench.broker.died("b", bench.now))
        bench.crash()
        (got,) = bench.pull()
        assert got.deliveries == 3
        bench.keep(bench.broker.died("b", bench.now))
        assert bench.reasons() == ["handler_error"]

    def test_whoever_goes_on_keeps_what_it_has_in_hand_until_it_was_too_often(self, bench: Bench) -> None:
        bench.send("b", "poison")
        (got,) = bench.pull()
        for number in (1, 2):
            change = bench.broker.died("b", bench.now, keeps=True)
            bench.keep(change)
            assert (change.value, bench.pull()) == (0, []), "it is not given again"
            assert bench.broker.in_hand("b") == [(got.id, number)]
        change = bench.broker.died("b", bench.now, keeps=True)
        bench.keep(change)
        assert change.value == 1
        assert bench.reasons() == ["handler_error"]

    def test_an_end_that_is_nobodys_fault_is_no_death(self, bench: Bench) -> None:
        bench.send("b", "fine")
        for _ in range(4):
            bench.pull()
            bench.keep(bench.broker.died("b", bench.now, blamed=False))
        (got,) = bench.pull()
        bench.keep(bench.broker.ack("b", [got.id], bench.now))
        assert bench.reasons() == []

    def test_the_end_of_the_kernel_is_a_delivery_and_no_death(self, bench: Bench) -> None:
        bench.send("b", "fine")
        for number in range(4):
            assert bench.pull()[0].deliveries == number + 1
            bench.crash()
        (got,) = bench.pull()
        assert got.deliveries == 5
        bench.ack(got)
        assert bench.reasons() == []

    def test_a_rejected_one_is_a_dead_letter_at_once(self, bench: Bench) -> None:
        bench.send("b", 1)
        (got,) = bench.pull()
        bench.keep(bench.broker.reject("b", [got.id], bench.now, reason="schema", detail="no such field"))
        (letter,) = bench.broker.dead_letters()
        assert (letter.reason, letter.detail) == ("schema", "no such field")

    def test_what_expires_is_never_delivered(self, bench: Bench) -> None:
        bench.send("b", "short", ttl_ms=1000)
        bench.send("b", "long")
        bench.seconds += 1.001
        assert said(bench.pull()) == ["long"]
        assert bench.reasons("b") == ["expired"]

    def test_it_expires_also_where_nobody_pulls_and_makes_room(self, bench: Bench) -> None:
        for _ in range(400):
            bench.send("b", ttl_ms=1000)
        bench.sleep(3)
        assert bench.broker.lag("b").waiting == 0
        assert bench.reasons() == ["expired"] * 400

    def test_a_message_does_not_outlive_its_time_by_a_crash(self, bench: Bench) -> None:
        bench.send("b", "short", ttl_ms=60_000)
        bench.crash(away=61)
        assert bench.pull() == []
        assert bench.reasons() == ["expired"]

    def test_the_deadline_travels_and_the_receiver_sees_what_is_left(self, bench: Bench) -> None:
        bench.send("b", 1, type="request", deadline_ms=10_000)
        bench.send("b", 2, type="request", deadline_ms=2_000)
        bench.seconds += 3
        (got,) = bench.pull()
        assert got.left_ms is not None
        assert 6_990 <= got.left_ms <= 7_000
        assert bench.reasons() == ["expired"]

    def test_whoever_ends_for_good_leaves_dead_letters(self, bench: Bench) -> None:
        bench.send("b", 1)
        bench.send("b", 2)
        bench.pull(n=1)
        bench.keep(bench.broker.gone("b", bench.now))
        assert bench.reasons("b") == ["receiver_gone"] * 2

    def test_a_dead_letter_can_be_delivered_again_once(self, bench: Bench) -> None:
        bench.send("b", "x", ttl_ms=1000)
        bench.sleep(3)
        (letter,) = bench.broker.dead_letters()
        bench.keep(bench.broker.redeliver(letter.id, bench.now))
        assert bench.reasons() == []
        (got,) = bench.pull()
        assert (said([got]), got.deliveries) == (["x"], 1)
        with pytest.raises(ENOENT):
            bench.broker.redeliver(letter.id, bench.now)

    def test_or_dropped(self, bench: Bench) -> None:
        bench.send("b", "x", ttl_ms=1000)
        bench.sleep(3)
        (letter,) = bench.broker.dead_letters()
        bench.keep(bench.broker.drop_letter(letter.id, bench.now))
        bench.crash()
        assert bench.reasons() == []

    def test_dead_letters_stay_thirty_days(self, bench: Bench) -> None:
        bench.send("b", "x", ttl_ms=1000)
        bench.sleep(3)
        bench.crash(away=29 * 24 * HOUR)
        bench.sleep(HOUR)
        assert len(bench.reasons()) == 1
        bench.sleep(24 * HOUR)
        assert bench.reasons() == []


class Subscribing:
    def test_whoever_subscribed_gets_what_matches_from_then_on(self, bench: Bench) -> None:
        bench.publish("news.eu", "before")
        bench.subscribe("news.*")
        bench.publish("news.eu", 1)
        bench.publish("news.eu.more", 2)
        bench.publish("other.eu", 3)
        (got,) = bench.pull()
        assert said([got]) == [1]
        assert got.message.to == "news.eu"
        bench.ack(got)
        bench.sleep(31)
        assert bench.pull() == []

    def test_each_subscriber_gets_each_event_and_acknowledges_its_own(self, bench: Bench) -> None:
        bench.subscribe("t", agent="b")
        bench.subscribe("t", agent="c")
        bench.publish("t", 1)
        (mine,), (theirs,) = bench.pull("b"), bench.pull("c")
        assert bench.ack(mine, agent="c") == 1
        assert bench.ack(mine, agent="b") == 0
        bench.sleep(31)
        assert bench.pull("b") == []
        assert [one.message.id for one in bench.pull("c")] == [theirs.message.id]

    def test_two_filters_of_one_agent_are_two_cursors(self, bench: Bench) -> None:
        bench.subscribe("t.>")
        bench.subscribe("t.x")
        bench.publish("t.x", 1)
        got = bench.pull()
        assert len({one.id for one in got}) == 2
        bench.ack(got[0])
        bench.sleep(31)
        assert [one.id for one in bench.pull()] == [got[1].id]

    def test_of_a_group_each_event_goes_to_one_member(self, bench: Bench) -> None:
        for agent in ("b", "c"):
            bench.subscribe("work", agent=agent, group="g")
        for number in range(20):
            bench.publish("work", number)
        got = {"b": list[int](), "c": list[int]()}
        for turn in range(20):
            agent = "bc"[turn % 2]
            deliveries = bench.pull(agent, n=1)
            got[agent] += said(deliveries)
            bench.ack(*deliveries, agent=agent)
        assert sorted(got["b"] + got["c"]) == list(range(20))
        assert len(got["b"]) == len(got["c"]) == 10

    def test_what_a_dead_member_had_in_hand_goes_to_another(self, bench: Bench) -> None:
        for agent in ("b", "c"):
            bench.subscribe("work", agent=agent, group="g")
        bench.publish("work", 1)
        assert said(bench.pull("b")) == [1]
        bench.keep(bench.broker.gone("b", bench.now))
        (got,) = bench.pull("c")
        assert got.deliveries == 2
        bench.ack(got, agent="c")
        assert bench.reasons() == []

    def test_in_a_group_what_must_wait_holds_nobody_up(self, bench: Bench) -> None:
        bench.subscribe("work", group="g")
        for number in range(3):
            bench.publish("work", number)
        (first,) = bench.pull(n=1)
        bench.nack(first, delay_ms=5000)
        assert said(bench.pull()) == [1, 2]
        bench.sleep(5.2)
        assert said(bench.pull()) == [0]

    @pytest.mark.parametrize(
        ("start", "expected"), [("new", []), ("first", [0, 1, 2, 3]), ("seq", [2, 3]), ("time", [3])]
    )
    def test_a_subscription_begins_where_it_is_told(self, bench: Bench, start: str, expected: list[int]) -> None:
        sent = []
        for number in range(4):
            bench.seconds += 10
            sent.append((bench.publish("t", number), bench.now.wall_ns))
        value = {"seq": sent[2][0].seq, "time": sent[3][1]}.get(start, 0)
        bench.subscribe("t", start=Start(start, value))  # type: ignore[arg-type]
        assert said(bench.pull()) == expected

    def test_one_that_stands_alone_is_pulled_by_its_own_name(self, bench: Bench) -> None:
        sub = bench.subscribe("t", alone=True)
        bench.publish("t", 1)
        consumer = bench.woken[-1]
        assert sub in consumer
        assert bench.pull("b") == []
        (got,) = bench.pull(consumer)
        assert bench.ack(got) == 0

    def test_what_ended_gets_nothing_more(self, bench: Bench) -> None:
        sub = bench.subscribe("t")
        bench.publish("t", 1)
        bench.keep(bench.broker.unsubscribe("b", sub, bench.now))
        bench.publish("t", 2)
        assert bench.pull() == []
        with pytest.raises(ENOENT):
            bench.broker.unsubscribe("b", sub, bench.now)
        bench.crash()
        bench.publish("t", 3)
        assert bench.pull() == []

    def test_an_agent_has_a_hundred_subscriptions(self, bench: Bench) -> None:
        subs = [bench.subscribe(f"t.{number}") for number in range(100)]
        with pytest.raises(EDQUOT, match="100"):
            bench.subscribe("one.more")
        bench.keep(bench.broker.unsubscribe("b", subs[0], bench.now))
        bench.subscribe("one.more")

    @pytest.mark.parametrize("topic", ["", "a..b", "a.*", "a.>", "a b", ".a", "a.", "a/b", "x" * 256])
    def test_nothing_is_published_where_no_topic_is(self, bench: Bench, topic: str) -> None:
        with pytest.raises(EINVAL) as refused:
            bench.publish(topic)
        assert refused.value.code == "bus.topic"
        assert isinstance(refused.value.detail["position"], int)

    def test_direct_messages_and_events_come_by_the_same_pull(self, bench: Bench) -> None:
        bench.subscribe("t")
        bench.publish("t", "event")
        bench.send("b", "direct")
        assert sorted(said(bench.pull())) == ["direct", "event"]


class Lagging:
    def test_one_that_lags_too_far_gets_one_gap_that_says_what_it_missed(self, bench: Bench) -> None:
        sub = bench.subscribe("t")
        seqs = [bench.publish("t", number, sender=f"s{number % 6}").seq for number in range(11_000)]
        first, *rest = bench.pull(n=100)
        gap = said([first])[0]
        assert first.message.schema == "agent-os.gap"
        assert gap["from"] == seqs[0]
        assert gap["to"] == seqs[gap["count"] - 1]
        assert gap["count"] >= 1000
        assert said(rest)[0] == gap["count"]
        notes = [note.facts for note in bench.notes if note.kind == "gap"]
        assert notes
        assert {note["sub"] for note in notes} == {sub}

    def test_a_subscriber_lags_no_further_by_subscribing_more(self, bench: Bench) -> None:
        subs = [bench.subscribe("t.>"), bench.subscribe("t.x")]
        for number in range(5_000):
            bench.publish("t.x", number, sender=f"s{number % 6}")
        bench.crash()
        for number in range(100):
            bench.publish("t.x", number, sender=f"s{number % 6}")
        assert bench.broker.lag("b").waiting <= 10_000
        assert {note.facts["sub"] for note in bench.notes if note.kind == "gap"} <= set(subs)
        bench.subscribe("t.*", start=Start("first"))
        assert bench.broker.lag("b").waiting <= 10_001
        bench.subscribe("t.>", agent="c", group="g")
        bench.subscribe("t.>", agent="b", group="g")
        for number in range(10):
            bench.publish("t.y", number)
        assert bench.broker.lag("c").waiting == 10, "whoever has room loses nothing by one that has none"

    def test_a_gap_and_what_is_left_survive_a_crash(self, bench: Bench) -> None:
        bench.subscribe("t")
        bench.publish("t", "early")
        bench.pull(n=1)
        for number in range(10_500):
            bench.publish("t", number, sender=f"s{number % 6}")
        bench.crash()
        early, gap, first = bench.pull(n=3)
        assert (said([early]), early.deliveries) == (["early"], 2)
        assert gap.message.schema == "agent-os.gap"
        assert said([first]) == [said([gap])[0]["count"]]
        bench.ack(early, gap, first)
        bench.crash()
        assert said(bench.pull(n=1)) == [said([first])[0] + 1]

    def test_a_reliable_topic_refuses_its_publisher_instead(self, bench: Bench) -> None:
        bench.keep(bench.broker.declare("t.>", bench.now, reliable=True))
        bench.subscribe("t.x")
        for number in range(10_000):
            bench.publish("t.x", number, sender=f"s{number % 6}")
        with pytest.raises(EAGAIN) as refused:
            bench.publish("t.x", "more")
        assert refused.value.code == "bus.lag"
        assert refused.value.retry_after_ms
        bench.publish("t.y", "nobody lags there")
        bench.ack(*bench.pull(n=1))
        bench.publish("t.x", "more")
        bench.crash()
        assert bench.broker.declared() == ["t.>"]
        with pytest.raises(EAGAIN):
            bench.publish("t.x", "more")
        bench.keep(bench.broker.declare("t.>", bench.now, reliable=False))
        bench.publish("t.x", "there is a gap again")
        bench.crash()
        assert bench.broker.declared() == []

    def test_credit_is_what_may_be_in_hand_and_lasts_over_a_crash(self, bench: Bench) -> None:
        sub = bench.subscribe("t", credit=2)
        for number in range(3):
            bench.publish("t", number)
        consumer = f"b#{sub}"
        assert consumer in bench.woken
        assert bench.pull() == [], "it is a consumer by itself"
        assert bench.broker.credit(consumer) == 2
        first, _ = bench.pull(consumer, n=2)
        assert bench.broker.credit(consumer) == 0
        bench.ack(first)
        assert bench.broker.credit(consumer) == 1
        bench.keep(bench.broker.grant("b", sub, 5, bench.now))
        assert bench.broker.credit(consumer) == 4
        bench.crash()
        assert bench.broker.credit(consumer) == 5, "what was in hand waits again"
        assert bench.broker.credit("b") == 0

    def test_the_load_of_a_stream_is_what_its_receiver_has_not_acknowledged(self, bench: Bench) -> None:
        for number in range(3):
            bench.send("b", number, type="stream", corr="c")
        bench.send("b", "other", type="stream", corr="d")
        bench.send("b", "event", corr="c")
        count, size = bench.broker.load("a", "b", "c")
        assert count == 3
        assert size > 0
        bench.ack(bench.pull(n=1)[0])
        assert bench.broker.load("a", "b", "c")[0] == 2
        assert bench.broker.load("a", "nobody", "c") == (0, 0)

    def test_what_an_agent_may_not_hear_is_passed_over_and_given_to_who_may(self, bench: Bench) -> None:
        bench.subscribe("t.*")
        for agent in ("c", "d"):
            bench.subscribe("t.*", agent=agent, group="g")
        bench.deaf |= {("b", "t.secret"), ("c", "t.secret")}
        for topic in ("t.open", "t.secret", "t.last"):
            bench.publish(topic, topic)
        got = bench.pull("b")
        assert said(got) == ["t.open", "t.last"]
        bench.ack(*got)
        assert bench.broker.lag("b").waiting == 0
        assert said(bench.pull("c")) == ["t.open"], "the second waits for the other member"
        bench.woken.clear()
        assert said(bench.pull("d", n=1)) == ["t.secret"]
        assert "c" in bench.woken
        assert said(bench.pull("c")) == ["t.last"]
        bench.deaf.add(("d", "t.secret"))
        bench.publish("t.secret", "for nobody")
        bench.publish("t.open", "more")
        assert said(bench.pull("d")) == ["more"]

    def test_events_that_expire_unseen_are_a_gap_too(self, bench: Bench) -> None:
        bench.subscribe("t")
        for number in range(3):
            bench.publish("t", number, ttl_ms=1000)
        bench.publish("t", "long")
        bench.seconds += 2
        assert said(bench.pull()) == ["long"]
        (gap,) = bench.pull()
        assert said([gap])[0]["count"] == 3
        assert said([gap])[0]["reason"] == "expired"

    def test_one_event_in_hand_does_not_hold_up_the_others_for_a_while(self, bench: Bench) -> None:
        bench.subscribe("t")
        for number in range(1500):
            bench.publish("t", number)
        (first,) = bench.pull(n=1)
        seen = 0
        while got := bench.pull(n=100):
            seen += len(got)
            bench.ack(*got)
        assert seen == 1000
        bench.ack(first)
        assert len(bench.pull(n=100)) == 100


class Crashing:
    def test_what_was_not_kept_never_happened(self, bench: Bench) -> None:
        bench.send("b", "kept")
        bench.broker.publish([Outgoing("b", "a")], bench.now)
        bench.crash()
        assert said(bench.pull()) == ["kept"]

    def test_nothing_that_was_kept_is_lost_and_order_stays(self, bench: Bench) -> None:
        for number in range(50):
            bench.send("b", number)
            if number % 7 == 0:
                bench.crash()
        got = bench.pull(n=20)
        bench.ack(*got[:10])
        bench.crash()
        assert said(bench.pull(n=100)) == list(range(10, 50))

    def test_ids_are_never_given_twice(self, bench: Bench) -> None:
        ids = set[str]()
        for _ in range(5):
            for _ in range(3):
                ids.add(bench.send("b").id)
            bench.ack(*bench.pull())
            bench.crash()
        assert len(ids) == 15

    def test_an_acknowledgement_from_before_the_crash_still_counts_after_it(self, bench: Bench) -> None:
        bench.send("b", 1)
        (got,) = bench.pull()
        bench.crash()
        assert bench.ack(got) == 0
        assert bench.pull() == []

    def test_subscriptions_go_on_where_they_were(self, bench: Bench) -> None:
        bench.subscribe("t.>")
        bench.subscribe("t.>", agent="c", group="g")
        for number in range(10):
            bench.publish("t.x", number, lane=number % 3)
        mine = {said([one])[0]: one for one in bench.pull()}
        bench.ack(*(mine[number] for number in (0, 2, 4, 6)))
        bench.crash()
        assert sorted(said(bench.pull())) == [1, 3, 5, 7, 8, 9]
        assert sorted(said(bench.pull("c"))) == list(range(10))
        bench.crash()
        bench.publish("t.y", "new")
        assert "new" in said(bench.pull())

    def test_crashing_between_any_two_steps_loses_nothing_and_repeats_no_acknowledged_one(self, bench: Bench) -> None:
        acked: list[int] = []
        bench.subscribe("t")
        for number in range(30):
            (bench.send if number % 2 else bench.publish)("b" if number % 2 else "t", number)
            bench.crash()
            if number % 3 == 0:
                got = bench.pull(n=2)
                bench.crash()
                bench.ack(*got)
                acked += said(got)
                bench.crash()
        assert len(acked) == len(set(acked))
        assert sorted(said(bench.pull())) == sorted(set(range(30)) - set(acked))
