"""kernel/vfs/shares: what is lent, to whom, how far, how long; and that nothing else crosses."""

import asyncio
import time
from typing import Any

import pytest

from agent_os.abi.errors import EACCES, ECONFLICT, EDQUOT, EEXIST, EINVAL, ENOENT, EPERM, EROFS
from agent_os.abi.syscalls import List, Open, Read, Remove, Share, Stat, Watch, Write
from agent_os.kernel.calls import Need
from agent_os.kernel.kernel import Kernel
from peer import greeted, with_kernel

A, B = "default/a", "default/b"
W = "/mem/working"


def share(trees: Any, path: str, to: str = "b", **more: Any) -> str:
    return trees.call(Share(path=path, to=to, **more), A)["path"]


def test_a_shared_entry_is_seen_at_the_receivers_and_is_the_same(trees: Any) -> None:
    trees.write(f"{W}/notes", "one", A)
    path = share(trees, f"{W}/notes")
    assert path == "/mem/shared/a/notes"
    assert trees.read(path, B) == "one"
    trees.write(f"{W}/notes", "two", A)
    assert trees.read(path, B) == "two"
    assert trees.names("/mem/shared", B) == ["a"]
    assert trees.names("/mem/shared/a", B) == ["notes"]


def test_sharing_needs_the_right_to_share_and_what_is_shared(trees: Any) -> None:
    act = trees.prepare(Share(path=f"{W}/x", to="b"), A)
    assert list(act.needs) == [Need("mem", "share", f"{W}/x"), Need("mem", "read", f"{W}/x")]
    act = trees.prepare(Share(path=f"{W}/x", to="b", rights="rw"), A)
    assert Need("mem", "write", f"{W}/x") in act.needs


