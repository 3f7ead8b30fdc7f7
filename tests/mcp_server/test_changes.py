"""A client hears that what it could call has changed: over stdio and HTTP, in both eras, and only if it has."""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import Subscription

from agent_os.abi.doors import Clients
from agent_os.abi.errors import AgentOSError
from agent_os.abi.syscalls import Tools
from agent_os.client.wire import connect
from agent_os.kernel.authority.capability import parse
from agent_os.kernel.table import qualified
from agent_os.kernel.tooling import Tool
from cli.desk import SECONDS
from gateway.house import House
from kernel.serving import serving
from kernel.serving import until as ready
from mcp_server.door import ERAS, MEMORY, Door, visit
from mcp_server.test_agents import MANIFEST, SCHEMAS, SERVER

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("MCP answers are the same for every user")]
WAYS = ("stdio", "http")
TOOLS = ("one", "two", "three")
NEAR = qualified("near")
FORBIDS = """
version = 1
default = "capability"

[[rule]]
id = "no-store"
effect = "forbid"
what = ["tool:memory.store:call"]
"""


class Ear:
    """A client that is told, in whichever era: `news` counts what it heard."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.news = 0
        self._more = anyio.Event()

    async def take(self, message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            self.hear()

    def hear(self) -> None:
        self.news += 1
        self._more.set()
        self._more = anyio.Event()

    async def until(self, news: int) -> None:
        while self.news < news:
            await self._more.wait()

    async def tools(self) -> set[str]:
        return {tool.name for tool in (await self.client.list_tools(cache_mode="refresh")).tools}


@asynccontextmanager
async def listening(transport: Any, era: str) -> AsyncGenerator[Ear]:
    async with AsyncExitStack() as stack:
        ear: Ear

        async def heard(message: Any) -> None:
            await ear.take(message)

        client = Client(transport, mode=era, message_handler=heard if era == "legacy" else None)
        ear = Ear(client)
        await stack.enter_async_context(client)
        if era == "legacy":
            assert client.server_capabilities.tools == types.ToolsCapability(list_changed=True)
            yield ear
            return
        stream = await stack.enter_async_context(
            client.listen(tools_list_changed=True, prompts_list_changed=True, resources_list_changed=True)
        )
        assert stream.honored.tools_list_changed
        assert not stream.honored.prompts_list_changed  # nothing is promised that will not be told
        async with anyio.create_task_group() as group:
            group.start_soon(_follow, stream, ear)
            yield ear
            group.cancel_scope.cancel()


async def _follow(stream: Subscription, ear: Ear) -> None:
    async for _ in stream:
        ear.hear()


class Meeting:
    """A house with a registered client that comes by one of the two ways."""

    def __init__(self, house: House) -> None:
        self.house, self.desk = house, house.desk

    def register(self, name: str, *caps: str) -> None:
        self.desk.good("mcp", "register", name, *(word for cap in caps for word in ("--cap", cap)))

    @asynccontextmanager
    async def client(self, way: str, name: str, era: str) -> AsyncGenerator[Ear]:
        if way == "stdio":
            async with listening(stdio_client(Door.server(self.desk, name)), era) as ear:  # type: ignore[arg-type]
                yield ear
            return
        token = self.desk.good("mcp", "token", name, "--json").json["token"]
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=SECONDS) as http,
            listening(streamable_http_client(f"{self.house.url}/mcp", http_client=http), era) as ear,
        ):
            yield ear


@pytest.fixture(scope="module")
def meeting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Meeting]:
    house = House(tmp_path_factory.mktemp("house"))
    yield Meeting(house)
    house.close()


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("way", WAYS)
def test_a_client_hears_of_a_grant_and_of_its_end(meeting: Meeting, way: str, era: str) -> None:
    name = f"{way}-{era}"
    meeting.register(name, *MEMORY)

    async def work() -> None:
        async with meeting.client(way, name, era) as ear:
            assert await ear.tools() == {"memory_store", "memory_retrieve"}
            granted = (await told(meeting, "cap", "grant", name, "tool:tool.output:call", "--json")).json
            await ear.until(1)
            assert await ear.tools() == {"memory_store", "memory_retrieve", "tool_output"}
            await told(meeting, "cap", "revoke", granted["handle"])
            await ear.until(2)
            assert await ear.tools() == {"memory_store", "memory_retrieve"}
            assert ear.news == 2

    visit(work)


async def told(meeting: Meeting, *words: Any) -> Any:
    """The operator's word, while the client goes on listening."""
    return await anyio.to_thread.run_sync(lambda: meeting.desk.good(*words))


def test_the_new_era_announces_it_to_whoever_asks_what_there_is(meeting: Meeting) -> None:
    meeting.register("curious", *MEMORY)

    async def work() -> None:
        async with Client(stdio_client(Door.server(meeting.desk, "curious")), mode="auto") as client:  # type: ignore[arg-type]
            assert client.protocol_version == ERAS[1]
            assert client.server_capabilities.tools == types.ToolsCapability(list_changed=True)

    visit(work)


