"""What happens to a process, as entries of the journal: which kind each event is, and what its body keeps."""

import asyncio
import os
from typing import Any

import msgspec
import pytest

from agent_os.abi.entries import Entry, Kind, Verdict
from agent_os.drivers.store import Put
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.journal import Journal
from agent_os.kernel.records import Records


def recorded(write: Any, store: SqliteStore | None = None) -> list[tuple[Entry, dict[str, Any]]]:
    """The entries that a coroutine function, given a journal, leaves."""
    store = store or SqliteStore(None)

    async def run() -> list[tuple[Entry, dict[str, Any]]]:
        journal = Journal.open(store)
        await write(journal)
        await journal.close()
        return [(entry, msgspec.msgpack.decode(body or b"\x80")) for entry, body in journal.scan("default/a")]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("event", "facts", "kind", "verdict"),
    [
        ("spawn", {"argv": ["x"]}, Kind.SPAWN, Verdict.NONE),
        ("spawned", {"level": "S3"}, Kind.STATE, Verdict.NONE),
        ("connect", {"verdict": "allow"}, Kind.CONNECT, Verdict.ALLOW),
        ("connect", {"verdict": "deny"}, Kind.CONNECT, Verdict.REFUSE),
        ("refused", {"error": "why"}, Kind.DECISION, Verdict.REFUSE),
        ("disk", {"used_mb": 1}, Kind.SIGNAL, Verdict.NONE),
    ],
)
def test_every_event_is_an_entry_with_its_facts(
    event: str, facts: dict[str, Any], kind: Kind, verdict: Verdict
) -> None:
    async def write(journal: Journal) -> None:
        await Records(journal, 3).before("a", event, **facts)
        Records(journal, 3).after("a", event, **facts)

    entries = recorded(write)
    assert len(entries) == 2
    for entry, body in entries:
        assert (entry.kind, entry.inc, entry.verdict) == (kind, 3, verdict)
        assert body == {"event": event, **facts}


def test_the_level_that_was_reached_stands_in_the_entry_itself() -> None:
    async def write(journal: Journal) -> None:
        Records(journal).after("a", "spawned", level="S3")

    assert recorded(write)[0][0].isolation == "S3"


def test_names_that_are_no_text_are_kept_as_bytes() -> None:
    odd = os.fsdecode(b"\xff")

    async def write(journal: Journal) -> None:
        Records(journal).after("a", "spawn", argv=[odd], path=odd)

    assert recorded(write)[0][1] == {"event": "spawn", "argv": [b"\xff"], "path": b"\xff"}


def test_what_a_start_must_leave_in_the_store_is_there_with_its_entry_and_only_with_it() -> None:
    store = SqliteStore(None)

    async def write(journal: Journal) -> None:
        records = Records(journal, 1, (Put("agents", "default/a", b"order"),))
        await records.before("a", "connect")
        assert store.get("agents", "default/a") is None
        await records.before("a", "spawn")

    recorded(write, store)
    assert store.get("agents", "default/a") == b"order"
