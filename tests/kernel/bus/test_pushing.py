"""Events that come by themselves, against credit, and streams that flow as fast as they are read."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_os.abi.errors import EINVAL, ENOENT, ESRCH
from agent_os.abi.frames import Call, Push, Reply
from agent_os.abi.states import ExitClass
from agent_os.abi.syscalls import BY_REQUEST, Ack, Post, Publish, Recv, Send, Subscribe
from agent_os.kernel.authority.labels import untrusted
from agent_os.kernel.bus.doors import STREAM_MESSAGES
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.signals import KERNEL
from agent_os.kernel.table import Ended
from kernel.bus.test_doors import TALK, body, pair, raises
from kernel.bus.test_lives import native, seen
from kernel.serving import until as becomes
from kernel.supervisor.declared import World, in_world
from peer import Peer, until, with_kernel

pytestmark = pytest.mark.uid_free("the kernel decides the same for every user")


async def pushed(peer: Peer) -> Any:
    heard = await peer.hear()
    assert isinstance(heard, Push), heard
    assert heard.what == "message"
    return msgspec.msgpack.decode(heard.body)


async def nothing_more(peer: Peer) -> None:
    """Whatever was under way would have come before this answer."""
    for number in (10_000, 10_001):
        peer.say(Call(number, BY_REQUEST[Recv].number, body(Recv())))
        heard = await peer.hear()
        assert isinstance(heard, Reply), heard
        assert msgspec.msgpack.decode(heard.body) == []


def test_as_many_come_as_there_is_credit_for_and_an_ack_brings_the_next() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel)
        sub = (await b.ask(Subscribe(topic="t", credit=2)))["sub"]
        for number in range(5):
            await a.ask(Publish(topic="t", payload=body(number)))
        first, second = await pushed(b), await pushed(b)
        assert (first["payload"], second["payload"], first["sub"]) == (0, 1, sub)
        await nothing_more(b)
        assert await b.ask(Ack(ids=[first["id"]])) == {"unknown": 0}
        assert (await pushed(b))["payload"] == 2
        await b.ask(Subscribe(sub=sub, credit=9))
        assert [(await pushed(b))["payload"] for _ in range(2)] == [3, 4]
        await b.ask(Subscribe(sub=sub, end=True))
        await a.ask(Publish(topic="t", payload=body("late")))
        await nothing_more(b)

    with_kernel(test)


def test_credit_is_for_ones_own_pushed_subscriptions_and_bounded() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel)
        await raises(EINVAL, "body", b.ask(Subscribe(topic="t", credit=5000)))
        pulled = (await b.ask(Subscribe(topic="t")))["sub"]
        await raises(EINVAL, "bus.credit", b.ask(Subscribe(sub=pulled, credit=5)))
        await raises(ENOENT, "bus.sub", a.ask(Subscribe(sub=pulled, credit=5)))

    with_kernel(test)


def test_who_is_given_a_message_carries_what_its_sender_carries() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel)
        kernel.authority.labels.take_in("default/a", untrusted("web"))
        await b.ask(Subscribe(topic="t", credit=1))
        await a.ask(Publish(topic="t"))
        assert "untrusted" in (await pushed(b))["labels"]
        assert kernel.authority.labels.of("default/b").integrity == "untrusted"

    with_kernel(test)


def test_nothing_is_pushed_under_a_capability_that_is_gone() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel)
        await b.ask(Subscribe(topic="t", credit=4))
        await a.ask(Publish(topic="t", payload=body(1)))
        assert (await pushed(b))["payload"] == 1
        row = kernel.table.find("b")
        await kernel.authority.revoke([one for one in row.holdings if one.capability.kind == "ipc"], KERNEL.id)
        await a.ask(Publish(topic="t", payload=body(2)))
        await nothing_more(b)

    with_kernel(test)


def test_a_stream_goes_on_when_its_receiver_has_read() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel)
        for number in range(STREAM_MESSAGES):
            await a.ask(Send(to="b", type="stream", corr="c", payload=body(number)))
        waiting = asyncio.ensure_future(a.ask(Send(to="b", type="stream", corr="c", payload=body("more"))))
        await until(lambda: "stream default/b" in kernel.bus._waiting)  # pyright: ignore[reportPrivateUsage]
        (got,) = await b.ask(Recv())
        assert not waiting.done()
        await b.ask(Ack(ids=[got["id"]]))
        assert (await waiting)["id"]
        found = await b.ask(Recv(max=200))
        assert [one["payload"] for one in found] == [*range(1, STREAM_MESSAGES), "more"]
        assert {one["corr"] for one in found} == {"c"}

    with_kernel(test)


def test_a_stream_to_one_that_ends_is_told_so() -> None:
    async def test(kernel: Kernel) -> None:
        a, _ = await pair(kernel, TALK)
        for number in range(STREAM_MESSAGES):
            await a.ask(Send(to="b", type="stream", corr="c", payload=body(number)))
        waiting = asyncio.ensure_future(a.ask(Send(to="b", type="stream", corr="c")))
        await until(lambda: "stream default/b" in kernel.bus._waiting)  # pyright: ignore[reportPrivateUsage]
        await kernel.lives.left(kernel.table.find("b"), Ended(ExitClass.NORMAL, 0))
        await raises(ESRCH, "agent.ended", waiting)

    with_kernel(test)


FOLLOWER = """
from agent_os import agent

