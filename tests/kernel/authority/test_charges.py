"""Charges: what is spent is spent at every ancestor, all or nothing, and never more than anybody has."""

import random

import pytest

from agent_os.abi.errors import EAGAIN, EBUDGET, EINVAL
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.charges import Charge, reserve, room
from agent_os.kernel.authority.handles import Clock, Handle, Holdings


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.clock = Clock(lambda: self.now, lambda: self.now)


def granted(text: str, holder: str = "a") -> tuple[Holdings, Handle]:
    held = Holdings(holder, ())
    return held, held.grant(parse(text), "operator")


def children(parent: Holdings, text: str, count: int) -> list[Handle]:
    return [parent.delegate(text, Holdings(f"child{n}", ()))[0] for n in range(count)]


def test_ten_children_cannot_spend_more_than_their_parent_has() -> None:
    held, parent = granted("llm:openai/*:call{tokens:1000,cost:0.50}")
    ten = children(held, "llm:openai/small:call{tokens:1000}", 10)
    chance, spent, cost = random.Random(1), 0, 0.0
    for _ in range(1000):
        amount = chance.randint(1, 60)
        try:
            reserve([chance.choice(ten)], {"tokens": amount, "cost": 0.01}).settle()
        except EBUDGET as error:
            assert error.detail["handle"] == parent.id  # noqa: PT017
        else:
            spent, cost = spent + amount, cost + 0.01
    assert 0 < spent <= 1000
    assert cost <= 0.50 + 1e-9
    assert parent.used["tokens"] == spent == sum(one.used.get("tokens", 0) for one in ten)
    assert parent.used["cost"] == sum(one.used.get("cost", 0) for one in ten) <= 500_000


def test_what_is_refused_by_an_ancestor_is_charged_nowhere() -> None:
    held, parent = granted("file:/**:read{bytes:100}")
    (child,) = children(held, "file:/a/**:read", 1)
    reserve([child], {"bytes": 90})
    with pytest.raises(EBUDGET, match="bytes 90 of 100 used, 20 asked for") as caught:
        reserve([child], {"bytes": 20})
    assert caught.value.code == "budget.bytes"
    assert caught.value.detail["holder"] in ("a", "child0")
    for one in (parent, child):
        assert (one.used["bytes"], one.used["count"]) == (90, 1)


def test_the_ancestor_that_is_exhausted_is_named() -> None:
    held, parent = granted("file:/**:read{count:3}")
    one, other = children(held, "file:/a/**:read{count:2}", 2)
    reserve([one])
    reserve([one])
    with pytest.raises(EBUDGET) as caught:
        reserve([one])
    assert caught.value.detail["handle"] == one.id
    reserve([other])
    with pytest.raises(EBUDGET) as caught:
        reserve([other])
    assert caught.value.detail["handle"] == parent.id


def test_what_was_reserved_and_not_used_comes_back() -> None:
    held, parent = granted("llm:*:call{tokens:100}")
    (child,) = children(held, "llm:*:call", 1)
    charge = reserve([child], {"tokens": 100})
    assert room([child], "tokens") == 0
    charge.settle({"tokens": 30})
    charge.settle({"tokens": 0})  # once
    charge.release()
    assert (parent.used["tokens"], child.used["tokens"], room([child], "tokens")) == (30, 30, 70)


def test_more_than_was_reserved_is_spent_all_the_same() -> None:
    _, one = granted("llm:*:call{tokens:100}")
    reserve([one], {"tokens": 10}).settle({"tokens": 120})
    assert one.used["tokens"] == 120
    assert room([one], "tokens") == 0
    with pytest.raises(EBUDGET):
        reserve([one], {"tokens": 1})


def test_released_it_never_happened() -> None:
    held, parent = granted("agent:spawn{max:1,count:1}")
    (child,) = children(held, "agent:spawn", 1)
    for _ in range(5):
        reserve([child], alive=True).release()
    assert {name: amount for name, amount in parent.used.items() if amount} == {}


