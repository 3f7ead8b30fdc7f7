"""Links and monitors between agents on real sockets: who may, who is told, who goes along, and that it is told once."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_os.abi import frames
from agent_os.abi.errors import EDQUOT, EINVAL, EPERM, ESRCH
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import Inspect, Link, Links, Monitor, Trap, Write
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.supervisor import links as module
from agent_os.kernel.table import Agent, Ended
from faults.inprocess import forget_peers
from kernel.authority.ruled import rule, ruled
from kernel.serving import serving
from peer import Peer, greeted, until, with_kernel

CRASHED = Ended(ExitClass.SIGNAL, -9, "struck")
FAILED = Ended(ExitClass.ERROR, 3, "it failed")
DONE = Ended(ExitClass.NORMAL, 0)
ALL = ("agent:*:signal,inspect",)


async def told(peer: Peer) -> dict[str, Any]:
    """The next notice."""
    while True:
        heard = await peer.hear()
        assert heard is not None, "the connection ended"
        if isinstance(heard, frames.Push) and heard.what == "notice":
            return msgspec.msgpack.decode(heard.body)


async def silent(peer: Peer, agent: Agent) -> bool:
    """Whether nothing came before the answer to one more call."""
    delivered = agent.delivered
    await peer.ask(Write(path="/mem/working/x", data="x"))
    return agent.delivered == delivered + 1


def test_every_monitor_is_told_once_with_its_own_reference_and_then_nothing_is_left() -> None:
    async def test(kernel: Kernel) -> None:
        watcher, peer = await greeted(kernel, "watcher", ALL)
        target, _ = await greeted(kernel, "target")
        first = (await peer.ask(Monitor(agent="target")))["ref"]
        second = (await peer.ask(Monitor(agent="target")))["ref"]
        assert first != second
        await kernel.end(target, FAILED)
        downs = [await told(peer), await told(peer)]
        assert [one["ref"] for one in downs] == [first, second]
        assert {(one["agent"], one["pid"], one["reason"], one["class"], one["detail"]) for one in downs} == {
            ("default/target", target.pid, "crash(it failed)", "error", "it failed")
        }
        assert len(kernel.bonds.links) == 0
        assert await silent(peer, watcher)

    with_kernel(test)


def test_a_monitor_of_one_that_has_ended_is_told_at_once_and_of_nobody_is_an_error() -> None:
    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel, "watcher", ALL)
        target, _ = await greeted(kernel, "target")
        await kernel.end(target, DONE)
        ref = (await peer.ask(Monitor(agent="target")))["ref"]
        down = await told(peer)
        assert (down["ref"], down["reason"], down["pid"]) == (ref, "normal", target.pid)
        with pytest.raises(ESRCH):
            await peer.ask(Monitor(agent="nobody"))
        with pytest.raises(EINVAL):
            await peer.ask(Monitor(agent="target", ref=3))

    with_kernel(test)


def test_a_monitor_that_was_taken_back_tells_nothing_and_is_nobody_elses_to_take() -> None:
    async def test(kernel: Kernel) -> None:
        watcher, peer = await greeted(kernel, "watcher", ALL)
        other, stranger = await greeted(kernel, "other", ALL)
        target, _ = await greeted(kernel, "target")
        mine = (await peer.ask(Monitor(agent="target")))["ref"]
        theirs = (await stranger.ask(Monitor(agent="target")))["ref"]
        await stranger.ask(Monitor(ref=mine, end=True))
        await stranger.ask(Monitor(ref=theirs, end=True))
        await kernel.end(target, CRASHED)
        assert (await told(peer))["ref"] == mine
        assert await silent(stranger, other)
        assert await silent(peer, watcher)

    with_kernel(test)


def test_who_may_not_look_may_not_monitor_and_who_may_not_signal_may_not_link() -> None:
    async def test(kernel: Kernel) -> None:
        await greeted(kernel, "target")
        _, stranger = await greeted(kernel, "stranger")
        _, looker = await greeted(kernel, "looker", ("agent:target:inspect",))
        with pytest.raises(EPERM, match="agent:target:inspect"):
            await stranger.ask(Monitor(agent="target"))
        assert (await looker.ask(Monitor(agent="target")))["ref"]
        with pytest.raises(EPERM, match="agent:target:signal"):
            await looker.ask(Link(agent="target"))
        assert kernel.bonds.links.partners("default/target") == ()

    with_kernel(test)


def test_a_family_sees_its_own_and_only_the_elder_may_link() -> None:
    async def test(kernel: Kernel) -> None:
        _, parent = await greeted(kernel, "parent")
        _, child = await greeted(kernel, "child", parent="default/parent")
        assert (await parent.ask(Monitor(agent="child")))["ref"]
        assert (await child.ask(Monitor(agent="parent")))["ref"]
        with pytest.raises(EPERM):
            await child.ask(Link(agent="parent"))
        await parent.ask(Link(agent="child"))

    with_kernel(test)


@pytest.mark.long
def test_an_abnormal_end_takes_the_partner_along_whoever_made_the_link() -> None:
    async def test(kernel: Kernel) -> None:
        for maker_ends in (True, False):
            name = f"of-{maker_ends}".lower()
            maker, peer = await greeted(kernel, f"maker-{name}", ALL)
            other, _ = await greeted(kernel, f"other-{name}")
            await peer.ask(Link(agent=other.name))
            await peer.ask(Link(agent=other.name))
            first, second = (maker, other) if maker_ends else (other, maker)
            await kernel.end(first, FAILED)
            await until(lambda second=second: second.exit is not None)
            assert second.exit
            assert second.exit.exit_class is ExitClass.ERROR
            assert second.exit.reason == f"linked: {first.name} ended (error)"
            assert len(kernel.bonds.links) == 0

    with_kernel(test)


@pytest.mark.long
def test_a_normal_end_does_not_travel_nor_does_one_after_unlinking() -> None:
    async def test(kernel: Kernel) -> None:
        maker, peer = await greeted(kernel, "maker", ALL)
        ends, _ = await greeted(kernel, "ends")
        left, _ = await greeted(kernel, "left")
        await peer.ask(Link(agent="ends"))
        await peer.ask(Link(agent="left"))
        await peer.ask(Link(agent="left", end=True))
        await kernel.end(ends, DONE)
        await kernel.end(left, FAILED)
        assert await silent(peer, maker)
        assert (maker.exit, maker.fate) == (None, None)
        assert len(kernel.bonds.links) == 0

    with_kernel(test)


def test_who_traps_exits_is_told_once_and_lives() -> None:
    async def test(kernel: Kernel) -> None:
        trapper, peer = await greeted(kernel, "trapper", ALL)
        partner, _ = await greeted(kernel, "partner")
        await peer.ask(Trap())
        await peer.ask(Link(agent="partner"))
        await kernel.end(partner, CRASHED)
        exit = await told(peer)
        assert (exit["type"], exit["agent"], exit["class"]) == ("link_exit", "default/partner", "signal")
        assert await silent(peer, trapper)
        assert (trapper.exit, trapper.fate) == (None, None)

    with_kernel(test)


@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("way", ["revoked", "forbidden"])
def test_a_link_does_not_outlive_the_right_to_signal(way: str) -> None:
    async def test(kernel: Kernel) -> None:
        maker, peer = await greeted(kernel, "maker", ("agent:spared:signal", "agent:taken:signal"))
        spared, other = await greeted(kernel, "spared")
        taken, _ = await greeted(kernel, "taken")
        for name in ("spared", "taken"):
            await peer.ask(Link(agent=name))
        await take_back(kernel, maker, "agent:spared:signal", way)
        await kernel.end(maker, FAILED)
        await until(lambda: taken.exit is not None)
        assert await silent(other, spared)
        assert (spared.exit, spared.fate) == (None, None)

    with_kernel(test)


@pytest.mark.long
@pytest.mark.long
@pytest.mark.parametrize("way", ["revoked", "forbidden"])
def test_a_monitor_does_not_outlive_the_right_to_look(way: str) -> None:
    async def test(kernel: Kernel) -> None:
        watcher, peer = await greeted(kernel, "watcher", ("agent:hidden:inspect", "agent:seen:inspect"))
        ends = [(await greeted(kernel, name))[0] for name in ("hidden", "seen")]
        for one in ends:
            await peer.ask(Monitor(agent=one.name))
        await take_back(kernel, watcher, "agent:hidden:inspect", way)
        for one in ends:
            await kernel.end(one, FAILED)
        assert (await told(peer))["agent"] == "default/seen"
        assert await silent(peer, watcher)

    with_kernel(test)


async def take_back(kernel: Kernel, agent: Agent, what: str, way: str) -> None:
    if way == "revoked":
        await kernel.authority.revoke([one for one in agent.holdings if str(one.capability) == what], "test")
    else:
        ruled(kernel, rule("forbid", what))


def test_what_a_kernel_that_stops_ends_sends_nobody_along() -> None:
    async def test(kernel: Kernel) -> None:
        maker, peer = await greeted(kernel, "maker", ALL)
        other, _ = await greeted(kernel, "other")
        await peer.ask(Link(agent="other"))
        await kernel.stop(0)
        assert {maker.exit and maker.exit.reason, other.exit and other.exit.reason} == {"the kernel was stopped"}

    with_kernel(test)


def test_nobody_has_more_monitors_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 3)

    async def test(kernel: Kernel) -> None:
        _, peer = await greeted(kernel, "watcher", ALL)
        await greeted(kernel, "target")
        for _ in range(3):
            await peer.ask(Monitor(agent="target"))
        with pytest.raises(EDQUOT):
            await peer.ask(Monitor(agent="target"))

    with_kernel(test)


def test_operators_see_links_and_monitors_by_id_and_pid(tmp_path: Path) -> None:
    async def test() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            one, peer = await greeted(kernel, "one", ALL)
            other, _ = await greeted(kernel, "other")
            await peer.ask(Link(agent="other"))
            ref = (await peer.ask(Monitor(agent="other")))["ref"]
            shown = await client.call(Links())
            mine, theirs = {"id": one.id, "pid": one.pid}, {"id": other.id, "pid": other.pid}
            assert shown["links"] == [{"one": mine, "other": theirs}]
            assert shown["monitors"] == [{"ref": ref, "watcher": mine, "target": theirs}]
            assert (await client.call(Links(agent="other")))["links"] == [{"one": theirs, "other": mine}]
            seen = await client.call(Inspect(agent="one"))
            assert (seen["links"], seen["monitors"], seen["goals"]) == (shown["links"], shown["monitors"], [])
            with pytest.raises(ESRCH):
                await client.call(Links(agent="nobody"))
            await forget_peers()

    asyncio.run(test())