@pytest.mark.parametrize("way", WAYS)
def test_a_client_hears_of_agents_that_come_and_go_and_not_of_what_it_may_not_see(meeting: Meeting, way: str) -> None:
    name, project = f"asker-{way}", meeting.desk.project
    meeting.register(name, "ipc:agent/echo:send")
    (project / "server.py").write_text(SERVER)
    (project / "echo.json").write_text(json.dumps(SCHEMAS["echo"]))
    (project / "echo.toml").write_text(MANIFEST.format(name="echo", protocol="mcp"))

    async def work() -> None:
        async with meeting.client(way, name, ERAS[0]) as ear:
            assert await ear.tools() == set()
            await told(meeting, "cap", "grant", name, "file:/work/**:read")  # no tool of anybody
            await told(meeting, "apply", "-f", project / "echo.toml")
            await ear.until(1)
            assert await ear.tools() == {"agent_echo"}
            await told(meeting, "delete", "echo", "--yes")
            await ear.until(2)
            assert await ear.tools() == set()

    visit(work)


def test_a_client_hears_of_a_policy_that_forbids_a_tool(meeting: Meeting) -> None:
    meeting.register("ruled", *MEMORY)
    rules = meeting.desk.project / "rules.toml"
    rules.write_text(FORBIDS)

    async def work() -> None:
        async with meeting.client("stdio", "ruled", ERAS[1]) as ear:
            assert "memory_store" in await ear.tools()
            await told(meeting, "policy", "apply", rules)
            await ear.until(1)
            assert await ear.tools() == {"memory_retrieve"}
            await told(meeting, "policy", "rollback")
            await ear.until(2)
            assert "memory_store" in await ear.tools()

    visit(work)


def test_a_stream_ends_with_the_token_that_opened_it(meeting: Meeting) -> None:
    meeting.register("brief", *MEMORY)

    async def work() -> None:
        token = (await told(meeting, "mcp", "token", "brief", "--json")).json["token"]
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, trust_env=False, timeout=SECONDS) as http,
            Client(streamable_http_client(f"{meeting.house.url}/mcp", http_client=http), mode=ERAS[1]) as client,
            client.listen(tools_list_changed=True) as stream,
        ):
            await told(meeting, "token", "rm", "mcp-brief", "--yes")
            assert [event async for event in stream] == []  # it ends, and nothing was told

    visit(work)


def test_a_session_of_the_old_era_hears_again_after_its_kernel_was_killed(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.up()
    try:
        door.register("steady")

        async def work() -> None:
            async with listening(stdio_client(door.server("steady")), ERAS[0]) as ear:
                await ear.tools()
                await anyio.to_thread.run_sync(door.kill_kernel)
                await anyio.to_thread.run_sync(door.up)
                await ear.until(1)  # something may have changed meanwhile
                await anyio.to_thread.run_sync(lambda: door.good("cap", "grant", "steady", "tool:tool.output:call"))
                await ear.until(2)
                assert "tool_output" in await ear.tools()

        visit(work)
    finally:
        door.down()


# What the kernel tells, from near.


async def run(key: str, params: Any) -> str:
    return "done"


@asynccontextmanager
async def beside(home: Path, *caps: str) -> AsyncGenerator[tuple[Any, Any, list[Any]]]:
    """A kernel in this process, a connection as a client with `caps`, and what it is pushed."""
    async with serving(home) as (kernel, operator):
        for name in TOOLS:
            kernel.tools.register(Tool(name, run))
        await operator.call(Clients(do="register", name="near", capabilities=list(caps)))
        word = (await operator.call(Clients(do="enter", name="near")))["token"]
        async with connect(home / "run" / "kernel.sock", token=word) as line:
            heard: list[Any] = []
            line.hear(lambda what, body: heard.append((what, body)))
            yield kernel, line, heard


async def until(heard: list[Any], count: int) -> None:
    await ready(lambda: len(heard) >= count)


def test_many_changes_at_once_are_one_notice_and_what_nobody_would_see_is_none(tmp_path: Path) -> None:
    async def work() -> None:
        async with beside(tmp_path / "home") as (kernel, _, heard):
            for name in TOOLS:
                await kernel.authority.grant(NEAR, parse(f"tool:{name}:call"), "local:0")
            await until(heard, 1)
            await kernel.authority.grant(NEAR, parse("tool:one:call"), "local:0")  # it has it already
            await kernel.authority.grant("default/other", parse("tool:one:call"), "local:0")
            held = next(one for one in kernel.authority.holdings(NEAR) if "two" in str(one.capability))
            await ready(lambda: kernel.outside._offers._due is None)  # it was looked at
            await kernel.authority.revoke([held], "local:0")
            await until(heard, 2)
            assert heard == [("notice", {"type": "tools"})] * 2

    asyncio.run(work())


def test_a_tool_that_is_held_and_a_capability_whose_time_is_over_are_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with beside(tmp_path / "home", "tool:one:call", "tool:two:call") as (kernel, line, heard):
            kernel.tools.registry.suspend("one", "it is looked at")
            await until(heard, 1)
            assert [row["name"] for row in (await line.call(Tools()))["tools"]] == ["two"]
            kernel.tools.registry.suspend("one", "")
            await until(heard, 2)
            size = kernel.journal.size
            held = await kernel.authority.grant(NEAR, parse("tool:three:call{expiry:2s}"), "local:0")
            assert held.expiry
            await until(heard, 4)  # that it came, and that it went, of which nothing was written
            assert kernel.journal.size == size + 1
            assert [row["name"] for row in (await line.call(Tools()))["tools"]] == ["one", "two"]

    asyncio.run(work())


def test_nothing_is_looked_at_while_nobody_is_connected(tmp_path: Path) -> None:
    async def work() -> None:
        async with beside(tmp_path / "home") as (kernel, line, _):
            looks = kernel.outside._offers
            assert looks._known
        await ready(lambda: not looks._known)
        with pytest.raises(AgentOSError):
            await line.call(Tools())

    asyncio.run(work())
