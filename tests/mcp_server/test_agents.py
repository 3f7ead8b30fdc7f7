"""Agents over MCP: those that are tools are listed and asked, and those that run are controlled by whom it was said."""

import json
from collections.abc import Iterator

import pytest
from mcp import MCPError

from mcp_server.door import ERAS, Door, error, text, visit

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("MCP answers are the same for every user")]
SERVER = """
from agent_os import agent

@agent
async def main(ctx):
    async def handle(message):
        said = message.payload["say"] if isinstance(message.payload, dict) else message.payload
        if said == "no":
            raise ValueError("I would rather not")
        return {"heard": said}
    await ctx.serve(handle)
"""
MANIFEST = """
name = "{name}"
role = "service"
description = "Says it again."
[program]
entry = "server.py:main"
[interface]
protocol = "{protocol}"
request_schema = "{name}.json"
"""
SCHEMAS = {
    "echo": {"type": "object", "required": ["say"], "properties": {"say": {"type": "string"}}},
    "word": {"type": "string"},
    "quiet": {"type": "object"},
}
CONTROL = ("agent.list", "agent.signal", "agent.spawn", "agent.wait")


@pytest.fixture(scope="module")
def served(door: Door) -> Iterator[Door]:
    (door.project / "server.py").write_text(SERVER)
    for name, schema in SCHEMAS.items():
        (door.project / f"{name}.json").write_text(json.dumps(schema))
        manifest = MANIFEST.format(name=name, protocol="ipc" if name == "quiet" else "mcp")
        (door.project / f"{name}.toml").write_text(manifest)
        door.good("apply", "-f", door.project / f"{name}.toml")
        door.good("wait", "--for", "ready", name)
    yield door
    door.good("delete", *SCHEMAS, "--yes")


@pytest.mark.parametrize("era", ERAS)
def test_an_agent_is_a_tool_for_whom_may_ask_it(served: Door, era: str) -> None:
    async def work() -> None:
        async with served.client(f"asker-{era}", era) as client, served.client(f"stranger-{era}", era) as stranger:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert set(tools) == {"agent_echo", "agent_word"}  # quiet is asked otherwise
            assert tools["agent_echo"].description == "Says it again."
            assert tools["agent_echo"].input_schema == SCHEMAS["echo"]
            assert tools["agent_word"].input_schema["properties"] == {"input": SCHEMAS["word"]}
            heard = await client.call_tool("agent_echo", {"say": "hello"})
            assert heard.structured_content == {"heard": "hello"}, text(heard)
            assert '"hi"' in text(await client.call_tool("agent_word", {"input": "hi"}))
            unwilling = await client.call_tool("agent_echo", {"say": "no"})
            assert unwilling.is_error
            assert "rather not" in text(unwilling)
            unfit = error(await client.call_tool("agent_echo", {"say": 7}))
            assert unfit["detail_code"] == "interface.request"
            assert {tool.name for tool in (await stranger.list_tools()).tools} == set()
            with pytest.raises(MCPError, match="Unknown tool"):
                await stranger.call_tool("agent_echo", {"say": "hello"})

    served.register(f"asker-{era}", caps=tuple(f"ipc:agent/{name}:send" for name in SCHEMAS))
    served.register(f"stranger-{era}", caps=("ipc:agent/nobody:send",))
    visit(work)
    sent = [row for row in served.record("--agent", f"asker-{era}") if row.get("op") == "SYS_REQUEST"]
    assert sent  # it passed the gate like any other


def test_what_controls_the_os_is_offered_to_whom_it_was_said(served: Door) -> None:
    caps = (*(f"tool:{name}:call" for name in CONTROL), "agent:quiet:signal", "agent:*:spawn")

    async def work() -> None:
        async with served.client("governor") as governor, served.client("modest") as modest:
            offered = {tool.name for tool in (await governor.list_tools()).tools}
            assert offered == {"agent_list", "agent_signal", "agent_wait"}
            stopped = await governor.call_tool("agent_signal", {"agent": "quiet", "signal": "SIGSTOP"})
            assert not stopped.is_error, text(stopped)
            assert state(served, "quiet") == "paused"
            going = await governor.call_tool("agent_signal", {"agent": "quiet", "signal": "SIGCONT"})
            assert not going.is_error, text(going)
            assert state(served, "quiet") != "paused"
            beyond = error(await governor.call_tool("agent_signal", {"agent": "echo", "signal": "SIGSTOP"}))
            assert beyond["code"] == "EPERM"
            assert {tool.name for tool in (await modest.list_tools()).tools} == set()
            refused = error(await modest.call_tool("agent.signal", {"agent": "quiet", "signal": "SIGSTOP"}))
            assert refused["detail_code"] == "client.control"
            assert "--control" in refused["hint"]
            assert state(served, "quiet") != "paused"

    served.register("governor", "--control", caps=caps)
    served.register("modest", caps=caps)
    visit(work)


def state(door: Door, name: str) -> str:
    (row,) = (row for row in door.good("ps", "--json").json["agents"] if row["name"] == name)
    return row["state"]
