"""Runs with a network: their agent's own way out, each connection judged and recorded as one of its own."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from agent_os import builtin_tools
from agent_os.abi.entries import Kind
from agent_os.kernel.recorded import decode_any
from kernel.serving import serving

pytestmark = pytest.mark.integration
FETCH = """
import json, urllib.request, urllib.error

def fetched(url):
    try:
        return urllib.request.urlopen(url, timeout=60).read().decode()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.headers.get('x-agentos')}"
    except OSError:
        return "nothing"

print(json.dumps([fetched("http://127.0.0.1:PORT/"), fetched("http://denied.test/")]))
"""
PROGRAM = """
import json
from agent_os import agent

SPEC = {"name": "own.fetch", "description": "Fetch.", "input_schema": {"type": "object", "properties": {}}}

@agent
async def fetches(ctx):
    code, found = open("fetch.py").read(), []
    for network in (False, True):
        argv = ["/usr/bin/python3", "fetch.py"]
        ran = await ctx.call("shell.execute", argv=argv, network=network, timeout_s=200)
        found.append(json.loads(ran.stdout))
        ran = await ctx.call("python.execute", code=code, network=network, timeout_s=200)
        found.append(json.loads(ran.stdout))
        spec = {**SPEC, "version": f"{network + 1}.0.0", "sandbox": "tool+net" if network else "tool", "timeout_s": 200}
        await ctx.register(spec, code)
        found.append(await ctx.call(f"own.fetch@{spec['version']}"))
    return found
"""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
    await writer.drain()
    writer.close()


def test_a_run_reaches_what_its_agent_may_where_it_asks_for_that_and_nothing_else(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    project = tmp_path / "project"
    project.mkdir()

    async def life() -> None:
        site = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = site.sockets[0].getsockname()[1]
        (project / "fetch.py").write_text(FETCH.replace("PORT", str(port)))
        (project / "works.py").write_text(PROGRAM)
        order = {"file": str(project / "works.py"), "function": "fetches", "python": sys.executable}
        order |= {"cwd": str(project), "caps": ["tool:*:call", "shell:execute"], "net": [f"127.0.0.1:{port}"]}
        async with site, serving(tmp_path / "home") as (kernel, _):
            builtin_tools.install(kernel)
            agent = await kernel.guests.start(order, name="worker")
            ended = await kernel.wait_for(agent)
            without, given = ["nothing", "nothing"], ["hi", "403 denied"]
            assert ended["result"] == [without] * 3 + [given] * 3, ended
            entries = kernel.journal.scan(agent.id)
            told = [decode_any(body) for entry, body in entries if entry.kind == Kind.CONNECT and body]
            ends = [(one["host"], one["code"]) for one in told if one["done"]]
            assert sorted(ends) == [("127.0.0.1", "net.allow")] * 3 + [("denied.test", "net.host")] * 3

    asyncio.run(life())
