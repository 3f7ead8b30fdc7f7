"""A call that waits for a person: input required in the new era, a wait in the old one; states are bound."""

from collections.abc import Iterator

import anyio
import pytest
from mcp import MCPError
from mcp_types import InputRequiredResult

from mcp_server.door import Door, text, visit

pytestmark = [pytest.mark.integration, pytest.mark.uid_free("MCP answers are the same for every user")]
ASKS = """
version = 1
default = "capability"

[[rule]]
id = "ask-store"
effect = "ask"
what = ["tool:memory.store:call"]
"""


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    door = Door(tmp_path_factory.mktemp("asking"))
    door.home.mkdir(mode=0o700)
    (door.home / "policy.toml").write_text(ASKS)
    door.up()
    door.register("asker")
    door.register("other")
    yield door
    door.down()


def pending(door: Door) -> str:
    return door.good("approvals", "--json").json["approvals"][-1]["id"]


def test_a_state_is_good_for_its_call_and_once(asking: Door) -> None:
    note = {"key": "a", "value": "1"}

    async def work() -> None:
        async with asking.client("asker", "2026-07-28") as client, asking.client("other", "2026-07-28") as other:
            first = await client.session.call_tool("memory_store", note, allow_input_required=True)
            assert isinstance(first, InputRequiredResult)
            state = first.request_state
            assert state
            changed = state[:-1] + ("A" if state[-1] != "A" else "B")
            for who, arguments, shown in (
                (client, note, changed),
                (client, {**note, "value": "2"}, state),
                (other, note, state),
            ):
                with pytest.raises(MCPError, match="requestState"):
                    await who.session.call_tool(
                        "memory_store", arguments, request_state=shown, allow_input_required=True
                    )
            asking.good("approve", pending(asking))
            done = await client.session.call_tool("memory_store", note, request_state=state, allow_input_required=True)
            assert not isinstance(done, InputRequiredResult)
            assert not done.is_error, text(done)
            with pytest.raises(MCPError, match="used before"):
                await client.session.call_tool("memory_store", note, request_state=state, allow_input_required=True)

    visit(work)
    refused = [row for row in asking.record() if "state.refused" in str(row.get("body"))]
    assert [row["agent"] for row in refused] == ["default/asker", "default/asker", "default/other", "default/asker"]


def test_the_old_era_waits_and_takes_up_the_answer(asking: Door) -> None:
    async def work() -> None:
        told: list[str] = []

        async def progress(done: float, total: float | None, message: str | None) -> None:
            told.append(message or "")

        async with asking.client("other", "legacy") as client, anyio.create_task_group() as group:

            async def approve() -> None:
                while not told:
                    await anyio.sleep(0.1)
                approval = told[0].rpartition(" ")[2]
                await anyio.to_thread.run_sync(lambda: asking.good("approve", approval))

            group.start_soon(approve)
            note = {"key": "old", "value": "1"}
            done = await client.call_tool("memory_store", note, progress_callback=progress)
            assert not done.is_error, text(done)
            assert told
            assert "q-" in told[0]

    visit(work)
