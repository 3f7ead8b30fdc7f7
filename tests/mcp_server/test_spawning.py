"""A client that may start agents: children of its own, in the project that its operator named, with no more than it
holds, on its budget, and gone when it is."""

from pathlib import Path
from typing import Any

import pytest

from agent_os.kernel.table import qualified
from cli.desk import until
from mcp_server.door import ERAS, Door, error, text, visit

pytestmark = pytest.mark.integration
CAPS = (
    *("tool:agent.spawn:call", "tool:agent.wait:call", "tool:agent.list:call", "tool:agent.signal:call"),
    *("tool:memory.store:call", "mem:/mem/semantic/**:read,write", "agent:*:spawn", "agent:waiter:signal"),
)
PROGRAMS = """
from agent_os import agent

@agent
async def worker(ctx, word: str = "nothing"):
    try:
        await ctx.call("memory.store", key="word", value=word)
        return f"stored {word}"
    except Exception as problem:
        return f"refused: {problem}"

@agent
async def waiter(ctx):
    await ctx.sleep(3600)
"""


@pytest.fixture(scope="module")
def factory(door: Door) -> Door:
    (door.project / "children.py").write_text(PROGRAMS)
    return door


def register(door: Door, name: str, *words: str, caps: tuple[str, ...] = CAPS) -> None:
    door.register(name, "--control", "--project", str(door.project), *words, caps=caps)


def rows(door: Door) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in door.good("ps", "--json").json["agents"]}


@pytest.mark.parametrize("era", ERAS)
def test_a_client_starts_a_child_and_hears_its_result(factory: Door, era: str) -> None:
    name, child = f"head-{era}", f"worker-{era}"
    register(factory, name)

    async def work() -> None:
        async with factory.client(name, era) as client:
            assert "agent_spawn" in {tool.name for tool in (await client.list_tools()).tools}
            asked = {"program": "children.py:worker", "name": child, "input": {"word": "hello"}}
            caps = ["tool:memory.store:call", "mem:/mem/semantic/**:read,write"]
            made = await client.call_tool("agent_spawn", {**asked, "caps": caps})
            assert not made.is_error, text(made)
            assert made.structured_content is not None
            assert made.structured_content["level"] in ("S2", "S3", "S4")
            ended = await client.call_tool("agent_wait", {"agent": child})
            assert "stored hello" in text(ended), text(ended)
            assert child in text(await client.call_tool("agent_list", {}))  # which shows its own

    visit(work)


def test_a_child_gets_nothing_that_its_client_does_not_hold(factory: Door) -> None:
    register(factory, "narrow")

    async def work() -> None:
        async with factory.client("narrow") as client:
            asked = {"program": "children.py:worker", "name": "greedy"}
            for cap in ("tool:shell.run:call", "mem:/mem/**:read,write", "agent:*:signal"):
                refused = error(await client.call_tool("agent_spawn", {**asked, "caps": [cap]}))
                assert (refused["code"], refused["detail_code"]) == ("EPERM", "cap.missing"), refused
            for file in ("/etc/passwd", "../outside.py:main"):
                refused = error(await client.call_tool("agent_spawn", {"program": file, "name": "greedy"}))
                assert refused["code"] in ("EPERM", "EINVAL"), refused
            # And what it was not given it cannot do: the positive control is the test above.
            made = await client.call_tool("agent_spawn", {**asked, "input": {"word": "x"}})
            assert not made.is_error, text(made)
            assert "refused: " in text(await client.call_tool("agent_wait", {"agent": "greedy"}))

    visit(work)


def test_what_children_spend_is_their_clients(factory: Door) -> None:
    register(factory, "poor", "--budget", "calls=4")

    async def work() -> None:
        async with factory.client("poor") as client:
            caps = ["tool:memory.store:call", "mem:/mem/semantic/**:read,write"]
            asked = {"program": "children.py:worker", "name": "spender", "caps": caps}
            made = await client.call_tool("agent_spawn", asked)  # one call of its own
            assert not made.is_error, text(made)
            await client.call_tool("agent_wait", {"agent": "spender"})
            spent = [error(one) for one in [await client.call_tool("agent_list", {}) for _ in range(4)] if one.is_error]
            assert spent
            assert spent[0]["code"] == "EBUDGET"  # sooner than by what it called itself

    visit(work)


def test_children_end_with_their_client_and_go_on_after_a_crash_of_the_kernel(tmp_path: Path) -> None:
    door = Door(tmp_path)
    door.up()
    try:
        (door.project / "children.py").write_text(PROGRAMS)
        register(door, "head")

        async def work() -> None:
            async with door.client("head") as client:
                made = await client.call_tool("agent_spawn", {"program": "children.py:waiter", "name": "waiter"})
                assert not made.is_error, text(made)

        visit(work)
        assert rows(door)["waiter"]["state"] == "running"  # it outlives the connection
        door.kill_kernel()
        door.up()
        until(lambda: rows(door)["waiter"]["state"] == "running")
        assert rows(door)["waiter"]["parent"] == qualified("head")
        door.good("mcp", "unregister", "head", "--yes")
        assert not {"head", "waiter"} & set(rows(door))  # both are gone when it says so
    finally:
        door.down()


def test_nobody_else_is_offered_it(factory: Door) -> None:
    factory.register("plain", caps=CAPS)
    factory.register("homeless", "--control", caps=CAPS)
    unsaid = factory.ask("mcp", "register", "unsaid", "--project", str(factory.project))
    assert (unsaid.code, "--control" in unsaid.err) == (2, True), unsaid
    nowhere = factory.ask("mcp", "register", "nowhere", "--control", "--project", "/")
    assert nowhere.code != 0, nowhere

    async def work() -> None:
        for name, hint in (("plain", "--control"), ("homeless", "--project")):
            async with factory.client(name) as client:
                assert "agent_spawn" not in {tool.name for tool in (await client.list_tools()).tools}
                refused = error(await client.call_tool("agent.spawn", {"program": "children.py:worker", "name": "no"}))
                assert refused["detail_code"] == "client.control"
                assert hint in refused["hint"]

    visit(work)
    assert "no" not in rows(factory)
