"""Faults 11 to 14: messages doubled, mixed up, delayed and dropped; a consumer that is stuck; floods; poison.

Agents are real processes, the kernel is this one, so that each test can also be run on a build that is broken on
purpose: there it must fail.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.syscalls import DeadLetters, Submit
from agent_os.drivers.store import Put
from agent_os.kernel.bus.lanes import Item, Lanes
from agent_os.kernel.bus.mailbox import Mailbox
from agent_os.kernel.bus.state import Dedup
from kernel.bus.test_lives import native, post, seen
from kernel.serving import until
from kernel.supervisor.declared import World, in_world

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]

PEERS = "[capabilities]\nipc_scope = 'peers'\nipc_peers = ['n']\n[budget]\nmessages = 'unlimited'\n"
WELL_AND_BROKEN = pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])


@contextmanager
def must_fail(if_broken: bool) -> Iterator[None]:
    """On the broken build the test itself must find the fault."""
    if not if_broken:
        yield
        return
    with pytest.raises(AssertionError):
        yield


# 11

EVERYTHING = """
import random
from agent_os import agent

@agent
async def main(ctx):
    line = [number for number in range(12) for _ in range(3)]
    random.shuffle(line)
    for number in line:
        sent = await ctx.send("n", number, key=f"k-{number}")
        kind = "doubled" if sent.duplicate else "sent"
        await ctx.append("/mem/working/seen", f"{kind}\\n")
        await ctx.sleep(0.02)
    await ctx.append("/mem/working/seen", "over\\n")
    await ctx.sleep(1000)
"""
CLUMSY = """
from agent_os import agent

@agent
async def main(ctx):
    while True:
        for message in await ctx.recv(visible=0.3):
            if message.deliveries == 1 and message.payload % 3 == 0:
                await message.nack("not now", delay=0.1)
                await ctx.append("/mem/working/seen", "delayed\\n")
            elif message.deliveries == 1 and message.payload % 3 == 1:
                await ctx.append("/mem/working/seen", "dropped\\n")
            else:
                await ctx.append("/mem/working/seen", f"effect-{message.key}\\n")
                await message.ack()
"""


@WELL_AND_BROKEN
def test_messages_that_come_twice_late_or_never_have_one_effect_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:  # only what is still in the mailbox is known

        def forget(self: Dedup, *about: Any) -> list[Put]:
            return []

        monkeypatch.setattr(Dedup, "remember", forget)

    async def test(world: World) -> None:
        native(world, "n", CLUMSY)
        native(world, "a", EVERYTHING, PEERS)
        await world.apply()
        await until(lambda: "over" in seen(world, "a"))
        await until(lambda: not world.kernel.bus.broker.mailboxes())
        did, sent = Counter(seen(world)), Counter(seen(world, "a"))
        assert did["delayed"] >= 4
        assert did["dropped"] >= 4
        assert sent["doubled"] == 24
        assert {name: count for name, count in did.items() if name.startswith("effect")} == {
            f"effect-k-{number}": 1 for number in range(12)
        }

    with must_fail(broken):
        in_world(tmp_path, test)


# 12

SENDER = """
from agent_os import agent
from agent_os.abi.errors import EAGAIN

@agent
async def main(ctx):
    for number in range(60):
        try:
            await ctx.send("n", number)
        except EAGAIN as full:
            await ctx.append("/mem/working/seen", f"full-{full.retry_after_ms}\\n")
            break
    await ctx.append("/mem/working/seen", "over\\n")
    await ctx.sleep(1000)
"""
STUCK = "from agent_os import agent\n@agent\nasync def main(ctx):\n    await ctx.sleep(1000)\n"


@WELL_AND_BROKEN
def test_a_stuck_consumer_has_a_bounded_mailbox_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    if broken:

        def anything_goes(self: Mailbox, *about: Any) -> None:
            return

        monkeypatch.setattr(Mailbox, "require_room", anything_goes)

    async def test(world: World) -> None:
        native(world, "n", STUCK, "[interface]\nmax_queue = 40\n")
        native(world, "a", SENDER, PEERS)
        await world.apply()
        await until(lambda: "over" in seen(world, "a"))
        waiting = world.kernel.bus.broker.lag("default/n").waiting
        assert waiting == 20, "one sender has no more than a quarter, above the half"
        (told,) = [one for one in seen(world, "a") if one.startswith("full-")]
        assert 10 <= int(told.removeprefix("full-")) <= 60_000
        assert (await world.call(DeadLetters()))["letters"] == []

    with must_fail(broken):
        in_world(tmp_path, test)


# 13

READER = """
from agent_os import agent

@agent
async def main(ctx):
    await ctx.goal()
    found = []
    while len(found) < 120:
        got = await ctx.recv(max=8)
        found += [message.lane for message in got]
        await ctx.ack(*got)
    await ctx.append("/mem/working/seen", "\\n".join(found))
    await ctx.sleep(1000)
"""


@WELL_AND_BROKEN
@pytest.mark.parametrize("flooded", ["high", "low"])
def test_no_lane_is_starved_by_a_flood_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool, flooded: str
) -> None:
    if broken:
        monkeypatch.setattr(Lanes, "next", _strictly if flooded == "high" else _backwards)

    async def test(world: World) -> None:
        native(world, "n", READER)
        await world.apply()
        await world.ready("n")
        others = {"high": ("low", 5), "low": ("high", 5)}[flooded]
        for lane, count in ((flooded, 115), others):
            for number in range(count):
                await post(world, number, lane=lane)
        assert world.kernel.bus.broker.lag("default/n").waiting == 120, "the flood is there"
        await world.call(Submit(goal={"text": "read", "agent": "n"}))
        await until(lambda: len(seen(world)) >= 120)
        places = [place for place, lane in enumerate(seen(world)) if lane == others[0]]
        assert places[-1] < 16 * 5, f"of 16 turns each lane has one: {places}"

    with must_fail(broken):
        in_world(tmp_path, test)


def _strictly(self: Lanes, lanes: Any, now: float) -> Item | None:
    """The highest that has anything, always."""
    return next((item for lane in sorted(lanes) if (item := _head(self, lane, now))), None)


def _backwards(self: Lanes, lanes: Any, now: float) -> Item | None:
    return next((item for lane in sorted(lanes, reverse=True) if (item := _head(self, lane, now))), None)


def _head(self: Lanes, lane: int, now: float) -> Item | None:
    return next_in(self, [lane], now)


next_in = Lanes.next


# 14

HANDLER = """
from agent_os import agent

@agent
async def main(ctx):
    while True:
        for message in await ctx.recv():
            FIRST
            await ctx.append("/mem/working/seen", f"handled-{message.payload}\\n")
            if message.payload == "poison":
                await message.nack("it cannot be read")
            else:
                await message.ack()
"""


@WELL_AND_BROKEN
def test_poison_is_tried_five_times_and_put_aside(tmp_path: Path, broken: bool) -> None:
    async def test(world: World) -> None:
        native(world, "n", HANDLER.replace("FIRST", "await message.ack()" if broken else ""))
        await world.apply()
        await world.ready("n")
        await post(world, "poison")
        await post(world, "fine")
        await until(lambda: "handled-fine" in seen(world))
        await until(lambda: not world.kernel.bus.broker.mailboxes())
        assert seen(world).count("handled-poison") == 5
        (letter,) = (await world.call(DeadLetters()))["letters"]
        assert (letter["payload"], letter["tries"], letter["reason"]) == ("poison", 5, "handler_error")

    with must_fail(broken):
        in_world(tmp_path, test)
