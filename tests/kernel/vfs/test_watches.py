"""kernel/vfs/watches: bursts merge, overflow is told, nothing is lost in silence."""

import asyncio
from typing import Any

import pytest

from agent_os.abi.errors import ENOENT
from agent_os.abi.syscalls import Remove, Watch, Write
from agent_os.kernel.authority.labels import CLEAN, Label, untrusted
from agent_os.kernel.vfs.root import MAX_WAITING, Watches

W = "/mem/working"
TAINT = untrusted("tool:search")


def test_a_watch_tells_path_kind_and_version(trees: Any) -> None:
    heard: list[dict[str, Any]] = []
    trees.root().notify = lambda notice, label: heard.append(notice)
    trees.call(Watch(path=W))
    trees.write(f"{W}/x", "1")
    trees.call(Remove(path=f"{W}/x"))
    trees.write("/mem/semantic/other", "1")
    assert heard == [
        {"watch": W, "path": f"{W}/x", "kind": "written", "version": 1},
        {"watch": W, "path": f"{W}/x", "kind": "removed", "version": 2},
    ]


def test_a_refused_change_is_not_told(trees: Any) -> None:
    heard: list[dict[str, Any]] = []
    trees.root().notify = lambda notice, label: heard.append(notice)
    trees.call(Watch(path=W))
    with pytest.raises(ENOENT):
        trees.call(Remove(path=f"{W}/none"))
    assert heard == []


def test_a_watch_that_is_not_recursive_sees_one_level(trees: Any) -> None:
    heard: list[dict[str, Any]] = []
    trees.root().notify = lambda notice, label: heard.append(notice)
    trees.call(Watch(path=W, recursive=False))
    trees.write(f"{W}/x", "")
    trees.write(f"{W}/d/x", "")
    assert [notice["path"] for notice in heard] == [f"{W}/x"]


def test_an_ended_watch_is_silent(trees: Any) -> None:
    heard: list[dict[str, Any]] = []
    trees.root().notify = lambda notice, label: heard.append(notice)
    trees.call(Watch(path=W))
    trees.call(Watch(path=W, end=True))
    trees.write(f"{W}/x", "")
    assert heard == []
    with pytest.raises(ENOENT):
        trees.call(Watch(path=W, end=True))


def test_a_burst_on_one_path_is_one_notice_with_the_newest_version(trees: Any) -> None:
    heard: list[dict[str, Any]] = []
    trees.root().notify = lambda notice, label: heard.append(notice)
    trees.call(Watch(path=W))

    async def burst() -> None:
        for n in range(10):
            await trees.do(trees.prepare(Write(path=f"{W}/x", data=str(n))))
        await trees.do(trees.prepare(Write(path=f"{W}/y", data="")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(burst())
    assert [(notice["path"], notice["version"]) for notice in heard] == [(f"{W}/x", 10), (f"{W}/y", 1)]


def test_beyond_the_bound_comes_one_gap_with_the_count() -> None:
    watches = Watches()
    watches.add("/d", True)
    taking = False
    heard: list[dict[str, Any]] = []
    labels: list[Label] = []

    def notify(notice: dict[str, Any], label: Label) -> bool:
        if taking:
            heard.append(notice)
            labels.append(label)
        return taking

    watches.notify = notify
    for n in range(MAX_WAITING + 7):
        watches.changed(f"/d/{n}", "written", 1, CLEAN if n < MAX_WAITING else TAINT)
    watches.changed("/d/0", "written", 2, TAINT)  # merges: it waits already
    watches.changed("/d/0", "written", 2, CLEAN)
    assert heard == []
    taking = True
    watches.flush()
    assert len(heard) == MAX_WAITING + 1
    assert heard[-1] == {"watch": "/d", "kind": "gap", "count": 7}
    assert heard[-2] == {"watch": "/d", "path": "/d/0", "kind": "written", "version": 2}
    assert labels == [*[CLEAN] * (MAX_WAITING - 1), TAINT, TAINT]  # what merges, and what is only counted, joins


def test_a_watch_resumes_from_the_journal_or_says_that_it_cannot(trees: Any) -> None:
    heard: list[dict[str, Any]] = []
    trees.root().notify = lambda notice, label: heard.append(notice)
    trees.call(Watch(path=W, since=5))
    assert heard == [{"watch": W, "kind": "gap", "count": 1}]
    heard.clear()
    asked: list[tuple[str, int]] = []

    def history(agent: str, seq: int) -> list[dict[str, Any]]:
        asked.append((agent, seq))
        return [
            {"path": f"{W}/x", "kind": "written", "version": 3},
            {"path": "/work/f", "kind": "written", "version": 1},
        ]

    trees.vfs.history = history
    trees.call(Watch(path=W, since=5))
    assert asked == [("default/a", 5)]
    assert [notice["path"] for notice in heard] == [f"{W}/x"]
