"""A kernel for the loop, in process: a scripted model, tools that are functions, an inbox, a clock, and a record.

Every call is recorded in the order in which it is made, with what it was answered. A host given a record answers from
it first and raises ENONDET where the program asks for something else, as the kernel does after a crash. `dies_at` ends
the program at a call: before it has any effect, or with the effect recorded and the answer lost.
"""

import asyncio
import datetime
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent_os.abi.errors import ENOENT, ENONDET, ETYPE, AgentOSError
from agent_os.abi.models import ModelReply, ModelRequest, TextBlock, ToolCall, Usage
from agent_os.abi.tools import ToolInfo, ToolResult
from agent_os.userland.loop_terms import FINISH, Answer, Left

SECOND = 1.0


class Died(BaseException):
    """The process is gone."""


@dataclass
class Mail:
    id: str
    payload: Any
    sender: str = "default/other"
    via: str = ""
    is_request: bool = False


def step(text: str = "", *calls: ToolCall, stop: str = "", **more: Any) -> ModelReply:
    """One answer of the model, as a step of a script says it."""
    blocks: list[Any] = [TextBlock(text=text)] if text else []
    usage = more.pop("usage", Usage(input=100, output=10))
    return ModelReply(
        blocks=[*blocks, *calls],
        stop=stop or ("tool" if calls else "end"),  # pyright: ignore[reportArgumentType]
        usage=usage,
        model=more.pop("model", "test"),
        provider="scripted",
        scripted=True,
        cost_microusd=more.pop("cost_microusd", 5),
        **more,
    )


_ids = iter(range(10**9))


def call(name: str, _id: str = "", **args: Any) -> ToolCall:
    return ToolCall(id=_id or f"c{next(_ids)}", name=name, args=args)


Tool = Callable[..., Any]
Script = list[ModelReply | AgentOSError] | Callable[[ModelRequest], ModelReply]


