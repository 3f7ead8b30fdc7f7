"""The Responses dialect of OpenAI, and of servers that speak it.

In: requests of ours; events of theirs. Out: bodies of theirs; events of ours. Nothing is stored at the provider, so
what it reasoned comes back encrypted and is sent again in its place. The dialect has no `stop` and no `seed`: whoever
asks for them is answered in Chat Completions.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

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
)
from agent_os.drivers.models import blocks as common
from agent_os.drivers.models.chat import credentials, schema_format
from agent_os.drivers.models.faults import fault_inside
from agent_os.drivers.models.names import Names
from agent_os.drivers.models.speaking import Blobs, Reading, unsound
from agent_os.drivers.models.sse import Event
from agent_os.drivers.models.values import count, decoded, items, mapping, text, tool_call

DIALECT = "openai.responses"
_OPAQUE = {"reasoning": frozenset(("type", "id", "summary", "content", "encrypted_content", "status"))}
_TEXT_EXTRAS = ("phase",)  # whether a message is on the way or the answer; models expect to see it again
_ITEM = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Responses(Struct, frozen=True):
    """The dialect. `native`: schemas by the server's own mode."""

    native: bool = True
    path: str = "/responses"

    def headers(self, key: str | None) -> dict[str, str]:
        return credentials(key)

    def body(self, request: ModelRequest, names: Names, blobs: Blobs) -> dict[str, Any]:
        if request.stop or request.seed is not None:
            raise unsound("the Responses API has no stop sequences and no seed: leave them out")
        in_words = request.output_schema is not None and not self.native
        messages = common.instructed(request) if in_words else request.messages
        body: dict[str, Any] = {
            "model": request.model,
            "max_output_tokens": request.max_output,
            "stream": True,
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "input": [item for message in messages for item in _input(message, names, blobs)],
        }
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "name": names.theirs(tool.name),
                    "description": tool.description,
                    "parameters": common.tool_schema(tool.input_schema),
                    "strict": False,
                }
                for tool in request.tools
            ]
            body["tool_choice"] = _choice(request.tool_choice, names)
        if request.output_schema is not None and self.native:
            body["text"] = {"format": {"type": "json_schema", **schema_format(request.output_schema)}}
        if request.temperature is not None:
            body["temperature"] = request.temperature
        return body

    def reading(self, request: ModelRequest, names: Names) -> Reading:
        return _Reading(names)


def _choice(choice: str, names: Names) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "name": names.theirs(choice)}


def _input(message: Message, names: Names, blobs: Blobs) -> Iterator[Any]:
    """Items in the order of the blocks; what a person says in one message stays one."""
    parts = list[dict[str, Any]]()
    for block in message.blocks:
        match block:
            case TextBlock() if message.role == "assistant":
                if block.text:
                    yield {"role": "assistant", "content": block.text, **common.extras(block, _TEXT_EXTRAS)}
            case TextBlock() | ImageBlock():
                parts += _part(block, blobs)
            case ToolCall():
                yield {
                    "type": "function_call",
                    "call_id": common.call_id(block.id),
                    "name": names.theirs(block.name),
                    "arguments": msgspec.json.encode(common.arguments(block)).decode(),
                }
            case ToolResultBlock():
                images = common.result_images(block)
                output = [part for inner in block.content for part in _part(inner, blobs)] if images else None
                said = common.result_text(block) if output is None else output
                yield {"type": "function_call_output", "call_id": common.call_id(block.id), "output": said}
            case OpaqueBlock():
                if block.dialect == DIALECT:
                    common.opaque(block, _OPAQUE)
                    yield msgspec.Raw(block.data)
    if parts:
        yield {"role": "user" if message.role == "tool" else message.role, "content": parts}


def _part(block: TextBlock | ImageBlock, blobs: Blobs) -> list[dict[str, Any]]:
    if isinstance(block, TextBlock):
        return [{"type": "input_text", "text": block.text}] if block.text else []
    return [{"type": "input_image", "image_url": common.data_url(block, blobs), "detail": "auto"}]


def usage_of(said: object) -> Usage | None:
    """From a `usage` object. None: it says nothing."""
    fields = mapping(said)
    prompt, output = count(fields.get("input_tokens")), count(fields.get("output_tokens"))
    if prompt is None or output is None:
        return None
    inside, outside = mapping(fields.get("input_tokens_details")), mapping(fields.get("output_tokens_details"))
    return Usage(
        input=prompt,
        cached_read=min(count(inside.get("cached_tokens")) or 0, prompt),
        cache_write=min(count(inside.get("cache_write_tokens")) or 0, prompt),
        output=output,
        reasoning=min(count(outside.get("reasoning_tokens")) or 0, output),
    )


