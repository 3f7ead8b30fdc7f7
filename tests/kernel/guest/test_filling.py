"""Whoever writes is looked at soon, whoever does not seldom; a file system that fills wakes all who are on it."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from agent_os.kernel.guest import filling
from agent_os.kernel.guest.filling import LEAST, LONGEST, MOST, TICK, Pace, Place, step

pytestmark = pytest.mark.both_uids("root reads and writes what no other user may")


def place(top: Path, limit: int = 4 * LEAST) -> Place:
    return Place(top, top.stat().st_dev, limit)


def test_the_pause_grows_while_nothing_changes_and_is_short_again_with_the_first_change() -> None:
    pace = Pace()
    pauses = [pace.next([5, 7], 0.0) for _ in range(6)]
    assert pauses[0] == TICK
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST
    assert pace.next([5, 8], 0.0) == TICK
    assert pace.next([5, 8], 1000.0) == 10_000.0, "a large tree is not looked at all the time"


def test_a_little_is_less_for_whoever_may_write_little() -> None:
    assert (step(1), step(1 << 40)) == (LEAST, MOST)
    assert LEAST < step(16 << 20) < MOST


def test_a_pause_is_over_after_its_time_if_nothing_happens(tmp_path: Path) -> None:
    async def main() -> float:
        began = time.monotonic()
        await filling.filling().pause(0.05, [place(tmp_path)])
        return time.monotonic() - began

    assert 0.05 <= asyncio.run(main()) < 20


def test_a_file_system_that_fills_ends_the_pause_of_everybody_on_it(tmp_path: Path) -> None:
    async def main() -> None:
        pauses = [asyncio.create_task(filling.filling().pause(600, [place(tmp_path)])) for _ in range(3)]
        async with asyncio.timeout(60):
            while not all(one.done() for one in pauses):
                await asyncio.to_thread(grow, tmp_path / "file")
                await asyncio.sleep(0.2)

    asyncio.run(main())


def test_a_place_that_is_gone_wakes_nobody_and_hurts_nobody(tmp_path: Path) -> None:
    top = tmp_path / "gone"
    top.mkdir()
    here = place(top)
    top.rmdir()
    assert filling.free({here.device: here.top}) == {}

    async def main() -> None:
        await filling.filling().pause(0.05, [here])

    asyncio.run(main())


def grow(file: Path) -> None:
    with file.open("ab") as out:
        out.write(os.urandom(2 * LEAST))
        out.flush()
        os.fsync(out.fileno())
