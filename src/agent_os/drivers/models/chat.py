"""The Chat Completions dialect: OpenAI's older one, and that of every compatible server.

In: requests of ours; events of theirs. Out: bodies of theirs; events of ours. This wire counts cached tokens inside
`prompt_tokens`, and wants to be asked for usage in streams. Servers differ in small ways, and are taken as they are:
calls without an index or an id, `stop` where a tool is called, reasoning counted beside the output, no `[DONE]`.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import msgspec
from msgspec import Struct, field

from agent_os.abi.models import (
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
from agent_os.drivers.models import blocks as common
from agent_os.drivers.models.faults import fault_inside
from agent_os.drivers.models.names import Names
from agent_os.drivers.models.speaking import Blobs, Reading
from agent_os.drivers.models.sse import Event
from agent_os.drivers.models.values import count, decoded, items, mapping, text, tool_call
from agent_os.drivers.models.wire import bearer

DIALECT = "openai.chat"
_DONE = b"[DONE]"
# Where compatible servers put reasoning; it goes back into the message that it came from.
_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
_OPAQUE = {"": frozenset(_REASONING)}
_CALL_EXTRAS = ("extra_content",)  # signatures of reasoning on a call
STOPS: Mapping[str, Stop] = {
    "stop": "end",
    "length": "length",
    "tool_calls": "tool",
    "function_call": "tool",
    "content_filter": "filtered",
}


def credentials(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {bearer(key)}"}


class Chat(Struct, frozen=True):
    """The dialect. `native`: schemas by the server's own mode; `limit`: its name for the most output."""

    native: bool = True
    limit: str = "max_tokens"
    path: str = "/chat/completions"

    def headers(self, key: str | None) -> dict[str, str]:
        return credentials(key)

    def body(self, request: ModelRequest, names: Names, blobs: Blobs) -> dict[str, Any]:
        in_words = request.output_schema is not None and not self.native
        messages = common.instructed(request) if in_words else request.messages
        body: dict[str, Any] = {
            "model": request.model,
            self.limit: request.max_output,
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [told for message in messages for told in _message(message, names, blobs)],
        }
        if request.tools:
            body["tools"] = [_tool(tool.name, tool.description, tool.input_schema, names) for tool in request.tools]
            body["tool_choice"] = _choice(request.tool_choice, names)
        if request.output_schema is not None and self.native:
            body["response_format"] = {"type": "json_schema", "json_schema": schema_format(request.output_schema)}
        for name, value in (("temperature", request.temperature), ("seed", request.seed), ("stop", request.stop)):
            if value is not None and value != []:
                body[name] = value
        return body

    def reading(self, request: ModelRequest, names: Names) -> Reading:
        return _Reading(names, request.stop)


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": "answer", "schema": schema, "strict": common.is_strict(schema)}


def _tool(name: str, description: str, schema: dict[str, Any], names: Names) -> dict[str, Any]:
    function = {"name": names.theirs(name), "description": description, "parameters": common.tool_schema(schema)}
    return {"type": "function", "function": function}


def _choice(choice: str, names: Names) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": names.theirs(choice)}}


def _message(message: Message, names: Names, blobs: Blobs) -> Iterator[dict[str, Any]]:
    """Results first, each its own message; pictures among them follow as the user's, since a result is text here."""
    shown = list[ImageBlock]()
    for block in message.blocks:
        if isinstance(block, ToolResultBlock):
            yield {
                "role": "tool",
                "tool_call_id": common.call_id(block.id),
                "content": common.result_text(block),
            }
            shown += common.result_images(block)
    if message.role == "assistant":
        yield _assistant(message, names)
        return
    shown += [block for block in message.blocks if isinstance(block, ImageBlock)]
    said = text_of(message.blocks)
    if shown:
        pictures = [{"type": "image_url", "image_url": {"url": common.data_url(block, blobs)}} for block in shown]
        yield {"role": "user", "content": [*([{"type": "text", "text": said}] if said else []), *pictures]}
    elif said or message.role != "tool":
        yield {"role": "user" if message.role == "tool" else message.role, "content": said}


def _assistant(message: Message, names: Names) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": text_of(message.blocks) or None}
    calls = [block for block in message.blocks if isinstance(block, ToolCall)]
    for block in message.blocks:
        if isinstance(block, OpaqueBlock) and block.dialect == DIALECT:
            made |= common.opaque(block, _OPAQUE)
    if calls:
        made["tool_calls"] = [
            {
                **common.extras(call, _CALL_EXTRAS),
                "id": common.call_id(call.id),
                "type": "function",
                "function": {
                    "name": names.theirs(call.name),
                    "arguments": msgspec.json.encode(common.arguments(call)).decode(),
                },
            }
            for call in calls
        ]
    elif made["content"] is None:
        made["content"] = ""
    return made


def usage_of(said: object) -> Usage | None:
    """From a `usage` object. None: it says nothing."""
    fields = mapping(said)
    prompt, completion = count(fields.get("prompt_tokens")), count(fields.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    inside, outside = mapping(fields.get("prompt_tokens_details")), mapping(fields.get("completion_tokens_details"))
    reasoning = count(outside.get("reasoning_tokens")) or 0
    # Some count reasoning beside the completion; the total tells.
    total = count(fields.get("total_tokens")) or 0
    if reasoning and total == prompt + completion + reasoning:
        completion += reasoning
    cached = count(inside.get("cached_tokens")) or count(fields.get("prompt_cache_hit_tokens")) or 0
    return Usage(
        input=prompt,
        cached_read=min(cached, prompt),
        cache_write=min(count(inside.get("cache_write_tokens")) or 0, prompt),
        output=completion,
        reasoning=min(reasoning, completion),
    )


def _size(delta: dict[str, Any]) -> int:
    """Bytes that were written in it."""
    calls = [mapping(mapping(call).get("function")) for call in items(delta.get("tool_calls"))]
    said = [delta.get(name) for name in ("content", "refusal", *_REASONING)]
    return sum(len(text(one).encode(errors="surrogatepass")) for one in (*said, *(c.get("arguments") for c in calls)))


class _Call(Struct):
    index: int  # of the block
    id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])


