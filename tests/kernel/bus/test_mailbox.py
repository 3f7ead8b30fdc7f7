"""A mailbox against a model of it: what is given, refused, given again and dead, whatever is done in which order."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agent_os.abi.errors import EAGAIN, AgentOSError
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.bus import mailbox
from agent_os.kernel.bus.broker import Change
from agent_os.kernel.bus.held import Consumer
from agent_os.kernel.bus.local import LocalBroker
from agent_os.kernel.bus.message import LANES, Delivery, Now, Outgoing
from agent_os.kernel.bus.terms import Terms
from kernel.bus.bench import EPOCH_NS

MOST = 16
STEP = 10.0  # seconds; every deadline of the model lies between two steps
VISIBLE, DELAY_MS, TTLS = 25.0, 5000, (15_000, 45_000, 10**9)


@dataclass
class Known:
    """One message, as the model has it."""

    id: str
    sender: str
    lane: int
    seq: int
    expires: float
    key: str | None
    until: float | None = None  # in hand
    not_before: float = 0.0
    deliveries: int = 0
    deaths: int = 0


class MailboxMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = SqliteStore(None)
        self.mono = 1000.0
        self.messages: dict[str, Known] = {}
        self.seen: set[tuple[str, str]] = set()
        self.dead: list[str] = []

    @initialize()
    def start(self) -> None:
        self.broker = LocalBroker(self.store, self.now, terms=lambda _: Terms(queue=MOST))

    def teardown(self) -> None:
        self.store.close()

    @property
    def now(self) -> Now:
        return Now(self.mono, EPOCH_NS + int(self.mono * 1e9))

    def keep(self, change: Change[Any]) -> Any:
        self.store.append([], change.puts, [], sync=False)
        return change.value

    @rule(
        sender=st.sampled_from("xyz"),
        lane=st.sampled_from(range(len(LANES))),
        ttl=st.sampled_from(TTLS),
        key=st.sampled_from([None, None, "k", "l"]),
    )
    def send(self, sender: str, lane: int, ttl: int, key: str | None) -> None:
        share = sum(one.sender == sender for one in self.messages.values()) + 1
        count = len(self.messages) + 1
        full = count > MOST or (2 * count > MOST and 4 * share > MOST)
        known = next((one for one in self.messages.values() if key and (one.sender, one.key) == (sender, key)), None)
        draft = Outgoing("b", sender, lane=lane, ttl_ms=ttl, key=key)
        (sent,) = self.keep(self.broker.publish([draft], self.now))
        if key and (known or (sender, key) in self.seen):
            assert sent.duplicate
            assert known is None or sent.id == known.id
        elif full:
            assert isinstance(sent, EAGAIN)
            assert 10 <= (sent.retry_after_ms or 0) <= 60_000
        else:
            assert not isinstance(sent, AgentOSError)
            self.messages[sent.id] = Known(sent.id, sender, lane, sent.seq, self.mono + ttl / 1000, key)

    @rule(n=st.integers(1, 20), lanes=st.sets(st.sampled_from([0, 1, 2]), min_size=1))
    def pull(self, n: int, lanes: set[int]) -> None:
        ready: dict[tuple[str, int], list[Known]] = {}
        for one in sorted(self.messages.values(), key=lambda one: one.seq):
            if one.until is None and one.lane in lanes:
                ready.setdefault((one.sender, one.lane), []).append(one)
        for queue in ready.values():
            held_up = next((at for at, one in enumerate(queue) if one.not_before > self.mono), len(queue))
            del queue[held_up:]
        available = sum(map(len, ready.values()))
        got: list[Delivery] = self.keep(self.broker.pull("b", n, self.now, lanes=sorted(lanes), visible_s=VISIBLE))
        assert len(got) == min(n, available)
        for one in got:
            expected = ready[one.message.sender, one.message.lane].pop(0)
            assert one.message.id == expected.id
            expected.deliveries += 1
            assert one.deliveries == expected.deliveries
            expected.until = self.mono + VISIBLE

    def some(self, data: st.DataObject) -> list[Known]:
        handed = [one for one in self.messages.values() if one.deliveries]
        return data.draw(st.lists(st.sampled_from(handed), unique_by=lambda one: one.id))

    @precondition(lambda self: any(one.deliveries for one in self.messages.values()))
    @rule(data=st.data(), reject=st.booleans())
    def settle(self, data: st.DataObject, reject: bool) -> None:
        """Also late: what is not in hand any more can still be acknowledged."""
        some = self.some(data)
        verb = self.broker.reject if reject else self.broker.ack
        assert self.keep(verb("b", [one.id for one in some], self.now)) == 0
        for one in some:
            self.over(one, letter=reject)
            if one.key:
                self.seen.add((one.sender, one.key))

    @precondition(lambda self: any(one.deliveries for one in self.messages.values()))
    @rule(data=st.data(), delay=st.booleans())
    def nack(self, data: st.DataObject, delay: bool) -> None:
        some = self.some(data)
        unknown = self.keep(
            self.broker.nack("b", [one.id for one in some], self.now, delay_ms=DELAY_MS if delay else 0)
        )
        assert unknown == sum(one.until is None for one in some)
        for one in some:
            if one.until is not None:
                self.back(one)
                one.not_before = self.mono + DELAY_MS / 1000 if delay else one.not_before

    @rule()
    def die(self) -> None:
        self.keep(self.broker.died("b", self.now))
        for one in list(self.messages.values()):
            if one.until is not None:
                one.deaths += 1
                self.back(one)

    @rule(steps=st.integers(1, 4))
    def pass_time(self, steps: int) -> None:
        for _ in range(steps):
            self.mono += STEP
            self.keep(self.broker.tend(self.now))
            for one in list(self.messages.values()):
                if one.until is not None and one.until < self.mono:
                    self.back(one)
                elif one.until is None and one.expires < self.mono:
                    self.over(one, letter=True)

    @rule()
    def crash(self) -> None:
        self.broker = LocalBroker(self.store, self.now, terms=lambda _: Terms(queue=MOST))
        for one in self.messages.values():
            one.until, one.not_before = None, 0.0
        self.keep(self.broker.tend(self.now))
        for one in list(self.messages.values()):
            if one.expires < self.mono:
                self.over(one, letter=True)

    def back(self, one: Known) -> None:
        one.until = None
        if one.deaths >= 3 or one.deliveries >= 5 or one.expires <= self.mono:
            self.over(one, letter=True)

    def over(self, one: Known, *, letter: bool) -> None:
        del self.messages[one.id]
        if letter:
            self.dead.append(one.id)

    @invariant()
    def counts_agree(self) -> None:
        if not hasattr(self, "broker"):
            return
        lag = self.broker.lag("b")
        in_hand = sum(one.until is not None for one in self.messages.values())
        assert (lag.waiting, lag.in_hand) == (len(self.messages) - in_hand, in_hand)
        assert sorted(one.message.id for one in self.broker.dead_letters()) == sorted(self.dead)


MailboxMachine.TestCase.settings = settings(
    max_examples=150, stateful_step_count=80, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.long
class TestMailbox(MailboxMachine.TestCase): ...


def test_a_mailbox_knows_its_bounds_before_anything_changes() -> None:
    box = mailbox.Mailbox(Consumer("b", "b"), 0.0)
    box.require_room("a", mailbox.MOST_BYTES // 4, 0.0)
    with pytest.raises(EAGAIN):
        box.require_room("a", mailbox.MOST_BYTES + 1, 0.0)
    assert (box.items, box.bytes) == ({}, 0)
