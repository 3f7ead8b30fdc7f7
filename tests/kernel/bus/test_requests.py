"""Asking and answering: deadlines, late replies, ended receivers, circles, and a crash at any point."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from agent_os.abi.errors import EBUSY, EDEADLK, EDQUOT, EINVAL, ENOENT, EPERM, ESRCH, ETIMEDOUT
from agent_os.kernel.bus.message import Message, Outgoing
from agent_os.kernel.bus.requests import MOST, Answered, Ask, Requests
from kernel.bus.bench import HOUR, LocalBench


class Asking(LocalBench):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.requests = Requests(self.store, self.broker, self.now)

    def crash(self, *, away: float = 0.0) -> None:
        super().crash(away=away)
        self.requests = Requests(self.store, self.broker, self.now)

    def ask(
        self, asker: str = "a", asked: str = "b", *, deadline_ms: int | None = 10_000, key: str | None = None
    ) -> Ask:
        draft = Outgoing(asked, asker, type="request", deadline_ms=deadline_ms, key=key)
        return self.keep(self.requests.ask(draft, self.now))

    def reply(self, request: str, value: str = "yes", *, replier: str = "b") -> Answered:
        draft = Outgoing("", replier, payload=msgspec.Raw(msgspec.msgpack.encode(value)))
        return self.keep(self.requests.reply(draft, request, self.now))

    def collect(self, request: str) -> Message | ESRCH:
        return self.keep(self.requests.collect(request))


@pytest.fixture
def bench(tmp_path: Path) -> Asking:
    return Asking(tmp_path / "store.db")


def test_a_reply_comes_to_whoever_asked_and_the_request_is_done_with_it(bench: Asking) -> None:
    ask = bench.ask()
    (got,) = bench.pull()
    assert (got.message.type, got.left_ms) == ("request", 10_000)
    assert not bench.reply(got.id).late
    assert bench.woken[-1] == ask.id
    answer = bench.collect(ask.id)
    assert isinstance(answer, Message)
    assert (answer.type, answer.corr, answer.sender, answer.to) == ("response", ask.id, "b", "a")
    assert msgspec.msgpack.decode(answer.payload) == "yes"
    bench.sleep(HOUR)
    assert bench.pull() == []
    assert bench.reasons() == []


def test_a_request_needs_a_deadline(bench: Asking) -> None:
    with pytest.raises(EINVAL, match="deadline"):
        bench.ask(deadline_ms=None)


def test_a_late_reply_is_a_dead_letter(bench: Asking) -> None:
    ask = bench.ask()
    bench.pull()
    bench.sleep(11)
    bench.keep(bench.requests.give_up(ask.id, bench.now))
    assert bench.reply(ask.id).late
    (letter,) = bench.broker.dead_letters("a")
    assert (letter.reason, letter.message.corr) == ("late", ask.id)


def test_it_is_late_also_if_nobody_has_given_up_yet(bench: Asking) -> None:
    ask = bench.ask()
    bench.pull()
    bench.seconds += 10.001
    assert bench.reply(ask.id).late


@pytest.mark.parametrize("late", [False, True])
def test_nobody_answers_for_another_or_twice_or_what_was_not_asked(bench: Asking, late: bool) -> None:
    ask = bench.ask()
    bench.pull()
    with pytest.raises(EPERM):
        bench.reply(ask.id, replier="mallory")
    with pytest.raises(ENOENT):
        bench.reply("m-ffff")
    bench.seconds += 11 if late else 0
    bench.reply(ask.id)
    with pytest.raises(ENOENT if late else EBUSY):
        bench.reply(ask.id)


def test_asked_again_with_its_key_a_request_is_the_same(bench: Asking) -> None:
    first = bench.ask(key="k")
    assert bench.ask(key="k").id == first.id
    bench.pull()
    bench.reply(first.id)
    again = bench.ask(key="k")
    assert again.answer is not None
    assert bench.pull() == []


def test_after_its_deadline_it_can_be_asked_again_and_still_be_answered(bench: Asking) -> None:
    ask = bench.ask(key="k")
    bench.pull(visible_s=HOUR)
    bench.sleep(11)
    bench.keep(bench.requests.give_up(ask.id, bench.now))
    assert bench.ask(key="k").id == ask.id
    assert not bench.reply(ask.id).late


def test_what_was_answered_too_late_is_not_waited_for_again(bench: Asking) -> None:
    ask = bench.ask(key="k")
    bench.pull(visible_s=HOUR)
    bench.sleep(11)
    bench.reply(ask.id)
    with pytest.raises(ETIMEDOUT, match="key"):
        bench.ask(key="k")


def test_whoever_asks_one_that_ends_hears_so(bench: Asking) -> None:
    ask = bench.ask()
    assert bench.keep(bench.requests.ended("b")) == [ask.id]
    assert bench.woken[-1] == ask.id
    assert isinstance(bench.collect(ask.id), ESRCH)


def test_what_somebody_asked_who_ended_is_nobodys(bench: Asking) -> None:
    ask = bench.ask()
    bench.pull()
    bench.keep(bench.requests.ended("a"))
    assert bench.requests.find(ask.id) is None
    assert bench.reply(ask.id).late
    bench.sleep(HOUR)
    assert bench.pull() == [], "whoever answered it is done with it"


@pytest.mark.parametrize("agents", ["a", "ab", "abc", "abcde"])
def test_a_circle_is_refused_at_once_and_names_itself(bench: Asking, agents: str) -> None:
    for asker, asked in pairwise(agents):
        bench.ask(asker, asked)
    with pytest.raises(EDEADLK) as refused:
        bench.ask(agents[-1], agents[0])
    assert refused.value.detail["circle"] == [agents[-1], *agents]


def test_whoever_was_answered_or_gave_up_waits_for_nobody(bench: Asking) -> None:
    first = bench.ask("a", "b")
    bench.pull("b")
    bench.reply(first.id)
    second = bench.ask("b", "a")
    bench.keep(bench.requests.give_up(second.id, bench.now))
    bench.ask("a", "b")


def test_many_ways_that_are_no_circle_are_looked_at_once_each(bench: Asking) -> None:
    for layer in range(9):
        for one in range(3):
            for other in range(3):
                bench.ask(f"{layer}-{one}", f"{layer + 1}-{other}")
    bench.ask("start", "0-0")
    with pytest.raises(EDEADLK):
        bench.ask("9-0", "start")


def test_open_requests_are_bounded(bench: Asking) -> None:
    for number in range(MOST):
        bench.ask(asked=f"b{number}")
    with pytest.raises(EDQUOT, match=str(MOST)):
        bench.ask()


@pytest.mark.parametrize("crash_at", range(4))
def test_both_sides_are_restored_wherever_the_kernel_ended(bench: Asking, crash_at: int) -> None:
    ask = bench.ask(key="k")
    if crash_at == 0:
        bench.crash()
    (got,) = bench.pull()
    if crash_at == 1:
        bench.crash()
    bench.reply(got.id)
    if crash_at == 2:
        bench.crash()
    assert bench.ask(key="k").answer is not None
    assert isinstance(bench.collect(ask.id), Message)
    if crash_at == 3:
        bench.crash()
    assert bench.pull() == []
    assert bench.requests.find(ask.id) is None


def test_a_deadline_does_not_grow_by_a_crash(bench: Asking) -> None:
    ask = bench.ask()
    bench.pull()
    bench.crash(away=11)
    assert bench.reply(ask.id).late


def test_nothing_is_kept_for_ever(bench: Asking) -> None:
    bench.ask()
    answered = bench.ask(asked="c")
    bench.pull("c")
    bench.reply(answered.id, replier="c")
    for _ in range(3):
        bench.seconds += 25 * HOUR
        bench.keep(bench.requests.tend(bench.now))
    assert bench.requests.next_tend is None
    assert list(bench.store.items("bus.asks")) == []
