"""The agent loop's words: what a run is bound by, what it needs of its context, what it carries from turn to turn, and
how it ends.

Data and one protocol; nothing here acts. `State` is everything that a run depends on, so it can be kept in a checkpoint
and gone on from. `Host` is the part of `Context` that the loop uses, and all that a test has to stand in for.
"""

import datetime
from collections.abc import Awaitable, Mapping
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from agent_os.abi.models import Message, ModelReply, ModelRequest, Usage
from agent_os.abi.tools import ToolInfo, ToolSpec

Reason = Literal[
    "done", "turns", "tool_calls", "budget", "deadline", "stuck", "refused", "length", "cancelled", "failed"
]
FINISH, ASK = "agent.finish", "agent.ask"  # offered to the model beside the tools of the registry


class Terms(Struct, kw_only=True, forbid_unknown_fields=True):
    """Of one run: what `[program]` and `[program.loop]` of a manifest say."""

    model: str
    goal: str = ""
    instructions: str = ""  # for the system message, before ours
    # Patterns of names. What the registry does not show is not offered either.
    tools: list[str] = field(default_factory=lambda: ["*"])
    turns: int = 50
    tool_calls: int = 200
    wall_secs: float = 1800
    max_output: int = 4096
    fallback: list[str] = []
    output_schema: dict[str, Any] | None = None  # of the result
    window: int = 0  # tokens of the model's context; 0: what replies say, or that a prompt was too long
    checkpoint_turns: int = 20  # 0: never


class Entry(Struct, kw_only=True):
    """One message of the history. A turn is an answer of the model with the results of all its calls."""

    message: Message
    turn: int = 0  # 0: the beginning
    pinned: bool = False  # compaction keeps it
    blobs: dict[str, str] = {}  # id of a call → hash under which the kernel keeps its whole result


class Outcome(Struct, kw_only=True):
    """How a run ended. `text` is the last that the model said, whatever the reason."""

    stop: Reason
    why: str = ""  # in a sentence
    result: Any = None
    text: str = ""
    turns: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    cost_microusd: int | None = 0  # None: some of it has no known price
    models: list[str] = []  # that answered
    scripted: bool = False


class State(Struct, kw_only=True):
    """Everything that the next turn depends on."""

    goal: str
    began_s: float  # of the context's clock; waiting for people moves it on
    entries: list[Entry] = []
    tools: list[ToolInfo] = []
    turn: int = 0
    tool_calls: int = 0
    bad_turns: int = 0  # in a row, in which no call was well formed
    cut_turns: int = 0  # in a row, that ended at max_output
    window: int = 0
    ratio: float = 1.0  # of tokens as reported to tokens as estimated
    repeats: dict[str, int] = {}  # digest of call and result → how often, since something new happened
    known: list[str] = []  # digests seen at all
    requests: list[str] = []  # ids of those who wait for the result
    model: int = 0  # the one in use: 0, or 1 + its place among the fallbacks
    kept_turn: int = 0  # of the last checkpoint
    text: str = ""
    usage: Usage = field(default_factory=Usage)
    cost_microusd: int | None = 0
    models: list[str] = []
    scripted: bool = False


class Stop(Exception):
    """The end of a run, from anywhere within it."""

    def __init__(self, reason: Reason, why: str = "", result: Any = None) -> None:
        super().__init__(why)
        self.reason: Reason = reason
        self.why, self.result = why, result


class Answer(Struct, kw_only=True):
    """What a person said."""

    state: Literal["value", "refused", "expired", "cancelled"]
    value: Any = None
    reason: str = ""


class Left(Struct, kw_only=True):
    """Of the budget that is tightest."""

    share: float = 1.0  # of 1
    resource: str = ""


class Incoming(Protocol):
    """A message in hand."""

    @property
    def id(self) -> str: ...
    @property
    def sender(self) -> str: ...
    @property
    def payload(self) -> Any: ...
    @property
    def via(self) -> str: ...
    @property
    def is_request(self) -> bool: ...


class OwnTool(Protocol):
    """A tool of the program itself, as `@tool` makes it: it runs in this process, with its agent's authority alone."""

    @property
    def spec(self) -> ToolSpec: ...
    async def run(self, params: Mapping[str, Any], context: Any = None) -> Any: ...


class Host(Protocol):
    """What the loop asks of its context. Every method that waits is one syscall, answered from the record in a replay;
    the loop has no other clock, no randomness and no other way out."""

    async def think(self, request: ModelRequest) -> ModelReply: ...
    async def tools(self) -> list[ToolInfo]: ...
    async def exec(self, tool: str, params: Mapping[str, Any] | None = None, *, deadline: float) -> Any: ...
    async def recv(self, *, wait: float, max: int, visible: float) -> Any: ...
    async def ack(self, *messages: str) -> None: ...
    async def reply(self, request: str, payload: Any = None, *, error: str | None = None) -> Any: ...
    async def ask(self, question: str, *, schema: dict[str, Any] | None = None, timeout_s: float = 900) -> Answer: ...
    async def budget(self) -> Left: ...
    async def now(self) -> datetime.datetime: ...
    async def sleep(self, seconds: float) -> None: ...
    async def gather(self, *work: Awaitable[Any]) -> list[Any]: ...
    async def at_rest(self) -> None: ...
    async def checkpoint(self, name: str, state: Any = None) -> Any: ...
    async def event(self, kind: str, facts: Mapping[str, Any]) -> None: ...


class Clock:
    """How long a run still has, by the context's clock."""

    def __init__(self, host: Host, wall_secs: float) -> None:
        self._host, self._wall_secs = host, wall_secs
        self.left_s = wall_secs  # at the last look

    async def look(self, state: State) -> float:
        self.left_s = state.began_s + self._wall_secs - (await self._host.now()).timestamp()
        return self.left_s


def count_bad(state: State, bad: bool, most: int = 3) -> None:
    """Turns in a row in which the model asked for nothing that could be done."""
    state.bad_turns = state.bad_turns + 1 if bad else 0
    if state.bad_turns >= most:
        raise Stop("failed", f"{state.bad_turns} turns in a row held no call that a tool could take")