class _Reading:
    def __init__(self, names: Names) -> None:
        self.usage = Usage(estimated=True)
        self.done = False
        self.unseen = 0
        self._names = names
        self._model = ""
        self._stop: Stop | None = None
        self._told = self._called = self._refused = False
        self._places: dict[tuple[int, int], int] = {}  # (item, part) → block
        self._items: dict[int, dict[str, Any]] = {}  # begun

    def take(self, event: Event) -> Iterable[ModelEvent]:
        said = decoded(event.data)
        if said is None:
            if event.data.strip() == b"[DONE]":
                return []  # some servers end all their streams alike
            raise ValueError("an event is no JSON object")
        match said.get("type") or event.name:
            case "response.created":
                self._model = text(mapping(said.get("response")).get("model"))
            case "response.output_item.added":
                self._items[_place(said)] = mapping(said.get("item"))
            case "response.output_text.delta" | "response.refusal.delta":
                part = count(said.get("content_index")) or 0
                return [TextDelta(index=self._block(_place(said), part), text=text(said.get("delta")))]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.unseen += len(text(said.get("delta")).encode())
            case "response.function_call_arguments.delta":
                return self._writing(_place(said), text(said.get("delta")))
            case "response.output_item.done":
                return list(self._item(_place(said), event.data, mapping(said.get("item"))))
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled":
                return self._ended(mapping(said.get("response")))
            case "error":
                raise fault_inside(mapping(said.get("error")) or said)
            case _:
                if said.get("error") and "type" not in said:
                    raise fault_inside(said["error"])
        return []

    def finish(self) -> Iterable[ModelEvent]:
        if self._stop is None:
            raise ValueError("the response was not completed")
        usage = msgspec.structs.replace(self.usage, estimated=not self._told)
        return [Finished(stop=self._stop, usage=usage, model=self._model)]

    def _writing(self, item: int, args: str) -> list[ModelEvent]:
        begun = self._items.get(item, {})
        name = self._names.ours(text(begun.get("name")))
        return [ToolDelta(index=self._block(item, 0), id=text(begun.get("call_id")), name=name, args=args)]

    def _item(self, place: int, data: bytes, item: dict[str, Any]) -> Iterator[ModelEvent]:
        match item.get("type"):
            case "message":
                extra = {name: item[name] for name in _TEXT_EXTRAS if item.get(name)}
                for number, part in enumerate(map(mapping, items(item.get("content")))):
                    self._refused |= part.get("type") == "refusal"
                    said = text(part.get("text")) or text(part.get("refusal"))
                    block = TextBlock(text=said, extra=msgspec.json.encode(extra) if extra else b"")
                    yield self._made(place, number, block)
            case "function_call":
                self._called = True
                id, name = text(item.get("call_id")) or text(item.get("id")), self._names.ours(text(item.get("name")))
                yield self._made(place, 0, tool_call(id, name, text(item.get("arguments"))))
            case "reasoning":
                raw = _ITEM.decode(_ITEM.decode(data)["item"])
                kept = {name: raw[name] for name in raw if name in _OPAQUE["reasoning"] and item.get(name) is not None}
                yield self._made(place, 0, OpaqueBlock(dialect=DIALECT, data=msgspec.json.encode(kept)))
            case _:
                pass  # of tools on the provider's side, which no request of ours asks for

    def _made(self, place: int, part: int, block: Block) -> BlockDone:
        return BlockDone(index=self._block(place, part), block=block)

    def _ended(self, response: dict[str, Any]) -> list[ModelEvent]:
        if (usage := usage_of(response.get("usage"))) is not None:
            self.usage, self._told = usage, True
        if response.get("error") or response.get("status") in ("failed", "cancelled"):
            raise fault_inside(response.get("error") or {"code": "server_error", "message": "the response failed"})
        self._model = text(response.get("model")) or self._model
        self._stop = self._reason(response)
        self.done = True
        return [UsageSeen(usage=self.usage)] if self._told else []

    def _reason(self, response: dict[str, Any]) -> Stop:
        if response.get("status") == "incomplete":
            why = text(mapping(response.get("incomplete_details")).get("reason"))
            return "filtered" if why == "content_filter" else "length"
        return "tool" if self._called else "refused" if self._refused else "end"

    def _block(self, item: int, part: int) -> int:
        return self._places.setdefault((item, part), len(self._places))


def _place(said: dict[str, Any]) -> int:
    place = count(said.get("output_index"))
    if place is None:
        raise ValueError("an item has no place")
    return place
