"""kill -9 of the real daemon, and of the agent, inside one call of each tool that reaches outside.

The world counts what really happened: nothing opaque happens twice, what may be repeated is, and what nobody can tell
waits for a person.
"""

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_os.abi import syscalls as abi
from agent_os.abi.errors import ENOENT
from agent_os.client.wire import Client
from agent_os.userland import chromium
from faults.daemons import Daemon

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("a crash is recovered the same way for every user")]
SECONDS = 300.0  # for machines that do much else
PROGRAM = """
from agent_os import agent
from agent_os.abi.errors import EINTR

@agent
async def gets(ctx):
    return (await ctx.call("http.fetch", url="SITE/slow")).body

@agent
async def posts(ctx):
    return (await ctx.call("http.fetch", url="SITE/slow", method="POST", body="1")).body

@agent
async def navigates(ctx):
    return (await ctx.call("browser.navigate", url="SITE/slow"))["title"]

@agent
async def clicks(ctx):
    await ctx.call("browser.navigate", url="SITE/form")
    return (await ctx.call("browser.click", selector="button"))["title"]

@agent
async def orders(ctx):
    return (await ctx.call("mcp.shop.order", what="tea"))["text"]

@agent
async def spawns(ctx):
    while True:
        try:
            kid = await ctx.call("agent.spawn", program="works.py:kid", name="kid")
            return (await ctx.call("agent.wait", agent=kid["agent"]))["result"]
        except EINTR:  # the kernel ended before it had begun
            pass

@agent
async def kid(ctx):
    await ctx.sleep(10)
    return "Done"
"""
FORM = "<title>Form</title><form method=post action=/slow><button>Order</button></form>"
DONE = "<title>Done</title>"


