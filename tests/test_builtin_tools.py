"""The built-in tools through the registry: every call from its name to a result that fits its own schema."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from agent_os import builtin_tools
from agent_os.abi.errors import ENOENT, ETYPE
from agent_os.builtin_tools import Means
from agent_os.drivers.tools import Answer, Ran, Runs, Web
from agent_os.kernel.calls import Need
from agent_os.kernel.supervisor.regex import Regex
from agent_os.kernel.tools.means import SandboxRuns
from agent_os.kernel.tools.registry import Finished, Registry
from drivers.tools.means import Tree, tree


class Here(SandboxRuns):
    """Finds as the kernel does; what would run is told instead."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), "default/a")

    async def run(self, argv: Any, **more: Any) -> Ran:
        return Ran(0, repr(list(argv)).encode(), b"", seconds=0.01)


class Page:
    async def request(self, method: str, url: str, headers: Any, body: bytes, most: int) -> Answer:
        return Answer(200, [("content-type", "text/plain")], f"{method} {url}".encode())


class World:
    def __init__(self, work: Tree) -> None:
        runs: Runs = Here()
        web: Web = Page()
        self.registry = Registry(lambda: 0.0)
        means = Means(work.files, runs, work.keep, web)
        builtin_tools.register(self.registry, lambda agent: means, Regex, runs)

    def call(self, name: str, **params: Any) -> Finished:
        async def life() -> Finished:
            call = self.registry.prepare(name, params, "default/a")
            if call.tool.deed.plan:
                call.plan = await call.tool.deed.plan(call)
            return call.finish(await call.tool.deed.run(call))

        return asyncio.run(life())


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Tree]:
    with tree(tmp_path) as found:
        yield found


@pytest.fixture
def world(work: Tree) -> World:
    return World(work)


CALLS: dict[str, dict[str, Any]] = {
    "file.read": {"path": "/work/a.txt"},
    "file.write": {"path": "/work/b.txt", "content": "new"},
    "file.list": {"path": "/work", "glob": "*.txt"},
    "file.search": {"path": "/work", "pattern": "t[wx]o", "regex": True},
    "file.edit": {"path": "/work/a.txt", "old": "two", "new": "three"},
    "shell.execute": {"argv": ["ls", "-l"]},
    "python.execute": {"code": "print(1)"},
    "http.fetch": {"url": "https://example.com/"},
    "memory.search": {"query": "anything"},
}


@pytest.mark.parametrize("name", CALLS)
def test_each_gives_what_its_schema_promises(name: str, world: World, work: Tree) -> None:
    (work.place / "a.txt").write_text("one\ntwo\n")
    done = world.call(name, **CALLS[name])
    assert done.error is None
    assert done.result.value
    assert done.result.tool == f"{name}@1.0.0"


@pytest.mark.parametrize("name", CALLS)
def test_each_refuses_what_it_does_not_know(name: str, world: World) -> None:
    with pytest.raises(ETYPE) as caught:
        world.call(name, **CALLS[name], force=True)
    assert caught.value.detail["pointer"] == "/force"


def test_each_has_a_capability_of_its_own_and_of_what_it_touches(world: World) -> None:
    touched = {name: world.registry.prepare(name, params).needs[1:] for name, params in CALLS.items()}
    assert all(touched.values())
    assert touched["file.edit"] == [Need("file", "read", "/work/a.txt"), Need("file", "write", "/work/a.txt")]
    assert touched["http.fetch"] == [Need("http", "get", "example.com/")]
    assert [need.kind for need in touched["shell.execute"]] == ["shell"]


def test_all_of_them_are_listed_for_a_model(world: World) -> None:
    listed = world.registry.list()
    assert [one.name for one in listed] == sorted([*CALLS, "tool.output"])
    assert all(one.description and one.digest and one.input_schema["additionalProperties"] is False for one in listed)


def test_an_edit_is_planned_and_told_from_its_record(world: World, work: Tree) -> None:
    (work.place / "a.txt").write_text("one")

    async def life() -> list[str]:
        call = world.registry.prepare("file.edit", {"path": "/work/a.txt", "old": "one", "new": "two"})
        assert call.tool.deed.plan
        assert call.tool.deed.verify
        call.plan = await call.tool.deed.plan(call)
        before = await call.tool.deed.verify(call)
        await call.tool.deed.run(call)
        assert call.record["plan"] == call.plan
        return [before.state, (await call.tool.deed.verify(call)).state]

    assert asyncio.run(life()) == ["not_done", "done"]


def test_an_unknown_one_is_told_the_nearest(world: World) -> None:
    with pytest.raises(ENOENT) as caught:
        world.call("file.raed", path="/a")
    assert "file.read" in caught.value.hint
