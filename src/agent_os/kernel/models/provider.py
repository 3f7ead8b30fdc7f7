"""The kernel's side of a model provider: its interface, and a stream collected into a reply.

In: the events of a provider. Out: a `ModelReply` that says what has come so far, whole or cut short, and the value that
a text holds where a schema was asked for. A request that makes no sense is refused here, for all providers. No clock:
whoever calls says when the first token came.
"""

import re
from typing import Any

import msgspec

from agent_os.abi.errors import EINVAL
from agent_os.abi.models import (
    Block,
    BlockDone,
    Finished,
    ModelEvent,
    ModelReply,
    ModelRequest,
    Started,
    Stop,
    TextBlock,
    TextDelta,
    ToolDelta,
    Usage,
    UsageSeen,
)
from agent_os.drivers.models import (
    Again,
    Bucket,
    Cancel,
    LimitSample,
    LimitsSeen,
    ModelFault,
    ModelInfo,
    ModelProvider,
    ProviderEvent,
)

__all__ = [
    "Again",
    "Bucket",
    "Cancel",
    "Collector",
    "LimitSample",
    "LimitsSeen",
    "ModelFault",
    "ModelInfo",
    "ModelProvider",
    "ProviderEvent",
    "require_sound",
    "value_in",
]

_FENCED = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?```", re.DOTALL)


class Collector:
    """Takes the events of one call. Text that was begun and not finished is part of a reply that was cut short; a tool
    call that was not finished is not: nobody may run half of one."""

    def __init__(self) -> None:
        self.stop: Stop | None = None  # None: still going on
        self.usage = Usage(estimated=True)
        self.model = ""
        self.request_id = ""
        self.scripted = False
        self.began = False  # something of the reply itself has come
        self._blocks: dict[int, Block] = {}
        self._texts: dict[int, list[str]] = {}

    def take(self, event: ModelEvent) -> None:
        match event:
            case Started():
                self.model, self.request_id = event.model, event.request_id
            case TextDelta():
                self.began = True
                self._texts.setdefault(event.index, []).append(event.text)
            case ToolDelta():
                self.began = True
            case BlockDone():
                self.began = True
                self._blocks[event.index] = event.block
            case UsageSeen():
                self.usage = event.usage
            case Finished():
                self.stop, self.usage, self.scripted = event.stop, event.usage, event.scripted
                self.model = event.model or self.model

    def reply(self) -> ModelReply:
        blocks = dict[int, Block](self._blocks)
        for index, pieces in self._texts.items():
            blocks.setdefault(index, TextBlock(text="".join(pieces)))
        return ModelReply(
            blocks=[blocks[index] for index in sorted(blocks)],
            stop=self.stop or "cancelled",
            usage=self.usage,
            model=self.model,
            scripted=self.scripted,
        )


def require_sound(request: ModelRequest) -> None:
    """What no provider could make sense of is refused before it costs anything: EINVAL `request`."""
    named = [tool.name for tool in request.tools]
    if not request.model or not any(message.blocks for message in request.messages):
        raise EINVAL("request", "a request names a model and has at least one message that says something")
    if request.max_output < 1:
        raise EINVAL("request", f"max_output is 1 or more, not {request.max_output}")
    if len(set(named)) != len(named):
        raise EINVAL("request", "a tool is offered twice")
    if request.tool_choice not in ("auto", "none", "required", *named):
        raise EINVAL("request", f"tool_choice is auto, none, required or an offered tool, not {request.tool_choice!r}")
    if request.tool_choice not in ("auto", "none") and not named:
        raise EINVAL("request", "tool_choice asks for a tool, and none is offered")
    if request.deadline_ms is not None and request.deadline_ms < 0:
        raise EINVAL("request", "deadline_ms is from now, and not negative")


def value_in(text: str) -> Any:
    """The JSON value that a model wrote, bare or in one fenced block. ValueError says why there is none."""
    text = text.strip()
    if (fenced := _FENCED.search(text)) is not None and not text.startswith(("{", "[", '"')):
        text = fenced.group(1)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
