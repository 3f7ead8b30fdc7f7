"""What an agent tries by tools against the kernel and against others: each attempt, and what it comes to."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_os import builtin_tools
from agent_os.abi.errors import EDQUOT, ENOENT
from agent_os.abi.syscalls import Exec, Register, Tools
from agent_os.drivers.store import Put
from agent_os.drivers.store.memory import MemoryStore
from agent_os.kernel.allowance import Allowance
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.labels import CLEAN, packed
from agent_os.kernel.journal import Journal
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tooling import OWN
from agent_os.kernel.tools import doors
from agent_os.kernel.tools.registry import MOST_OWN_BYTES
from kernel.serving import Caller
from kernel.tools.test_calling import Worker

pytestmark = pytest.mark.hostile

ANY = {"type": "object", "properties": {}, "additionalProperties": True}


def on_a_kernel(test: Callable[[Kernel], Coroutine[Any, Any, None]], store: MemoryStore | None = None) -> None:
    async def life() -> None:
        kept = store or MemoryStore()
        kernel = Kernel(kept, Journal.open(kept))
        builtin_tools.install(kernel)
        try:
            await test(kernel)
        finally:
            await kernel.close()

    asyncio.run(life())


def spec(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "It.", "input_schema": ANY, **more}


def named(told: Any) -> list[str]:
    return [one["name"] for one in told["tools"]]


async def seen(who: Caller, query: str) -> list[str]:
    return named(await who.syscall(Tools(query=query)))


def test_a_parent_hands_nothing_that_it_has_read_since_to_its_child_by_a_tool(tmp_path: Path) -> None:
    """A name, a description, a schema and code hold data as well as any message does, and that carries its label."""

    async def test(kernel: Kernel) -> None:
        parent = Worker(kernel, tmp_path)
        child = Caller(kernel, "child", parent)
        child.agent.holdings.grant(parse("shell:execute"), "operator")
        parent.agent.holdings.grant(parse("shell:execute"), "operator")
        kernel.authority.begin(child.agent.id, parent.agent.id)
        await parent.syscall(Register(spec=spec("lexicon.old"), code="print(1)"))
        assert await seen(child, "lexicon") == ["lexicon.old"]

        (tmp_path / "secret").write_text("hunter2")
        secret = (await parent.call("file.read", path="/work/secret"))["text"]
        told = spec("lexicon.new", description=secret, labels={"integrity": "trusted"})
        await parent.syscall(Register(spec=told, code=f"print({secret!r})"))
        newer = spec("lexicon.old", version="1.1.0", input_schema={**ANY, "properties": {"x": {"enum": [secret]}}})
        await parent.syscall(Register(spec=newer, code="print(1)"))

        assert await seen(parent, "lexicon") == ["lexicon.new", "lexicon.old"]
        assert await seen(child, "lexicon") == ["lexicon.old"]
        with pytest.raises(ENOENT) as caught:
            await child.syscall(Exec(tool="lexicon.new", params={}))
        assert "lexicon.new" not in caught.value.hint
        with pytest.raises(ENOENT) as caught:
            await child.syscall(Exec(tool="lexicon.old@1.1.0", params={"x": "?"}))
        assert secret not in str(caught.value) + caught.value.hint
        assert not kernel.authority.labels.of(child.agent.id).classes

        late = Caller(kernel, "late", parent)  # it begins with all that its parent carries, and so it may know
        late.agent.holdings.grant(parse("shell:execute"), "operator")
        kernel.authority.begin(late.agent.id, parent.agent.id)
        assert await seen(late, "lexicon") == ["lexicon.new", "lexicon.old"]

    on_a_kernel(test)


def test_an_agent_cannot_fill_the_disk_with_results_that_are_kept_for_it(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        (tmp_path / "large").write_bytes(b"\0\xff" * 40_000)
        worker.agent.allowance = Allowance(10_000, 100.0)
        await worker.whole("file.read", path="/work/large", limit=80_000)
        assert worker.agent.allowance.spend(0) > 300, "seconds until it is heard again"

    on_a_kernel(test)


def test_an_agent_cannot_fill_the_memory_of_the_kernel_with_tools(tmp_path: Path) -> None:
    async def test(kernel: Kernel) -> None:
        worker = Worker(kernel, tmp_path)
        code = "#" * doors.LARGEST_CODE
        calls = [Register(spec=spec(f"large.t{number}"), code=code) for number in range(40)]
        came = await asyncio.gather(*map(worker.syscall, calls), return_exceptions=True)
        refused = [one for one in came if isinstance(one, EDQUOT)]
        assert len(came) - len(refused) == MOST_OWN_BYTES // doors.LARGEST_CODE - 1
        await worker.syscall(Register(spec=spec("small.one"), code="print(1)"))

    on_a_kernel(test)


def test_a_kernel_starts_although_a_tool_of_an_agent_cannot_be_one_any_more() -> None:
    store = MemoryStore()
    rows = [
        (spec("file.read"), "taken by the kernel"),
        (spec("no name"), ""),
        ({"nothing": True}, ""),
        (spec("good.one"), "print(1)"),
    ]
    puts = [
        Put(OWN, f"its\0{number}", msgspec.msgpack.encode([*row, packed(CLEAN)])) for number, row in enumerate(rows)
    ]
    store.append([], puts, [], sync=True)

    async def test(kernel: Kernel) -> None:
        doors.restore(kernel)
        assert [one.name for one in kernel.tools.registry.list(agent="its", query="good")] == ["good.one"]
        assert kernel.tools.find("file.read", "its").owner == ""

    on_a_kernel(test, store)
