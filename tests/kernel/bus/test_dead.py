"""Dead letters within bounds, and none of them forgotten silently."""

from collections.abc import Iterator

import pytest

from agent_os.abi.errors import ENOENT
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.bus import state as dead
from agent_os.kernel.bus.broker import Note
from agent_os.kernel.bus.message import Letter, Outgoing, stamped
from agent_os.kernel.bus.state import Letters


@pytest.fixture
def store() -> Iterator[SqliteStore]:
    store = SqliteStore(None)
    yield store
    store.close()


def put(store: SqliteStore, letters: Letters, number: int, receiver: str = "b", sender: str = "a") -> list[Note]:
    message = stamped(Outgoing(receiver, sender), number, f"m-{number:x}", 0)
    puts, notes = letters.put(Letter(number, message, receiver, "expired", "", 0, 0))
    store.append([], puts, [], sync=False)
    return notes


def test_beyond_the_bound_the_oldest_goes_and_that_is_told(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "MOST_OF_ONE", 3)
    monkeypatch.setattr(dead, "MOST", 5)
    letters = Letters(store)
    told = [note for number in range(1, 5) for note in put(store, letters, number)]
    assert [(note.kind, note.facts["letter"]) for note in told if note.kind != "dead"] == [("forgotten", "d1")]
    told = [note for number in range(5, 8) for note in put(store, letters, number, f"other{number}")]
    assert [note.facts["letter"] for note in told if note.kind != "dead"] == ["d2"]
    assert [one.id for one in letters.each()] == ["d3", "d4", "d5", "d6", "d7"]
    assert [one.id for one in Letters(store).each("b")] == ["d3", "d4"]


def test_a_flood_drowns_its_own_letters_only(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead, "MOST_OF_ONE", 4)
    monkeypatch.setattr(dead, "MOST", 6)
    letters = Letters(store)
    put(store, letters, 1, sender="quiet")
    for number in range(2, 20):
        put(store, letters, number, sender="loud")
    assert [one.id for one in letters.each("b")] == ["d1", "d11", "d12", "d13"]
    for number in range(20, 40):
        put(store, letters, number, f"c{number}", sender="loud")
    assert "d1" in [one.id for one in Letters(store).each()]
    assert len(letters) == 6


@pytest.mark.parametrize("name", ["", "d", "dx", "d99", "9", "-1"])
def test_a_letter_that_is_not_there_is_said_so(store: SqliteStore, name: str) -> None:
    letters = Letters(store)
    put(store, letters, 1)
    assert letters.find("d1").message.id == "m-1"
    with pytest.raises(ENOENT, match="no dead letter"):
        letters.find(name)
