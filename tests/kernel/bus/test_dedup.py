"""What is remembered is found in memory or in the store, and forgotten a generation at a time."""

from collections.abc import Iterator

import pytest

from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.bus import state as dedup
from agent_os.kernel.bus.message import Message, Now, Outgoing, stamped
from agent_os.kernel.bus.state import REMEMBERED_S, Dedup

DAY = 24 * 3600


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(None)
    yield store
    store.close()


def at(seconds: float) -> Now:
    return Now(seconds, int(seconds * 1e9))


def message(key: str | None, number: int = 1) -> Message:
    return stamped(Outgoing("b", "a", key=key), number, f"m-{number:x}", 0)


def remember(store: SqliteStore, seen: Dedup, key: str, now: Now) -> None:
    store.append([], list(seen.remember("b", message(key), now)), [], sync=False)


def test_a_message_without_a_key_costs_nothing(store: SqliteStore) -> None:
    assert list(Dedup(store).remember("b", message(None), at(0))) == []


def test_memory_keeps_the_newest_and_the_store_the_rest(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "_IN_MEMORY", 10)
    seen = Dedup(store)
    for number in range(200):
        remember(store, seen, f"k{number}", at(number * 10))
    assert len(seen._recent) < 20  # pyright: ignore[reportPrivateUsage]
    assert all(seen.find("b", "a", f"k{number}", at(2000)) for number in range(200))
    assert seen.find("b", "a", "k200", at(2000)) is None


def test_what_may_not_be_committed_yet_stays_in_memory(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dedup, "_IN_MEMORY", 10)
    seen = Dedup(store)
    for number in range(50):
        list(seen.remember("b", message(f"k{number}"), at(1)))
    assert all(seen.find("b", "a", f"k{number}", at(2)) for number in range(50))


def test_generations_that_are_over_leave_no_row_and_others_stay(store: SqliteStore) -> None:
    seen = Dedup(store)
    for number in range(1200):
        remember(store, seen, f"old{number}", at(1))
    later = at(REMEMBERED_S + 13 * DAY)
    remember(store, seen, "new", later)
    for _ in range(10):
        store.append([], seen.tend(later), [], sync=False)
    rows = [key for number in range(10) for key, _ in store.items(f"bus.seen.{number}")]
    assert rows == ["b\0a\0new"]
    assert Dedup(store).find("b", "a", "new", later)
