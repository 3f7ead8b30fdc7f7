"""client/ranges.py: what is decoded of an entry is enough, and nothing that a forger writes ends the check."""

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import journals
from agent_os.abi import entries
from agent_os.abi.entries import Entry, Kind
from agent_os.abi.tree import WIDTH
from agent_os.client import ranges
from agent_os.client import verify as module
from agent_os.client.verify import verify
from agent_os.kernel.journal import Draft
from client.forger import Forger
from journals import database, encode, opened, public_key

pytestmark = pytest.mark.uid_free("a record is checked the same way for every user")

CODES = [0, 1, 127, 128, 300, 65535]


def test_what_is_decoded_is_how_an_entry_begins_and_ends() -> None:
    begin = ranges._Begin.__struct_fields__
    assert Entry.__struct_fields__[: len(begin)] == begin
    assert Entry.__struct_fields__[-2:] == ("body", "code")


@pytest.fixture(scope="module")
def coded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal of entries whose last field takes one, two and three bytes, with and without a body."""
    made = tmp_path_factory.mktemp("coded")
    with opened(made) as journal:
        for code in CODES:
            journal.put_now(Draft("a", Kind.RESULT, code=code, body=encode(f"body {code}")))
            journal.put_now(Draft("a", Kind.DECISION, code=code))
    return made


def test_a_body_is_compared_whatever_follows_its_hash(coded: Path, tmp_path: Path) -> None:
    assert verify(database(coded), key=public_key(coded)).findings == []
    for number, code in enumerate(CODES):
        forger = Forger(coded, tmp_path / f"{code}", 1)
        seq = 2 + 2 * number
        assert forger.entry(seq).code == code
        forger.do("update entries set body = ? where seq = ?", encode("another"), seq)
        forger.close()
        assert verify(forger.path, key=public_key(coded)).first_bad == seq


def test_a_body_where_the_entry_names_none_is_found(coded: Path, tmp_path: Path) -> None:
    forger = Forger(coded, tmp_path / "copy", 1)
    forger.do("update entries set body = ? where seq = 3", encode("put in"))
    forger.close()
    assert verify(forger.path, key=public_key(coded)).first_bad == 3


def nothing_of_ours(chance: random.Random) -> bytes:
    return encode(
        chance.choice([{}, {0: 1, 1: "a", 2: 1}, [], [1], None, 7, "text", [[]] * 25, [1.0] * 25, ["x"] * 25])
    )


def one_more_value(chance: random.Random) -> bytes:
    return encode([1, "a", 1, 0, 0, 0, 8]) + encode(chance.choice([1, [], {}]))


def cut_off(chance: random.Random) -> bytes:
    entry = entries.encode(Entry(1, "a", 1, 0, 0, 0, 8))
    return entry[: chance.randrange(len(entry))]


def random_bytes(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(100))


@pytest.mark.integration
@pytest.mark.parametrize("forge", [nothing_of_ours, one_more_value, cut_off, random_bytes])
@pytest.mark.parametrize("workers", [1, 3])
def test_what_is_no_entry_is_named_in_whichever_process_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forge: Callable[[random.Random], bytes], workers: int
) -> None:
    monkeypatch.setattr(module, "ALONE", WIDTH)
    home = tmp_path / "home"
    home.mkdir()
    journals.make(home, 3 * WIDTH)
    for seed in range(8 if workers == 1 else 2):
        forger = Forger(home, tmp_path / f"{seed}", seed)
        seq = forger.pick()
        forger.do("update entries set entry = ? where seq = ?", forge(forger.chance), seq)
        forger.close()
        assert verify(forger.path, key=public_key(home), workers=workers).first_bad == seq


@pytest.mark.integration
def test_a_helper_that_dies_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALONE", WIDTH)
    journals.make(tmp_path, 4 * WIDTH)
    assert verify(database(tmp_path), workers=2).ok
    monkeypatch.setattr(module, "RANGES", "agent_os.no_such_module")
    report = verify(database(tmp_path), workers=2)
    assert not report.ok
    assert any("not checked" in finding.what for finding in report.findings)


@given(st.integers(1, 10_000_000), st.integers(1, 64), st.integers(0, 20_000))
def test_the_parts_of_a_check_cover_it_once(size: int, count: int, heads: int) -> None:
    spans = module._spans(size, count, heads)
    assert len(spans) <= count
    assert (spans[0][0], spans[-1][1]) == (1, size)
    for (_, end), (begin, _) in pairwise(spans):
        assert begin == end + 1
        assert end % WIDTH == 0


def test_the_shares_are_even_in_time() -> None:
    """The one who starts the others has begun before them, and checks the signatures after."""
    own, other = (last - first + 1 for first, last in module._spans(1_000_000, 2, 900))
    assert own + module.SIGNATURE * 900 == pytest.approx(other + module.START, abs=2 * WIDTH)


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    journals.make(tmp_path, 3000)
    told: list[tuple[int, int]] = []
    size = verify(database(tmp_path), progress=lambda done, total: told.append((done, total))).entries
    assert told == sorted(told)
    assert len(told) > 1
    assert told[-1] == (size, size)


def test_a_part_travels_whole() -> None:
    part = ranges.Part(1, 2, [b"r"], {1: [(0, b"e")]}, {1: 5}, [1], {"a": (1, 1, 2)}, [1], [(2, 1)], {b"d": 1})
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(part), type=ranges.Part) == part