class _Reading:
    def __init__(self, names: Names, stops: list[str]) -> None:
        self.usage = Usage(estimated=True)
        self.done = False
        self.unseen = 0
        self._names = names
        self._stops = stops
        self._id = self._model = ""
        self._stop: Stop | None = None
        self._told = False  # usage was
        self._blocks = 0
        self._text: tuple[int, list[str]] | None = None
        self._refusal: list[str] = []
        self._reasoning: dict[str, Any] = {}
        self._reasoned = -1  # index of its block
        self._calls: list[_Call] = []
        self._by_place: dict[int, _Call] = {}

    def take(self, event: Event) -> Iterable[ModelEvent]:
        if event.data.strip() == _DONE:
            self.done = True
            return []
        said = decoded(event.data)
        if said is None:
            raise ValueError("an event is no JSON object")
        if said.get("error"):
            raise fault_inside(said["error"])
        self._id = self._id or text(said.get("id"))
        self._model = self._model or text(said.get("model"))
        events = list[ModelEvent]()
        for choice in map(mapping, items(said.get("choices"))):
            if choice.get("index") in (0, None):
                events += self._delta(mapping(choice.get("delta")))
                self._ended(choice)
            else:  # a program of its own asked for many answers
                self.unseen += _size(mapping(choice.get("delta")))
        if (usage := usage_of(said.get("usage"))) is not None:
            self.usage, self._told = msgspec.structs.replace(usage, estimated=True), True
            events.append(UsageSeen(usage=self.usage))
        return events

    def finish(self) -> Iterable[ModelEvent]:
        if self._stop is None and not (self.done and (self._text or self._calls)):
            raise ValueError("no reason to stop was given")
        made = list[BlockDone]()
        if self._reasoning:
            kept = OpaqueBlock(dialect=DIALECT, data=msgspec.json.encode(self._reasoning))
            made.append(BlockDone(index=self._reasoned, block=kept))
        if self._text is not None:
            made.append(BlockDone(index=self._text[0], block=TextBlock(text="".join(self._text[1]))))
        made += [BlockDone(index=call.index, block=self._made(call)) for call in self._calls]
        usage = msgspec.structs.replace(self.usage, estimated=not self._told)
        stop = self._reason()
        made.sort(key=lambda done: done.index)
        return [*made, Finished(stop=stop, usage=usage, model=self._model)]

    def _reason(self) -> Stop:
        if self._refusal:
            return "refused"
        if self._calls and self._stop in ("end", None):
            return "tool"
        return self._stop or "end"

    def _ended(self, choice: dict[str, Any]) -> None:
        if (reason := choice.get("finish_reason")) is not None:
            self._stop = STOPS.get(text(reason), "end")
            if self._stop == "end" and text(choice.get("stop_reason")) in self._stops:
                self._stop = "stop_sequence"  # vLLM says which; others do not tell it from the end

    def _delta(self, delta: dict[str, Any]) -> list[ModelEvent]:
        for name in _REASONING:
            if delta.get(name):
                self.unseen += len(msgspec.json.encode(delta[name]))
                self._reason_on(name, delta[name])
        events = list[ModelEvent]()
        said, refused = text(delta.get("content")), text(delta.get("refusal"))
        if refused:
            self._refusal.append(refused)
        if said or refused:
            self._text = self._text or (self._new(), [])
            self._text[1].append(said or refused)
            events.append(TextDelta(index=self._text[0], text=said or refused))
        for piece in map(mapping, items(delta.get("tool_calls"))):
            events += self._called(piece)
        return events

    def _reason_on(self, name: str, piece: Any) -> None:
        if self._reasoned < 0:
            self._reasoned = self._new()
        held = self._reasoning.get(name)
        if isinstance(held, str) and isinstance(piece, str):
            piece = held + piece
        elif isinstance(held, list) and isinstance(piece, list):
            piece = [*items(cast(object, held)), *items(cast(object, piece))]
        self._reasoning[name] = piece

    def _called(self, piece: dict[str, Any]) -> list[ModelEvent]:
        call, function = self._call_of(piece), mapping(piece.get("function"))
        if text(function.get("name")) and not call.name:
            call.name = self._names.ours(text(function.get("name")))
        written = function.get("arguments")
        args = written if isinstance(written, str) else msgspec.json.encode(written).decode() if written else ""
        call.pieces.append(args)
        call.extra |= {name: piece[name] for name in _CALL_EXTRAS if piece.get(name)}
        return [ToolDelta(index=call.index, id=call.id, name=call.name, args=args)]

    def _call_of(self, piece: dict[str, Any]) -> _Call:
        """The call that a piece belongs to. An id that was not there begins another, whatever the index says."""
        place, id = count(piece.get("index")), text(piece.get("id"))
        known = self._by_place.get(place) if place is not None else self._calls[-1] if self._calls else None
        if known is not None and (not id or id == known.id):
            return known
        number = len(self._calls)
        call = _Call(self._new(), id or f"call_{self._id or 'x'}_{number}")
        self._calls.append(call)
        if place is not None:
            self._by_place[place] = call
        return call

    def _made(self, call: _Call) -> ToolCall:
        extra = msgspec.json.encode(call.extra) if call.extra else b""
        return tool_call(call.id, call.name, "".join(call.pieces), extra)

    def _new(self) -> int:
        self._blocks += 1
        return self._blocks - 1
