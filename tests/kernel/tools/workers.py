"""An agent whose tool calls a test makes, on a kernel in this process with all built-in tools."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agent_os import builtin_tools
from agent_os.abi.entries import Kind
from agent_os.abi.syscalls import Exec
from agent_os.drivers.store import Store
from agent_os.drivers.store.memory import MemoryStore
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.journal import Journal
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import Recorded
from kernel.serving import Caller

ALL = ("tool:*:call", "file:/work/**:read,write,delete", "mem:/mem/semantic/**:read,write")


class Worker(Caller):
    """An agent with a folder of the host at /work."""

    def __init__(self, kernel: Kernel, place: Path, name: str = "worker", caps: tuple[str, ...] = ALL) -> None:
        super().__init__(kernel, name)
        for text in caps:
            kernel.authority.grant_now(self.agent.id, parse(text), "operator")
        kernel.authority.begin(self.agent.id, None)
        self._fd = os.open(place, os.O_PATH)
        self.agent.files.mount_directory("/work", self._fd)

    async def call(self, tool: str, /, **params: Any) -> Any:
        return await self.syscall(Exec(tool=tool, params=params))

    async def whole(self, tool: str, /, **params: Any) -> Any:
        return await self.syscall(Exec(tool=tool, params=params, whole=True))

    def kinds(self) -> list[str]:
        found = self.kernel.journal.scan(self.agent.id)
        return [Kind(entry.kind).name for entry, _ in found if entry.op == 5]

    def last(self) -> Recorded:
        *_, kept = (kept for entry, kept in self.kernel.journal.scan(self.agent.id) if entry.op == 5)
        return Recorded.of(kept)


@asynccontextmanager
async def made(store: Store | None = None, home: Path | None = None) -> AsyncGenerator[Kernel]:
    store = store or MemoryStore()
    kernel = Kernel(store, Journal.open(store), home=home)
    builtin_tools.install(kernel)
    try:
        yield kernel
    finally:
        await kernel.close()


def run(test: Callable[[Kernel], Coroutine[Any, Any, None]], home: Path | None = None) -> None:
    async def life() -> None:
        async with made(home=home) as kernel:
            await test(kernel)

    asyncio.run(life())
