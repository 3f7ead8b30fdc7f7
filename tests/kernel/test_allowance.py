"""An agent's share of the journal, and the room on its disk: who has used up the first is slowed, without the second
nobody begins anything, and nothing is dropped or kept from the operator."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import frames
from agent_os.abi.entries import Kind
from agent_os.abi.errors import EAGAIN
from agent_os.abi.frames import Call, Chunk, Credit, End
from agent_os.abi.signals import AgentSignal
from agent_os.abi.syscalls import Exit, Inspect, ListAgents, Random, Status, Tell, Watch, Write
from agent_os.kernel import allowance as module
from agent_os.kernel.allowance import ENTRY, Allowance, Room
from agent_os.kernel.guests import Guests
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import digest
from agent_os.kernel.replay import deliveries
from kernel.serving import Caller, serving
from peer import Peer, greeted, until, with_kernel

LOW, PLENTY = (10, 100), (1000, 100)  # bytes that are free, and the floor


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_what_is_there_can_be_spent_at_once_and_comes_back_with_time(clock: list[float]) -> None:
    share = Allowance(burst=100, rate=10)
    assert share.spend(100) == 0.0
    assert share.spend(50) == 5.0
    clock[0] += 2
    assert share.spend(0) == 3.0
    clock[0] += 1000
    assert share.spend(100) == 0.0, "time brings back what it holds"
    assert share.spend(100) == pytest.approx(10.0), "and no more"


def test_whoever_is_exhausted_owes_the_time_also_if_there_was_plenty(clock: list[float]) -> None:
    share = Allowance(burst=100, rate=10)
    share.exhaust(3)
    assert share.spend(0) == 3.0


async def flood(peer: Peer, count: int) -> float:
    """So many calls, all answered; how long that took."""
    began = time.monotonic()
    peer.say(*(Call(number, 29, frames.body(Random(n=8))) for number in range(count)))
    answered = {heard.id for _ in range(count) if isinstance(heard := await peer.hear(), frames.Reply)}
    assert answered == set(range(count)), "something was dropped"
    return time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("share", [Allowance(5_000, 20_000), None], ids=["little", "as usual"])
def test_an_agent_that_wrote_its_share_is_slowed_and_loses_nothing(share: Allowance | None) -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        _, other = await greeted(kernel, "other")
        agent.allowance = share or agent.allowance
        flooding = asyncio.create_task(flood(peer, 120))
        began = time.monotonic()
        for _ in range(5):
            await other.ask(Random(n=8))
        asked = time.monotonic() - began
        seconds = await flooding
        assert (seconds > 1.5) == (share is not None), "120 entries are many times what it may write at once"
        assert share is None or asked < seconds / 2, "another agent was held up"

    with_kernel(test)


@pytest.mark.long
@pytest.mark.parametrize("share", [Allowance(5_000, 50_000), None], ids=["little", "as usual"])
def test_chunks_count_as_well(share: Allowance | None) -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        agent.allowance = share or agent.allowance
        began = time.monotonic()
        peer.say(Call(1, 2, frames.body(Write(path="/mem/working/x", data=b"", stream=True))))
        for number in range(4):
            peer.say(Chunk(1, number, frames.body(b"x" * 30_000)))
        peer.say(End(1, 4))
        while isinstance(heard := await peer.hear(), Credit):
            pass
        assert isinstance(heard, frames.Reply)
        assert (time.monotonic() - began > 1.0) == (share is not None)

    with_kernel(test)


def test_a_write_that_is_watched_often_costs_as_often() -> None:
    async def test(kernel: Kernel) -> None:
        agent, peer = await greeted(kernel)
        agent.allowance = Allowance(1 << 20, 1)
        for number in range(20):
            await peer.ask(Watch(path="/mem/working" + "/d" * number, recursive=True))
        before = agent.allowance._left  # pyright: ignore[reportPrivateUsage]
        await peer.ask(Write(path="/mem/working" + "/d" * 20, data="x"))
        await until(lambda: [e.kind for e, _ in kernel.journal.scan(agent.id)].count(Kind.DELIVER) == 20)
        assert before - agent.allowance._left > 20 * ENTRY  # pyright: ignore[reportPrivateUsage]

    with_kernel(test)


def test_a_family_has_one_share_and_a_new_life_brings_none() -> None:
    async def test(kernel: Kernel) -> None:
        parent, _ = await greeted(kernel, "parent")
        child, _ = await greeted(kernel, "child", parent=parent.id)
        grandchild, _ = await greeted(kernel, "grandchild", parent=child.id)
        stranger, _ = await greeted(kernel, "stranger")
        assert child.allowance is grandchild.allowance is parent.allowance
        assert stranger.allowance is not parent.allowance
        kernel.table.forget(parent)
        assert kernel.table.admit("parent", "native").allowance is parent.allowance

    with_kernel(test)


def test_the_floor_is_looked_for_where_the_journal_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, floor = module._free(tmp_path)  # pyright: ignore[reportPrivateUsage]
    assert free > 0
    assert 0 < floor <= module.FLOOR
    monkeypatch.setattr(module, "_free", lambda _: LOW)
    assert Room(tmp_path).low()
    assert not Room(None).low(), "a journal in memory takes no disk"


def test_without_room_agents_are_turned_away_and_operators_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serving(tmp_path / "home") as (kernel, client):
            caller, other = Caller(kernel, "a"), Caller(kernel, "b")
            monkeypatch.setattr(module, "_LOOK_S", 0.0)
            await caller.write("/mem/working/x", "before")
            monkeypatch.setattr(module, "_free", lambda _: LOW)
            with pytest.raises(EAGAIN) as refused:
                await caller.write("/mem/working/x", "during")
            assert (refused.value.code, bool(refused.value.retry_after_ms)) == ("journal.space", True)
            assert (await client.call(Status()))["journal"] == "ok"
            assert len((await client.call(ListAgents()))["agents"]) == 2
            assert (await client.call(Inspect(agent="a")))["name"] == "a"
            await client.call(Tell(agent="b", signal=AgentSignal.SIGKILL))
            assert other.agent.exit
            monkeypatch.setattr(module, "_free", lambda _: PLENTY)
            await caller.write("/mem/working/x", "after")
            monkeypatch.setattr(module, "_free", lambda _: LOW)
            await caller.syscall(Exit())  # whoever wants to end may
            await until(lambda: caller.agent.exit is not None)

    asyncio.run(main())


@pytest.mark.long
def test_a_call_without_room_is_recorded_small_heard_again_in_a_replay_and_slows_its_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_free", lambda _: LOW)

    async def test(kernel: Kernel) -> None:
        kernel.room = Room(Path("/"))
        agent, peer = await greeted(kernel)
        large = Write(path="/mem/working/x", data=b"x" * 500_000)
        began = time.monotonic()
        for number in range(3):
            with pytest.raises(EAGAIN, match="room"):
                await peer.ask(large, pos=f"0:{number}")
        assert time.monotonic() - began > 1.5, "three of them cost two pauses"
        found = [(entry, body) for entry, body in kernel.journal.scan(agent.id) if entry.kind == Kind.DECISION]
        assert len(found) == 3
        assert all(body and len(body) < 1000 for _, body in found)
        (again, *_) = deliveries(found)
        assert isinstance(again.error, EAGAIN)
        assert (again.pos, again.digest) == ("0:0", digest(frames.encode_body(large)))

    with_kernel(test)


class Told(Allowance):
    """Keeps what it answered."""

    def __init__(self, burst: float, rate: float) -> None:
        super().__init__(burst, rate)
        self.pauses: list[float] = []

    def spend(self, count: int) -> float:
        self.pauses.append(super().spend(count))
        return self.pauses[-1]


def test_a_guests_connections_are_counted_and_need_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(kernel: Kernel) -> None:
        allowed: Any = Guests(kernel)._allow_connection  # pyright: ignore[reportPrivateUsage]
        agent = kernel.table.admit("guest", "guest")
        agent.allowance = told = Told(2 * ENTRY, 10 * ENTRY)
        await allowed(agent)
        began = time.monotonic()
        await allowed(agent)
        first, second = told.pauses
        assert first == 0 < second <= 0.2
        assert time.monotonic() - began >= second
        monkeypatch.setattr(module, "_free", lambda _: LOW)
        kernel.room = Room(tmp_path)
        with pytest.raises(EAGAIN, match="room"):
            await allowed(agent)

    with_kernel(test)