def test_no_more_are_alive_at_once_than_any_ancestor_allows() -> None:
    held, parent = granted("agent:spawn{max:3}")
    one, other = children(held, "agent:spawn{max:2}", 2)
    first, second = (reserve([one], alive=True) for _ in range(2))
    with pytest.raises(EBUDGET) as caught:
        reserve([one], alive=True)
    assert (caught.value.code, caught.value.detail["handle"]) == ("budget.max", one.id)
    reserve([other], alive=True)
    with pytest.raises(EBUDGET) as caught:
        reserve([other], alive=True)
    assert caught.value.detail["handle"] == parent.id
    first.settle()
    first.ended()
    first.ended()  # once
    assert parent.used["live"] == 2
    assert isinstance(reserve([other], alive=True), Charge)
    second.ended()


def test_a_rate_holds_for_all_children_together_and_says_when_to_come_back() -> None:
    time = Time()
    held, _ = granted("tool:x:call{rate:10/s}")
    ten = children(held, "tool:x:call", 10)
    for one in ten:
        reserve([one], clock=time.clock)
    with pytest.raises(EAGAIN) as caught:
        reserve([ten[0]], clock=time.clock)
    assert caught.value.retry_after_ms == 100
    assert caught.value.retryable
    time.now += 0.1
    reserve([ten[3]], clock=time.clock)
    with pytest.raises(EAGAIN):
        reserve([ten[4]], clock=time.clock)
    time.now += 3600
    for one in ten:
        reserve([one], clock=time.clock)
    with pytest.raises(EAGAIN):
        reserve([ten[0]], clock=time.clock)


def test_a_rate_that_refuses_takes_nothing() -> None:
    time = Time()
    held, parent = granted("tool:x:call{rate:1/s,count:5}")
    (child,) = children(held, "tool:x:call", 1)
    reserve([child], clock=time.clock)
    for _ in range(10):
        with pytest.raises(EAGAIN):
            reserve([child], clock=time.clock)
    assert parent.used["count"] == 1


def test_a_clock_that_goes_back_gives_nothing() -> None:
    time = Time()
    _, one = granted("tool:x:call{rate:1/s}")
    reserve([one], clock=time.clock)
    time.now -= 50
    with pytest.raises(EAGAIN):
        reserve([one], clock=time.clock)


def test_a_call_that_rests_on_two_handles_is_one_use_of_what_both_come_from() -> None:
    held, parent = granted("file:/**:read,write{count:5}")
    one, other = children(held, "file:/a/**:read", 2)
    reserve([one, other])
    assert (parent.used["count"], one.used["count"], other.used["count"]) == (1, 1, 1)


def test_four_fifths_of_a_limit_are_worth_an_event_once() -> None:
    held, parent = granted("file:/**:read{count:10}")
    (child,) = children(held, "file:/a/**:read", 1)
    crossed = [(n, one.handle.id, one.row) for n in range(1, 11) for one in reserve([child]).crossings]
    assert sorted(crossed) == sorted([(8, child.id, "count"), (8, parent.id, "count")])


def test_uses_are_counted_without_a_limit_too() -> None:
    _, one = granted("file:/**:read")
    for _ in range(3):
        reserve([one], {"bytes": 5})
    assert one.used == {"count": 3, "bytes": 15}
    assert room([one], "bytes") is None


@pytest.mark.parametrize("amounts", [{"tokens": -1}, {"colour": 1}, {"cost": float("nan")}, {"bytes": float("inf")}])
def test_what_is_no_amount_is_refused(amounts: dict[str, float]) -> None:
    _, one = granted("file:/**:read")
    with pytest.raises(EINVAL):
        reserve([one], amounts)
    assert one.used == {}


def test_costs_round_up_to_the_millionth() -> None:
    _, one = granted("llm:*:call{cost:1}")
    reserve([one], {"cost": 0.000_000_1})
    assert one.used["cost"] == 1


def test_what_goes_on_may_need_more_at_every_ancestor_or_at_none() -> None:
    held, parent = granted("http:a.test:request{bytes:100}")
    (child,) = children(held, "http:a.test:request", 1)
    charge = reserve([child], {"bytes": 40})
    charge.grow({"bytes": 50})
    assert (child.used["bytes"], parent.used["bytes"], room([child], "bytes")) == (90, 90, 10)
    with pytest.raises(EBUDGET):
        charge.grow({"bytes": 11})
    assert (child.used["bytes"], parent.used["bytes"]) == (90, 90)
    charge.settle({"bytes": 70})
    charge.grow({"bytes": 5})  # over is over
    assert (child.used["bytes"], parent.used["count"]) == (70, 1)
