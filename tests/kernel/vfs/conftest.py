"""A tree on a real store, driven as the kernel drives it: prepare, act, commit, tell."""

import asyncio
import os
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.syscalls import Body, Close, List, Open, Read, Remove, Share, Stat, Watch, Write
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.calls import Act, Done
from agent_os.kernel.vfs import Root, Vfs


class Trees:
    """Stands for dispatcher and journal: the store's transaction is real, the gate lets everything through."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.now = 10**18
        self.store = SqliteStore(path, reserve=0)
        self.vfs = Vfs(self.store, wall_ns=self.tick)
        self.bytes_put = 0
        self.uncommitted: list[tuple[Act, Done]] = []

    def tick(self) -> int:
        self.now += 1
        return self.now

    def root(self, agent: str = "default/a") -> Root:
        return self.vfs.root(agent)

    def prepare(self, request: Body, agent: str = "default/a") -> Act:
        names: dict[type[Body], str] = {
            kind: kind.__name__.lower() for kind in (Read, Write, Open, Close, List, Stat, Remove, Watch, Share)
        }
        return getattr(self.vfs, names[type(request)])(self.root(agent), request)

    async def act(self, act: Act) -> Done:
        done = act.do()
        if isinstance(done, Awaitable):
            done = await done
        return done

    def commit(self, act: Act, done: Done) -> Any:
        self.keep(done.puts, done.blobs)
        if act.answered:
            act.answered()
        return done.value

    def keep(self, puts: Any, blobs: Any = ()) -> None:
        self.bytes_put += sum(len(put.key) + len(put.value or b"") for put in puts) + sum(len(b.data) for b in blobs)
        self.store.append([], list(puts), list(blobs), sync=False)

    async def do(self, act: Act) -> Any:
        return self.commit(act, await self.act(act))

    def call(self, request: Body, agent: str = "default/a") -> Any:
        return asyncio.run(self.do(self.prepare(request, agent)))

    def write(self, path: str, data: bytes | str, agent: str = "default/a", **more: Any) -> Any:
        return self.call(Write(path=path, data=data, **more), agent)

    def read(self, path: str, agent: str = "default/a", **more: Any) -> Any:
        return self.call(Read(path=path, **more), agent)["data"]

    def names(self, path: str, agent: str = "default/a", **more: Any) -> list[str]:
        return [entry["name"] for entry in self.call(List(path=path, **more), agent)["entries"]]

    def reopen(self) -> "Trees":
        """The kernel ends and starts again on the same file."""
        self.close()
        return Trees(self.path)

    def close(self) -> None:
        self.vfs.shutdown()
        self.store.close()


@pytest.fixture
def trees() -> Iterator[Trees]:
    made = Trees()
    yield made
    made.close()


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Trees]:
    made = Trees(tmp_path / "store.db")
    yield made
    made.close()


@pytest.fixture
def work(trees: Trees, tmp_path: Path) -> Path:
    """A real directory mounted at /work, by an O_PATH descriptor as the sandbox gives it."""
    directory = tmp_path / "work"
    directory.mkdir()
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY)
    trees.root().mount_directory("/work", fd)
    os.close(fd)
    return directory