def test_the_share_is_the_receivers_authority_and_no_more_than_it(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    path = share(trees, f"{W}/x")
    root = trees.root(B)
    assert root.granted(Need("mem", "read", path))
    assert not root.granted(Need("mem", "write", path))
    assert not root.granted(Need("mem", "read", "/mem/shared/a/other"))
    assert not root.granted(Need("mem", "read", f"{W}/x"))
    assert not root.granted(Need("file", "read", path))
    assert not trees.root("default/c").granted(Need("mem", "read", path))


def test_a_share_for_reading_is_for_reading(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    path = share(trees, f"{W}/x")
    for request in (Write(path=path, data="2"), Write(path=path, data="2", mode="append"), Remove(path=path)):
        with pytest.raises(EACCES):
            trees.call(request, B)
    assert trees.read(f"{W}/x", A) == "1"
    assert trees.call(Stat(path=path), B)["rights"] == "r"


def test_a_share_for_writing_writes_the_owners_entry_at_the_owners_cost(trees: Any) -> None:
    trees.root(A).mount_store("/mem/box", max_bytes=100)
    trees.write("/mem/box/x", "1", A)
    path = share(trees, "/mem/box/x", rights="rw")
    version = trees.write(path, "22", B)["version"]
    assert trees.read("/mem/box/x", A) == "22"
    with pytest.raises(EDQUOT):
        trees.write(path, "3" * 101, B)
    with pytest.raises(ECONFLICT):
        trees.write(path, "4", B, if_version=version - 1)
    assert trees.read("/mem/box/x", A) == "22"


def test_rights_are_never_wider_than_the_owners(trees: Any) -> None:
    trees.write("/mem/episodic/e", "done", A)
    path = share(trees, "/mem/episodic/e", rights="rw")
    with pytest.raises(EROFS):
        trees.write(path, "rewritten", B)
    trees.write(path, " and more", B, mode="append")
    assert trees.read("/mem/episodic/e", A) == "done and more"
    assert trees.call(Stat(path=path), B)["rights"] == "ra"


def test_taking_back_works_at_once_also_on_open_handles(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    path = share(trees, f"{W}/x")
    handle = trees.call(Open(path=path), B)["handle"]
    prepared = trees.prepare(Read(path=path), B)
    assert trees.call(Read(handle=handle), B)["data"] == "1"
    trees.call(Share(path=f"{W}/x", to="b", end=True), A)
    with pytest.raises(ENOENT):
        trees.call(Read(handle=handle), B)
    with pytest.raises(ENOENT):
        prepared.do()
    assert trees.names("/mem/shared", B) == []
    with pytest.raises(ENOENT):
        trees.call(Share(path=f"{W}/x", to="b", end=True), A)


def test_a_share_ends_with_its_time_by_the_wall_clock(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    path = share(trees, f"{W}/x", ttl_s=60)
    assert trees.read(path, B) == "1"
    trees.now += 61 * 10**9
    with pytest.raises(ENOENT):
        trees.read(path, B)
    with pytest.raises(EINVAL):
        share(trees, f"{W}/x", ttl_s=0)


def test_all_below_an_entry_can_be_shared_and_nothing_beside_it(trees: Any) -> None:
    trees.write(f"{W}/d/x", "in", A)
    trees.write(f"{W}/d/e/y", "deep", A)
    trees.write(f"{W}/dx", "out", A)
    path = share(trees, f"{W}/d", rights="rw")
    assert trees.read(f"{path}/e/y", B) == "deep"
    assert trees.names(path, B) == ["e", "x"]
    trees.write(f"{path}/new", "made", B)
    assert trees.read(f"{W}/d/new", A) == "made"
    with pytest.raises(ENOENT):
        trees.read(f"{path}x", B)


@pytest.mark.parametrize("path", ["/mem", W, "/mem/shared/c/x", "/policy/rules"])
def test_only_entries_of_ones_own_memory_can_be_shared(trees: Any, path: str) -> None:
    trees.root(A).mount_view("/policy", lambda: {"rules": ""})
    with pytest.raises(EINVAL):
        share(trees, path)


def test_nobody_shares_what_is_not_there_or_with_themselves(trees: Any) -> None:
    with pytest.raises(ENOENT):
        share(trees, f"{W}/none")
    trees.write(f"{W}/x", "1", A)
    with pytest.raises(EINVAL):
        share(trees, f"{W}/x", to="a")


def test_two_entries_of_one_name_do_not_hide_each_other(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    trees.write("/mem/semantic/x", "2", A)
    path = share(trees, f"{W}/x")
    with pytest.raises(EEXIST):
        share(trees, "/mem/semantic/x")
    assert trees.read(path, B) == "1"
    share(trees, f"{W}/x", rights="rw")
    trees.write(path, "3", B)


def test_nothing_can_be_written_beside_what_is_shared(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    share(trees, f"{W}/x", rights="rw")
    for path in ("/mem/shared/new", "/mem/shared/a/new", "/mem/shared/b/mine"):
        with pytest.raises(EROFS):
            trees.write(path, "2", B)


def test_the_receivers_watch_tells_of_the_owners_changes(trees: Any) -> None:
    trees.write(f"{W}/d/x", "1", A)
    path = share(trees, f"{W}/d")
    heard: dict[str, list[dict[str, Any]]] = {A: [], B: []}
    for agent, watched in ((A, W), (B, "/mem/shared")):
        trees.call(Watch(path=watched), agent)
        trees.root(agent).notify = lambda notice, label, agent=agent: heard[agent].append(notice)
    trees.write(f"{W}/d/x", "2", A)
    trees.write(f"{W}/own", "2", A)
    assert [notice["path"] for notice in heard[B]] == [f"{path}/x"]
    assert [notice["path"] for notice in heard[A]] == [f"{W}/d/x", f"{W}/own"]


def test_a_write_through_a_share_is_told_to_its_owner_under_the_owners_name(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    path = share(trees, f"{W}/x", rights="rw")
    heard: list[dict[str, Any]] = []
    trees.call(Watch(path="/"), A)
    trees.root(A).notify = lambda notice, label: heard.append(notice)
    trees.write(path, "2", B)
    assert [notice["path"] for notice in heard] == [f"{W}/x"]


def test_shares_survive_a_restart(lasting: Any) -> None:
    lasting.write(f"{W}/x", "1", A)
    path = share(lasting, f"{W}/x")
    again = lasting.reopen()
    try:
        assert again.read(path, B) == "1"
    finally:
        again.close()
        lasting.__init__()


def test_what_an_ended_agent_lent_of_its_working_memory_is_gone(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    trees.write("/mem/semantic/y", "2", A)
    gone, kept = share(trees, f"{W}/x"), share(trees, "/mem/semantic/y")
    trees.keep(trees.vfs.end(A))
    with pytest.raises(ENOENT):
        trees.read(gone, B)
    assert trees.read(kept, B) == "2"


@pytest.mark.long
def test_many_shares_are_listed_in_about_the_time_of_a_page(trees: Any) -> None:
    """Each name looked at every share there is: three thousand of them took seconds of everybody's time."""
    for number in range(3000):
        trees.write(f"{W}/e{number:04}", "x", A)
        share(trees, f"{W}/e{number:04}")
    act = trees.prepare(List(path="/mem/shared/a", max=100), B)
    began = time.process_time()
    entries = act.do().value["entries"]
    assert time.process_time() - began < 0.2
    assert [entry["name"] for entry in entries[:2]] == ["e0000", "e0001"]
    assert entries[0]["kind"] == "file"


def test_a_streamed_write_to_a_share_takes_its_owners_room_and_no_more(trees: Any) -> None:
    trees.root(A).mount_store("/mem/small", max_bytes=100_000)
    trees.write("/mem/small/x", b"o" * 10_000, A)
    shared = trees.vfs.upload(trees.root(B), Write(path=share(trees, "/mem/small/x", rights="rw"), stream=True))
    own = trees.vfs.upload(trees.root(A), Write(path="/mem/small/y", stream=True))
    for upload in (shared, own):
        upload.add(b"x" * 45_000)
    with pytest.raises(EDQUOT):
        shared.add(b"x" * 20_000)
    own.abort()
    shared.add(b"x" * 20_000)
    asyncio.run(trees.do(shared.end()))
    assert trees.read("/mem/small/x", A) == b"x" * 65_000


def test_a_streamed_write_to_a_share_that_is_taken_back_meanwhile_ends(trees: Any) -> None:
    trees.write(f"{W}/x", "1", A)
    upload = trees.vfs.upload(trees.root(B), Write(path=share(trees, f"{W}/x", rights="rw"), stream=True))
    upload.add("2")
    trees.call(Share(path=f"{W}/x", to="b", end=True), A)
    with pytest.raises(EROFS):
        upload.add("3")
    upload.abort()
    assert trees.read(f"{W}/x", A) == "1"


@pytest.mark.parametrize("rights", ["r", "rw"])
def test_what_is_shared_for_writing_can_be_opened_for_both(rights: str) -> None:
    async def test(kernel: Kernel) -> None:
        _, owner = await greeted(kernel, "a", caps=("mem:/mem/working/**:read,write,share",))
        _, other = await greeted(kernel, "b")
        await owner.ask(Write(path=f"{W}/x", data="1"))
        path = (await owner.ask(Share(path=f"{W}/x", to="b", rights=rights)))["path"]
        assert (await other.ask(Open(path=path, flags="r")))["handle"]
        if rights == "r":
            with pytest.raises(EPERM):
                await other.ask(Open(path=path, flags="rw"))
            return
        handle = (await other.ask(Open(path=path, flags="rw")))["handle"]
        await other.ask(Write(handle=handle, data="2"))
        assert (await owner.ask(Read(path=f"{W}/x")))["data"] == "2"

    with_kernel(test)
