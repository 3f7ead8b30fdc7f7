"""What a caller has not taken yet of an answer."""

import asyncio

import pytest

from agent_os.abi.errors import EPIPE
from agent_os.kernel.models import backlog
from agent_os.kernel.models.backlog import Backlog


def test_pieces_arrive_in_order_though_their_caller_is_slow() -> None:
    async def work() -> None:
        taken: list[int] = []

        async def give(piece: int) -> None:
            await asyncio.sleep(0)
            taken.append(piece)

        one = Backlog(give)
        for number in range(100):
            await one.put(number, 10)
        await one.end()
        assert taken == list(range(100))

    asyncio.run(work())


def test_a_caller_that_takes_nothing_holds_nobody_up_until_too_much_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_BYTES", 100)
    monkeypatch.setattr(backlog, "PATIENCE_S", 0.05)

    async def work() -> None:
        one = Backlog[int](lambda _: asyncio.Event().wait())  # type: ignore[arg-type]
        for number in range(10):
            await one.put(number, 10)
        with pytest.raises(EPIPE, match="not taken"):
            await one.put(10, 10)
        await one.close()

    asyncio.run(work())


def test_whoever_drips_has_no_more_patience_than_whoever_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_BYTES", 10)
    monkeypatch.setattr(backlog, "PATIENCE_S", 0.2)

    async def work() -> None:
        one = Backlog[int](lambda _: asyncio.sleep(0.05))

        async def everything() -> None:
            for number in range(100):
                await one.put(number, 10)

        with pytest.raises(EPIPE):
            await everything()
        await one.close()

    asyncio.run(work())


def test_what_handing_on_raises_reaches_whoever_brings_more() -> None:
    async def work() -> None:
        async def give(_: int) -> None:
            raise EPIPE("client", "it is gone")

        one = Backlog(give)
        await one.put(1, 10)
        await asyncio.sleep(0)
        with pytest.raises(EPIPE, match="gone"):
            await one.put(2, 10)
        await one.close()

    asyncio.run(work())


def test_an_end_without_a_piece_is_an_end() -> None:
    async def work() -> None:
        one = Backlog[int](lambda _: asyncio.sleep(0))
        await one.end()
        await one.close()

    asyncio.run(work())
