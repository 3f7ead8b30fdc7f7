"""kernel/vfs/stored: versions, types, quotas and what lies in the store."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent_os.abi.errors import ECONFLICT, EDQUOT, EINVAL, EIO, ENOENT, EROFS
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority.labels import CLEAN, UNLABELLED, untrusted
from agent_os.kernel.vfs.backend import Change
from agent_os.kernel.vfs.bodies import Bodies
from agent_os.kernel.vfs.sources import Whole
from agent_os.kernel.vfs.stored import KEPT_REMOVED, KEPT_VERSIONS, StoreBackend


class Kept:
    """A backend whose changes are committed at once, and that can be loaded anew."""

    def __init__(self, path: Path | None = None, **limits: object) -> None:
        self.store = SqliteStore(path, reserve=0)
        self.limits = {"max_bytes": 10 << 20} | limits
        self.reload()

    def reload(self) -> None:
        self.backend = StoreBackend(self.store, Bodies(self.store), "b", **self.limits)  # pyright: ignore

    def commit(self, change: Change) -> int:
        self.store.append([], list(change.puts), list(change.blobs), sync=False)
        assert change.settled
        change.settled()
        return change.version

    def write(self, path: str, data: bytes | str, **more: object) -> int:
        return self.commit(self.backend.write(path, Whole(data), **more))  # pyright: ignore

    def append(self, path: str, data: bytes | str) -> int:
        return self.commit(self.backend.append(path, Whole(data)))

    def remove(self, path: str) -> int:
        return self.commit(self.backend.remove(path))

    def read(self, path: str, version: int | None = None) -> bytes:
        content = self.backend.read(path, version)
        return content.read(0, content.facts.size)

    def put(self, puts: object) -> None:
        self.store.append([], list(puts), [], sync=False)  # pyright: ignore

    def rows(self) -> list[str]:
        return [key for key, _ in self.store.items("b")]


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    made.store.close()


def test_versions_count_up_and_are_never_reused(kept: Kept) -> None:
    assert [kept.write("x", "1"), kept.append("x", "2"), kept.remove("x"), kept.write("x", "3")] == [1, 2, 3, 4]
    kept.reload()
    assert kept.write("x", "4") == 5


def test_the_last_ten_versions_are_kept_and_no_more(kept: Kept) -> None:
    for n in range(1, 31):
        kept.write("x", f"{n}" * 400)
    for n in range(21, 31):
        assert kept.read("x", n) == (f"{n}" * 400).encode()
    with pytest.raises(ENOENT, match="not kept"):
        kept.read("x", 20)
    assert len(kept.rows()) == 1 + KEPT_VERSIONS


def test_versions_that_a_checkpoint_names_stay_until_it_is_forgotten(kept: Kept) -> None:
    kept.write("x", "named" * 100)
    kept.append("x", "!")
    kept.put(kept.backend.snapshot("cp").puts)
    for n in range(30):
        kept.write("x", f"{n}")
    kept.reload()
    assert kept.read("x", 2) == b"named" * 100 + b"!"
    with pytest.raises(ENOENT):
        kept.read("x", 1)
    kept.put(kept.backend.release("cp"))
    with pytest.raises(ENOENT):
        kept.read("x", 2)
    kept.reload()
    with pytest.raises(ENOENT):
        kept.read("x", 2)
    assert len(kept.rows()) == 1 + KEPT_VERSIONS


def test_a_removed_entry_can_still_be_read_by_version(kept: Kept) -> None:
    version = kept.write("x", "content")
    kept.remove("x")
    kept.reload()
    assert kept.read("x", version) == b"content"
    with pytest.raises(ENOENT):
        kept.read("x")


def test_names_thrown_away_are_forgotten_in_the_end_but_their_numbers_are_not(kept: Kept) -> None:
    for _ in range(3):
        kept.write("first", "1")
    kept.remove("first")
    for n in range(KEPT_REMOVED):
        kept.write(f"n{n}", "1")
        kept.remove(f"n{n}")
    assert "e/first" not in kept.rows()
    assert len(kept.rows()) <= 2 * KEPT_REMOVED + 1
    kept.reload()
    assert kept.write("first", "again") > 4, "a version that once was there must not come back with other content"


def test_what_removed_entries_hold_is_bounded_by_the_quota() -> None:
    kept = Kept(max_bytes=10_000)
    for n in range(20):
        kept.write(f"n{n}", b"x" * 9_000)
        kept.remove(f"n{n}")
    assert sum(key.startswith("s/") for key in kept.rows()) <= 2
    kept.store.close()


def test_text_stays_text_and_bytes_stay_bytes(kept: Kept) -> None:
    kept.write("t", "grün")
    kept.write("b", b"gr\xfcn")
    kept.reload()
    for path, text in (("t", True), ("b", False)):
        facts = kept.backend.stat(path)
        assert facts
        assert facts.text is text
    kept.append("t", "er")
    with pytest.raises(EINVAL, match="text"):
        kept.append("t", b"er")
    with pytest.raises(EINVAL, match="bytes"):
        kept.append("b", "er")
    assert kept.read("t") == "grüner".encode()


def test_an_append_costs_what_it_adds_whatever_is_there() -> None:
    kept = Kept(max_bytes=64 << 20)
    kept.write("small", b"s")
    kept.write("large", b"l" * (16 << 20))
    for piece in (b"x" * 10, b"x" * 1000, b"x" * 100_000):
        for path in ("small", "large"):
            for _ in range(50):
                change = kept.backend.append(path, Whole(piece))
                kept.commit(change)
                cost = sum(len(p.value or b"") for p in change.puts) + sum(len(b.data) for b in change.blobs)
                assert cost < len(piece) + 4096
    kept.store.close()


def test_many_tiny_appends_are_few_rows(kept: Kept) -> None:
    for _ in range(3000):
        kept.append("log", b"0123456789")
    kept.reload()
    assert kept.read("log") == b"0123456789" * 3000
    assert len(kept.rows()) < 30


def test_an_older_version_is_a_prefix_that_later_appends_do_not_change(kept: Kept) -> None:
    version = kept.append("log", b"first ")
    content = kept.backend.read("log", version)
    kept.append("log", b"second " * 200)
    assert content.read(0, 1000) == b"first "
    assert kept.read("log", version) == b"first "


def test_append_only_entries_are_created_and_grow() -> None:
    kept = Kept(append_only=True)
    kept.write("x", "1")
    kept.append("x", "2")
    for attempt in (lambda: kept.write("x", "3"), lambda: kept.remove("x")):
        with pytest.raises(EROFS):
            attempt()
    assert kept.read("x") == b"12"
    kept.store.close()


def test_entries_are_counted_too() -> None:
    kept = Kept(max_entries=3)
    for name in "abc":
        kept.write(name, "")
    with pytest.raises(EDQUOT, match="entries"):
        kept.write("d", "")
    with pytest.raises(EDQUOT, match="entries"):
        kept.append("d", "")
    kept.write("a", "again")
    kept.remove("a")
    kept.write("d", "")
    kept.reload()
    assert kept.backend.usage().entries == 3
    kept.store.close()


def test_content_is_stored_once_however_often_it_is_written(kept: Kept) -> None:
    data = b"same" * 10_000
    blobs = set[bytes]()
    for name in "abc":
        change = kept.backend.write(name, Whole(data))
        blobs |= {blob.digest for blob in change.blobs}
        kept.commit(change)
    assert len(blobs) == 1


def test_what_is_not_committed_yet_can_be_read(kept: Kept) -> None:
    change = kept.backend.write("x", Whole(b"y" * 5000))
    assert kept.read("x") == b"y" * 5000
    kept.commit(change)
    kept.reload()
    assert kept.read("x") == b"y" * 5000


def test_a_body_that_the_store_lost_is_an_error_and_not_emptiness(kept: Kept) -> None:
    change = kept.backend.write("x", Whole(b"y" * 5000))
    kept.commit(change)
    kept.store.erase([blob.digest for blob in change.blobs])
    kept.reload()
    with pytest.raises(EIO, match="missing"):
        kept.read("x")


def test_clear_leaves_nothing_in_the_store(kept: Kept) -> None:
    for n in range(20):
        kept.write(f"d/{n}", "x" * n * 100)
    kept.remove("d/3")
    kept.put(kept.backend.snapshot("cp").puts)
    kept.put(kept.backend.clear())
    assert kept.rows() == []
    assert kept.backend.list("", "", 10).entries == []
    assert kept.write("d/3", "new") == 1


class Model(RuleBasedStateMachine):
    """The backend against plain dictionaries: contents, versions, sizes, over reloads."""

    paths = st.sampled_from(["a", "b", "d/a", "d/e/f"])
    data = st.sampled_from([b"", b"1", b"22" * 100, b"333" * 500])

    def __init__(self) -> None:
        super().__init__()
        self.kept = Kept()
        self.now: dict[str, bytes] = {}
        self.version: dict[str, int] = {}
        self.past: dict[tuple[str, int], bytes] = {}

    def _set(self, path: str, content: bytes, version: int) -> None:
        assert version == self.version.get(path, 0) + 1
        self.version[path] = version
        self.now[path] = self.past[path, version] = content

    @rule(path=paths, data=data)
    def write(self, path: str, data: bytes) -> None:
        self._set(path, data, self.kept.write(path, data))

    @rule(path=paths, data=data)
    def append(self, path: str, data: bytes) -> None:
        self._set(path, self.now.get(path, b"") + data, self.kept.append(path, data))

    @rule(path=paths)
    def remove(self, path: str) -> None:
        if path in self.now:
            self.version[path] = self.kept.remove(path)
            del self.now[path]
        else:
            with pytest.raises(ENOENT):
                self.kept.remove(path)

    @rule(path=paths, data=data, version=st.integers(0, 8))
    def write_if(self, path: str, data: bytes, version: int) -> None:
        if version == (self.version[path] if path in self.now else 0):
            self._set(path, data, self.kept.write(path, data, if_version=version))
        else:
            with pytest.raises(ECONFLICT):
                self.kept.write(path, data, if_version=version)

    @precondition(lambda self: self.version)
    @rule()
    def reload(self) -> None:
        self.kept.reload()

    @invariant()
    def agrees(self) -> None:
        usage = self.kept.backend.usage()
        assert (usage.bytes, usage.entries) == (sum(map(len, self.now.values())), len(self.now))
        for path, content in self.now.items():
            assert self.kept.read(path) == content
        for (path, version), content in self.past.items():
            if version > self.version[path] - KEPT_VERSIONS:
                assert self.kept.read(path, version) == content

    def teardown(self) -> None:
        self.kept.store.close()


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


TAINT, OTHER = untrusted("tool:search"), untrusted("http:example.com")


def test_every_version_keeps_the_label_of_whoever_wrote_it(kept: Kept) -> None:
    kept.write("x", "1", label=TAINT)
    kept.write("x", "2", label=CLEAN)
    kept.commit(kept.backend.append("x", Whole("3"), label=OTHER))
    for _ in range(2):
        assert [kept.backend.label("x", version) for version in (1, 2, 3)] == [TAINT, OTHER, OTHER]
        assert kept.backend.label("x") == OTHER
        kept.reload()


def test_what_is_appended_joins_and_what_nobody_labelled_is_untrusted(kept: Kept) -> None:
    kept.write("x", "1", label=TAINT)
    kept.commit(kept.backend.append("x", Whole("2"), label=OTHER))
    assert kept.backend.label("x") == TAINT.join(OTHER)
    kept.append("y", "1")
    assert kept.backend.label("y") == UNLABELLED


def test_a_directory_carries_all_below_it_and_nothing_else(kept: Kept) -> None:
    kept.write("a/clean", "", label=CLEAN)
    assert kept.backend.label("a") == CLEAN
    kept.write("a/deep/er/x", "", label=TAINT)
    kept.write("b/x", "", label=OTHER)
    for _ in range(2):
        labels = {path: kept.backend.label(path) for path in ("a/clean", "a/deep", "a", "b", "", "none")}
        both = TAINT.join(OTHER)
        assert labels == {"a/clean": CLEAN, "a/deep": TAINT, "a": TAINT, "b": OTHER, "": both, "none": CLEAN}
        kept.reload()
    kept.remove("a/deep/er/x")
    assert kept.backend.label("a") == CLEAN
    assert kept.backend.label("a/deep/er/x") == CLEAN
    assert kept.backend.label("a/deep/er/x", 1) == TAINT  # an old version can still be read
    kept.put(kept.backend.clear())
    assert kept.backend.label("") == CLEAN
