"""An agent is held still, by its cgroup or without one, and its clock runs only while it does."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

import pytest

import agents
import leftovers
from agent_os.abi.errors import ESRCH, ETIMEDOUT
from agent_os.kernel import members
from agent_os.kernel.process import Freezer
from agent_os.sandbox.spawner import Launcher, Process

pytestmark = pytest.mark.integration
# Writes a byte again and again, from a process that left the session of its parent.
TICKER = ["/bin/sh", "-c", "setsid sh -c 'while :; do echo; sleep 0.01; done' & wait"]

Body = Callable[[Process, Freezer, int], Awaitable[None]]


@pytest.fixture(params=["cgroup", "signals"])
def way(request: pytest.FixtureRequest) -> str:
    return request.param


def drive(way: str, body: Body) -> None:
    async def with_agent(launcher: Launcher) -> None:
        async with agents.started(launcher, agents.spec_of("guest", TICKER)) as (process, output):
            await asyncio.to_thread(agents.read_line, output)
            os.set_blocking(output, False)
            if way == "cgroup" and not await process.freeze(False):
                pytest.skip("cgroup: none here that could freeze")
            group = process.group
            if way == "signals":
                process.group = None
            try:
                await body(process, Freezer(process), output)
            finally:
                process.group = group

    agents.drive(with_agent)


def ticks(output: int) -> int:
    """How much was written since the last time."""
    try:
        return len(os.read(output, 65536))
    except BlockingIOError:
        return 0


async def moves(output: int) -> bool:
    ticks(output)
    return await asyncio.to_thread(leftovers.becomes_true, lambda: ticks(output) > 0, 5)


async def stands_still(output: int) -> bool:
    ticks(output)
    await asyncio.sleep(0.2)  # long enough for twenty ticks
    return ticks(output) == 0


def test_a_paused_agent_stands_still_until_it_is_resumed(way: str) -> None:
    async def body(process: Process, freezer: Freezer, output: int) -> None:
        assert await moves(output)
        assert await freezer.pause()
        assert freezer.paused
        assert await stands_still(output)
        assert not await freezer.pause()
        assert await freezer.resume()
        assert await moves(output)
        assert not await freezer.resume()

    drive(way, body)


def test_a_paused_agent_dies_at_once(way: str) -> None:
    async def body(process: Process, freezer: Freezer, output: int) -> None:
        init = members.pid_of(process.pidfd)
        assert init
        family = members.members(init)
        await freezer.pause()
        began = time.monotonic()
        await process.kill()
        assert time.monotonic() - began < 5
        assert members.alive(family) == []

    drive(way, body)


def test_its_clock_does_not_run_while_it_is_held(way: str) -> None:
    async def body(process: Process, freezer: Freezer, output: int) -> None:
        waiting = asyncio.create_task(freezer.until_active(freezer.active + 0.2))
        await freezer.pause()
        at = freezer.active
        await asyncio.sleep(0.4)
        assert freezer.active == at
        assert not waiting.done()
        await freezer.resume()
        await asyncio.wait_for(waiting, 5)

    drive(way, body)


def test_whoever_resumes_it_waits_until_a_block_that_holds_it_is_over(way: str) -> None:
    async def body(process: Process, freezer: Freezer, output: int) -> None:
        async with freezer.held():
            resuming = asyncio.create_task(freezer.resume())
            assert await stands_still(output)
            assert not resuming.done()
        assert not await resuming
        assert await moves(output)
        await freezer.pause()
        async with freezer.held():
            pass
        assert freezer.paused

    drive(way, body)


def test_one_that_cannot_be_held_runs_on_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(process: Process, freezer: Freezer, output: int) -> None:
        stop = members.stop
        monkeypatch.setattr(members, "stop", lambda init: stop(init, seconds=0))
        with pytest.raises(ETIMEDOUT):
            await freezer.pause()
        assert not freezer.paused
        assert await moves(output)

    drive("signals", body)


def test_an_agent_that_has_ended_is_not_held(way: str) -> None:
    async def body(process: Process, freezer: Freezer, output: int) -> None:
        await process.kill()
        with pytest.raises(ESRCH):
            await freezer.pause()
        assert not freezer.paused

    drive(way, body)
