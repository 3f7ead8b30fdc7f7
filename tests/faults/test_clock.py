"""Row 8 of the fault table: the clock is set back, set forth, or stands still under a running kernel.

Live, only the monotonic clock counts. A build whose deadlines follow the wall clock waits for hours, or for ever.
"""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent_os.abi.errors import ETIMEDOUT
from agent_os.abi.syscalls import Sleep
from agent_os.client.verify import verify
from agent_os.kernel import table
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.recorded import Recorded, decode_any
from faults.inprocess import acks, kernel_with_processes, started
from faults.processes import Processes
from journals import database, public_key
from peer import greeted, until

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]

HOUR = 3600.0
JUMPS = {"back an hour": -HOUR, "forward a day": 24 * HOUR, "frozen": None}
_time_ns = time.time_ns
SLEEP, LONG = 0.6, 8.0


class WallClock:
    """The wall clock of this process, as the test sets it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._offset, self._stands_at = 0, None
        monkeypatch.setattr(time, "time_ns", self.read)
        monkeypatch.setattr(time, "time", lambda: self.read() / 1e9)

    def read(self) -> int:
        return self._stands_at or _time_ns() + self._offset

    def jump(self, seconds: float | None) -> None:
        if seconds is None:
            self._stands_at = _time_ns()
        else:
            self._offset = int(seconds * 1e9)


def readings(kernel: Kernel, agent: str) -> list[float]:
    """What the kernel itself read, as it is on the record."""
    entries = (kept for entry, kept in kernel.journal.scan(agent) if entry.op == 28)
    return [decode_any(Recorded.of(kept).value)["wall_ns"] / 1e9 for kept in entries]


def slept(home: Path, wall: WallClock, jump: float | None) -> float:
    """How long a sleep of 0.6 s really took; more than 8 s is not waited for."""
    took = LONG

    async def test(kernel: Kernel, processes: Processes) -> None:
        nonlocal took
        agent = await started(kernel, "sleeper", home, SECONDS=SLEEP)
        await until(lambda: "asleep" in acks(home))
        began = time.monotonic()
        await asyncio.sleep(SLEEP / 3)
        wall.jump(jump)
        try:
            async with asyncio.timeout(LONG):
                await kernel.wait_for(agent)
        except TimeoutError:
            return
        took = time.monotonic() - began
        seen = readings(kernel, agent.id)
        if jump is not None:
            assert abs(seen[1] - seen[0] - jump) < LONG, "the clock did not jump"
        else:
            assert seen[1] - seen[0] < SLEEP, "the clock did not stand still"

    kernel_with_processes(test, home)
    return took


@pytest.mark.parametrize("jump", JUMPS)
def test_a_sleep_is_as_long_as_it_is_whatever_the_clock_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: str
) -> None:
    took = slept(tmp_path, WallClock(monkeypatch), JUMPS[jump])
    assert SLEEP * 0.8 <= took < LONG
    report = verify(database(tmp_path), key=public_key(tmp_path), anchor=tmp_path / "anchor/heads")
    assert report.findings == [], "the time of an entry is information only"


@pytest.mark.parametrize("jump", ["back an hour", "frozen"])
def test_a_build_that_lives_by_the_wall_clock_does_not_wake_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: str
) -> None:
    monkeypatch.setattr(table, "time", SimpleNamespace(monotonic=lambda: time.time()))
    monkeypatch.setitem(globals(), "LONG", 2.0)
    assert slept(tmp_path, WallClock(monkeypatch), JUMPS[jump]) >= 2.0


@pytest.mark.parametrize("jump", JUMPS)
def test_a_deadline_is_not_moved_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: str) -> None:
    wall = WallClock(monkeypatch)

    async def test(kernel: Kernel, processes: Processes) -> None:
        _, peer = await greeted(kernel)
        began = time.monotonic()
        asking = asyncio.create_task(peer.ask(Sleep(ms=60_000), deadline_ms=400))
        await asyncio.sleep(0.1)
        wall.jump(JUMPS[jump])
        with pytest.raises(ETIMEDOUT):
            await asking
        assert 0.35 <= time.monotonic() - began < LONG

    kernel_with_processes(test, tmp_path)
