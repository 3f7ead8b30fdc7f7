"""The local broker is a broker, and leaves nothing behind."""

from pathlib import Path

import pytest

from agent_os.kernel.bus import cursors, held, log, mailbox
from agent_os.kernel.bus.broker import Start
from kernel.bus import conformance
from kernel.bus.bench import HOUR, LocalBench, said


@pytest.fixture
def bench(tmp_path: Path) -> LocalBench:
    return LocalBench(tmp_path / "store.db")


class TestDelivering(conformance.Delivering): ...


class TestOrdering(conformance.Ordering): ...


class TestBounding(conformance.Bounding): ...


class TestDeduplicating(conformance.Deduplicating): ...


class TestDying(conformance.Dying): ...


class TestSubscribing(conformance.Subscribing): ...


class TestLagging(conformance.Lagging): ...


class TestCrashing(conformance.Crashing): ...


def rows(bench: LocalBench, *buckets: str) -> int:
    return sum(len(list(bench.store.items(bucket))) for bucket in buckets)


def test_what_is_acknowledged_leaves_no_row(bench: LocalBench) -> None:
    for turn in range(3):
        for number in range(20):
            bench.send("b", number, sender=f"s{number % 3}", lane=number % 3)
        got = bench.pull(n=7)
        bench.nack(*got[:3])
        if turn == 1:
            bench.crash()
        bench.sleep(31)
        while got := bench.pull(n=5):
            bench.ack(*got)
    assert rows(bench, mailbox.BOXES, held.HANDS) == 0


def test_an_event_is_stored_once_however_many_wait_for_it(bench: LocalBench) -> None:
    for agent in "bcdefgh":
        bench.subscribe("t", agent=agent)
    bench.publish("t", "x" * 10_000)
    assert rows(bench, log.LOG) == 1


def test_history_is_bounded_and_of_one_topic_a_quarter(bench: LocalBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "HISTORY_EVENTS", 40)
    for number in range(30):
        bench.publish("loud", number)
    bench.publish("quiet", "still there")
    for number in range(30):
        bench.publish("loud", number)
    assert rows(bench, log.LOG) == 11
    bench.subscribe(">", start=Start("first"))
    assert said(bench.pull(n=100)) == ["still there", *range(20, 30)]


def test_what_somebody_needs_is_no_history(bench: LocalBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "HISTORY_EVENTS", 4)
    bench.subscribe("t")
    for number in range(30):
        bench.publish("t", number)
    assert said(bench.pull(n=100)) == list(range(30))
    bench.crash()
    got = bench.pull(n=100)
    assert len(got) == 30
    bench.ack(*got)
    assert rows(bench, log.LOG) == 1


def test_history_ends_after_a_week(bench: LocalBench) -> None:
    bench.publish("t", 1)
    bench.sleep(7 * 24 * HOUR + 60)
    assert rows(bench, log.LOG) == 0


def test_the_last_to_leave_takes_the_cursor_with_it(bench: LocalBench) -> None:
    for agent in "bc":
        bench.subscribe("t", agent=agent, group="g")
    bench.publish("t", 1)
    bench.pull("b")
    for agent in "bc":
        bench.keep(bench.broker.gone(agent, bench.now))
    assert rows(bench, cursors.CURSORS, cursors.SUBSCRIPTIONS, held.HANDS) == 0


def test_one_pull_is_one_row_however_many_it_gives(bench: LocalBench) -> None:
    for number in range(50):
        bench.send("b", number)
    change = bench.broker.pull("b", 50, bench.now)
    assert len(change.value) == 50
    assert len(change.puts) == 1


def test_where_nobody_pulls_memory_does_not_grow(bench: LocalBench) -> None:
    box = bench.local._state.box("b", 0.0)  # pyright: ignore[reportPrivateUsage]
    for _ in range(50):
        for _ in range(20):
            bench.send("b", ttl_ms=1000)
        bench.sleep(3)
    queue = bench.send("b") and next(iter(box.items.values())).queue
    assert len(queue._fresh) < 200  # pyright: ignore[reportPrivateUsage]
    assert len(queue) == 1


def test_nothing_waits_for_a_timer_that_has_nothing_to_do(bench: LocalBench) -> None:
    bench.sleep(2)
    assert (bench.broker.next_tend or 0) > bench.seconds + 1000
    bench.send("b")
    bench.pull()
    assert (bench.broker.next_tend or 0) <= bench.seconds + 30.1