@agent
async def main(ctx):
    events = await ctx.subscribe("t", credit=3)
    await ctx.append("/mem/working/seen", "ready\\n")
    async for message in events:
        await ctx.append("/mem/working/seen", f"{message.payload}\\n")
        await ctx.sleep(0.02)
"""
SOURCE = """
from agent_os import agent

@agent
async def main(ctx):
    async def pieces():
        for number in range(150):
            yield number
    await ctx.send_stream("n", pieces())
    await ctx.append("/mem/working/seen", "over\\n")
    await ctx.sleep(1000)
"""
SINK = """
from agent_os import agent

@agent
async def main(ctx):
    async for message in ctx.messages(batch=8):
        await ctx.append("/mem/working/seen", f"{message.payload}\\n")
"""


@pytest.mark.integration
def test_a_follower_that_is_killed_handles_each_event_once_and_in_order(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        native(world, "n", FOLLOWER, max_restarts=50)
        path = world.project / "n.agent.toml"
        path.write_text("topics_subscribe = ['t']\n" + path.read_text())
        await world.apply()
        await world.ready("n")
        await becomes(lambda: seen(world) == ["ready"])
        for number in range(24):
            await world.call(Post(topic="t", payload=body(number)))
            if number % 8 == 7:
                count = len(world.exits("n"))
                await becomes(lambda number=number: len(seen(world)) > number - 4)
                await becomes(lambda: world.kernel.table.find("n").running is not None)
                world.strike("n")
                await becomes(lambda count=count: len(world.exits("n")) > count)
        await becomes(lambda: len(seen(world)) >= 25)
        assert [int(one) for one in seen(world)[1:]] == list(range(24))

    in_world(tmp_path, test)


@pytest.mark.integration
def test_a_stream_between_processes_arrives_whole_and_is_never_far_ahead(tmp_path: Path) -> None:
    async def test(world: World) -> None:
        native(world, "n", SINK)
        native(world, "m", SOURCE, "[capabilities]\nipc_scope = 'peers'\nipc_peers = ['n']\n")
        await world.apply()
        most = 0

        def over() -> bool:
            nonlocal most
            most = max(most, world.kernel.bus.broker.lag("default/n").waiting)
            return "over" in seen(world, "m") and len(seen(world)) == 151

        await becomes(over)
        assert seen(world) == [*map(str, range(150)), "None"]
        assert most <= STREAM_MESSAGES + 1

    in_world(tmp_path, test)
