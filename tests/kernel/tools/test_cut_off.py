"""What becomes of a call that a crash cut off between its deed and its outcome: found out, made again, or parked."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_os import builtin_tools
from agent_os.abi.errors import ENOENT
from agent_os.drivers.store import Store
from agent_os.drivers.store.memory import MemoryStore
from agent_os.kernel.journal import Journal
from agent_os.kernel.journal.heads import Signer
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from kernel.tools.workers import ALL, Worker

SIGNER = Signer.new()  # of a kernel before a crash and after it


async def cut_off(store: Store, place: Path, tool: str, caps: tuple[str, ...] = ALL, **params: Any) -> None:
    """The deed is done, and the kernel is gone before that is on the record."""
    kernel = Kernel(store, Journal.open(store, signer=SIGNER))
    builtin_tools.install(kernel)
    worker = Worker(kernel, place, caps=caps)
    done = asyncio.Event()
    kernel.gate._answering.record = lambda *words, **more: done.set()  # type: ignore[method-assign]
    asking = asyncio.create_task(worker.call(tool, **params))
    await asyncio.wait_for(done.wait(), 10)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await kernel.journal.close()


async def settled(store: Store, place: Path, caps: tuple[str, ...] = ALL) -> tuple[Kernel, Worker]:
    kernel = Kernel(store, Journal.open(store, signer=SIGNER))
    builtin_tools.install(kernel)
    worker = Worker(kernel, place, caps=caps)
    await kernel.recovery.settle_before(worker.agent)
    return kernel, worker


def test_an_edit_that_happened_is_found_out_and_not_made_again(tmp_path: Path) -> None:
    async def life() -> None:
        store = MemoryStore()
        (tmp_path / "a").write_text("x")
        await cut_off(store, tmp_path, "file.edit", path="/work/a", old="x", new="xx")
        assert (tmp_path / "a").read_text() == "xx"
        kernel, worker = await settled(store, tmp_path)
        assert (tmp_path / "a").read_text() == "xx", "once"
        assert kernel.journal.open_intents() == []
        assert worker.last().error is None
        assert decode_any(worker.last().value)["size"] == 2

    asyncio.run(life())


def test_a_write_is_made_again_with_the_same_outcome(tmp_path: Path) -> None:
    async def life() -> None:
        store = MemoryStore()
        await cut_off(store, tmp_path, "file.write", path="/work/a", content="whole")
        _, worker = await settled(store, tmp_path)
        assert (tmp_path / "a").read_text() == "whole"
        assert decode_any(worker.last().value)["size"] == 5

    asyncio.run(life())


def test_what_nobody_can_tell_is_parked_and_not_repeated(tmp_path: Path) -> None:
    async def life() -> None:
        store = MemoryStore()
        await cut_off(store, tmp_path, "file.write", path="/work/a", content="line\n", mode="append")
        kernel, worker = await settled(store, tmp_path)
        assert (tmp_path / "a").read_text() == "line\n"
        ((seq, agent),) = kernel.recovery.parked()
        assert agent == worker.agent.id
        await kernel.recovery.resolve(seq, "done", {"size": 5}, "local:0")
        assert kernel.recovery.parked() == []
        assert (tmp_path / "a").read_text() == "line\n"

    asyncio.run(life())


# The web: it counts what reached it.


@asynccontextmanager
async def site() -> AsyncGenerator[tuple[Counter[str], int]]:
    seen = Counter[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        seen[head.split(b" ")[0].decode()] += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield seen, server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(("method", "times"), [("GET", 2), ("HEAD", 2), ("POST", 1), ("PUT", 1), ("DELETE", 1)])
def test_a_request_is_made_again_only_where_that_changes_nothing(tmp_path: Path, method: str, times: int) -> None:
    async def life() -> None:
        store = MemoryStore()
        async with site() as (seen, port):
            http = f"http:127.0.0.1/**:{method.lower()}{{loopback:127.0.0.1:{port}}}"
            caps, url = ("tool:*:call", http), f"http://127.0.0.1:{port}/"
            await cut_off(store, tmp_path, "http.fetch", caps, url=url, method=method)
            assert seen[method] == 1
            kernel, worker = await settled(store, tmp_path, caps)
            assert seen[method] == times
            if times == 1:
                assert [agent for _, agent in kernel.recovery.parked()] == [worker.agent.id]
            else:
                assert kernel.recovery.parked() == []
                assert decode_any(worker.last().value)["status"] == 200

    asyncio.run(life())


def test_memory_is_written_with_its_outcome_or_not_at_all(tmp_path: Path) -> None:
    async def life() -> None:
        store = MemoryStore()
        await cut_off(store, tmp_path, "memory.store", key="note", value="once")
        kernel, worker = await settled(store, tmp_path)
        assert kernel.recovery.parked() == []
        with pytest.raises(ENOENT):
            await worker.call("memory.retrieve", key="note")

    asyncio.run(life())
