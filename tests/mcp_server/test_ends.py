"""How things end: a wait in the old era, a state that grew old, a token whose time is over with a connection open."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client import Client

from agent_os.abi.doors import Clients
from agent_os.abi.errors import EAPPROVAL, EPERM, AgentOSError
from agent_os.abi.syscalls import ApproveWait, Effect, Exec, Tools
from agent_os.client.wire import connect
from agent_os.gateway import mcp
from agent_os.kernel import outside
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tooling import Tool
from cli.desk import SECONDS, until
from gateway.house import House
from kernel.serving import serving
from mcp_server.door import MEMORY, error, text

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("MCP answers are the same for every user")]
ASKS = """
version = 1
default = "capability"

[[rule]]
id = "ask-pay"
effect = "ask"
what = ["tool:pay:call"]
"""


async def pay(key: str, params: Any) -> str:
    return "paid"


@asynccontextmanager
async def asking(home: Path) -> AsyncGenerator[tuple[Kernel, Path, str]]:
    """A kernel in this process with an outside client, its socket, and a pass."""
    home.mkdir(mode=0o700)
    (home / "policy.toml").write_text(ASKS)
    async with serving(home) as (kernel, operator):
        kernel.tools.register(Tool("pay", pay, Effect.OPAQUE))
        await operator.call(Clients(do="register", name="buyer", capabilities=["tool:pay:call"]))
        word = (await operator.call(Clients(do="enter", name="buyer")))["token"]
        yield kernel, home / "run" / "kernel.sock", word


def test_in_the_old_era_a_wait_ends_as_an_error_that_names_the_approval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp, "_OLD_S", 0.5)

    async def work() -> None:
        async with asking(tmp_path / "home") as (kernel, socket, word), connect(socket, token=word) as line:

            @asynccontextmanager
            async def way(ctx: mcp.Context) -> AsyncGenerator[Any]:
                yield line

            async with Client(mcp.server(way), mode="legacy") as client:
                ended = await client.call_tool("pay", {})
                said = error(ended)
                assert (said["code"], said["detail_code"]) == ("EAPPROVAL", "approval.waiting")
                assert f"agentctl approve {said['approval']}" in text(ended)
                (asked,) = kernel.authority.approvals.pending()
                assert asked.id == said["approval"]  # it is still there, and the same call takes it up

    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_a_state_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def state(line: Any) -> str:
        with pytest.raises(EAPPROVAL) as waits:
            await line.call(Exec(tool="pay", wait_ms=10))
        return waits.value.detail["state"]

    async def work() -> None:
        async with asking(tmp_path / "home") as (_, socket, word), connect(socket, token=word) as line:
            fresh = await state(line)
            with pytest.raises(EAPPROVAL):  # a good one waits on
                await line.call(Exec(tool="pay", wait_ms=10, state=fresh))
            monkeypatch.setattr(outside, "_STATE_S", -1.0)
            old = await state(line)
            with pytest.raises(EPERM, match="too old") as refused:
                await line.call(Exec(tool="pay", wait_ms=10, state=old))
            assert refused.value.code == "state.refused"

    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_a_call_without_patience_hears_of_a_question_that_is_not_on_disk_yet(tmp_path: Path) -> None:
    async def work() -> None:
        async with asking(tmp_path / "home") as (_, socket, word), connect(socket, token=word) as line:
            with pytest.raises(EAPPROVAL) as waits:
                await line.call(Exec(tool="pay", wait_ms=0))
            assert waits.value.code == "approval.waiting"
            watched = await line.call(ApproveWait(request=waits.value.detail["approval"], wait_ms=0))
            assert watched["decision"] == "pending"  # it was told after the question was there for all

    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_a_token_whose_time_is_over_takes_its_open_connections_along(tmp_path: Path) -> None:
    house = House(tmp_path)
    try:
        house.desk.good("mcp", "register", "brief", *(word for cap in MEMORY for word in ("--cap", cap)))
        token = house.desk.good("mcp", "token", "brief", "--ttl", "20", "--json").json["token"]

        async def work() -> None:
            async with connect(house.socket, token=token) as line:
                assert {row["name"] for row in (await line.call(Tools()))["tools"]} == {
                    "memory.store",
                    "memory.retrieve",
                }
                assert house.desk.good("mcp", "clients", "--json").json["clients"][0]["connections"] == 1
                while not line.lost:
                    await asyncio.sleep(0.1)
                with pytest.raises(AgentOSError):
                    await line.call(Tools())
            with pytest.raises(EPERM):
                async with connect(house.socket, token=token):
                    pass

        asyncio.run(asyncio.wait_for(work(), SECONDS))
        until(lambda: house.desk.good("mcp", "clients", "--json").json["clients"][0]["connections"] == 0)
        answer = house.http.post("/mcp", json={}, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 401
        assert house.desk.good("mcp", "clients", "--json").json["clients"][0]["state"] == "running"  # the client stays
    finally:
        house.close()
