"""kernel/vfs/recovery: after a crash between intent and outcome, what happened is told from what is there."""

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_os.abi.errors import EAGAIN
from agent_os.abi.syscalls import Body, Remove, Write

WRITE, REMOVE = 2, 24


def recorded(trees: Any, request: Body) -> dict[str, Any]:
    """As the journal gives it back."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(trees.prepare(request).record))


def op(request: Body) -> int:
    return REMOVE if isinstance(request, Remove) else WRITE


CHANGES = [
    Write(path="/work/x", data="new"),
    Write(path="/work/x", data=b"more", mode="append"),
    Write(path="/work/fresh", data=b"made", mode="create"),
    Write(path="/work/fresh", data=b"made", if_version=0),
    Write(path="/work/fresh", data=b"first", mode="append"),
    Remove(path="/work/x"),
]


@pytest.mark.parametrize("request_", CHANGES)
def test_a_change_that_was_not_begun_is_seen_and_runs_once_more(trees: Any, work: Path, request_: Body) -> None:
    (work / "x").write_bytes(b"old")
    record = recorded(trees, request_)
    assert trees.vfs.verify(trees.root(), op(request_), record).state == "not_done"
    act = trees.vfs.again(trees.root(), op(request_), record)
    asyncio.run(trees.do(act))
    assert trees.vfs.verify(trees.root(), op(request_), record).state == "done"


@pytest.mark.parametrize("request_", CHANGES)
def test_a_change_that_was_done_is_seen_with_its_answer(trees: Any, work: Path, request_: Body) -> None:
    (work / "x").write_bytes(b"old")
    act = trees.prepare(request_)
    record = msgspec.msgpack.decode(msgspec.msgpack.encode(act.record))
    answer = asyncio.run(trees.do(act))
    found = trees.vfs.verify(trees.root(), op(request_), record)
    assert (found.state, found.value) == ("done", answer)


@pytest.mark.parametrize("request_", CHANGES)
def test_what_cannot_be_told_is_not_guessed(trees: Any, work: Path, request_: Body) -> None:
    (work / "x").write_bytes(b"old")
    record = recorded(trees, request_)
    for name in ("x", "fresh"):
        (work / name).write_bytes(b"so")
    assert trees.vfs.verify(trees.root(), op(request_), record).state == "unsure"


def test_half_an_append_is_taken_back(trees: Any, work: Path) -> None:
    (work / "x").write_bytes(b"old")
    request = Write(path="/work/x", data=b"0123456789", mode="append")
    record = recorded(trees, request)
    with (work / "x").open("ab") as file:
        file.write(b"01234")
    assert trees.vfs.verify(trees.root(), WRITE, record).state == "not_done"
    assert (work / "x").read_bytes() == b"old"
    asyncio.run(trees.do(trees.vfs.again(trees.root(), WRITE, record)))
    assert (work / "x").read_bytes() == b"old0123456789"


def test_a_streamed_write_is_told_by_its_hash_and_cannot_run_again(trees: Any, work: Path) -> None:
    for end in (False, True):
        upload = trees.vfs.upload(trees.root(), Write(path="/work/big", stream=True))
        upload.add(b"x" * 100_000)
        act = upload.end()
        if end:
            asyncio.run(trees.do(act))
        else:
            upload.abort()
        state = trees.vfs.verify(trees.root(), WRITE, act.record).state
        assert state == ("done" if end else "not_done")
        assert trees.vfs.again(trees.root(), WRITE, act.record) is None


@pytest.mark.parametrize("mode", ["replace", "append"])
def test_an_upload_recorded_before_its_data_came_is_told_as_far_as_possible(trees: Any, work: Path, mode: Any) -> None:
    (work / "big").write_bytes(b"old")
    upload = trees.vfs.upload(trees.root(), Write(path="/work/big", mode=mode, stream=True))
    upload.add(b"new")
    assert trees.vfs.verify(trees.root(), WRITE, upload.record).state == "not_done"
    assert trees.vfs.again(trees.root(), WRITE, upload.record) is None
    asyncio.run(trees.do(upload.end()))
    assert trees.vfs.verify(trees.root(), WRITE, upload.record).state == "unsure"
    assert trees.vfs.verify(trees.root(), WRITE, {"path": None, "mode": mode, "stream": True}).state == "unsure"


def test_an_append_that_runs_again_lands_where_it_was_decided_or_nowhere(trees: Any, work: Path) -> None:
    (work / "x").write_bytes(b"old")
    record = recorded(trees, Write(path="/work/x", data=b"mine", mode="append"))
    assert trees.vfs.verify(trees.root(), WRITE, record).state == "not_done"
    (work / "x").write_bytes(b"old and more")
    act = trees.vfs.again(trees.root(), WRITE, record)
    assert act.record == record
    with pytest.raises(EAGAIN):
        asyncio.run(trees.do(act))
    assert (work / "x").read_bytes() == b"old and more"


def test_two_equal_appends_under_way_are_told_apart(trees: Any, work: Path) -> None:
    (work / "x").write_bytes(b"")
    request = Write(path="/work/x", data=b"same", mode="append")
    acts = [trees.prepare(request) for _ in range(2)]
    assert [act.record["before"] for act in acts] == [0, 4]
    asyncio.run(trees.do(acts[0]))
    states = [trees.vfs.verify(trees.root(), WRITE, act.record).state for act in acts]
    assert states == ["done", "not_done"]


def test_an_append_that_was_refused_holds_up_nobody(trees: Any, work: Path) -> None:
    request = Write(path="/work/x", data=b"same", mode="append")
    refused = trees.prepare(request)
    assert refused.record["before"] == 0
    del refused
    assert trees.prepare(request).record["before"] == 0


def test_many_appends_at_once_all_land_whole_and_in_order(trees: Any, work: Path) -> None:
    async def many() -> list[int]:
        acts = [trees.prepare(Write(path="/work/log", data=f"{n:04}\n", mode="append")) for n in range(50)]
        return [answer["offset"] for answer in await asyncio.gather(*(trees.do(act) for act in acts))]

    assert asyncio.run(many()) == [5 * n for n in range(50)]
    assert (work / "log").read_text().split() == [f"{n:04}" for n in range(50)]


def test_a_file_that_moved_between_intent_and_act_is_left_alone(trees: Any, work: Path) -> None:
    (work / "x").write_bytes(b"old")
    act = trees.prepare(Write(path="/work/x", data=b"mine", mode="append"))
    (work / "x").write_bytes(b"other")
    with pytest.raises(EAGAIN) as caught:
        asyncio.run(trees.do(act))
    assert caught.value.retryable
    assert (work / "x").read_bytes() == b"other"
    assert trees.write("/work/x", b"mine", mode="append")["offset"] == 5


def test_an_append_that_the_disk_refuses_leaves_the_file_as_it_was(
    trees: Any, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno

    (work / "x").write_bytes(b"old")
    real = os.write
    calls: list[int] = []

    def short_then_full(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return real(fd, bytes(data[:2]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", short_then_full)
    backend = trees.root().backend("/work")
    from agent_os.abi.errors import ENOSPC
    from agent_os.kernel.vfs.sources import Whole

    for change in (backend.append, backend.write):
        calls.clear()
        with pytest.raises(ENOSPC):
            change("x", Whole(b"0123456789"))
        assert len(calls) == 2
        assert (work / "x").read_bytes() == b"old"
    assert os.listdir(work) == ["x"]
