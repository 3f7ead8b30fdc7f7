"""Anthropic, and whoever speaks its Messages dialect.

In: requests of ours; events of theirs. Out: bodies of theirs; events of ours. This wire counts cached tokens beside
`input_tokens`; here they are added, so that `usage.input` is the whole prompt. Of what a reply may hold, text, tool
calls and reasoning are kept; other blocks come from tools on the provider's side, which no request of ours asks for.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from agent_os.abi.models import (
    Block,
    BlockDone,
    Finished,
    ImageBlock,
    Message,
    ModelEvent,
    ModelRequest,
    OpaqueBlock,
    Stop,
    TextBlock,
    TextDelta,
    ToolCall,
    ToolDelta,
    ToolResultBlock,
    Usage,
    UsageSeen,
    text_of,
)
from agent_os.drivers.models import Feature, ModelInfo
from agent_os.drivers.models import blocks as common
from agent_os.drivers.models.faults import fault_inside
from agent_os.drivers.models.names import Names
from agent_os.drivers.models.remote import Remote
from agent_os.drivers.models.speaking import Blobs, Dialect, Reading, unsound
from agent_os.drivers.models.sse import Event
from agent_os.drivers.models.values import count, decoded, mapping, text, tool_call
from agent_os.drivers.models.wire import Endpoint, bearer

BASE = "https://api.anthropic.com"
VERSION = "2023-06-01"
_CONTEXT = 200_000
# Schemas natively came with the 4.5 family; before, the model is told in words.
_WITHOUT_SCHEMAS = re.compile(r"claude-(2|3|instant)|claude-(opus|sonnet)-4(-0|-1)?(-2025\d{4})?$")
_FEATURES: frozenset[Feature] = frozenset(("tools", "images", "structured", "stop"))
_OPAQUE = {
    "thinking": frozenset(("type", "thinking", "signature")),
    "redacted_thinking": frozenset(("type", "data")),
}
STOPS: Mapping[str, Stop] = {
    "end_turn": "end",
    "pause_turn": "end",
    "max_tokens": "length",
    "stop_sequence": "stop_sequence",
    "tool_use": "tool",
    "refusal": "refused",
    "model_context_window_exceeded": "context",
}


class Anthropic(Remote):
    name = "anthropic"
    listing = "/v1/models?limit=1000"
    paths = frozenset(("/v1/messages", "/v1/messages/count_tokens"))

    def __init__(
        self,
        endpoint: Endpoint | None = None,
        *,
        blobs: Blobs = lambda _: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(endpoint or Endpoint(BASE), blobs=blobs, now=now)

    def info(self, model: str) -> ModelInfo:
        features = _FEATURES - {"structured"} if _WITHOUT_SCHEMAS.search(model) else _FEATURES
        return ModelInfo(model, _CONTEXT if "claude" in model else None, features, local=self.endpoint.is_local)

    def dialect(self, request: ModelRequest) -> Dialect:
        native = "structured" in self.info(request.model).features and common.is_strict(request.output_schema)
        return Messages(native)

    def credentials(self, key: str | None) -> dict[str, str]:
        return credentials(key)


def credentials(key: str | None) -> dict[str, str]:
    return {"anthropic-version": VERSION, **({} if key is None else {"x-api-key": bearer(key)})}


class Messages(Struct, frozen=True):
    """The dialect. `native`: schemas by the provider's own mode."""

    native: bool = True
    path: str = "/v1/messages"

    def headers(self, key: str | None) -> dict[str, str]:
        return credentials(key)

    def body(self, request: ModelRequest, names: Names, blobs: Blobs) -> dict[str, Any]:
        if request.seed is not None:
            raise unsound("this provider has no seed: leave it out")
        in_words = request.output_schema is not None and not self.native
        messages = common.instructed(request) if in_words else request.messages
        body: dict[str, Any] = {
            "model": request.model,
            "max_tokens": request.max_output,
            "stream": True,
            "messages": list(_turns(messages, names, blobs)),
        }
        if system := "\n\n".join(text_of(message.blocks) for message in messages if message.role == "system"):
            body["system"] = system
        if request.tools:
            body["tools"] = [
                {
                    "name": names.theirs(tool.name),
                    "description": tool.description,
                    "input_schema": common.tool_schema(tool.input_schema),
                }
                for tool in request.tools
            ]
            body["tool_choice"] = _choice(request.tool_choice, names)
        if request.output_schema is not None and self.native:
            body["output_config"] = {"format": {"type": "json_schema", "schema": request.output_schema}}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.stop:
            body["stop_sequences"] = request.stop
        return body

    def reading(self, request: ModelRequest, names: Names) -> Reading:
        return _Reading(names)


