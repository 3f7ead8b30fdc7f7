"""Tools as syscalls: which there are, what each declares, and how a call of one is prepared and settled.

A tool is a name, an effect class and a coroutine; a verifiable one can say afterwards whether it happened. Registered
by the composition root; an agent needs `tool:NAME:call`. The kernel passes every call the same key again after a crash.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from agent_os.abi.errors import EINVAL, ENOENT
from agent_os.abi.syscalls import Effect, Exec
from agent_os.kernel.calls import Act, Done, Need, Way

if TYPE_CHECKING:
    from agent_os.kernel.table import Agent

Params = Mapping[str, Any]


@dataclass(frozen=True)
class Verified:
    """What a look at the world showed of an effect."""

    state: Literal["done", "not_done", "unsure"]
    value: Any = None


@dataclass(frozen=True)
class Tool:
    name: str
    run: Callable[[str, Params], Awaitable[Any]]  # key, parameters → result
    effect: Effect = Effect.OPAQUE
    verify: Callable[[str, Params], Awaitable[Verified]] | None = None
    summary: str = ""

    def __post_init__(self) -> None:
        if (self.effect is Effect.VERIFIABLE) != (self.verify is not None):
            raise EINVAL("tool.verify", f"{self.name}: a verifiable tool, and no other, has a verify function")
        if self.effect is Effect.TOOL:
            raise EINVAL("tool.effect", f"{self.name}: a tool says itself what its effect is")


class Tools:
    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def register(self, tool: Tool) -> None:
        if tool.name in self._tools:
            raise EINVAL("tool.exists", f"there is a tool {tool.name} already")
        self._tools[tool.name] = tool

    def classes(self) -> dict[str, str | None]:
        """What each declares of its effect."""
        return {name: str(tool.effect) for name, tool in self._tools.items()}

    def find(self, name: str) -> Tool:
        if name not in self._tools:
            hint = f"there is {', '.join(sorted(self._tools))}" if self._tools else "no tool is registered"
            raise ENOENT("tool.unknown", f"there is no tool {name!r}", hint=hint)
        return self._tools[name]

    def prepare(self, agent: "Agent", request: Exec, key: str) -> Act:
        tool = self.find(request.tool)
        needs = [Need("tool", "call", tool.name)]
        if request.dry_run:
            return Act(lambda: Done({"would": tool.name, "effect": tool.effect}), needs)

        async def do() -> Done:
            return Done(await tool.run(key, request.params))

        way = Way.RESULT if tool.effect is Effect.PURE else Way.EFFECT
        record = {"tool": request.tool, "params": request.params, "key": key}
        return Act(do, needs, way, tool.effect, record)
