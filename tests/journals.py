"""Journals for tests: a home with a database, filled with every kind of thing that a verifier looks at."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agent_os.abi.entries import Kind
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.journal import Draft, Journal

T = TypeVar("T")
RESERVE = 1 << 16  # bytes; tests make many homes


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def database(home: Path) -> Path:
    return home / "journal.db"


@contextmanager
def opened(home: Path | None, **options: Any) -> Iterator[Journal]:
    """A journal that is closed, with its store, at the end, and not signed again if it failed."""
    store = SqliteStore(database(home) if home else None, reserve=RESERVE)
    try:
        journal = Journal.open(store, home=home, **options)
        try:
            yield journal
        finally:
            journal.close_now()
    finally:
        store.close()


def encode(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def result(agent: str = "default/a", size: int = 20, **fields: Any) -> Draft:
    return Draft(agent, Kind.RESULT, body=encode("x" * size), **fields)


def fill(journal: Journal, count: int, big_every: int = 50) -> None:
    """`count` entries of three agents: results, effects with intent and outcome, refusals, now and then a big body."""
    begun = journal.size
    while journal.size < begun + count:
        seq = journal.size + 1
        agent = f"default/a{seq % 3}"
        if seq % 7 == 0:
            intent = journal.put(
                Draft(agent, Kind.INTENT, effect="o", body=encode({"tool": "pay", "n": seq})), sync=True
            )
            journal.put(Draft(agent, Kind.OUTCOME, ref=intent, body=encode("paid")), sync=True)
        elif seq % 11 == 0:
            journal.put(Draft(agent, Kind.DECISION, verdict=4, step=2, rule="default", code=1), sync=True)
        else:
            size = 5000 if seq % big_every == 0 else 20
            journal.put(Draft(agent, Kind.RESULT, body=encode(f"{seq}" + "x" * size)), sync=False)
    journal.put_now(Draft("kernel", Kind.HALT))


def make(home: Path, count: int) -> Path:
    with opened(home) as journal:
        fill(journal, count)
    return database(home)


def public_key(home: Path) -> str:
    return (home / "keys/journal.pub").read_text()
