"""What an agent asks of a model and what it gets: requests, blocks, replies, and the events of a stream.

Drivers turn these into each provider's wire and back. In: nothing. Out: msgspec structs, tagged by `type` where several
kinds stand in one list, events by `event`. A model is named `provider/name`; no URL, key or header ever appears here.

An opaque block is what a provider said that is not ours to read, such as reasoning with a signature. It goes back to
the dialect that it came from, byte for byte, and is never shown as text.
"""

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct, field

Role = Literal["system", "user", "assistant", "tool"]
Stop = Literal["end", "tool", "length", "stop_sequence", "refused", "filtered", "context", "cancelled"]
CacheMode = Literal["off", "replay_only", "reuse"]

LEAST_OUTPUT = 256  # tokens: a budget that leaves less refuses the call instead of lowering `max_output`


class TextBlock(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    text: str
    extra: bytes = b""  # JSON fields of the provider's own on this block; sent back with it


class ImageBlock(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="image"):
    blob: str  # SHA-256 of the bytes, hexadecimal; never a URL, which the provider would fetch outside our gate
    media_type: str = "image/png"


class ToolCall(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_call"):
    id: str
    name: str
    args: dict[str, Any] = {}
    args_error: str | None = None  # the model wrote no JSON object: why, and `raw` is what it wrote
    raw: str = ""
    extra: bytes = b""


class ToolResultBlock(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_result"):
    id: str  # of the call that it answers
    content: list[TextBlock | ImageBlock] = []
    error: bool = False


class OpaqueBlock(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="opaque"):
    dialect: str  # which wire it belongs to: "anthropic", "openai.chat", "openai.responses"
    data: bytes  # the provider's JSON


Block = TextBlock | ImageBlock | ToolCall | ToolResultBlock | OpaqueBlock


class Message(Struct, kw_only=True, forbid_unknown_fields=True):
    role: Role
    blocks: list[Block] = []


class ToolSchema(Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool as a model sees it."""

    name: str
    description: str = ""
    input_schema: dict[str, Any] = {}  # empty: takes nothing


class ModelRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    model: str  # provider/name, or an alias of the operator
    messages: list[Message]
    tools: list[ToolSchema] = []
    tool_choice: str = "auto"  # auto, none, required, or the name of a tool
    output_schema: dict[str, Any] | None = None
    max_output: int = 4096
    temperature: float | None = None  # None, here and below: the provider's default
    stop: list[str] = []
    seed: int | None = None
    stream: bool = False
    deadline_ms: int | None = None  # from now
    cache: CacheMode = "off"
    waits: bool = True  # for a provider that is left alone because it fails; False: EHOSTUNREACH at once


class Usage(Struct, kw_only=True, forbid_unknown_fields=True):
    """Tokens. `input` is the whole prompt, what a cache gave or took included; `output` includes reasoning."""

    input: int = 0
    cached_read: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    estimated: bool = False  # the provider has not said all of it; an input of 0 was not said at all


MODEL_VARIABLE = "AGENT_OS_MODEL"  # of a program's environment: the model that its manifest or its operator names


class ModelReply(Struct, kw_only=True, forbid_unknown_fields=True):
    blocks: list[Block] = []
    parsed: Any = None  # only with an output schema
    stop: Stop = "end"
    usage: Usage = field(default_factory=Usage)
    cost_microusd: int | None = None  # None: no price is known
    price_table: str = ""  # version of the prices used
    model: str = ""  # what really answered, as the provider names it
    provider: str = ""
    window: int | None = None  # tokens of its context; None: not known
    attempts: int = 1
    queued_ms: int = 0
    first_token_ms: int = 0
    total_ms: int = 0
    scripted: bool = False
    cached: bool = False
    clamped: bool = False  # `max_output` was lowered to what the budget allows

    @property
    def text(self) -> str:
        return text_of(self.blocks)

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [block for block in self.blocks if isinstance(block, ToolCall)]


# The events of a stream, in order: Started, then deltas and finished blocks, then Finished. Deltas are for showing; the
# reply is made of the blocks alone.


class Started(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="started"):
    model: str = ""
    request_id: str = ""  # the provider's, for asking its support


class TextDelta(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="text"):
    index: int  # of the block
    text: str


class ToolDelta(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="tool"):
    index: int
    id: str
    name: str
    args: str = ""  # a piece of JSON


class BlockDone(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="block"):
    index: int
    block: Block


class UsageSeen(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="usage"):
    """So far; a later one replaces it."""

    usage: Usage


class Finished(Struct, kw_only=True, forbid_unknown_fields=True, tag_field="event", tag="finished"):
    stop: Stop
    usage: Usage
    model: str = ""
    scripted: bool = False


ModelEvent = Started | TextDelta | ToolDelta | BlockDone | UsageSeen | Finished


def text_of(blocks: Iterable[Block]) -> str:
    """What is readable in them, without tool calls, results and opaque blocks."""
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))
