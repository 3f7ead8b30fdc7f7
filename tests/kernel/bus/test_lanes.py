"""Turns: of lanes, and of senders in a lane."""

from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from agent_os.kernel.bus.lanes import TURNS, Item, Lanes, Queue
from agent_os.kernel.bus.mailbox import Owner
from agent_os.kernel.bus.message import ALL_LANES, HIGH, LOW, NORMAL, Outgoing, stamped


def item(seq: int, queue: Queue) -> Item:
    message = stamped(Outgoing("b", "a", lane=queue.lane), seq, f"m-{seq}", 0)
    return Item(message, 1, 1e9, cast(Owner, None), queue)


def take(lanes: Lanes, count: int) -> list[Item]:
    taken: list[Item] = []
    while len(taken) < count and (one := lanes.next(ALL_LANES, 0.0)):
        lanes.took(one.queue)
        taken.append(one)
    return taken


def test_sixteen_turns_are_twelve_three_and_one() -> None:
    assert [TURNS.count(lane) for lane in (HIGH, NORMAL, LOW)] == [12, 3, 1]
    assert len(TURNS) == 16


@given(st.tuples(*[st.integers(0, 40)] * 3))
def test_everything_comes_and_a_waiting_lane_waits_at_most_sixteen_turns(counts: tuple[int, int, int]) -> None:
    lanes = Lanes()
    for lane, count in enumerate(counts):
        queue = Queue(lane)
        for number in range(count):
            queue.add(item(lane * 100 + number, queue))
        lanes.enter(queue)
    taken = [one.queue.lane for one in take(lanes, 200)]
    assert [taken.count(lane) for lane in ALL_LANES] == list(counts)
    for lane in ALL_LANES:
        last = max((at for at, one in enumerate(taken) if one == lane), default=0)
        for at in range(0, last - 15):
            assert lane in taken[at : at + 16]


@given(st.lists(st.tuples(st.sampled_from(["add", "take", "back", "forget"]), st.integers(0, 10))))
def test_a_queue_is_in_order_whatever_comes_back_or_is_forgotten(steps: list[tuple[str, int]]) -> None:
    queue, waiting, out, number = Queue(NORMAL), dict[int, Item](), list[Item](), 0
    for verb, which in steps:
        if verb == "add":
            number += 1
            waiting[number] = item(number, queue)
            queue.add(waiting[number])
        elif verb == "take" and (head := queue.head()):
            assert head.seq == min(waiting)
            queue.take()
            out.append(waiting.pop(head.seq))
        elif verb == "back" and out:
            one = out.pop(which % len(out))
            waiting[one.seq] = one
            queue.put_back(one)
        elif verb == "forget" and waiting:
            queue.forget(waiting.pop(sorted(waiting)[which % len(waiting)]))
        assert len(queue) == len(waiting)
