"""kernel/vfs/root: no path, by whatever trick, leads from one agent's tree into another's."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_os.abi.errors import EEXIST, AgentOSError
from agent_os.abi.syscalls import List, Open, Read, Remove, Stat, Watch, Write
from agent_os.kernel.vfs.view import Alone

SECRET = "SECRET-77d0"
VICTIM, THIEF = "default/victim", "default/thief"

TRICKS = [
    "/agent/victim/mem/working/s",
    "/agent/default/victim/mem/working/s",
    "/agent//victim/mem/working/s",
    "/agent/./victim/mem/working/s",
    "/agent/thief/../victim/mem/working/s",
    "/agent/thief/agent/victim/mem/working/s",
    "/agent/thief%2f..%2fvictim/mem/working/s",
    "/agent/VICTIM/mem/working/s",
    "/agent/vıctim/mem/working/s",
    "/agent/victim\u200b/mem/working/s",
    "/agent/\uff56ictim/mem/working/s",
    "/agent/thief/victim/mem/working/s",
    "/mem/shared/victim/s",
    "/mem/shared/victim/mem/working/s",
    "/mem/shared/default/victim/s",
    "/mem/shared/default~victim/s",
    "/mem/shared/../working/s",
    "/mem/working/../../victim/s",
    "/mem/working/default/victim/s",
    "/mem/working//s",
    "/mem/working/e/s",
    "/mem/working/s//00000000000000000001/00000000",
    "/default/victim/mem/working/s",
    "/victim/mem/working/s",
    "//victim/mem/working/s",
    "/proc/victim/mem/working/s",
    "/proc/self/../victim/mem",
    "/mem/working/s\0",
    "/mem/working\\..\\..\\victim\\s",
    "vfs/default/victim//mem/working",
]


@pytest.fixture
def two(trees: Any) -> Any:
    trees.write("/mem/working/s", SECRET, VICTIM)
    trees.write("/mem/semantic/s", SECRET, VICTIM)
    trees.write("/mem/working/lent", "lent", VICTIM)
    return trees


def attempt(trees: Any, path: str) -> list[Any]:
    """Everything an agent can do with a path; what it got out of it."""
    got: list[Any] = []
    for request in (
        Read(path=path),
        Stat(path=path),
        List(path=path),
        Write(path=path, data="forged"),
        Write(path=path, data="forged", mode="append"),
        Open(path=path, flags="rw"),
        Watch(path=path),
        Remove(path=path),
    ):
        try:
            got.append(trees.call(request, THIEF))
        except AgentOSError:
            continue
    return got


@pytest.mark.parametrize("path", TRICKS)
def test_another_agents_tree_is_out_of_reach(two: Any, path: str) -> None:
    assert SECRET not in repr(attempt(two, path))
    assert two.read("/mem/working/s", VICTIM) == SECRET
    assert two.names("/mem/working", VICTIM) == ["lent", "s"]


def test_the_tricks_are_tried_on_something_that_can_be_reached(two: Any) -> None:
    """Positive control: the same attempts by the owner do read it."""
    assert two.read("/agent/victim/mem/working/s", VICTIM) == SECRET


_words = st.sampled_from(
    [
        "agent",
        "victim",
        "thief",
        "default",
        "mem",
        "working",
        "semantic",
        "shared",
        "s",
        "lent",
        "..",
        ".",
        "",
        "~",
        "proc",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_words | st.text(max_size=3), max_size=8))
def test_no_made_up_path_reaches_it_either(parts: list[str]) -> None:
    victim, thief = Alone("victim"), Alone("thief")
    thief._vfs = victim._vfs  # pyright: ignore  # one kernel, two roots
    thief._root = victim._vfs.root(THIEF)  # pyright: ignore
    thief._kept = victim._kept  # pyright: ignore

    async def run() -> None:
        await victim.syscall(Write(path="/mem/working/s", data=SECRET))
        path = "/" + "/".join(parts)
        for request in (
            Read(path=path),
            List(path=path),
            Write(path=path, data="forged"),
            Write(path=path, data="forged", mode="append"),
            Remove(path=path),
        ):
            try:
                assert SECRET not in repr(await thief.syscall(request))
            except AgentOSError:
                continue
        assert (await victim.syscall(Read(path="/mem/working/s")))["data"] == SECRET
        assert [entry["name"] for entry in (await victim.syscall(List(path="/mem/working")))["entries"]] == ["s"]

    asyncio.run(run())


def test_two_agents_of_one_name_in_two_namespaces_are_two(trees: Any) -> None:
    trees.write("/mem/working/x", "mine", "default/bob")
    trees.write("/mem/working/x", "theirs", "team/bob")
    assert trees.read("/mem/working/x", "default/bob") == "mine"
    assert trees.read("/agent/team/bob/mem/working/x", "team/bob") == "theirs"


def test_mounts_match_whole_components_and_the_deepest_answers(trees: Any) -> None:
    root = trees.root()
    root.mount_view("/mem/working/inside", lambda: {"x": "view"})
    trees.write("/mem/working/insideX", "entry")
    assert trees.read("/mem/working/inside/x") == "view"
    assert trees.read("/mem/working/insideX") == "entry"
    assert trees.names("/mem/working") == ["inside", "insideX"]
    with pytest.raises(EEXIST):
        root.mount_view("/mem/working/inside", dict)
    root.unmount("/mem/working/inside")
    assert trees.names("/mem/working") == ["insideX"]


def test_the_table_of_mounts_says_what_is_used(trees: Any) -> None:
    trees.write("/mem/working/x", b"12345")
    rows = {row["path"]: row for row in trees.root().mounts()}
    assert rows["/mem/working"] == {
        "path": "/mem/working",
        "backend": "store",
        "rights": "rw",
        "bytes": 5,
        "entries": 1,
        "max_bytes": 64 << 20,
        "max_entries": 10_000,
    }
