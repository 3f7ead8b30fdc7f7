"""Long work: quick is answered at once, slow is looked at later, and only by whoever began it."""

import asyncio
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi.errors import EAGAIN, EBUSY, ENOENT
from agent_os.gateway.operations import Operation, Operations
from cli.desk import until
from gateway.house import House

pytestmark = pytest.mark.uid_free("HTTP answers are the same for every user")


async def value(given: Any, gate: asyncio.Event | None = None) -> Any:
    if gate:
        await gate.wait()
    if isinstance(given, Exception):
        raise given
    return given


def test_quick_work_is_its_answer_and_slow_work_an_operation() -> None:
    async def test() -> None:
        all_, gate = Operations(), asyncio.Event()
        assert await all_.within("me", "add", value(3)) == 3
        with pytest.raises(EBUSY):
            await all_.within("me", "add", value(EBUSY("state", "not now")))
        slow = await all_.within("me", "add", value(4, gate), seconds=0.0)
        assert isinstance(slow, Operation)
        assert slow.shown()["state"] == "running"
        gate.set()
        await slow.task
        shown = all_.find("me", slow.id).shown()
        assert (shown["state"], shown["result"]) == ("done", 4)
        with pytest.raises(ENOENT, match="no operation"):
            all_.find("you", slow.id)

    asyncio.run(test())


def test_what_failed_says_why_and_a_mistake_of_ours_says_no_more_than_a_trace() -> None:
    async def test() -> None:
        all_ = Operations()
        told = all_.begin("me", "a", value(EBUSY("state", "not now", hint="wait")))
        bug = all_.begin("me", "b", value(ZeroDivisionError("secret")))
        cut = all_.begin("me", "c", value(1, asyncio.Event()))
        await asyncio.wait([told.task, bug.task])
        await all_.close()
        assert told.shown()["error"]["detail_code"] == "state"
        assert told.shown()["error"]["hint"] == "wait"
        assert bug.shown()["error"]["status"] == 500
        assert "secret" not in str(bug.shown())
        assert cut.shown()["error"]["detail_code"] == "operation.cut"

    asyncio.run(test())


def test_there_are_only_so_many_running_and_kept() -> None:
    async def test() -> None:
        all_, gate = Operations(running=2, kept=3, seconds=3600), asyncio.Event()
        both = [all_.begin("me", "x", value(1, gate)) for _ in range(2)]
        with pytest.raises(EAGAIN, match="2 operations are running"):
            all_.begin("me", "x", value(1))
        gate.set()
        await asyncio.wait([one.task for one in both])
        for _ in range(5):
            await all_.begin("me", "x", value(1)).task
        with pytest.raises(ENOENT):
            all_.find("me", both[0].id)
        short = Operations(seconds=0.0)
        one = short.begin("me", "x", value(1))
        await one.task
        with pytest.raises(ENOENT):
            short.find("me", one.id)

    asyncio.run(test())


def test_what_takes_a_processor_is_done_one_after_the_other() -> None:
    async def test() -> None:
        all_, gate = Operations(), asyncio.Event()
        running = 0
        most = 0

        async def work() -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await gate.wait()
            running -= 1

        begun = [all_.begin("me", "x", all_.alone(work())) for _ in range(3)]
        await asyncio.sleep(0)
        gate.set()
        await asyncio.wait([one.task for one in begun])
        assert most == 1

    asyncio.run(test())


def finished(house: House, answer: Any, role: str) -> Any:
    """The result, at once or under its operation."""
    if answer.status_code == 202:
        where = answer.headers["location"]
        assert house.get(where, role="operator" if role != "operator" else "viewer").status_code == 404
        until(lambda: house.get(where, role=role).json()["state"] != "running")
        return house.get(where, role=role).json()["result"]
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.integration
def test_an_auditor_has_the_record_checked_and_a_viewer_has_not(house: House) -> None:
    report = finished(house, house.post("audit/verify", {}, role="auditor"), "auditor")
    assert (report["ok"], report["pinned"]) == (True, True)
    assert report["entries"] > 0
    refused = house.post("audit/verify", {}, role="viewer")
    assert (refused.status_code, refused.json()["detail_code"]) == (403, "role.low")


@pytest.mark.integration
def test_a_record_that_was_changed_is_found_out(tmp_path: Path) -> None:
    house = House(tmp_path)
    try:
        assert finished(house, house.post("audit/verify", {}), "operator")["ok"]
        with closing(sqlite3.connect(house.desk.home / "journal.db", isolation_level=None, timeout=60)) as store:
            store.execute("update entries set entry = (select entry from entries where seq = 3) where seq = 2")
        report = finished(house, house.post("audit/verify", {}), "operator")
        assert (report["ok"], report["first_bad"]) == (False, 2)
    finally:
        house.close()


@pytest.mark.integration
def test_a_replay_says_what_it_found(house: House) -> None:
    program = "from agent_os import agent\n\n@agent\nasync def once(ctx):\n    await ctx.write('/mem/working/a', 'b')\n"
    (house.desk.project / "once.py").write_text(program)
    house.desk.good("run", "--name", "once", "once.py:once")
    report = finished(house, house.post("agents/once/replay", {}), "operator")
    assert report["calls"] >= 1, report
    unknown = house.post("agents/nobody/replay", {})
    assert unknown.status_code == 404


@pytest.mark.integration
def test_a_signal_that_is_not_true_soon_is_an_operation(house: House) -> None:
    house.desk.start("dozer")
    quick = house.post("agents/dozer/signals", {"signal": "SIGCONT"})
    assert quick.status_code == 200, quick.text
    kernel = house.status()["pid"]
    os.kill(kernel, signal.SIGSTOP)
    try:
        slow = house.post("agents/dozer/signals", {"signal": "SIGSTOP", "reason": "a slow day"})
    finally:
        os.kill(kernel, signal.SIGCONT)
    assert (slow.status_code, slow.json()["state"]) == (202, "running"), slow.text
    assert finished(house, slow, "operator")["done"][0]["name"] == "dozer"
    assert house.get("agents/dozer").json()["state"] == "paused"
    assert "a slow day" in house.get("audit", params={"last": 50}).text
    assert house.call("DELETE", "agents/dozer").status_code == 200