class Site:
    """Counts what reached it, and answers what is slow when it is told to."""

    def __init__(self) -> None:
        self.port, self.seen, self.go_on = 0, Counter[str](), asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, _ = head.decode().split(" ", 2)
            if path in ("/form", "/slow", "/mcp"):
                page = await self._answer(method, path, head, reader)
                said = f"HTTP/1.1 200 OK\r\nContent-Type: {page[0]}\r\nContent-Length: {len(page[1])}\r\n\r\n{page[1]}"
                writer.write(said.encode())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever asked is dead
        finally:
            writer.close()

    async def _answer(self, method: str, path: str, head: bytes, reader: asyncio.StreamReader) -> tuple[str, str]:
        if path == "/mcp":
            return "application/json", await self._mcp(head, reader)
        if path == "/slow":
            self.seen[method] += 1
            await self.go_on.wait()
        return "text/html", FORM if path == "/form" else DONE

    async def _mcp(self, head: bytes, reader: asyncio.StreamReader) -> str:
        """A server of one tool, in the era of handshakes, in as few words as the protocol takes."""
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        asked = json.loads(await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b"{}")
        if asked.get("method") == "tools/call":
            self.seen["order"] += 1
            await self.go_on.wait()
        schema = {"type": "object", "properties": {"what": {"type": "string"}}}
        results = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "shop", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "order", "description": "Order.", "inputSchema": schema}]},
            "tools/call": {"content": [{"type": "text", "text": "ordered"}]},
        }
        if "id" not in asked:
            return ""
        if result := results.get(asked["method"]):
            return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        return json.dumps({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": -32601, "message": "no such method"}})


class World:
    def __init__(self, daemon: Daemon, site: Site) -> None:
        self.daemon, self.site = daemon, site

    async def start(self, function: str) -> None:
        caps = ["tool:*:call", "agent:spawn"]
        file = str(self.daemon.project / "works.py")
        order = {"file": file, "function": function, "python": sys.executable, "cwd": str(self.daemon.project)}
        order |= {"workspace": f"bind:{self.daemon.project}", "name": "worker", "caps": caps}
        order |= {"net": [f"127.0.0.1:{self.site.port}"]}
        self.daemon.start()
        async with self.daemon.client() as client:
            if function == "orders":
                await client.call(abi.Mcp(do="add", name="shop", url=f"http://127.0.0.1:{self.site.port}/mcp"))
            await client.call(abi.Run(order=order, detach=True))

    async def until(self, what: str, count: int = 1) -> None:
        """So often it reached the site. Whoever has files of somebody's and sends something out is asked about."""
        async with asyncio.timeout(SECONDS), self.daemon.client() as client:
            while self.site.seen[what] < count:
                for one in (await client.call(abi.Approvals()))["approvals"]:
                    await client.call(abi.Decide(approval=one["id"], outcome="approve", digest=one["digest"]))
                await asyncio.sleep(0.05)

    async def parked(self, client: Client) -> int:
        """The entry that waits for somebody to say what became of it."""
        async with asyncio.timeout(SECONDS):
            while True:
                facts: dict[str, Any] = await client.call(abi.Inspect(agent="worker"))
                if found := facts.get("parked"):
                    return int(found[0]["seq"])
                await asyncio.sleep(0.05)

    async def names(self, client: Client) -> list[str]:
        return sorted(one["name"] for one in (await client.call(abi.ListAgents()))["agents"])

    async def ended(self, client: Client) -> dict[str, Any]:
        return await client.call(abi.Await(agent="worker"), deadline=SECONDS)


@asynccontextmanager
async def world(top: Path) -> AsyncGenerator[World]:
    os.chmod(top, 0o755)
    daemon, site = Daemon(top), Site()
    server = await asyncio.start_server(site, "127.0.0.1", 0)
    site.port = server.sockets[0].getsockname()[1]
    (daemon.project / "works.py").write_text(PROGRAM.replace("SITE", f"http://127.0.0.1:{site.port}"))
    try:
        yield World(daemon, site)
    except Exception:
        print((top / "daemon.log").read_text()[-3000:])
        raise
    finally:
        if daemon.process and daemon.process.poll() is None:
            daemon.kill()
        site.go_on.set()
        server.close()


def run(top: Path, test: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def life() -> None:
        async with world(top) as here:
            await test(here)

    asyncio.run(life())


def there_is_a_browser() -> bool:
    try:
        return bool(chromium.find())
    except ENOENT:
        return False


needs_browser = pytest.mark.skipif(not there_is_a_browser(), reason="no chromium-headless-shell found; make chromium")


@pytest.mark.parametrize(
    ("function", "result"), [("gets", "Done"), pytest.param("navigates", "Done", marks=needs_browser)]
)
def test_what_may_be_repeated_is_and_its_agent_gets_one_answer(tmp_path: Path, function: str, result: str) -> None:
    async def test(here: World) -> None:
        await here.start(function)
        await here.until("GET")
        here.daemon.kill()
        here.daemon.start()
        await here.until("GET", 2)
        here.site.go_on.set()
        async with here.daemon.client() as client:
            assert (await here.ended(client))["result"] == result

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("function", "what", "said"),
    [
        ("posts", "POST", {"url": "http://x/", "status": 200, "headers": {}, "body": "as told", "size": 7}),
        pytest.param("clicks", "POST", {"url": "http://x/", "title": "as told"}, marks=needs_browser),
        ("orders", "order", {"text": "as told"}),
    ],
)
def test_what_nobody_can_tell_waits_for_a_person_and_happened_once(
    tmp_path: Path, function: str, what: str, said: dict[str, Any]
) -> None:
    if function == "orders":
        pytest.importorskip("mcp", reason="the extra mcp is not installed")

    async def test(here: World) -> None:
        await here.start(function)
        await here.until(what)
        here.daemon.kill()
        here.daemon.start()
        async with here.daemon.client() as client:
            seq = await here.parked(client)
            await client.call(abi.Resolve(agent="worker", seq=seq, verdict="done", result=said))
            assert (await here.ended(client))["result"] == "as told"
        assert here.site.seen[what] == 1

    run(tmp_path, test)


def test_a_child_that_a_tool_spawned_is_there_once(tmp_path: Path) -> None:
    async def test(here: World) -> None:
        await here.start("spawns")
        async with asyncio.timeout(SECONDS), here.daemon.client() as client:
            while await here.names(client) != ["kid", "worker"]:
                await asyncio.sleep(0.02)
        here.daemon.kill()
        here.daemon.start()
        async with here.daemon.client() as client:
            assert set(await here.names(client)) <= {"kid", "worker"}
            assert (await here.ended(client))["result"] == "Done"

    run(tmp_path, test)


def test_a_call_whose_agent_was_killed_comes_to_its_end_and_the_next_life_is_told(tmp_path: Path) -> None:
    async def test(here: World) -> None:
        await here.start("posts")
        await here.until("POST")
        async with here.daemon.client() as client:
            listed = await client.call(abi.ListAgents())
            os.kill(listed["agents"][0]["pid"], signal.SIGKILL)
            here.site.go_on.set()
            assert (await here.ended(client))["result"] == "Done"
        assert here.site.seen["POST"] == 1

    run(tmp_path, test)
