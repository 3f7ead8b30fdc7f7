"""Budgets behind the real gate and journal: never more than allowed, nothing lost, nothing counted twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.entries import Kind
from agent_os.abi.errors import EACCES, EBUDGET, EIO
from agent_os.abi.syscalls import Effect, Exec, Now
from agent_os.drivers.store.sqlite import SqliteStore
from agent_os.kernel.authority.budget import rebuilt
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.handles import gone
from agent_os.kernel.boot import boot
from agent_os.kernel.calls import Act, Asked, Done, Way
from agent_os.kernel.journal import Draft
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.table import Agent, Caller
from faults.inprocess import forget_peers
from kernel.test_gate import LEDGER, Ledger
from peer import Peer, greeted, running, until, with_kernel

PARENT = "default/parent"


async def limited(kernel: Kernel, agent: Agent, limits: dict[str, int]) -> None:
    await kernel.journal.record(Draft("kernel", Kind.BUDGET, cost=kernel.budgets.limit(agent.id, limits)))


async def family(kernel: Kernel, limits: dict[str, int], caps: tuple[str, ...] = LEDGER) -> list[Peer]:
    """Ten children of one parent that may spend so much."""
    parent, _ = await greeted(kernel, "parent", caps=caps)
    await limited(kernel, parent, limits)
    found: list[Peer] = []
    for number in range(10):
        child, peer = await greeted(kernel, f"child-{number}", parent=parent.id)
        parent.holdings.delegate("tool:ledger:call", child.holdings)
        found.append(peer)
    return found


async def all_at_once(peers: list[Peer], times: int) -> int:
    """How many of their calls were let through."""

    async def one(peer: Peer) -> int:
        done = 0
        for number in range(times):
            try:
                await peer.ask(Exec(tool="ledger", params={"n": number}))
                done += 1
            except EBUDGET:
                pass
        return done

    return sum(await asyncio.gather(*map(one, peers)))


def same_on_the_record(kernel: Kernel) -> bool:
    return rebuilt(entry for entry, _ in kernel.journal.scan()).state() == kernel.budgets.state()


def costing(kernel: Kernel, amounts: dict[str, int], spent: dict[str, int] | None, way: Way = Way.EFFECT) -> None:
    """Every call costs so much at most, and so much in fact."""

    def prepare(caller: Caller, asked: Asked) -> Act:
        return Act(lambda: Done("done", spent=spent), way=way, effect=Effect.OPAQUE, cost=amounts)

    kernel.gate._prepare = prepare  # pyright: ignore[reportPrivateUsage]


def test_ten_children_cannot_together_exceed_what_their_parent_may_spend() -> None:
    async def test(kernel: Kernel) -> None:
        world = Ledger()
        kernel.tools.register(world.tool)
        peers = await family(kernel, {"calls": 25})
        assert await all_at_once(peers, 5) == 25
        assert len(world.done) == 25
        assert kernel.budgets.account(PARENT).spent["calls"] == 25
        assert same_on_the_record(kernel)

    with_kernel(test)


def test_ten_children_cannot_together_exceed_the_capability_of_their_parent() -> None:
    async def test(kernel: Kernel) -> None:
        world = Ledger()
        kernel.tools.register(world.tool)
        peers = await family(kernel, {}, ("tool:ledger:call{count:25}",))
        assert await all_at_once(peers, 5) == 25
        assert len(world.done) == 25

    with_kernel(test)


@pytest.mark.parametrize("way", [Way.EFFECT, Way.RESULT])
def test_what_was_reserved_is_settled_to_what_it_was(way: Way) -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        await limited(kernel, agent, {"cost": 100})
        costing(kernel, {"cost": 60}, {"cost": 20}, way)
        for spent in (20, 40):
            await peer.ask(Now())
            assert kernel.budgets.account(agent.id).spent["cost"] == spent
        await peer.ask(Now())
        with pytest.raises(EBUDGET, match="has"):
            await peer.ask(Now())
        assert kernel.budgets.account(agent.id).used("cost") == 60
        assert same_on_the_record(kernel)

    with_kernel(test)


def test_four_fifths_are_told_once(tmp_path: Path) -> None:
    def alarms(kernel: Kernel) -> list[Any]:
        return [e.cost["warned"] for e, _ in kernel.journal.scan() if e.kind == Kind.BUDGET and "warned" in e.cost]

    async def main() -> None:
        async with running(tmp_path) as kernel:
            agent, peer = await greeted(kernel)
            costing(kernel, {"cost": 10}, None)
            await limited(kernel, agent, {"cost": 100})
            for _ in range(7):
                await peer.ask(Now())
            assert not alarms(kernel)
            await peer.ask(Now())
            await peer.ask(Now())
            assert alarms(kernel) == [["cost"]]
        async with running(tmp_path) as kernel:
            _, peer = await greeted(kernel)
            costing(kernel, {"cost": 10}, None)
            await peer.ask(Now())
            with pytest.raises(EBUDGET):
                await peer.ask(Now())
            assert alarms(kernel) == [["cost"]]

    asyncio.run(main())


def test_four_fifths_of_a_capability_are_told_once() -> None:
    async def test(kernel: Kernel) -> None:
        world = Ledger()
        kernel.tools.register(world.tool)
        agent, peer = await greeted(kernel, caps=("tool:ledger:call{count:5}",))
        for _ in range(5):
            await peer.ask(Exec(tool="ledger"))
        told = [entry.handle for entry, _ in kernel.journal.scan(agent.id) if entry.kind == Kind.BUDGET]
        assert told == [next(one.id for one in agent.holdings if one.limited)]
        assert same_on_the_record(kernel)

    with_kernel(test)


def test_a_restart_counts_nothing_twice_and_forgets_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        for life in range(3):
            async with running(tmp_path) as kernel:
                world = Ledger()
                kernel.tools.register(world.tool)
                agent, peer = await greeted(kernel, caps=LEDGER)
                assert kernel.budgets.account(agent.id).spent.get("calls", 0) == life * 2
                for _ in range(2):
                    await peer.ask(Exec(tool="ledger"))
                assert same_on_the_record(kernel)

    asyncio.run(main())


@pytest.mark.parametrize(("effect", "after"), [(Effect.OPAQUE, "unknown"), (Effect.IDEMPOTENT, "run again")])
def test_a_kill_between_intent_and_outcome_loses_no_charge(tmp_path: Path, effect: Effect, after: str) -> None:
    async def main() -> None:
        world = Ledger(effect)
        store = SqliteStore(tmp_path / "journal.db")
        kernel = await boot(store=store, home=tmp_path, agents=False)
        kernel.tools.register(world.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        await peer.ask(Exec(tool="ledger"))
        world.gate.clear()
        lost = asyncio.create_task(peer.ask(Exec(tool="ledger")))
        await until(lambda: bool(kernel.journal.open_intents()))
        assert kernel.budgets.account(agent.id).held["calls"] == 1
        kernel.journal.close_now()  # nothing more is recorded, as after a kill -9
        lost.cancel()
        await forget_peers()
        store.close()
        world.gate.set()
        store = SqliteStore(tmp_path / "journal.db")
        kernel = await boot(store=store, home=tmp_path, agents=False, tools=[world.tool])
        try:
            account = kernel.budgets.account(agent.id)
            assert account.used("calls") == 2
            assert account.held.get("calls", 0) == (1 if after == "unknown" else 0)
            if after == "unknown":
                (seq, _), *_ = kernel.recovery.parked()
                await kernel.recovery.resolve(seq, "done", None, "local:0")
            assert account.spent["calls"] == 2
            assert account.held["calls"] == 0
            assert same_on_the_record(kernel)
        finally:
            await kernel.close()
            store.close()

    asyncio.run(main())


def test_what_an_operator_says_failed_costs_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        world = Ledger()
        store = SqliteStore(tmp_path / "journal.db")
        kernel = await boot(store=store, home=tmp_path, agents=False)
        kernel.tools.register(world.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        world.gate.clear()
        lost = asyncio.create_task(peer.ask(Exec(tool="ledger")))
        await until(lambda: bool(kernel.journal.open_intents()))
        kernel.journal.close_now()
        lost.cancel()
        await forget_peers()
        store.close()
        store = SqliteStore(tmp_path / "journal.db")
        kernel = await boot(store=store, home=tmp_path, agents=False, tools=[world.tool])
        try:
            (seq, _), *_ = kernel.recovery.parked()
            await kernel.recovery.resolve(seq, "fail", None, "local:0")
            assert kernel.budgets.account(agent.id).used("calls") == 0
            assert same_on_the_record(kernel)
        finally:
            await kernel.close()
            store.close()

    asyncio.run(main())


def test_a_call_that_fails_costs_what_was_reserved() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)

        def broken() -> Done:
            raise EIO("broken", "it broke half-way")

        def prepare(caller: Caller, asked: Asked) -> Act:
            return Act(broken, way=Way.EFFECT, effect=Effect.OPAQUE, cost={"cost": 10})

        kernel.gate._prepare = prepare  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(EIO):
            await peer.ask(Now())
        assert kernel.budgets.account(agent.id).spent["cost"] == 10
        assert same_on_the_record(kernel)

    with_kernel(test)


def test_a_capability_revoked_before_it_was_settled_is_not_brought_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as kernel:
            world = Ledger()
            kernel.tools.register(world.tool)
            agent, peer = await greeted(kernel)
            handle = await kernel.authority.grant(agent.id, parse("tool:ledger:call{count:5}"), "local:0")
            world.gate.clear()
            slow = asyncio.create_task(peer.ask(Exec(tool="ledger")))
            await until(lambda: bool(kernel.journal.open_intents()))
            await kernel.authority.revoke([handle], "local:0")
            with pytest.raises(EACCES, match="revoked"):
                await slow
            assert f"{handle.id:012}" not in dict(kernel.store.items("handles"))

    asyncio.run(main())


def test_what_was_revoked_is_not_done_by_itself_after_a_crash(tmp_path: Path) -> None:
    """Not even what could be done again without harm."""

    async def main() -> None:
        world = Ledger(Effect.IDEMPOTENT)
        store = SqliteStore(tmp_path / "journal.db")
        kernel = await boot(store=store, home=tmp_path, agents=False)
        kernel.tools.register(world.tool)
        agent, peer = await greeted(kernel, caps=LEDGER)
        world.gate.clear()
        lost = asyncio.create_task(peer.ask(Exec(tool="ledger")))
        await until(lambda: bool(kernel.journal.open_intents()))
        rows = [gone(one) for one in agent.holdings]  # revoked, and killed before the call could be ended
        await kernel.journal.record(Draft("kernel", Kind.REVOKE), sync=True, puts=rows)
        kernel.journal.close_now()
        lost.cancel()
        await forget_peers()
        store.close()
        store, after = SqliteStore(tmp_path / "journal.db"), Ledger(Effect.IDEMPOTENT)
        kernel = await boot(store=store, home=tmp_path, agents=False, tools=[after.tool])
        try:
            assert not after.done
            assert not kernel.journal.open_intents()
            assert not kernel.recovery.parked()
        finally:
            await kernel.close()
            store.close()

    asyncio.run(main())
