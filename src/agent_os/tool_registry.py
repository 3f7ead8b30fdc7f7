"""`ToolRegistry`, the tool registry of the first design: a view of a kernel in your own program.

`register`, `get`, `list`, `execute`. Your code is trusted, so it may say for whom a tool is called; the call passes the
gate with what that agent holds, and is recorded as its own.
"""

import asyncio
import inspect
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Raw

from agent_os.abi import frames
from agent_os.abi.errors import AgentOSError
from agent_os.abi.syscalls import BY_REQUEST, Exec
from agent_os.abi.tools import ToolInfo
from agent_os.kernel.calls import Asked
from agent_os.kernel.tools.registry import Call, Deed, Tool
from agent_os.space import KernelSpace
from agent_os.userland.tools import Function

_decode = msgspec.msgpack.Decoder().decode


class ToolRegistry:
    def __init__(self, kernel: KernelSpace) -> None:
        self._kernel = kernel._kernel  # pyright: ignore[reportPrivateUsage]
        self._registry = self._kernel.tools.registry

    def register(self, tool: Function[..., Any]) -> None:
        """A function that `@tool` made one, with `name="ns.verb"`. It runs in this process, which is your own, so it
        needs no authority but the right to call it. EEXIST: the same version is there and is another one."""
        spec = msgspec.structs.replace(tool.spec, sandbox="driver", requires=tool.spec.requires or ("tool:call",))

        async def run(call: Call) -> Any:
            return await tool.run(call.params)

        self._registry.register(spec, Deed(run, digest=_code_of(tool)))

    def get(self, tool_name: str) -> Tool:
        """`name`, or `name@^1.2`. ENOENT names what is near."""
        return self._registry.get(tool_name)

    def list(self, query: str = "", tag: str = "", agent_id: str = "") -> list[ToolInfo]:
        """With `agent_id`: what that agent may call."""
        if not agent_id:
            return self._registry.list(query, tag)
        return self._kernel.tools.seen_by(self._kernel.table.find(agent_id), query, tag)

    async def execute(self, tool_name: str, params: Mapping[str, Any], agent_id: str) -> Any:
        """As that agent: by its capabilities, on its budget, in its record. ETYPE: the parameters do not fit."""
        agent = self._kernel.table.find_alive(agent_id)
        request = Exec(tool=tool_name, params=dict(params))
        asked = Asked(BY_REQUEST[Exec].number, frames.encode_body(request))
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def answer(body: Raw, error: AgentOSError | None) -> None:
            if answered.done():
                return
            if error:
                answered.set_exception(error)
            else:
                answered.set_result(_decode(body))

        passing = self._kernel.enter(agent, asked, answer)
        try:
            return await answered
        except asyncio.CancelledError:
            if passing:
                self._kernel.gate.cancel(passing)
            raise


def _code_of(tool: Function[..., Any]) -> bytes:
    """Another text is another tool."""
    try:
        source = inspect.getsource(tool.function)
    except (OSError, TypeError):  # typed in, or made by code
        source = tool.function.__qualname__
    return sha256(source.encode()).digest()
