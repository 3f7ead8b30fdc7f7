"""A connection is charged to everything that it rests on, and is over when any of that is."""

import asyncio
import time
from typing import Any

import pytest

from agent_os.kernel.authority.capability import Capability
from agent_os.kernel.authority.handles import Handle
from agent_os.kernel.egress import parse_grant
from agent_os.kernel.egress.naming import capability_of
from kernel.egress.proxies import OK, echo
from kernel.test_outward import ANY, Desk, desk, run


def near(here: Desk, **limits: Any) -> Handle:
    """The operator's word for the endpoint itself, which every connection by a name rests on as well."""
    one = capability_of(parse_grant(f"127.0.0.1:{here.site.port}"))
    return here.agent.holdings.grant(
        Capability(one.kind, one.target, one.actions, {**one.constraints, **limits}), "operator"
    )


def in_ms(length: int) -> int:
    return int(time.time() * 1000) + length


@pytest.mark.parametrize("address", [False, True], ids=["the name's", "the address's"])
def test_a_connection_ends_when_what_it_rests_on_expires(address: bool) -> None:
    async def work() -> None:
        length = 300
        async with desk(ANY if address else f"{ANY}&expiry={length}ms", end=False, handler=echo) as here:
            near(here, **({"expiry": in_ms(length)} if address else {}))
            began = time.monotonic()
            _, reader, writer = await here.proxy.connect(here.host)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            assert time.monotonic() - began < 5
            assert here.proxy.done[-1].code == "cap.expired"
            assert not any(one.opened for one in here.held)

    run(work)


def test_a_connection_that_rests_on_nothing_that_expires_soon_goes_on() -> None:
    async def work() -> None:
        async with desk(f"{ANY}&expiry=1h", handler=echo) as here:
            _, reader, writer = await here.proxy.connect(here.host)
            for _ in range(3):
                writer.write(b"hello")
                assert await reader.readexactly(5) == b"hello"
            writer.write_eof()
            assert (await reader.read()).endswith(b"<end>")
            assert (await here.proxy.last()).code == "net.allow"

    run(work)


def test_a_clock_that_is_set_forward_ends_what_it_has_made_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        monkeypatch.setattr("agent_os.kernel.outward._LONGEST_SLEEP", 0.05)
        async with desk(f"{ANY}&expiry=1h", handler=echo) as here:
            _, reader, writer = await here.proxy.connect(here.host)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            held = here.agent.holdings
            held.clock = held.clock._replace(wall=lambda: time.time() + 7200)
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            assert here.proxy.done[-1].code == "cap.expired"

    run(work)


def test_one_request_takes_no_longer_than_its_capability_says() -> None:
    async def work() -> None:
        async with desk(f"{ANY}&timeout=200ms", handler=echo) as here:
            _, reader, writer = await here.proxy.connect(here.host)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            async with asyncio.timeout(10):
                assert await reader.read() == b""
            assert here.proxy.done[-1].code == "cap.timeout"
            assert (await here.proxy.connect(here.host))[0].startswith(b"HTTP/1.1 200")  # each has its own time

    run(work)


def test_one_request_moves_no_more_than_its_capability_says() -> None:
    async def work() -> None:
        async with desk(f"{ANY}&max_size=1000", handler=echo) as here:
            for _ in range(2):
                _, reader, writer = await here.proxy.connect(here.host)
                writer.write(b"x" * 400)
                assert await reader.readexactly(400) == b"x" * 400
                writer.write(b"y" * 400)
                assert await reader.read() == b""
            assert {one.code for one in here.proxy.done} == {"cap.size"}

    run(work)


def test_the_handle_of_an_address_is_charged_for_every_name_that_leads_there() -> None:
    async def work() -> None:
        async with desk(ANY, end=False, handler=OK) as here:
            handle = near(here, count=2)
            for _ in range(2):
                assert (await here.get()).endswith(b"hi")
            assert handle.used["count"] == 2
            assert handle.used["bytes"] == sum(one.bytes_up + one.bytes_down for one in here.proxy.done)
            refused = await here.get()
            assert refused.startswith(b"HTTP/1.1 403 Agent OS: budget.count")
            assert (handle.used["count"], here.site.connections) == (2, 2)
            (named,) = [one for one in here.held if one is not handle]
            assert named.used.get("count", 0) == 0  # nothing limits it, so nothing is counted

    run(work)


def test_bytes_of_both_handles_are_cut_at_the_tighter_limit() -> None:
    async def work() -> None:
        async with desk(f"{ANY}&bytes=1MB", end=False, handler=OK) as here:
            handle = near(here, bytes=50)
            assert b"budget.bytes" in await here.get()
            (named,) = [one for one in here.held if one is not handle]
            assert handle.used["bytes"] == named.used["bytes"]

    run(work)


# What is left is for whoever needs it.


@pytest.mark.parametrize("limit", [300, 1000, 4096])
def test_a_second_request_may_use_all_that_the_first_one_left(limit: int) -> None:
    async def work() -> None:
        for account in (True, False):
            async with desk(ANY if account else f"{ANY}&bytes={limit}", handler=echo) as here:
                if account:
                    here.kernel.budgets.open(here.agent.id, None, {"bytes": limit})
                _, first, one = await here.proxy.connect(here.host)  # stays open
                one.write(b"x" * 20)
                assert await first.readexactly(20) == b"x" * 20
                spare = limit - 40
                size = (spare - max(spare // 16, 16)) // 2
                head, second, two = await here.proxy.connect(here.host)
                assert head.startswith(b"HTTP/1.1 200")
                two.write(b"y" * size)
                async with asyncio.timeout(10):
                    assert await second.readexactly(size) == b"y" * size

    run(work)


def test_what_connections_have_reserved_is_never_more_than_there_is() -> None:
    async def work() -> None:
        async with desk(ANY, handler=echo) as here:
            here.kernel.budgets.open(here.agent.id, None, {"bytes": 1000})
            tunnels = [await here.proxy.connect(here.host) for _ in range(20)]
            assert all(head.startswith(b"HTTP/1.1 200") for head, _, _ in tunnels)
            for _, _, writer in tunnels:
                writer.write(b"z" * 100)
            async with asyncio.timeout(10):
                while here.kernel.budgets.room(here.agent.id, "bytes") > 100:
                    await asyncio.sleep(0.005)
            account = here.kernel.budgets.account(here.agent.id)
            assert account.used("bytes") <= 1000

    run(work)
