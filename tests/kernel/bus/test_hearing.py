"""What an agent may hear is asked at the moment it would: capabilities that are gone or expired, rules that changed."""

import asyncio
import time
from typing import Any

from agent_os.abi.errors import EPERM
from agent_os.abi.syscalls import Ack, Publish, Recv, Subscribe
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.authority.handles import Clock
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.signals import KERNEL
from kernel.authority.ruled import rule, ruled
from kernel.bus.test_doors import body, pair, raises
from peer import Peer, greeted, until, with_kernel

TALK = ("ipc:topic/**:publish,subscribe",)


async def heard(peer: Peer) -> list[Any]:
    return [one["payload"] for one in await peer.ask(Recv(max=9))]


def expire(kernel: Kernel) -> None:
    """As if the hour had passed."""
    (handle,) = (one for one in kernel.authority.holdings("default/b") if one.expiry is not None)
    handle.expiry = round(time.time() * 1000)
    ends = kernel.bus.hearing._ends  # pyright: ignore[reportPrivateUsage]
    assert [round(at - time.time(), -2) for at in ends.values()] == [3600]
    ends.update(dict.fromkeys(ends, time.time()))
    kernel.bus._arm()  # pyright: ignore[reportPrivateUsage]


def test_a_capability_that_expires_ends_its_subscription_while_nothing_happens() -> None:
    async def test(kernel: Kernel) -> None:
        a = (await greeted(kernel, "a", TALK))[1]
        b = (await greeted(kernel, "b", ("ipc:topic/news.**:subscribe{expiry:1h}",)))[1]
        await b.ask(Subscribe(topic="news.>"))
        await a.ask(Publish(topic="news.today", payload=body("in time")))
        assert await heard(b) == ["in time"]
        await a.ask(Publish(topic="news.today", payload=body("too late")))
        expire(kernel)
        await until(lambda: not kernel.bus.broker.subscriptions())
        assert await heard(b) == []

    with_kernel(test)


def test_what_has_expired_gives_nothing_from_that_moment_on() -> None:
    async def test(kernel: Kernel) -> None:
        a = (await greeted(kernel, "a", TALK))[1]
        b = (await greeted(kernel, "b", ("ipc:topic/news:subscribe{expiry:1h}",)))[1]
        await b.ask(Subscribe(topic="news"))
        await a.ask(Publish(topic="news", payload=body(1)))
        held = kernel.authority.holdings("default/b")
        clock = held.clock
        held.clock = Clock(wall=lambda: clock.wall() + 7200)
        assert await heard(b) == []
        held.clock = clock
        await a.ask(Publish(topic="news", payload=body(2)))
        assert await heard(b) == [2], "what was not for it then is not given later"

    with_kernel(test)


def test_a_subscription_that_something_else_allows_goes_on_when_one_capability_expires() -> None:
    async def test(kernel: Kernel) -> None:
        a = (await greeted(kernel, "a", TALK))[1]
        b = (await greeted(kernel, "b", ("ipc:topic/news:subscribe{expiry:1h}",)))[1]
        await b.ask(Subscribe(topic="news"))
        await kernel.authority.grant("default/b", parse("ipc:topic/news:subscribe"), KERNEL.id)
        expire(kernel)
        await until(lambda: not kernel.bus.hearing._ends)  # pyright: ignore[reportPrivateUsage]
        await a.ask(Publish(topic="news", payload=body(1)))
        assert await heard(b) == [1]

    with_kernel(test)


def test_a_rule_that_comes_later_ends_subscriptions_with_what_waits_in_them() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel, TALK)
        for topic in ("news.today", "other"):
            await b.ask(Subscribe(topic=topic))
            await a.ask(Publish(topic=topic, payload=body(topic)))
        earlier = {agent.id: kernel.authority.policies.of(agent.id) for agent in kernel.table.alive()}
        ruled(kernel, rule("forbid", "ipc:topic/news.**:subscribe", violation='"refuse"'))
        assert await heard(b) == ["other"], "also before anything was ended"
        await kernel.governing._close_forbidden(earlier)  # pyright: ignore[reportPrivateUsage]
        assert [one.pattern for one in kernel.bus.broker.subscriptions()] == ["other"]

    with_kernel(test)


def test_a_wide_filter_does_not_get_around_a_narrow_rule() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel, TALK)
        ruled(kernel, rule("forbid", "ipc:topic/news.secret:subscribe", violation='"refuse"'))
        await b.ask(Subscribe(topic="news.*"))
        for topic in ("news.secret", "news.today"):
            await a.ask(Publish(topic=topic, payload=body(topic)))
        assert await heard(b) == ["news.today"]
        assert kernel.bus.broker.lag("default/b").waiting == 0

    with_kernel(test)


def test_what_a_revoked_member_of_a_group_had_in_hand_goes_to_another_at_once() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel, TALK)
        c = (await greeted(kernel, "c", TALK))[1]
        await b.ask(Subscribe(topic="work", group="g"))
        await a.ask(Publish(topic="work", payload=body("one")))
        (held,) = await b.ask(Recv())
        await c.ask(Subscribe(topic="work", group="g"))
        waiting = asyncio.ensure_future(c.ask(Recv(wait_ms=30_000)))
        await until(lambda: "default/c" in kernel.bus._waiting)  # pyright: ignore[reportPrivateUsage]
        row = kernel.table.find("b")
        await kernel.authority.revoke([one for one in row.holdings if one.capability.kind == "ipc"], KERNEL.id)
        assert [one["payload"] for one in await waiting] == ["one"]
        assert await b.ask(Ack(ids=[held["id"]])) == {"unknown": 1}

    with_kernel(test)


def test_one_token_of_a_capability_is_one_token() -> None:
    async def test(kernel: Kernel) -> None:
        a, b = await pair(kernel, ("ipc:topic/news.+:publish,subscribe",))
        await b.ask(Subscribe(topic="news.*"))
        await a.ask(Publish(topic="news.today", payload=body(1)))
        assert await heard(b) == [1]
        for wider in ("news.>", "news.*.late", "news.today.late", ">", "*.*"):
            await raises(EPERM, "cap.missing", b.ask(Subscribe(topic=wider)))
        await raises(EPERM, "cap.missing", a.ask(Publish(topic="news.today.late")))

    with_kernel(test)