def _choice(choice: str, names: Names) -> dict[str, Any]:
    if choice in ("auto", "none"):
        return {"type": choice}
    return {"type": "any"} if choice == "required" else {"type": "tool", "name": names.theirs(choice)}


def _turns(messages: Iterable[Message], names: Names, blobs: Blobs) -> Iterator[dict[str, Any]]:
    """User and assistant by turns: the results of tools are the user's, and come first in it."""
    role, content = "", list[Any]()
    for message in messages:
        if message.role == "system":
            continue
        theirs = "assistant" if message.role == "assistant" else "user"
        if theirs != role and content:
            yield {"role": role, "content": content}
            content = []
        role = theirs
        content += [block for part in message.blocks for block in _block(part, names, blobs)]
    if content:
        yield {"role": role, "content": content}


def _block(block: Block, names: Names, blobs: Blobs) -> list[Any]:
    match block:
        case TextBlock():
            return [{"type": "text", "text": block.text}] if block.text else []  # an empty one is refused
        case ImageBlock():
            return [_image(block, blobs)]
        case ToolCall():
            name, args = names.theirs(block.name), common.arguments(block)
            return [{"type": "tool_use", "id": common.call_id(block.id), "name": name, "input": args}]
        case ToolResultBlock():
            parts = [part for inner in block.content for part in _block(inner, names, blobs)]
            answer: dict[str, Any] = {"type": "tool_result", "tool_use_id": common.call_id(block.id), "content": parts}
            return [{**answer, "is_error": True} if block.error else answer]
        case OpaqueBlock():
            if block.dialect != "anthropic":
                return []  # another provider's reasoning means nothing here
            common.opaque(block, _OPAQUE)
            return [msgspec.Raw(block.data)]


def _image(block: ImageBlock, blobs: Blobs) -> dict[str, Any]:
    media_type, data = common.image(block, blobs)
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def usage_of(said: object, before: Usage | None = None) -> Usage:
    """From a `usage` object, whole or, in a stream, on top of what was said before: counts only grow, and some servers
    end with zeros."""
    fields, old = mapping(said), before or Usage()
    read = max(count(fields.get("cache_read_input_tokens")) or 0, old.cached_read)
    write = max(count(fields.get("cache_creation_input_tokens")) or 0, old.cache_write)
    bare = max(count(fields.get("input_tokens")) or 0, old.input - old.cached_read - old.cache_write)
    details = mapping(fields.get("output_tokens_details"))
    return Usage(
        input=bare + read + write,
        cached_read=read,
        cache_write=write,
        output=max(count(fields.get("output_tokens")) or 0, old.output),
        reasoning=max(count(details.get("thinking_tokens")) or 0, old.reasoning),
    )


class _Open(Struct):
    """A block that is being written."""

    start: dict[str, Any]
    pieces: list[str] = field(default_factory=list[str])
    signature: list[str] = field(default_factory=list[str])


