"""The gateway's process: it comes back when it dies, ends with its kernel, and touches no agent."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_os.abi.doors import Gateway
from cli.desk import Desk, ended, until
from gateway.house import House

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("HTTP answers are the same for every user")]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def test_a_killed_gateway_comes_back_at_its_address_and_no_agent_notices(house: House) -> None:
    house.desk.start("worker")
    before = house.get("agents/worker").json()
    os.kill(house.gateway["pid"], signal.SIGKILL)
    until(lambda: (house.status()["gateway"] or house.gateway)["pid"] != house.gateway["pid"])
    now = house.status()["gateway"]
    assert now["url"] == house.url
    after = house.get("agents/worker").json()
    assert (after["pid"], after["incarnation"]) == (before["pid"], before["incarnation"])


def test_nobody_else_gets_the_port_of_a_gateway_that_died(house: House) -> None:
    """Whoever listened there would be sent the tokens of every dashboard and client."""
    name, _, port = house.host.partition(":")

    def taken() -> bool:
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                thief.bind((name, int(port)))
                thief.listen()
            except OSError:
                return True
        return False

    os.kill(house.gateway["pid"], signal.SIGKILL)
    until(lambda: ended(house.gateway["pid"]))
    while (house.status()["gateway"] or house.gateway)["pid"] == house.gateway["pid"]:
        assert taken()
    assert house.get("status").status_code == 200
    house.ask(Gateway(do="stop"))
    assert not taken(), "it is free when nobody wants a gateway any more"


def test_a_stopped_gateway_holds_up_nobody_and_ends_with_a_killed_kernel(tmp_path: Path) -> None:
    house = House(tmp_path)
    os.kill(house.gateway["pid"], signal.SIGSTOP)
    house.desk.start("worker")  # the kernel serves everybody else
    house.desk.kill_kernel()
    until(lambda: ended(house.gateway["pid"]))
    house.http.close()
    house.desk.ask("up", "--detach", "--no-ui")  # takes up the agent, to be put away
    house.desk.down()


def test_a_gateway_that_hangs_is_noticed_and_another_one_serves(house: House) -> None:
    house.desk.start("worker")
    hung = house.gateway["pid"]
    os.kill(hung, signal.SIGSTOP)
    until(lambda: (house.status()["gateway"] or house.gateway)["pid"] != hung)
    assert ended(hung)
    assert house.status()["gateway"]["url"] == house.url
    assert house.get("agents/worker").json()["state"] == "running"


def test_a_gateway_that_answers_is_left_alone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at a hundred times in the time of one look."""
    from agent_os import front_door

    monkeypatch.setattr(front_door, "_LOOK_EVERY", 0.02)

    async def looked() -> None:
        door = front_door.FrontDoor(house.desk.home, house.socket, dict(os.environ))
        await door.start(Gateway(do="start", port=0))
        facts = door.facts()
        try:
            await asyncio.sleep(2)
            assert door.facts() == facts
        finally:
            await door.stop()
        assert facts
        assert ended(facts["pid"])

    asyncio.run(looked())


def test_down_takes_it_along(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.close()
    assert ended(house.gateway["pid"])


def test_it_inherits_nothing_and_lives_in_a_session_of_its_own(house: House) -> None:
    pid = house.gateway["pid"]
    assert os.getsid(pid) == pid
    found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    names = {one.partition(b"=")[0].decode() for one in found if one}
    assert names <= {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "PYTHONPATH", "TZ"}
    home = str(house.desk.home)
    opened = [os.readlink(one) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
    assert {one for one in opened if one.startswith(home)} == {f"{home}/logs/gateway.log"}


def test_up_prints_the_address_with_a_code_that_lets_one_person_in(tmp_path: Path) -> None:
    import httpx2

    desk = Desk(tmp_path)
    said = desk.good("up", "--detach", "--port", "0").out
    try:
        url = next(line.split()[2] for line in said.splitlines() if line.startswith("ok    dashboard"))
        address, _, code = url.partition("/#code=")
        entered = httpx2.post(f"{address}/api/v1/session", json={"code": code}, trust_env=False)
        assert (entered.status_code, entered.json()["role"]) == (200, "operator")
        assert httpx2.post(f"{address}/api/v1/session", json={"code": code}, trust_env=False).status_code == 401
    finally:
        desk.down()


def test_a_port_that_is_taken_is_no_reason_to_have_no_kernel(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = desk.good("up", "--detach", "--port", str(taken.getsockname()[1]))
    try:
        assert "warn  dashboard" in said.out
        assert desk.good("status", "--json").json["gateway"] is None
    finally:
        desk.down()


def test_up_refuses_another_address_without_tls_and_leaves_no_kernel(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    said = desk.ask("up", "--detach", "--host", "0.0.0.0")
    assert said.code == 2
    assert "TLS" in said.err
    assert desk.ask("status").code == 8


def test_a_kernel_that_a_run_started_has_no_gateway(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.start("worker")
    assert desk.good("status", "--json").json["gateway"] is None
    desk.good("kill", "worker")
