"""What agents hold over their lives: kept over a killed kernel, charged to whoever gave it, gone with the agent."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EBUDGET, EIO, ENOENT, EPERM, AgentOSError
from agent_os.abi.signals import AgentSignal
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Effect, Exec, Read, Signal, Write
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.handles import HANDLES, Handle, last_number
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import decode_any
from agent_os.kernel.table import Ended
from agent_os.kernel.tooling import Tool
from peer import Peer, agent, greeted, until, with_kernel

ENDED = Ended(ExitClass.REQUESTED, -1, "the test is done with it")
Test = Callable[[Kernel], Awaitable[None]]


async def works(key: str, params: Any) -> Any:
    return "done"


def tool(kernel: Kernel, run: Callable[[str, Any], Awaitable[Any]] = works, effect: Effect = Effect.OPAQUE) -> None:
    kernel.tools.register(Tool("pay", run, effect))


def over_a_kill(home: Path, first: Test, second: Test) -> None:
    """Two kernels on one home. What the first leaves is what is on its disk while it runs, as after a kill -9."""
    home.mkdir(mode=0o700)

    async def cut(kernel: Kernel) -> None:
        await first(kernel)
        shutil.copytree(home, home.with_name("after"), copy_function=shutil.copy2)

    with_kernel(cut, home)
    with_kernel(second, home.with_name("after"))


def rows(kernel: Kernel, holder: str = "default/a") -> list[dict[str, Any]]:
    found = [decode_any(data) for _, data in kernel.store.items(HANDLES)]
    return [one for one in found if one["holder"] == holder]


async def refusal(asking: Awaitable[Any]) -> AgentOSError:
    with pytest.raises(AgentOSError) as caught:
        await asking
    return caught.value


def test_what_was_granted_is_held_after_the_kernel_was_killed(tmp_path: Path) -> None:
    async def first(kernel: Kernel) -> None:
        await agent(kernel)
        await kernel.authority.grant("default/a", parse("mem:/mem/semantic/**:write"), "local:0")

    async def second(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)
        assert row.incarnation == 1
        await peer.ask(Write(path="/mem/semantic/x", data="y"))
        assert (await refusal(peer.ask(Read(path="/mem/semantic/x")))).code == "cap.missing"
        await peer.ask(Write(path="/mem/working/x", data="what every agent holds"))

    over_a_kill(tmp_path / "home", first, second)


@pytest.mark.parametrize(
    ("text", "request_", "times", "row"),
    [
        ("tool:pay:call{count:3}", Exec(tool="pay"), 3, "count"),
        ("mem:/mem/semantic/**:write{bytes:30}", Write(path="/mem/semantic/x", data="0123456789"), 3, "bytes"),
        ("mem:/mem/semantic/**:read,write{count:3}", Write(path="/mem/semantic/x", data="y"), 3, "count"),
    ],
)
def test_what_was_used_is_not_forgiven_by_a_kill(
    tmp_path: Path, text: str, request_: Any, times: int, row: str
) -> None:
    async def first(kernel: Kernel) -> None:
        tool(kernel)
        _, peer = await greeted(kernel)
        await kernel.authority.grant("default/a", parse(text), "local:0")
        for _ in range(times - 1):
            await peer.ask(request_)

    async def second(kernel: Kernel) -> None:
        tool(kernel)
        _, peer = await greeted(kernel)
        await peer.ask(request_)
        error = await refusal(peer.ask(request_))
        assert (error.name, error.code) == ("EBUDGET", f"budget.{row}")

    over_a_kill(tmp_path / "home", first, second)


def test_a_use_that_had_begun_when_the_kernel_was_killed_counts(tmp_path: Path) -> None:
    async def hangs(key: str, params: Any) -> Any:
        await asyncio.Event().wait()

    async def first(kernel: Kernel) -> None:
        tool(kernel, hangs)
        row, peer = await greeted(kernel)
        await kernel.authority.grant("default/a", parse("tool:pay:call{count:1}"), "local:0")
        asking = asyncio.create_task(peer.ask(Exec(tool="pay")))
        await until(lambda: any(e.kind == Kind.INTENT for e, _ in kernel.journal.scan(row.id)))
        await kernel.journal.record(Draft("kernel", Kind.STATE), sync=True)
        asking.cancel()

    async def second(kernel: Kernel) -> None:
        tool(kernel)
        _, peer = await greeted(kernel)
        assert (await refusal(peer.ask(Exec(tool="pay")))).code == "budget.count"

    over_a_kill(tmp_path / "home", first, second)


def test_a_grant_that_cannot_be_recorded_is_none() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel)

        def broken(*_: Any, **__: Any) -> Any:
            raise EIO("journal", "the disk is gone")

        usual, kernel.journal.record = kernel.journal.record, broken  # type: ignore[method-assign]
        with pytest.raises(EIO):
            await kernel.authority.grant(row.id, parse("mem:/mem/semantic/**:write"), "local:0")
        kernel.journal.record = usual  # type: ignore[method-assign]
        assert isinstance(await refusal(peer.ask(Write(path="/mem/semantic/x", data="y"))), EPERM | EACCES)

    with_kernel(test)


def test_an_end_for_good_takes_everything_and_the_next_of_that_name_has_nothing(tmp_path: Path) -> None:
    async def first(kernel: Kernel) -> None:
        row, _ = await agent(kernel)
        handle = await kernel.authority.grant(row.id, parse("mem:/mem/semantic/**:write"), "local:0")
        assert rows(kernel)
        await kernel.end(row, ENDED)
        assert handle.revoked
        assert not rows(kernel)
        _, peer = await greeted(kernel)
        assert (await refusal(peer.ask(Write(path="/mem/semantic/x", data="y")))).code == "cap.missing"

    async def second(kernel: Kernel) -> None:
        _, peer = await greeted(kernel)
        assert (await refusal(peer.ask(Write(path="/mem/semantic/x", data="y")))).code == "cap.missing"
        await peer.ask(Write(path="/mem/working/x", data="y"))

    over_a_kill(tmp_path / "home", first, second)


def test_quarantine_takes_everything_and_leaves_no_row() -> None:
    async def test(kernel: Kernel) -> None:
        row, _ = await agent(kernel)
        child, peer = await greeted(kernel, "child", parent=row.id)
        await kernel.authority.grant(row.id, parse("mem:/mem/semantic/**:read,write"), "local:0")
        row.holdings.delegate("mem:/mem/semantic/**:write", child.holdings, origin="spawn")
        await peer.ask(Write(path="/mem/semantic/x", data="y"))
        await kernel.quarantine(row, "test")
        assert not rows(kernel)
        assert not rows(kernel, child.id)
        assert row.exit is not None
        assert row.exit.exit_class is ExitClass.POLICY

    with_kernel(test)


def test_an_effect_that_ends_after_its_agent_does_not_bring_a_row_back(tmp_path: Path) -> None:
    go_on: list[asyncio.Event] = []

    async def slow(key: str, params: Any) -> Any:
        go_on.append(asyncio.Event())
        await go_on[0].wait()

    async def first(kernel: Kernel) -> None:
        tool(kernel, slow)
        row, peer = await greeted(kernel)
        await kernel.authority.grant(row.id, parse("tool:pay:call{count:5}"), "local:0")
        asking = asyncio.create_task(peer.ask(Exec(tool="pay")))
        await until(lambda: bool(go_on))
        await kernel.end(row, ENDED)
        go_on[0].set()
        outcome = (Kind.OUTCOME,)
        await until(lambda: any(e.kind in outcome for e, _ in kernel.journal.scan(row.id)))
        asking.cancel()
        assert not rows(kernel)

    async def second(kernel: Kernel) -> None:
        row, _ = await greeted(kernel)
        assert len(list(row.holdings)) == 5

    over_a_kill(tmp_path / "home", first, second)


def test_a_number_is_never_given_twice(tmp_path: Path) -> None:
    numbers: list[int] = []

    async def first(kernel: Kernel) -> None:
        row, _ = await agent(kernel)
        handle = await kernel.authority.grant(row.id, parse("tool:pay:call"), "local:0")
        numbers.append(handle.id)
        await kernel.end(row, ENDED)

    async def second(kernel: Kernel) -> None:
        assert int(kernel.store.get("table", "handle") or 0) >= numbers[0]
        assert last_number() >= numbers[0]

    over_a_kill(tmp_path / "home", first, second)


def test_ten_children_together_spend_what_their_parent_has_and_no_more() -> None:
    async def test(kernel: Kernel) -> None:
        tool(kernel)
        parent, _ = await agent(kernel, "parent")
        await kernel.authority.grant(parent.id, parse("tool:pay:call{count:25}"), "local:0")
        children = [await greeted(kernel, f"c{n}", parent=parent.id) for n in range(10)]
        for row, _ in children:
            parent.holdings.delegate("tool:pay:call{count:9}", row.holdings, origin="spawn")

        async def spend(peer: Peer) -> int:
            count = 0
            for _ in range(9):
                try:
                    await peer.ask(Exec(tool="pay"))
                    count += 1
                except EBUDGET as error:
                    exhausted.add(error.detail["holder"])
            return count

        exhausted: set[Any] = set()
        assert sum(await asyncio.gather(*(spend(peer) for _, peer in children))) == 25
        assert exhausted == {parent.id}, "the ancestor that is exhausted is named"

    with_kernel(test)


def test_a_child_uses_nothing_of_what_its_parent_lost() -> None:
    async def test(kernel: Kernel) -> None:
        tool(kernel)
        parent, _ = await agent(kernel, "parent")
        child, peer = await greeted(kernel, "child", parent=parent.id)
        own = await kernel.authority.grant(parent.id, parse("tool:pay:call"), "local:0")
        (handed,) = parent.holdings.delegate("tool:pay:call", child.holdings, origin="spawn")
        await peer.ask(Exec(tool="pay"), key="k")
        gone = await kernel.authority.revoke([own], "local:0")
        assert gone.handles == [own, handed]
        for options in ({}, {"key": "k"}, {"cap": handed.id}):
            error = await refusal(peer.ask(Exec(tool="pay"), **options))
            assert (error.name, error.code) == ("EACCES", "cap.revoked"), options

    with_kernel(test)


def test_a_handle_number_of_somebody_else_is_as_good_as_none() -> None:
    async def test(kernel: Kernel) -> None:
        tool(kernel)
        rich, rich_peer = await greeted(kernel, "rich", caps=("tool:pay:call",))
        _, peer = await greeted(kernel, "poor")
        (number,) = [one.id for one in rich.holdings if one.capability.kind == "tool"]
        assert await rich_peer.ask(Exec(tool="pay"), cap=number) == "done"
        error = await refusal(peer.ask(Exec(tool="pay"), cap=number))
        assert (error.name, error.code) == ("EPERM", "cap.missing")

    with_kernel(test)


def test_a_signal_to_somebody_elses_agent_takes_more_than_the_right_to_signal_ones_own() -> None:
    async def test(kernel: Kernel) -> None:
        row, peer = await greeted(kernel, "sender", caps=("agent:signal",))
        await agent(kernel, "stranger")
        child, _ = await agent(kernel, "child", parent=row.id)
        error = await refusal(peer.ask(Signal(agent="stranger", signal=AgentSignal.SIGUSR1)))
        assert (error.name, error.code) == ("EPERM", "cap.missing")
        assert error.detail["missing"] == "agent:stranger:signal"
        await peer.ask(Signal(agent=child.name, signal=AgentSignal.SIGUSR1))

    with_kernel(test)


def test_there_is_no_handle_that_was_never_given() -> None:
    async def test(kernel: Kernel) -> None:
        with pytest.raises(ENOENT, match="c-999999999"):
            kernel.authority.find(999999999)

    with_kernel(test)


class Stuck:
    lasting = False

    async def close(self) -> None:
        raise RuntimeError("it does not let go")


def test_what_does_not_close_is_told_and_stays_revoked() -> None:
    async def test(kernel: Kernel) -> None:
        row, _ = await greeted(kernel)
        handle: Handle = await kernel.authority.grant(row.id, parse("tool:pay:call"), "local:0")
        handle.opened.add(Stuck())
        with pytest.raises(EIO, match="does not let go"):
            await kernel.authority.revoke([handle], "local:0")
        assert handle.revoked
        assert handle.id not in {one["id"] for one in rows(kernel)}

    with_kernel(test)
