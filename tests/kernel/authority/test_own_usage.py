"""What an agent says of its own use counts for nothing: the kernel's figures stand."""

import asyncio
from typing import Any

import msgspec
import pytest

from agent_os.abi import frames
from agent_os.abi.errors import EINVAL, AgentOSError
from agent_os.abi.syscalls import BY_NAME, TABLE, Effect, Exec
from agent_os.kernel.calls import Asked
from agent_os.kernel.kernel import Kernel
from agent_os.kernel.tooling import Tool
from peer import greeted, with_kernel

USE = {"usage", "used", "cost", "tokens", "cpu", "cpu_s", "memory", "spent", "calls", "bytes", "messages"}


def test_no_call_of_an_agent_has_a_field_for_its_own_use() -> None:
    """S-36."""
    fields = {one.name: set(one.request.__struct_fields__) for one in TABLE if not one.operator}
    fields["SYS_THINK"].remove("messages")  # those to the model, not how many
    assert not {name: both for name, own in fields.items() if (both := own & USE)}


def test_whoever_reports_its_own_use_is_refused_and_the_kernels_count_stands() -> None:
    """S-36."""

    async def test(kernel: Kernel) -> None:
        async def run(key: str, params: Any) -> Any:
            return {"usage": {"calls": -5}, "cost": 0}

        kernel.tools.register(Tool("t", run, Effect.PURE))
        row, peer = await greeted(kernel, "a", caps=("tool:*:call",))
        await peer.ask(Exec(tool="t", params={"usage": {"calls": 0}}))
        assert kernel.budgets.account(row.id).used("calls") == 1
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def answer(body: msgspec.Raw, error: AgentOSError | None) -> None:
            answered.set_exception(error) if error else answered.set_result(None)

        body = {"tool": "t", "params": {}, "usage": {"calls": 0}}
        kernel.enter(row, Asked(BY_NAME["SYS_EXEC"].number, frames.encode_body(body)), answer)
        with pytest.raises(EINVAL):
            await answered
        assert kernel.budgets.account(row.id).used("calls") == 1

    with_kernel(test)