class _Reading:
    def __init__(self, names: Names) -> None:
        self.usage = Usage(estimated=True)
        self.done = False
        self.unseen = 0
        self._names = names
        self._model = ""
        self._stop: str | None = None
        self._open: dict[int, _Open] = {}

    def take(self, event: Event) -> Iterable[ModelEvent]:
        said = decoded(event.data)
        if said is None:
            raise ValueError("an event is no JSON object")
        match said.get("type") or event.name:
            case "message_start":
                message = mapping(said.get("message"))
                self._model = text(message.get("model"))
                return self._used(message.get("usage"))
            case "content_block_start":
                self._open[_index(said)] = _Open(mapping(said.get("content_block")))
                return self._begun(_index(said))
            case "content_block_delta":
                return self._delta(_index(said), mapping(said.get("delta")))
            case "content_block_stop":
                return self._ended(_index(said))
            case "message_delta":
                self._stop = text(mapping(said.get("delta")).get("stop_reason")) or self._stop
                return self._used(said.get("usage"))
            case "message_stop":
                self.done = True
            case "error":
                raise fault_inside(said.get("error"))
            case _:
                pass  # ping, and what was not known when this was written
        return ()

    def finish(self) -> Iterable[ModelEvent]:
        if self._stop is None:
            raise ValueError("there was no end of the message")
        left = [event for index in list(self._open) for event in self._ended(index)]
        usage = msgspec.structs.replace(self.usage, estimated=self.usage.input == 0)
        return [*left, Finished(stop=STOPS.get(self._stop, "end"), usage=usage, model=self._model)]

    def _used(self, said: object) -> list[ModelEvent]:
        if mapping(said):
            self.usage = msgspec.structs.replace(usage_of(said, self.usage), estimated=True)
            return [UsageSeen(usage=self.usage)]
        return []

    def _begun(self, index: int) -> list[ModelEvent]:
        start = self._open[index].start
        if start.get("type") == "tool_use":
            return [ToolDelta(index=index, id=text(start.get("id")), name=self._names.ours(text(start.get("name"))))]
        if start.get("type") == "text" and text(start.get("text")):
            return self._delta(index, {"type": "text_delta", "text": start["text"]})
        return []

    def _delta(self, index: int, delta: dict[str, Any]) -> list[ModelEvent]:
        if (block := self._open.get(index)) is None:
            raise ValueError("a piece of a block that was not begun")
        match delta.get("type"):
            case "text_delta":
                block.pieces.append(text(delta.get("text")))
                return [TextDelta(index=index, text=block.pieces[-1])]
            case "input_json_delta":
                block.pieces.append(text(delta.get("partial_json")))
                name = self._names.ours(text(block.start.get("name")))
                return [ToolDelta(index=index, id=text(block.start.get("id")), name=name, args=block.pieces[-1])]
            case "thinking_delta":
                block.pieces.append(text(delta.get("thinking")))
                self.unseen += len(block.pieces[-1].encode())
            case "signature_delta":
                block.signature.append(text(delta.get("signature")))
            case _:
                pass
        return []

    def _ended(self, index: int) -> list[ModelEvent]:
        block = self._open.pop(index, None)
        made = None if block is None else self._made(block)
        return [] if made is None else [BlockDone(index=index, block=made)]

    def _made(self, block: _Open) -> Block | None:
        start, written = block.start, "".join(block.pieces)
        match start.get("type"):
            case "text":
                return TextBlock(text=written)
            case "tool_use":
                if not written and mapping(start.get("input")):
                    written = msgspec.json.encode(start["input"]).decode()
                return tool_call(text(start.get("id")), self._names.ours(text(start.get("name"))), written)
            case "thinking":
                signature = text(start.get("signature")) + "".join(block.signature)
                thought = text(start.get("thinking")) + written
                return _kept({"type": "thinking", "thinking": thought, "signature": signature})
            case "redacted_thinking":
                return _kept({"type": "redacted_thinking", "data": text(start.get("data"))})
            case _:
                return None


def _kept(fields: dict[str, str]) -> OpaqueBlock:
    return OpaqueBlock(dialect="anthropic", data=msgspec.json.encode(fields))


def _index(said: dict[str, Any]) -> int:
    index = count(said.get("index"))
    if index is None:
        raise ValueError("a block has no index")
    return index
