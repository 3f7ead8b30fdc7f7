"""`agentctl mcp serve --as NAME`: official clients call governed tools, as the agent that the operator registered."""

from pathlib import Path

import anyio
import pytest
from mcp import MCPError

from cli.desk import until
from mcp_server.door import CLIENT, ERAS, MEMORY, Door, error, text, visit

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("MCP answers are the same for every user")]
FORBIDS = """
version = 1
default = "capability"

[[rule]]
id = "no-store"
effect = "forbid"
what = ["tool:memory.store:call"]
"""


@pytest.mark.parametrize("era", ERAS)
def test_a_client_lists_and_calls_governed_tools(door: Door, era: str) -> None:
    async def work() -> None:
        async with door.client(CLIENT, era) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"memory_store", "memory_retrieve"}
            assert tools["memory_store"].input_schema["required"] == ["key", "value"]
            assert tools["memory_retrieve"].annotations is not None
            assert tools["memory_retrieve"].annotations.read_only_hint
            stored = await client.call_tool("memory_store", {"key": f"note/{era}", "value": "hello"})
            assert not stored.is_error, text(stored)
            found = await client.call_tool("memory_retrieve", {"key": f"note/{era}"})
            assert found.structured_content is not None
            assert found.structured_content["data"] == "hello"
            assert '"hello"' in text(found)

    before = len(door.record("--agent", CLIENT))
    visit(work)
    calls = [row for row in door.record("--agent", CLIENT)[before:] if row.get("op") == "SYS_EXEC"]
    assert [row["kind"] for row in calls] == ["outcome", "result"], calls  # one record of each call


@pytest.mark.parametrize("era", ERAS)
def test_a_refusal_is_a_tool_error_with_code_reason_hint_and_decision(door: Door, era: str) -> None:
    async def work() -> None:
        async with door.client(CLIENT, era) as client:
            refused = await client.call_tool("http.fetch", {"url": "https://example.com/"})
            said = error(refused)
            assert (said["code"], said["detail_code"]) == ("EPERM", "cap.missing")
            assert said["decision"] in text(refused)
            explained = door.good("explain", said["decision"]).out
            assert "REFUSED" in explained, explained
            bad = error(await client.call_tool("memory_store", {"key": 7, "value": "x"}))
            assert bad["code"] == "ETYPE"
            with pytest.raises(MCPError, match="Unknown tool"):
                await client.call_tool("no_such_tool", {})

    visit(work)


def test_a_tool_is_listed_when_granted_and_refused_once_revoked(door: Door) -> None:
    async def work() -> None:
        async with door.client(CLIENT) as client:
            granted = door.good("cap", "grant", CLIENT, "tool:tool.output:call", "--json").json
            assert "tool_output" in {tool.name for tool in (await client.list_tools()).tools}
            door.good("cap", "revoke", granted["handle"])
            assert "tool_output" not in {tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools}
            refused = error(await client.call_tool("tool_output", {"blob": "0" * 64}))
            assert refused["detail_code"] == "cap.revoked"

    visit(work)


def test_what_a_rule_forbids_is_not_listed(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.up()
    try:
        door.register("guarded")
        (door.home / "policy.toml").write_text(FORBIDS)

        async def work() -> None:
            async with door.client("guarded") as client:
                assert {tool.name for tool in (await client.list_tools()).tools} == {"memory_retrieve"}

        until(lambda: "no-store" in door.ask("can", "guarded", MEMORY[0]).out)
        visit(work)
    finally:
        door.down()


def test_nobody_is_served_who_is_not_registered(door: Door) -> None:
    said = door.ask("mcp", "serve", "--as", "nobody")
    assert said.code == 3
    assert "agentctl mcp register nobody" in said.err


def test_two_clients_share_nothing(door: Door) -> None:
    async def work() -> None:
        async with door.client("first") as one, door.client("second") as other:
            await one.call_tool("memory_store", {"key": "mine", "value": "secret"})
            missing = error(await other.call_tool("memory_retrieve", {"key": "mine"}))
            assert missing["code"] == "ENOENT"
            spent = await other.call_tool("memory_store", {"key": "mine", "value": "x"})
            assert not spent.is_error
            assert error(await other.call_tool("memory_store", {"key": "more", "value": "x"}))["code"] == "EBUDGET"

    door.register("first")
    door.register("second", "--budget", "calls=2")
    visit(work)
    assert door.good("mcp", "clients", "-o", "name").out.split() == [CLIENT, "first", "second"]


def test_a_server_goes_on_after_its_kernel_was_killed(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.up()
    try:
        door.register("steady")

        async def work() -> None:
            async with door.client("steady") as client:
                assert not (await client.call_tool("memory_store", {"key": "a", "value": "1"})).is_error
                door.kill_kernel()
                assert error(await client.call_tool("memory_retrieve", {"key": "a"}))["code"] in (
                    "EPIPE",
                    "EHOSTUNREACH",
                )
                door.up()
                found = await client.call_tool("memory_retrieve", {"key": "a"})
                assert '"1"' in text(found)
                door.good("down")
                door.up()
                assert not (await client.call_tool("memory_retrieve", {"key": "a"})).is_error

        visit(work)
        assert door.good("mcp", "clients", "--json").json["clients"][0]["state"] == "running"
    finally:
        door.down()


def test_a_held_client_waits_and_an_ended_one_is_gone(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.up()
    try:
        door.register("brief")

        async def work() -> None:
            async with door.client("brief") as client:
                assert not (await client.call_tool("memory_store", {"key": "a", "value": "1"})).is_error
                door.good("pause", "brief")
                answered = anyio.Event()

                async def ask() -> None:
                    await client.call_tool("memory_store", {"key": "b", "value": "1"})
                    answered.set()

                async with anyio.create_task_group() as group:
                    group.start_soon(ask)
                    with anyio.move_on_after(1):  # nothing can be waited for: it is not answered
                        await answered.wait()
                    assert not answered.is_set()
                    door.good("resume", "brief")
                door.good("kill", "brief")
                assert error(await client.call_tool("memory_store", {"key": "c", "value": "1"}))["code"] in (
                    "EPIPE",
                    "ENOENT",
                )
                assert error(await client.call_tool("memory_store", {"key": "c", "value": "1"}))["code"] == "ENOENT"

        visit(work)
        assert door.good("mcp", "clients", "--json").json["clients"] == []
        assert door.ask("mcp", "serve", "--as", "brief").code == 3
    finally:
        door.down()