@dataclass
class FakeHost:
    script: Script = field(default_factory=list)
    functions: dict[str, tuple[str, Tool]] = field(default_factory=dict)  # name → effect, function
    result_schema: Callable[[Any], str] | None = None  # what is wrong with a result; empty: nothing
    mail: list[list[Mail]] = field(default_factory=list)  # by turn
    shares: list[float] = field(default_factory=list)  # of the budget left, by turn; then 1
    answers: list[Answer] = field(default_factory=list)
    think_secs: float = SECOND
    record: dict[int, tuple[str, Any]] = field(default_factory=dict)  # by number of the call
    dies_at: tuple[int, str] | None = None  # number of a call; "before" or "after" its effect

    def __post_init__(self) -> None:
        self.clock = 1_000_000.0
        self.made: list[tuple[str, str, Any]] = []  # calls in order: name, canonical arguments, answer
        self.requests: list[ModelRequest] = []
        self.effects: list[tuple[str, Any]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.acked: list[str] = []
        self.replies: list[tuple[str, Any, str | None]] = []
        self.checkpoints: list[tuple[int, Any]] = []
        self.slept: list[float] = []
        self.running = self.most_running = 0
        self.asked: list[str] = []
        self._thought = self._drained = self._counted = self._told = 0

    async def _syscall(self, name: str, args: Any, act: Callable[[], Any]) -> Any:
        """Recorded when it has happened; a recorded one does not happen again."""
        asked = json.dumps(msgspec.to_builtins(args), sort_keys=True, default=repr)
        number = len(self.made)
        self.made.append((name, asked, None))
        if self.dies_at == (number, "before"):
            raise Died
        if number in self.record:
            recorded, answer = self.record[number]
            if recorded != f"{name} {asked}":
                raise ENONDET("replay", f"call {number} was {recorded}, and now is {name} {asked}")
        else:
            try:
                answer = act()
                answer = await answer if isinstance(answer, Awaitable) else answer
            except AgentOSError as problem:
                answer = problem
        self.made[number] = (name, asked, answer)
        if self.dies_at == (number, "after"):
            raise Died
        await asyncio.sleep(0)
        if isinstance(answer, AgentOSError):
            raise answer
        return deepcopy(answer)

    def recorded(self, start: int = 0) -> dict[int, tuple[str, Any]]:
        """What has an answer, from a call on."""
        made = enumerate(self.made[start:])
        return {number: (f"{name} {asked}", answer) for number, (name, asked, answer) in made if answer is not None}

    async def think(self, request: ModelRequest) -> ModelReply:
        self.requests.append(deepcopy(request))

        def act() -> ModelReply:
            self.clock += self.think_secs
            if callable(self.script):
                return self.script(request)
            self._thought += 1
            if self._thought > len(self.script):
                raise AssertionError(f"the script has no step {self._thought}")
            found = self.script[self._thought - 1]
            if isinstance(found, AgentOSError):
                raise found
            return found

        return await self._syscall("think", request, act)

    async def tools(self) -> list[ToolInfo]:
        infos = [
            ToolInfo(name=name, version="1.0.0", description=f"does {name}", effect=effect)  # pyright: ignore[reportArgumentType]
            for name, (effect, _) in self.functions.items()
        ]
        return await self._syscall("tools", None, lambda: infos)

    async def exec(self, tool: str, params: Mapping[str, Any] | None = None, *, deadline: float) -> Any:
        assert deadline > 0

        async def act() -> Any:
            if tool == FINISH:
                problem = self.result_schema((params or {}).get("result")) if self.result_schema else ""
                if problem:
                    raise ETYPE("tool.input", problem, pointer="/result")
                return ToolResult(value=None, tool=f"{FINISH}@1.0.0", digest="d")
            if tool not in self.functions:
                raise ENOENT("tool.unknown", f"there is no tool {tool!r}")
            effect, function = self.functions[tool]
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            await asyncio.sleep(0)
            try:
                value = function(**(params or {}))
            finally:
                self.running -= 1
                if effect != "pure":
                    self.effects.append((tool, params))
            if isinstance(value, ToolResult):
                return value
            return ToolResult(value=value, tool=f"{tool}@1.0.0", digest="d", size=len(str(value)))

        return await self._syscall("exec", [tool, params], act)

    async def recv(self, *, wait: float, max: int, visible: float) -> list[Mail]:
        def act() -> list[Mail]:
            self._drained += 1
            return self.mail[self._drained - 1][:max] if self._drained <= len(self.mail) else []

        assert wait == 0
        assert visible > 0
        return await self._syscall("recv", [wait, max], act)

    async def ack(self, *messages: str) -> None:
        await self._syscall("ack", messages, lambda: self.acked.extend(messages) or "ok")

    async def reply(self, request: str, payload: Any = None, *, error: str | None = None) -> None:
        await self._syscall("reply", [request, error], lambda: self.replies.append((request, payload, error)) or "ok")

    async def ask(self, question: str, *, schema: dict[str, Any] | None = None, timeout_s: float = 900) -> Answer:
        def act() -> Answer:
            self.asked.append(question)
            self.clock += 600
            return self.answers.pop(0)

        return await self._syscall("ask", question, act)

    async def budget(self) -> Left:
        def act() -> Left:
            self._counted += 1
            share = self.shares[self._counted - 1] if self._counted <= len(self.shares) else 1.0
            return Left(share=share, resource="tokens")

        return await self._syscall("budget", None, act)

    async def now(self) -> datetime.datetime:
        def act() -> datetime.datetime:
            self.clock += 0.001
            return datetime.datetime.fromtimestamp(self.clock, datetime.UTC)

        return await self._syscall("now", None, act)

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock += seconds
        await self._syscall("sleep", seconds, lambda: "ok")

    async def gather(self, *work: Awaitable[Any]) -> list[Any]:
        return list(await asyncio.gather(*work))

    async def at_rest(self) -> None:
        return None

    async def checkpoint(self, name: str, state: Any = None) -> str:
        number = len(self.made)
        answer = await self._syscall("checkpoint", [name, state], lambda: name)
        self.checkpoints.append((number + 1, deepcopy(state)))
        return answer

    async def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        self.events.append((kind, dict(facts)))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def told(self, number: int = -1) -> str:
        """Everything that the model was shown in one of its turns, as text."""
        return msgspec.json.encode(self.requests[number].messages).decode()

    def results(self, number: int = -1) -> list[str]:
        """Texts of the tool results in one request, in order."""
        blocks = [block for message in self.requests[number].messages for block in message.blocks]
        return [
            "".join(getattr(one, "text", "") for one in block.content) for block in blocks if hasattr(block, "content")
        ]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)
