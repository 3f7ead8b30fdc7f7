"""One suite for every backend: the same claims whether an entry lies in memory, in a file or with somebody else."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import ECONFLICT, EDQUOT, EEXIST, EISDIR, ENOENT, ENOTDIR, EROFS
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.vfs.backend import Backend, Change, Facts
from agent_os.kernel.vfs.bodies import Bodies
from agent_os.kernel.vfs.directory import DirectoryBackend
from agent_os.kernel.vfs.root import ViewBackend
from agent_os.kernel.vfs.shares import Share, SharedBackend, Shares
from agent_os.kernel.vfs.sources import Spool, Whole
from agent_os.kernel.vfs.stored import StoreBackend

LIMIT = 100_000


class Bench:
    """A backend and where its entries begin in it."""

    def __init__(self, backend: Backend, keep: Callable[[Change], None], base: str = "") -> None:
        self.backend, self.keep, self._base = backend, keep, base

    def at(self, path: str) -> str:
        return f"{self._base}{path}".rstrip("/")

    def commit(self, change: Change) -> Change:
        self.keep(change)
        if change.settled:
            change.settled()
        return change

    def write(self, path: str, data: bytes, **more: object) -> Change:
        return self.commit(
            self.backend.write(self.at(path), Whole(data), **{"create": False, "if_version": None} | more)
        )

    def append(self, path: str, data: bytes, if_version: int | None = None) -> Change:
        return self.commit(self.backend.append(self.at(path), Whole(data), if_version=if_version))

    def remove(self, path: str, if_version: int | None = None) -> Change:
        return self.commit(self.backend.remove(self.at(path), if_version=if_version))

    def read(self, path: str, offset: int = 0, length: int = 1 << 30) -> bytes:
        content = self.backend.read(self.at(path), None)
        try:
            return content.read(offset, length)
        finally:
            content.close()

    def stat(self, path: str) -> Facts | None:
        return self.backend.stat(self.at(path))

    def names(self, path: str = "", after: str = "", limit: int = 1000) -> list[str]:
        return [one.name for one in self.backend.list(self.at(path), after, limit).entries]


def _stored(path: Path | None) -> Iterator[Bench]:
    store = SqliteStore(path, reserve=0)
    backend = StoreBackend(store, Bodies(store), "b", max_bytes=LIMIT, max_entries=50)
    yield Bench(backend, lambda change: store.append([], list(change.puts), list(change.blobs), sync=False))
    store.close()


def _directory(tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "top").mkdir()
    fd = os.open(tmp_path / "top", os.O_PATH | os.O_DIRECTORY)
    backend = DirectoryBackend(fd, max_bytes=LIMIT)
    os.close(fd)
    yield Bench(backend, lambda change: None)
    backend.close()


def _shared(tmp_path: Path) -> Iterator[Bench]:
    for bench in _stored(None):
        shares = Shares(SqliteStore(None), lambda: 0)
        shares.add(Share("default/o", "default/r", "/mem/working/lent", "lent", "rw"))
        shared = SharedBackend(shares, "default/r", lambda owner, path, under=bench.backend: (under, "lent"))
        yield Bench(shared, bench.keep, "o/lent/")


MAKERS: dict[str, Callable[[Path], Iterator[Bench]]] = {
    "memory": lambda tmp_path: _stored(None),
    "file": lambda tmp_path: _stored(tmp_path / "db"),
    "directory": _directory,
    "shared": _shared,
}


@pytest.fixture(params=MAKERS)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    yield from MAKERS[request.param](tmp_path)


@pytest.mark.parametrize("size", [0, 1, 256, 257, 5000, 90_000])
def test_what_is_written_is_read_whole_and_in_part(bench: Bench, size: int) -> None:
    data = os.urandom(size)
    change = bench.write("x", data)
    assert bench.read("x") == data
    assert bench.read("x", 100, 200) == data[100:300]
    assert bench.read("x", size + 5, 10) == b""
    facts = bench.stat("x")
    assert facts
    assert (facts.kind, facts.size, facts.version) == ("file", size, change.version)


def test_a_replace_leaves_nothing_of_the_old(bench: Bench) -> None:
    first = bench.write("x", b"a" * 5000)
    second = bench.write("x", b"b")
    assert bench.read("x") == b"b"
    assert first.version != second.version


def test_appends_follow_each_other_and_say_where_they_landed(bench: Bench) -> None:
    pieces = [b"one", b"", b"2" * 300, b"three" * 1000, b"4"]
    offsets = [bench.append("log", piece).offset for piece in pieces]
    assert offsets == [sum(map(len, pieces[:n])) for n in range(len(pieces))]
    assert bench.read("log") == b"".join(pieces)
    assert bench.read("log", 2, 303) == b"".join(pieces)[2:305]


def test_create_refuses_what_exists(bench: Bench) -> None:
    bench.write("x", b"old", create=True)
    with pytest.raises(EEXIST):
        bench.write("x", b"new", create=True)
    assert bench.read("x") == b"old"


def test_a_version_that_is_no_longer_current_writes_nothing(bench: Bench) -> None:
    first = bench.write("x", b"1", if_version=0).version
    second = bench.write("x", b"22", if_version=first).version
    for attempt in (
        lambda: bench.write("x", b"3", if_version=first),
        lambda: bench.write("x", b"3", if_version=0),
        lambda: bench.append("x", b"3", first),
        lambda: bench.remove("x", first),
    ):
        with pytest.raises(ECONFLICT) as caught:
            attempt()
        assert caught.value.detail["version"] == second
    assert bench.read("x") == b"22"
    bench.remove("x", second)
    with pytest.raises(ECONFLICT):
        bench.write("x", b"4", if_version=second)
    bench.write("x", b"4", if_version=0)


def test_of_two_writers_with_one_version_one_wins(bench: Bench) -> None:
    version = bench.write("x", b"start").version
    won: list[bytes] = []
    for data in (b"left", b"right"):
        with suppress(ECONFLICT):
            bench.write("x", data, if_version=version)
            won.append(data)
    assert won == [b"left"]
    assert bench.read("x") == b"left"


def test_what_is_removed_is_gone(bench: Bench) -> None:
    bench.write("d/x", b"1")
    bench.remove("d/x")
    assert bench.stat("d/x") is None
    with pytest.raises(ENOENT):
        bench.read("d/x")
    with pytest.raises(ENOENT):
        bench.remove("d/x")
    bench.write("d/x", b"2")
    assert bench.read("d/x") == b"2"


def test_directories_are_implied_and_are_no_entries(bench: Bench) -> None:
    bench.write("a/b/c", b"1")
    facts = bench.stat("a/b")
    assert facts
    assert facts.kind == "directory"
    assert bench.names("a") == ["b"]
    for attempt in (lambda: bench.read("a/b"), lambda: bench.write("a/b", b"2"), lambda: bench.append("a", b"2")):
        with pytest.raises(EISDIR):
            attempt()
    for attempt in (lambda: bench.write("a/b/c/d", b"2"), lambda: bench.names("a/b/c")):
        with pytest.raises(ENOTDIR):
            attempt()
    with pytest.raises(ENOENT):
        bench.names("nothing")
    assert bench.read("a/b/c") == b"1"


def test_a_list_is_sorted_by_bytes(bench: Bench) -> None:
    names = ["b", "a", "a.b", "B", "é", "z", "日", "\U0001f600", "aa", "~"]
    for name in names:
        bench.write(f"d/{name}", b"")
    assert bench.names("d") == sorted(names, key=str.encode)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    present=st.sets(st.text("abcdé", min_size=1, max_size=3), max_size=12),
    passing=st.lists(st.text("abcdé", min_size=1, max_size=3), max_size=12),
    limit=st.integers(1, 5),
)
def test_an_entry_present_throughout_is_listed_once(
    tmp_path_factory: pytest.TempPathFactory, present: set[str], passing: list[str], limit: int
) -> None:
    for make in (MAKERS["memory"], MAKERS["directory"]):
        for bench in make(tmp_path_factory.mktemp("list")):
            for name in present:
                bench.write(f"d/{name}", b"")
            bench.write("d/~", b"")  # the directory stays, whatever goes
            comings = iter(passing)
            seen: list[str] = []
            more, after = True, ""
            while more:
                page = bench.backend.list(bench.at("d"), after, limit)
                seen += [one.name for one in page.entries]
                more = page.more
                after = page.entries[-1].name if page.entries else after  # what was to come may have gone meanwhile
                name = next(comings, None)
                if name and name not in present:
                    bench.remove(f"d/{name}") if bench.stat(f"d/{name}") else bench.write(f"d/{name}", b"")
            assert seen == sorted(set(seen), key=str.encode)
            assert present <= set(seen)


def test_over_the_quota_the_old_content_stays(bench: Bench) -> None:
    bench.write("x", b"old" * 1000)
    used = bench.backend.usage().bytes
    for attempt in (lambda: bench.write("x", b"n" * (LIMIT + 1)), lambda: bench.append("x", b"n" * LIMIT)):
        with pytest.raises(EDQUOT) as caught:
            attempt()
        assert caught.value.detail["limit"] == LIMIT
    assert bench.read("x") == b"old" * 1000
    assert bench.backend.usage().bytes == used
    bench.write("x", b"n" * LIMIT)  # a replace is charged for the difference
    bench.remove("x")
    bench.write("y", b"n" * LIMIT)


@pytest.mark.parametrize("bench", ["memory", "file", "directory"], indirect=True)  # the owner tells of shared ones
def test_changes_are_told_when_they_are_committed(bench: Bench) -> None:
    heard: list[tuple[str, str, int]] = []
    end = bench.backend.watch(lambda change: heard.append((change.path, change.kind, change.version)))
    waiting = bench.backend.write("x", Whole(b"1"), create=False, if_version=None)
    assert heard == []
    bench.commit(waiting)
    removed = bench.remove("x")
    assert heard == [("x", "written", waiting.version), ("x", "removed", removed.version)]
    end()
    bench.write("x", b"2")
    assert len(heard) == 2


def test_streamed_data_is_like_data_that_came_at_once(bench: Bench) -> None:
    spool = Spool()
    for _ in range(9):
        spool.add(b"0123456789" * 1000)
    bench.commit(bench.backend.write(bench.at("x"), spool, create=False, if_version=None))
    spool.close()
    assert bench.read("x") == b"0123456789" * 9000


def test_a_snapshot_names_what_is_there(bench: Bench) -> None:
    bench.write("x", b"1")
    snapshot = bench.backend.snapshot("one")
    if bench.backend.name == "store":
        assert snapshot.versions == {"x": 1}
    else:
        assert snapshot.versions == {}


def test_a_view_reads_like_the_others_and_takes_no_change() -> None:
    texts = {"rules": "allow", "deep/er": "more"}
    bench = Bench(ViewBackend(lambda: texts), lambda change: None)
    assert bench.read("rules") == b"allow"
    assert bench.names() == ["deep", "rules"]
    assert bench.names("deep") == ["er"]
    facts = bench.stat("deep")
    assert facts
    assert facts.kind == "directory"
    assert bench.stat("nothing") is None
    texts["rules"] = "forbid"
    assert bench.read("rules") == b"forbid"
    for attempt in (
        lambda: bench.write("rules", b"x"),
        lambda: bench.append("rules", b"x"),
        lambda: bench.remove("rules"),
    ):
        with pytest.raises(EROFS):
            attempt()
    with pytest.raises(EISDIR):
        bench.read("deep")
    with pytest.raises(ENOENT):
        bench.read("nothing")
    with pytest.raises(ENOENT):
        bench.names("nothing")
    with pytest.raises(ENOTDIR):
        bench.names("rules")
    assert bench.backend.usage().entries == 2
    assert bench.backend.snapshot("x").versions == {}
